//! An attempt as a process tree: the stages it goes through and when it next needs a look.
//!
//! ```text
//! Spawning ──failed──────────────────────────► closed
//!    └─► Running ─reaped─► Closing ─empty─► (Measuring) ─► closed
//!                              └─time is up─► (Measuring) ─► closed, Lingering until empty
//! ```

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::v1::{Accepted, FinishFact, KillCause, Phase, StartFact};

use super::book::Key;
use super::cgroup::Slot;
use super::identity::{ProcessId, ticks_to_ms};
use super::lease::Lease;
use super::session::Tree;

/// One attempt that the keeper took.
pub(crate) struct Task {
    pub key: Key,
    pub accepted: Accepted,
    pub start: Option<StartFact>,
    pub stage: Stage,
    /// A live main process was signalled for this cause.
    pub killed_for: KillCause,
    /// It dies at its fence.
    pub lease: Option<Lease>,
    /// A kill sequence that is under way.
    pub kill: Option<Kill>,
    /// When an earlier keeper wanted to send the SIGKILL of its sequence; 0: not known.
    pub hard_ms: u64,
    /// Members that this keeper sent SIGTERM, and what they were called then.
    pub asked: BTreeSet<(ProcessId, Vec<u8>)>,
    pub slot: Option<Arc<Slot>>,
    /// Sessions that members of the tree were seen in; for trees without slot.
    pub sessions: BTreeSet<u32>,
    /// Its processes may hang below init: the keeper and guard that started it both died.
    pub scattered: bool,
    /// What was ordered last.
    pub suspend_wanted: bool,
    /// What the last fact told.
    pub told_suspended: bool,
    pub pace: Pace,
    /// Its slot does not freeze: it is stopped by signals.
    pub by_signal: bool,
    /// Processes of it may stand still by a signal, of this keeper or of one before it: they are
    /// continued when it is resumed, also where its slot is thawed.
    pub signalled: bool,
    /// Sum of the suspensions that are over.
    pub suspended_ms: u64,
    /// The timer that is set for it.
    pub armed_ms: Option<u64>,
}

/// Where an attempt stands.
pub(crate) enum Stage {
    /// With the spawner, or on its way there. A kill order waits until the process exists.
    Spawning {
        kill: Option<(KillCause, u64)>,
    },
    Running(Main),
    /// The main process is reaped, its end journalled; the rest of the tree is being killed.
    Closing {
        finish: FinishFact,
        give_up_ms: u64,
        look_ms: u64,
        pause_ms: u64,
    },
    /// Its outputs are being measured elsewhere.
    Measuring {
        finish: FinishFact,
        until_ms: u64,
    },
    /// Told with leftover processes; killing goes on.
    Lingering,
}

/// Whether the tree goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    Going,
    Stopping(Round),
    Stopped { since_ms: u64 },
    Continuing { thawed_ms: u64, round: Round },
}

/// Looks at a tree until it has stopped or goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    /// Looks so far.
    pub rounds: u32,
    pub next_ms: u64,
}

/// Pauses between looks, doubling: a stop takes microseconds, but for what sleeps in the kernel.
const LOOK_PAUSE_FIRST_MS: u64 = 1;
const LOOK_PAUSE_LAST_MS: u64 = 250;

impl Round {
    /// The first look is at once.
    pub(crate) fn new(now_ms: u64) -> Round {
        Round { rounds: 0, next_ms: now_ms }
    }

    fn next(self, now_ms: u64) -> Round {
        let pause = LOOK_PAUSE_FIRST_MS << self.rounds.min(10);
        Round { rounds: self.rounds + 1, next_ms: now_ms + pause.min(LOOK_PAUSE_LAST_MS) }
    }

    /// Told from this look on, ever more rarely.
    pub(crate) fn is_worth_a_line(self, from: u32) -> bool {
        self.rounds >= from && self.rounds.is_power_of_two()
    }
}

impl Pace {
    /// After another look that did not find it done.
    pub(crate) fn next_round(self, now_ms: u64) -> Pace {
        match self {
            Pace::Stopping(round) => Pace::Stopping(round.next(now_ms)),
            Pace::Continuing { thawed_ms, round } => {
                Pace::Continuing { thawed_ms, round: round.next(now_ms) }
            }
            Pace::Going | Pace::Stopped { .. } => self,
        }
    }

    fn next_ms(self) -> Option<u64> {
        match self {
            Pace::Stopping(round) | Pace::Continuing { round, .. } => Some(round.next_ms),
            Pace::Going | Pace::Stopped { .. } => None,
        }
    }
}

/// The main process.
pub(crate) struct Main {
    pub process: ProcessId,
    pub pidfd: OwnedFd,
    /// Our child; else the guard's (or init's), which reaps it.
    pub ours: bool,
    /// It ended and its status did not come yet; until then it may.
    pub status_until_ms: Option<u64>,
}

/// A kill sequence: SIGTERM was sent, SIGKILL follows and is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kill {
    /// SIGKILL rounds so far.
    pub rounds: u32,
    pub next_ms: u64,
}

/// Pauses between SIGKILL rounds: doubling, so that what cannot die costs nothing.
const ROUND_PAUSE_FIRST_MS: u64 = 50;
const ROUND_PAUSE_LAST_MS: u64 = 5_000;

impl Kill {
    /// After another SIGKILL round.
    pub(crate) fn next_round(self, now_ms: u64) -> Kill {
        let pause = ROUND_PAUSE_FIRST_MS << self.rounds.min(10);
        Kill { rounds: self.rounds + 1, next_ms: now_ms + pause.min(ROUND_PAUSE_LAST_MS) }
    }
}

