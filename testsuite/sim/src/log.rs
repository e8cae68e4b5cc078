//! A pretend replicated log: what is committed is durable and the same for all. Proposals of the
//! leader commit in order after a while; with a leader some of them are lost, never from the middle.

use crate::client::Waiter;
use docket_core::ledger::Applied;
use proto::v1;
use std::collections::VecDeque;

/// A proposal or a committed entry.
#[derive(Debug)]
pub(crate) struct Entry {
    /// 0 until it is committed.
    pub index: u64,
    pub term: u64,
    /// When it was stamped, in real virtual time: no clock of the cluster shows it.
    pub stamped_ms: u64,
    pub proposal: v1::Proposal,
    /// Who proposed it: controller and its life. Only that one answers the waiters.
    pub proposer: (usize, u64),
    pub waiters: Vec<Option<Waiter>>,
    /// It is the first entry of its term.
    pub begins: bool,
    /// What it did where it was applied first.
    pub applied: Option<Applied>,
}

/// The log and who may write to it.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub entries: Vec<Entry>,
    pub pending: VecDeque<Entry>,
    pub term: u64,
    pub leader: Option<usize>,
    /// When the newest proposal will be committed, ms: the log keeps its order.
    pub busy_until_ms: u64,
    last_index: u64,
}

impl Log {
    /// Commits the oldest proposal.
    pub fn commit(&mut self) -> bool {
        let Some(mut entry) = self.pending.pop_front() else { return false };
        self.last_index += 1;
        entry.index = self.last_index;
        self.entries.push(entry);
        true
    }

    /// A new term: its blank entry takes a place.
    pub fn begin_term(&mut self, term: u64, leader: usize) {
        self.term = term;
        self.leader = Some(leader);
        self.last_index += 1;
    }

    /// The command with that order id, if it is committed.
    pub fn command(&self, order: u64) -> Option<&v1::Command> {
        let (index, ordinal) = (order >> 12, (order & 4095) as usize);
        let at = self.entries.binary_search_by_key(&index, |entry| entry.index).ok()?;
        self.entries.get(at)?.proposal.commands.get(ordinal)
    }
}
