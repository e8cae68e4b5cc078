//! What `#SBATCH` lines say about a job, and how it becomes options of docket: under those of `#DOCKET`
//! lines and of the command line, which beat it.

use super::table::What;
use super::value::{self, Export, Gpus, Gres, Pattern};
use crate::args::{JobOptions, SlurmFacts};
use crate::parse::{self, After};
use proto::v1::{ArraySpec, ExitKind, WarnSignal};
use std::ffi::OsString;
use std::time::Duration;

/// Tries of a job that may be requeued, as docket counts them; whatever took its node from it.
const REQUEUE: [&str; 2] = ["--retries=3", "--retry-on=agent-died,lost,node-rebooted"];

/// The same as they are read.
const REQUEUE_RETRIES: u32 = 3;
const REQUEUE_ON: [ExitKind; 3] = [ExitKind::AgentDied, ExitKind::Lost, ExitKind::NodeRebooted];

/// Everything that the lines said, the last of each.
#[derive(Debug, Default)]
pub struct Sbatch {
    array: Option<ArraySpec>,
    begin: Option<u64>,
    dir: Option<String>,
    comment: Option<String>,
    cpus_per_gpu: Option<u32>,
    cpus_per_task: Option<u32>,
    dependency: Option<After>,
    error: Option<Pattern>,
    export: Option<Export>,
    features: Vec<String>,
    gpus: Option<Gpus>,
    gpus_per_task: Option<Gpus>,
    gres: Gres,
    hold: bool,
    input: Option<String>,
    licenses: Vec<(String, u64)>,
    mem: Option<u64>,
    mem_per_cpu: Option<u64>,
    mem_per_gpu: Option<u64>,
    min_cpus: Option<u32>,
    name: Option<String>,
    node: Option<String>,
    ntasks: Option<u32>,
    ntasks_per_node: Option<u32>,
    append: Option<bool>,
    output: Option<Pattern>,
    queue: Option<String>,
    priority: Option<i32>,
    requeue: bool,
    signal: Option<WarnSignal>,
    time: Option<Duration>,
    wait: bool,
}

impl Sbatch {
    /// Takes one option.
    pub(super) fn set(&mut self, what: What, given: Option<&str>) -> Result<(), String> {
        let text = given.unwrap_or_default();
        match what {
            What::Hold => self.hold = true,
            What::Requeue => self.requeue = true,
            What::NoRequeue => self.requeue = false,
            What::Wait => self.wait = true,
            What::Nice => self.priority = Some(value::nice(given)?),
            _ if text.is_empty() && what != What::Comment => {
                return Err("it needs a value that is not empty".to_owned());
            }
            What::CpusPerGpu
            | What::CpusPerTask
            | What::Gpus
            | What::GpusPerTask
            | What::Gres
            | What::Mem
            | What::MemPerCpu
            | What::MemPerGpu
            | What::MinCpus
            | What::Ntasks
            | What::NtasksPerNode => return self.set_size(what, text),
            What::Chdir
            | What::Error
            | What::Input
            | What::OpenMode
            | What::Output
            | What::Export => return self.set_place(what, text),
            What::Array => self.array = Some(parse::array(text).map_err(|why| why.to_string())?),
            What::Begin => self.begin = Some(begin(text)?),
            What::Comment => self.comment = Some(text.to_owned()),
            What::Constraint => self.features = value::features(text)?,
            What::Dependency => {
                let after = parse::slurm_dependency(text).map_err(|why| why.to_string())?;
                self.dependency = Some(after);
            }
            What::JobName => self.name = Some(text.to_owned()),
            What::Licenses => self.licenses = value::licenses(text)?,
            What::NodeList => self.node = Some(value::node(text)?),
            What::Nodes => value::nodes(text)?,
            What::Partition => self.queue = Some(text.to_owned()),
            What::Priority => match value::priority(text)? {
                Some(priority) => self.priority = Some(priority),
                None => self.hold = true,
            },
            What::Signal => self.signal = Some(parse::warn_signal(&value::signal(text)?)?),
            What::Time => self.time = value::time(text)?,
        }
        Ok(())
    }

