//! What attempts hold that are over without their node's word. Their trees may still live and use it, so
//! it stays bound until a proof, as a fence does (design 3, Loss of a worker): licences of the cluster
//! however long that takes, gpus and consumables of the node until that came back without the attempt.

use super::book::Ledger;
use super::cause::{Proof, What, Who};
use super::given::Given;
use super::job::Job;
use super::node::Agent;
use super::state::Grant;
use super::thaw::{Broken, Reader, attempt, grant_of};
use proto::v1::{self, ExitKind};
use proto::{AttemptId, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One such attempt.
#[derive(Clone, PartialEq, Debug)]
pub struct Leftover {
    /// What it was given.
    pub grant: Grant,
    /// As what it ended.
    pub kind: ExitKind,
    /// When, led ms.
    pub since_led_ms: u64,
    /// When, wall ms.
    pub since_wall_ms: u64,
    /// It was heard to start: a refusal of its order proves nothing then.
    pub(super) started: bool,
    /// Its node came back without it: what it had of that is free again.
    pub(super) off_node: bool,
}

/// Who holds some of what the cluster offers.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// Which task.
    pub task: TaskId,
    /// How much.
    pub amount: u64,
    /// The job, while it is on a node.
    pub job: Option<&'a Job>,
    /// It is over, and nobody knows whether it still lives.
    pub leftover: Option<&'a Leftover>,
}

/// All of them, by the agent that had them.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Leftovers {
    by_agent: BTreeMap<Arc<str>, BTreeMap<AttemptId, Leftover>>,
}

impl Leftovers {
    /// All of one agent.
    pub fn of(&self, agent: &str) -> impl Iterator<Item = (AttemptId, &Leftover)> {
        self.by_agent.get(agent).into_iter().flatten().map(|(id, leftover)| (*id, leftover))
    }

    /// All.
    pub fn all(&self) -> impl Iterator<Item = (AttemptId, &Leftover)> {
        self.by_agent.values().flatten().map(|(id, leftover)| (*id, leftover))
    }

    fn get(&self, agent: &str, attempt: AttemptId) -> Option<&Leftover> {
        self.by_agent.get(agent)?.get(&attempt)
    }

    /// One more; false if it is there already.
    pub fn insert(&mut self, attempt: AttemptId, leftover: Leftover) -> bool {
        let agent = Arc::clone(&leftover.grant.agent);
        self.by_agent.entry(agent).or_default().insert(attempt, leftover).is_none()
    }

    fn remove(&mut self, agent: &str, attempt: AttemptId) -> Option<Leftover> {
        let of_agent = self.by_agent.get_mut(agent)?;
        let removed = of_agent.remove(&attempt);
        if of_agent.is_empty() {
            self.by_agent.remove(agent);
        }
        removed
    }
}

impl Leftover {
    /// What it holds, in words: `gpus 0,1, matlab 1`.
    pub fn holds(&self) -> String {
        let node = self.on_node();
        let ids = node.map(|given| given.gpus.iter().map(u32::to_string).collect::<Vec<_>>());
        let gpus = ids.filter(|ids| !ids.is_empty()).map(|ids| format!("gpus {}", ids.join(",")));
        let named = node.map(|given| &given.node).into_iter();
        let named = named.chain(self.of_cluster().map(|given| &given.cluster)).flatten();
        let named = named.map(|(name, amount)| format!("{name} {amount}"));
        gpus.into_iter().chain(named).collect::<Vec<_>>().join(", ")
    }

    /// What of it is bound on its node.
    pub(super) fn on_node(&self) -> Option<&Given> {
        let something = |given: &&Given| !given.gpus.is_empty() || !given.node.is_empty();
        self.grant.given.as_deref().filter(|_| !self.off_node).filter(something)
    }

    /// What of it the cluster lacks.
    pub(super) fn of_cluster(&self) -> Option<&Given> {
        self.grant.given.as_deref()
    }

