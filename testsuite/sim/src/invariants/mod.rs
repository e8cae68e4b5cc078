//! The properties that every run must keep, one a file, and why each is there.

mod absorbing;
mod consistent;
mod convergence;
mod death;
mod digest;
mod durable;
mod finish;
mod idempotent;
mod one_attempt;
mod orders;
mod orphans;
mod registry;
mod replicas;
mod resources;
mod served;
mod silence;
mod truth;
mod unknown;

use crate::process::Key;
use crate::world::World;
use docket_core::ledger::{Job, Ledger, Outcome};
use proto::v1::Command;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A property of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What a failed seed names.
    pub name: &'static str,
    /// Why it must hold.
    pub reason: &'static str,
    /// Where it is written.
    pub file: &'static str,
}

const fn row(name: &'static str, reason: &'static str, file: &'static str) -> Row {
    Row { name, reason, file }
}

/// Every property: name, reason, file.
pub const TABLE: &[Row] = &[
    row("durable", "P1: no acknowledged job is ever lost", "durable.rs"),
    row("convergence", "P2: every job ends, every node comes back", "convergence.rs"),
    row("silence", "P2: UNKWN begins with silence, no sooner and little later", "silence.rs"),
    row("unknown", "P2: UNKWN lasts as long as it may, whatever restarts", "unknown.rs"),
    row("truth", "P3: reason and code are those of the real process", "truth.rs"),
    row("death", "P3: agent-died only of the dead, and then within a second", "death.rs"),
    row("finish", "P4: no finish is dropped, an acknowledgement means applied", "finish.rs"),
    row("registry", "P4: facts ahead of their job wait for it and are not lost", "registry.rs"),
    row("absorbing", "P5: a terminal state never changes", "absorbing.rs"),
    row("one-attempt", "P6: one live attempt, and none runs twice", "one_attempt.rs"),
    row("orphans", "P7: nothing of a terminal job lives on", "orphans.rs"),
    row("idempotent", "P8: the same request has one effect and one answer", "idempotent.rs"),
    row("orders", "design 2: no order leaves before its entry is durable", "orders.rs"),
    row("digest", "design 3: digests are compared at the same point only", "digest.rs"),
    row("replicas", "design 2: same log, same state, by replay and by image", "replicas.rs"),
    row("consistent", "design 2: the ledger never contradicts itself", "consistent.rs"),
    row("resources", "design 3: what is bound is what live attempts were granted", "resources.rs"),
    row("served", "an honest agent is never refused for good", "served.rs"),
];

/// Something that happened in the world.
#[derive(Debug)]
pub(crate) enum Happening<'a> {
    /// A client got an outcome.
    Answered { op: usize, outcome: &'a Outcome, index: u64 },
    /// A leader's duty wants that in the log.
    Proposed { controller: usize, command: &'a Command },
    /// A leader asked for a manifest when that heartbeat came: it may not have been comparable,
    /// and of those before it in a row so many.
    Asked { node: usize, behind: bool, blind: u32 },
    /// A controller is back, with its log replayed.
    Restarted { controller: usize },
    /// A keeper was told that the controller has its facts.
    KeeperAcked { node: usize, to: u64 },
    /// A keeper got an order to run.
    RunTaken { node: usize, agent: &'a str, key: Key, order: u64 },
    /// A process began.
    Spawned { process: usize },
    /// An agent was refused for good.
    AgentRefused { node: usize, reason: &'a str },
}

/// `Err` says what was seen.
pub(crate) type Check = Result<(), String>;

/// The ledger's own check, whose first broken invariant is a panic.
fn consistent(ledger: &Ledger) -> Check {
    catch_unwind(AssertUnwindSafe(|| ledger.check())).map_err(|panic| {
        format!("the ledger contradicts itself: {}", crate::trim::text_of(&*panic))
    })
}

/// An entry that was applied for the first time.
pub(crate) struct Step<'a> {
    pub world: &'a World,
    pub ledger: &'a Ledger,
    pub entry: &'a crate::log::Entry,
    pub applied: &'a docket_core::ledger::Applied,
}

impl Step<'_> {
    /// The jobs that it changed.
    pub fn changed(&self) -> impl Iterator<Item = &Job> {
        self.applied.changed.iter().filter_map(|task| self.ledger.job(task.job))
    }
}

/// One property. It looks at what it needs and remembers what it must.
pub(crate) trait Property {
    fn name(&self) -> &'static str;

    /// After every entry, where it is applied first.
    fn applied(&mut self, _step: &Step<'_>) -> Check {
        Ok(())
    }

    /// When something happens outside the ledger.
    fn happened(&mut self, _world: &World, _happening: &Happening<'_>) -> Check {
        Ok(())
    }

    /// Twice a second.
    fn audit(&mut self, _world: &World) -> Check {
        Ok(())
    }

    /// When everything has settled, or has had all the time that was promised.
    fn end(&mut self, _world: &World) -> Check {
        Ok(())
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Invariants {
    all: Vec<Box<dyn Property>>,
}

type Verdict = Result<(), (&'static str, String)>;

impl Invariants {
    pub fn all() -> Invariants {
        Invariants {
            all: vec![
                Box::<durable::Durable>::default(),
                Box::<absorbing::Absorbing>::default(),
                Box::<truth::Truthful>::default(),
                Box::<death::Death>::default(),
                Box::<finish::Finishes>::default(),
                Box::<one_attempt::OneAttempt>::default(),
                Box::<orphans::Orphans>::default(),
                Box::<idempotent::Idempotent>::default(),
                Box::<orders::Orders>::default(),
                Box::<digest::Digests>::default(),
                Box::<silence::Silence>::default(),
                Box::<unknown::UnknownTime>::default(),
                Box::<resources::Resources>::default(),
                Box::<consistent::Consistent>::default(),
                Box::<served::Served>::default(),
                Box::<convergence::Convergence>::default(),
                Box::<replicas::Replicas>::default(),
                Box::<registry::Registry>::default(),
            ],
        }
    }

    pub fn applied(&mut self, world: &World, controller: usize, at: usize) -> Verdict {
        let (ledger, entry) = (&world.controllers[controller].ledger, &world.log.entries[at]);
        let Some(applied) = &entry.applied else { return Ok(()) };
        let step = Step { world, ledger, entry, applied };
        self.ask(|property| property.applied(&step))
    }

    pub fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Verdict {
        self.ask(|property| property.happened(world, happening))
    }

    pub fn audit(&mut self, world: &World) -> Verdict {
        self.ask(|property| property.audit(world))
    }

    pub fn end(&mut self, world: &World) -> Verdict {
        self.ask(|property| property.end(world))
    }

    fn ask(&mut self, mut look: impl FnMut(&mut dyn Property) -> Check) -> Verdict {
        self.all.iter_mut().try_for_each(|property| {
            let name = property.name();
            look(property.as_mut()).map_err(|what| (name, what))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_property_and_every_file() {
        let names: Vec<&str> = Invariants::all().all.iter().map(|p| p.name()).collect();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/invariants");
        let files = std::fs::read_dir(folder).map_or(0, |entries| entries.count() - 1);
        assert_eq!((TABLE.len(), files), (names.len(), names.len()));
        for row in TABLE {
            assert!(names.contains(&row.name), "{}", row.name);
            assert!(std::path::Path::new(folder).join(row.file).exists(), "{}", row.file);
        }
    }
}
