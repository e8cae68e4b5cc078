//! Every option of Slurm's `sbatch`, and what docket makes of it: one table for the code, its tests and
//! `docs/slurm.md`.

/// Whether an option has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// It stands alone.
    Nothing,
    /// `--x=v`, `--x v`, `-X v`, `-Xv`.
    Value,
    /// `--x` or `--x=v`; a word behind it is none.
    Perhaps,
}

/// What docket makes of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// It says this about the job.
    Sets(What),
    /// docket does so anyway: nothing to do, nothing to say.
    Anyway,
    /// Without effect, which is said.
    Nothing,
    /// Refused: docket cannot do it.
    Refused,
}

/// What an option says about a job.
#[allow(missing_docs, reason = "each is named after its option")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Array,
    Begin,
    Chdir,
    Comment,
    Constraint,
    CpusPerGpu,
    CpusPerTask,
    Dependency,
    Error,
    Export,
    Gpus,
    GpusPerTask,
    Gres,
    Hold,
    Input,
    JobName,
    Licenses,
    Mem,
    MemPerCpu,
    MemPerGpu,
    MinCpus,
    Nice,
    NodeList,
    Nodes,
    NoRequeue,
    Ntasks,
    NtasksPerNode,
    OpenMode,
    Output,
    Partition,
    Priority,
    Requeue,
    Signal,
    Time,
    Wait,
}

/// One option.
#[derive(Debug)]
pub struct SlurmOption {
    /// Its long name, without dashes.
    pub name: &'static str,
    /// Other long names of it.
    pub others: &'static [&'static str],
    /// Its letter.
    pub letter: Option<char>,
    /// Whether it has a value.
    pub takes: Takes,
    /// What docket makes of it.
    pub does: Does,
    /// The same in words: for the documentation and, of what is refused, for the refusal.
    pub words: &'static str,
}

impl SlurmOption {
    const fn letter(self, letter: char) -> Self {
        SlurmOption { letter: Some(letter), ..self }
    }

    const fn also(self, others: &'static [&'static str]) -> Self {
        SlurmOption { others, ..self }
    }

    const fn perhaps(self) -> Self {
        SlurmOption { takes: Takes::Perhaps, ..self }
    }

    const fn alone(self) -> Self {
        SlurmOption { takes: Takes::Nothing, ..self }
    }
}

const fn option(name: &'static str, does: Does, words: &'static str) -> SlurmOption {
    SlurmOption { name, others: &[], letter: None, takes: Takes::Value, does, words }
}

const fn sets(name: &'static str, what: What, words: &'static str) -> SlurmOption {
    option(name, Does::Sets(what), words)
}

const fn nothing(name: &'static str, words: &'static str) -> SlurmOption {
    option(name, Does::Nothing, words)
}

const fn refused(name: &'static str, words: &'static str) -> SlurmOption {
    option(name, Does::Refused, words)
}

const ONE_NODE: &str = "a docket job runs on one node";
const PINNING: &str = "docket does not bind to cores or sockets";
const NO_ACCOUNTS: &str = "docket has no accounts";
const NO_MAIL: &str = "docket sends no mail: docket wait ID && …";
const NO_TOPOLOGY: &str = "docket counts cpus, not sockets and cores";
const ANOTHER_USER: &str = "a job is run as who submits it";