    /// Whether it binds nothing any more.
    pub(super) fn empty(&self) -> bool {
        self.of_cluster().is_none_or(|given| given.cluster.is_empty()) && self.on_node().is_none()
    }

    /// As an image holds it.
    pub(super) fn freeze(&self, attempt: AttemptId, grant: v1::ImageGrant) -> v1::ImageLeftover {
        v1::ImageLeftover {
            attempt: Some(attempt.to_wire()),
            grant: Some(grant),
            kind: self.kind as i32,
            since_led_ms: self.since_led_ms,
            since_wall_ms: self.since_wall_ms,
            started: self.started,
            off_node: self.off_node,
        }
    }

    /// Read back.
    pub(super) fn thaw(image: &v1::ImageLeftover, grant: Grant) -> Leftover {
        Leftover {
            grant,
            kind: image.kind(),
            since_led_ms: image.since_led_ms,
            since_wall_ms: image.since_wall_ms,
            started: image.started,
            off_node: image.off_node,
        }
    }
}

impl Reader {
    /// One of them, read back.
    pub(super) fn leftover(&mut self, image: &v1::ImageLeftover) -> Result<(), Broken> {
        let id = attempt(image.attempt.as_ref().ok_or("a leftover of no attempt")?)?;
        let grant = image.grant.as_ref().ok_or("a leftover without grant")?;
        let agent = self.ledger.agents.get(grant.agent_id.as_str());
        let agent = Arc::clone(&agent.ok_or("a leftover of no known agent")?.id);
        let leftover = Leftover::thaw(image, grant_of(grant, agent));
        match self.ledger.leftovers.insert(id, leftover) {
            true => Ok(()),
            false => Err("a leftover that is there already"),
        }
    }
}

impl Ledger {
    /// Attempts of an agent that are over and may still hold what they were given.
    pub fn leftovers_of(&self, agent_id: &str) -> impl Iterator<Item = (AttemptId, &Leftover)> {
        self.leftovers.of(agent_id)
    }

    /// All attempts that are over and may still hold what they were given, by agent.
    pub fn leftovers(&self) -> impl Iterator<Item = (AttemptId, &Leftover)> {
        self.leftovers.all()
    }

    /// An attempt ends of which nobody knows whether it still lives: what it was given stays bound.
    pub(super) fn leave(
        &mut self,
        attempt: AttemptId,
        grant: &Grant,
        kind: ExitKind,
        started: bool,
    ) {
        let leftover = Leftover {
            grant: grant.clone(),
            kind,
            since_led_ms: self.led_ms,
            since_wall_ms: self.wall_ms,
            started,
            off_node: false,
        };
        if leftover.empty() {
            return;
        }
        self.index.add_leftover(&leftover);
        self.leftovers.insert(attempt, leftover);
    }

    /// It is dead for certain: all of it is free again.
    fn let_go(&mut self, agent: &str, attempt: AttemptId, proof: Proof, who: Who) {
        let Some(leftover) = self.leftovers.remove(agent, attempt) else { return };
        self.index.remove_leftover(&leftover);
        let (task, attempt) = (attempt.task, attempt.attempt);
        if self.job(task).is_some() {
            let cause = self.cause(who, What::Freed { attempt, proof });
            self.update(task, |job| job.note(cause));
        }
    }

    /// A node told the end of an attempt, or that its order never came to anything.
    pub(super) fn told_dead(
        &mut self,
        agent: &Arc<str>,
        attempt: AttemptId,
        generation: u64,
        end: bool,
    ) {
        let Some(leftover) = self.leftovers.get(agent, attempt) else { return };
        if leftover.grant.generation == generation && (end || !leftover.started) {
            self.let_go(agent, attempt, Proof::Finish, Who::Agent(Arc::clone(agent)));
        }
    }

    /// A start was told late.
    pub(super) fn told_alive(&mut self, agent: &str, attempt: AttemptId, generation: u64) {
        let of_agent = self.leftovers.by_agent.get_mut(agent);
        if let Some(leftover) = of_agent.and_then(|of_agent| of_agent.get_mut(&attempt)) {
            leftover.started |= leftover.grant.generation == generation;
        }
    }

