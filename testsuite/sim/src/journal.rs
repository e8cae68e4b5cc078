//! A pretend keeper's journal: what is durable, and what follows from it (design 6).

use crate::process::Key;
use proto::v1::{self, fact};
use std::collections::{BTreeMap, BTreeSet};

/// One record; its position is the fact seq.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Accepted {
        key: Key,
        order: u64,
        job: usize,
        boot: u64,
        /// Its lease and the h with which it began.
        fence_after: Option<(u64, u64)>,
    },
    Started {
        key: Key,
        fact: v1::StartFact,
    },
    Exited,
    Closed {
        key: Key,
        fact: v1::FinishFact,
    },
    Refused {
        fact: v1::RefusedFact,
    },
    Again(v1::Fact),
    Acked(u64),
    Order(u64),
    KillNoted,
    Stopped {
        key: Key,
        stopped: bool,
    },
}

/// An attempt that was accepted and not closed.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub job: usize,
    /// The boot of its node in which it was accepted.
    pub boot: u64,
    pub started: Option<v1::StartFact>,
    pub fence_after: Option<(u64, u64)>,
}

/// The journal after its newest record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    pub id: Vec<u8>,
    pub records: u64,
    pub facts: BTreeMap<u64, v1::Fact>,
    pub live: BTreeMap<Key, Live>,
    /// Ended and not acknowledged, by the position of the finish.
    pub ended: BTreeMap<u64, Key>,
    done: BTreeSet<Key>,
    pub acked: u64,
    pub last_order: u64,
    pub last_fact: u64,
}

impl Journal {
    pub fn new(id: Vec<u8>) -> Journal {
        Journal { id, ..Journal::default() }
    }

    /// Writes one record; what it says counts from now on.
    pub fn write(&mut self, record: Record) {
        self.records += 1;
        let seq = self.records;
        match record {
            Record::Accepted { key, order, job, boot, fence_after } => {
                self.last_order = self.last_order.max(order);
                self.live.insert(key, Live { job, boot, started: None, fence_after });
            }
            Record::Started { key, fact } => {
                if let Some(live) = self.live.get_mut(&key) {
                    live.started = Some(fact.clone());
                }
                self.fact(seq, fact::Kind::Start(fact));
            }
            Record::Closed { key, fact } => {
                self.live.remove(&key);
                self.ended.retain(|_, other| *other != key);
                self.ended.insert(seq, key);
                self.fact(seq, fact::Kind::Finish(fact));
            }
            Record::Refused { fact } => self.fact(seq, fact::Kind::Refused(fact)),
            Record::Again(again) => {
                if let Some(fact::Kind::Finish(finish)) = &again.kind
                    && let Some(key) =
                        Key::from_wire(finish.attempt.as_ref(), finish.token.as_ref())
                {
                    self.ended.retain(|_, other| *other != key);
                    self.ended.insert(seq, key);
                }
                if let Some(kind) = again.kind {
                    self.fact(seq, kind);
                }
            }
            Record::Acked(to) => self.acknowledge(to.min(self.last_fact)),
            Record::Order(order) => self.last_order = self.last_order.max(order),
            Record::Stopped { key, stopped } => {
                let (attempt, token) = (Some(key.attempt_ref()), Some(key.token()));
                let kind = if stopped {
                    fact::Kind::Suspended(v1::SuspendedFact { attempt, token, wall_ms: 0 })
                } else {
                    fact::Kind::Resumed(v1::ResumedFact { attempt, token, wall_ms: 0 })
                };
                self.fact(seq, kind);
            }
            Record::Exited | Record::KillNoted => {}
        }
    }

    /// Whether this attempt was ever taken.
    pub fn knows(&self, key: Key) -> bool {
        self.live.contains_key(&key)
            || self.done.contains(&key)
            || self.ended.values().any(|ended| *ended == key)
    }

    /// Facts `from..=to`, at most `most` of them; `None` if there is no newer fact.
    pub fn facts_from(&self, from: u64, most: usize) -> Option<v1::Facts> {
        if from > self.last_fact {
            return None;
        }
        let facts: Vec<v1::Fact> =
            self.facts.range(from..).take(most.max(1)).map(|(_, fact)| fact.clone()).collect();
        let to = facts.last().map_or(from, |fact| fact.seq);
        Some(v1::Facts { journal_id: self.id.clone(), from, to, facts })
    }

    fn fact(&mut self, seq: u64, kind: fact::Kind) {
        self.last_fact = seq;
        self.facts.insert(seq, v1::Fact { seq, kind: Some(kind) });
    }

    fn acknowledge(&mut self, to: u64) {
        self.acked = self.acked.max(to);
        let open = self.ended.split_off(&(self.acked + 1));
        self.done.extend(std::mem::replace(&mut self.ended, open).into_values());
    }
}
