//! The loop: wait, take everything that happened, journal it with one fdatasync, then act and tell.
//! Nothing is told, spawned or signalled for an order before its record is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use proto::v1::{FinishFact, JournalRecord, KillCause, keeper_event};

use super::board::Board;
use super::book::Key;
use super::cgroup::Slots;
use super::exits::ExitReader;
use super::growth::Growth;
use super::identity::{self, ProcessId};
use super::journal::Journal;
use super::log::KeeperLog;
use super::poll::{Poll, Source};
use super::session::{self, Reapers, Snapshot};
use super::spawn::Nofile;
use super::spawner::{Blocked, HANGING_MAX, Spawner};
use super::start::{DataDir, Place};
use super::status;
use super::task::Task;
use super::upgrade::Upgrade;
use super::wire::Connection;

/// An idle keeper looks at its directory this often.
const LOOK_IDLE_MS: u64 = 5_000;

/// While something is under way that no descriptor tells of.
pub(super) const LOOK_BUSY_MS: u64 = 1_000;

/// A renamed directory to which no agent comes is given up after so many times what an idle keeper
/// stays: ten minutes, for people move directories while their agent is stopped.
const RENAMED_IDLES: u64 = 60;

/// A start that takes longer is reported, and the node flagged.
const SPAWN_SLOW_MS: u64 = 10_000;

/// Records that wait for room on a full disk; beyond it runs are not even refused.
pub(super) const PARKED_MAX: usize = 4096;

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
    /// Shared with the guard.
    pub(super) board: Arc<Board>,
    /// The guard's copy of the fences is older than ours.
    pub(super) fences_stale: bool,
    /// It could not be brought up to date: nothing leased starts.
    pub(super) fences_failed: bool,
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
    /// Main processes whose end is looked at, and reaped once it is durable: until then the guard
    /// would inherit it.
    pub(super) to_reap: Vec<u32>,
    /// Ended orphans stand behind such a one.
    pub(super) orphans_wait: bool,
    /// Nothing that the guard wrote down is waited for, once the batch is durable.
    pub(super) forget_exits: bool,
    /// Of this program.
    pub(super) version: &'static str,
    /// This program took over the process of an older one: its children are ours.
    pub(super) took_over: bool,
    /// A newer program that is to take over.
    pub(super) upgrade: Option<Upgrade>,
    pub(super) nofile: Nofile,
    /// Starts of the last keeper that hung and were killed.
    pub(super) stragglers: Vec<u32>,
    /// Ends that could not be journalled, until the controller says that it has them.
    pub(super) volatile: BTreeMap<Key, FinishFact>,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) stopping: bool,
    /// Its path does not lead to the data directory any more: nothing new is taken.
    pub(super) deleted: bool,
    /// And nobody will hear of what lives here: it was told to end.
    pub(super) abandoned: bool,
    pub(super) idle_ms: u64,
    pub(super) idle_since_ms: Option<u64>,
    pub(super) look_ms: u64,
    pub(super) has_room: bool,
    pub(super) room_look_ms: u64,
    /// When a spawner that is at something is looked at next.
    pub(super) spawner_look_ms: u64,
    pub(super) slow_spawn: Option<String>,
    pub(super) growth: Growth,
    pub(super) strangers: BTreeSet<ProcessId>,
    pub(super) lock: OwnedFd,
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
    Kill {
        id: u64,
        cause: KillCause,
        grace_ms: u64,
    },
    /// The signal that warns of the limit.
    Warn {
        id: u64,
        warn: proto::v1::WarnSignal,
    },
    /// A suspend or resume: what the task wants.
    Pace(u64),
    Welcome {
        connection: u64,
        resend_from: u64,
    },
    Manifest {
        connection: u64,
        nonce: u64,
    },
    Pong {
        connection: u64,
        nonce: u64,
    },
}

