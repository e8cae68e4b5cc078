//! What the nodes have free, as a plan sees it while it fills them.

use crate::ledger::{Agent, Ask, Job, Kind, Ledger};
use std::collections::{BTreeMap, BTreeSet};

/// Who may get orders now, and what those say of themselves who may not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reach {
    /// Ids of the agents that may.
    pub reachable: BTreeSet<String>,
    /// The own words of an agent that was heard and takes no jobs, by its id.
    pub refusing: BTreeMap<String, String>,
}

impl From<BTreeSet<String>> for Reach {
    fn from(reachable: BTreeSet<String>) -> Reach {
        Reach { reachable, refusing: BTreeMap::new() }
    }
}

/// Free resources of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Free {
    /// Cpus.
    pub cpus: u64,
    /// Memory in bytes.
    pub mem_bytes: u64,
    /// GPUs.
    pub gpus: u64,
    /// The node had a fault, and a task is on its way there that will show whether it works again.
    pub on_trial: bool,
}

impl Free {
    /// What is offered and not bound. A node that came back smaller has nothing free.
    pub fn of(agent: &Agent, ledger: &Ledger) -> Free {
        let used = ledger.used(agent.id());
        let under_way = |job: &Job| job.kind() == Kind::Dispatched;
        Free {
            on_trial: agent.fault().is_some() && ledger.held_by(agent.id()).any(under_way),
            cpus: u64::from(agent.cpus()).saturating_sub(used.cpus),
            mem_bytes: agent.mem_bytes().saturating_sub(used.mem_bytes),
            gpus: u64::from(agent.gpus()).saturating_sub(used.gpus),
        }
    }

    /// After a placement.
    pub(super) fn without(self, ask: &Ask) -> Free {
        Free {
            on_trial: self.on_trial,
            cpus: self.cpus.saturating_sub(u64::from(ask.cpus)),
            mem_bytes: self.mem_bytes.saturating_sub(ask.mem_bytes),
            gpus: self.gpus.saturating_sub(u64::from(ask.gpus)),
        }
    }
}

/// The nodes that may get orders now.
pub(super) struct View<'a> {
    pub nodes: Vec<(&'a Agent, Free)>,
    pub led_ms: u64,
}

impl<'a> View<'a> {
    pub fn of(ledger: &'a Ledger, reachable: &BTreeSet<String>) -> View<'a> {
        let nodes = ledger
            .agents()
            .filter(|agent| reachable.contains(&**agent.id()))
            .map(|agent| (agent, Free::of(agent, ledger)))
            .collect();
        View { nodes, led_ms: ledger.led() }
    }

    /// Whether any node could take anything: every task asks for a cpu at least.
    pub fn any_free(&self) -> bool {
        self.nodes.iter().any(|(_, free)| free.cpus > 0)
    }
}
