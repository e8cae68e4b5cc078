//! `Explain`: the core tells, from the ledger and what the leader hears of the agents now.

use crate::clock::wall_ms;
use crate::pump::View;
use docket_core::ledger::Rejection;
use docket_core::{Sight, Word};
use proto::{JobId, v1};

/// Explains a job of the ledger.
pub fn explain(view: &View<'_>, id: JobId) -> Result<v1::ExplainAnswer, Rejection> {
    view.ledger.find(id)?;
    // Found above, in the same visit of the pump.
    Ok(docket_core::explain(view.ledger, &sight(view), id).unwrap_or_default())
}

/// What the leader sees of the agents now.
pub fn sight(view: &View<'_>) -> Sight {
    let heard = view.leader.node_views(view.ledger, view.now_ms).into_iter();
    let agents = heard.filter_map(|node| {
        let word = Word { reachable: node.reachable, silent_for_ms: node.last_word_ms? };
        Some((node.agent_id, word))
    });
    Sight { now_wall_ms: wall_ms(), agents: agents.collect() }
}
