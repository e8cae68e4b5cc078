//! Reservations: the first task in the queue that a node could run, and that finds no room now, gets the
//! node where it can start soonest kept for it. What stands behind it may use that node only where this
//! cannot delay it (EASY backfill, docs/adr/0011-order.md). Nothing of this is stored: each pass finds it
//! anew from what runs and when that must end.

use super::view::{Free, View};
use crate::ledger::{Ask, Grant, Job, Kind, Ledger, Line, kill_grace};
use proto::TaskId;
use std::collections::BTreeMap;

/// What a start may come later than the pass that placed it, in ms: a task that goes before a
/// reservation has to end by so much earlier.
const MARGIN_MS: u64 = 2_000;

/// A node that is kept for a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// For which.
    pub task: TaskId,
    /// From when on at the latest, wall ms, by the time limits of what runs there; `None`: something that
    /// it waits for has no limit.
    pub at_wall_ms: Option<u64>,
    /// Whose ends it waits for.
    pub after: Vec<TaskId>,
    /// What the others may use of the node beside it.
    spare: Free,
}

/// All reservations of a pass, by the number of the node in its view.
#[derive(Default)]
pub(super) struct Reservations<'a> {
    by_node: BTreeMap<usize, Kept>,
    /// What was placed in this pass.
    placed: BTreeMap<usize, Vec<End<'a>>>,
}

/// When something leaves a node, and what it gives back.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'a> {
    pub at_wall_ms: Option<u64>,
    task: TaskId,
    gives: Gives<'a>,
}

/// What was given by an assignment, or will be by this pass.
#[derive(Clone, Copy, Debug)]
enum Gives<'a> {
    Grant(&'a Grant),
    Ask(&'a Ask),
}

/// When an ask fits on a node.
pub(super) struct Soonest {
    pub node: usize,
    pub kept: Kept,
    missing: u64,
}

impl<'a> Reservations<'a> {
    /// What is reserved on a node.
    pub fn on(&self, node: usize) -> Option<&Kept> {
        self.by_node.get(&node)
    }

    /// The node that is kept for a task.
    pub fn of(&self, task: TaskId) -> Option<(usize, &Kept)> {
        self.by_node.iter().find(|(_, kept)| kept.task == task).map(|(node, kept)| (*node, kept))
    }

    /// Whether tasks of that line may go on a node now without delaying whom it is kept for.
    pub fn allow(&self, node: usize, line: &Line, view: &View<'_>) -> bool {
        let Some(kept) = self.on(node) else { return true };
        kept.gone_before(line, view) || kept.spare.covers(&line.ask)
    }

    /// A task of that line goes on a node now.
    pub fn place(&mut self, node: usize, task: TaskId, line: &'a Line, view: &View<'_>) {
        let at_wall_ms = line.lasts_ms.map(|lasts| view.now_wall_ms.saturating_add(lasts));
        let (ask, ends) = (&line.ask, self.placed.entry(node).or_default());
        ends.push(End { at_wall_ms, task, gives: Gives::Ask(ask) });
        if let Some(kept) = self.by_node.get_mut(&node)
            && !kept.gone_before(line, view)
        {
            kept.spare.take(ask);
        }
    }

    /// Keeps one of these nodes for a task, unless one of them is kept for somebody already: then it comes
    /// after those. True if one is kept.
    pub fn reserve(
        &mut self,
        task: TaskId,
        ask: &Ask,
        nodes: &[usize],
        view: &View<'_>,
        ledger: &Ledger,
    ) -> bool {
        if nodes.iter().any(|node| self.by_node.contains_key(node)) {
            return false;
        }
        let Some(soonest) = self.soonest(task, ask, nodes, view, ledger) else { return false };
        self.by_node.insert(soonest.node, soonest.kept);
        true
    }

    /// On which of these nodes an ask fits first, if nothing else went there.
    pub fn soonest(
        &self,
        task: TaskId,
        ask: &Ask,
        nodes: &[usize],
        view: &View<'_>,
        ledger: &Ledger,
    ) -> Option<Soonest> {
        let on = |node: &usize| self.soonest_on(*node, task, ask, view, ledger);
        let rank = |s: &Soonest| (s.kept.at_wall_ms.unwrap_or(u64::MAX), s.missing, s.node);
        nodes.iter().filter_map(on).min_by_key(rank)
    }

    fn soonest_on(
        &self,
        node: usize,
        task: TaskId,
        ask: &Ask,
        view: &View<'_>,
        ledger: &Ledger,
    ) -> Option<Soonest> {
        let (agent, now) = view.nodes.get(node)?;
        let missing = now.missing(ask);
        if now.covers(ask) {
            let (at_wall_ms, spare) = (Some(view.now_wall_ms), now.clone().without(ask));
            let kept = Kept { task, at_wall_ms, after: Vec::new(), spare };
            return Some(Soonest { node, kept, missing });
        }
        let held = ledger.held_by(agent.id()).chain(ledger.waiting_on(agent.id()));
        let placed = self.placed.get(&node).into_iter().flatten().copied();
        let mut ends: Vec<End<'_>> = held.filter_map(End::of).chain(placed).collect();
        ends.sort_by_key(|end| (end.at_wall_ms.unwrap_or(u64::MAX), end.task));
        let (mut free, mut at_wall_ms, mut after) = (now.clone(), None, Vec::new());
        for end in &ends {
            // What ends at the same time as the last one that is needed is free by then as well.
            if at_wall_ms.is_some() && at_wall_ms < end.at_wall_ms || end.at_wall_ms.is_none() {
                break;
            }
            free = match end.gives {
                Gives::Grant(grant) => free.after(grant),
                Gives::Ask(ask) => free.with_back(ask),
            };
            after.push(end.task);
            if at_wall_ms.is_none() && free.covers(ask) {
                at_wall_ms = end.at_wall_ms.map(|at| at.max(view.now_wall_ms));
            }
        }
        if at_wall_ms.is_none() {
            free = now.clone();
            after = ends.iter().map(|end| end.task).collect();
        }
        let kept = Kept { task, at_wall_ms, after, spare: free.without(ask) };
        Some(Soonest { node, kept, missing })
    }
}

impl Kept {
    /// Whether a task of that line that starts now has surely left before.
    fn gone_before(&self, line: &Line, view: &View<'_>) -> bool {
        let ends = line.lasts_ms.map(|lasts| view.now_wall_ms.saturating_add(lasts));
        match (ends, self.at_wall_ms) {
            (Some(ends), Some(at)) => ends.saturating_add(MARGIN_MS) <= at,
            _ => false,
        }
    }
}

impl<'a> End<'a> {
    /// Of what is bound on a node. A task that is stopped ends nobody knows when, and so does an attempt that
    /// is closed and not proven dead. One that was stopped before runs longer than this says: whoever waits
    /// for it does so from then on without anybody going before.
    pub fn of(job: &'a Job) -> Option<End<'a>> {
        let grant = job.state().binding()?;
        let runs = !job.stopped() && job.kind() != Kind::Waiting;
        let limit = job.time_limit_ms().filter(|_| runs);
        let lasts = limit.map(|limit| limit.saturating_add(kill_grace(job)));
        Some(End {
            at_wall_ms: lasts.map(|lasts| grant.wall_ms.saturating_add(lasts)),
            task: job.task_id(),
            gives: Gives::Grant(grant),
        })
    }
}
