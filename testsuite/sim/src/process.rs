//! Real processes: what really ran, how it really ended. Only the keeper of their node and the
//! invariants look at them.

use proto::AttemptId;
use proto::v1::{self, KillCause};

/// An attempt of one cluster generation: what a token stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub attempt: AttemptId,
    pub generation: u64,
}

impl Key {
    pub fn from_wire(attempt: Option<&v1::AttemptRef>, token: Option<&v1::Token>) -> Option<Key> {
        let attempt = AttemptId::from_wire(attempt).ok()?;
        let token = token.filter(|token| token.attempt == attempt.attempt)?;
        Some(Key { attempt, generation: token.generation })
    }

    pub fn attempt_ref(self) -> v1::AttemptRef {
        self.attempt.to_wire()
    }

    pub fn token(self) -> v1::Token {
        v1::Token { generation: self.generation, attempt: self.attempt.attempt }
    }
}

/// One process tree: a main process, and perhaps children that outlive it for a while.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub key: Key,
    pub node: usize,
    /// Number of its job's plan.
    pub job: usize,
    pub pid: u32,
    pub born_ms: u64,
    /// When it ends by itself, unless it is stopped or killed before.
    pub ends_ms: Option<u64>,
    /// The main process's end: when, and its raw wait status.
    pub ended: Option<(u64, u32)>,
    /// Since when nothing of its tree lives.
    pub empty_ms: Option<u64>,
    /// Its main process was alive when it was signalled for this.
    pub killed_for: KillCause,
    pub stopped_ms: Option<u64>,
    /// How long it stood still before that.
    pub stopped_sum_ms: u64,
    pub lease_ms: Option<u64>,
    /// By its keeper's clock: where it ends, unless its lease is renewed.
    pub fence_ms: Option<u64>,
    /// Its node went down with it: nobody saw its end.
    pub rebooted: bool,
    /// Of its newest timer; older ones are void.
    pub serial: u64,
}

impl Process {
    /// Whether its main process lives.
    pub fn runs(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether anything of its tree lives.
    pub fn lives(&self) -> bool {
        self.empty_ms.is_none()
    }
}
