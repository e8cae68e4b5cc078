//! Facts that the controller wants again later, because its registry is full. They are not journalled
//! anew at once: told and put off again, they would go round at the speed of the disk. Until their
//! time comes the keeper keeps the old ones, for it hears of no acknowledgement at or above them;
//! facts behind them go up all the same.

use crate::agent::AgentCore;
use crate::join::Link;
use proto::v1;
use proto::v1::keeper_request::Kind as ToKeeper;
use std::collections::BTreeSet;

/// First and longest wait: while the answer is `later` again, each is twice the one before.
const WAIT_MS: (u64, u64) = (1_000, 30_000);

/// What was put off in this session.
#[derive(Debug, Default)]
pub(crate) struct PutOff {
    /// Where they stand in the journal; as many as the relay lets run ahead of the keeper at most.
    seqs: BTreeSet<u64>,
    due_ms: u64,
    /// How long the last ones waited; 0: none did.
    wait_ms: u64,
    /// When those were told anew.
    tried_ms: u64,
}

impl PutOff {
    /// Puts one off; how long all of them wait, if it is the first.
    pub fn add(&mut self, seq: u64, now_ms: u64) -> Option<u64> {
        let first = self.seqs.is_empty();
        self.seqs.insert(seq);
        if !first {
            return None;
        }
        // An answer to what was told anew comes sooner than that; later, it is a new trouble.
        let again = self.wait_ms > 0 && now_ms.saturating_sub(self.tried_ms) <= self.wait_ms;
        self.wait_ms = if again { (self.wait_ms * 2).min(WAIT_MS.1) } else { WAIT_MS.0 };
        self.due_ms = now_ms.saturating_add(self.wait_ms);
        Some(self.wait_ms)
    }

    /// The lowest one: what the keeper must not drop yet.
    pub fn first(&self) -> Option<u64> {
        self.seqs.first().copied()
    }

    /// When they are told anew.
    pub fn due_ms(&self) -> Option<u64> {
        (!self.seqs.is_empty()).then_some(self.due_ms)
    }

    /// Takes them out once that time has come.
    fn take_due(&mut self, now_ms: u64) -> BTreeSet<u64> {
        if self.due_ms().is_none_or(|due| now_ms < due) {
            return BTreeSet::new();
        }
        self.tried_ms = now_ms;
        std::mem::take(&mut self.seqs)
    }

    /// The session or the keeper is gone: what was not acknowledged is told again anyway.
    pub fn forget(&mut self) {
        self.seqs.clear();
    }
}

impl AgentCore {
    pub(crate) fn later(&mut self, later: &v1::Later, now_ms: u64) {
        if !self.speaks_of_our_journal(&later.journal_id) {
            return;
        }
        let v1::Later { seq, reason, .. } = later;
        if let Some(wait_ms) = self.put_off.add(*seq, now_ms) {
            self.warn_once(format!(
                "the controller takes fact {seq} and others only later, tried again in {wait_ms} \
                 ms: {reason}"
            ));
        }
    }

    pub(crate) fn tell_put_off_if_due(&mut self, now_ms: u64) {
        if !matches!(self.link, Link::Joined(_)) || self.keeper.is_none() {
            return;
        }
        let due = self.put_off.take_due(now_ms);
        if due.is_empty() {
            return;
        }
        // Each is journalled anew before the acknowledgement lets the keeper drop the old one.
        for seq in due {
            self.tell_keeper(ToKeeper::Later(v1::KeeperLater { seq }));
        }
        self.release_to_keeper();
    }

    /// Tells the keeper how far its journal is in the controller's log, up to what is put off.
    pub(crate) fn release_to_keeper(&mut self) {
        if let Some(to) = self.relay.release(self.put_off.first()) {
            self.tell_keeper(ToKeeper::Ack(v1::KeeperAck { to }));
        }
        if let Some(from) = self.relay.resume() {
            self.tell_keeper(ToKeeper::Resend(v1::KeeperResend { from }));
        }
    }
}
