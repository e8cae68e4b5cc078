//! The unknown-finish registry (design 3): facts whose job or assignment the ledger does not have
//! wait here until the entry that they need is applied, and take effect in that very step. It is
//! part of the replicated state: it survives restart, failover and snapshot. What waits too long is
//! kept as an orphan and still applied if its job ever comes: nothing in here is dropped unseen.

use super::exit::trim_failure;
use super::facts::STDERR_TAIL_MAX;
use super::state::Started;
use prost::Message as _;
use proto::mutants::Mutant;
use proto::{AttemptId, JobId, v1, v1::fact};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Orphans in quarantine (design 3). Until a history takes what is beyond, expired facts stay in
/// the registry then and new ones are told `later`.
pub(super) const ORPHANS_MAX: u64 = 10_000;

/// What one agent may keep here at least; else this part of `unknown_finish_max`. One that floods
/// it shuts nobody else out. Its orphans count too: it could fill the quarantine alone otherwise.
const SHARE: (u64, u64) = (256, 16);

/// All facts in here, encoded, in bytes. A usual one has 200 to 1,000; the largest, with full paths
/// and last words, 17 KiB: the number of facts alone would allow 1.3 GB of those.
const BYTES_MAX: u64 = 64 << 20;

/// What one agent may keep of that.
const SHARE_BYTES_MAX: u64 = BYTES_MAX / SHARE.1;

/// A fact that waits for its job or assignment.
#[derive(Clone, PartialEq, Debug)]
pub struct Deferred {
    /// The agent that told it.
    pub agent: Arc<str>,
    /// In which session.
    pub incarnation: u64,
    /// Its keeper's journal.
    pub journal: Arc<[u8]>,
    /// What it told: a start, a finish or a refusal, trimmed as the ledger keeps them.
    pub fact: v1::Fact,
    /// Since when, led ms: the time to live counts from here.
    pub since_led_ms: u64,
    /// Since when, wall ms, for people.
    pub since_wall_ms: u64,
    /// Log position of the entry that brought it.
    pub position: u64,
    /// Its time to live is over: it is in quarantine.
    pub orphan: bool,
}

/// Whom a fact is about, and what it says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct About {
    pub attempt: AttemptId,
    pub token: v1::Token,
    pub word: Word,
}

/// Kinds of facts, in the order in which those of one attempt take effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Word {
    Start,
    Finish,
    Refused,
    /// Suspended or resumed: of an attempt that is not known it says nothing that will be missed.
    Stopped,
}

/// Tells two facts apart; the same one told twice is kept once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub attempt: AttemptId,
    generation: u64,
    word: Word,
    /// Part of the key, so that nobody can tell another agent's fact before it and so suppress it.
    agent: Arc<str>,
}

/// Why a fact has to be told again later. Nothing is lost: its keeper journals it anew.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Full {
    #[error("the unknown-finish registry is full: {limit} facts wait (unknown_finish_max)")]
    Registry { limit: u64 },
    #[error("the unknown-finish registry is full: {BYTES_MAX} bytes of facts wait")]
    Bytes,
    #[error("this agent's share of the unknown-finish registry is full: {limit} facts")]
    Share { limit: u64 },
    #[error("this agent's share of the unknown-finish registry is full: {SHARE_BYTES_MAX} bytes")]
    ShareBytes,
    #[error("the quarantine of orphan facts is full: {ORPHANS_MAX}")]
    Quarantine,
}

/// The registry and its quarantine.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Registry {
    /// By arrival. Numbers are given anew when an image is read: only their order means anything.
    entries: BTreeMap<u64, Arc<Deferred>>,
    next: u64,
    by_job: BTreeMap<JobId, BTreeMap<Key, u64>>,
    /// Those that are no orphans: led time grows with the number.
    waiting: BTreeSet<u64>,
    shares: BTreeMap<Arc<str>, Share>,
    bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Share {
    facts: u64,
    bytes: u64,
}

impl About {
    /// Reads a fact; `None` if it names nothing.
    pub fn of(fact: &v1::Fact) -> Option<About> {
        let (attempt, token, word) = match fact.kind.as_ref()? {
            fact::Kind::Start(f) => (f.attempt.as_ref(), f.token, Word::Start),
            fact::Kind::Finish(f) => (f.attempt.as_ref(), f.token, Word::Finish),
            fact::Kind::Refused(f) => (f.attempt.as_ref(), f.token, Word::Refused),
            fact::Kind::Suspended(f) => (f.attempt.as_ref(), f.token, Word::Stopped),
            fact::Kind::Resumed(f) => (f.attempt.as_ref(), f.token, Word::Stopped),
        };
        Some(About { attempt: AttemptId::from_wire(attempt).ok()?, token: token?, word })
    }
}

impl Deferred {
    pub(super) fn key(&self) -> Option<Key> {
        let about = About::of(&self.fact)?;
        (about.word != Word::Stopped).then(|| Key::of(&about, &self.agent))
    }

    fn bytes(&self) -> u64 {
        self.fact.encoded_len() as u64
    }

    /// A refusal says that nothing ran: once its time is over, nobody misses it.
    fn spent(&self) -> bool {
        matches!(self.fact.kind, Some(fact::Kind::Refused(_)))
    }
}

impl Key {
    pub fn of(about: &About, agent: &Arc<str>) -> Key {
        let (attempt, generation) = (about.attempt, about.token.generation);
        Key { attempt, generation, word: about.word, agent: Arc::clone(agent) }
    }
}

