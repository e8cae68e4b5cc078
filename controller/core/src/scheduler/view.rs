//! What the nodes have free, as a plan sees it while it fills them.

use super::feasible::{Short, shortages};
use super::pool::Pool;
use crate::ledger::{Agent, Amounts, Ask, Grant, Job, Kind, Ledger};
use proto::JobId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Free {
    /// Cpus.
    pub cpus: u64,
    /// Memory in bytes.
    pub mem_bytes: u64,
    /// GPUs.
    pub gpus: u64,
    /// The node had a fault, and a task is on its way there that will show whether it works again.
    pub on_trial: bool,
    /// Named consumables of the node.
    pub named: Amounts,
    /// Gpus that it has: those beyond, of before it came back with fewer, are not given again.
    most_gpus: u32,
    /// Named consumables of the cluster: no node gives them.
    wide: Arc<Amounts>,
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
            gpus: used.free_gpus(agent.gpus()),
            named: agent
                .resources()
                .filter(|(name, _)| !ledger.offers().contains_key(*name))
                .map(|(name, all)| (name.into(), all.saturating_sub(of(&used.named, name))))
                .collect(),
            most_gpus: agent.gpus(),
            wide: Arc::clone(ledger.offers()),
        }
    }

    /// Of what an ask names, what a node gives.
    pub(super) fn of_node<'a>(
        &self,
        ask: &'a Ask,
    ) -> impl Iterator<Item = (&'a Arc<str>, u64)> + use<'a, '_> {
        let named = ask.resources.iter().filter(|(name, _)| !self.wide.contains_key(*name));
        named.map(|(name, amount)| (name, *amount))
    }

    /// After the end of an attempt that was given that much.
    pub(super) fn after(self, grant: &Grant) -> Free {
        let most = self.most_gpus;
        let gpus = match grant.given.as_deref().map(|given| &given.gpus) {
            Some(ids) if !ids.is_empty() => ids.iter().filter(|id| **id < most).count() as u64,
            _ => u64::from(grant.gpus),
        };
        let mut free = self.with(u64::from(grant.cpus), grant.mem_bytes, gpus);
        for (name, amount) in grant.given.iter().flat_map(|given| &given.node) {
            if let Some(has) = free.named.get_mut(name) {
                *has = has.saturating_add(*amount);
            }
        }
        free
    }

    /// After the end of what asks for that much.
    pub(super) fn with_back(self, ask: &Ask) -> Free {
        let mut free = self.with(u64::from(ask.cpus), ask.mem_bytes, u64::from(ask.gpus));
        for (name, amount) in &ask.resources {
            if let Some(has) = free.named.get_mut(name) {
                *has = has.saturating_add(*amount);
            }
        }
        free
    }

    fn with(self, cpus: u64, mem_bytes: u64, gpus: u64) -> Free {
        Free {
            cpus: self.cpus.saturating_add(cpus),
            mem_bytes: self.mem_bytes.saturating_add(mem_bytes),
            gpus: self.gpus.saturating_add(gpus).min(u64::from(self.most_gpus)),
            ..self
        }
    }

    /// How much of the ask is missing, in permille of what is asked of each resource.
    pub(super) fn missing(&self, ask: &Ask) -> u64 {
        shortages(ask, self).map(|short: Short| short.missing()).sum()
    }

    /// Whether all of the ask fits.
    pub(super) fn covers(&self, ask: &Ask) -> bool {
        shortages(ask, self).next().is_none()
    }

    /// A placement takes it.
    pub(super) fn take(&mut self, ask: &Ask) {
        self.cpus = self.cpus.saturating_sub(u64::from(ask.cpus));
        self.mem_bytes = self.mem_bytes.saturating_sub(ask.mem_bytes);
        self.gpus = self.gpus.saturating_sub(u64::from(ask.gpus));
        for (name, amount) in &ask.resources {
            if let Some(has) = self.named.get_mut(name) {
                *has = has.saturating_sub(*amount);
            }
        }
    }

    /// After a placement.
    pub(super) fn without(mut self, ask: &Ask) -> Free {
        self.take(ask);
        self
    }
}

fn of(amounts: &Amounts, name: &str) -> u64 {
    amounts.get(name).copied().unwrap_or(0)
}

/// The nodes that may get orders now.
pub(super) struct View<'a> {
    pub nodes: Vec<(&'a Agent, Free)>,
    /// What the cluster offers, and has free.
    pub pool: Pool,
    pub led_ms: u64,
    /// The time of the pass, wall ms.
    pub now_wall_ms: u64,
    /// Ids of strays, each with its agent's: one of them keeps its job from that node.
    strays: BTreeSet<(JobId, &'a str)>,
}

impl<'a> View<'a> {
    pub fn of(ledger: &'a Ledger, reachable: &BTreeSet<String>, now_led_ms: u64) -> View<'a> {
        let nodes = ledger
            .agents()
            .filter(|agent| reachable.contains(&**agent.id()))
            .map(|agent| (agent, Free::of(agent, ledger)))
            .collect();
        let on = |agent: &'a Agent| agent.strays().iter().map(|s| (s.task.job, &**agent.id()));
        let later = now_led_ms.saturating_sub(ledger.led());
        let now_wall_ms = ledger.wall().saturating_add(later);
        View {
            nodes,
            pool: Pool::of(ledger),
            led_ms: ledger.led(),
            now_wall_ms,
            strays: ledger.agents().flat_map(on).collect(),
        }
    }

    /// Whether a stray of that id is on some node.
    pub fn taken(&self, id: JobId) -> bool {
        self.strays.range((id, "")..).next().is_some_and(|(job, _)| *job == id)
    }

    /// Whether it is on that one.
    pub fn taken_on(&self, id: JobId, agent: &Agent) -> bool {
        !self.strays.is_empty() && self.strays.contains(&(id, &**agent.id()))
    }

    /// Whether any node could take anything: every task asks for a cpu at least.
    pub fn any_free(&self) -> bool {
        self.nodes.iter().any(|(_, free)| free.cpus > 0)
    }
}
