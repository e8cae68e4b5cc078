//! How trees end and stop: by themselves, by orders, at their time limit, at the end of a lease.

use crate::journal::Record;
use crate::keeper::{After, Stage};
use crate::process::Key;
use crate::world::{Event, World};
use proto::mutants::Mutant;
use proto::v1::{self, KillCause, StartFailure};

/// A limit that nobody could enforce is looked at again after this, ms.
const AGAIN_MS: u64 = 300;

impl World {
    pub(crate) fn order_kill(&mut self, n: usize, order: &v1::KeeperKill) {
        self.note_order(n, order.order_id);
        let Some(key) = Key::from_wire(order.attempt.as_ref(), order.token.as_ref()) else {
            return;
        };
        let cause = order.cause();
        let keeper = &mut self.nodes[n].keeper;
        match keeper.tasks.get_mut(&key) {
            Some(Stage::Spawning { kill }) => {
                kill.get_or_insert((cause, order.grace_ms));
            }
            Some(Stage::Running { .. }) => {
                keeper.pending.push(Record::KillNoted);
                keeper.after.push(After::Kill(key, cause, order.grace_ms));
            }
            Some(Stage::Closing { .. }) | None => {}
        }
    }

    pub(crate) fn keeper_kills(&mut self, n: usize, key: Key, cause: KillCause, grace: u64) {
        let Some(Stage::Running { process }) = self.nodes[n].keeper.tasks.get(&key).copied() else {
            return;
        };
        let found = &self.truth.processes[process];
        if !found.runs() {
            return;
        }
        let job = &self.plan.jobs[found.job];
        let (ignores, grace) = (job.ignores_term, if grace > 0 { grace } else { job.grace_ms });
        let first = found.killed_for == KillCause::Unspecified;
        self.trace.note(self.now, || format!("node {n} kills process {process} for {cause:?}"));
        self.go_on(process);
        let found = &mut self.truth.processes[process];
        if first {
            found.killed_for = cause;
        }
        if !ignores {
            let delay = self.rng.skewed(200).min(grace);
            self.at(delay, Event::Signalled { process, signal: 15 });
        }
        self.at(grace, Event::Signalled { process, signal: 9 });
    }

    pub(crate) fn order_suspend(&mut self, n: usize, order: u64, key: Option<Key>, suspend: bool) {
        self.note_order(n, order);
        let Some(key) = key else { return };
        let Some(Stage::Running { process }) = self.nodes[n].keeper.tasks.get(&key).copied() else {
            return;
        };
        let found = &mut self.truth.processes[process];
        if !found.runs() || found.killed_for != KillCause::Unspecified {
            return;
        }
        if suspend && found.stopped_ms.is_none() {
            found.stopped_ms = Some(self.now);
            found.serial += 1;
            self.nodes[n].keeper.pending.push(Record::Stopped { key, stopped: true });
        } else if !suspend && found.stopped_ms.is_some() {
            self.go_on(process);
            self.nodes[n].keeper.pending.push(Record::Stopped { key, stopped: false });
        }
    }

    /// SIGCONT: its own end moves by the time it stood still.
    fn go_on(&mut self, process: usize) {
        let found = &mut self.truth.processes[process];
        let Some(since) = found.stopped_ms.take() else { return };
        found.serial += 1;
        found.stopped_sum_ms += self.now - since;
        let serial = found.serial;
        if let Some(ends) = &mut found.ends_ms {
            *ends += self.now - since;
            let at = *ends;
            self.queue.push(at, Event::MainEnds { process, serial });
        }
    }

    pub(crate) fn main_ends(&mut self, process: usize, status: u32) {
        let found = &mut self.truth.processes[process];
        if !found.runs() {
            return;
        }
        found.ended = Some((self.now, status));
        let (n, linger) = (found.node, self.plan.jobs[found.job].linger_ms);
        self.trace.note(self.now, || format!("process {process} ends with {status:#x}"));
        let life = self.nodes[n].keeper.life;
        self.at(0, Event::Reaped { node: n, life, process });
        self.at(linger, Event::TreeEmpty { process });
    }

    pub(crate) fn tree_empty(&mut self, process: usize) {
        let found = &mut self.truth.processes[process];
        if !found.lives() {
            return;
        }
        found.empty_ms = Some(self.now);
        let n = found.node;
        let life = self.nodes[n].keeper.life;
        self.at(1, Event::Emptied { node: n, life, process });
    }

    /// The keeper's CLOCK_BOOTTIME, ms.
    pub(crate) fn boot_clock(&self, n: usize) -> u64 {
        crate::world::local(self.nodes[n].rate, self.now)
    }

    /// A leased run begins with the fence of the last echoed h, and not behind it.
    pub(crate) fn lease_refusal(&self, n: usize, run: &v1::KeeperRun) -> Option<StartFailure> {
        let lease = run.fence_after_ms?;
        let over = run.h_ms.is_none_or(|h| self.boot_clock(n) >= h + lease);
        over.then(|| StartFailure {
            step: "lease".to_owned(),
            errno: 62,
            node_fault: true,
            ..StartFailure::default()
        })
    }

    /// The fence of every leased tree moves to h and its lease, never back.
    pub(crate) fn renew_leases(&mut self, n: usize, h_ms: u64) {
        let now_ms = self.boot_clock(n);
        let h_ms = if Mutant::LeaseFromReceipt.active() { now_ms } else { h_ms };
        for process in self.nodes[n].processes.values() {
            let Some(found) = self.truth.processes.get_mut(*process) else { continue };
            if let (Some(lease), Some(fence)) = (found.lease_ms, &mut found.fence_ms) {
                *fence = (*fence).max(h_ms + lease);
            }
        }
    }

    /// Its keeper ends it there; where that is dead, the guard does.
    pub(crate) fn fence_reached(&mut self, process: usize) {
        let found = &self.truth.processes[process];
        let (n, Some(fence)) = (found.node, found.fence_ms) else { return };
        if !found.lives() {
            return;
        }
        let left = fence.saturating_sub(self.boot_clock(n));
        if left > 0 {
            // Clocks differ by little, so that the last of many looks is never much too late.
            let wait = (left * 99 / 100).max(1);
            return self.at(wait, Event::FenceReached { process });
        }
        self.trace.note(self.now, || format!("node {n} ends process {process}: lease over"));
        self.go_on(process);
        let found = &mut self.truth.processes[process];
        if found.runs() && found.killed_for == KillCause::Unspecified {
            found.killed_for = KillCause::Lease;
        }
        self.main_ends(process, 9);
        self.at(1, Event::TreeEmpty { process });
    }

    /// Wall time without that of standing still (design 3).
    pub(crate) fn limit_reached(&mut self, process: usize) {
        let found = &self.truth.processes[process];
        let (n, key, job) = (found.node, found.key, &self.plan.jobs[found.job]);
        let Some(limit) = job.limit_ms.filter(|_| found.runs()) else { return };
        let stopped = found.stopped_sum_ms + found.stopped_ms.map_or(0, |since| self.now - since);
        let left = (found.born_ms + stopped + limit).saturating_sub(self.now);
        let keeper = &mut self.nodes[n].keeper;
        if left > 0 || !keeper.up || keeper.frozen {
            return self.at(left.max(AGAIN_MS), Event::LimitReached { process });
        }
        keeper.pending.push(Record::KillNoted);
        keeper.after.push(After::Kill(key, KillCause::TimeLimit, job.grace_ms));
        self.keeper_turn(n);
    }
}