impl Task {
    pub(crate) fn new(accepted: Accepted, key: Key, slot: Option<Arc<Slot>>) -> Task {
        Task {
            key,
            accepted,
            start: None,
            stage: Stage::Spawning { kill: None },
            killed_for: KillCause::Unspecified,
            lease: None,
            kill: None,
            hard_ms: 0,
            asked: BTreeSet::new(),
            slot,
            sessions: BTreeSet::new(),
            scattered: false,
            suspend_wanted: false,
            told_suspended: false,
            pace: Pace::Going,
            by_signal: false,
            signalled: false,
            suspended_ms: 0,
            armed_ms: None,
        }
    }

    pub(crate) fn main(&self) -> Option<&Main> {
        match &self.stage {
            Stage::Running(main) => Some(main),
            _ => None,
        }
    }

    pub(crate) fn main_mut(&mut self) -> Option<&mut Main> {
        match &mut self.stage {
            Stage::Running(main) => Some(main),
            _ => None,
        }
    }

    pub(crate) fn run_file(&self) -> PathBuf {
        Path::new(OsStr::from_bytes(&self.accepted.run_file)).to_owned()
    }

    /// What tells its processes apart where it has no slot.
    pub(crate) fn tree(&self) -> Tree<'_> {
        Tree {
            main: self.main().map(|main| main.process),
            mark: &self.accepted.mark,
            sessions: &self.sessions,
        }
    }

    /// As the manifest says it; `Ended` for one that was told already.
    pub(crate) fn phase(&self) -> Phase {
        match &self.stage {
            Stage::Spawning { .. } => Phase::Accepted,
            Stage::Lingering => Phase::Ended,
            _ if self.told_suspended => Phase::Suspended,
            _ => Phase::Running,
        }
    }

    /// When its wall time is up: counted from the process's start, suspensions left out.
    pub(crate) fn limit_ms(&self) -> Option<u64> {
        if self.kill.is_some() || matches!(self.pace, Pace::Stopped { .. }) {
            return None;
        }
        let main = self.main()?;
        let started = ticks_to_ms(main.process.start_ticks);
        Some(started.saturating_add(self.accepted.time_limit_ms?).saturating_add(self.suspended_ms))
    }

    /// When it is to be warned of its limit.
    pub(crate) fn warn_ms(&self) -> Option<u64> {
        let warn = self.accepted.warn.as_ref()?;
        Some(self.limit_ms()?.saturating_sub(warn.before_ms))
    }

    /// When it needs a look, whatever else happens.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        let own = match &self.stage {
            Stage::Spawning { .. } | Stage::Lingering => None,
            Stage::Running(main) => {
                let limit = earlier(self.limit_ms(), self.warn_ms());
                let limit = earlier(main.status_until_ms, limit);
                earlier(limit, self.pace.next_ms())
            }
            Stage::Closing { give_up_ms, look_ms, .. } => Some(*give_up_ms.min(look_ms)),
            Stage::Measuring { until_ms, .. } => Some(*until_ms),
        };
        let fence = self.lease.filter(|lease| !lease.over).map(|lease| lease.fence_ms);
        earlier(earlier(own, fence), self.kill.map(|kill| kill.next_ms))
    }
}

fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::keeper::book::tests::key;
    use crate::keeper::{identity, procfs};
    use proto::v1::JournalAttempt;

    fn running(limit: Option<u64>) -> Task {
        let mut task =
            Task::new(Accepted { time_limit_ms: limit, ..Default::default() }, key(1), None);
        let pid = std::process::id();
        let process = ProcessId { pid, start_ticks: procfs::stat(pid).unwrap().start_ticks };
        let pidfd = process.open().unwrap().unwrap();
        task.stage = Stage::Running(Main { process, pidfd, ours: true, status_until_ms: None });
        task
    }

    #[test]
    fn suspension_does_not_count_against_the_limit() {
        let mut task = running(Some(60_000));
        let limit = task.limit_ms().unwrap();
        assert!(limit > identity::boottime_ms());
        task.pace = Pace::Stopped { since_ms: 1_000 };
        assert_eq!(task.limit_ms(), None);
        task.begin_to_continue(1_500);
        assert_eq!(task.limit_ms(), Some(limit + 500), "from the thaw on it counts");
        task.pace = Pace::Going;
        assert_eq!(task.deadline_ms(), Some(limit + 500));
    }

    #[test]
    fn what_was_about_to_stand_still_when_it_was_to_go_on_is_continued_by_the_next_keeper() {
        let mut task = running(None);
        let resumed = JournalAttempt { suspend_wanted: Some(false), ..Default::default() };
        task.restore_pace(&resumed, 1_000);
        task.begin_to_continue(1_000);
        assert!(task.signalled && matches!(task.pace, Pace::Continuing { thawed_ms: 1_000, .. }));
        let mut untouched = running(None);
        untouched.restore_pace(&JournalAttempt::default(), 1_000);
        assert!(!untouched.signalled && matches!(untouched.pace, Pace::Going));
    }

    #[test]
    fn a_kill_under_way_replaces_the_limit_and_backs_off() {
        let mut task = running(Some(1));
        task.kill = Some(Kill { rounds: 0, next_ms: 7 });
        assert_eq!((task.limit_ms(), task.deadline_ms()), (None, Some(7)));
        let mut kill = Kill { rounds: 0, next_ms: 0 };
        let mut pauses = Vec::new();
        for _ in 0..9 {
            kill = kill.next_round(0);
            pauses.push(kill.next_ms);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
