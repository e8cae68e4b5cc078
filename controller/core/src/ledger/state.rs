//! The states of a task: each variant owns the data that exists only there (design 3).
//! The legal moves between them are the table in `moves.rs` and `docs/job-states.md`.

use super::exit::ExitReason;
use super::given::Given;
use proto::{OrderId, v1, v1::ExitKind};
use std::sync::Arc;

/// Longest path that Linux opens, in bytes: nothing longer can have been opened.
const PATH_MAX: usize = 4096;

/// State of a task. `PEND` is the first five, the terminal ones are the last two.
///
/// ```text
///     Blocked
///      |  |
///      v  v
///  Held <-> Queued -> Dispatched -> Running <-> Suspended
///            ^  ^       |  ^  \        |           |
///  node fault|  |       |  |   \       |           |        any end: Done or Exit,
///            +--|-------+  +-- Unknown <-----------+        from which nothing leads out
///               |                 |                         (a retry: Queued or Waiting)
///             Waiting <-----------+
/// ```
#[derive(Clone, PartialEq, Debug)]
pub enum State {
    /// `PEND queued`: waits for a node.
    Queued,
    /// `PEND held`: its owner holds it back.
    Held,
    /// `PEND waiting`: others have to end or start first, or its time has not come. What is open is kept
    /// once for all tasks of an array, in [`super::Waits`].
    Blocked {
        /// Its owner holds it as well: when nothing is open any more it is held, not queued.
        held: bool,
    },
    /// `PEND waiting`: a retry; its closed attempt is not proven dead yet.
    Waiting(Box<Fence>),
    /// `PEND dispatched`: assigned to an agent, start not yet heard.
    Dispatched(Box<Grant>),
    /// `RUN`: its agent says that it runs.
    Running(Box<Run>),
    /// `SUSP`: stopped on request, confirmed.
    Suspended(Box<Run>),
    /// `UNKWN`: nobody knows; always transient.
    Unknown(Box<Unknown>),
    /// `DONE`: ended with a success code.
    Done(Box<Ended>),
    /// `EXIT`: ended in any other way.
    Exit(Box<Ended>),
}

/// What an attempt was given by its `Assign`: where, under which token, with which resources.
#[derive(Clone, PartialEq, Debug)]
pub struct Grant {
    /// The agent that holds it.
    pub agent: Arc<str>,
    /// The agent's session that has it; a claim or a start moves it to the newest one.
    pub incarnation: u64,
    /// The keeper's journal at that time: another one means that the data directory was lost.
    pub journal: Arc<[u8]>,
    /// Order id of the run order: position of the `Assign`.
    pub order: OrderId,
    /// Cluster generation of the fencing token; the attempt is the task's own.
    pub generation: u64,
    /// Cpus granted.
    pub cpus: u32,
    /// Memory granted, in bytes.
    pub mem_bytes: u64,
    /// How many GPUs are granted.
    pub gpus: u32,
    /// Which, and named consumables; `None`: nothing of that.
    pub given: Option<Arc<Given>>,
    /// Wall time of the `Assign`, UTC ms.
    pub wall_ms: u64,
    /// The node's boot id when it was given or claimed: its tree cannot outlive that boot. Empty:
    /// not told.
    pub boot: Arc<[u8]>,
    /// Its node ends it so long after the last renewal, in ms; `None`: it has no lease. Fixed by
    /// the `Assign`: with a value of today the leader could believe an old, longer lease over.
    pub lease_ms: Option<u64>,
}

/// What a retry waits for: a closed attempt of which nobody knows whether it still lives (design 3,
/// Fences and retries).
#[derive(Clone, PartialEq, Debug)]
pub struct Fence {
    /// The closed attempt's grant. Its resources stay bound, for its tree may still use them.
    pub grant: Grant,
    /// The closed attempt's number: one below the task's.
    pub attempt: u32,
    /// When it was closed, led ms.
    pub since_led_ms: u64,
    /// When it was closed, wall ms.
    pub since_wall_ms: u64,
    /// Why it was closed.
    pub kind: ExitKind,
    /// Its owner holds the task: once the attempt is proven dead it is held, not queued.
    pub held: bool,
}

/// A started attempt.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// Where it runs.
    pub grant: Grant,
    /// What its keeper told about the start.
    pub started: Started,
    /// Since when it is known to go on without a stop, led ms: its start, claim or resume.
    pub since_led_ms: u64,
}

/// The start of an attempt, from its fact or, until that comes, from a manifest.
#[derive(Clone, PartialEq, Debug)]
pub struct Started {
    /// As told; attempt and token are left out.
    pub fact: v1::StartFact,
    /// Only a manifest named it yet: output paths are missing.
    pub from_manifest: bool,
}

/// An attempt of which nobody knows.
#[derive(Clone, PartialEq, Debug)]
pub struct Unknown {
    /// The agent that last held it.
    pub grant: Grant,
    /// What it was when the last word came.
    pub was: Was,
    /// `transient_since`, in led ms: the time to live counts from here.
    pub since_led_ms: u64,
    /// `transient_since`, in wall ms, for people.
    pub since_wall_ms: u64,
    /// Why it is unknown, in words.
    pub why: Arc<str>,
}

