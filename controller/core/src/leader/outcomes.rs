//! What an applied entry means for the duties: each command to its own, then orders for the tasks
//! that changed, then a plan for what is free now.

use super::reign::Reign;
use super::turn::Turn;
use super::{dispatch, facts, join, lease, liveness, manifest, placing, timers};
use crate::ledger::{Applied, Outcome, order_id};
use proto::v1::{Command, command::Kind};
use proto::{OrderId, v1};

/// Ordinal of the orders that an entry as a whole causes: above that of any command in it.
const LAST_ORDINAL: u64 = 4_095;

/// An entry was applied.
pub(super) fn applied(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    index: u64,
    commands: &[Command],
    applied: &Applied,
) {
    for (ordinal, (command, outcome)) in (0..).zip(commands.iter().zip(&applied.outcomes)) {
        if let Some(kind) = &command.kind {
            one(reign, turn, order_id(index, ordinal), kind, outcome);
        }
    }
    let last = order_id(index, LAST_ORDINAL);
    for task in &applied.changed {
        dispatch::task(reign, turn, *task, last);
    }
    placing::run(reign, turn);
}

fn one(reign: &mut Reign, turn: &mut Turn<'_>, order: OrderId, kind: &Kind, outcome: &Outcome) {
    match kind {
        Kind::Term(term) if term.term == reign.term => reign.begin(turn),
        Kind::AgentUp(up) => join::applied(reign, turn, up, outcome),
        Kind::Facts(batch) => facts_applied(reign, turn, batch, outcome),
        Kind::Manifest(page) => {
            manifest::applied(reign, turn, order, page, outcome);
            reign.placing.look_again();
        }
        Kind::Assign(_) => reign.placing.answered(outcome),
        Kind::Tick(_) => {
            timers::applied(reign, turn, outcome);
            reign.placing.look_again();
        }
        // Any of these may give a task something to do, or free room for one.
        Kind::Submit(_)
        | Kind::Cancel(_)
        | Kind::AgentDown(_)
        | Kind::Configure(_)
        | Kind::Hold(_)
        | Kind::ConfirmDead(_)
        | Kind::ArrayLimit(_)
        | Kind::Set(_)
        | Kind::Drain(_)
        | Kind::Priority(_) => reign.placing.look_again(),
        Kind::Fenced(_) => {
            lease::applied(reign, turn);
            reign.placing.look_again();
        }
        Kind::Term(_) | Kind::Unknown(_) | Kind::Suspend(_) => {}
    }
}

fn facts_applied(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    batch: &v1::FactsCommand,
    outcome: &Outcome,
) {
    facts::applied(reign, turn, batch, outcome);
    liveness::told(reign, turn, &batch.agent_id);
    if let Some(id) = reign.lives.get(&batch.agent_id).and_then(|life| life.session)
        && let Some(session) = reign.sessions.get_mut(&id)
    {
        // A manifest may have waited for these.
        manifest::advance(&mut reign.pages, session, turn);
        manifest::pump(reign, turn);
    }
    let frees = batch.facts.iter().flat_map(|facts| &facts.facts).any(|fact| {
        matches!(fact.kind, Some(v1::fact::Kind::Finish(_) | v1::fact::Kind::Refused(_)))
    });
    if frees {
        reign.placing.look_again();
    }
}
