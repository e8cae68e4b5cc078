//! What is bound on a node is what the ledger's live attempts were granted, never more than it has.

use super::{Check, Property, Step, consistent};
use crate::world::World;

/// The full check looks at every job: after each so many entries, and at the end.
const CHECK_EVERY: u64 = 8;

#[derive(Default)]
pub(super) struct Resources {
    entries: u64,
}

impl Property for Resources {
    fn name(&self) -> &'static str {
        "resources"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        self.entries += 1;
        if self.entries.is_multiple_of(CHECK_EVERY) {
            consistent(step.ledger)?;
        }
        for agent in step.ledger.agents() {
            let used = step.ledger.used(agent.id());
            if used.cpus > u64::from(agent.cpus()) {
                return Err(format!(
                    "{} of {} cpus are bound on {}",
                    used.cpus,
                    agent.cpus(),
                    agent.id()
                ));
            }
        }
        Ok(())
    }

    fn end(&mut self, world: &World) -> Check {
        let Some(ledger) = world.front() else { return Ok(()) };
        consistent(ledger)?;
        for agent in ledger.agents() {
            let used = ledger.used(agent.id());
            if ledger.live() == 0 && (used.cpus, used.mem_bytes, used.gpus) != (0, 0, 0) {
                return Err(format!("nothing lives and {used:?} is bound on {}", agent.id()));
            }
        }
        Ok(())
    }
}
