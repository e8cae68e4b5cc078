//! Leases: a leased tree lives until its fence, which only the leader's echo of a heartbeat moves
//! (design 3, "Fences and retries"). Fences are not journalled: a leased tree dies with its keeper.

use proto::v1::{KeeperRun, KillCause, StartFailure};

use super::board::Fence;
use super::fence::GUARD_AFTER_MS;
use super::identity;
use super::orders::refusal;
use super::run::Keeper;
use super::task::{Kill, Stage, Task};

/// The lease of one attempt; times are of CLOCK_BOOTTIME in ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lease {
    after_ms: u64,
    /// It moves forward only.
    pub fence_ms: u64,
    /// The fence was reached: nothing renews it any more.
    pub over: bool,
}

impl Lease {
    pub(crate) fn new(h_ms: u64, after_ms: u64) -> Lease {
        Lease { after_ms, fence_ms: h_ms.saturating_add(after_ms), over: false }
    }

    /// Of a tree whose keeper died: whatever it was, it is over.
    pub(crate) fn of_dead_keeper() -> Lease {
        Lease { after_ms: 0, fence_ms: 0, over: false }
    }

    /// As the older program published it.
    pub(crate) fn taken_over(fence_ms: u64, after_ms: u64) -> Lease {
        Lease { after_ms, fence_ms, over: false }
    }

    /// `true` if the fence moved.
    fn renew(&mut self, h_ms: u64) -> bool {
        let fence_ms = h_ms.saturating_add(self.after_ms);
        let moves = !self.over && self.fence_ms > 0 && fence_ms > self.fence_ms;
        if moves {
            self.fence_ms = fence_ms;
        }
        moves
    }
}

impl Keeper {
    /// The lease that a run begins with; a fenced one needs an echo, a fence that is not reached,
    /// and a guard that outlives this keeper.
    pub(super) fn lease_of(&self, run: &KeeperRun) -> Result<Option<Lease>, StartFailure> {
        let Some(after_ms) = run.fence_after_ms else { return Ok(None) };
        let refused = |errno, message: &str| Err(refusal("lease", errno, message));
        if self.notice.is_none() {
            return refused(libc::ESRCH, "no guard would end the tree with this keeper");
        }
        let Some(h_ms) = run.h_ms else {
            return refused(libc::EAGAIN, "no heartbeat of this session was echoed yet");
        };
        let now = identity::boottime_ms();
        let lease = Lease::new(h_ms, after_ms);
        if h_ms > now || lease.fence_ms <= now {
            return refused(libc::ETIMEDOUT, "the fence has passed");
        }
        Ok(Some(lease))
    }

    /// A heartbeat's h came back from the leader.
    pub(super) fn renew(&mut self, h_ms: u64) {
        if h_ms > identity::boottime_ms() {
            return self.log.say(format!("renewal by h {h_ms}, which is not over yet: ignored"));
        }
        let mut moved = Vec::new();
        for (id, task) in &mut self.tasks {
            if task.lease.as_mut().is_some_and(|lease| lease.renew(h_ms)) {
                moved.push(*id);
            }
        }
        self.fences_stale |= !moved.is_empty();
        for id in moved {
            self.rearm(id);
        }
    }

    /// At its fence a tree is killed at once, whatever else is under way.
    pub(super) fn fence_due(&mut self, id: u64, now: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Some(lease) = task.lease.as_mut().filter(|l| !l.over && now >= l.fence_ms) else {
            return;
        };
        lease.over = true;
        let name = task.key.attempt;
        match &task.stage {
            Stage::Spawning { .. } => {
                self.request_kill(id, KillCause::Lease, 0);
                self.kill_blocked_start(id);
            }
            Stage::Running(_) => self.request_kill(id, KillCause::Lease, 0),
            // The main process is over; what is left of the tree gets no more grace.
            Stage::Closing { .. } | Stage::Measuring { .. } | Stage::Lingering => {
                let kill = task.kill.get_or_insert(Kill { rounds: 0, next_ms: now });
                kill.next_ms = kill.next_ms.min(now);
            }
        }
        self.log.say(format!("{name} reached its fence: killed"));
    }

    /// Trees whose directory was deleted: nobody will renew them, nobody will hear of them.
    pub(super) fn fence_all(&mut self) {
        for task in self.tasks.values_mut() {
            if let Some(lease) = &mut task.lease {
                lease.fence_ms = 0;
            }
        }
        let ids: Vec<u64> = self.tasks.keys().copied().collect();
        ids.into_iter().for_each(|id| self.rearm(id));
    }

    /// Tells the guard, before anything that relies on it happens.
    pub(super) fn publish_fences(&mut self) {
        if !self.fences_stale {
            return;
        }
        let fences: Vec<Fence> = self.tasks.values().filter_map(Task::fence).collect();
        match self.board.publish(&fences) {
            Ok(()) => (self.fences_stale, self.fences_failed) = (false, false),
            Err(e) => {
                self.log.say(format!("the guard cannot be told of fences: {e}"));
                self.fences_failed = true;
            }
        }
    }

    /// Whether a start of this task would be a tree that nobody fences.
    pub(super) fn is_unfenced(&self, id: u64) -> bool {
        let lease = self.tasks.get(&id).and_then(|task| task.lease);
        lease.is_some_and(|lease| {
            self.fences_failed || lease.over || lease.fence_ms <= identity::boottime_ms()
        })
    }
}

impl Task {
    /// Why a main process got the SIGKILL that it died of, where this keeper did not send it: the
    /// guard did, past the fence, while this keeper stood still.
    pub(super) fn was_fenced_by_guard(&self, now_ms: u64) -> bool {
        self.killed_for == KillCause::Unspecified
            && self.lease.is_some_and(|lease| now_ms >= lease.fence_ms + GUARD_AFTER_MS)
    }

    fn fence(&self) -> Option<Fence> {
        Some(Fence {
            at_ms: self.lease?.fence_ms,
            mark: self.accepted.mark.clone(),
            slot: self.slot.as_ref().map(|slot| slot.path().to_owned()),
            main: self.main().map(|main| main.process),
            sessions: self.sessions.iter().copied().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_moves_forward_only_and_never_once_it_was_reached() {
        let mut lease = Lease::new(1_000, 500);
        assert_eq!(lease.fence_ms, 1_500);
        assert!(lease.renew(1_200) && !lease.renew(1_100) && !lease.renew(1_200));
        assert_eq!(lease.fence_ms, 1_700);
        lease.over = true;
        assert!(!lease.renew(9_000));
        assert_eq!(lease.fence_ms, 1_700);
        assert!(!Lease::of_dead_keeper().renew(u64::MAX));
        assert_eq!(Lease::new(5, u64::MAX).fence_ms, u64::MAX);
    }
}