/// All options, by name.
pub const OPTIONS: [SlurmOption; 106] = [
    nothing("account", NO_ACCOUNTS).letter('A'),
    nothing("acctg-freq", "docket samples by itself"),
    sets("array", What::Array, "`--array`").letter('a'),
    refused("batch", "mark nodes and choose one with --node-label k=v"),
    refused("bb", "docket has no burst buffers"),
    refused("bbf", "docket has no burst buffers"),
    sets("begin", What::Begin, "`--begin`; `now+60` is seconds, as Slurm has it").letter('b'),
    sets("chdir", What::Chdir, "`--dir`").letter('D').also(&["workdir"]),
    refused("cluster-constraint", "docket knows one cluster"),
    refused("clusters", "docket knows one cluster: --server names it")
        .letter('M')
        .also(&["cluster"]),
    sets("comment", What::Comment, "`--comment`"),
    sets(
        "constraint",
        What::Constraint,
        "`F` and `F&G`: nodes with the labels `F=true` and `G=true`; the rest is refused",
    )
    .letter('C'),
    refused("container", "give the command that starts it"),
    nothing("contiguous", ONE_NODE).alone(),
    nothing("core-spec", PINNING).letter('S'),
    nothing("cores-per-socket", NO_TOPOLOGY),
    nothing("cpu-freq", "docket leaves frequencies alone"),
    sets("cpus-per-gpu", What::CpusPerGpu, "`--cpus`, times the gpus"),
    sets("cpus-per-task", What::CpusPerTask, "`--cpus`, times the tasks").letter('c'),
    refused("deadline", "give it a limit, --time, and cancel what is late"),
    refused("delay-boot", "docket boots no nodes"),
    sets("dependency", What::Dependency, "`--dependency`").letter('d'),
    nothing("distribution", ONE_NODE).letter('m'),
    sets("error", What::Error, "`--stderr`; without it standard error goes where `--output` goes")
        .letter('e'),
    refused("exclude", "mark the other nodes and choose them with --node-label k=v").letter('x'),
    refused("exclusive", "docket keeps no node for one job: reserve its cpus, -c N").perhaps(),
    sets(
        "export",
        What::Export,
        "`ALL`, `NONE` (`--clean-env`), `NAME,…` (`--env-only`), `NAME=value` (`--env`)",
    ),
    refused("export-file", "give the variables with --export=NAME=value"),
    nothing("extra-node-info", NO_TOPOLOGY).letter('B'),
    nothing("get-user-env", "your variables go with the job, or those that --export names")
        .perhaps(),
    refused("gid", ANOTHER_USER),
    nothing("gpu-bind", PINNING),
    nothing("gpu-freq", "docket leaves frequencies alone"),
    sets("gpus", What::Gpus, "gpus; of `TYPE:N` also the node label `gpu=TYPE`").letter('G'),
    sets("gpus-per-node", What::Gpus, "as `--gpus`"),
    refused("gpus-per-socket", "give their number: --gpus=N"),
    sets("gpus-per-task", What::GpusPerTask, "as `--gpus`, times the tasks"),
    sets(
        "gres",
        What::Gres,
        "`gpu`, `gpu:N`, `gpu:TYPE:N` as `--gpus`; `NAME:N` as `--licenses`; `none`",
    ),
    nothing("gres-flags", PINNING),
    refused("help", "docket submit --help").letter('h').alone(),
    nothing("hint", PINNING),
    sets("hold", What::Hold, "`--hold`").letter('H').alone(),
    option("ignore-pbs", Does::Anyway, "docket never reads `#PBS` lines").alone(),
    refused("immediate", "a job waits until it can start: docket cancel ID ends that")
        .letter('I')
        .perhaps(),
    sets("input", What::Input, "`--stdin`, without patterns").letter('i'),
    sets("job-name", What::JobName, "`--name`").letter('J'),
    refused("jobid", "docket gives the numbers"),
    nothing("kill-on-invalid-dep", "what can no longer start always ends, as dependency-failed"),
    sets(
        "licenses",
        What::Licenses,
        "`NAME:N`: so much of the named resource, of its node or of the cluster",
    )
    .letter('L'),
    nothing("mail-type", NO_MAIL),
    nothing("mail-user", NO_MAIL),
    nothing("mcs-label", NO_ACCOUNTS),
    sets("mem", What::Mem, "`--mem`; without a unit MiB; `0` (all of the node) is refused"),
    nothing("mem-bind", PINNING).also(&["mem_bind"]),
    sets("mem-per-cpu", What::MemPerCpu, "`--mem`, times the cpus"),
    sets("mem-per-gpu", What::MemPerGpu, "`--mem`, times the gpus"),
    sets("mincpus", What::MinCpus, "`--cpus`, at least so many"),
    refused("network", "docket does not configure networks"),
    sets("nice", What::Nice, "`--priority` of so much below 0, at most 1000; alone: 100").perhaps(),
    option("no-kill", Does::Anyway, ONE_NODE).letter('k').perhaps(),
    sets("no-requeue", What::NoRequeue, "takes back `--requeue`; otherwise docket's default")
        .alone(),
    refused("nodefile", "name one node: --node N").letter('F'),
    sets("nodelist", What::NodeList, "`--node`, of one node").letter('w'),
    sets("nodes", What::Nodes, "1, or a range that begins with it; more is refused").letter('N'),
    sets("ntasks", What::Ntasks, "that many times the cpus of a task, on one node")
        .letter('n')
        .also(&["tasks"]),
    nothing("ntasks-per-core", NO_TOPOLOGY),
    refused("ntasks-per-gpu", "give the number of tasks: --ntasks"),
    sets("ntasks-per-node", What::NtasksPerNode, "as `--ntasks`, which beats it")
        .also(&["tasks-per-node"]),
    nothing("ntasks-per-socket", NO_TOPOLOGY),
    sets("open-mode", What::OpenMode, "`--open-mode`"),
    sets("output", What::Output, "`--stdout`; see the patterns below").letter('o'),
    nothing("overcommit", "docket gives each cpu to one job").letter('O').alone(),
    nothing("oversubscribe", "docket gives each cpu to one job")
        .letter('s')
        .perhaps()
        .also(&["share"]),
    option("parsable", Does::Anyway, "docket submit prints the id and nothing else").perhaps(),
    sets(
        "partition",
        What::Partition,
        "`--queue`; without effect, which is said, on a cluster without queues",
    )
    .letter('p'),
    nothing("power", "docket leaves power management alone"),
    nothing("prefer", "docket places by what is required: --node-label k=v"),
    sets("priority", What::Priority, "`--priority`, up to 1000; `0` is `--hold`, as Slurm has it"),
    nothing("profile", "show has what a job used"),
    nothing("propagate", "umask and open files are always the submitter's").perhaps(),
    nothing("qos", NO_ACCOUNTS).letter('q'),
    option("quiet", Does::Anyway, "docket submit prints the id and nothing else")
        .letter('Q')
        .alone(),
    refused("reboot", "docket boots no nodes").alone(),
    sets("requeue", What::Requeue, "`--retries 3 --retry-on agent-died,lost,node-rebooted`")
        .alone(),
    refused("reservation", "docket has no reservations"),
    sets("signal", What::Signal, "`--signal`; the time is in seconds"),
    nothing("sockets-per-node", NO_TOPOLOGY),
    nothing("spread-job", ONE_NODE).alone(),
    refused("switches", "docket does not know the network's switches"),
    refused("test-only", "docket submit --dry-run tells whether a job can run").alone(),
    nothing("thread-spec", PINNING),
    nothing("threads-per-core", NO_TOPOLOGY),
    sets("time", What::Time, "`--time`, in Slurm's forms: see below").letter('t'),
    nothing("time-min", "the limit is that of --time"),
    refused("tmp", "mark nodes with room and choose them with --node-label k=v"),
    nothing("tres-bind", PINNING),
    refused("tres-per-task", "give --cpus-per-task and --gpus-per-task"),
    refused("uid", ANOTHER_USER),
    refused("usage", "docket submit --help").alone(),
    nothing("use-min-nodes", ONE_NODE).alone(),
    nothing("verbose", "docket explain ID tells all of it").letter('v').alone(),
    refused("version", "docket --version").letter('V').alone(),
    sets("wait", What::Wait, "`--wait`").letter('W').alone(),
    option("wait-all-nodes", Does::Anyway, ONE_NODE),
    nothing("wckey", NO_ACCOUNTS),
    refused("wrap", "it stands for a script, and this is one: docket submit -- sh -c 'COMMAND'"),
];