    /// How much of something.
    fn set_size(&mut self, what: What, text: &str) -> Result<(), String> {
        match what {
            What::CpusPerGpu => self.cpus_per_gpu = Some(value::count(text)?),
            What::CpusPerTask => self.cpus_per_task = Some(value::count(text)?),
            What::Gpus => self.gpus = Some(value::gpus(text)?),
            What::GpusPerTask => self.gpus_per_task = Some(value::gpus(text)?),
            What::Gres => self.gres = value::gres(text)?,
            What::Mem => self.mem = Some(value::memory(text)?),
            What::MemPerCpu => self.mem_per_cpu = Some(value::memory(text)?),
            What::MemPerGpu => self.mem_per_gpu = Some(value::memory(text)?),
            What::MinCpus => self.min_cpus = Some(value::count(text)?),
            What::Ntasks => self.ntasks = Some(value::count(text)?),
            _ => self.ntasks_per_node = Some(value::count(text)?),
        }
        Ok(())
    }

    /// Where it runs and writes, and with which variables.
    fn set_place(&mut self, what: What, text: &str) -> Result<(), String> {
        match what {
            What::Chdir => self.dir = Some(text.to_owned()),
            What::Error => self.error = Some(value::pattern(text)?),
            What::Input if text.contains('%') => {
                return Err(format!("{text}: docket reads no patterns here: name the file"));
            }
            What::Input if text == "/dev/null" => self.input = Some("null".to_owned()),
            What::Input => self.input = Some(text.to_owned()),
            What::OpenMode => self.append = Some(value::append(text)?),
            What::Output => self.output = Some(value::pattern(text)?),
            _ => self.export = Some(value::export(text)?),
        }
        Ok(())
    }

    /// Refuses what cannot all be meant.
    pub(super) fn agree(&self) -> Result<(), String> {
        let of_memory = [self.mem, self.mem_per_cpu, self.mem_per_gpu];
        if of_memory.iter().flatten().count() > 1 {
            return Err(
                "--mem, --mem-per-cpu and --mem-per-gpu: Slurm takes one of them".to_owned()
            );
        }
        if self.gpus() == 0 && (self.mem_per_gpu.is_some() || self.cpus_per_gpu.is_some()) {
            return Err(
                "--mem-per-gpu and --cpus-per-gpu need a number of gpus: --gpus=N".to_owned()
            );
        }
        let product = u64::from(self.tasks()) * u64::from(self.cpus_per_task.unwrap_or(1));
        if product > u64::from(u32::MAX) {
            return Err(format!("{product} cpus are more than any node has"));
        }
        Ok(())
    }

    fn tasks(&self) -> u32 {
        self.ntasks.or(self.ntasks_per_node).unwrap_or(1)
    }

    fn gpus(&self) -> u32 {
        let per_task =
            self.gpus_per_task.as_ref().map(|per| per.count.saturating_mul(self.tasks()));
        let asked = self.gpus.as_ref().or(self.gres.gpus.as_ref()).map(|gpus| gpus.count);
        asked.or(per_task).unwrap_or(0)
    }

    fn cpus(&self) -> u32 {
        let per_gpu = self.cpus_per_gpu.map(|per| per.saturating_mul(self.gpus()));
        let per_task = self.tasks().saturating_mul(self.cpus_per_task.unwrap_or(1));
        let asked =
            if self.cpus_per_task.is_none() { per_gpu.unwrap_or(per_task) } else { per_task };
        asked.max(self.min_cpus.unwrap_or(1))
    }

    /// Labels that its node must have: features, and the type of its gpus.
    fn labels(&self) -> Vec<String> {
        let features = self.features.iter().map(|feature| format!("{feature}=true"));
        let gpus = self.gpus.iter().chain(&self.gres.gpus).chain(&self.gpus_per_task);
        let gpus = gpus.filter(|gpus| gpus.count > 0);
        let kinds = gpus.filter_map(|gpus| gpus.kind.as_ref()).take(1);
        features.chain(kinds.map(|kind| format!("gpu={kind}"))).collect()
    }

