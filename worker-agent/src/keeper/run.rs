//! The loop: wait, take everything that happened, journal it with one fdatasync, then act and tell.
//! Nothing is told, spawned or signalled for an order before its record is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;

use proto::v1::journal_record::Kind;
use proto::v1::{
    FinishFact, JournalRecord, KeeperPong, KeeperVolatileExit, KeeperWelcome, KillCause,
    RefusedFact, StartFailure, finish_fact, keeper_event,
};
use wal::WriteError;

use super::book::Key;
use super::cgroup::Slots;
use super::exits::ExitReader;
use super::identity::{self, ProcessId};
use super::journal::Journal;
use super::log::KeeperLog;
use super::poll::{Poll, Source};
use super::session::{self, Reapers, Snapshot};
use super::spawn::{Spawner, fault};
use super::start::DataDir;
use super::task::Task;
use super::wire::Connection;
use super::{child::Step, status};

/// An idle keeper looks at its directory this often.
const LOOK_IDLE_MS: u64 = 5_000;

/// While something is under way that no descriptor tells of.
const LOOK_BUSY_MS: u64 = 1_000;

/// A start that takes longer is reported, and the node flagged.
const SPAWN_SLOW_MS: u64 = 10_000;

/// Records that wait for room on a full disk; beyond it runs are not even refused.
pub(super) const PARKED_MAX: usize = 4096;

/// Output that a client may leave unread before its orders are left unread too.
const OUT_HIGH_BYTES: usize = 1 << 20;

/// Facts are added to a client's output up to this.
const OUT_LOW_BYTES: usize = 256 << 10;

/// The keeper and everything it owns.
pub(crate) struct Keeper {
    pub(super) dir: DataDir,
    pub(super) log: KeeperLog,
    pub(super) journal: Journal,
    pub(super) health: Health,
    pub(super) boot_id: Vec<u8>,
    pub(super) poll: Poll,
    pub(super) spawner: Spawner,
    pub(super) slots: Option<Slots>,
    pub(super) exits: ExitReader,
    /// Readable after each end that the guard wrote down; `None`: there is no guard.
    pub(super) notice: Option<OwnedFd>,
    pub(super) reapers: Reapers,
    pub(super) listener: Option<UnixListener>,
    pub(super) children: OwnedFd,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) tasks: BTreeMap<u64, Task>,
    pub(super) by_key: BTreeMap<Key, u64>,
    /// Main processes that are not reaped.
    pub(super) mains: BTreeMap<u32, u64>,
    /// Tasks whose main process somebody else reaps.
    pub(super) adopted: BTreeSet<u64>,
    pub(super) timers: BTreeSet<(u64, u64)>,
    pub(super) next_id: u64,
    pub(super) batch: Vec<JournalRecord>,
    /// Records of which nobody is told: they wait for the next write.
    pub(super) quiet: Vec<JournalRecord>,
    pub(super) after: Vec<After>,
    /// Ends that could not be journalled, until the controller says that it has them.
    pub(super) volatile: BTreeMap<Key, FinishFact>,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) stopping: bool,
    pub(super) deleted: bool,
    pub(super) idle_ms: u64,
    pub(super) idle_since_ms: Option<u64>,
    pub(super) look_ms: u64,
    pub(super) has_room: bool,
    pub(super) slow_spawn: Option<String>,
    pub(super) strangers: BTreeSet<ProcessId>,
    pub(super) _lock: OwnedFd,
}

/// Whether the journal takes records.
pub(super) enum Health {
    Good,
    /// The disk is full, the reserve too: records wait.
    Full,
    /// A write or fdatasync failed: nothing is journalled any more.
    Broken(String),
}

/// What may be done once the batch is durable.
pub(super) enum After {
    Spawn(u64, Box<super::spawn::SpawnOrder>),
    Kill { id: u64, cause: KillCause, grace_ms: u64 },
    Welcome { connection: u64, resend_from: u64 },
    Manifest { connection: u64, nonce: u64 },
    Pong { connection: u64, nonce: u64 },
}

