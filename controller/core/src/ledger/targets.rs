//! What a command about jobs names: a plain job, an array, one task of it or some of its tasks.

use super::book::Ledger;
use super::cancel::Asker;
use super::job::Job;
use super::memory::Edit;
use super::outcome::Rejection;
use super::ranges::Ranges;
use super::table::Entry;
use proto::{JobId, TaskId, v1};

/// Most tasks of an array, and stretches that a request may name: each costs eight bytes at least.
pub const ARRAY_MAX: u64 = 1_000_000;

/// What is meant.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Target {
    /// A plain job, or one task of an array.
    Task(TaskId),
    /// Tasks of an array.
    Members(JobId, Ranges),
    /// All tasks of an array.
    All(JobId),
}

/// Numbers from the wire; a text says why they cannot be.
pub fn ranges(wire: &[v1::TaskRange]) -> Result<Ranges, String> {
    let mut stretches = Vec::new();
    let mut count = 0u64;
    for v1::TaskRange { first, last, step } in wire.iter().copied() {
        if first > last {
            return Err(format!("{first}-{last} is empty: the first number is above the last"));
        }
        let step = step.max(1);
        count = count.saturating_add(u64::from((last - first) / step) + 1);
        if count > ARRAY_MAX || stretches.len() as u64 > ARRAY_MAX {
            return Err(format!("more than {ARRAY_MAX} tasks"));
        }
        match step {
            1 => stretches.push((first, last)),
            step => stretches.extend((first..=last).step_by(step as usize).map(|n| (n, n))),
        }
    }
    Ok(Ranges::of(stretches))
}

impl Target {
    /// Whether a task of the array is meant.
    pub fn means(&self, number: u32) -> bool {
        match self {
            Target::Task(id) => id.index == Some(number),
            Target::Members(_, which) => which.contains(number),
            Target::All(_) => true,
        }
    }

    /// The array, if tasks of one are meant, and which; all without a list.
    pub fn members(&self) -> Option<(JobId, Option<&Ranges>)> {
        match self {
            Target::Task(_) => None,
            Target::Members(job, which) => Some((*job, Some(which))),
            Target::All(job) => Some((*job, None)),
        }
    }
}

impl Ledger {
    /// What whole jobs and some tasks of arrays name, in the order of the request; each with the job
    /// and the numbers that the answer tells.
    pub(super) fn targets(&self, jobs: &[u64], tasks: &[v1::TaskSet]) -> Vec<Named> {
        let whole = jobs.iter().map(|id| {
            let job = JobId(*id);
            Named { job, tasks: None, target: self.whole(job) }
        });
        let some = tasks.iter().map(|set| {
            let job = JobId(set.job);
            let numbers = ranges(&set.ranges);
            let tasks = numbers.as_ref().ok().cloned();
            let target = numbers
                .map_err(|why| Rejection::malformed("tasks", why))
                .and_then(|numbers| self.some(job, numbers));
            Named { job, tasks, target }
        });
        whole.chain(some).collect()
    }

    fn whole(&self, job: JobId) -> Result<Target, Rejection> {
        Ok(match self.find_entry(job)? {
            Entry::Job(_) => Target::Task(job.into()),
            Entry::Array(_) => Target::All(job),
        })
    }

    fn some(&self, job: JobId, numbers: Ranges) -> Result<Target, Rejection> {
        let Entry::Array(array) = self.find_entry(job)? else {
            return Err(Rejection::NotAnArray { job });
        };
        if let Some(none) = array.lacks(&numbers) {
            return Err(Rejection::NoSuchTask { job, task: Some(none), tasks: array.asked() });
        }
        Ok(match (numbers.first(), numbers.len()) {
            (Some(number), 1) => Target::Task(array.task_id(number)),
            (Some(_), _) => Target::Members(job, numbers),
            (None, _) => return Err(Rejection::malformed("tasks", "none is named")),
        })
    }

    /// The job or task that a target's requests are remembered with, if the asker may change it.
    pub(super) fn owned_target(
        &self,
        target: &Target,
        asker: &Asker<'_>,
    ) -> Result<&Job, Rejection> {
        match target {
            Target::Task(id) => self.owned(*id, asker),
            Target::Members(job, _) | Target::All(job) => {
                let head = self.find_entry(*job)?.head();
                self.may_change(head, asker)?;
                Ok(head)
            }
        }
    }

    /// Remembers the request of an edit; that alone is no change of the job.
    pub(super) fn remember(&mut self, target: &Target, edit: Edit) {
        let jobs = &mut self.jobs;
        match target {
            Target::Task(TaskId { job, index: None }) => {
                if let Some(job) = jobs.job_mut(*job) {
                    job.edits.get_or_insert_default().remember(edit);
                }
            }
            Target::Task(id) => {
                self.update(*id, |job| job.edits.get_or_insert_default().remember(edit));
            }
            Target::Members(job, _) | Target::All(job) => {
                if let Some(array) = jobs.array_mut(*job) {
                    array.head.edits.get_or_insert_default().remember(edit);
                }
            }
        }
    }
}

/// A target, and how it was named.
pub(super) struct Named {
    pub job: JobId,
    pub tasks: Option<Ranges>,
    pub target: Result<Target, Rejection>,
}
