//! `Explain`: the core tells, from the ledger and what the leader hears of the agents now.

use super::identity::Caller;
use super::server::{conceal, may_read};
use crate::clock::wall_ms;
use crate::pump::View;
use docket_core::ledger::Rejection;
use docket_core::{Sight, Word};
use proto::{TaskId, v1};

/// Explains a job of the ledger to `caller`, with its last words if they may read them.
pub fn explain(
    view: &View<'_>,
    caller: &Caller,
    id: TaskId,
) -> Result<v1::ExplainAnswer, Rejection> {
    let job = match id.index {
        Some(_) => view.ledger.find(id)?,
        None => view.ledger.find_entry(id.job)?.head(),
    };
    let output = may_read(caller, job.by().uid);
    // Found above, in the same visit of the pump.
    let explained = docket_core::explain(view.ledger, &sight(view), id, output);
    let mut answer = explained.unwrap_or_default();
    answer.task.iter_mut().for_each(|task| conceal(caller, task));
    Ok(answer)
}

/// What the leader sees of the agents now.
pub fn sight(view: &View<'_>) -> Sight {
    let heard = view.leader.node_views(view.ledger, view.now_ms).into_iter();
    let agents = heard.filter_map(|node| {
        let word = Word {
            reachable: node.reachable,
            silent_for_ms: node.last_word_ms?,
            refuses: node.refuses,
        };
        Some((node.agent_id, word))
    });
    Sight { now_wall_ms: wall_ms(), agents: agents.collect() }
}
