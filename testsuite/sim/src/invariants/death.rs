//! P3: an agent is declared dead only if its process is, and its jobs end within a second then.

use super::{Check, Property, Step};
use crate::world::World;
use docket_core::ledger::{ExitReason, Kind, Outcome};
use proto::v1::{DownCause, OnDisconnect, command};
use std::collections::BTreeMap;

/// From the close to the entry that settles it: 300 ms of doubt, a tick, the log (design 3).
const SHOWS_MS: u64 = 1_000;

#[derive(Default)]
pub(super) struct Death {
    /// The agent's process of each session that joined.
    processes: BTreeMap<(String, u64), Vec<u8>>,
    /// The newest session of each agent.
    newest: BTreeMap<String, u64>,
}

impl Property for Death {
    fn name(&self) -> &'static str {
        "death"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        for (command, outcome) in step.entry.proposal.commands.iter().zip(&step.applied.outcomes) {
            if let (Some(command::Kind::AgentUp(up)), Outcome::AgentUp) = (&command.kind, outcome)
                && let Some(join) = &up.join
            {
                let session = (join.agent_id.clone(), join.incarnation);
                self.processes.insert(session, join.process_id.clone());
                self.newest.insert(join.agent_id.clone(), join.incarnation);
            }
            let Some(command::Kind::AgentDown(down)) = &command.kind else { continue };
            let took_effect = matches!(outcome, Outcome::AgentDown { .. });
            if took_effect && self.newest.get(&down.agent_id) != Some(&down.incarnation) {
                return Err(format!("an older session's end took effect: {down:?}"));
            }
            if down.cause() != DownCause::Rdhup || !matches!(outcome, Outcome::AgentDown { .. }) {
                continue;
            }
            let session = (down.agent_id.clone(), down.incarnation);
            if step.world.truth.goodbyes.contains(&session) {
                return Err(format!("{session:?} said goodbye and is declared dead"));
            }
            let Some(process) = self.processes.get(&session) else { continue };
            if step.world.truth.agents.get(process) == Some(&None) {
                return Err(format!("agent {} lives and is declared dead", down.agent_id));
            }
        }
        for job in step.changed() {
            let Some(ended) = job.state().ended() else { continue };
            if ended.reason == ExitReason::AgentDied
                && !ends(step.world, job.spec().on_disconnect())
            {
                return Err(format!("job {} was to survive its agent's death", job.id()));
            }
        }
        Ok(())
    }

    fn audit(&mut self, world: &World) -> Check {
        let Some((agent_id, incarnation, at)) = &world.truth.probe else { return Ok(()) };
        let slack = world.plan.net_max_ms + 2 * world.plan.commit_max_ms + 200;
        let shown = at + SHOWS_MS + slack;
        let over = world.now > shown + 500 || world.now < shown;
        let Some(ledger) = world.front().filter(|_| !over) else { return Ok(()) };
        for job in ledger.held_by(agent_id) {
            let own = job.grant().is_some_and(|grant| grant.incarnation == *incarnation);
            let runs = matches!(job.kind(), Kind::Running | Kind::Suspended | Kind::Dispatched);
            if own && runs {
                let kind = job.kind();
                return Err(format!("job {} is {kind:?} a second after its agent died", job.id()));
            }
            let was = job.started().is_some() && ends(world, job.spec().on_disconnect());
            if own && was && job.kind() == Kind::Unknown {
                return Err(format!("job {} is unknown though its agent died", job.id()));
            }
        }
        Ok(())
    }
}

fn ends(world: &World, asked: OnDisconnect) -> bool {
    match asked {
        OnDisconnect::Unspecified => world.plan.policy.on_disconnect() == OnDisconnect::Exit,
        asked => asked == OnDisconnect::Exit,
    }
}
