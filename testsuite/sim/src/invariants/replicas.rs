//! Same log, same state: every replica at the end, and each after its restart by image or replay.
//! That every entry has the same outcome everywhere is compared where it is applied.

use super::{Check, Happening, Property};
use crate::world::World;
use docket_core::ledger::Ledger;

#[derive(Default)]
pub(super) struct Replicas;

impl Property for Replicas {
    fn name(&self) -> &'static str {
        "replicas"
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        let Happening::Restarted { controller } = happening else { return Ok(()) };
        let restarted = &world.controllers[*controller].ledger;
        let peer = world.controllers.iter().enumerate().find(|(c, peer)| {
            c != controller && peer.up && peer.ledger.applied() == restarted.applied()
        });
        match peer {
            Some((c, peer)) => {
                compare(&format!("controllers {controller} and {c}"), restarted, &peer.ledger)
            }
            None => Ok(()),
        }
    }

    fn end(&mut self, world: &World) -> Check {
        let Some(front) = world.front() else { return Ok(()) };
        for controller in world.controllers.iter().filter(|c| c.ledger.applied() == front.applied())
        {
            compare("two controllers", front, &controller.ledger)?;
        }
        let thawed = Ledger::thaw(front.freeze().chunks())
            .map_err(|error| format!("the image cannot be read: {error}"))?;
        compare("the ledger and its image", front, &thawed)?;
        let mut replayed = Ledger::new();
        for entry in &world.log.entries {
            let applied = replayed.apply(entry.index, &entry.proposal);
            if entry.applied.as_ref() != Some(&applied) {
                return Err(format!("a replay does otherwise at entry {}", entry.index));
            }
        }
        compare("the ledger and a replay of its log", front, &replayed)
    }
}

fn compare(who: &str, one: &Ledger, other: &Ledger) -> Check {
    if one.freeze().chunks().eq(other.freeze().chunks()) {
        return Ok(());
    }
    Err(format!("{who} differ at entry {}", one.applied()))
}
