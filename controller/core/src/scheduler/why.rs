//! Why a queued task does not start: what a pass would say of it, and what each node says.

use super::feasible::{Refusal, Short, id_taken, refusals};
use super::plan::{Left, Pass};
use super::pool::{Missing, Pool};
use super::reserve::Kept;
use super::view::{Free, Reach, View};
use crate::ledger::{Agent, Ask, DownWhy, Kind, Ledger, Line, Session};
use proto::TaskId;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a queued task does not start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why {
    /// In one line, such as `cpus: 64 asked, 12 free`.
    pub summary: String,
    /// Node by node, by name.
    pub nodes: Vec<NodeVerdict>,
    /// The next pass starts it.
    pub starts: bool,
    /// The limit that keeps it from every node, in words.
    pub limit: Option<String>,
    /// What the cluster has too little of, which keeps it from every node as well.
    pub cluster: Option<Missing>,
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
    /// What else keeps the task from it.
    pub more: Vec<Refusal>,
}

/// When and where a queued task can start, by the limits of what runs there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// The node's agent.
    pub agent_id: Arc<str>,
    /// Its name.
    pub name: String,
    /// From when on at the latest, if nobody comes before it, and whose ends that takes.
    pub kept: Kept,
    /// The node is kept for it; else there are others before it.
    pub reserved: bool,
}

/// What a pass would say now, for any number of questions. It is made at the first that needs it.
pub struct Outlook<'a> {
    ledger: &'a Ledger,
    reach: Option<&'a Reach>,
    led_ms: u64,
    looked: OnceCell<Looked<'a>>,
}

struct Looked<'a> {
    pass: Pass<'a>,
    placed: BTreeSet<TaskId>,
    /// Number of each agent in the view.
    numbers: BTreeMap<&'a str, usize>,
}

/// Why a queued task does not start; `None` if it is not queued.
pub fn why(ledger: &Ledger, reach: &Reach, id: impl Into<TaskId>) -> Option<Why> {
    Outlook::new(ledger, reach, ledger.led()).why(id)
}

/// The same by what the ledger alone knows: whose session is joined and judged.
pub(crate) fn why_by_ledger(ledger: &Ledger, id: impl Into<TaskId>) -> Option<Why> {
    Outlook::by_ledger(ledger).why(id)
}

impl<'a> Outlook<'a> {
    /// By which agents may get orders now, at a led time.
    pub fn new(ledger: &'a Ledger, reach: &'a Reach, led_ms: u64) -> Outlook<'a> {
        Outlook { ledger, reach: Some(reach), led_ms, looked: OnceCell::new() }
    }

    /// By what the ledger alone knows: whose session is joined and judged.
    pub fn by_ledger(ledger: &'a Ledger) -> Outlook<'a> {
        Outlook { ledger, reach: None, led_ms: ledger.led(), looked: OnceCell::new() }
    }

    fn looked(&self) -> &Looked<'a> {
        self.looked.get_or_init(|| {
            let reachable = match self.reach {
                Some(reach) => reach.reachable.clone(),
                None => self.ledger.agents_up(),
            };
            let view = View::of(self.ledger, &reachable, self.led_ms);
            let mut pass = Pass::new(self.ledger, view);
            pass.run(usize::MAX, |_| true);
            let placed = pass.plan.placements.iter().map(|placed| placed.attempt.task).collect();
            let agents = pass.view.nodes.iter().enumerate();
            let numbers = agents.map(|(number, (agent, _))| (&**agent.id(), number)).collect();
            Looked { pass, placed, numbers }
        })
    }

    /// Why a queued task does not start; `None` if it is not queued.
    pub fn why(&self, id: impl Into<TaskId>) -> Option<Why> {
        let id = id.into();
        let job = self.ledger.job(id).filter(|job| job.kind() == Kind::Queued)?;
        let line = Line::of(job);
        let looked = self.looked();
        let starts = looked.placed.contains(&id);
        let mut nodes: Vec<NodeVerdict> = self
            .ledger
            .agents()
            .map(|agent| {
                let free = Free::of(agent, self.ledger);
                let mut verdict = look(self.ledger, agent, job.ask(), self.reach, free);
                if !verdict.never() {
                    verdict.refuse_also(id_taken(agent, id.job));
                }
                if verdict.refusal.is_none() {
                    verdict.refusal = looked.kept_for(agent, &line).filter(|_| !starts);
                }
                verdict
            })
            .collect();
        nodes.sort_by(|a, b| (&a.name, &a.agent_id).cmp(&(&b.name, &b.agent_id)));
        let limit = self.limit(id, &line);
        let cluster = self.cluster(id, &line);
        let summary = match (&limit, &cluster) {
            (None, None) => closest(&nodes),
            (limit, cluster) => {
                let limit = limit.iter().cloned().chain(cluster.iter().map(Missing::to_string));
                // What keeps it from the nodes as well is to be told: it stays when this has gone.
                let room = cluster.is_none() || nodes.iter().any(|node| node.refusal.is_none());
                let nodes = (!room && !nodes.is_empty()).then(|| closest(&nodes));
                limit.chain(nodes).collect::<Vec<_>>().join("; ")
            }
        };
        Some(Why { summary, nodes, starts, limit, cluster })
    }

    /// The limit that keeps a task from every node, in words.
    fn limit(&self, id: TaskId, line: &Line) -> Option<String> {
        let full = self.ledger.array(id.job).filter(|array| array.room() == Some(0));
        if let Some(limit) = full.and_then(|array| array.limit()) {
            return Some(format!("{limit} tasks of its array are on nodes, its limit"));
        }
        let looked = self.looked();
        match looked.pass.left.get(line).filter(|_| !looked.placed.contains(&id))? {
            Left::Limit(by) => Some(by.words(self.ledger)),
            Left::Cluster(_) | Left::NoRoom => None,
        }
    }

    /// What the cluster has too little of for a task. One that another limit keeps was not asked in the pass.
    fn cluster(&self, id: TaskId, line: &Line) -> Option<Missing> {
        let looked = self.looked();
        match looked.pass.left.get(line).filter(|_| !looked.placed.contains(&id))? {
            Left::Cluster(missing) => Some(missing.clone()),
            Left::Limit(_) => Pool::of(self.ledger).missing(&line.ask),
            Left::NoRoom => None,
        }
    }

    /// When and where a queued task can start; `None` if no node could run it now, or a limit keeps it.
    pub fn start(&self, id: impl Into<TaskId>) -> Option<Start> {
        let id = id.into();
        let job = self.ledger.job(id).filter(|job| job.kind() == Kind::Queued)?;
        let pass = &self.looked().pass;
        let (number, kept, reserved) = match pass.reservations.of(id) {
            Some((number, kept)) => (number, kept.clone(), true),
            None if self.limit(id, &Line::of(job)).is_some() => return None,
            None if self.cluster(id, &Line::of(job)).is_some() => return None,
            None => {
                let soonest = pass.soonest(id, job.ask())?;
                (soonest.node, soonest.kept, false)
            }
        };
        let (agent, _) = pass.view.nodes.get(number)?;
        let (agent_id, name) = (Arc::clone(agent.id()), agent.name().to_owned());
        Some(Start { agent_id, name, kept, reserved })
    }
}

