//! The constraints: may this ask run on that node now? Each is one function in one list; the
//! first that says no is the reason that people are told.

use super::view::Free;
use crate::ledger::{Agent, Ask};
use crate::words;
use proto::{JobId, TaskId};
use std::fmt;
use std::sync::Arc;

/// Why a node does not take a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Another node was asked for by name.
    OtherNode {
        /// The one asked for.
        asked: String,
    },
    /// It lacks a label.
    Label {
        /// Key asked for.
        key: String,
        /// Value asked for.
        value: String,
    },
    /// It could never run it: of these it has too little in all.
    TooSmall {
        /// What is short.
        short: Vec<Short>,
    },
    /// It gets no new tasks until it is undrained.
    Drained {
        /// By whom and why.
        why: String,
    },
    /// It has a fault and is tried again later.
    KeptOut {
        /// The step that failed.
        step: String,
        /// What the system said.
        message: String,
        /// Tried again in, ms of led time.
        left_ms: u64,
    },
    /// It had a fault, and another task shows first whether it works again.
    OnTrial {
        /// The step that failed.
        step: String,
        /// What the system said.
        message: String,
    },
    /// Another job runs there under the same id, which this log forgot.
    IdTaken {
        /// The id.
        job: JobId,
    },
    /// It is in use: of these too little is free.
    Busy {
        /// What is short.
        short: Vec<Short>,
    },
    /// It is kept for a task that comes before, and this one could delay that.
    KeptFor {
        /// For which.
        task: TaskId,
        /// When that starts at the latest, wall ms; `None`: nobody knows.
        at_wall_ms: Option<u64>,
    },
    /// It was heard, and says itself that it takes no jobs now.
    TakesNone {
        /// Its own words.
        why: String,
    },
    /// It cannot get orders now.
    Unreachable {
        /// Why, in words.
        why: String,
    },
}

/// Something of which there is less than is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Short {
    /// Of what.
    pub what: Resource,
    /// How much is asked.
    pub asked: u64,
    /// How much there is.
    pub has: u64,
}

/// What nodes have, and the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Cpus.
    Cpus,
    /// Memory, bytes.
    Memory,
    /// GPUs.
    Gpus,
    /// A named consumable.
    Named(Arc<str>),
}

/// A node that runs a stray of that id would refuse the order: two attempts of one task never live at
/// once (P6). This is asked task by task, and not as the constraints are, ask by ask.
pub fn id_taken(agent: &Agent, job: JobId) -> Option<Refusal> {
    let taken = agent.strays().iter().any(|stray| stray.task.job == job);
    taken.then_some(Refusal::IdTaken { job })
}

type Constraint = fn(&Ask, &Agent, &Free, u64) -> Option<Refusal>;

/// In this order: what will never be before what is not now.
const CONSTRAINTS: [Constraint; 7] =
    [named, labelled, large_enough, not_drained, not_kept_out, not_on_trial, free_enough];

/// The first reason why the node does not take the ask at that led time; `None`: it does.
pub fn feasible(ask: &Ask, agent: &Agent, free: &Free, led_ms: u64) -> Option<Refusal> {
    CONSTRAINTS.iter().find_map(|constraint| constraint(ask, agent, free, led_ms))
}

/// All of them. What will never be is told alone: it does not help to know what is in use beside.
pub fn refusals(ask: &Ask, agent: &Agent, free: &Free, led_ms: u64) -> Vec<Refusal> {
    let all = CONSTRAINTS.iter().filter_map(|constraint| constraint(ask, agent, free, led_ms));
    let mut all: Vec<Refusal> = all.collect();
    if all.iter().any(Refusal::never) {
        all.retain(Refusal::never);
    }
    all
}

fn named(ask: &Ask, agent: &Agent, _: &Free, _: u64) -> Option<Refusal> {
    let asked = ask.node.as_ref()?;
    (asked != agent.name()).then(|| Refusal::OtherNode { asked: asked.clone() })
}

fn labelled(ask: &Ask, agent: &Agent, _: &Free, _: u64) -> Option<Refusal> {
    let (key, value) =
        ask.labels.iter().find(|(key, value)| agent.label(key) != Some(value.as_str()))?;
    Some(Refusal::Label { key: key.clone(), value: value.clone() })
}

fn large_enough(ask: &Ask, agent: &Agent, free: &Free, _: u64) -> Option<Refusal> {
    let least = [
        (Resource::Cpus, u64::from(ask.cpus), u64::from(agent.cpus())),
        (Resource::Memory, ask.mem_bytes, agent.mem_bytes()),
        (Resource::Gpus, u64::from(ask.gpus), u64::from(agent.gpus())),
    ];
    let named = free
        .of_node(ask)
        .map(|(name, asked)| (Resource::Named(Arc::clone(name)), asked, agent.offers(name)));
    let short: Vec<Short> = least.into_iter().chain(named).filter_map(Short::of).collect();
    (!short.is_empty()).then_some(Refusal::TooSmall { short })
}

