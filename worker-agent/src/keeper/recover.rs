//! After a keeper died: what its journal says lives is looked for, adopted if it lives, told if it
//! ended. Nothing is spawned here: an accepted attempt never starts twice.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::v1::journal_record::Kind;
use proto::v1::{Accepted, JournalAttempt, KillCause, StartFact, finish_fact::End};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::board::{Born, mark_id};
use super::book::Key;
use super::child::Step;
use super::identity::{self, ProcessId};
use super::lease::Lease;
use super::life::{MainEnd, finish_of};
use super::orders::record;
use super::plan::{failed, fault};
use super::poll::Source;
use super::procfs::{self, Stat};
use super::run::Keeper;
use super::start::DataDir;
use super::task::{Kill, Main, Pace, Round, Stage, Task};

/// A half-started child of the dead keeper is given this long to execute its program, and looked at
/// with this pause.
const STRAGGLER_EXEC_MS: u64 = 2_000;
const STRAGGLER_PAUSE: Duration = Duration::from_millis(2);

/// What a keeper calls its main thread; its children have the spawner's name until their exec.
pub(super) const KEEPER_NAME: &CStr = c"docket-keeper";

/// A half-started child that was killed is given this long to go.
const STRAGGLER_WAIT: Duration = Duration::from_secs(5);

/// Children that the dead keeper had not let go of run its program with its arguments until their
/// exec. They get the time to execute their job, for that start is as good as any; one that hangs
/// is killed, or it would start a job that this keeper already looked for in vain. Gives the pids
/// of those.
pub(super) fn settle_stragglers(dir: &DataDir) -> io::Result<Vec<u32>> {
    let until = identity::boottime_ms() + STRAGGLER_EXEC_MS;
    while !stragglers(dir).is_empty() && identity::boottime_ms() < until {
        std::thread::sleep(STRAGGLER_PAUSE);
    }
    let mut killed = Vec::new();
    for stat in stragglers(dir) {
        if procfs::name(stat.pid) == KEEPER_NAME.to_bytes() {
            // Its lock was removed by hand. It has jobs, or it would have ended.
            return Err(io::Error::other(format!(
                "another keeper of this directory lives (pid {}): it ends with its jobs, or end it",
                stat.pid
            )));
        }
        let process = ProcessId { pid: stat.pid, start_ticks: stat.start_ticks };
        let Some(pidfd) = process.open()? else { continue };
        identity::send(pidfd.as_fd(), Signal::KILL)?;
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        let wait = Timespec { tv_sec: STRAGGLER_WAIT.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut fds, Some(&wait))? == 0 {
            let pid = stat.pid;
            return Err(io::Error::other(format!("a start of the last keeper hangs (pid {pid})")));
        }
        killed.push(stat.pid);
    }
    Ok(killed)
}

fn stragglers(dir: &DataDir) -> Vec<Stat> {
    let own = procfs::cmdline(std::process::id());
    // Without the descriptors that were handed down.
    let words: Vec<&[u8]> = own.split(|b| *b == 0).take(4).collect();
    let begins_with = |count: usize| [words[..count.min(words.len())].join(&0), vec![0]].concat();
    let (same_path, any_path) = (begins_with(4), begins_with(3));
    let mut found = procfs::all();
    found.retain(|stat| {
        let cmdline = procfs::cmdline(stat.pid);
        if stat.is_zombie() || stat.pid == std::process::id() || !cmdline.starts_with(&any_path) {
            return false;
        }
        // It may have been started when the directory had another name.
        let held = held_directories(stat.pid);
        match held.is_empty() {
            true => cmdline.starts_with(&same_path) && sees(stat.pid, dir),
            // A keeper holds its directory, and a child what its keeper holds, or nothing.
            false => held.contains(&dir.identity),
        }
    });
    found
}

/// Whether a process means the same directory by this path: one in a container may not.
fn sees(pid: u32, dir: &DataDir) -> bool {
    let path = format!("/proc/{pid}/root{}", dir.path.display());
    fs::metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == dir.identity)
}

/// Device and inode of each directory that it has open.
fn held_directories(pid: u32) -> Vec<(u64, u64)> {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let all = fds.flatten().filter_map(|fd| fs::metadata(fd.path()).ok());
    all.filter(fs::Metadata::is_dir).map(|m| (m.dev(), m.ino())).collect()
}