impl Keeper {
    /// Runs until nothing is left to do; gives the exit code.
    pub(crate) fn run(mut self) -> i32 {
        loop {
            let now = identity::boottime_ms();
            match self.turn(now) {
                Ok(()) => {}
                // epoll on descriptors of our own: only a lack of memory can be the cause.
                Err(e) => self.log.say(format!("waiting failed: {e}")),
            }
            if let Some(code) = self.finished(identity::boottime_ms()) {
                self.log.say(format!("ends with {code}"));
                if let Some(slots) = self.slots.take() {
                    slots.remove();
                }
                return code;
            }
        }
    }

    fn turn(&mut self, now: u64) -> io::Result<()> {
        self.commit();
        self.tell();
        let timer = self.timers.first().map_or(u64::MAX, |(at, _)| *at);
        let until = if self.pending_work() { now } else { timer.min(self.look_ms) };
        let sources = self.poll.wait(until)?;
        self.snapshot = None;
        for source in sources {
            self.dispatch(source);
        }
        let now = identity::boottime_ms();
        self.run_timers(now);
        if now >= self.look_ms {
            self.look(now);
        }
        self.commit();
        self.tell();
        Ok(())
    }

    fn pending_work(&self) -> bool {
        !self.after.is_empty() || (matches!(self.health, Health::Good) && !self.batch.is_empty())
    }

    fn dispatch(&mut self, source: Source) {
        match source {
            Source::Listener => self.accept(),
            Source::Children => self.orphans_ended(),
            Source::Timer => {}
            Source::Spawner => self.take_results(),
            Source::Notice => self.guard_noticed(),
            Source::Connection(id) => self.serve(id),
            Source::Task(id) => self.main_ended(id),
        }
    }

