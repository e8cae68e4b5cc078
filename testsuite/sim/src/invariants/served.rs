//! No honest agent is sent away for good: none here is a copy, of another cluster, or rolled back.

use super::{Check, Happening, Property};
use crate::world::World;

#[derive(Default)]
pub(super) struct Served;

impl Property for Served {
    fn name(&self) -> &'static str {
        "served"
    }

    fn happened(&mut self, _: &World, happening: &Happening<'_>) -> Check {
        match happening {
            Happening::AgentRefused { node, reason } => {
                Err(format!("the agent of node {node} is refused for good: {reason}"))
            }
            _ => Ok(()),
        }
    }
}
