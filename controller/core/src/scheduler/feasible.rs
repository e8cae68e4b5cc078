//! The constraints: may this ask run on that node now? Each is one function in one list; the
//! first that says no is the reason that people are told.

use super::view::Free;
use crate::ledger::{Agent, Ask};
use crate::words;
use proto::{JobId, TaskId};
use std::fmt;

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
    /// It could never run it.
    TooSmall {
        /// Of what.
        what: Resource,
        /// How much is asked.
        asked: u64,
        /// How much it has in all.
        has: u64,
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
    /// It is in use.
    Busy {
        /// Of what.
        what: Resource,
        /// How much is asked.
        asked: u64,
        /// How much is free.
        free: u64,
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

/// What nodes have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Cpus.
    Cpus,
    /// Memory, bytes.
    Memory,
    /// GPUs.
    Gpus,
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

fn named(ask: &Ask, agent: &Agent, _: &Free, _: u64) -> Option<Refusal> {
    let asked = ask.node.as_ref()?;
    (asked != agent.name()).then(|| Refusal::OtherNode { asked: asked.clone() })
}

fn labelled(ask: &Ask, agent: &Agent, _: &Free, _: u64) -> Option<Refusal> {
    let (key, value) =
        ask.labels.iter().find(|(key, value)| agent.label(key) != Some(value.as_str()))?;
    Some(Refusal::Label { key: key.clone(), value: value.clone() })
}

fn large_enough(ask: &Ask, agent: &Agent, _: &Free, _: u64) -> Option<Refusal> {
    let all = Free {
        cpus: u64::from(agent.cpus()),
        mem_bytes: agent.mem_bytes(),
        gpus: u64::from(agent.gpus()),
        on_trial: false,
    };
    let (what, asked, has) = shortage(ask, &all)?;
    Some(Refusal::TooSmall { what, asked, has })
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
    let (what, asked, free) = shortage(ask, free)?;
    Some(Refusal::Busy { what, asked, free })
}

/// What of the ask is not there: of what, how much is asked, and how much there is.
pub(super) fn shortage(ask: &Ask, has: &Free) -> Option<(Resource, u64, u64)> {
    [
        (Resource::Cpus, u64::from(ask.cpus), has.cpus),
        (Resource::Memory, ask.mem_bytes, has.mem_bytes),
        (Resource::Gpus, u64::from(ask.gpus), has.gpus),
    ]
    .into_iter()
    .find(|(_, asked, has)| asked > has)
}

impl Refusal {
    /// Whether waiting alone cannot help.
    pub fn never(&self) -> bool {
        matches!(self, Refusal::OtherNode { .. } | Refusal::Label { .. } | Refusal::TooSmall { .. })
    }
}

impl Resource {
    fn amount(self, n: u64) -> String {
        match self {
            Resource::Memory => words::size(n),
            Resource::Cpus | Resource::Gpus => n.to_string(),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Cpus => "cpus",
            Resource::Memory => "memory",
            Resource::Gpus => "gpus",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherNode { asked } => write!(f, "node {asked} is asked for"),
            Refusal::Label { key, value } => write!(f, "label {key}={value} is asked for"),
            Refusal::TooSmall { what, asked, has } => {
                let (asked, has) = (what.amount(*asked), what.amount(*has));
                write!(f, "{what}: {asked} asked, {has} in all")
            }
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
            Refusal::Busy { what, asked, free } => {
                let (asked, free) = (what.amount(*asked), what.amount(*free));
                write!(f, "{what}: {asked} asked, {free} free")
            }
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
