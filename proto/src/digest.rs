//! The manifest digest of a heartbeat (design 3): keeper and leader sum the same 64-bit hashes, so
//! that a difference shows without sending the manifest. Order does not matter, items can be taken
//! out again. Pure arithmetic: a change of it is a change of the session protocol.

use crate::AttemptId;
use crate::v1::Phase;

/// Wrapping sum of [`item`]s over the attempts that a node holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digest(u64);

impl Digest {
    /// Of no attempts at all: 0.
    pub fn new() -> Self {
        Digest::default()
    }

    /// Adds one attempt in the phase that it is in now.
    pub fn add(&mut self, attempt: AttemptId, phase: Phase) {
        self.0 = self.0.wrapping_add(item(attempt, phase));
    }

    /// Takes out what [`Digest::add`] put in, with the same phase.
    pub fn remove(&mut self, attempt: AttemptId, phase: Phase) {
        self.0 = self.0.wrapping_sub(item(attempt, phase));
    }

    /// The sum, as `Heartbeat.digest` and `KeeperPong.digest` carry it.
    pub fn value(self) -> u64 {
        self.0
    }
}

impl FromIterator<(AttemptId, Phase)> for Digest {
    fn from_iter<I: IntoIterator<Item = (AttemptId, Phase)>>(items: I) -> Self {
        let mut sum = Digest::new();
        for (attempt, phase) in items {
            sum.add(attempt, phase);
        }
        sum
    }
}

/// The hash of one attempt. An ended one counts 0: its finish is a fact of the journal, and the
/// leader compares only when it has applied every fact.
pub fn item(attempt: AttemptId, phase: Phase) -> u64 {
    if matches!(phase, Phase::Ended | Phase::Unspecified) {
        return 0;
    }
    // Task index 0 and "no array" must differ.
    let task = attempt.task.index.map_or(0, |index| u64::from(index) + 1);
    let mut hash = SEED;
    for part in [attempt.task.job.0, task, u64::from(attempt.attempt), u64::from(phase as u32)] {
        hash = mix(hash ^ part);
    }
    hash
}

/// Any odd constant: keeps the all-zero input from hashing to zero.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The splitmix64 step: each input bit changes half of the output bits.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(SEED);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobId, TaskId};
    use std::collections::BTreeSet;

    fn attempt(job: u64, index: Option<u32>, attempt: u32) -> AttemptId {
        AttemptId { task: TaskId { job: JobId(job), index }, attempt }
    }

    #[test]
    fn every_part_of_an_attempt_counts() {
        let mut seen = BTreeSet::new();
        for job in 1..40 {
            for index in [None, Some(0), Some(1), Some(7)] {
                for n in 1..5 {
                    for phase in [Phase::Accepted, Phase::Running, Phase::Suspended] {
                        assert!(seen.insert(item(attempt(job, index, n), phase)));
                    }
                }
            }
        }
    }

    #[test]
    fn the_order_does_not_matter_and_what_was_added_can_be_taken_out() {
        let (a, b) = (attempt(1, None, 1), attempt(2, Some(3), 4));
        let forth: Digest = [(a, Phase::Running), (b, Phase::Accepted)].into_iter().collect();
        let mut back: Digest = [(b, Phase::Accepted), (a, Phase::Running)].into_iter().collect();
        assert_eq!(forth, back);
        back.remove(a, Phase::Running);
        back.remove(b, Phase::Accepted);
        assert_eq!(back, Digest::new());
    }

    #[test]
    fn an_ended_attempt_counts_nothing() {
        assert_eq!(item(attempt(9, None, 1), Phase::Ended), 0);
    }

    #[test]
    fn the_hash_of_this_protocol_version_is_fixed() {
        assert_eq!(item(attempt(1, None, 1), Phase::Running), 14826401867288090829);
    }
}
