//! A pass: what goes where, and why the rest does not.

use super::feasible::{Refusal, feasible, id_taken};
use super::order::heads;
use super::place::choose;
use super::view::{Free, Reach, View};
use crate::ledger::{Agent, Ask, DownWhy, Kind, Ledger, Session};
use proto::{AttemptId, TaskId, v1};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a pass decided.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// What goes where, in scheduling order.
    pub placements: Vec<Placement>,
    /// What was looked at and found no room: one for all tasks that ask the same.
    pub unplaced: Vec<Unplaced>,
}

/// One task on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Which attempt.
    pub attempt: AttemptId,
    /// On which agent.
    pub agent_id: Arc<str>,
    /// In which of its sessions.
    pub incarnation: u64,
    /// Of which journal.
    pub journal_id: Arc<[u8]>,
}

/// An ask that no node takes now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unplaced {
    /// The first task in the queue that asks it.
    pub task: TaskId,
    /// What is asked.
    pub ask: Arc<Ask>,
}

/// Why a queued task does not start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why {
    /// In one line, such as `cpus: 64 asked, 12 free`.
    pub summary: String,
    /// Node by node, by name.
    pub nodes: Vec<NodeVerdict>,
}

/// What one node says to a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeVerdict {
    /// Its agent's id.
    pub agent_id: Arc<str>,
    /// Its name.
    pub name: String,
    /// Cpus, memory and GPUs it has free now.
    pub free: Free,
    /// Why it does not take the task; `None`: it would.
    pub refusal: Option<Refusal>,
}

impl Placement {
    /// The command that makes it durable.
    pub fn to_command(&self) -> v1::Command {
        let assign = v1::AssignCommand {
            attempt: Some(self.attempt.to_wire()),
            agent_id: self.agent_id.to_string(),
            incarnation: self.incarnation,
            journal_id: self.journal_id.to_vec(),
        };
        v1::Command { kind: Some(v1::command::Kind::Assign(assign)) }
    }
}

/// Places queued tasks, at most `max`, on the agents that may get orders: priority first, then
/// the order of submits; a task that fits goes past one that does not.
pub fn plan(ledger: &Ledger, reachable: &BTreeSet<String>, max: usize) -> Plan {
    let mut plan = Plan::default();
    let mut view = View::of(ledger, reachable);
    if !view.any_free() || ledger.pending_count() == 0 {
        return plan;
    }
    let mut heads = heads(ledger);
    while plan.placements.len() < max
        && view.any_free()
        && let Some((id, ask, line)) = heads.first()
    {
        let place = choose(ask, id.job, &view).and_then(|number| view.nodes.get_mut(number));
        let (Some((agent, free)), Some(job)) = (place, ledger.job(id)) else {
            plan.unplaced.push(Unplaced { task: id, ask: Arc::clone(ask) });
            // Who is kept from nodes by its id alone says nothing about those that ask the same.
            match view.taken(id.job) {
                true => heads.passed(line),
                false => heads.refused(),
            }
            continue;
        };
        *free = free.without(ask);
        free.on_trial |= agent.fault().is_some();
        plan.placements.push(placement(AttemptId { task: id, attempt: job.attempt() }, agent));
        heads.placed(line);
    }
    plan
}

fn placement(attempt: AttemptId, agent: &Agent) -> Placement {
    Placement {
        attempt,
        agent_id: Arc::clone(agent.id()),
        incarnation: agent.incarnation(),
        journal_id: Arc::clone(agent.journal_id()),
    }
}

/// Why a queued task does not start; `None` if it is not queued.
pub fn why(ledger: &Ledger, reach: &Reach, id: impl Into<TaskId>) -> Option<Why> {
    let away = |agent: &Agent| match reach.refusing.get(&**agent.id()) {
        _ if reach.reachable.contains(&**agent.id()) => None,
        Some(why) => Some(Refusal::TakesNone { why: why.clone() }),
        None => Some(unreachable(agent)),
    };
    why_where(ledger, away, id.into())
}