/// What an unknown attempt was before.
#[derive(Clone, PartialEq, Debug)]
pub enum Was {
    /// Dispatched: `started: unknown`.
    Dispatched,
    /// Running.
    Running(Started),
    /// Suspended.
    Suspended(Started),
}

/// A task's end. Absorbing: only `late` may still be filled in, once.
#[derive(Clone, PartialEq, Debug)]
pub struct Ended {
    /// Why it ended.
    pub reason: ExitReason,
    /// The raw wait status of its main process; absent where nobody saw it.
    pub status: Option<u32>,
    /// When it ended, wall ms: by its node's clock if it told, else by the deciding entry.
    pub finish_wall_ms: u64,
    /// Led time of the entry that ended it, ms: retention counts from here.
    pub ended_led_ms: u64,
    /// Log position of the entry that ended it.
    pub position: u64,
    /// The last attempt's grant, if one was made. Its resources are free again.
    pub grant: Option<Grant>,
    /// Its start, if it was heard.
    pub started: Option<Started>,
    /// Resources used, if its node told.
    pub rusage: Option<v1::Rusage>,
    /// Last bytes of stderr of a failed attempt, at most 4 KiB.
    pub stderr_tail: Box<[u8]>,
    /// Bytes written to stdout.
    pub stdout_bytes: u64,
    /// Bytes written to stderr.
    pub stderr_bytes: u64,
    /// Of `stdout_bytes`: taken out of the middle, since it grew over `output_max`.
    pub stdout_cut_bytes: u64,
    /// The same of `stderr_bytes`.
    pub stderr_cut_bytes: u64,
    /// Processes of its tree that were still alive when the end was told.
    pub leftover: u32,
    /// The real outcome that came after the task was settled without it.
    pub late: Option<Box<Late>>,
}

/// An outcome that came too late to count.
#[derive(Clone, PartialEq, Debug)]
pub struct Late {
    /// Why it really ended.
    pub reason: ExitReason,
    /// The real wait status.
    pub status: Option<u32>,
    /// When it really ended, by its node's clock, wall ms.
    pub finish_wall_ms: u64,
    /// Log position of the fact.
    pub position: u64,
}

/// The state's discriminant: what the table of moves speaks of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// [`State::Queued`].
    Queued,
    /// [`State::Held`].
    Held,
    /// [`State::Blocked`].
    Blocked,
    /// [`State::Waiting`].
    Waiting,
    /// [`State::Dispatched`].
    Dispatched,
    /// [`State::Running`].
    Running,
    /// [`State::Suspended`].
    Suspended,
    /// [`State::Unknown`].
    Unknown,
    /// [`State::Done`].
    Done,
    /// [`State::Exit`].
    Exit,
}

/// The state as people and programs name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StateName {
    /// Accepted, not started.
    Pend,
    /// Running.
    Run,
    /// Suspended.
    Susp,
    /// Unknown.
    Unkwn,
    /// Ended with success.
    Done,
    /// Ended otherwise.
    Exit,
}

impl Kind {
    /// Every kind, in order.
    pub const ALL: [Kind; 10] = [
        Kind::Queued,
        Kind::Held,
        Kind::Blocked,
        Kind::Waiting,
        Kind::Dispatched,
        Kind::Running,
        Kind::Suspended,
        Kind::Unknown,
        Kind::Done,
        Kind::Exit,
    ];

    /// The name on the wire.
    pub fn name(self) -> StateName {
        match self {
            Kind::Queued | Kind::Held | Kind::Blocked | Kind::Waiting | Kind::Dispatched => {
                StateName::Pend
            }
            Kind::Running => StateName::Run,
            Kind::Suspended => StateName::Susp,
            Kind::Unknown => StateName::Unkwn,
            Kind::Done => StateName::Done,
            Kind::Exit => StateName::Exit,
        }
    }

    /// The sub-state on the wire; empty where there is none.
    pub fn substate(self) -> &'static str {
        match self {
            Kind::Queued => "queued",
            Kind::Held => "held",
            Kind::Blocked | Kind::Waiting => "waiting",
            Kind::Dispatched => "dispatched",
            _ => "",
        }
    }

    /// Whether nothing leads out of it.
    pub fn terminal(self) -> bool {
        matches!(self, Kind::Done | Kind::Exit)
    }

    /// Whether an agent is said to hold it: dispatched, running, suspended (design 3, HELD-BY).
    pub fn held_by(self) -> bool {
        matches!(self, Kind::Dispatched | Kind::Running | Kind::Suspended)
    }
}

impl StateName {
    /// Every name, in order.
    pub const ALL: [StateName; 6] = [
        StateName::Pend,
        StateName::Run,
        StateName::Susp,
        StateName::Unkwn,
        StateName::Done,
        StateName::Exit,
    ];

