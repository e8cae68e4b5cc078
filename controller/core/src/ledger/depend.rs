//! What a job waits for before it starts: whether a dependency is met, open, or can no longer be met. That
//! is read off the job that is waited for, or what is remembered of it, and never changes back.

use super::array::Array;
use super::book::Ledger;
use super::exit::WaitEnd;
use super::job::Job;
use super::outcome::Rejection;
use super::ranges::Ranges;
use super::state::{Kind, State};
use super::table::Entry;
use super::targets::{ARRAY_MAX, ranges};
use proto::v1::{self, DependencyKind};
use proto::{JobId, TaskId};

/// Most ids of a job's dependencies: stretches of tasks count as one each (design 7, Limits).
pub const DEPENDENCIES_MAX: usize = 10_000;

/// What a job, or a whole array, still waits for. Of its dependencies the numbers in the specification.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Waits {
    /// Those that are the same for all its tasks.
    pub(super) open: Ranges,
    /// Those of kind after-each, until the whole of the other array has ended.
    pub(super) each: Ranges,
    /// Not before, UTC ms.
    pub(super) begin_wall_ms: Option<u64>,
}

/// What can be said of a dependency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing is decided.
    Open,
    /// It holds nothing back any more.
    Met,
    /// It can no longer be met.
    Never,
}

/// How far a task is, as far as others wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Stage {
    begun: bool,
    /// DONE, or not.
    end: Option<bool>,
}

/// How far tasks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Progress {
    pub total: u64,
    pub begun: u64,
    pub done: u64,
    pub exit: u64,
}

impl Waits {
    /// Not before this, UTC ms.
    pub fn begin_wall_ms(&self) -> Option<u64> {
        self.begin_wall_ms
    }

    /// Numbers of the dependencies that are not met.
    pub fn open(&self) -> impl Iterator<Item = u32> + '_ {
        self.open.numbers().chain(self.each.numbers())
    }

    /// Whether that dependency is not met.
    pub fn is_open(&self, index: u32) -> bool {
        self.open.contains(index) || self.each.contains(index)
    }

    pub(super) fn over(&self) -> bool {
        self.open.is_empty() && self.each.is_empty() && self.begin_wall_ms.is_none()
    }
}

impl Stage {
    pub fn of(job: &Job) -> Stage {
        let end = match job.kind() {
            Kind::Done => Some(true),
            Kind::Exit => Some(false),
            _ => None,
        };
        // An attempt that is over and tried again had started, or failed to.
        let begun = end.is_some() || job.retried > 0 || job.state.started().is_some();
        Stage { begun, end }
    }

    pub fn begun(self) -> bool {
        self.begun
    }
}

impl Progress {
    /// Counts tasks in that are so far.
    pub fn enter(&mut self, stage: Stage, count: u64) {
        self.total += count;
        self.begun += if stage.begun { count } else { 0 };
        self.done += if stage.end == Some(true) { count } else { 0 };
        self.exit += if stage.end == Some(false) { count } else { 0 };
    }

    /// Takes tasks out that were so far.
    pub fn leave(&mut self, stage: Stage, count: u64) {
        self.total -= count;
        self.begun -= if stage.begun { count } else { 0 };
        self.done -= if stage.end == Some(true) { count } else { 0 };
        self.exit -= if stage.end == Some(false) { count } else { 0 };
    }

    /// Whether all have ended.
    pub fn over(&self) -> bool {
        self.done + self.exit == self.total
    }

    /// What it decides; of after-each that is another question.
    pub fn verdict(&self, kind: DependencyKind) -> Verdict {
        let all_done = self.done == self.total;
        let (met, never) = match kind {
            DependencyKind::AfterOk => (all_done, self.exit > 0),
            DependencyKind::AfterAny => (self.over(), false),
            DependencyKind::AfterNotOk => (self.over() && self.exit > 0, all_done),
            DependencyKind::AfterStart => (self.begun == self.total, false),
            DependencyKind::AfterEach | DependencyKind::Unspecified => (false, false),
        };
        match (never, met) {
            (true, _) => Verdict::Never,
            (_, true) => Verdict::Met,
            _ => Verdict::Open,
        }
    }
}

impl Job {
    /// What it waits for before it starts.
    pub fn dependencies(&self) -> &[v1::Dependency] {
        &self.spec.spec.dependencies
    }
}

/// Checks the form of a job's dependencies; a text says what is wrong with them.
pub fn judge_dependencies(spec: &v1::JobSpec) -> Result<(), String> {
    let ids: usize = spec.dependencies.iter().map(|dep| dep.tasks.len().max(1)).sum();
    if ids > DEPENDENCIES_MAX {
        return Err(format!("{ids} ids given, at most {DEPENDENCIES_MAX} are allowed"));
    }
    let mut tasks = 0;
    for dep in &spec.dependencies {
        let job = dep.job;
        match dep.kind() {
            DependencyKind::Unspecified => return Err(format!("job {job}: of no known kind")),
            DependencyKind::AfterEach if !dep.tasks.is_empty() => {
                return Err(format!("after-each waits for a whole array: name {job} alone"));
            }
            DependencyKind::AfterEach if spec.array.is_none() => {
                return Err(format!(
                    "after-each {job} is between two arrays and this job is none: give --array, or use \
                     after-ok"
                ));
            }
            _ => tasks += ranges(&dep.tasks)?.len(),
        }
    }
    match tasks > ARRAY_MAX {
        true => Err(format!(
            "{tasks} tasks named, at most {ARRAY_MAX} are allowed: name whole arrays instead"
        )),
        false => Ok(()),
    }
}

