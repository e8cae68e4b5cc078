//! No order to run leaves the leader before its Assign is durable, and it goes where that says.

use super::{Check, Happening, Property, Step};
use crate::world::World;
use docket_core::ledger::{Job, Kind};
use proto::AttemptId;
use proto::v1::command;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct Orders {
    /// Held jobs that their owner let go.
    released: BTreeSet<u64>,
}

impl Property for Orders {
    fn name(&self) -> &'static str {
        "orders"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        for command in &step.entry.proposal.commands {
            if let Some(command::Kind::Hold(hold)) = command.kind.as_ref()
                && hold.release
            {
                self.released.extend(&hold.jobs);
            }
        }
        let assigned = |job: &&Job| job.kind() == Kind::Dispatched;
        let held = |job: &&Job| job.spec().hold && !self.released.contains(&job.id().0);
        match step.changed().filter(assigned).find(held) {
            Some(job) => Err(format!("job {} is held and was assigned", job.id())),
            None => Ok(()),
        }
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        let Happening::RunTaken { node, agent, key, order } = happening else { return Ok(()) };
        let command = world.log.command(*order).and_then(|command| command.kind.as_ref());
        let Some(command::Kind::Assign(assign)) = command else {
            return Err(format!(
                "node {node} got order {order}, of which the log knows {command:?}"
            ));
        };
        if AttemptId::from_wire(assign.attempt.as_ref()) != Ok(key.attempt)
            || assign.agent_id != *agent
        {
            return Err(format!(
                "node {node} got order {order} for {key:?}, the log says {assign:?}"
            ));
        }
        Ok(())
    }
}
