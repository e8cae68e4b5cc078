//! A joined session: what flows up and down it, and what the agent reported through it.

use super::SessionId;
use super::dispatch::Reported;
use super::facts::FactsFlow;
use super::heartbeat::Comparison;
use super::manifest::ManifestFlow;
use super::turn::Turn;
use proto::v1::{GoodbyeKind, Join, LeaderMessage, leader_message};

/// One agent's newest session.
#[derive(Debug)]
pub(super) struct Session {
    pub id: SessionId,
    pub term: u64,
    pub join: Join,
    pub facts: FactsFlow,
    pub manifest: ManifestFlow,
    /// The last full manifest that was asked of it is judged: it may get orders.
    pub judged: bool,
    pub reported: Reported,
    pub comparison: Comparison,
    pub goodbye: Option<GoodbyeKind>,
    /// A heartbeat of it was echoed: what its keeper starts from now on has a fence to begin with.
    pub echoed: bool,
}

impl Session {
    pub fn new(id: SessionId, term: u64, join: Join) -> Self {
        Session {
            id,
            term,
            join,
            facts: FactsFlow::default(),
            manifest: ManifestFlow::of_the_join(),
            judged: false,
            reported: Reported::default(),
            comparison: Comparison::default(),
            goodbye: None,
            echoed: false,
        }
    }

    /// Sends down, stamped with term and incarnation: an agent obeys no other stamp (design 3).
    pub fn send(&self, turn: &mut Turn<'_>, kind: leader_message::Kind) {
        let message =
            LeaderMessage { term: self.term, incarnation: self.join.incarnation, kind: Some(kind) };
        turn.send(self.id, message);
    }

    /// May it get orders? Whether its agent is silent is the agent's `Life`.
    pub fn takes_orders(&self) -> bool {
        self.judged && self.goodbye.is_none()
    }
}
