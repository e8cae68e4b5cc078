//! One step's view of the world and its list of actions.

use super::{Action, LeaderConfig, SessionId};
use crate::ledger::Ledger;
use proto::v1::{Command, LeaderMessage, Refused, command, leader_message};

/// What one event may read, and what it asks for.
pub(super) struct Turn<'a> {
    pub ledger: &'a Ledger,
    pub now: u64,
    pub config: LeaderConfig,
    /// Term of the reign that takes this step; 0 while there is none.
    pub term: u64,
    actions: Vec<Action>,
}

/// Why an agent is sent away.
#[derive(Debug)]
pub(super) struct Refusal {
    pub reason: String,
    /// Trying again cannot help before somebody changes something.
    pub fatal: bool,
}

impl<'a> Turn<'a> {
    pub fn new(ledger: &'a Ledger, now: u64, config: LeaderConfig) -> Self {
        Turn { ledger, now, config, term: 0, actions: Vec::new() }
    }

    pub fn into_actions(self) -> Vec<Action> {
        self.actions
    }

    pub fn propose(&mut self, kind: command::Kind) {
        self.propose_command(Command { kind: Some(kind) });
    }

    pub fn propose_command(&mut self, command: Command) {
        self.actions.push(Action::Propose(command));
    }

    pub fn send(&mut self, session: SessionId, message: LeaderMessage) {
        self.actions.push(Action::Send { session, message });
    }

    pub fn confirm(&mut self, round: u64) {
        self.actions.push(Action::Confirm { round });
    }

    pub fn close(&mut self, session: SessionId) {
        self.actions.push(Action::Close { session });
    }

    /// Says why and closes. It carries the term, so that a deposed leader cannot end an agent.
    pub fn send_away(&mut self, session: SessionId, refusal: Refusal) {
        let refused =
            Refused { reason: refusal.reason, fatal: refusal.fatal, leader: String::new() };
        let kind = Some(leader_message::Kind::Refused(refused));
        self.send(session, LeaderMessage { term: self.term, incarnation: 0, kind });
        self.close(session);
    }

    /// A proposal made at `since` and still not applied is taken for lost.
    pub fn lost(&self, since: u64) -> bool {
        self.now.saturating_sub(since) >= self.config.proposal_ms
    }
}
