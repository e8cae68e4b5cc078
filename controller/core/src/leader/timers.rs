//! Deadlines of the ledger fire through `Tick` entries, by led time, and begin times by the time on the
//! wall (design 2, "Two times").

use super::reign::Reign;
use super::turn::Turn;
use crate::ledger::Outcome;
use proto::v1::{TickCommand, command};

/// A `Tick` that is proposed and not applied, and since when.
#[derive(Debug, Default)]
pub(super) struct Timer {
    in_flight: Option<u64>,
}

/// Proposes a `Tick` if the ledger's next deadline or begin time is due and none is under way.
pub(super) fn tick(reign: &mut Reign, turn: &mut Turn<'_>, wall_ms: u64) {
    if reign.timer.in_flight.is_some_and(|since| turn.lost(since)) {
        reign.timer.in_flight = None;
    }
    let Some(led) = reign.led_ms(turn.now) else { return };
    let due = turn.ledger.next_deadline_led().is_some_and(|deadline| deadline <= led);
    let begins = turn.ledger.next_begin_wall().is_some_and(|begin| begin <= wall_ms);
    if (due || begins) && reign.timer.in_flight.is_none() {
        propose(reign, turn);
    }
}

/// A `Tick` was applied; it settles so much at most, and the rest wants another at once.
pub(super) fn applied(reign: &mut Reign, turn: &mut Turn<'_>, outcome: &Outcome) {
    if reign.timer.in_flight.take().is_some()
        && matches!(outcome, Outcome::Ticked { more: true, .. })
    {
        propose(reign, turn);
    }
}

fn propose(reign: &mut Reign, turn: &mut Turn<'_>) {
    reign.timer.in_flight = Some(turn.now);
    turn.propose(command::Kind::Tick(TickCommand {}));
}