/// Processes by the mark in their environment, looked up once and only if somebody asks.
type Marks = BTreeMap<Vec<u8>, Vec<Stat>>;

impl Keeper {
    /// Takes up every attempt that the journal has as live.
    pub(super) fn recover(&mut self) {
        let live: Vec<(Key, JournalAttempt)> =
            self.journal.book().live().iter().map(|(key, a)| (*key, a.clone())).collect();
        let mut marks = None;
        for (key, attempt) in live {
            if let Some(accepted) = attempt.accepted.clone() {
                self.recover_one(key, accepted, attempt, &mut marks);
            }
        }
        self.clear_slots();
        self.forget_exits = true;
    }

    fn recover_one(
        &mut self,
        key: Key,
        accepted: Accepted,
        attempt: JournalAttempt,
        marks: &mut Option<Marks>,
    ) {
        let same_boot = accepted.boot_id == self.boot_id;
        let slot = match (&self.slots, &accepted.slot) {
            (Some(slots), Some(path)) if same_boot => {
                slots.open_slot(Path::new(OsStr::from_bytes(path))).ok()
            }
            _ => None,
        };
        let mut task = Task::new(accepted, key, slot);
        task.start = attempt.started.clone();
        if same_boot && task.accepted.fence_after_ms.is_some() {
            task.lease = Some(self.lease_left(&task.accepted));
        }
        task.killed_for = KillCause::try_from(attempt.killed_for).unwrap_or_default();
        let wanted = KillCause::try_from(attempt.kill_wanted).unwrap_or_default();
        if wanted != KillCause::Unspecified {
            task.stage = Stage::Spawning { kill: Some((wanted, task.accepted.kill_grace_ms)) };
        }
        task.sessions.extend(task.start.as_ref().map(|start| start.pid));
        task.hard_ms = attempt.kill_hard_ms;
        task.restore_pace(&attempt, identity::boottime_ms());
        let id = self.next_id;
        self.next_id += 1;
        self.by_key.insert(key, id);
        self.tasks.insert(id, task);
        match (attempt.exited, attempt.started) {
            (Some(finish), _) if same_boot => self.begin_closing(id, finish),
            (Some(finish), _) => self.close(id, finish),
            (None, Some(start)) => self.recover_started(id, &start, same_boot),
            (None, None) if same_boot => self.recover_accepted(id, marks),
            (None, None) => self.rebooted(id),
        }
    }

    fn recover_started(&mut self, id: u64, start: &StartFact, same_boot: bool) {
        let process = ProcessId { pid: start.pid, start_ticks: start.pid_start_ticks };
        if same_boot && self.adopt(id, process) {
            return;
        }
        // Only now: the guard writes an end down before it lets the process go.
        if let Err(e) = self.exits.refresh() {
            self.log.say(format!("guard.exits cannot be read: {e}"));
        }
        let Some(task) = self.tasks.get(&id) else { return };
        let exit = self.exits.of(&task.accepted.boot_id, process).cloned();
        match exit {
            Some(exit) => self.ended_with_guard(id, &exit),
            None if same_boot => self.lost_track(id),
            None => self.rebooted(id),
        }
    }

    /// Nobody can say how it ended: not a child of ours, not in the guard's file.
    fn lost_track(&mut self, id: u64) {
        let end = End::UnknownStatus(true);
        self.tree_without_main(id, MainEnd { end, rusage: None, wall_ms: identity::wall_ms() });
    }

    fn rebooted(&mut self, id: u64) {
        let Some(task) = self.tasks.get(&id) else { return };
        let finish = finish_of(task, End::NodeRebooted(true), None, identity::wall_ms());
        self.close(id, finish);
    }

