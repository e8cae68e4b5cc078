//! Bugs of the real controller's shell that live in the pretend one: what may leave before it is
//! durable, and what is served before the term has begun.

use crate::network::Down;
use crate::world::{Event, World};
use proto::AttemptId;
use proto::mutants::Mutant;
use proto::v1::{self, command::Kind, leader_message};

/// Long enough for joins to come before the first entry of the term, ms.
const EARLY_MS: u64 = 2_000;

impl World {
    /// Takes commands first, and lets the entry that makes all unknown follow.
    pub(crate) fn mutant_serves_early(&mut self, c: usize, term: u64) -> bool {
        if !Mutant::ClaimBeforeTerm.active() {
            return false;
        }
        let (now, controller) = (self.now, &mut self.controllers[c]);
        let begun = controller.ledger.cluster_id().is_empty()
            || controller.proposer.serving.is_some_and(|(serving, ..)| serving == term);
        if begun {
            return false;
        }
        controller.proposer = crate::controller::Proposer::default();
        controller.proposer.serving = Some((term, controller.ledger.led(), now));
        let life = controller.life;
        self.at(EARLY_MS, Event::Begin { controller: c, life, term });
        true
    }

    /// Sends the order to run as soon as its assignment is proposed.
    pub(crate) fn mutant_sends_early(&mut self, c: usize, command: &v1::Command) {
        let Some(Kind::Assign(assign)) =
            command.kind.as_ref().filter(|_| Mutant::OrderBeforeDurable.active())
        else {
            return;
        };
        let conn = self.conns.iter().rev().find(|(_, conn)| {
            conn.controller == c && conn.agent_id == assign.agent_id && conn.controller_open
        });
        let Some((conn, attempt)) =
            conn.map(|(id, _)| *id).zip(AttemptId::from_wire(assign.attempt.as_ref()).ok())
        else {
            return;
        };
        let ledger = &self.controllers[c].ledger;
        let Some(job) = ledger.job(attempt.task.job) else { return };
        let generation = ledger.generation();
        let order = v1::RunOrder {
            order_id: (ledger.applied() + 1) << 12,
            attempt: assign.attempt,
            token: Some(v1::Token { generation, attempt: attempt.attempt }),
            spec: job.spec_bytes().to_vec(),
            user: "mia".to_owned(),
            uid: 1000,
            fence_after_ms: job.leased(),
            ..v1::RunOrder::default()
        };
        let kind = Some(leader_message::Kind::Run(order));
        let (term, incarnation) = (self.log.term, assign.incarnation);
        let message = v1::LeaderMessage { term, incarnation, kind };
        self.send_down(conn, Down::Message(Box::new(message)));
    }
}
