//! Suspend and resume: the tree is stopped by its slot's freezer, else by SIGSTOP to every process,
//! again until a look at all of them finds none that goes on. Told only once it is true; ordered
//! durably before any process is touched, so that a keeper's death in between changes nothing.

use std::os::fd::AsFd;

use proto::v1::journal_record::Kind;
use proto::v1::{KeeperProblem, PaceNoted, ResumedFact, SuspendedFact, keeper_event};
use rustix::process::{Pid, Signal, kill_process_group};

use super::identity::{self, ProcessId};
use super::orders::record;
use super::procfs::{self, Stat};
use super::run::{After, Keeper};
use super::task::{Pace, Round, Stage, Task};

/// Looks after which the operator is told which processes do not stop (some 2 s), and then at each
/// power of two.
const ROUNDS_WORTH_A_LINE: u32 = 16;

/// Looks of one round that must all find nothing that goes on.
const CLEAN_LOOKS: u32 = 3;

/// Looks at which a process in an uninterruptible wait gets its children continued: a parent in
/// vfork sleeps like that until its child, which may be stopped, has executed its program.
const VFORK_ROUNDS: u32 = 8;

/// A tree that stops itself again and again goes on, as far as we can make it: that many looks.
const CONTINUE_ROUNDS: u32 = 8;