impl Looked<'_> {
    /// Another task for which a node is kept, so that none of that line may go there.
    fn kept_for(&self, agent: &Agent, line: &Line) -> Option<Refusal> {
        let number = *self.numbers.get(&**agent.id())?;
        let kept = self.pass.reservations.on(number)?;
        let allowed = self.pass.reservations.allow(number, line, &self.pass.view);
        let refusal = || Refusal::KeptFor { task: kept.task, at_wall_ms: kept.at_wall_ms };
        (!allowed).then(refusal)
    }
}

/// What a node says to an ask. What will never be is told before what is not now.
pub(super) fn look(
    ledger: &Ledger,
    agent: &Agent,
    ask: &Ask,
    reach: Option<&Reach>,
    free: Free,
) -> NodeVerdict {
    let mut all = refusals(ask, agent, &free, ledger.led());
    if !all.iter().any(Refusal::never)
        && let Some(away) = away(agent, reach)
    {
        all.insert(0, away);
    }
    let (agent_id, name) = (Arc::clone(agent.id()), agent.name().to_owned());
    let mut all = all.into_iter();
    let refusal = all.next();
    NodeVerdict { agent_id, name, free, refusal, more: all.collect() }
}

/// Why an agent gets no orders now at all.
fn away(agent: &Agent, reach: Option<&Reach>) -> Option<Refusal> {
    let Some(reach) = reach else {
        return (agent.session() != Session::Up).then(|| unreachable(agent));
    };
    match reach.refusing.get(&**agent.id()) {
        _ if reach.reachable.contains(&**agent.id()) => None,
        Some(why) => Some(Refusal::TakesNone { why: why.clone() }),
        None => Some(unreachable(agent)),
    }
}

impl NodeVerdict {
    /// Whether waiting alone cannot help.
    pub fn never(&self) -> bool {
        self.refusal.as_ref().is_some_and(Refusal::never)
    }

    /// Why it does not take the task, all of it, in words.
    pub fn words(&self) -> Option<String> {
        let all: Vec<String> =
            self.refusal.iter().chain(&self.more).map(Refusal::to_string).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn refuse_also(&mut self, refusal: Option<Refusal>) {
        match (&self.refusal, refusal) {
            (None, refusal) => self.refusal = refusal,
            // Before what is in use: that may pass sooner.
            (Some(Refusal::Busy { .. }), Some(also)) => {
                self.more.extend(self.refusal.replace(also));
            }
            (Some(_), also) => self.more.extend(also),
        }
    }
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
pub(super) fn closest(nodes: &[NodeVerdict]) -> String {
    if nodes.is_empty() {
        return "no node has joined".to_owned();
    }
    let rank = |node: &NodeVerdict| match &node.refusal {
        None => (0, 0),
        Some(Refusal::KeptFor { .. }) => (0, 1),
        Some(Refusal::Busy { short }) => (1, u64::MAX - short.first().map_or(0, |s| s.has)),
        Some(Refusal::IdTaken { .. } | Refusal::OnTrial { .. }) => (2, 0),
        Some(Refusal::Drained { .. }) => (3, 1),
        Some(Refusal::KeptOut { left_ms, .. }) => (2, *left_ms),
        Some(Refusal::TakesNone { .. } | Refusal::Unreachable { .. }) => (3, 0),
        Some(Refusal::TooSmall { short }) => (4, short.iter().map(Short::missing).sum()),
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
