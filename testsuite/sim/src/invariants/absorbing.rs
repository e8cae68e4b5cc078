//! P5: what is terminal stays as it is; only the real outcome may be written beside it, once.

use super::{Check, Property, Step};
use crate::world::World;
use docket_core::ledger::{Ended, Job, Kind};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Absorbing {
    ended: BTreeMap<u64, (Kind, u32, Ended)>,
}

impl Property for Absorbing {
    fn name(&self) -> &'static str {
        "absorbing"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        step.changed().try_for_each(|job| self.look(job))
    }

    fn end(&mut self, world: &World) -> Check {
        let Some(ledger) = world.front() else { return Ok(()) };
        ledger.jobs_newest_first(None).try_for_each(|job| self.look(job))
    }
}

impl Absorbing {
    fn look(&mut self, job: &Job) -> Check {
        let id = job.id().0;
        let now = job.state().ended();
        let Some((kind, attempt, before)) = self.ended.get_mut(&id) else {
            if let Some(ended) = now {
                self.ended.insert(id, (job.kind(), job.attempt(), ended.clone()));
            }
            return Ok(());
        };
        let Some(ended) = now else {
            return Err(format!("job {id} was {kind:?} and is {:?}", job.kind()));
        };
        let same = Ended { late: before.late.clone(), ..ended.clone() } == *before;
        let late_kept = before.late.is_none() || before.late == ended.late;
        if job.kind() != *kind || job.attempt() != *attempt || !same || !late_kept {
            return Err(format!("job {id} ended as {before:?} and now {ended:?}"));
        }
        *before = ended.clone();
        Ok(())
    }
}
