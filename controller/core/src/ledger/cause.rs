//! Why a task is in its state: who did what, at which log position (P11).

use super::state::Kind;
use super::users::User;
use proto::v1::ExitKind;
use std::sync::Arc;

/// One cause; a task keeps its last [`CAUSES_MAX`].
#[derive(Clone, PartialEq, Debug)]
pub struct Cause {
    /// Log position of the entry.
    pub position: u64,
    /// Its wall time, UTC ms.
    pub wall_ms: u64,
    /// Who caused it.
    pub who: Who,
    /// What happened.
    pub what: What,
}

/// Causes a task keeps: enough for a start, an end and five node faults; older ones are counted.
pub(super) const CAUSES_MAX: usize = 16;

/// Who caused a change.
#[derive(Clone, PartialEq, Debug)]
pub enum Who {
    /// A person or program, by identity.
    User(Arc<User>),
    /// A node, by its agent's id.
    Agent(Arc<str>),
    /// The leader of the time, by its voter id.
    Controller(u64),
}

/// What proves that a closed attempt is dead (design 3, Fences and retries).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Proof {
    /// Its node told its end.
    Finish,
    /// The manifest of the same journal lacks it.
    Manifest,
    /// Its node was booted anew.
    Reboot,
    /// An operator vouches for it.
    Operator,
    /// Its lease ran out, so its node has ended it.
    Lease,
}

impl Proof {
    /// Every proof, in order.
    pub(super) const ALL: [Proof; 5] =
        [Proof::Finish, Proof::Manifest, Proof::Reboot, Proof::Operator, Proof::Lease];
}

/// What happened to the task. The submit is not among them: the job itself tells it.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// Assigned to this agent.
    Assigned {
        /// The agent's id.
        agent: Arc<str>,
        /// Which attempt.
        attempt: u32,
    },
    /// Its assignment was lost with a log that a restore cut off; its node proved that it has it.
    Adopted {
        /// The agent's id.
        agent: Arc<str>,
        /// Which attempt.
        attempt: u32,
    },
    /// Its main process runs.
    Started {
        /// Process id on its node.
        pid: u32,
    },
    /// It reached a terminal state.
    Ended {
        /// From where.
        from: Kind,
        /// Done or exit.
        to: Kind,
        /// Why.
        kind: ExitKind,
        /// Real wait status, if known.
        status: Option<u32>,
        /// Voter id of the leader whose entry decided it.
        leader: u64,
    },
    /// The attempt failed through no fault of the job; the next one is queued.
    NodeFault {
        /// The step that failed.
        step: Arc<str>,
        /// Its errno.
        errno: i32,
        /// The attempt that is closed.
        attempt: u32,
    },
    /// Somebody asked to cancel it.
    CancelRequested,
    /// The cancel found it already ended by itself.
    CancelTooLate,
    /// Somebody asked to send this signal.
    SignalRequested {
        /// Its number.
        signal: u32,
    },
    /// Nobody knows of it any more, for this reason.
    Unknown {
        /// In words.
        why: Arc<str>,
    },
    /// Its node told that it has it.
    Claimed {
        /// The state after that.
        to: Kind,
    },
    /// Its node never got the order; it goes again.
    OrderLost,
    /// Held back by its owner.
    Held,
    /// Released by its owner.
    Released,
    /// Its priority was changed.
    Priority {
        /// The new one.
        to: i32,
    },
    /// How many of its tasks may be on nodes at once was changed.
    ArrayLimit {
        /// To; 0: any number.
        to: u32,
    },
    /// Of an array that is a race: this task was the first that is DONE, so the others are cancelled.
    RaceWon {
        /// Its number.
        winner: u32,
    },
    /// Its node let it run past its time limit: it was told to end it.
    Overdue {
        /// The limit, ms.
        limit_ms: u64,
    },
    /// It was given another name.
    Named {
        /// The new one.
        to: Arc<str>,
    },
    /// Its time limit was changed.
    TimeLimit {
        /// To, ms; `None`: no limit.
        to_ms: Option<u64>,
    },
    /// What it asks was changed.
    Cpus {
        /// To.
        to: u32,
    },
    /// What it asks was changed.
    Mem {
        /// To, in bytes.
        to_bytes: u64,
    },
    /// Somebody asked to suspend it.
    SuspendRequested,
    /// Somebody asked to resume it.
    ResumeRequested,
    /// Its node still held this attempt, which is over: it was told to kill its tree (P7).
    OrphanFound {
        /// Which attempt.
        attempt: u32,
    },
    /// That node proved what became of the tree.
    OrphanGone {
        /// Which attempt.
        attempt: u32,
        /// Processes of it that were still alive when its keeper gave up; 0: none.
        leftover: u32,
    },
    /// One of its dependencies is met.
    DependencyMet {
        /// Its number in the specification.
        index: u32,
    },
    /// The time before which it was not to start has come.
    BeginReached,
    /// Its tree is stopped, as was asked; its node told.
    Suspended,
    /// Its tree goes on, as was asked; its node told.
    Resumed,
    /// An attempt is over and another one is opened, as its owner asked (`--retries`).
    Closed {
        /// From where.
        from: Kind,
        /// Queued, or waiting for proof that the attempt is dead.
        to: Kind,
        /// The closed attempt.
        attempt: u32,
        /// The agent that had it.
        agent: Arc<str>,
        /// Why it ended.
        kind: ExitKind,
        /// Real wait status, if known.
        status: Option<u32>,
        /// Voter id of the leader whose entry decided it.
        leader: u64,
        /// More about it, in words.
        detail: Option<Arc<str>>,
    },
    /// A closed attempt is dead for certain; the next one may start.
    Proven {
        /// The closed attempt.
        attempt: u32,
        /// What proves it.
        proof: Proof,
        /// Queued, or held.
        to: Kind,
    },
    /// What an attempt that is over held of gpus and named consumables is free again.
    Freed {
        /// Which attempt.
        attempt: u32,
        /// What proves that it is dead.
        proof: Proof,
    },
    /// The real outcome of a closed attempt came; it counts for nothing.
    LateAttempt {
        /// The closed attempt.
        attempt: u32,
        /// Its real reason.
        kind: ExitKind,
        /// Its real wait status.
        status: Option<u32>,
    },
    /// The real outcome came after it was settled.
    Late {
        /// The real reason.
        kind: ExitKind,
        /// The real wait status.
        status: Option<u32>,
    },
}
