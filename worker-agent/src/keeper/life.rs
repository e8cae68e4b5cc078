//! What an attempt goes through after its order: spawned, ended, its tree empty, told.

use std::os::fd::AsFd;

use proto::AttemptId;
use proto::v1::journal_record::Kind;
use proto::v1::{Closed, FinishFact, KillCause, Rusage, StartFact, StartFailure, finish_fact::End};

use super::book::Key;
use super::child::Step;
use super::cutting;
use super::exits::Exit;
use super::identity::{self, ProcessId};
use super::kill::FIRST_LOOK_MS;
use super::orders::{record, refusal};
use super::outputs::{self, Measure, Measured};
use super::plan::failed;
use super::poll::Source;
use super::run::Keeper;
use super::session;
use super::spawn::{Errand, Result_, SpawnOrder, Started};
use super::sys::{self, Waited};
use super::task::{Kill, Main, Pace, Stage, Task};
use super::usage::SIGKILLED;

/// The Finish fact goes out this long after the grace, empty tree or not (design 6).
const GIVE_UP_AFTER_GRACE_MS: u64 = 5_000;

/// The guard's word of an end comes within this time, or never.
const STATUS_WAIT_MS: u64 = 5_000;

/// Outputs on a file system that hangs are not waited for longer.
const MEASURE_WAIT_MS: u64 = 10_000;

/// With more trees closing than this, an orphan's end wakes none of them: their timers do.
const CLOSING_WOKEN_MAX: usize = 16;

/// How a main process ended.
pub(super) struct MainEnd {
    pub end: End,
    pub rusage: Option<Rusage>,
    pub wall_ms: u64,
}

impl Keeper {
    /// Hands a durable acceptance to the spawner.
    pub(super) fn spawn(&mut self, id: u64, order: Box<SpawnOrder>) {
        // Refused meanwhile, since its record could not be written.
        if !self.tasks.contains_key(&id) {
            return;
        }
        if self.is_unfenced(id) {
            let why = "its fence has passed, or the guard cannot be told of it";
            return self.spawn_failed(id, refusal("lease", libc::ETIMEDOUT, why));
        }
        if self.spawner.ask(Errand::Spawn(order)).is_err() {
            let error = std::io::Error::from_raw_os_error(libc::EAGAIN);
            self.spawn_failed(id, failed(Step::Fork, &error, b""));
        }
    }

    pub(super) fn take_results(&mut self) {
        self.spawner.awake();
        while let Some(result) = self.spawner.take() {
            match result {
                Result_::Spawned(id, Ok(started)) => self.spawned(id, started),
                Result_::Spawned(id, Err(failure)) => self.spawn_failed(id, failure),
                Result_::Measured(id, measured) => self.measured(id, measured),
                Result_::Held(id, held) => self.held(id, held),
                Result_::Checked(checked) => self.program_checked(checked),
            }
        }
    }

