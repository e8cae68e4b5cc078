//! The ledger's own check holds: its indexes are what its jobs make them, its jobs are what their
//! causes allow, its registry holds only what waits.

use super::{Check, Happening, Property, Step, consistent};
use crate::world::World;

/// The check looks at every job: after each so many entries, at each restart, and at the end.
const CHECK_EVERY: u64 = 8;

#[derive(Default)]
pub(super) struct Consistent {
    entries: u64,
}

impl Property for Consistent {
    fn name(&self) -> &'static str {
        "consistent"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        self.entries += 1;
        if self.entries.is_multiple_of(CHECK_EVERY) { consistent(step.ledger) } else { Ok(()) }
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        match happening {
            Happening::Restarted { controller } => {
                consistent(&world.controllers[*controller].ledger)
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, world: &World) -> Check {
        world.front().map_or(Ok(()), consistent)
    }
}
