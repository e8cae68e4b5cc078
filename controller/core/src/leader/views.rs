//! Nodes as the leader sees them now: what ListNodes and explain show beside the ledger.

use super::life::{Life, NodeState};
use super::reign::Reign;
use super::session::Session;
use crate::ledger::{self, Agent, DownWhy, Ledger};
use proto::v1::DownCause;

/// One node, now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// The agent's id.
    pub agent_id: String,
    /// Up, silent or down.
    pub state: NodeState,
    /// Age of its last word, ms; `None` if it has not spoken in this term.
    pub last_word_ms: Option<u64>,
    /// It gets new jobs if they fit.
    pub reachable: bool,
    /// Why it takes no jobs though it is heard, in its own words.
    pub refuses: Option<String>,
    /// For people, each a phrase: why it gets none, what troubles it.
    pub notes: Vec<String>,
}

impl NodeState {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            NodeState::Up => "up",
            NodeState::Silent => "silent",
            NodeState::Down => "down",
            NodeState::Drained => "drained",
            NodeState::Left => "left",
        }
    }
}

/// Every agent of the ledger.
pub(super) fn all(reign: &Reign, ledger: &Ledger, now: u64) -> Vec<NodeView> {
    let reachable = reign.reachable();
    ledger
        .agents()
        .map(|agent| {
            let life = reign.lives.get(&**agent.id());
            let session = life.and_then(|l| l.session).and_then(|id| reign.sessions.get(&id));
            NodeView {
                agent_id: agent.id().to_string(),
                state: state(agent, life, session),
                last_word_ms: life.and_then(|life| life.last_word_ms(now)),
                reachable: reachable.contains(&**agent.id()),
                refuses: life.filter(|life| !life.is_lost()).and_then(Life::refuses),
                notes: agent
                    .drained()
                    .map(|drained| drained.words())
                    .into_iter()
                    .chain(notes(life, session))
                    .collect(),
            }
        })
        .collect()
}

fn state(agent: &Agent, life: Option<&Life>, session: Option<&Session>) -> NodeState {
    let dead = matches!(
        agent.session(),
        ledger::Session::Down(DownWhy::Died | DownWhy::Left | DownWhy::Goodbye)
    );
    match life.map(|life| life.pulse) {
        Some(super::life::Pulse::Lost { cause: DownCause::Silence, .. }) => NodeState::Silent,
        Some(super::life::Pulse::Lost { cause: DownCause::Leave, .. }) => NodeState::Left,
        Some(super::life::Pulse::Lost { .. }) => NodeState::Down,
        _ if session.is_some() && agent.drained().is_some() => NodeState::Drained,
        _ if session.is_some() => NodeState::Up,
        _ if dead => NodeState::Down,
        _ => NodeState::Silent,
    }
}

fn notes(life: Option<&Life>, session: Option<&Session>) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(life) = life else { return notes };
    if !life.problem.is_empty() {
        notes.push(life.problem.clone());
    }
    if life.disk_full {
        notes.push("its disk is full: no new jobs".to_owned());
    }
    if life.unvouched {
        notes.push("its keeper does not answer".to_owned());
    }
    match session {
        Some(session) if session.goodbye.is_some() => notes.push("it said goodbye".to_owned()),
        Some(session) if !session.judged => notes.push("its manifest is being judged".to_owned()),
        _ => {}
    }
    notes
}