impl Registry {
    /// All, in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Deferred>> {
        self.entries.values()
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.by_job.get(&key.attempt.task.job).is_some_and(|facts| facts.contains_key(key))
    }

    pub fn concerns(&self, job: JobId) -> bool {
        self.by_job.contains_key(&job)
    }

    /// Jobs with an id below the given one about which something waits.
    pub fn jobs_below(&self, id: JobId) -> Vec<JobId> {
        self.by_job.range(..id).map(|(job, _)| *job).collect()
    }

    /// What waits about a job: by attempt, each start before its finish.
    pub fn of_job(&self, job: JobId) -> Vec<Key> {
        self.by_job.get(&job).into_iter().flatten().map(|(key, _)| key.clone()).collect()
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Deferred>> {
        self.entries.get(self.by_job.get(&key.attempt.task.job)?.get(key)?)
    }

    /// Facts whose time to live is not over.
    pub fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Facts in quarantine.
    pub fn orphans(&self) -> u64 {
        (self.entries.len() - self.waiting.len()) as u64
    }

    /// May this one come in beside what is here, with room for `capacity` that wait?
    pub fn admits(&self, new: &Deferred, capacity: u64) -> Result<(), Full> {
        let share = self.shares.get(&new.agent).copied().unwrap_or_default();
        let (least, part) = SHARE;
        let most = least.max(capacity / part);
        if self.waiting() >= capacity {
            Err(Full::Registry { limit: capacity })
        } else if share.facts >= most {
            Err(Full::Share { limit: most })
        } else if self.orphans() >= ORPHANS_MAX {
            Err(Full::Quarantine)
        } else if self.bytes + new.bytes() > BYTES_MAX {
            Err(Full::Bytes)
        } else if share.bytes + new.bytes() > SHARE_BYTES_MAX {
            Err(Full::ShareBytes)
        } else {
            Ok(())
        }
    }

    /// Enters a fact behind the others. False if it is here already, or is none that waits.
    #[must_use]
    pub fn insert(&mut self, new: Deferred) -> bool {
        let Some(key) = new.key().filter(|key| !self.contains(key)) else { return false };
        let number = self.next;
        self.next += 1;
        self.by_job.entry(key.attempt.task.job).or_default().insert(key, number);
        if !new.orphan {
            self.waiting.insert(number);
        }
        let share = self.shares.entry(Arc::clone(&new.agent)).or_default();
        share.facts += 1;
        share.bytes += new.bytes();
        self.bytes += new.bytes();
        self.entries.insert(number, Arc::new(new));
        true
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<Deferred>> {
        let facts = self.by_job.get_mut(&key.attempt.task.job)?;
        let number = facts.remove(key)?;
        if facts.is_empty() {
            self.by_job.remove(&key.attempt.task.job);
        }
        self.waiting.remove(&number);
        let old = self.entries.remove(&number)?;
        self.bytes -= old.bytes();
        if let Some(share) = self.shares.get_mut(&old.agent) {
            share.facts -= 1;
            share.bytes -= old.bytes();
            if share.facts == 0 {
                self.shares.remove(&old.agent);
            }
        }
        Some(old)
    }

    /// Since when the next one that can expire waits, led ms. None can while the quarantine is full.
    pub fn oldest(&self) -> Option<u64> {
        let first = self.waiting.first().filter(|_| self.orphans() < ORPHANS_MAX)?;
        Some(self.entries.get(first)?.since_led_ms)
    }

    /// The oldest becomes an orphan.
    pub fn expire_oldest(&mut self) {
        let Some(number) = self.waiting.first().copied() else { return };
        let Some(entry) = self.entries.get_mut(&number) else { return };
        match entry.key().filter(|_| entry.spent() || Mutant::OrphansDeleted.active()) {
            Some(key) => {
                self.remove(&key);
            }
            None => {
                Arc::make_mut(entry).orphan = true;
                self.waiting.remove(&number);
            }
        }
    }

    /// Everything derived, computed again.
    ///
    /// # Panics
    /// If it is not what is kept.
    pub fn check(&self, led_ms: u64) {
        let mut again = Registry::default();
        for (number, entry) in &self.entries {
            again.next = *number;
            assert!(again.insert(Deferred::clone(entry)), "each deferred fact is kept once");
            assert!(entry.since_led_ms <= led_ms, "a deferred fact waits since the past");
        }
        again.next = self.next;
        assert_eq!(again, *self, "the registry's indexes are what its facts make them");
        assert!(self.entries.keys().next_back().is_none_or(|last| *last < self.next));
        assert!(self.orphans() <= ORPHANS_MAX, "the quarantine is bounded");
        assert!(self.bytes <= BYTES_MAX, "the registry's memory is bounded");
    }
}

/// A fact as the registry keeps it: bounded as the ledger bounds it, without what stands twice.
pub(super) fn trimmed(fact: &v1::Fact) -> v1::Fact {
    let mut fact = fact.clone();
    match &mut fact.kind {
        Some(fact::Kind::Start(start)) => {
            let (attempt, token) = (start.attempt, start.token);
            *start = v1::StartFact { attempt, token, ..Started::from_fact(start).fact };
        }
        Some(fact::Kind::Finish(finish)) => {
            finish.start = finish.start.as_ref().map(|start| Started::from_fact(start).fact);
            let cut = finish.stderr_tail.len().saturating_sub(STDERR_TAIL_MAX);
            finish.stderr_tail.drain(..cut);
            if let Some(v1::finish_fact::End::StartFailure(failure)) = &mut finish.end {
                *failure = trim_failure(failure);
            }
        }
        Some(fact::Kind::Refused(refused)) => {
            refused.failure = refused.failure.as_ref().map(trim_failure);
        }
        Some(fact::Kind::Suspended(_) | fact::Kind::Resumed(_)) | None => {}
    }
    fact
}
