//! No order to run leaves the leader before its Assign is durable, and it goes where that says.

use super::{Check, Happening, Property};
use crate::world::World;
use proto::AttemptId;
use proto::v1::command;

#[derive(Default)]
pub(super) struct Orders;

impl Property for Orders {
    fn name(&self) -> &'static str {
        "orders"
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