    fn spawned(&mut self, id: u64, started: Started) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Started { fact, pidfd } = started;
        let process = ProcessId { pid: fact.pid, start_ticks: fact.pid_start_ticks };
        let wanted = match &task.stage {
            Stage::Spawning { kill } => *kill,
            _ => None,
        };
        let fenced = task.lease.is_some_and(|lease| lease.over);
        self.fences_stale |= task.lease.is_some();
        let watched = self.poll.add(&pidfd, Source::Task(id));
        let ended = identity::has_ended(pidfd.as_fd());
        task.sessions.insert(fact.pid);
        task.start = Some(fact.clone());
        task.stage = Stage::Running(Main { process, pidfd, ours: true, status_until_ms: None });
        self.mains.insert(process.pid, id);
        self.batch.push(record(Kind::Started(fact)));
        self.watch_growth(id);
        if let Err(e) = watched {
            self.log.say(format!("pid {} cannot be watched: {e}", process.pid));
        }
        if let Some((cause, grace_ms)) = wanted {
            self.request_kill(id, cause, grace_ms);
        } else {
            self.pace(id);
        }
        if fenced {
            self.request_kill(id, KillCause::Lease, 0);
        }
        // A short one has ended by now: its start and its end share the batch.
        if ended {
            self.main_ended(id);
        }
        self.rearm(id);
    }

    pub(super) fn spawn_failed(&mut self, id: u64, failure: StartFailure) {
        let Some(task) = self.tasks.get(&id) else { return };
        let run_file = task.run_file();
        if !self.deleted {
            outputs::discard(&run_file);
        }
        let finish = finish_of(task, End::StartFailure(failure), None, identity::wall_ms());
        self.close(id, finish);
    }

    /// The pidfd of a main process says that it ended.
    pub(super) fn main_ended(&mut self, id: u64) {
        let Some(main) = self.tasks.get(&id).and_then(Task::main) else { return };
        if !identity::has_ended(main.pidfd.as_fd()) {
            return;
        }
        if !main.ours {
            return self.adopted_ended(id);
        }
        // Only looked at: it is reaped once its end is durable.
        let end = match sys::peek(main.process.pid) {
            Ok(Waited::Ended(reaped)) => MainEnd {
                end: End::WaitStatus(reaped.status),
                rusage: Some(reaped.rusage),
                wall_ms: identity::wall_ms(),
            },
            Ok(Waited::Running) => return,
            // Reaped by somebody else: a kernel that keeps the status may still tell.
            Ok(Waited::NoChild) | Err(_) => self.end_from_pidfd(id),
        };
        self.tree_without_main(id, end);
    }

    /// The guard reaps it: the status is in its file, or about to be.
    fn adopted_ended(&mut self, id: u64) {
        if let Err(e) = self.exits.refresh() {
            self.log.say(format!("guard.exits cannot be read: {e}"));
        }
        let now = identity::boottime_ms();
        let Some(main) = self.tasks.get(&id).and_then(Task::main) else { return };
        let exit = self.exits.of(&self.boot_id, main.process);
        let late = main.status_until_ms.is_some_and(|until| now >= until);
        let end = match exit {
            Some(exit) => {
                let exit = exit.clone();
                return self.ended_with_guard(id, &exit);
            }
            None if self.notice.is_none() || late || self.is_scattered(id) => {
                self.end_from_pidfd(id)
            }
            None => {
                self.poll.remove(&main.pidfd);
                if let Some(main) = self.tasks.get_mut(&id).and_then(Task::main_mut) {
                    main.status_until_ms.get_or_insert(now + STATUS_WAIT_MS);
                }
                return self.rearm(id);
            }
        };
        self.tree_without_main(id, end);
    }

    /// The guard wrote this end down, and whether it was its own doing.
    pub(super) fn ended_with_guard(&mut self, id: u64, exit: &Exit) {
        let end = MainEnd {
            end: End::WaitStatus(exit.status),
            rusage: Some(exit.rusage),
            wall_ms: exit.wall_ms,
        };
        if let Some(task) = self.tasks.get_mut(&id)
            && exit.fenced
            && task.killed_for == KillCause::Unspecified
        {
            task.killed_for = KillCause::Lease;
        }
        self.tree_without_main(id, end);
    }

    fn is_scattered(&self, id: u64) -> bool {
        self.tasks.get(&id).is_some_and(|task| task.scattered)
    }

    fn end_from_pidfd(&self, id: u64) -> MainEnd {
        let main = self.tasks.get(&id).and_then(Task::main);
        let status = main.and_then(|main| sys::exit_status_of(main.pidfd.as_fd()));
        MainEnd {
            end: status.map_or(End::UnknownStatus(true), End::WaitStatus),
            rusage: None,
            wall_ms: identity::wall_ms(),
        }
    }

    /// The guard wrote something down, or died.
    pub(super) fn guard_noticed(&mut self) {
        let mut bytes = [0; 4096];
        let dead = match &self.notice {
            Some(notice) => matches!(rustix::io::read(notice, &mut bytes), Ok(0)),
            None => return,
        };
        if dead {
            self.log.say("the guard died: jobs are safe while this keeper lives");
            self.notice = None;
            self.reapers.guard = 0;
        }
        let adopted: Vec<u64> = self.adopted.iter().copied().collect();
        for id in adopted {
            self.main_ended(id);
        }
    }

    /// The main process is gone and its status known, or known to be unknown.
    pub(super) fn tree_without_main(&mut self, id: u64, end: MainEnd) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let killed = matches!(end.end, End::WaitStatus(status) if status == SIGKILLED);
        if killed && task.was_fenced_by_guard(identity::boottime_ms()) {
            task.killed_for = KillCause::Lease;
        }
        let out_of_memory = task.is_out_of_memory(&end.end);
        let mut finish = finish_of(task, end.end, end.rusage, end.wall_ms);
        finish.out_of_memory = out_of_memory;
        if let Some(main) = task.main() {
            self.mains.remove(&main.process.pid);
            self.poll.remove(&main.pidfd);
            if main.ours {
                self.to_reap.push(main.process.pid);
            }
        }
        self.forget_exits |= self.adopted.remove(&id) && self.adopted.is_empty();
        self.batch.push(record(Kind::Exited(finish.clone())));
        self.begin_closing(id, finish);
    }

    /// What is left of the tree is killed; the finish waits for it.
    pub(super) fn begin_closing(&mut self, id: u64, finish: FinishFact) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let now = identity::boottime_ms();
        task.pace = Pace::Going;
        // An order may have given it longer than its own grace: its SIGKILL comes first.
        let hard_ms = task.kill.map_or(0, |kill| kill.next_ms);
        let give_up_ms = hard_ms.max(now + task.accepted.kill_grace_ms) + GIVE_UP_AFTER_GRACE_MS;
        task.stage = Stage::Closing { finish, give_up_ms, look_ms: now, pause_ms: FIRST_LOOK_MS };
        self.look_at_closing(id, now);
        self.rearm(id);
    }

    /// Something that hung below us ended: a tree may be empty now.
    pub(super) fn orphans_ended(&mut self) {
        self.drain_signals();
        let mut any = false;
        self.orphans_wait = false;
        while let Ok(Waited::Ended(ended)) = sys::peek_own() {
            // A main process that the program before this one started: reaped like all once its end
            // is durable, and who stands behind it in the kernel's list waits for that.
            if let Some(id) = self.mains.get(&ended.pid).copied() {
                self.main_ended(id);
                self.orphans_wait = true;
                break;
            }
            if self.to_reap.contains(&ended.pid) {
                self.orphans_wait = true;
                break;
            }
            any = true;
            if !matches!(sys::reap(ended.pid), Ok(Waited::Ended(_))) {
                break;
            }
        }
        let closing: Vec<u64> =
            self.tasks.iter().filter(|(_, t)| t.is_closing()).map(|(id, _)| *id).collect();
        if any && closing.len() <= CLOSING_WOKEN_MAX {
            let now = identity::boottime_ms();
            for id in closing {
                self.look_at_closing(id, now);
                self.rearm(id);
            }
        }
    }

    fn drain_signals(&self) {
        let mut info = [0; 1024];
        // EAGAIN ends it: nothing is pending any more.
        while matches!(rustix::io::read(&self.children, &mut info), Ok(n) if n > 0) {}
    }

    /// Whether any process of the tree lives.
    pub(super) fn is_empty(&mut self, id: u64) -> bool {
        let Some(task) = self.tasks.get(&id) else { return true };
        if let Some(slot) = &task.slot {
            // Unreadable: removed by hand, so nothing can be in it.
            return !slot.populated().unwrap_or(false);
        }
        if !task.scattered
            && let Some(left) = session::anything_left(&task.tree(), self.reapers, &self.mains)
        {
            return !left;
        }
        self.members(id).is_empty()
    }

    /// The tree is empty, or its time is up: measure, then tell.
    pub(super) fn settle(&mut self, id: u64, leftover: usize) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Stage::Closing { finish, .. } = &task.stage else { return };
        let rusage = task.usage(finish.rusage);
        let finish = FinishFact { leftover: leftover as u32, rusage, ..finish.clone() };
        let Some(start) = task.start.clone().filter(|_| !self.deleted) else {
            return self.close(id, finish);
        };
        let failed = !matches!(finish.end, Some(End::WaitStatus(0)));
        let run_file = task.run_file();
        let (uid, tidy) = (task.accepted.uid, leftover == 0);
        let max = task.accepted.output_max_bytes;
        let measure = Measure { run_file, start, uid, want_tail: failed, max, tidy };
        let mut finish = finish;
        if measure.is_local() {
            let measured = outputs::measure(&measure);
            let large = measured.stdout_bytes.max(measured.stderr_bytes);
            finish = with_sizes(finish, measured);
            if !cutting::is_large(large, max) {
                return self.close(id, finish);
            }
        }
        let until_ms = identity::boottime_ms() + MEASURE_WAIT_MS;
        if self.spawner.ask(Errand::Measure(id, Box::new(measure))).is_err() {
            return self.close(id, finish);
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.stage = Stage::Measuring { finish, until_ms };
        }
    }

    fn measured(&mut self, id: u64, measured: Measured) {
        let Some(task) = self.tasks.get(&id) else { return };
        if let Stage::Measuring { finish, .. } = &task.stage {
            let finish = with_sizes(finish.clone(), measured);
            self.close(id, finish);
        }
    }

    /// Journals the finish to be told. With leftover processes the task goes on to be killed.
    pub(super) fn close(&mut self, id: u64, finish: FinishFact) {
        let leftover = finish.leftover > 0;
        self.batch.push(record(Kind::Closed(Closed { finish: Some(finish) })));
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if leftover {
            let now = identity::boottime_ms();
            task.stage = Stage::Lingering;
            task.kill.get_or_insert(Kill { rounds: 0, next_ms: now });
            self.log.say(format!("{} told with leftover processes", task.key.attempt));
            return self.rearm(id);
        }
        self.drop_task(id);
    }

    /// Lets go of a task; its slot must be empty or unused.
    pub(super) fn drop_task(&mut self, id: u64) {
        let Some(task) = self.tasks.remove(&id) else { return };
        self.fences_stale |= task.lease.is_some();
        if let Some(at) = task.armed_ms {
            self.timers.remove(&(at, id));
        }
        if let Some(main) = task.main() {
            self.mains.remove(&main.process.pid);
        }
        self.by_key.remove(&task.key);
        self.adopted.remove(&id);
        if let (Some(slots), Some(slot)) = (&mut self.slots, &task.slot) {
            slots.release(slot);
        }
        if !self.deleted && !self.has_task_of(task.key) {
            outputs::remove_dir_if_empty(&task.run_file());
        }
    }

    fn has_task_of(&self, key: Key) -> bool {
        let bound = |index, attempt, generation| Key {
            attempt: AttemptId { task: proto::TaskId { index, ..key.attempt.task }, attempt },
            generation,
        };
        let range = bound(None, 0, 0)..=bound(Some(u32::MAX), u32::MAX, u64::MAX);
        self.by_key.range(range).next().is_some()
    }

    /// A timer of a task ran out.
    pub(super) fn task_due(&mut self, id: u64, now: u64) {
        self.fence_due(id, now);
        let Some(task) = self.tasks.get(&id) else { return };
        match &task.stage {
            Stage::Spawning { .. } => {}
            Stage::Running(main) => {
                if main.status_until_ms.is_some_and(|until| now >= until) {
                    self.main_ended(id);
                } else if task.limit_ms().is_some_and(|limit| now >= limit) {
                    self.time_is_up(id);
                } else if task.warn_ms().is_some_and(|warn| now >= warn) {
                    self.note_warning(id);
                } else {
                    self.pace_due(id, now);
                }
            }
            Stage::Closing { .. } => self.look_at_closing(id, now),
            Stage::Measuring { finish, until_ms } => {
                if now >= *until_ms {
                    let finish = finish.clone();
                    self.close(id, finish);
                }
            }
            Stage::Lingering => {
                if self.is_empty(id) {
                    return self.drop_task(id);
                }
            }
        }
        self.kill_due(id, now);
    }
}

impl Task {
    /// Its finish was told; only killing goes on.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.stage, Stage::Lingering)
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing { .. } | Stage::Lingering)
    }
}

/// The finish of a task as far as it is known here.
pub(super) fn finish_of(
    task: &Task,
    end: End,
    rusage: Option<Rusage>,
    finish_wall_ms: u64,
) -> FinishFact {
    let started_unknown = matches!(end, End::UnknownStatus(_)) && task.start.is_none();
    FinishFact {
        attempt: Some(task.key.attempt_ref()),
        token: Some(task.key.token()),
        end: Some(end),
        killed_for: task.killed_for as i32,
        start: task.start.clone() as Option<StartFact>,
        finish_wall_ms,
        rusage,
        started_unknown,
        ..FinishFact::default()
    }
}

fn with_sizes(finish: FinishFact, measured: Measured) -> FinishFact {
    FinishFact {
        stdout_bytes: measured.stdout_bytes,
        stderr_bytes: measured.stderr_bytes,
        stderr_tail: measured.stderr_tail,
        stdout_cut_bytes: measured.stdout_cut,
        stderr_cut_bytes: measured.stderr_cut,
        ..finish
    }
}
