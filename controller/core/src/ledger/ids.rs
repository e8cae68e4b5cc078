//! Job ids: which were given, and which may have been given by a part of the log that is gone
//! (design 4, restore). The latter are never given again, and nothing about them is taken for news of
//! an evicted job: what nodes still hold of them is listed, not killed.

use super::book::Ledger;
use super::cause::{What, Who};
use super::job::Job;
use super::state::{Kind, State};
use super::table::Entry;
use proto::{JobId, OrderId, v1};

/// Ids that a new generation leaves out: more than a log can have given since its last copy.
pub const IDS_PER_GENERATION: u64 = 1_000_000;

/// The furthest that a node's word about a job moves the next id. Ids are dense in memory, so a wrong
/// word must not cost more than a few pages.
const SKIP_MAX: u64 = 16_000_000;

/// A part of the log was found to be lost, and a generation was opened for what comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Opening {
    /// Jobs with an id from here on were submitted after the loss: what an older token says of such
    /// an id is about a job of the lost part.
    pub first: JobId,
    pub generation: u64,
    /// Order id of the command that opened it.
    pub order: OrderId,
}

/// Ids from the first up to, not including, the second.
pub(super) type Range = (JobId, JobId);

impl Opening {
    pub fn freeze(&self) -> v1::ImageOpening {
        let Opening { first, generation, order } = *self;
        v1::ImageOpening { first: first.0, generation, order: order.0 }
    }

    pub fn thaw(image: &v1::ImageOpening) -> Opening {
        let (first, order) = (JobId(image.first), OrderId(image.order));
        Opening { first, generation: image.generation, order }
    }
}

impl Job {
    /// Whether it is held since a part of the log was lost: it may have run in that part.
    pub fn may_have_run(&self) -> bool {
        let last = self.causes().iter().rev().find(|cause| cause.what == What::Held);
        let held = match self.state() {
            State::Held | State::Blocked { held: true } => true,
            State::Waiting(fence) => fence.held,
            _ => false,
        };
        held && last.is_some_and(|cause| matches!(cause.who, Who::Controller(_)))
    }
}

impl Ledger {
    /// Whether a job of this log got that id.
    pub(super) fn gave(&self, id: JobId) -> bool {
        let skipped = || self.skipped.iter().any(|(from, to)| (*from..*to).contains(&id));
        id.0 != 0 && id < self.next_job_id && !skipped()
    }

    /// Ids up to this one were given before: they are not given again.
    pub(super) fn skip_ids(&mut self, last: JobId) {
        let (from, to) = (self.next_job_id, JobId(last.0.saturating_add(1)));
        if to <= from || to.0 - from.0 > SKIP_MAX {
            return;
        }
        match self.skipped.last_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => self.skipped.push((from, to)),
        }
        self.next_job_id = to;
        self.drainable.extend(self.deferred.jobs_below(to));
    }

    /// Whether a token of that generation, with this id, speaks of a job of a lost part: the job that
    /// has the id here is another one.
    pub(super) fn is_of_lost_part(&self, id: JobId, generation: u64) -> bool {
        self.openings.iter().any(|o| id >= o.first && generation < o.generation)
    }

    /// A part of the log is gone (restore, repair, an older copy): its ids are left out, and what waits
    /// is held, for the lost part may have given it to a node and heard of its end (P6). Jobs from
    /// `first` on were submitted after the loss.
    pub(super) fn open_generation(&mut self, generation: u64, first: JobId) {
        self.generation = generation;
        self.openings.push(Opening { first, generation, order: self.order });
        self.skip_ids(JobId(self.next_job_id.0 + IDS_PER_GENERATION - 1));
        self.hold_what_waits();
        // No Assign of an older one can come any more: such facts may be adopted now.
        self.drainable.extend(self.deferred.jobs_below(self.next_job_id));
    }

    fn hold_what_waits(&mut self) {
        let waits = |job: &Job| matches!(job.kind(), Kind::Queued | Kind::Blocked | Kind::Waiting);
        let (mut waiting, mut arrays) = (Vec::new(), Vec::new());
        for entry in self.jobs.entries_below(self.next_job_id) {
            match entry {
                Entry::Job(job) => waiting.extend(waits(job).then(|| job.task_id())),
                Entry::Array(array) => {
                    let own = array.own_tasks().filter(|job| waits(job));
                    waiting.extend(own.map(|job| job.task_id()));
                    arrays.push(array.id());
                }
            }
        }
        let cause = self.cause(self.by_leader(), What::Held);
        let hold = |job: &mut Job| {
            match &mut job.state {
                State::Waiting(fence) => fence.held = true,
                State::Blocked { held } => *held = true,
                state => *state = State::Held,
            }
            job.note(cause.clone());
        };
        for id in waiting {
            self.update(id, hold);
        }
        for id in arrays {
            self.update_shared(id, None, |job| {
                let held = waits(job);
                if held {
                    hold(job);
                }
                held
            });
        }
    }
}
