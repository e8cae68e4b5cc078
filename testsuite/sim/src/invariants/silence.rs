//! P2: a silent agent's jobs are unknown after `heartbeat_timeout`: never before, and little later.

use super::{Check, Property, Step};
use crate::controller::TICK_MS;
use crate::world::World;
use docket_core::ledger::Outcome;
use proto::v1::{DownCause, command};

/// Design 1, P2.
const LATE_MS: u64 = 2_000;

#[derive(Default)]
pub(super) struct Silence;

impl Property for Silence {
    fn name(&self) -> &'static str {
        "silence"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        let world = step.world;
        let Some(reign) = &world.truth.reign else { return Ok(()) };
        for (command, outcome) in step.entry.proposal.commands.iter().zip(&step.applied.outcomes) {
            let Some(command::Kind::AgentDown(down)) = &command.kind else { continue };
            let took_effect = matches!(outcome, Outcome::AgentDown { unknown: 1.., .. });
            if down.cause() != DownCause::Silence || !took_effect || step.entry.term != reign.term {
                continue;
            }
            let word = world.truth.words.get(&down.agent_id).map_or(0, |word| word.newest_ms);
            let age = world.now - word.max(reign.begun_ms);
            if age + 2 * TICK_MS < world.plan.patience_ms() && !recovered(world, word) {
                return Err(format!("{} is declared silent after {age} ms", down.agent_id));
            }
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
        let slack = 4 * TICK_MS + 4 * world.plan.commit_max_ms + 200;
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

/// The word came after the proposal was made and before it was applied.
fn recovered(world: &World, word_ms: u64) -> bool {
    let under_way = 2 * world.plan.commit_max_ms + 20;
    world.now.saturating_sub(word_ms) <= under_way || world.truth.stalled_ms + 1_000 > world.now
}