impl Keeper {
    /// Orders a suspend or a resume. One that is so already, or of a tree that dies, is nothing.
    pub(super) fn request_pace(&mut self, id: u64, suspend: bool) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let lives = matches!(task.stage, Stage::Spawning { .. } | Stage::Running(_));
        if !lives || task.kill.is_some() || task.suspend_wanted == suspend {
            return;
        }
        task.suspend_wanted = suspend;
        let note = task.pace_note(suspend, None);
        self.batch.push(note);
        self.after.push(After::Pace(id));
    }

    /// Brings the tree to what is wanted. Before its start is known there is nothing to do: then
    /// its start does this.
    pub(super) fn pace(&mut self, id: u64) {
        let now = identity::boottime_ms();
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let ended = task.main().is_none_or(|main| identity::has_ended(main.pidfd.as_fd()));
        if ended || task.kill.is_some() {
            return;
        }
        match (task.suspend_wanted, task.pace) {
            (true, Pace::Going) => task.pace = Pace::Stopping(Round::new(now)),
            (true, Pace::Continuing { thawed_ms, .. }) => {
                task.pace = Pace::Stopping(Round::new(now));
                let note = task.pace_note(false, Some(thawed_ms));
                self.batch.push(note);
            }
            (false, Pace::Stopping(_) | Pace::Stopped { .. }) => task.begin_to_continue(now),
            (true, Pace::Stopping(_) | Pace::Stopped { .. })
            | (false, Pace::Going | Pace::Continuing { .. }) => return,
        }
        self.pace_due(id, now);
        self.rearm(id);
    }

    /// The next look at a tree that is being stopped or continued, if it is due.
    pub(super) fn pace_due(&mut self, id: u64, now: u64) {
        let Some(task) = self.tasks.get(&id) else { return };
        let round = match task.pace {
            Pace::Stopping(round) | Pace::Continuing { round, .. } => round,
            Pace::Going | Pace::Stopped { .. } => return,
        };
        if now < round.next_ms {
            return;
        }
        let done = match task.pace {
            Pace::Stopping(_) => self.stop_round(id, round),
            _ => self.continue_round(id, round),
        };
        match done {
            true => self.pace_reached(id, now),
            false => {
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.pace = task.pace.next_round(now);
                }
            }
        }
    }

    /// Stops what goes on; `true` if nothing does any more.
    fn stop_round(&mut self, id: u64, round: Round) -> bool {
        let name = match self.tasks.get(&id) {
            Some(task) => task.key.attempt,
            None => return true,
        };
        if let Some(frozen) = self.frozen(id) {
            if !frozen && round.is_worth_a_line(ROUNDS_WORTH_A_LINE) {
                let going = self.states(id);
                self.name_going(&format!("{name} does not freeze"), &going);
            }
            return frozen;
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.signalled = true;
        }
        self.stop_group(id);
        // Several looks in a row: during one a process may fork and end unseen, and its child may
        // get a number behind the look.
        let looks = (0..CLEAN_LOOKS).map(|_| self.stop_going(id, round));
        let going: Vec<Stat> = looks.flatten().collect();
        if !going.is_empty() && round.is_worth_a_line(ROUNDS_WORTH_A_LINE) {
            self.name_going(&format!("{name} does not stop"), &going);
        }
        going.is_empty()
    }

    /// Asks the freezer; `None`: this tree is stopped by signals.
    fn frozen(&mut self, id: u64) -> Option<bool> {
        let task = self.tasks.get_mut(&id)?;
        let slot = task.slot.as_ref().filter(|_| !task.by_signal)?;
        if let Err(e) = slot.freeze() {
            let name = task.key.attempt;
            task.by_signal = true;
            self.log.say(format!("{name}: cgroup.freeze failed, SIGSTOP instead: {e}"));
            return None;
        }
        Some(slot.is_frozen())
    }

    /// SIGSTOP to the main process's group: the kernel reaches all of it at once, a line of
    /// processes that fork and end faster than anybody can look included. The number is nobody
    /// else's while the main process is not reaped.
    fn stop_group(&mut self, id: u64) {
        let Some(main) = self.tasks.get(&id).and_then(Task::main) else { return };
        let group = Pid::from_raw(main.process.pid as i32);
        if let Some(group) = group.filter(|_| !identity::has_ended(main.pidfd.as_fd())) {
            // Not allowed to, or no group: the looks find out.
            let _ = kill_process_group(group, Signal::STOP);
        }
    }

    /// SIGSTOP to every member that goes on; gives those.
    fn stop_going(&mut self, id: u64, round: Round) -> Vec<Stat> {
        let mut going = self.states(id);
        going.retain(|stat| !stat.is_stopped());
        for stat in &going {
            self.send_to(*stat, Signal::STOP);
            if stat.is_uninterruptible() && round.rounds < VFORK_ROUNDS {
                let children = procfs::children(stat.pid).unwrap_or_default();
                for child in children.into_iter().filter_map(procfs::stat) {
                    self.send_to(child, Signal::CONT);
                }
            }
        }
        going
    }

    /// Thaws or continues; `true` if the tree goes on.
    fn continue_round(&mut self, id: u64, round: Round) -> bool {
        let Some(task) = self.tasks.get(&id) else { return true };
        if let Some(slot) = &task.slot {
            slot.thaw();
            if slot.is_frozen() || !task.signalled {
                return !slot.is_frozen();
            }
        }
        // At first all: a SIGSTOP may still be on its way to one that does not stand yet.
        for stat in self.states(id) {
            if round.rounds == 0 || stat.is_stopped() {
                self.send_to(stat, Signal::CONT);
            }
        }
        !self.states(id).iter().any(Stat::is_stopped) || round.rounds >= CONTINUE_ROUNDS
    }

    /// It is true now: for the time limit, and as a fact unless the last one said so already.
    fn pace_reached(&mut self, id: u64, now: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let (suspended, at_ms) = match task.pace {
            Pace::Stopping(_) => (true, now),
            Pace::Continuing { thawed_ms, .. } => (false, thawed_ms),
            Pace::Going | Pace::Stopped { .. } => return,
        };
        task.pace = if suspended { Pace::Stopped { since_ms: now } } else { Pace::Going };
        task.signalled &= suspended;
        let told = std::mem::replace(&mut task.told_suspended, suspended) == suspended;
        let note = task.pace_note(suspended, Some(at_ms));
        let (attempt, token) = (Some(task.key.attempt_ref()), Some(task.key.token()));
        let wall_ms = identity::wall_ms();
        self.batch.push(note);
        if !told {
            self.batch.push(record(match suspended {
                true => Kind::Suspended(SuspendedFact { attempt, token, wall_ms }),
                false => Kind::Resumed(ResumedFact { attempt, token, wall_ms }),
            }));
        }
    }

    /// The members of a tree as they are now.
    fn states(&mut self, id: u64) -> Vec<Stat> {
        self.snapshot = None;
        let members = self.members(id).into_iter();
        let states = members.filter_map(|member| {
            let stat = procfs::stat(member.pid)?;
            (stat.start_ticks == member.start_ticks && !stat.is_zombie()).then_some(stat)
        });
        states.collect()
    }

    fn send_to(&mut self, stat: Stat, signal: Signal) {
        let process = ProcessId { pid: stat.pid, start_ticks: stat.start_ticks };
        let sent = match process.open() {
            Ok(Some(fd)) => identity::send(fd.as_fd(), signal).map(drop),
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        if let Err(e) = sent {
            self.log.say(format!("pid {}: {signal:?} not sent: {e}", stat.pid));
        }
    }

    fn name_going(&mut self, what: &str, going: &[Stat]) {
        let name = |stat: &Stat| format!("{} ({})", stat.pid, char::from(stat.state));
        let names: Vec<String> = going.iter().take(8).map(name).collect();
        let message = format!("{what}: pid {} of {}", names.join(", "), going.len());
        self.log.say(&message);
        self.tell_client(keeper_event::Kind::Problem(KeeperProblem { message }));
    }
}

impl Task {
    /// The journal's own note: ordered (`None`), or true since then.
    fn pace_note(&self, suspend: bool, done_boottime_ms: Option<u64>) -> proto::v1::JournalRecord {
        let (attempt, token) = (Some(self.key.attempt_ref()), Some(self.key.token()));
        record(Kind::Pace(PaceNoted { attempt, token, suspend, done_boottime_ms }))
    }

    /// From now on its time counts again.
    pub(super) fn begin_to_continue(&mut self, now_ms: u64) {
        if let Pace::Stopped { since_ms } = self.pace {
            self.suspended_ms += now_ms.saturating_sub(since_ms);
        }
        if matches!(self.pace, Pace::Stopping(_) | Pace::Stopped { .. }) {
            self.pace = Pace::Continuing { thawed_ms: now_ms, round: Round::new(now_ms) };
        }
    }
}
