//! The turn's one write: everything that happened becomes durable, then what waited for it is done.
//! And what happens when the disk is full or the journal broken.

use std::io;

use proto::v1::journal_record::Kind;
use proto::v1::{
    FinishFact, JournalRecord, KeeperProblem, KeeperVolatileExit, RefusedFact, StartFailure,
    finish_fact, keeper_event,
};
use wal::WriteError;

use super::book::Key;
use super::child::Step;
use super::identity;
use super::plan::fault;
use super::run::{After, Health, Keeper, LOOK_BUSY_MS};
use super::sys;

impl Keeper {
    /// Makes the batch durable, then does what waited for it.
    pub(super) fn commit(&mut self) {
        if !self.batch.is_empty() && !matches!(self.health, Health::Full) {
            self.commit_batch();
        }
        // Behind the batch: what lets a fact go must not be durable before the fact that is told
        // anew for it.
        if !self.quiet.is_empty() && matches!(self.health, Health::Good) {
            let quiet = std::mem::take(&mut self.quiet);
            // Acknowledgements: without room they are forgotten, and told facts are told again.
            match self.journal.append(&quiet) {
                Ok(()) | Err(WriteError::NoSpace { .. }) => {}
                Err(e) => self.break_journal(&e),
            }
            self.look_ms = self.look_ms.min(identity::boottime_ms() + LOOK_BUSY_MS);
        }
        self.publish_fences();
        if self.batch.is_empty() {
            self.let_go();
        }
        for action in std::mem::take(&mut self.after) {
            self.act(action);
        }
    }

    /// What is durable here, or never will be, need not be kept elsewhere.
    fn let_go(&mut self) {
        for pid in std::mem::take(&mut self.to_reap) {
            // Reaped by somebody else: then it is gone all the same.
            let _ = sys::reap(pid);
        }
        let forget = std::mem::take(&mut self.forget_exits) && self.adopted.is_empty();
        if forget && self.exits.forget().is_err() {
            self.log.say("guard.exits could not be emptied");
        }
    }

    fn commit_batch(&mut self) {
        if let Health::Broken(_) = self.health {
            return self.batch_is_lost();
        }
        match self.journal.commit(&self.batch) {
            Ok(()) => {
                self.batch.clear();
                if self.journal.is_unsealed() {
                    self.look_ms = self.look_ms.min(identity::boottime_ms() + LOOK_BUSY_MS);
                }
            }
            Err(WriteError::NoSpace { .. }) => self.park(),
            Err(e) => {
                self.break_journal(&e);
                self.batch_is_lost();
            }
        }
    }

    /// The disk is full: what has happened waits for room; what has not begun is refused.
    fn park(&mut self) {
        self.log.say("disk full: no new runs; ends of jobs wait for room");
        self.health = Health::Full;
        self.has_room = false;
        self.look_ms = self.look_ms.min(identity::boottime_ms() + LOOK_BUSY_MS);
        let batch = std::mem::take(&mut self.batch);
        self.batch = batch
            .into_iter()
            .map(|record| match record.kind {
                Some(Kind::Accepted(accepted)) => {
                    let key = Key::from_wire(accepted.attempt.as_ref(), accepted.token.as_ref());
                    if let Some(id) = key.and_then(|key| self.by_key.get(&key).copied()) {
                        self.drop_task(id);
                    }
                    let failure = journal_failure(&io::Error::from_raw_os_error(libc::ENOSPC));
                    JournalRecord {
                        kind: Some(Kind::Refused(RefusedFact {
                            attempt: accepted.attempt,
                            token: accepted.token,
                            failure: Some(failure),
                        })),
                    }
                }
                kind => JournalRecord { kind },
            })
            .collect();
    }

    pub(super) fn break_journal(&mut self, error: &WriteError) {
        let message = format!("the journal failed: {error}; no new runs on this node");
        self.log.say(&message);
        self.tell_client(keeper_event::Kind::Problem(KeeperProblem { message: message.clone() }));
        self.health = Health::Broken(message);
    }

    /// Without a journal ends are handed on as not journalled, runs end as not started.
    fn batch_is_lost(&mut self) {
        for record in std::mem::take(&mut self.batch) {
            match record.kind {
                Some(Kind::Accepted(accepted)) => {
                    let key = Key::from_wire(accepted.attempt.as_ref(), accepted.token.as_ref());
                    if let Some(key) = key {
                        if let Some(id) = self.by_key.get(&key).copied() {
                            self.drop_task(id);
                        }
                        self.refuse_unjournalled(key);
                    }
                }
                Some(Kind::Closed(closed)) => {
                    if let Some(finish) = closed.finish {
                        self.hand_on(finish);
                    }
                }
                _ => {}
            }
        }
    }

    /// Answers a run that cannot be journalled.
    pub(super) fn refuse_unjournalled(&mut self, key: Key) {
        let failure = journal_failure(&io::Error::from_raw_os_error(libc::EIO));
        self.hand_on(FinishFact {
            attempt: Some(key.attempt_ref()),
            token: Some(key.token()),
            end: Some(finish_fact::End::StartFailure(failure)),
            finish_wall_ms: identity::wall_ms(),
            ..FinishFact::default()
        });
    }

    fn hand_on(&mut self, finish: FinishFact) {
        if let Some(key) = Key::from_wire(finish.attempt.as_ref(), finish.token.as_ref()) {
            self.volatile.insert(key, finish.clone());
        }
        let finish = Some(finish);
        self.tell_client(keeper_event::Kind::NotJournalled(KeeperVolatileExit { finish }));
    }

    fn act(&mut self, action: After) {
        match action {
            After::Spawn(id, order) => self.spawn(id, order),
            After::Warn { id, warn } => self.warn(id, &warn),
            After::Kill { id, cause, grace_ms } => self.kill(id, cause, grace_ms),
            After::Pace(id) => self.pace(id),
            After::Welcome { connection, resend_from } => self.welcome(connection, resend_from),
            After::Manifest { connection, nonce } => {
                let manifest = self.manifest(nonce);
                self.answer(connection, keeper_event::Kind::Manifest(manifest));
            }
            After::Pong { connection, nonce } => {
                let pong = self.pong(nonce);
                self.answer(connection, keeper_event::Kind::Pong(pong));
            }
        }
    }
}

/// A failure to write down that a run was taken.
pub(super) fn journal_failure(error: &io::Error) -> StartFailure {
    let failure = fault(Step::None, error, b"");
    StartFailure { step: "journal".into(), message: format!("journal: {error}"), ..failure }
}
