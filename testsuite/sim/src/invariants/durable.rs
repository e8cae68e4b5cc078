//! P1: a job that was acknowledged is in every ledger that has its entry, with its content.

use super::{Check, Happening, Property};
use crate::client::Wish;
use crate::world::World;
use docket_core::ledger::{Ledger, Outcome, RequestId};
use proto::JobId;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Durable {
    /// By job id: the request, and the entry that answered it.
    acked: BTreeMap<u64, (usize, u64)>,
}

impl Property for Durable {
    fn name(&self) -> &'static str {
        "durable"
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        match happening {
            Happening::Answered { op, outcome: Outcome::Submitted { job, .. }, index }
                if world.client.ops[*op].wish == Wish::Submit =>
            {
                self.acked.entry(job.0).or_insert((*op, *index));
                Ok(())
            }
            Happening::Restarted { controller } => {
                self.look(world, &world.controllers[*controller].ledger)
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, world: &World) -> Check {
        world.controllers.iter().try_for_each(|controller| self.look(world, &controller.ledger))
    }
}

impl Durable {
    fn look(&self, world: &World, ledger: &Ledger) -> Check {
        for (id, (op, index)) in &self.acked {
            if ledger.applied() < *index {
                continue;
            }
            let asked = &world.client.ops[*op];
            let Some(job) = ledger.job(JobId(*id)) else {
                return Err(format!("job {id} was acknowledged at entry {index} and is gone"));
            };
            let plan = world.client.plan_of(job.spec_bytes());
            if *job.request_id() != RequestId::parse(&asked.request_id) || plan != Some(asked.job) {
                return Err(format!("job {id} is not what request {} asked", asked.request_id));
            }
        }
        Ok(())
    }
}