/// The same by what the ledger alone knows: whose session is joined and judged.
pub(crate) fn why_by_ledger(ledger: &Ledger, id: impl Into<TaskId>) -> Option<Why> {
    let away = |agent: &Agent| (agent.session() != Session::Up).then(|| unreachable(agent));
    why_where(ledger, away, id.into())
}

/// `away`: why an agent gets no orders now at all.
fn why_where(ledger: &Ledger, away: impl Fn(&Agent) -> Option<Refusal>, id: TaskId) -> Option<Why> {
    let job = ledger.job(id).filter(|job| job.kind() == Kind::Queued)?;
    let ask = job.ask();
    let mut nodes: Vec<NodeVerdict> = ledger
        .agents()
        .map(|agent| {
            let free = Free::of(agent, ledger);
            // What will never be is told before what is not now.
            let refusal = feasible(ask, agent, &free, ledger.led());
            let never = refusal.clone().filter(Refusal::never);
            let refusal =
                never.or_else(|| away(agent)).or_else(|| id_taken(agent, id.job)).or(refusal);
            let (agent_id, name) = (Arc::clone(agent.id()), agent.name().to_owned());
            NodeVerdict { agent_id, name, free, refusal }
        })
        .collect();
    nodes.sort_by(|a, b| (&a.name, &a.agent_id).cmp(&(&b.name, &b.agent_id)));
    let full = ledger.array(id.job).filter(|array| array.room() == Some(0));
    let summary = match full.and_then(|array| array.limit()) {
        Some(limit) => format!("{limit} tasks of its array are on nodes, its limit"),
        None => summary(&nodes),
    };
    Some(Why { summary, nodes })
}

fn unreachable(agent: &Agent) -> Refusal {
    let why = match agent.session() {
        Session::Joining => "its manifest is not judged yet",
        Session::Up => "it is silent",
        Session::Down(DownWhy::Silent) => "silent",
        Session::Down(why) => why.as_str(),
    };
    Refusal::Unreachable { why: why.to_owned() }
}

/// The most helpful of the reasons: that of the node which could take it soonest.
fn summary(nodes: &[NodeVerdict]) -> String {
    if nodes.is_empty() {
        return "no node has joined".to_owned();
    }
    let rank = |node: &NodeVerdict| match &node.refusal {
        None => (0, 0),
        Some(Refusal::Busy { free, .. }) => (1, u64::MAX - free),
        Some(Refusal::IdTaken { .. } | Refusal::OnTrial { .. }) => (2, 0),
        Some(Refusal::Drained { .. }) => (3, 1),
        Some(Refusal::KeptOut { left_ms, .. }) => (2, *left_ms),
        Some(Refusal::TakesNone { .. } | Refusal::Unreachable { .. }) => (3, 0),
        Some(Refusal::TooSmall { asked, has, .. }) => (4, 1_000 - permille(*has, *asked)),
        Some(Refusal::OtherNode { .. } | Refusal::Label { .. }) => (5, 0),
    };
    let Some(best) = nodes.iter().min_by_key(|node| rank(node)) else { return String::new() };
    match &best.refusal {
        None => "waits its turn".to_owned(),
        Some(refusal @ Refusal::Busy { .. }) => refusal.to_string(),
        Some(Refusal::OtherNode { asked }) => format!("no node is named {asked}"),
        Some(Refusal::Label { key, value }) => format!("no node has the label {key}={value}"),
        Some(refusal @ Refusal::TooSmall { .. }) => {
            let closest = if nodes.len() > 1 { ", the closest" } else { "" };
            format!("no node is large enough: {refusal} on {}{closest}", best.name)
        }
        Some(refusal) => format!("{} {refusal}", best.name),
    }
}

/// How much of what is asked a node has that is too small for it.
fn permille(has: u64, asked: u64) -> u64 {
    let part = u128::from(has) * 1_000 / u128::from(asked.max(1));
    u64::try_from(part).unwrap_or(1_000).min(1_000)
}
