//! P2: in the end every job has ended; and once all is well, every node is back and every job is
//! what its process is.

use super::{Check, Property};
use crate::world::World;
use docket_core::ledger::{Kind, Session};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Convergence {
    /// By process: since when the ledger says otherwise.
    differs: BTreeMap<usize, u64>,
}

impl Property for Convergence {
    fn name(&self) -> &'static str {
        "convergence"
    }

    fn audit(&mut self, world: &World) -> Check {
        let (Some(ledger), Some(calm)) = (world.front(), world.truth.calm_ms) else {
            self.differs.clear();
            return Ok(());
        };
        let probed = world.truth.probe.as_ref().map_or(0, |(_, _, at)| at + 10_000);
        if world.now < calm.max(probed) + world.plan.rejoin_ms() {
            return Ok(());
        }
        for (n, node) in world.nodes.iter().enumerate() {
            let agent = ledger.agent(&node.saved.agent_id);
            if !agent.is_some_and(|agent| agent.session() == Session::Up) {
                let session = agent.map(|agent| agent.session());
                return Err(format!("node {n} is not back: {session:?}"));
            }
            if let Some(job) =
                ledger.held_by(&node.saved.agent_id).find(|j| j.kind() == Kind::Unknown)
            {
                return Err(format!("job {} is unknown and its node is there", job.id()));
            }
        }
        self.compare(world, ledger)
    }

    fn end(&mut self, world: &World) -> Check {
        let Some(ledger) = world.front() else {
            return Err("no controller is up to date".to_owned());
        };
        if let Some(job) = ledger.jobs_newest_first(None).find(|job| !job.terminal()) {
            return Err(format!("job {} has not ended: {:?}", job.id(), job.state()));
        }
        match world.client.ops.iter().find(|op| !op.over) {
            Some(op) => Err(format!("a client was never answered: {op:?}")),
            None => Ok(()),
        }
    }
}

impl Convergence {
    fn compare(&mut self, world: &World, ledger: &docket_core::ledger::Ledger) -> Check {
        let mut differs = BTreeMap::new();
        for (number, process) in world.truth.processes.iter().enumerate() {
            if !process.lives() {
                continue;
            }
            let kind = ledger.job(process.key.attempt.task.job).map(|job| job.kind());
            let fits = match process.stopped_ms {
                Some(_) => kind == Some(Kind::Suspended),
                None => kind == Some(Kind::Running),
            };
            if fits {
                continue;
            }
            let since = self.differs.get(&number).copied().unwrap_or(world.now);
            differs.insert(number, since);
            if world.now > since + world.plan.lag_ms() {
                return Err(format!("the ledger says {kind:?} of {process:?}"));
            }
        }
        self.differs = differs;
        Ok(())
    }
}
