//! The number of a job, by which the queue is ordered: priority, plus the time that it has waited, less
//! what its user has on nodes (docs/adr/0011-order.md). All waiting jobs age alike, so priority and age
//! make a part that never moves while a job waits: its key.

use super::job::Job;
use proto::v1::Policy;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What a point of a number is counted in: with this the age of a job is a whole number, in ms.
pub(crate) const POINT: i64 = 3_600_000;

/// The default of `priority_weight` and of `age_weight`.
const WEIGHT: u32 = 1;

/// The default of `share_weight`.
const SHARE_WEIGHT: u32 = 100;

/// The highest weight: with it a number still fits into 64 bits, whatever the time.
pub(super) const WEIGHT_MAX: u32 = 1_000_000;

/// Points of a job's number for each of its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weights {
    /// For each point of its priority.
    pub priority: u32,
    /// For each hour that it waits.
    pub age: u32,
    /// Taken off if its user has all cpus.
    pub share: u32,
}

impl Weights {
    /// Those in force.
    pub fn of(policy: &Policy) -> Weights {
        Weights {
            priority: policy.priority_weight.unwrap_or(WEIGHT),
            age: policy.age_weight.unwrap_or(WEIGHT),
            share: policy.share_weight.unwrap_or(SHARE_WEIGHT),
        }
    }

    /// What is taken off for a user who has `held` of `all` cpus.
    pub(crate) fn share(&self, held: u64, all: u64) -> i64 {
        let whole = u128::from(self.share) * POINT.unsigned_abs() as u128;
        let part = whole * u128::from(held.min(all)) / u128::from(all.max(1));
        i64::try_from(part).unwrap_or(i64::MAX)
    }
}

/// The part of a job's number that does not move while it waits; the greatest goes first.
pub(crate) type Key = Reverse<i64>;

/// What keys are made of: they are made anew if this changes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ranking {
    weights: Weights,
    /// What a queue adds to the priority of its jobs.
    queues: BTreeMap<String, i32>,
}

impl Ranking {
    /// By the values in force.
    pub fn of(policy: &Policy) -> Ranking {
        let adds = policy.queues.iter().filter(|queue| queue.priority != 0);
        Ranking {
            weights: Weights::of(policy),
            queues: adds.map(|queue| (queue.name.clone(), queue.priority)).collect(),
        }
    }

    /// The key of a job.
    pub fn key(&self, job: &Job) -> Key {
        let added = self.queues.get(&**job.queue()).copied().unwrap_or(0);
        let points = i64::from(job.priority()).saturating_add(i64::from(added));
        let priority =
            points.saturating_mul(i64::from(self.weights.priority)).saturating_mul(POINT);
        let since = i64::try_from(job.eligible_led_ms()).unwrap_or(i64::MAX);
        Reverse(priority.saturating_sub(since.saturating_mul(i64::from(self.weights.age))))
    }
}

impl Default for Ranking {
    fn default() -> Self {
        Ranking::of(&Policy::default())
    }
}

/// The parts of a job's number, in [`POINT`]s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Number {
    /// Of its priority and that of its queue.
    pub priority: i64,
    /// Of the time that it has waited.
    pub age: i64,
    /// What its user's share takes off.
    pub share: i64,
}

impl Number {
    /// All together.
    pub fn total(&self) -> i64 {
        self.priority.saturating_add(self.age).saturating_sub(self.share)
    }
}

/// A number of points as people read it, rounded: `1.50`.
pub fn points(parts: i64) -> String {
    let half = i128::from(POINT / 2) * i128::from(parts.signum());
    let hundredths = (i128::from(parts) * 100 + half) / i128::from(POINT);
    let sign = if hundredths < 0 { "-" } else { "" };
    let hundredths = hundredths.unsigned_abs();
    format!("{sign}{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_read_as_numbers_with_two_decimals() {
        for (parts, text) in
            [(0, "0.00"), (POINT, "1.00"), (-POINT / 2, "-0.50"), (-POINT / 400, "0.00")]
        {
            assert_eq!(points(parts), text);
        }
        assert_eq!(points(POINT * 12 + POINT / 4), "12.25");
    }

    #[test]
    fn a_share_is_the_part_of_all_cpus_and_never_more_than_all() {
        let weights = Weights::of(&Policy::default());
        assert_eq!(weights.share(4, 8), 50 * POINT);
        assert_eq!(weights.share(9, 8), 100 * POINT);
        assert_eq!(weights.share(0, 0), 0);
        let most = Weights { share: WEIGHT_MAX, ..weights };
        assert_eq!(most.share(u64::MAX, u64::MAX), i64::from(WEIGHT_MAX) * POINT);
    }
}
