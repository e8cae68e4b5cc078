//! P6: an attempt runs once, and only while no other attempt of its task lives.

use super::{Check, Happening, Property};
use crate::world::World;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct OneAttempt {
    by_task: BTreeMap<proto::TaskId, Vec<usize>>,
}

impl Property for OneAttempt {
    fn name(&self) -> &'static str {
        "one-attempt"
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        let Happening::Spawned { process } = happening else { return Ok(()) };
        let new = &world.truth.processes[*process];
        let older = self.by_task.entry(new.key.attempt.task).or_default();
        for number in older.iter() {
            let old = &world.truth.processes[*number];
            if old.key == new.key {
                return Err(format!("{} runs a second time", new.key.attempt));
            }
            if old.lives() {
                return Err(format!("{} starts while {} lives", new.key.attempt, old.key.attempt));
            }
        }
        older.push(*process);
        Ok(())
    }
}