fn not_drained(_: &Ask, agent: &Agent, _: &Free, _: u64) -> Option<Refusal> {
    agent.drained().map(|drained| Refusal::Drained { why: drained.words() })
}

fn not_kept_out(_: &Ask, agent: &Agent, _: &Free, led_ms: u64) -> Option<Refusal> {
    let fault = agent.kept_out(led_ms)?;
    Some(Refusal::KeptOut {
        step: fault.failure.step.clone(),
        message: fault.words(),
        left_ms: fault.until_led_ms.saturating_sub(led_ms),
    })
}

/// A node whose every start may fail costs one task at a time, not as many as it has cpus.
fn not_on_trial(_: &Ask, agent: &Agent, free: &Free, _: u64) -> Option<Refusal> {
    let fault = agent.fault().filter(|_| free.on_trial)?;
    Some(Refusal::OnTrial { step: fault.failure.step.clone(), message: fault.words() })
}

fn free_enough(ask: &Ask, _: &Agent, free: &Free, _: u64) -> Option<Refusal> {
    let short: Vec<Short> = shortages(ask, free).collect();
    (!short.is_empty()).then_some(Refusal::Busy { short })
}

/// What of the ask is not there, of all that a node gives.
pub(super) fn shortages(ask: &Ask, has: &Free) -> impl Iterator<Item = Short> {
    let least = [
        (Resource::Cpus, u64::from(ask.cpus), has.cpus),
        (Resource::Memory, ask.mem_bytes, has.mem_bytes),
        (Resource::Gpus, u64::from(ask.gpus), has.gpus),
    ];
    let named = has.of_node(ask).map(|(name, asked)| {
        (Resource::Named(Arc::clone(name)), asked, has.named.get(name).copied().unwrap_or(0))
    });
    least.into_iter().chain(named).filter_map(Short::of)
}

impl Short {
    /// Of what is asked, and what there is; `None`: there is enough.
    pub(super) fn of((what, asked, has): (Resource, u64, u64)) -> Option<Short> {
        (asked > has).then_some(Short { what, asked, has })
    }

    /// How much is missing, in permille of what is asked.
    pub(super) fn missing(&self) -> u64 {
        let part = u128::from(self.asked - self.has) * 1_000 / u128::from(self.asked.max(1));
        u64::try_from(part).unwrap_or(1_000)
    }

    /// `cpus: 4 asked, 2 free`.
    fn told(&self, left: &str) -> String {
        let (asked, has) = (self.what.amount(self.asked), self.what.amount(self.has));
        format!("{}: {asked} asked, {has} {left}", self.what)
    }
}

/// All that is short, in one line.
pub(super) fn told(short: &[Short], left: &str) -> String {
    let told: Vec<String> = short.iter().map(|short| short.told(left)).collect();
    told.join("; ")
}

impl Refusal {
    /// Whether waiting alone cannot help.
    pub fn never(&self) -> bool {
        matches!(self, Refusal::OtherNode { .. } | Refusal::Label { .. } | Refusal::TooSmall { .. })
    }
}

impl Resource {
    pub(super) fn amount(&self, n: u64) -> String {
        match self {
            Resource::Memory => words::size(n),
            Resource::Cpus | Resource::Gpus | Resource::Named(_) => n.to_string(),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Cpus => "cpus",
            Resource::Memory => "memory",
            Resource::Gpus => "gpus",
            Resource::Named(name) => name,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherNode { asked } => write!(f, "node {asked} is asked for"),
            Refusal::Label { key, value } => write!(f, "label {key}={value} is asked for"),
            Refusal::TooSmall { short } => f.write_str(&told(short, "in all")),
            Refusal::Drained { why } => f.write_str(why),
            Refusal::KeptOut { step, message, left_ms } => {
                let left = words::duration(*left_ms);
                write!(f, "kept out after {step}: {message}; tried again in {left}")
            }
            Refusal::OnTrial { step, message } => {
                write!(f, "had a fault ({step}: {message}): one task tries it first")
            }
            Refusal::IdTaken { job } => write!(
                f,
                "another job that has the id {job} still runs there, which this log forgot: docket \
                 nodes --strays"
            ),
            Refusal::Busy { short } => f.write_str(&told(short, "free")),
            Refusal::KeptFor { task, at_wall_ms: Some(at) } => {
                let at = words::time_of_day(*at);
                write!(f, "kept for {task}, which starts there by {at}: this one could delay that")
            }
            Refusal::KeptFor { task, at_wall_ms: None } => {
                write!(f, "kept for {task}, which waits there for jobs that have no time limit")
            }
            Refusal::TakesNone { why } => write!(f, "takes no jobs: {why}"),
            Refusal::Unreachable { why } => write!(f, "gets no new jobs: {why}"),
        }
    }
}
