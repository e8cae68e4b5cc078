//! Planning: right after the step that applied a submit or freed room, without waiting for a tick.
//! A plan becomes `Assign` proposals; one plan at a time, so that none relies on what another is
//! about to take.

use super::reign::Reign;
use super::turn::Turn;
use crate::ledger::Outcome;
use crate::scheduler;

/// Most placements of one plan: one proposal's worth (design 2), so that a plan is one entry.
const PLACEMENTS_MAX: usize = 1_024;

/// While tasks wait, the plan is made anew this often even if nothing happened, in ms: by time alone a node
/// that was kept out for a while comes back, and what a reservation waits for is overdue.
const LOOK_AGAIN_MS: u64 = 1_000;

/// Where planning stands.
#[derive(Debug, Default)]
pub(super) struct Placing {
    /// Something may fit that did not.
    wanted: bool,
    in_flight: Option<InFlight>,
    looked_ms: u64,
}

/// A plan that is proposed and not applied to its end.
#[derive(Debug)]
struct InFlight {
    /// Assigns to come, at least 1.
    open: usize,
    since_ms: u64,
    stale: bool,
}

impl Placing {
    /// Something changed that may let a task start.
    pub fn look_again(&mut self) {
        self.wanted = true;
    }

    /// An `Assign` was applied. A plan of which nothing was stale is followed by the next at once; else
    /// something else is about to change, and if nothing does, time looks again: never in a loop.
    pub fn answered(&mut self, outcome: &Outcome) {
        let Some(plan) = &mut self.in_flight else { return };
        plan.stale |= !matches!(outcome, Outcome::Assigned);
        plan.open -= 1;
        if plan.open == 0 {
            self.wanted |= !plan.stale;
            self.in_flight = None;
        }
    }

    /// Time passed: a lost plan is made anew.
    pub fn tick(&mut self, turn: &Turn<'_>) {
        if self.in_flight.as_ref().is_some_and(|plan| turn.lost(plan.since_ms)) {
            self.in_flight = None;
            self.wanted = true;
        }
        if turn.now.saturating_sub(self.looked_ms) >= LOOK_AGAIN_MS {
            self.wanted = true;
        }
    }
}

/// Plans and proposes, if there is a reason to and no plan is under way.
pub(super) fn run(reign: &mut Reign, turn: &mut Turn<'_>) {
    let placing = &mut reign.placing;
    if !placing.wanted || placing.in_flight.is_some() || reign.begun.is_none() {
        return;
    }
    placing.wanted = false;
    placing.looked_ms = turn.now;
    if turn.ledger.pending_count() == 0 {
        return;
    }
    let reachable = reign.reachable();
    if reachable.is_empty() {
        return;
    }
    // Led time goes on while the log is quiet: who may go before a reservation depends on it.
    let led_ms = reign.led_ms(turn.now).unwrap_or_else(|| turn.ledger.led());
    let plan = scheduler::plan_at(turn.ledger, &reachable, led_ms, PLACEMENTS_MAX);
    let open = plan.placements.len();
    for placement in plan.placements {
        turn.propose_command(placement.to_command());
    }
    let plan = InFlight { open, since_ms: turn.now, stale: false };
    reign.placing.in_flight = (open > 0).then_some(plan);
}
