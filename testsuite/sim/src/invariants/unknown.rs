//! P2: `transient_since` is when it became unknown, whatever restarts come; its time to live ends
//! it, by led time, not before and hardly after.

use super::{Check, Property, Step};
use crate::world::World;
use docket_core::ledger::{ExitReason, Job, Kind, Outcome, Session, State, What};
use proto::AttemptId;
use proto::v1::{AttemptRef, ManifestCommand, Phase, command, fact};
use std::collections::{BTreeMap, BTreeSet};

/// Clocks differ by less than one in so many (design 3, Fences).
const DRIFT: u64 = 50;

#[derive(Default)]
pub(super) struct UnknownTime {
    /// By job: led time of the entry that made it unknown.
    since: BTreeMap<u64, u64>,
    /// The same in real time.
    real: BTreeMap<u64, u64>,
    ended: BTreeSet<u64>,
    term: u64,
    term_led_ms: u64,
}

impl Property for UnknownTime {
    fn name(&self) -> &'static str {
        "unknown"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        if step.ledger.term() != self.term {
            (self.term, self.term_led_ms) = (step.ledger.term(), step.ledger.led());
        }
        self.none_of_a_judged_node(step)?;
        all_of_a_new_term(step)?;
        let ttl = step.world.plan.policy.transient_job_timeout_ms;
        for job in step.changed() {
            let id = job.id().0;
            match job.state() {
                State::Unknown(unknown) => {
                    let known_between = job.causes().iter().any(|cause| {
                        cause.position == step.entry.index
                            && matches!(
                                cause.what,
                                What::Claimed { .. } | What::Started { .. } | What::OrderLost
                            )
                    });
                    if known_between {
                        self.since.remove(&id);
                        self.real.remove(&id);
                    }
                    self.real.entry(id).or_insert(step.entry.stamped_ms);
                    let since = *self.since.entry(id).or_insert(step.ledger.led());
                    if unknown.since_led_ms != since {
                        let told = unknown.since_led_ms;
                        return Err(format!("job {id} is unknown since {since}, not {told}"));
                    }
                }
                // What comes after the end is a late outcome.
                State::Done(_) | State::Exit(_) if !self.ended.insert(id) => {}
                State::Done(ended) | State::Exit(ended) => {
                    let since = self.since.remove(&id);
                    let waited = since.map(|since| step.ledger.led() - since);
                    let real = self.real.remove(&id);
                    let real = real.map(|since| step.entry.stamped_ms - since);
                    if ended.reason == ExitReason::Lost && real < Some(ttl - ttl / DRIFT) {
                        return Err(format!("job {id} is lost after {real:?} real ms of {ttl}"));
                    }
                    if ended.reason == ExitReason::Lost && waited < Some(ttl) {
                        return Err(format!("job {id} is lost after {waited:?} of {ttl} ms"));
                    }
                }
                _ => {
                    self.since.remove(&id);
                    self.real.remove(&id);
                }
            }
        }
        Ok(())
    }

    fn audit(&mut self, world: &World) -> Check {
        let Some(reign) = &world.truth.reign else { return Ok(()) };
        let leader = &world.controllers[reign.controller];
        if !leader.up || leader.frozen || world.truth.stalled_ms + 2_000 > world.now {
            return Ok(());
        }
        let (timeout, ttl) =
            (world.plan.policy.heartbeat_timeout_ms, world.plan.policy.transient_job_timeout_ms);
        let passed = world.now - reign.begun_ms;
        let led = reign.led_ms + passed - passed / DRIFT;
        let slack = 4 * world.plan.commit_max_ms + 1_000;
        for (id, since) in &self.since {
            let early = led < self.term_led_ms + timeout;
            let bound = if early { 2 * ttl } else { ttl.max(timeout) };
            let due = (since + bound).max(if early { 0 } else { self.term_led_ms + timeout });
            if led > due + slack {
                return Err(format!("job {id} is unknown since {since}, led time is {led}"));
            }
        }
        Ok(())
    }
}

impl UnknownTime {
    /// Once the manifest of a join is judged, nothing that its node holds is unknown.
    fn none_of_a_judged_node(&self, step: &Step<'_>) -> Check {
        for outcome in step.entry.proposal.commands.iter().zip(&step.applied.outcomes) {
            let (Some(command::Kind::Manifest(page)), Outcome::Manifest(verdicts)) =
                (&outcome.0.kind, outcome.1)
            else {
                continue;
            };
            let agent = step.ledger.agent(&page.agent_id);
            if !page.at_join
                || !verdicts.judged
                || agent.is_none_or(|agent| agent.session() != Session::Up)
            {
                continue;
            }
            let known = |job: &&Job| !parked(step.world, page, job.attempt_id());
            let mut held = step.ledger.held_by(&page.agent_id).filter(known);
            if let Some(job) = held.find(|job| job.kind() == Kind::Unknown) {
                return Err(format!("job {} is unknown after its node was judged", job.id()));
            }
        }
        Ok(())
    }
}

/// Whether the manifest lists it as ended, and its end is no fact up to the manifest's F: it waits
/// for room in the journal.
fn parked(world: &World, page: &ManifestCommand, attempt: AttemptId) -> bool {
    let is_it = |of: &Option<AttemptRef>| AttemptId::from_wire(of.as_ref()) == Ok(attempt);
    let mut items = page.items.iter().filter(|item| item.phase() == Phase::Ended);
    let listed = items.any(|item| is_it(&item.attempt));
    let mut nodes = world.nodes.iter().map(|node| &node.keeper.journal);
    let Some(journal) = nodes.find(|journal| journal.id == page.journal_id) else { return false };
    let mut told = journal.facts.range(..=page.last_seq).map(|(_, fact)| &fact.kind);
    let is_fact = told.any(|kind| match kind {
        Some(fact::Kind::Finish(finish)) => is_it(&finish.attempt),
        Some(fact::Kind::Refused(refused)) => is_it(&refused.attempt),
        _ => false,
    });
    listed && !is_fact
}

/// B3: right after the first entry of a term nobody has been heard.
fn all_of_a_new_term(step: &Step<'_>) -> Check {
    let begins =
        step.applied.outcomes.iter().any(|outcome| matches!(outcome, Outcome::TermStarted { .. }));
    let mut jobs = step.ledger.jobs_newest_first(None).filter(|_| begins);
    match jobs.find(|job| job.kind().held_by()) {
        Some(job) => Err(format!("job {} is {:?} in a term just begun", job.id(), job.kind())),
        None => Ok(()),
    }
}
