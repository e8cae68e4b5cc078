//! P2: `transient_since` is when it became unknown, whatever restarts come; its time to live ends
//! it, by led time, not before and hardly after.

use super::{Check, Property, Step};
use crate::world::World;
use docket_core::ledger::{ExitReason, State};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct UnknownTime {
    /// By job: led time of the entry that made it unknown.
    since: BTreeMap<u64, u64>,
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
        let ttl = step.world.plan.policy.transient_job_timeout_ms;
        for job in step.changed() {
            let id = job.id().0;
            match job.state() {
                State::Unknown(unknown) => {
                    let since = *self.since.entry(id).or_insert(step.ledger.led());
                    if unknown.since_led_ms != since {
                        let told = unknown.since_led_ms;
                        return Err(format!("job {id} is unknown since {since}, not {told}"));
                    }
                }
                State::Done(ended) | State::Exit(ended) => {
                    let since = self.since.remove(&id);
                    let waited = since.map(|since| step.ledger.led() - since);
                    if ended.reason == ExitReason::Lost && waited < Some(ttl) {
                        return Err(format!("job {id} is lost after {waited:?} of {ttl} ms"));
                    }
                }
                _ => {
                    self.since.remove(&id);
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
        let led = reign.led_ms + (world.now - reign.begun_ms);
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