    /// Watches a main process that somebody else reaps; `false` if it is gone.
    fn adopt(&mut self, id: u64, process: ProcessId) -> bool {
        let Ok(Some(pidfd)) = process.open() else { return false };
        if let Err(e) = self.poll.add(&pidfd, Source::Task(id)) {
            self.log.say(format!("pid {} cannot be watched: {e}", process.pid));
        }
        let parent = procfs::stat(process.pid).map(|stat| stat.parent);
        let ours = self.took_over && parent == Some(self.reapers.keeper);
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        task.scattered = !ours && (parent != Some(self.reapers.guard) || self.reapers.guard == 0);
        self.log.say(format!("{} lives on as pid {}", task.key.attempt, process.pid));
        let hard_ms = match task.hard_ms {
            0 => identity::boottime_ms() + task.accepted.kill_grace_ms,
            noted => noted,
        };
        let killed = task.killed_for != KillCause::Unspecified;
        let wanted = match &task.stage {
            Stage::Spawning { kill } => *kill,
            _ => None,
        };
        task.stage = Stage::Running(Main { process, pidfd, ours, status_until_ms: None });
        self.mains.insert(process.pid, id);
        if !ours {
            self.adopted.insert(id);
        }
        if killed && self.took_over {
            // It was signalled: the older program carries out what it noted before it goes.
            task.kill = Some(Kill { rounds: 0, next_ms: hard_ms });
        } else if killed {
            // Once more: nobody knows whether it got its SIGTERM. Its grace goes on.
            self.terminate(id, hard_ms);
        } else if let Some((cause, grace_ms)) = wanted {
            self.request_kill(id, cause, grace_ms);
        } else {
            self.pace(id);
        }
        self.watch_growth(id);
        self.rearm(id);
        true
    }

    /// A leased tree goes on under the program that took over, with the fence on the board; it dies
    /// with a dead keeper.
    fn lease_left(&self, accepted: &Accepted) -> Lease {
        let fences = if self.took_over { self.board.fences() } else { Vec::new() };
        match fences.iter().find(|fence| fence.mark == accepted.mark) {
            Some(fence) => Lease::taken_over(fence.at_ms, accepted.fence_after_ms.unwrap_or(0)),
            None => Lease::of_dead_keeper(),
        }
    }

    /// Accepted, and the last keeper died before it could say more: the board knows whether it
    /// started, if this guard is the same that it had.
    fn recover_accepted(&mut self, id: u64, marks: &mut Option<Marks>) {
        let Some(task) = self.tasks.get(&id) else { return };
        let (mark, accepted_ms) = (&task.accepted.mark, task.accepted.accepted_boottime_ms);
        match self.board.born(mark, accepted_ms) {
            Born::Unknown => self.recover_by_mark(id, marks),
            Born::Never => {
                let error = io::Error::from_raw_os_error(libc::EOWNERDEAD);
                self.spawn_failed(id, fault(Step::Fork, &error, b""));
            }
            Born::As { failed: Some((step, errno)), .. } => {
                self.spawn_failed(id, failed(step, &io::Error::from_raw_os_error(errno), b""));
            }
            Born::As { pid, failed: None } if self.stragglers.contains(&pid) => self.lost_track(id),
            Born::As { pid, failed: None } => self.recover_born(id, pid),
        }
    }

    /// Its main process had this pid. The guard writes an end down before it lets the pid go: so
    /// what has this pid now is it, unless the guard wrote meanwhile.
    fn recover_born(&mut self, id: u64, pid: u32) {
        let stat = procfs::stat(pid);
        if let Err(e) = self.exits.refresh() {
            self.log.say(format!("guard.exits cannot be read: {e}"));
        }
        let Some(task) = self.tasks.get(&id) else { return };
        let attempt = mark_id(&task.accepted.mark);
        let exit = self.exits.of_attempt(&self.boot_id, attempt).cloned();
        let process = match (&exit, stat) {
            (Some(exit), _) => exit.process,
            (None, Some(stat)) => ProcessId { pid, start_ticks: stat.start_ticks },
            (None, None) => return self.lost_track(id),
        };
        self.started_before(id, process);
        match exit {
            Some(exit) => self.ended_with_guard(id, &exit),
            None if self.adopt(id, process) => {}
            None => self.lost_track(id),
        }
    }

    /// The start that the last keeper did not get to journal.
    fn started_before(&mut self, id: u64, process: ProcessId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let start = start_of(task, process);
        task.sessions = BTreeSet::from([process.pid]);
        task.start = Some(start.clone());
        self.batch.push(record(Kind::Started(start)));
    }