    /// Words of docket that stand before those of `#DOCKET` lines and of the command line; what may be
    /// left out there is filled in by [`Sbatch::fill`].
    pub fn words(&self) -> Vec<OsString> {
        let mut words = vec!["--slurm-env".to_owned(), format!("--cpus={}", self.cpus())];
        words.extend(self.labels().into_iter().map(|label| format!("--node-label={label}")));
        words.extend(self.queue.iter().map(|queue| format!("--queue={queue}")));
        words.extend(self.priority.map(|priority| format!("--priority={priority}")));
        if let Some(append) = self.append {
            let mode = if append { "append" } else { "truncate" };
            words.push(format!("--open-mode={mode}"));
        }
        if self.hold {
            words.push("--hold".to_owned());
        }
        if self.requeue {
            words.extend(REQUEUE.map(str::to_owned));
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// Fills in what neither a `#DOCKET` line nor the command line says.
    pub fn fill(&self, options: &mut JobOptions) {
        let os = |text: &Option<String>| text.as_ref().map(OsString::from);
        or(&mut options.name, self.name.clone());
        or(&mut options.array, self.array.clone());
        or(&mut options.time, self.time);
        or(&mut options.signal, self.signal);
        or(&mut options.dir, os(&self.dir));
        or(&mut options.stdin, os(&self.input));
        or(&mut options.node, self.node.clone());
        or(&mut options.comment, self.comment.clone());
        or(&mut options.mem, self.memory(options.cpus));
        or(&mut options.after.begin, self.begin);
        or(&mut options.gpus, Some(self.gpus()).filter(|gpus| *gpus > 0));
        for (name, amount) in self.licenses.iter().chain(&self.gres.others) {
            if options.resource.iter().all(|(given, _)| given != name) {
                options.resource.push((name.clone(), *amount));
            }
        }
        if options.after.dependencies().is_empty() {
            options.after.dependency = self.dependency.iter().cloned().collect();
        }
        self.fill_outputs(options);
        self.fill_environment(options);
        // Who asks for other retries, and names no ends, does not mean the ends of --requeue.
        if self.requeue && options.retries != REQUEUE_RETRIES && options.retry_on == REQUEUE_ON {
            options.retry_on.clear();
        }
        let partition = self.queue.as_ref() == Some(&options.queue);
        let per_node = self.ntasks_per_node;
        options.slurm = SlurmFacts {
            partition,
            wait: self.wait,
            tasks: self.tasks(),
            tasks_per_node: per_node,
        };
    }

    fn memory(&self, cpus: u32) -> Option<u64> {
        let times = |per: Option<u64>, count: u32| per.map(|per| per.saturating_mul(count.into()));
        self.mem.or(times(self.mem_per_cpu, cpus)).or(times(self.mem_per_gpu, self.gpus()))
    }

    /// Standard error goes where standard output goes, as with Slurm.
    fn fill_outputs(&self, options: &mut JobOptions) {
        let array = options.array.is_some();
        let of = |pattern: &Option<Pattern>| {
            let text = |p: &Pattern| if array { p.array.clone() } else { p.plain.clone() };
            pattern.as_ref().map(text).map(OsString::from)
        };
        or(&mut options.stdout, of(&self.output));
        or(&mut options.stderr, of(&self.error));
        let stdout = options.stdout.clone();
        or(&mut options.stderr, stdout);
    }

    fn fill_environment(&self, options: &mut JobOptions) {
        let Some(export) = &self.export else { return };
        let mut values: Vec<OsString> = export.values.iter().map(OsString::from).collect();
        values.append(&mut options.env);
        options.env = values;
        if export.all || options.clean_env || !options.env_only.is_empty() {
            return;
        }
        match export.names.is_empty() {
            true => options.clean_env = true,
            false => options.env_only = export.names.iter().map(OsString::from).collect(),
        }
    }
}

fn or<T>(slot: &mut Option<T>, value: Option<T>) {
    if slot.is_none() {
        *slot = value;
    }
}

fn begin(text: &str) -> Result<u64, String> {
    parse::begin(&value::begin(text)?).map_err(|why| why.to_string())
}
