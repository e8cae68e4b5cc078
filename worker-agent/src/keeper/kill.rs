//! The kill sequence: SIGTERM to the tree (thawed), after the grace SIGKILL, again with back-off
//! until nothing is left. Signals go to processes that were checked to be members.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use proto::v1::journal_record::Kind;
use proto::v1::{JournalRecord, KillCause, KillNoted, WarnNoted, WarnSignal};
use rustix::process::Signal;

use super::identity::{self, ProcessId};
use super::orders::record;
use super::procfs;
use super::run::{After, Keeper};
use super::session::{Reapers, Snapshot};
use super::task::{Kill, Stage, Task};

/// The first look at a tree that was just signalled, and the longest pause between looks. Ends of
/// orphans wake the loop by themselves; this is for trees that are not below this keeper.
pub(super) const FIRST_LOOK_MS: u64 = 2;
const LOOK_PAUSE_MAX_MS: u64 = 250;

/// SIGKILL rounds after which the operator is told, and then at each power of two.
const ROUNDS_WORTH_A_LINE: u32 = 8;

impl Keeper {
    /// Orders a kill: noted durably first, so that the end is never taken for somebody else's.
    pub(super) fn request_kill(&mut self, id: u64, cause: KillCause, grace_ms: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let now = identity::boottime_ms();
        match &mut task.stage {
            Stage::Spawning { kill } => {
                if kill.replace(kill.unwrap_or((cause, grace_ms))).is_none() {
                    // Its grace begins when there is something to kill.
                    let note = task.kill_note(cause, 0);
                    self.batch.push(note);
                }
            }
            Stage::Running(main) => {
                if identity::has_ended(main.pidfd.as_fd()) {
                    return;
                }
                let note = task.kill_note(cause, now.saturating_add(grace_ms));
                self.batch.push(note);
                self.after.push(After::Kill { id, cause, grace_ms });
            }
            // The rest of the tree is being killed already.
            Stage::Closing { .. } | Stage::Measuring { .. } | Stage::Lingering => {}
        }
    }

    /// A start that hangs and is to be killed: its child can be reached through its slot only. The
    /// end comes back through the spawner, for what can die at all.
    pub(super) fn kill_blocked_start(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let (Stage::Spawning { kill: Some((cause, _)) }, Some(slot)) = (&task.stage, &task.slot)
        else {
            return;
        };
        let cause = *cause;
        if slot.kill().is_ok() && task.killed_for == KillCause::Unspecified {
            task.killed_for = cause;
            let note = task.kill_note(cause, 0);
            self.batch.push(note);
        }
    }

    pub(super) fn time_is_up(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let grace_ms = task.accepted.kill_grace_ms;
        // From now on the limit does not count any more, or it would fire until the batch is durable.
        task.accepted.time_limit_ms = None;
        self.request_kill(id, KillCause::TimeLimit, grace_ms);
    }

    /// Its limit is near: noted durably first, so that it is told once, whichever keeper lives.
    pub(super) fn note_warning(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Some(warn) = task.accepted.warn.take() else { return };
        let (attempt, token) = (Some(task.key.attempt_ref()), Some(task.key.token()));
        self.batch.push(record(Kind::Warned(WarnNoted { attempt, token })));
        self.after.push(After::Warn { id, warn });
        self.rearm(id);
    }

    /// Sends the warning. A stored script's own shell would die of a signal that is for what it runs.
    pub(super) fn warn(&mut self, id: u64, warn: &WarnSignal) {
        let Some(task) = self.tasks.get(&id) else { return };
        let Some(main) = task.main().map(|main| main.process) else { return };
        let script = task.accepted.script;
        let mut members = if warn.main_only { vec![main] } else { self.members(id) };
        if script && !warn.main_only {
            members.retain(|member| *member != main);
        }
        match Signal::from_named_raw(warn.signal.cast_signed()) {
            Some(signal) => self.signal(&members, &[signal]),
            None => self.log.say(format!("no signal {} to warn with", warn.signal)),
        }
    }

    /// Begins the sequence, or brings its SIGKILL forward.
    pub(super) fn kill(&mut self, id: u64, cause: KillCause, grace_ms: u64) {
        let now = identity::boottime_ms();
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Some(main) = task.main() else { return };
        // It ended by itself while the order was journalled: the order came too late.
        if identity::has_ended(main.pidfd.as_fd()) {
            return;
        }
        if task.killed_for == KillCause::Unspecified {
            task.killed_for = cause;
        }
        if let Some(kill) = &mut task.kill {
            kill.next_ms = kill.next_ms.min(now + grace_ms);
            return self.rearm(id);
        }
        if cause == KillCause::Lease {
            // Nothing may go on past a fence, not even to hear of it.
            task.kill = Some(Kill { rounds: 0, next_ms: now });
            self.kill_due(id, now);
            return self.rearm(id);
        }
        self.terminate(id, now + grace_ms);
    }

    /// SIGTERM to all; stopped ones are thawed to hear it.
    pub(super) fn terminate(&mut self, id: u64, hard_ms: u64) {
        let members = self.members(id);
        self.ask_to_end(id, members);
        if let Some(task) = self.tasks.get_mut(&id) {
            // After the signal: it is the first thing that a frozen tree hears.
            if let Some(slot) = &task.slot {
                slot.thaw();
            }
            task.begin_to_continue(identity::boottime_ms());
            task.kill = Some(Kill { rounds: 0, next_ms: hard_ms });
        }
        self.rearm(id);
    }

