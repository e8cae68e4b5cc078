//! A digest is compared only where both sides describe the same point: a heartbeat that nobody can
//! compare makes the leader ask for a manifest only as the third in a row.

use super::{Check, Happening, Property};
use crate::world::World;

/// Design 3: heartbeats without a comparable one.
const BLIND_MAX: u32 = 3;

#[derive(Default)]
pub(super) struct Digests;

impl Property for Digests {
    fn name(&self) -> &'static str {
        "digest"
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        let Happening::Asked { node, behind, blind } = happening else { return Ok(()) };
        let Some(calm) = world.truth.calm_ms else { return Ok(()) };
        let probed = world.truth.probe.as_ref().map_or(0, |(_, _, at)| at + 10_000);
        // Before that an agent that had been given up is asked as well.
        if world.now < calm.max(probed) + world.plan.rejoin_ms() || !behind || *blind >= BLIND_MAX {
            return Ok(());
        }
        Err(format!("node {node} was asked for its manifest by the {blind}. heartbeat in a row"))
    }
}
