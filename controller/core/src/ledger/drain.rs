//! Drain: a node that gets no new tasks until it is undrained. What runs there goes on.

use super::book::Ledger;
use super::memory::{Edit, Verb};
use super::outcome::{Outcome, Rejection};
use super::users::User;
use proto::v1;
use std::sync::Arc;

/// Longest reason, in bytes: it stands in tables.
pub const DRAIN_REASON_MAX: usize = 200;

/// Why and by whom a node was drained.
#[derive(Clone, PartialEq, Debug)]
pub struct Drained {
    /// Who asked.
    pub by: Arc<User>,
    /// Why, in their words; may be empty.
    pub reason: Arc<str>,
    /// When, wall ms.
    pub wall_ms: u64,
}

impl Drained {
    /// In words: `drained by root: new disk`.
    pub fn words(&self) -> String {
        match &*self.reason {
            "" => format!("drained by {}", self.by.name),
            reason => format!("drained by {}: {reason}", self.by.name),
        }
    }
}

impl Ledger {
    /// Drains a node, or takes that back. Only admins may; done twice it is done once (P8).
    pub(super) fn drain_node(&mut self, command: &v1::DrainCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        if !asker.by.admin {
            return Err(Rejection::NotAdmin);
        }
        if command.reason.len() > DRAIN_REASON_MAX {
            let why = format!("{} bytes, at most {DRAIN_REASON_MAX}", command.reason.len());
            return Err(Rejection::malformed("reason", why));
        }
        let verb = if command.undrain { Verb::Undrain } else { Verb::Drain };
        let no_agent = || Rejection::NoSuchAgent { agent_id: command.agent_id.clone() };
        let agent = self.agents.get(command.agent_id.as_str()).ok_or_else(no_agent)?;
        let held = self.index.held.get(&agent.id).map_or(0, |held| held.len() as u64);
        if agent.confirms.recall(&asker).is_some() {
            return Ok(Outcome::Drained { held });
        }
        agent.confirms.judge_age(&asker.request, self.wall_ms)?;
        let drained = (!command.undrain).then(|| Drained {
            by: Arc::clone(&asker.user),
            reason: command.reason.as_str().into(),
            wall_ms: self.wall_ms,
        });
        let edit = Edit::new(&asker, verb, 0, self.led_ms);
        if let Some(agent) = self.agents.get_mut(command.agent_id.as_str()) {
            agent.drained = drained;
            agent.confirms.remember(edit);
        }
        Ok(Outcome::Drained { held })
    }
}