    /// Looks whether a tree whose main process is gone is empty.
    pub(super) fn look_at_closing(&mut self, id: u64, now: u64) {
        let Some(task) = self.tasks.get(&id) else { return };
        let (give_up, grace_ms) = match &task.stage {
            Stage::Closing { give_up_ms, .. } => {
                let over = task.lease.is_some_and(|lease| lease.over);
                (*give_up_ms, if over { 0 } else { task.accepted.kill_grace_ms })
            }
            Stage::Lingering => {
                if self.is_empty(id) {
                    self.drop_task(id);
                }
                return;
            }
            _ => return,
        };
        if self.is_empty(id) {
            return self.settle(id, 0);
        }
        if now >= give_up {
            let leftover = self.members(id).len().max(1);
            return self.settle(id, leftover);
        }
        match self.tasks.get(&id).and_then(|task| task.kill) {
            None => self.terminate(id, now + grace_ms),
            Some(kill) if kill.rounds == 0 => self.ask_orphans_to_end(id),
            Some(_) => {}
        }
        if let Some(Stage::Closing { look_ms, pause_ms, .. }) =
            self.tasks.get_mut(&id).map(|task| &mut task.stage)
        {
            *look_ms = now + *pause_ms;
            *pause_ms = (*pause_ms * 2).min(LOOK_PAUSE_MAX_MS);
        }
    }

    /// Another SIGKILL round, if one is due.
    pub(super) fn kill_due(&mut self, id: u64, now: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Some(kill) = task.kill.filter(|kill| now >= kill.next_ms) else { return };
        let kill = kill.next_round(now);
        task.kill = Some(kill);
        let name = task.key.attempt;
        if kill.rounds >= ROUNDS_WORTH_A_LINE && kill.rounds.is_power_of_two() {
            self.log
                .say(format!("{name}: SIGKILL sent {} times, processes still live", kill.rounds));
        }
        if let Some(slot) = &task.slot {
            match slot.kill() {
                Ok(()) => return,
                Err(e) => self.log.say(format!("{name}: cgroup.kill failed: {e}")),
            }
        }
        // What forked since the last look is in a new one.
        self.snapshot = None;
        self.signal_tree(id, &[Signal::KILL]);
    }

    /// SIGTERM to each that did not have it yet: to many programs a second one says "at once". One
    /// that has another name since is another program: a shell's handler swallows what comes
    /// between fork and exec.
    fn ask_to_end(&mut self, id: u64, mut members: Vec<ProcessId>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        members.retain(|member| task.asked.insert((*member, procfs::name(member.pid))));
        self.signal(&members, &[Signal::TERM, Signal::CONT]);
    }

    /// What was forked while the others were asked, and left behind. A child of one that lives is not
    /// asked: it may be its clean-up.
    fn ask_orphans_to_end(&mut self, id: u64) {
        let members = self.members(id);
        // A set: a tree that forks without end has many thousands, and is looked at again and again.
        let living: BTreeSet<u32> = members.iter().map(|member| member.pid).collect();
        let orphan = |member: &ProcessId| {
            procfs::stat(member.pid).is_some_and(|stat| !living.contains(&stat.parent))
        };
        let orphans = members.iter().copied().filter(orphan).collect();
        self.ask_to_end(id, orphans);
    }

    /// Sends these signals, one after the other, to every living member; gives their number.
    pub(super) fn signal_tree(&mut self, id: u64, signals: &[Signal]) -> usize {
        let members = self.members(id);
        self.signal(&members, signals);
        members.len()
    }

    fn signal(&mut self, members: &[ProcessId], signals: &[Signal]) {
        for member in members {
            // Opened once: both signals reach the same process or none.
            let Ok(Some(fd)) = member.open() else { continue };
            for signal in signals {
                if let Err(e) = identity::send(fd.as_fd(), *signal) {
                    self.log.say(format!("pid {}: {signal:?} not sent: {e}", member.pid));
                }
            }
        }
    }

    /// The living processes of a tree.
    pub(super) fn members(&mut self, id: u64) -> Vec<ProcessId> {
        let Some(task) = self.tasks.get_mut(&id) else { return Vec::new() };
        if let Some(slot) = &task.slot {
            let ids = slot.processes().into_iter().filter_map(procfs::stat);
            let ids: Vec<ProcessId> = ids
                .filter(|stat| !stat.is_zombie())
                .map(|stat| ProcessId { pid: stat.pid, start_ticks: stat.start_ticks })
                .collect();
            // A pid that was reused between list and look is not in the list any more.
            let again = slot.processes();
            return ids.into_iter().filter(|id| again.contains(&id.pid)).collect();
        }
        let guard = if task.scattered { 0 } else { self.reapers.guard };
        let snapshot = self.snapshot.get_or_insert_with(Snapshot::take);
        let reapers = Reapers { guard, ..self.reapers }.that_live();
        let (members, sessions) = snapshot.members(&task.tree(), reapers, &self.mains);
        task.sessions.extend(sessions);
        members
    }
}

impl Task {
    fn kill_note(&self, cause: KillCause, hard_boottime_ms: u64) -> JournalRecord {
        let attempt = Some(self.key.attempt_ref());
        record(Kind::Kill(KillNoted { attempt, cause: cause as i32, hard_boottime_ms }))
    }
}
