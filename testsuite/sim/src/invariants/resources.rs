//! What is bound on a node is what the ledger's live attempts were granted, and closed ones that may
//! still live; never more than the node has.

use super::{Check, Property, Step};
use crate::world::World;
use docket_core::ledger::{Job, Kind, Ledger};
use std::collections::BTreeMap;

/// Everything is added up after each so many entries, and at the end.
const SUM_EVERY: u64 = 8;

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
        if self.entries.is_multiple_of(SUM_EVERY) { adds_up(step.ledger) } else { Ok(()) }
    }

    fn end(&mut self, world: &World) -> Check {
        world.front().map_or(Ok(()), adds_up)
    }
}

fn adds_up(ledger: &Ledger) -> Check {
    let mut bound: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for job in ledger.jobs_newest_first(None) {
        if let Some((agent, cpus, mem_bytes)) = binds(job) {
            let sum = bound.entry(agent).or_default();
            *sum = (sum.0 + cpus, sum.1 + mem_bytes);
        }
    }
    for agent in ledger.agents() {
        let used = ledger.used(agent.id());
        let sum = bound.get(&**agent.id()).copied().unwrap_or_default();
        if (used.cpus, used.mem_bytes) != sum {
            return Err(format!("{used:?} is bound on {}, its attempts have {sum:?}", agent.id()));
        }
    }
    Ok(())
}

/// Where the job binds something, and how much.
fn binds(job: &Job) -> Option<(&str, u64, u64)> {
    let live = job.kind().held_by() || job.kind() == Kind::Unknown;
    let grant = job.fence().map(|fence| &fence.grant).or_else(|| job.grant().filter(|_| live))?;
    Some((&grant.agent, u64::from(grant.cpus), grant.mem_bytes))
}