    fn run_timers(&mut self, now: u64) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(task) = self.tasks.get_mut(&id) {
                task.armed_ms = None;
            }
            self.task_due(id, now);
            self.rearm(id);
        }
    }

    /// Sets the timer of a task to what it needs now.
    pub(super) fn rearm(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let wanted = task.deadline_ms();
        if wanted == task.armed_ms {
            return;
        }
        if let Some(old) = std::mem::replace(&mut task.armed_ms, wanted) {
            self.timers.remove(&(old, id));
        }
        if let Some(at) = wanted {
            self.timers.insert((at, id));
        }
    }

    /// What no descriptor tells of: the directory, a full disk, a slow spawner, idle connections.
    fn look(&mut self, now: u64) {
        if !self.deleted && !self.dir.is_there() {
            self.deleted = true;
            self.listener = None;
            self.log.say("the data directory was deleted: ends when the last tree has ended");
        }
        self.has_room = !matches!(self.health, Health::Good) || self.journal.has_room();
        if matches!(self.health, Health::Full) {
            self.health = Health::Good;
        }
        if matches!(self.health, Health::Good)
            && self.batch.is_empty()
            && let Err(e) = self.journal.seal()
        {
            self.break_journal(&e);
        }
        self.look_at_spawner(now);
        self.list_strangers();
        let busy = self.spawner.waiting() > 0
            || !self.batch.is_empty()
            || !self.quiet.is_empty()
            || self.idle_since_ms.is_some();
        self.look_ms = now + if busy { LOOK_BUSY_MS.min(self.idle_ms) } else { LOOK_IDLE_MS };
    }

    /// Processes that a job left and that cannot be attributed: said once each, never killed.
    fn list_strangers(&mut self) {
        if self.slots.is_some() {
            return;
        }
        let trees: Vec<_> = self.tasks.values().map(Task::tree).collect();
        let now: BTreeSet<_> =
            session::strangers(&trees, self.reapers, &self.mains).into_iter().collect();
        for stranger in now.difference(&self.strangers) {
            self.log.say(format!("pid {} was left by a job, nobody knows which", stranger.pid));
        }
        self.strangers = now;
    }

    fn look_at_spawner(&mut self, now: u64) {
        let Some((id, step, for_ms)) = self.spawner.blocked(now, SPAWN_SLOW_MS) else {
            self.slow_spawn = None;
            return;
        };
        let name = self.tasks.get(&id).map(|task| task.key.attempt.to_string());
        let problem = format!(
            "spawn blocked in {} for {} s ({})",
            step.name(),
            for_ms / 1000,
            name.unwrap_or_default()
        );
        if self.slow_spawn.is_none() {
            self.log.say(&problem);
            let message = problem.clone();
            self.tell_client(keeper_event::Kind::Problem(proto::v1::KeeperProblem { message }));
        }
        self.slow_spawn = Some(problem);
    }

    // ---- journal

    /// Makes the batch durable, then does what waited for it.
    fn commit(&mut self) {
        if !self.quiet.is_empty() && matches!(self.health, Health::Good) {
            let quiet = std::mem::take(&mut self.quiet);
            // Acknowledgements: without room they are forgotten, and told facts are told again.
            match self.journal.append(&quiet) {
                Ok(()) | Err(WriteError::NoSpace { .. }) => {}
                Err(e) => self.break_journal(&e),
            }
            self.look_ms = self.look_ms.min(identity::boottime_ms() + LOOK_BUSY_MS);
        }
        if !self.batch.is_empty() && !matches!(self.health, Health::Full) {
            self.commit_batch();
        }
        for action in std::mem::take(&mut self.after) {
            self.act(action);
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

    fn break_journal(&mut self, error: &WriteError) {
        let message = format!("the journal failed: {error}; no new runs on this node");
        self.log.say(&message);
        self.tell_client(keeper_event::Kind::Problem(proto::v1::KeeperProblem {
            message: message.clone(),
        }));
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

    // ---- after the batch is durable

    fn act(&mut self, action: After) {
        match action {
            After::Spawn(id, order) => self.spawn(id, order),
            After::Kill { id, cause, grace_ms } => self.kill(id, cause, grace_ms),
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

    fn welcome(&mut self, connection: u64, resend_from: u64) {
        let acked = self.journal.book().acked();
        let welcome = KeeperWelcome {
            journal_id: self.journal.id().to_vec(),
            boot_id: self.boot_id.clone(),
            next_seq: self.journal.next_seq(),
            acked,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            limits: self.slots.as_ref().map_or("none", Slots::limits).into(),
        };
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        connection.push(keeper_event::Kind::Welcome(welcome));
        connection.next_fact = if resend_from > 0 { resend_from } else { acked + 1 };
        for finish in self.volatile.values() {
            let finish = Some(finish.clone());
            connection.push(keeper_event::Kind::NotJournalled(KeeperVolatileExit { finish }));
        }
    }

    fn pong(&self, nonce: u64) -> KeeperPong {
        let book = self.journal.book();
        KeeperPong {
            nonce,
            boottime_ms: identity::boottime_ms(),
            digest: self.digest(),
            last_seq: book.last_fact(),
            last_order: book.last_order(),
            disk_full: !self.has_room || matches!(self.health, Health::Full),
            problem: self.problem(),
            live: self.tasks.values().filter(|task| !task.is_told()).count() as u32,
        }
    }

    /// What the operator should know; empty: nothing.
    fn problem(&self) -> String {
        match (&self.health, &self.slow_spawn) {
            (Health::Broken(why), _) => why.clone(),
            (Health::Full, _) => "disk full: the keeper's journal waits for room".into(),
            (Health::Good, Some(slow)) => slow.clone(),
            (Health::Good, None) => String::new(),
        }
    }

    // ---- connections

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        match Connection::accept(listener) {
            Ok(Some(connection)) => {
                let id = self.next_id;
                self.next_id += 1;
                if self.poll.add(connection.fd(), Source::Connection(id)).is_ok() {
                    self.connections.insert(id, connection);
                }
                self.limit_ungreeted();
            }
            Ok(None) => self.log.say("refused a connection of another user"),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => self.log.say(format!("accept failed: {e}")),
        }
    }

    /// Connections that said nothing yet are held to a handful, oldest out first.
    fn limit_ungreeted(&mut self) {
        const UNGREETED_MAX: usize = 8;
        let silent: Vec<u64> =
            self.connections.iter().filter(|(_, c)| !c.greeted).map(|(id, _)| *id).collect();
        for id in silent.iter().rev().skip(UNGREETED_MAX) {
            self.connections.remove(id);
        }
    }

    pub(super) fn answer(&mut self, connection: u64, kind: keeper_event::Kind) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.push(kind);
        }
    }

    /// To the one client, if there is one.
    pub(super) fn tell_client(&mut self, kind: keeper_event::Kind) {
        if let Some(client) = self.connections.values_mut().find(|c| c.greeted) {
            client.push(kind);
        }
    }

    /// Sends what is durable and new, as far as each peer takes it.
    fn tell(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            if let Err(e) = self.tell_one(id) {
                self.log.say(format!("connection closed: {e}"));
                self.connections.remove(&id);
            }
        }
    }

    fn tell_one(&mut self, id: u64) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        loop {
            while connection.pending() < OUT_LOW_BYTES {
                let facts = self.journal.facts_from(connection.next_fact);
                let Some(facts) = facts.map_err(io::Error::other)? else { break };
                connection.next_fact = facts.to + 1;
                connection.push(keeper_event::Kind::Facts(facts));
            }
            if connection.pending() == 0 {
                break;
            }
            connection.flush()?;
            if connection.pending() > 0 {
                break;
            }
        }
        let (read, write) = (connection.pending() < OUT_HIGH_BYTES, connection.pending() > 0);
        if connection.interest != (read, write) {
            self.poll.change(connection.fd(), Source::Connection(id), read, write)?;
            connection.interest = (read, write);
        }
        Ok(())
    }

    // ---- the end

    /// The exit code, once there is nothing to stay for.
    fn finished(&mut self, now: u64) -> Option<i32> {
        let told = self.connections.values().all(|c| !c.greeted || c.pending() == 0);
        if !self.tasks.is_empty() || self.spawner.waiting() > 0 || !self.after.is_empty() {
            self.idle_since_ms = None;
            return None;
        }
        if let Health::Broken(_) = self.health {
            // Nothing lives here and nothing is owed by memory alone: a new one may do better.
            return (self.volatile.is_empty() && told).then_some(status::FAILED);
        }
        if !self.batch.is_empty() {
            return None;
        }
        if self.deleted || (self.stopping && told) {
            return Some(self.sealed_end());
        }
        let book = self.journal.book();
        if !self.connections.is_empty() || book.last_fact() > book.acked() {
            self.idle_since_ms = None;
            return None;
        }
        let since = *self.idle_since_ms.get_or_insert_with(|| {
            self.look_ms = self.look_ms.min(now + self.idle_ms.min(LOOK_BUSY_MS));
            now
        });
        (now >= since + self.idle_ms).then(|| self.sealed_end())
    }

    fn sealed_end(&mut self) -> i32 {
        if !self.quiet.is_empty() {
            // Lost acknowledgements only make facts told twice.
            let _ = self.journal.append(&std::mem::take(&mut self.quiet));
        }
        match self.journal.seal() {
            Ok(_) => status::ENDED,
            Err(e) if !self.deleted => {
                self.log.say(format!("the journal could not be sealed: {e}"));
                status::FAILED
            }
            Err(_) => status::ENDED,
        }
    }

    pub(super) fn watch_children(&self) -> io::Result<()> {
        self.poll.add(self.children.as_fd(), Source::Children)?;
        self.poll.add(self.spawner.wake(), Source::Spawner)?;
        if let Some(notice) = &self.notice {
            self.poll.add(notice, Source::Notice)?;
        }
        if let Some(listener) = &self.listener {
            self.poll.add(listener, Source::Listener)?;
        }
        Ok(())
    }
}

/// A failure to write down that a run was taken.
pub(super) fn journal_failure(error: &io::Error) -> StartFailure {
    let failure = fault(Step::None, error, b"");
    StartFailure { step: "journal".into(), message: format!("journal: {error}"), ..failure }
}