    /// Perhaps it started: only its mark or its slot can tell.
    fn recover_by_mark(&mut self, id: u64, marks: &mut Option<Marks>) {
        let Some(task) = self.tasks.get(&id) else { return };
        let processes: Vec<Stat> = match &task.slot {
            Some(slot) => slot.processes().into_iter().filter_map(procfs::stat).collect(),
            None => {
                let marks = marks.get_or_insert_with(marked_processes);
                marks.get(&task.accepted.mark).cloned().unwrap_or_default()
            }
        };
        // The main process leads its own session; what it started came later.
        let main = processes
            .iter()
            .filter(|stat| stat.session == stat.pid)
            .min_by_key(|stat| (stat.start_ticks, stat.pid));
        let Some(main) = main else { return self.lost_track(id) };
        let process = ProcessId { pid: main.pid, start_ticks: main.start_ticks };
        self.started_before(id, process);
        if !self.adopt(id, process) {
            self.lost_track(id);
        }
    }

    /// Slots of nobody: leftovers that an earlier keeper had told of, and empty ones.
    fn clear_slots(&mut self) {
        let used: BTreeSet<PathBuf> =
            self.tasks.values().filter_map(|t| Some(t.slot.as_ref()?.path().to_owned())).collect();
        let Some(slots) = &mut self.slots else { return };
        for path in slots.on_disk().into_iter().filter(|path| !used.contains(path)) {
            let Ok(slot) = slots.open_slot(&path) else { continue };
            slot.thaw();
            if slot.populated().unwrap_or(false) {
                let name = path.display();
                self.log.say(format!("{name} holds processes of an attempt that is over: killed"));
                if let Err(e) = slot.kill() {
                    self.log.say(format!("{name}: cgroup.kill failed: {e}"));
                }
            }
            slots.release(&slot);
        }
    }
}

impl Task {
    /// As the journal has it. What is to be suspended is stopped once more, which changes nothing
    /// where it is stopped; what was on its way to go on, goes on.
    pub(super) fn restore_pace(&mut self, attempt: &JournalAttempt, now_ms: u64) {
        self.told_suspended = attempt.suspended;
        self.suspend_wanted = attempt.suspend_wanted.unwrap_or(attempt.suspended);
        self.suspended_ms = attempt.suspended_ms;
        let since_ms = attempt.suspended_since_ms;
        let stopped = since_ms > 0;
        // Nobody knows which way it was stopped, or whether that had been done: by a freezer that did
        // not work then, or by none.
        self.signalled = attempt.suspended || attempt.suspend_wanted.is_some();
        if stopped && self.suspend_wanted {
            self.suspended_ms += now_ms.saturating_sub(since_ms);
        } else if stopped {
            self.pace = Pace::Stopped { since_ms };
        } else if self.signalled && !self.suspend_wanted {
            // It was about to stand still when it was to go on: perhaps half of it does.
            self.pace = Pace::Stopping(Round::new(now_ms));
        }
    }
}

fn marked_processes() -> Marks {
    let mut marks = Marks::new();
    for stat in procfs::all().into_iter().filter(|stat| !stat.is_zombie()) {
        if let Some(mark) = procfs::mark(stat.pid) {
            marks.entry(mark).or_default().push(stat);
        }
    }
    marks
}

/// The start fact that the last keeper did not get to write.
fn start_of(task: &Task, main: ProcessId) -> StartFact {
    let began_ms = identity::ticks_to_ms(main.start_ticks);
    let ago_ms = identity::boottime_ms().saturating_sub(began_ms);
    let output = |fd: u32| {
        let meta = fs::metadata(format!("/proc/{}/fd/{fd}", main.pid));
        meta.map_or((0, 0), |m| (m.dev(), m.ino()))
    };
    let ((stdout_dev, stdout_ino), (stderr_dev, stderr_ino)) = (output(1), output(2));
    StartFact {
        attempt: Some(task.key.attempt_ref()),
        token: Some(task.key.token()),
        pid: main.pid,
        pid_start_ticks: main.start_ticks,
        start_wall_ms: identity::wall_ms().saturating_sub(ago_ms),
        stdout_path: task.accepted.stdout_path.clone(),
        stderr_path: task.accepted.stderr_path.clone(),
        stdout_dev,
        stdout_ino,
        stderr_dev,
        stderr_ino,
    }
}
