//! Lines of the queue: jobs that fit and fail alike stand in one, so that a pass looks at one of each.

use super::blobs::Ask;
use super::job::Job;
use super::number::Key;
use proto::TaskId;
use std::sync::Arc;

/// Place in a line: the greater key first, then the order of submits. Of tasks of an array that share
/// a record, and of those that are queued again, only the first has a place: those behind it are found
/// in the array.
pub(crate) type Place = (Key, TaskId);

/// What makes jobs equal to the scheduler: whose they are, their queue, what they ask of a node, and
/// how long they may run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Line {
    /// Number of the user.
    pub user: u32,
    /// Name of the queue.
    pub queue: Arc<str>,
    /// What they ask.
    pub ask: Arc<Ask>,
    /// How long they may be on a node: time limit and kill grace, each rounded up by [`step`]; `None`: they
    /// have no limit.
    pub lasts_ms: Option<u64>,
}

impl Line {
    /// The line of a job.
    pub fn of(job: &Job) -> Line {
        Line {
            user: job.by.number,
            queue: Arc::clone(job.queue()),
            ask: Arc::clone(job.ask()),
            lasts_ms: job.time_limit_ms().map(|limit| step(limit) + step(kill_grace(job))),
        }
    }
}

/// Between the signals of a limit, where a job does not say, in ms: the agents' own default.
const KILL_GRACE_MS: u64 = 10_000;

/// How long after its limit it may live, in ms.
pub(crate) fn kill_grace(job: &Job) -> u64 {
    job.spec().kill_grace_ms.unwrap_or(KILL_GRACE_MS)
}

/// Up to which limit it is rounded to which step, in seconds.
const STEPS: [(u64, u64); 5] =
    [(60, 1), (10 * 60, 10), (3 * 3600, 60), (24 * 3600, 300), (14 * 86_400, 3600)];

/// Longer than anybody waits: so sums of two do not overflow.
const LASTS_MAX_MS: u64 = u64::MAX / 4;

/// A time limit rounded up as people write them: 10 seconds, minutes, 5 minutes, hours, days. So there
/// are no more than a thousand of them, however many jobs have a limit of their own.
fn step(limit_ms: u64) -> u64 {
    let s = limit_ms.div_ceil(1000);
    let step = STEPS.iter().find(|(up_to, _)| s <= *up_to).map_or(86_400, |(_, step)| *step);
    s.div_ceil(step).saturating_mul(step).saturating_mul(1000).min(LASTS_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_people_write_them_are_not_rounded_and_others_only_up() {
        let s = |seconds: u64| seconds * 1000;
        for seconds in [1, 45, 90, 600, 5400, 3 * 3600, 12 * 3600, 86_400, 7 * 86_400] {
            assert_eq!(step(s(seconds)), s(seconds));
        }
        assert_eq!((step(1), step(61_000), step(601_000)), (s(1), s(70), s(660)));
        assert_eq!(step(s(30 * 86_400) + 1), s(31 * 86_400));
    }
}
