//! What the leader knows of one agent in this term: when it last spoke, through which session, and
//! whether its silence is being counted, its death confirmed, or its end known.

use super::SessionId;
use proto::v1::{DownCause, Join};

/// State of a node for people (design 5, ListNodes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// It has a session and was heard.
    Up,
    /// Nobody knows: no message within `heartbeat_timeout`, or none yet in this term.
    Silent,
    /// Its agent is known to have ended.
    Down,
    /// Up, and takes no new jobs on request.
    Drained,
    /// Its agent was stopped in order after a drain, with nothing left there.
    Left,
}

/// One agent in this term.
#[derive(Debug)]
pub(super) struct Life {
    /// The newest session's incarnation; before the first Join of the term, the ledger's.
    pub incarnation: u64,
    /// Random value of the agent's process; empty before its first Join of the term.
    pub process_id: Vec<u8>,
    /// The newest session, while it is open.
    pub session: Option<SessionId>,
    /// When the newest message of any kind came.
    pub heard_ms: Option<u64>,
    pub pulse: Pulse,
    /// Counted like silence, but reset only by messages that vouch for the jobs (design 3).
    pub unvouched_ms: u64,
    /// The jobs were declared unknown because nobody vouched for them.
    pub unvouched: bool,
    pub disk_full: bool,
    /// No keeper answers there, and its agent says why.
    pub keeperless: bool,
    /// Its agent says that nothing can start there before somebody acts.
    pub takes_no_runs: bool,
    /// The node's own words for its operator; empty: none.
    pub problem: String,
}

/// Is it alive?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pulse {
    /// As far as anybody knows; this much silence is counted.
    Counting { quiet_ms: u64 },
    /// Its connection was closed by its kernel; its death is proposed when this is over.
    Confirming { due_ms: u64 },
    /// Its loss is proposed or known.
    Lost { proposed_ms: u64, cause: DownCause },
}

impl Life {
    /// An agent of the ledger that has not joined in this term.
    pub fn inherited(incarnation: u64, pulse: Pulse) -> Self {
        Life {
            incarnation,
            process_id: Vec::new(),
            session: None,
            heard_ms: None,
            pulse,
            unvouched_ms: 0,
            unvouched: false,
            disk_full: false,
            keeperless: false,
            takes_no_runs: false,
            problem: String::new(),
        }
    }

    /// An agent whose Join was answered.
    pub fn joined(join: &Join, session: SessionId, now: u64) -> Self {
        Life {
            process_id: join.process_id.clone(),
            session: Some(session),
            heard_ms: Some(now),
            ..Life::inherited(join.incarnation, Pulse::Counting { quiet_ms: 0 })
        }
    }

    /// Any message is a sign of life (design 3). True if it had been given up as silent.
    pub fn heard(&mut self, now: u64) -> bool {
        let was_lost = matches!(self.pulse, Pulse::Lost { .. });
        self.heard_ms = Some(now);
        self.pulse = Pulse::Counting { quiet_ms: 0 };
        was_lost
    }

    /// Why it takes no jobs though it is heard, in words; `None`: it takes them.
    pub fn refuses(&self) -> Option<String> {
        if self.takes_no_runs || self.keeperless {
            return Some(self.problem.clone());
        }
        self.disk_full.then(|| "its disk is full".to_owned())
    }

    pub fn is_lost(&self) -> bool {
        matches!(self.pulse, Pulse::Lost { .. })
    }

    /// Age of the last word, if there was one in this term.
    pub fn last_word_ms(&self, now: u64) -> Option<u64> {
        self.heard_ms.map(|heard| now.saturating_sub(heard))
    }
}