    /// As written everywhere: `PEND RUN SUSP UNKWN DONE EXIT`.
    pub fn as_str(self) -> &'static str {
        match self {
            StateName::Pend => "PEND",
            StateName::Run => "RUN",
            StateName::Susp => "SUSP",
            StateName::Unkwn => "UNKWN",
            StateName::Done => "DONE",
            StateName::Exit => "EXIT",
        }
    }

    /// Whether nothing leads out of it.
    pub fn terminal(self) -> bool {
        matches!(self, StateName::Done | StateName::Exit)
    }
}

impl std::fmt::Display for StateName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl State {
    /// The discriminant.
    pub fn kind(&self) -> Kind {
        match self {
            State::Queued => Kind::Queued,
            State::Held => Kind::Held,
            State::Blocked { .. } => Kind::Blocked,
            State::Waiting(_) => Kind::Waiting,
            State::Dispatched(_) => Kind::Dispatched,
            State::Running(_) => Kind::Running,
            State::Suspended(_) => Kind::Suspended,
            State::Unknown(_) => Kind::Unknown,
            State::Done(_) => Kind::Done,
            State::Exit(_) => Kind::Exit,
        }
    }

    /// The grant of the present or, once terminal, last attempt.
    pub fn grant(&self) -> Option<&Grant> {
        match self {
            State::Queued | State::Held | State::Blocked { .. } | State::Waiting(_) => None,
            State::Dispatched(grant) => Some(grant),
            State::Running(run) | State::Suspended(run) => Some(&run.grant),
            State::Unknown(unknown) => Some(&unknown.grant),
            State::Done(ended) | State::Exit(ended) => ended.grant.as_ref(),
        }
    }

    /// The grant of a live attempt: dispatched, running, suspended or unknown.
    pub fn live_grant(&self) -> Option<&Grant> {
        if self.kind().terminal() { None } else { self.grant() }
    }

    /// The grant that binds resources: of the live attempt, or of a closed one that may still live.
    pub fn binding(&self) -> Option<&Grant> {
        self.fence().map_or_else(|| self.live_grant(), |fence| Some(&fence.grant))
    }

    /// What a retry waits for.
    pub fn fence(&self) -> Option<&Fence> {
        match self {
            State::Waiting(fence) => Some(fence),
            _ => None,
        }
    }

    /// The start, if it was heard.
    pub fn started(&self) -> Option<&Started> {
        match self {
            State::Running(run) | State::Suspended(run) => Some(&run.started),
            State::Unknown(unknown) => unknown.was.started(),
            State::Done(ended) | State::Exit(ended) => ended.started.as_ref(),
            State::Queued
            | State::Held
            | State::Blocked { .. }
            | State::Waiting(_)
            | State::Dispatched(_) => None,
        }
    }

    /// A started attempt is stopped, or goes on. An unknown one stays unknown: only a manifest tells
    /// that it lives.
    pub(super) fn stop(&mut self, stopped: bool, led_ms: u64) {
        let turned = match self {
            State::Running(run) if stopped => State::Suspended(run.clone()),
            State::Suspended(run) if !stopped => {
                State::Running(Box::new(Run { since_led_ms: led_ms, ..(**run).clone() }))
            }
            State::Unknown(unknown) => {
                let Some(started) = unknown.was.started().cloned() else { return };
                unknown.was = if stopped { Was::Suspended(started) } else { Was::Running(started) };
                return;
            }
            _ => return,
        };
        *self = turned;
    }

    /// The end, if it is terminal.
    pub fn ended(&self) -> Option<&Ended> {
        match self {
            State::Done(ended) | State::Exit(ended) => Some(ended),
            _ => None,
        }
    }
}

impl Was {
    /// The start, if it was heard before the silence.
    pub fn started(&self) -> Option<&Started> {
        match self {
            Was::Dispatched => None,
            Was::Running(started) | Was::Suspended(started) => Some(started),
        }
    }

    /// The state it was.
    pub fn kind(&self) -> Kind {
        match self {
            Was::Dispatched => Kind::Dispatched,
            Was::Running(_) => Kind::Running,
            Was::Suspended(_) => Kind::Suspended,
        }
    }
}

impl Started {
    /// From the keeper's fact. Attempt and token stand in the job and the grant already.
    pub(super) fn from_fact(fact: &v1::StartFact) -> Started {
        let mut fact = v1::StartFact { attempt: None, token: None, ..fact.clone() };
        fact.stdout_path.truncate(PATH_MAX);
        fact.stderr_path.truncate(PATH_MAX);
        Started { fact, from_manifest: false }
    }

    /// From a manifest item.
    pub(super) fn from_item(item: &v1::ManifestItem) -> Started {
        let fact = v1::StartFact {
            pid: item.pid,
            pid_start_ticks: item.pid_start_ticks,
            start_wall_ms: item.start_wall_ms,
            ..v1::StartFact::default()
        };
        Started { fact, from_manifest: true }
    }
}
