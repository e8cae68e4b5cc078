//! A pass: what goes where, and why the rest does not.

use super::feasible::{Refusal, feasible};
use super::order::{Head, heads};
use super::place::choose;
use super::pool::Missing;
use super::reserve::{Reservations, Soonest};
use super::rooms::{KeptBy, Rooms};
use super::view::{Free, View};
use crate::ledger::{Agent, Ask, Ledger, Line};
use proto::{AttemptId, TaskId, v1};
use std::collections::{BTreeMap, BTreeSet};
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

/// Places queued tasks, at most `max`, on the agents that may get orders, by the time of the newest entry.
pub fn plan(ledger: &Ledger, reachable: &BTreeSet<String>, max: usize) -> Plan {
    plan_at(ledger, reachable, ledger.led(), max)
}

/// The same at a later led time: in the order of the queue. One that fits goes past one that does not where
/// that cannot delay it.
pub fn plan_at(ledger: &Ledger, reachable: &BTreeSet<String>, led_ms: u64, max: usize) -> Plan {
    let view = View::of(ledger, reachable, led_ms);
    if !view.any_free() || ledger.pending_count() == 0 {
        return Plan::default();
    }
    let mut pass = Pass::new(ledger, view);
    pass.run(max, View::any_free);
    pass.plan
}

/// A pass while it goes on, and what it found.
pub(super) struct Pass<'a> {
    pub ledger: &'a Ledger,
    pub view: View<'a>,
    pub reservations: Reservations<'a>,
    pub plan: Plan,
    /// Why the lines that were left do not go on.
    pub left: BTreeMap<&'a Line, Left>,
    rooms: Rooms<'a>,
    /// What found no room: users do not matter to that, so it is looked for once.
    no_room: BTreeSet<(&'a Arc<Ask>, Option<u64>)>,
}

/// Why the first of a line is not placed, nor anything behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// A limit is reached.
    Limit(KeptBy),
    /// The cluster has too little of what it offers.
    Cluster(Missing),
    /// No node takes it now.
    NoRoom,
}

impl<'a> Pass<'a> {
    pub fn new(ledger: &'a Ledger, view: View<'a>) -> Pass<'a> {
        Pass {
            ledger,
            view,
            reservations: Reservations::default(),
            plan: Plan::default(),
            left: BTreeMap::new(),
            rooms: Rooms::new(ledger),
            no_room: BTreeSet::new(),
        }
    }

    /// Goes through the queue until nothing is left, or `max` are placed, or `on` says no.
    pub fn run(&mut self, max: usize, on: impl Fn(&View<'a>) -> bool) {
        let mut heads = heads(self.ledger);
        while self.plan.placements.len() < max
            && on(&self.view)
            && let Some(head) = heads.first()
        {
            // Who is kept from nodes by its id alone says nothing about those that ask the same.
            let alone = self.view.taken(head.task.job);
            if heads.full(head.task) {
                heads.passed();
            } else if let Some(by) = self.rooms.keeps(head.task, head.line) {
                self.limited(&head, by);
                heads.refused();
            } else if let Some(missing) = self.view.pool.missing(&head.line.ask) {
                self.cluster_short(&head, missing);
                heads.refused();
            } else if let Some(node) = self.node_for(&head, alone) {
                self.place(node, &head);
                heads.placed();
            } else if alone {
                heads.passed();
            } else {
                self.no_room(&head);
                heads.refused();
            }
        }
    }

    fn node_for(&self, head: &Head<'a>, alone: bool) -> Option<usize> {
        let known = self.no_room.contains(&(&head.line.ask, head.line.lasts_ms));
        if known && !alone {
            return None;
        }
        choose(head.line, head.task.job, &self.view, &self.reservations)
    }

    fn place(&mut self, node: usize, head: &Head<'a>) {
        let Some((agent, free)) = self.view.nodes.get_mut(node) else { return };
        free.take(&head.line.ask);
        self.view.pool.take(&head.line.ask);
        free.on_trial |= agent.fault().is_some();
        let attempt = AttemptId { task: head.task, attempt: head.job.attempt() };
        self.plan.placements.push(placement(attempt, agent));
        self.reservations.place(node, head.task, head.line, &self.view);
        self.rooms.take(head.line);
    }

    /// A limit keeps it. What is left of that is kept for it, if it could start otherwise: else those behind
    /// it would use it up for ever.
    fn limited(&mut self, head: &Head<'a>, by: KeptBy) {
        if by.could_start() && !self.nodes_of(head).is_empty() {
            self.rooms.close(&by, head.task);
        }
        self.left.insert(head.line, Left::Limit(by));
    }

    /// The cluster has too little of something: what is free of all that it asks is kept for it, if it could
    /// start otherwise. Else those behind it, that ask for less, would go on taking it.
    fn cluster_short(&mut self, head: &Head<'a>, missing: Missing) {
        if missing.could_start() && !self.nodes_of(head).is_empty() {
            self.view.pool.keep(head.task, &head.line.ask);
        }
        self.plan.unplaced.push(Unplaced { task: head.task, ask: Arc::clone(&head.line.ask) });
        self.left.insert(head.line, Left::Cluster(missing));
    }

    /// No node takes it now: one is kept for it.
    fn no_room(&mut self, head: &Head<'a>) {
        let ask = &head.line.ask;
        self.left.insert(head.line, Left::NoRoom);
        if !self.no_room.insert((ask, head.line.lasts_ms)) {
            return;
        }
        self.plan.unplaced.push(Unplaced { task: head.task, ask: Arc::clone(ask) });
        let nodes = self.nodes_of(head);
        if self.reservations.reserve(head.task, ask, &nodes, &self.view, self.ledger) {
            self.rooms.take(head.line);
            self.view.pool.keep(head.task, ask);
        }
    }

    /// The nodes that could run it, if they had room.
    fn nodes_of(&self, head: &Head<'a>) -> Vec<usize> {
        self.nodes_for(head.task, &head.line.ask)
    }

    /// Where it could start first if it were the next.
    pub fn soonest(&self, task: TaskId, ask: &Ask) -> Option<Soonest> {
        let nodes = self.nodes_for(task, ask);
        self.reservations.soonest(task, ask, &nodes, &self.view, self.ledger)
    }

    fn nodes_for(&self, task: TaskId, ask: &Ask) -> Vec<usize> {
        let could = |(agent, free): &(&Agent, Free)| {
            let refusal = feasible(ask, agent, free, self.view.led_ms);
            let busy = matches!(refusal, None | Some(Refusal::Busy { .. }));
            busy && !self.view.taken_on(task.job, agent)
        };
        let nodes = self.view.nodes.iter().enumerate();
        nodes.filter(|(_, node)| could(node)).map(|(number, _)| number).collect()
    }
}

fn placement(attempt: AttemptId, agent: &Agent) -> Placement {
    Placement {
        attempt,
        agent_id: Arc::clone(agent.id()),
        incarnation: agent.incarnation(),
        journal_id: Arc::clone(agent.journal_id()),
    }
}
