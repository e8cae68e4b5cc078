//! P4: facts that are ahead of their job or assignment take effect all the same. The log of the run
//! is applied once more with every fact moved up to the join of its session, ahead of most submits
//! and assignments, as after a restore: no finish may be missing, and the registry must hold only
//! what still waits.

use super::{Check, Property, consistent};
use crate::process::Key;
use crate::world::World;
use docket_core::ledger::{Ledger, Outcome};
use proto::v1::{self, command::Kind};
use std::collections::{BTreeMap, BTreeSet};

/// One seed in so many: it costs as much as the whole ledger's part of a run.
const EVERY: u64 = 3;

/// Commands of one entry at most, with room for its own.
const MOVED_MAX: usize = 3_000;

/// An image is made and read after each so many entries.
const IMAGE_EVERY: usize = 64;

#[derive(Default)]
pub(super) struct Registry;

impl Property for Registry {
    fn name(&self) -> &'static str {
        "registry"
    }

    fn end(&mut self, world: &World) -> Check {
        if !world.seed.is_multiple_of(EVERY) {
            return Ok(());
        }
        let mut ledger = Ledger::new();
        for (number, (index, proposal)) in ahead(world).into_iter().enumerate() {
            ledger.apply(index, &proposal);
            let waits = ledger.deferred().next().is_some();
            if waits && number.is_multiple_of(IMAGE_EVERY) {
                consistent(&ledger)?;
                ledger = through_image(&ledger)?;
            }
        }
        consistent(&ledger)?;
        let told = world.log.entries.iter().flat_map(|entry| &entry.proposal.commands);
        let facts = told.filter_map(|command| match &command.kind {
            Some(Kind::Facts(facts)) => facts.facts.as_ref(),
            _ => None,
        });
        for fact in facts.flat_map(|facts| &facts.facts) {
            if let Some(v1::fact::Kind::Finish(finish)) = &fact.kind {
                in_one_place(&ledger, finish)?;
            }
        }
        Ok(())
    }
}

/// The log with every batch of facts behind the join of its session, in the order of the journal.
/// What is moved leaves a Tick, so that order ids stay; that also lets what waits too long expire.
fn ahead(world: &World) -> Vec<(u64, v1::Proposal)> {
    let mut batches: BTreeMap<(String, u64), Vec<v1::Command>> = BTreeMap::new();
    for command in world.log.entries.iter().flat_map(|entry| &entry.proposal.commands) {
        if let Some(Kind::Facts(facts)) = &command.kind {
            let session = (facts.agent_id.clone(), facts.incarnation);
            batches.entry(session).or_default().push(command.clone());
        }
    }
    batches.retain(|_, batch| batch.len() < MOVED_MAX);
    let mut moved = BTreeSet::new();
    let mut log = Vec::new();
    for entry in &world.log.entries {
        let mut proposal = entry.proposal.clone();
        let outcomes = entry.applied.iter().flat_map(|applied| &applied.outcomes);
        for (at, outcome) in outcomes.enumerate() {
            let session = match proposal.commands[at].kind.as_ref() {
                // One that came too late in the run could hit here, and give the task to another.
                Some(Kind::Assign(_)) if *outcome != Outcome::Assigned => {
                    proposal.commands[at].kind = Some(Kind::Tick(v1::TickCommand {}));
                    continue;
                }
                Some(Kind::Facts(facts)) => (facts.agent_id.clone(), facts.incarnation),
                Some(Kind::AgentUp(v1::AgentUpCommand { join: Some(join) })) => {
                    (join.agent_id.clone(), join.incarnation)
                }
                _ => continue,
            };
            if *outcome == Outcome::AgentUp {
                proposal.commands.extend(batches.remove(&session).unwrap_or_default());
                moved.insert(session);
            } else if moved.contains(&session) {
                proposal.commands[at].kind = Some(Kind::Tick(v1::TickCommand {}));
            }
        }
        log.push((entry.index, proposal));
    }
    log
}

fn through_image(ledger: &Ledger) -> Result<Ledger, String> {
    let chunks: Vec<Vec<u8>> = ledger.freeze().chunks().collect();
    let thawed = Ledger::thaw(chunks.into_iter())
        .map_err(|error| format!("an image with deferred facts cannot be read: {error}"))?;
    if thawed.deferred().eq(ledger.deferred()) {
        return Ok(thawed);
    }
    Err("an image reads back with another registry".to_owned())
}

/// A finish has had its effect, or it waits in the registry or the quarantine.
fn in_one_place(ledger: &Ledger, finish: &v1::FinishFact) -> Check {
    let key = Key::from_wire(finish.attempt.as_ref(), finish.token.as_ref());
    let Some(key) = key else { return Err("a finish of nothing".to_owned()) };
    let job = ledger.job(key.attempt.task.job);
    if job.is_some_and(|job| job.terminal() || job.attempt() > key.attempt.attempt) {
        return Ok(());
    }
    let waits = ledger.deferred().any(|deferred| match &deferred.fact.kind {
        Some(v1::fact::Kind::Finish(other)) => other.attempt == finish.attempt,
        _ => false,
    });
    if waits { Ok(()) } else { Err(format!("the finish of {} is nowhere", key.attempt)) }
}