impl Keeper {
    /// Runs until nothing is left to do; gives the exit code.
    pub(crate) fn run(mut self) -> i32 {
        loop {
            let now = identity::boottime_ms();
            self.upgrade_if_ready(now);
            match self.turn(now) {
                Ok(()) => {}
                // epoll on descriptors of our own: only a lack of memory can be the cause.
                Err(e) => self.log.say(format!("waiting failed: {e}")),
            }
            if let Some(code) = self.finished(identity::boottime_ms()) {
                self.log.say(format!("ends with {code}"));
                if self.abandoned {
                    self.clear_strangers();
                }
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
        let spawner = if self.spawner.waiting() > 0 { self.spawner_look_ms } else { u64::MAX };
        let due = timer.min(self.look_ms).min(spawner).min(self.growth.due_ms());
        let until = if self.pending_work() { now } else { due };
        let sources = self.poll.wait(until)?;
        self.snapshot = None;
        for source in sources {
            self.dispatch(source);
        }
        let now = identity::boottime_ms();
        self.run_timers(now);
        if now >= self.spawner_look_ms {
            self.look_at_spawner(now);
        }
        self.look_at_growth(now);
        if now >= self.look_ms {
            self.look(now);
        }
        if self.orphans_wait && self.to_reap.is_empty() {
            self.orphans_ended();
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
        self.look_at_directory();
        self.look_for_room(now);
        if matches!(self.health, Health::Full) {
            self.health = Health::Good;
        }
        if matches!(self.health, Health::Good)
            && self.batch.is_empty()
            && let Err(e) = self.journal.seal()
        {
            self.break_journal(&e);
        }
        self.list_strangers();
        let busy = self.spawner.waiting() > 0
            || !self.batch.is_empty()
            || !self.quiet.is_empty()
            || self.deleted
            || self.board.renamed().is_some()
            || self.idle_since_ms.is_some();
        self.look_ms = now + if busy { LOOK_BUSY_MS.min(self.idle_ms) } else { LOOK_IDLE_MS };
    }

    pub(super) fn look_at_directory(&mut self) {
        self.follow_directory();
        let place = self.dir.place();
        if !self.deleted && place != Place::Here {
            self.deleted = true;
            self.listener = None;
            let what = if place == Place::Gone { "deleted" } else { "moved out of reach" };
            self.log
                .say(format!("the data directory was {what}: ends when the last tree has ended"));
            self.fence_all();
        }
        // While the agent listens it hears how each job ends, and may order a kill. Without it
        // nobody reaches this keeper again, and its jobs are over for the controller.
        if self.deleted && !self.abandoned && place == Place::Gone && !self.is_heard() {
            self.log.say("no agent can come back to the deleted data directory: ends its jobs");
            self.abandon();
        }
    }

    /// Under its new name an agent finds this keeper as before. One that was started under the old
    /// name is a new node, and these jobs are over for its controller: where nobody comes they end.
    fn follow_directory(&mut self) {
        let now = identity::boottime_ms();
        if let Some(old) = self.dir.follow() {
            let (old, new) = (old.display().to_string(), self.dir.path.clone());
            self.log.follow(&new);
            self.log.say(format!(
                "the data directory was moved away: {old} is now {}, and is served there",
                new.display()
            ));
            self.board.note_renamed(Some(now));
        }
        let Some(since_ms) = self.board.renamed().filter(|_| !self.abandoned) else { return };
        if self.is_heard() {
            self.board.note_renamed(Some(now));
        } else if now >= since_ms + self.idle_ms * RENAMED_IDLES {
            self.log.say("nobody came to the renamed data directory: ends its jobs");
            self.deleted = true;
            self.listener = None;
            self.abandon();
        }
    }

    fn is_heard(&self) -> bool {
        self.connections.values().any(|c| c.greeted)
    }

    fn abandon(&mut self) {
        self.abandoned = true;
        self.fence_all();
        self.kill_all(KillCause::Fenced);
    }

    /// Asks the file system, but not for every order.
    pub(super) fn look_for_room(&mut self, now: u64) {
        if now >= self.room_look_ms {
            self.has_room = self.journal.has_room();
            self.room_look_ms = now + LOOK_BUSY_MS;
        }
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
        self.spawner_look_ms = now + LOOK_BUSY_MS;
        let goes_on = match self.spawner.relieve(now) {
            Ok(goes_on) => goes_on,
            Err(e) => {
                self.log.say(format!("no further thread for starts: {e}"));
                false
            }
        };
        let blocked = self.spawner.blocked(now, SPAWN_SLOW_MS);
        blocked.iter().for_each(|blocked| self.kill_blocked_start(blocked.task));
        let Some(first) = blocked.first() else {
            self.slow_spawn = None;
            return;
        };
        let problem = self.say_blocked(first, blocked.len() - 1, goes_on);
        if self.slow_spawn.is_none() {
            self.log.say(&problem);
            let message = problem.clone();
            self.tell_client(keeper_event::Kind::Problem(proto::v1::KeeperProblem { message }));
        }
        self.slow_spawn = Some(problem);
    }

    /// `spawn blocked in stdout for 12 s (7/1), and 2 more`
    fn say_blocked(&self, first: &Blocked, more: usize, goes_on: bool) -> String {
        let name = self.tasks.get(&first.task).map(|task| task.key.attempt.to_string());
        let what = if first.step.is_of_a_start() { "spawn blocked in" } else { "blocked in" };
        let mut said = format!(
            "{what} {} for {} s ({})",
            first.step.name(),
            first.for_ms / 1000,
            name.unwrap_or_default()
        );
        if more > 0 {
            said += &format!(", and {more} more");
        }
        if !goes_on {
            said += &format!("; new starts wait: more than {HANGING_MAX} hang at once");
        }
        said
    }

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
        if !self.quiet.is_empty() && self.batch.is_empty() {
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
