//! P7: of a terminal job nothing lives on, once its node is there to be told.

use super::{Check, Property};
use crate::process::Process;
use crate::world::World;
use docket_core::ledger::{Ledger, Session};
use std::collections::BTreeMap;

/// Added to the grace of the job (design 1, P7).
const SLACK_MS: u64 = 5_000;

#[derive(Default)]
pub(super) struct Orphans {
    /// Since when a process should be going: its job is over and its node can be told.
    since: BTreeMap<usize, u64>,
}

impl Property for Orphans {
    fn name(&self) -> &'static str {
        "orphans"
    }

    fn audit(&mut self, world: &World) -> Check {
        let (Some(ledger), Some(_), Some(reign)) =
            (world.front(), world.truth.calm_ms, &world.truth.reign)
        else {
            self.since.clear();
            return Ok(());
        };
        let mut still = BTreeMap::new();
        for (number, process) in world.truth.processes.iter().enumerate() {
            let over = process.lives() && is_over(ledger, process);
            let node = &world.nodes[process.node];
            let there = ledger.agent(&node.saved.agent_id).is_some_and(|agent| {
                agent.session() == Session::Up && agent.process_id() == node.process_id
            });
            if !over || !there || reign.begun_ms > world.now {
                continue;
            }
            let since = self.since.get(&number).copied().unwrap_or(world.now);
            still.insert(number, since);
            let job = &world.plan.jobs[process.job];
            let bound = job.grace_ms.max(1_000) + job.linger_ms + SLACK_MS;
            if world.now > since + bound {
                return Err(format!("process {number} of an ended job lives: {process:?}"));
            }
        }
        self.since = still;
        Ok(())
    }

    fn end(&mut self, world: &World) -> Check {
        let Some(ledger) = world.front() else { return Ok(()) };
        let mut living = world.truth.processes.iter().filter(|process| process.lives());
        match living.find(|process| is_over(ledger, process)) {
            Some(process) => Err(format!("at the end there lives {process:?}")),
            None => Ok(()),
        }
    }
}

/// Whether the ledger has done with the attempt of that process.
fn is_over(ledger: &Ledger, process: &Process) -> bool {
    let attempt = process.key.attempt;
    ledger.job(attempt.task.job).is_none_or(|job| job.terminal() || job.attempt() > attempt.attempt)
}
