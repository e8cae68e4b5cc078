//! The one type configuration of openraft: standard leader ids (a leader is known by its term
//! alone), entries that are encoded proposals, answers that are apply's outcomes.

use docket_core::ledger::Outcome;
use openraft::impls::BasicNode;
use openraft::vote::leader_id_std;
use std::fmt;
use std::sync::Arc;

/// The runtime that openraft's tasks live on. An alias, so that a simulation can put a seeded one
/// here (design 12) without touching the rest of the room.
#[allow(deprecated)] // openraft names the same type in a crate of its own, which we need not add
pub type Runtime = openraft::impls::TokioRuntime;

/// The types docket replicates. Written out, since openraft's macro takes no generic responder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Batch;
    type R = Reply;
    type NodeId = u64;
    type Node = BasicNode;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Batch, u64, BasicNode>;
    type Entry = openraft::Entry<leader_id_std::CommittedLeaderId<u64>, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = Callback<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub type Vote = openraft::alias::VoteOf<TypeConfig>;
pub type Entry = openraft::alias::EntryOf<TypeConfig>;
pub type Membership = openraft::Membership<u64, BasicNode>;
pub type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
pub type WriteResult = openraft::raft::ClientWriteResult<TypeConfig>;

/// An encoded `v1::Proposal`: what one raft entry carries.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch(pub Arc<[u8]>);

/// What apply answered for one entry.
#[derive(Debug, Default)]
pub struct Reply {
    /// One outcome per command, in order; empty for entries of raft itself.
    pub outcomes: Vec<Outcome>,
    /// Log position of the entry (design 3, order ids); 0 for entries of raft itself.
    pub position: u64,
    /// The ledger's led time after the entry, in milliseconds.
    pub led_ms: u64,
}

/// How a proposal ended, for the closure that waits on it.
#[derive(Debug)]
pub enum Written {
    /// Committed and applied.
    Applied(Reply),
    /// This node does not lead; the leader's id if known. Nothing was appended.
    NotLeader(Option<u64>),
    /// It was appended, and then another leader took over: it may be committed or not.
    Unknown,
}

/// A responder that runs a closure where the entry was applied: one thread hop less than a
/// channel. A closure that is dropped unrun means that the outcome is unknown.
pub struct Callback<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Callback<T> {
    /// Wraps a closure; it runs on the pump's thread, so it must be quick and never block.
    pub fn new(run: impl FnOnce(T) + Send + 'static) -> Self {
        Callback(Box::new(run))
    }
}

impl<T: Send + 'static> openraft::raft::responder::Responder<TypeConfig, T> for Callback<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} bytes)", self.0.len())
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} outcomes at {}", self.outcomes.len(), self.position)
    }
}