impl Ledger {
    /// What of a new job's dependencies is still open, and the first that can never be met.
    pub(super) fn first_look(
        &self,
        spec: &v1::JobSpec,
        own: Option<&Ranges>,
    ) -> Result<(Waits, Option<u32>), Rejection> {
        judge_dependencies(spec).map_err(|why| Rejection::malformed("spec.dependencies", why))?;
        let (mut open, mut each, mut never) = (Vec::new(), Vec::new(), None);
        for (index, dep) in (0u32..).zip(&spec.dependencies) {
            match self.look(dep, own)? {
                Verdict::Open if dep.kind() == DependencyKind::AfterEach => {
                    each.push((index, index));
                }
                Verdict::Open => open.push((index, index)),
                Verdict::Met => {}
                Verdict::Never => never = never.or(Some(index)),
            }
        }
        let begin_wall_ms = spec.begin_wall_ms.filter(|begin| *begin > self.wall_ms);
        Ok((Waits { open: Ranges::of(open), each: Ranges::of(each), begin_wall_ms }, never))
    }

    /// A dependency of a job that is about to be entered. It can only name older ones: so none can wait
    /// for itself, nor can there be a circle.
    fn look(&self, dep: &v1::Dependency, own: Option<&Ranges>) -> Result<Verdict, Rejection> {
        let job = JobId(dep.job);
        if !self.gave(job) {
            let newest = JobId(self.next_job_id.0 - 1);
            return Err(Rejection::NoSuchDependency { job, newest });
        }
        let named =
            ranges(&dep.tasks).map_err(|why| Rejection::malformed("spec.dependencies", why))?;
        let entry = match self.entry(job) {
            None => return self.look_back(dep),
            Some(entry) => entry,
        };
        match (entry, dep.kind()) {
            (Entry::Job(_), DependencyKind::AfterEach) => Err(Rejection::NotAnArray { job }),
            (Entry::Job(_), _) if !named.is_empty() => Err(Rejection::NotAnArray { job }),
            (Entry::Job(found), kind) => Ok(progress_of(found).verdict(kind)),
            (Entry::Array(array), DependencyKind::AfterEach) => {
                let lacks = own.and_then(|own| own.without(&array.numbers()).first());
                match lacks {
                    None => Ok(Verdict::Open),
                    Some(task) => Err(Rejection::NoCounterpart { job, task, tasks: array.asked() }),
                }
            }
            (Entry::Array(array), kind) if named.is_empty() => Ok(array.progress().verdict(kind)),
            (Entry::Array(array), kind) => match array.lacks(&named) {
                None => Ok(array.progress_of(&named).verdict(kind)),
                Some(task) => {
                    Err(Rejection::NoSuchTask { job, task: Some(task), tasks: array.asked() })
                }
            },
        }
    }

    /// A dependency on a job that left the ledger: only whether all of it was DONE is known.
    fn look_back(&self, dep: &v1::Dependency) -> Result<Verdict, Rejection> {
        let job = JobId(dep.job);
        let done = !self.gone.failed(job);
        let by_task = !dep.tasks.is_empty() || dep.kind() == DependencyKind::AfterEach;
        if by_task && !done {
            return Err(Rejection::TasksForgotten { job });
        }
        Ok(match dep.kind() {
            DependencyKind::AfterOk | DependencyKind::AfterEach if done => Verdict::Met,
            DependencyKind::AfterOk | DependencyKind::AfterEach => Verdict::Never,
            DependencyKind::AfterNotOk if done => Verdict::Never,
            _ => Verdict::Met,
        })
    }

    /// How far a job is that others wait for; all zero if it is not there.
    pub(super) fn progress(&self, job: JobId) -> Progress {
        match self.entry(job) {
            Some(Entry::Job(job)) => progress_of(job),
            Some(Entry::Array(array)) => array.progress(),
            None => Progress::default(),
        }
    }

    /// Why a dependency can no longer be met.
    pub(super) fn failure(&self, dep: &v1::Dependency) -> v1::DependencyFailure {
        let done = dep.kind() == DependencyKind::AfterNotOk;
        let failure =
            v1::DependencyFailure { kind: dep.kind, job: dep.job, done, ..Default::default() };
        let named = ranges(&dep.tasks).unwrap_or_default();
        match self.entry(JobId(dep.job)) {
            Some(Entry::Job(job)) => became(failure, job),
            Some(Entry::Array(array)) => match array.first_exit(&named) {
                Some((task, job)) => {
                    became(v1::DependencyFailure { task: Some(task), ..failure }, job)
                }
                None => failure,
            },
            None => failure,
        }
    }