    /// A manifest is judged: what the same journal does not know is dead. Of one whose directory is lost
    /// nobody can say that, but its node has what it offers.
    pub(super) fn leftovers_missing(
        &mut self,
        agent: &Arc<str>,
        judged: impl Fn(&Grant) -> bool,
        seen: &BTreeSet<AttemptId>,
    ) {
        let journal = self.agents.get(agent).map(|agent| Arc::clone(&agent.journal));
        let missing = |(attempt, leftover): &(AttemptId, &Leftover)| {
            judged(&leftover.grant) && !seen.contains(attempt)
        };
        let missing: Vec<(AttemptId, bool)> = self
            .leftovers
            .of(agent)
            .filter(missing)
            .map(|(attempt, leftover)| (attempt, Some(&leftover.grant.journal) == journal.as_ref()))
            .collect();
        for (attempt, same) in missing {
            if same {
                self.let_go(agent, attempt, Proof::Manifest, Who::Agent(Arc::clone(agent)));
            } else {
                self.off_node(agent, attempt);
            }
        }
    }

    fn off_node(&mut self, agent: &Arc<str>, attempt: AttemptId) {
        let Some(mut leftover) = self.leftovers.remove(agent, attempt) else { return };
        self.index.remove_leftover(&leftover);
        leftover.off_node = true;
        if !leftover.empty() {
            self.index.add_leftover(&leftover);
            self.leftovers.insert(attempt, leftover);
        }
    }

    /// A join: what ran before its node was booted anew is dead.
    pub(super) fn leftovers_rebooted(&mut self, agent: &Arc<str>) {
        let before = |(_, leftover): &(AttemptId, &Leftover)| self.rebooted_since(&leftover.grant);
        let dead: Vec<AttemptId> =
            self.leftovers.of(agent).filter(before).map(|(attempt, _)| attempt).collect();
        for attempt in dead {
            self.let_go(agent, attempt, Proof::Reboot, Who::Agent(Arc::clone(agent)));
        }
    }

    /// An operator vouches for all of them; gives how many.
    pub(super) fn leftovers_confirmed(&mut self, agent: &str, who: &Who) -> u64 {
        let dead: Vec<AttemptId> = self.leftovers.of(agent).map(|(attempt, _)| attempt).collect();
        for attempt in &dead {
            self.let_go(agent, *attempt, Proof::Operator, who.clone());
        }
        dead.len() as u64
    }

    /// The leader counted the lease of this attempt to its end; true if that frees something.
    pub(super) fn leftover_fenced(&mut self, attempt: AttemptId) -> bool {
        let leased = |leftover: &Leftover| leftover.grant.lease_ms.is_some();
        let holds = |agent: &&Agent| self.leftovers.get(&agent.id, attempt).is_some_and(leased);
        let Some(agent) = self.agents().find(holds).map(|agent| Arc::clone(&agent.id)) else {
            return false;
        };
        self.let_go(&agent, attempt, Proof::Lease, self.by_leader());
        true
    }

    /// Who holds some of what the cluster offers under that name, on nodes or left over.
    pub fn holders(&self, name: &str) -> Vec<Holder<'_>> {
        let of =
            |grant: &Grant| grant.given.as_ref().and_then(|given| given.cluster.get(name)).copied();
        let live = self
            .agents()
            .flat_map(|agent| self.held_by(agent.id()).chain(self.waiting_on(agent.id())));
        let live = live.filter_map(|job| {
            let (task, amount) = (job.task_id(), of(job.state().binding()?)?);
            Some(Holder { task, amount, job: Some(job), leftover: None })
        });
        let left = self.leftovers.all().filter_map(|(id, leftover)| {
            let (task, amount) = (id.task, of(&leftover.grant)?);
            Some(Holder { task, amount, job: None, leftover: Some(leftover) })
        });
        live.chain(left).collect()
    }
}
