//! P2: a silent agent's jobs are unknown after `heartbeat_timeout`: never before, and little later.

use super::{Check, Happening, Property};
use crate::controller::TICK_MS;
use crate::world::World;
use proto::v1::{DownCause, command};

/// Design 1, P2.
const LATE_MS: u64 = 2_000;

/// What a stall of the leader may add to a silence, ms (design 3).
const STALL_COUNTS_MS: u64 = 2_000;

/// Clocks differ by less than one in so many (design 3, Fences).
const DRIFT: u64 = 50;

#[derive(Default)]
pub(super) struct Silence;

impl Property for Silence {
    fn name(&self) -> &'static str {
        "silence"
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        let Happening::Proposed { controller, command } = happening else { return Ok(()) };
        let Some(reign) = world.truth.reign.as_ref().filter(|r| r.controller == *controller) else {
            return Ok(());
        };
        let Some(command::Kind::AgentDown(down)) = &command.kind else { return Ok(()) };
        if down.cause() != DownCause::Silence {
            return Ok(());
        }
        let word = world.truth.words.get(&down.agent_id).map_or(0, |word| word.newest_ms);
        let since = word.max(reign.begun_ms);
        let (stalled, times) = world.truth.stalled_since(*controller, since);
        // Each of its own stalls counts as little (design 3).
        let age = (world.now - since).saturating_sub(stalled) + times * STALL_COUNTS_MS;
        if age + age / DRIFT + 2 * TICK_MS < world.plan.patience_ms() {
            return Err(format!("{} is declared silent after {age} ms", down.agent_id));
        }
        Ok(())
    }

    fn audit(&mut self, world: &World) -> Check {
        let (Some(ledger), Some(reign)) = (world.front(), &world.truth.reign) else {
            return Ok(());
        };
        let leader = &world.controllers[reign.controller];
        if leader.frozen || !leader.up || world.truth.stalled_ms > world.now {
            return Ok(());
        }
        let slack =
            world.plan.patience_ms() / DRIFT + 4 * TICK_MS + 4 * world.plan.commit_max_ms + 200;
        for agent in ledger.agents() {
            let word = world.truth.words.get(&**agent.id()).map_or(0, |word| word.any_ms);
            let last = word.max(reign.begun_ms).max(world.truth.stalled_ms);
            let quiet = world.now.saturating_sub(last);
            if quiet <= world.plan.patience_ms() + LATE_MS + slack {
                continue;
            }
            if let Some(job) = ledger.held_by(agent.id()).find(|job| job.kind().held_by()) {
                let (id, kind) = (job.id(), job.kind());
                return Err(format!(
                    "job {id} is {kind:?}, {} is silent for {quiet} ms",
                    agent.id()
                ));
            }
        }
        Ok(())
    }
}