    /// Why a task that waits for the one of its number in another array ends, by what became of those:
    /// the numbers of each way to end.
    pub(super) fn failures_of_each(
        &self,
        dep: &v1::Dependency,
        numbers: &Ranges,
    ) -> Vec<(v1::DependencyFailure, Ranges)> {
        let failure = v1::DependencyFailure { kind: dep.kind, job: dep.job, ..Default::default() };
        let mut ways: Vec<(v1::DependencyFailure, Vec<(u32, u32)>)> = Vec::new();
        let Some(array) = self.array(JobId(dep.job)) else { return Vec::new() };
        for (stretches, job) in array.records_in(numbers) {
            if job.kind() != Kind::Exit {
                continue;
            }
            let way = became(failure, job);
            match ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, known)) => known.extend(stretches),
                None => ways.push((way, stretches)),
            }
        }
        ways.into_iter().map(|(way, stretches)| (way, Ranges::of(stretches))).collect()
    }

    /// What the job or the array of that task waits for, if it does.
    pub fn waits_of(&self, job: &Job) -> Option<&Waits> {
        self.entry(job.id)?.head().waits.as_deref()
    }

    /// How a job that is waited for stands now, in words.
    pub(crate) fn standing(&self, dep: &v1::Dependency) -> String {
        let job = JobId(dep.job);
        let named = ranges(&dep.tasks).unwrap_or_default();
        match (self.entry(job), named.first().filter(|_| named.len() == 1)) {
            (None, _) => "no longer in the ledger".to_owned(),
            (Some(Entry::Job(job)), _) => state_in_words(job),
            (Some(Entry::Array(array)), Some(number)) => {
                array.task(number).map(state_in_words).unwrap_or_default()
            }
            (Some(Entry::Array(array)), None) => {
                let progress = match named.is_empty() {
                    true => array.progress(),
                    false => array.progress_of(&named),
                };
                let ended = progress.done + progress.exit;
                let exit = match progress.exit {
                    0 => String::new(),
                    count => format!(", {count} of them EXIT"),
                };
                format!("{ended} of {} tasks ended{exit}", progress.total)
            }
        }
    }
}

fn state_in_words(job: &Job) -> String {
    match job.state() {
        State::Blocked { .. } => "PEND, it waits for others or its time".to_owned(),
        State::Held => "PEND, held".to_owned(),
        state => state.kind().name().to_string(),
    }
}

pub(super) fn progress_of(job: &Job) -> Progress {
    let mut progress = Progress::default();
    progress.enter(Stage::of(job), 1);
    progress
}

/// The same failure, with the end of the job that is waited for.
fn became(failure: v1::DependencyFailure, job: &Job) -> v1::DependencyFailure {
    let Some(ended) = job.state.ended() else { return failure };
    let (code, signal) = match ended.status.and_then(WaitEnd::decode) {
        Some(WaitEnd::Code(code)) => (Some(code), None),
        Some(WaitEnd::Signal { signal, .. }) => (None, Some(signal)),
        None => (None, None),
    };
    let end = ended.reason.kind() as i32;
    v1::DependencyFailure { done: job.kind() == Kind::Done, end, code, signal, ..failure }
}

impl Array {
    /// How far its tasks are.
    pub(super) fn progress(&self) -> Progress {
        let (done, exit) = (self.tally().of(Kind::Done), self.tally().of(Kind::Exit));
        // A race is DONE with its first task that is, and fails only with its last.
        let (done, exit) = match self.races() {
            true if done > 0 => (done + exit, 0),
            true if exit < self.total() => (0, 0),
            _ => (done, exit),
        };
        Progress { total: self.total(), begun: self.begun(), done, exit }
    }

    /// How far these of its tasks are.
    pub(super) fn progress_of(&self, numbers: &Ranges) -> Progress {
        let mut progress = Progress::default();
        for (stretches, job) in self.records_in(numbers) {
            let count = stretches.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
            progress.enter(Stage::of(job), count);
        }
        progress
    }

    /// Those of these numbers, or of all, whose tasks are DONE.
    pub(super) fn done_in(&self, numbers: Option<&Ranges>) -> Ranges {
        let all = match numbers {
            Some(_) => Ranges::default(),
            None => self.numbers(),
        };
        let records = self.records_in(numbers.unwrap_or(&all));
        let done = records.filter(|(_, job)| job.kind() == Kind::Done);
        Ranges::of(done.flat_map(|(stretches, _)| stretches))
    }

    /// The least of these numbers, or of all if none is named, whose task is EXIT.
    fn first_exit(&self, numbers: &Ranges) -> Option<(u32, &Job)> {
        let all = if numbers.is_empty() { self.numbers() } else { numbers.clone() };
        let exits = self.records_in(&all).filter(|(_, job)| job.kind() == Kind::Exit);
        let first =
            exits.filter_map(|(stretches, _)| stretches.first().map(|first| first.0)).min()?;
        Some((first, self.task(first)?))
    }
}

/// The task that failed, as people name it.
pub(crate) fn culprit(failure: &v1::DependencyFailure) -> TaskId {
    TaskId { job: JobId(failure.job), index: failure.task }
}
