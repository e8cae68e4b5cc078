//! What really happened, as only the simulator can know it. Invariants compare the ledger with it.

use crate::process::Process;
use std::collections::{BTreeMap, BTreeSet};

/// A leader that was elected, began its term, and was not disturbed since.
#[derive(Clone, Debug)]
pub(crate) struct Reign {
    pub controller: usize,
    pub begun_ms: u64,
    pub led_ms: u64,
}

/// An agent's last word to that leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    /// Over any of its sessions.
    pub any_ms: u64,
    /// Over a session that is its newest for the ledger.
    pub newest_ms: u64,
}

/// The world's memory.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// Every process tree that ever was.
    pub processes: Vec<Process>,
    /// By process id of an agent's process: when it died, once it has.
    pub agents: BTreeMap<Vec<u8>, Option<u64>>,
    /// Sessions whose goodbye arrived: agent id and incarnation.
    pub goodbyes: BTreeSet<(String, u64)>,
    /// Since when there is no fault.
    pub calm_ms: Option<u64>,
    pub reign: Option<Reign>,
    /// The leader itself stood still until then, ms.
    pub stalled_ms: u64,
    /// When controllers stood still: which, from, to.
    pub stalls: Vec<(usize, u64, u64)>,
    pub words: BTreeMap<String, Word>,
    /// Job id of each plan, once acknowledged.
    pub acked: BTreeMap<usize, u64>,
    /// Killed in calm, to see how soon it shows: agent id, its incarnation, when.
    pub probe: Option<(String, u64, u64)>,
}

/// The sweep passes at this distance at most, ms.
const PASS_MS: u64 = 200;

impl Truth {
    pub fn reign_begins(&mut self, reign: Reign) {
        self.reign = Some(reign);
        self.words.clear();
    }

    pub fn heard(&mut self, agent_id: &str, now_ms: u64, newest: bool) {
        let word = Word { any_ms: now_ms, newest_ms: if newest { now_ms } else { 0 } };
        let known = self.words.entry(agent_id.to_owned()).or_insert(word);
        known.any_ms = now_ms;
        if newest {
            known.newest_ms = now_ms;
        }
    }

    /// How long that controller stood still since then, ms, and how often.
    pub fn stalled_since(&self, controller: usize, since_ms: u64) -> (u64, u64) {
        let mut sum = (0, 0);
        for (_, from, to) in self.stalls.iter().filter(|(who, ..)| *who == controller) {
            let within = to.saturating_sub(since_ms.max(*from));
            sum.0 += within;
            // Its sweep comes a tick later, and adds to what was heard in between.
            sum.1 += u64::from(to + PASS_MS >= since_ms);
        }
        sum
    }
}
