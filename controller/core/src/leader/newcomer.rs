//! A stream whose Join is not answered yet: what it says meanwhile waits, in order.

use super::SessionId;
use prost::Message as _;
use proto::v1::{AgentMessage, Join};

/// Streams that may wait for the answer to their Join at once; more are told to come again. One a
/// node, so it is far above any cluster's reconnect storm.
pub(super) const NEWCOMERS_MAX: usize = 10_000;

/// Messages that wait for the answer to a Join: an agent may send its manifest and what it owes
/// right away. One that sends more than this before it is welcomed breaks the protocol.
pub(super) const BACKLOG_MAX: usize = 1_024;

/// The same in bytes.
pub(super) const BACKLOG_MAX_BYTES: usize = 16 << 20;

/// A stream before its Welcome.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub join: Join,
    pub stage: Stage,
    pub backlog: Vec<AgentMessage>,
    /// When its newest message came: the log may take long to let it in, and its agent is no
    /// younger for that.
    pub heard_ms: u64,
    backlog_bytes: usize,
}

/// What its Join waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The first entry of the term: no Join before it is applied.
    Parked,
    /// Another process holds this agent id: it was sent a Ping.
    Challenged { nonce: u64, rival: SessionId, until_ms: u64 },
    /// A place in the log: others join before it.
    Queued,
    /// Its `AgentUp` is proposed.
    Joining { since_ms: u64 },
}

impl Newcomer {
    pub fn new(join: Join, now: u64) -> Self {
        let backlog = Vec::new();
        Newcomer { join, stage: Stage::Parked, backlog, heard_ms: now, backlog_bytes: 0 }
    }

    /// Keeps a message that came now for later; false if there are too many.
    #[must_use]
    pub fn keep(&mut self, message: AgentMessage, now: u64) -> bool {
        self.heard_ms = now;
        self.backlog_bytes += message.encoded_len();
        self.backlog.push(message);
        self.backlog.len() <= BACKLOG_MAX && self.backlog_bytes <= BACKLOG_MAX_BYTES
    }
}
