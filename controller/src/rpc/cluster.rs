//! The Cluster service (design 5): what operators ask.

use super::convert;
use super::identity::{Caller, caller};
use super::server::{Shared, ShutdownRequest, counts_to_wire};
use super::status::{no_such_node, not_allowed, rejected, several_nodes, stopping, unexpected};
use crate::clock::ms_since;
use docket_core::leader::NodeView;
use docket_core::ledger::{Agent, FactsLost, Ledger, Outcome};
use proto::v1;
use std::collections::BTreeMap;
use tonic::{Request, Response, Status};

/// The service.
#[derive(Clone)]
pub struct Cluster {
    shared: Shared,
}

impl Cluster {
    /// A service over the shared parts.
    pub fn new(shared: Shared) -> Self {
        Cluster { shared }
    }

    fn may_shut_down(&self, caller: &Caller) -> Result<(), Status> {
        let about = &self.shared.about;
        if caller.admin || caller.uid == about.uid {
            return Ok(());
        }
        Err(not_allowed(format!(
            "this node belongs to {}: only they, root or an admin may end it",
            about.user
        )))
    }

    /// Id of the agent that has this name, or this id.
    async fn agent_named(&self, node: String) -> Result<String, Status> {
        let look = move |view: crate::pump::View<'_>| {
            let meant = |agent: &&Agent| agent.name() == node || **agent.id() == *node;
            let found: Vec<String> =
                view.ledger.agents().filter(meant).map(|agent| agent.id().to_string()).collect();
            match found.as_slice() {
                [one] => Ok(one.clone()),
                [] => Err(no_such_node(&node)),
                all => Err(several_nodes(&node, all)),
            }
        };
        self.shared.read(look).await?
    }

    async fn held(&self) -> Result<u64, Status> {
        let look = |view: crate::pump::View<'_>| {
            let agents = view.ledger.agents();
            agents.map(|agent| view.ledger.held_by(agent.id()).count() as u64).sum()
        };
        Ok(self.shared.pump.read(look).await?)
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::cluster_server::Cluster for Cluster {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusAnswer> {
        let about = &self.shared.about;
        let raft = self.shared.node.status();
        // Not linearizable on purpose: a controller without a majority must still say how it is.
        let look = |view: crate::pump::View<'_>| {
            let ledger = view.ledger;
            let id = ledger.cluster_id().to_owned();
            let resources = resources(ledger);
            (id, ledger.generation(), ledger.applied(), ledger.counts(), resources)
        };
        let (cluster_id, generation, applied, counts, resources) =
            self.shared.pump.read(look).await?;
        Ok(Response::new(v1::StatusAnswer {
            cluster_id,
            generation,
            term: raft.term,
            leader: raft.leader,
            applied,
            voters: raft.voters,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            level: proto::LEVEL,
            tasks_by_state: counts_to_wire(counts),
            uptime_ms: ms_since(about.since),
            pid: std::process::id(),
            data: about.config.data.display().to_string(),
            listen: about.listen.clone(),
            http: about.http.clone(),
            embedded: about.embedded,
            user: about.user.clone(),
            host: about.host.clone(),
            disk_full: self.shared.node.disk_full(),
            resources,
        }))
    }

    async fn list_nodes(&self, _: Request<v1::ListNodesRequest>) -> Answer<v1::ListNodesAnswer> {
        let look = |view: crate::pump::View<'_>| {
            let views = view.leader.node_views(view.ledger, view.now_ms);
            let nodes = views.into_iter().filter_map(|node| node_to_wire(view.ledger, node));
            nodes.collect::<Vec<v1::Node>>()
        };
        let mut nodes = self.shared.read(look).await?;
        note_shared_names(&mut nodes);
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Response::new(v1::ListNodesAnswer { nodes }))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Answer<v1::DrainAnswer> {
        let caller = caller(&request)?;
        let v1::DrainRequest { request_id, node, reason, undrain } = request.into_inner();
        convert::reason(&reason)?;
        let request_id = convert::request_key(request_id, false)?;
        let agent_id = self.agent_named(node).await?;
        let by = Some(convert::requester(&caller));
        let command = v1::DrainCommand { by, request_id, agent_id, reason, undrain };
        match self.shared.propose(v1::command::Kind::Drain(command), Vec::new()).await?.outcome {
            Outcome::Drained { held } => Ok(Response::new(v1::DrainAnswer { held })),
            Outcome::Rejected(rejection) => Err(rejected(&rejection)),
            other => Err(unexpected(&other)),
        }
    }

    async fn settings(&self, _: Request<v1::SettingsRequest>) -> Answer<v1::SettingsAnswer> {
        let look = |view: crate::pump::View<'_>| view.ledger.policy().clone();
        let policy = self.shared.read(look).await?;
        Ok(Response::new(v1::SettingsAnswer { settings: super::policy::wire(&policy) }))
    }

    async fn set(&self, request: Request<v1::SetSettingRequest>) -> Answer<v1::SettingsAnswer> {
        let caller = caller(&request)?;
        let answer = super::policy::set(&self.shared, &caller, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn confirm_dead(
        &self,
        request: Request<v1::ConfirmDeadRequest>,
    ) -> Answer<v1::ConfirmDeadAnswer> {
        let caller = caller(&request)?;
        let v1::ConfirmDeadRequest { request_id, node } = request.into_inner();
        let request_id = convert::request_key(request_id, false)?;
        let agent_id = self.agent_named(node).await?;
        let by = Some(convert::requester(&caller));
        let command = v1::ConfirmDeadCommand { by, request_id, agent_id };
        let kind = v1::command::Kind::ConfirmDead(command);
        match self.shared.propose(kind, Vec::new()).await?.outcome {
            Outcome::Proven { count } => Ok(Response::new(v1::ConfirmDeadAnswer { proven: count })),
            Outcome::Rejected(rejection) => Err(rejected(&rejection)),
            other => Err(unexpected(&other)),
        }
    }

    async fn shutdown(&self, request: Request<v1::ShutdownRequest>) -> Answer<v1::ShutdownAnswer> {
        self.may_shut_down(&caller(&request)?)?;
        let kill = request.into_inner().kill;
        let killed = if kill { self.held().await? } else { 0 };
        // The first request counts: a second one while it is under way asks for the same.
        match self.shared.about.shutdown.try_send(ShutdownRequest { kill }) {
            Ok(()) | Err(tokio::sync::mpsc::error::TrySendError::Full(_)) => {}
            Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => return Err(stopping()),
        }
        Ok(Response::new(v1::ShutdownAnswer { killed }))
    }
}

/// What the cluster offers, and who binds how much of it.
fn resources(ledger: &Ledger) -> Vec<v1::ClusterResource> {
    let one = |(name, total): (&std::sync::Arc<str>, &u64)| v1::ClusterResource {
        name: name.to_string(),
        total: *total,
        used: ledger.used_of_cluster(name),
        left_over: ledger
            .holders(name)
            .iter()
            .filter(|holder| holder.leftover.is_some())
            .map(|holder| holder.amount)
            .sum(),
    };
    ledger.offers().iter().map(one).collect()
}

/// Agents of one name are told apart by their ids. If two are up, `--node` and `%n` cannot tell them
/// apart: their operator should know.
fn note_shared_names(nodes: &mut [v1::Node]) {
    let (mut all, mut up) = (BTreeMap::<String, u32>::new(), BTreeMap::<String, u32>::new());
    for node in nodes.iter() {
        *all.entry(node.name.clone()).or_default() += 1;
        *up.entry(node.name.clone()).or_default() +=
            u32::from(matches!(node.state.as_str(), "up" | "drained"));
    }
    let several = |counts: &BTreeMap<String, u32>, node: &v1::Node| {
        counts.get(&node.name).is_some_and(|count| *count > 1)
    };
    for node in nodes.iter_mut().filter(|node| several(&all, node)) {
        let mut notes = vec![format!("agent {}", node.agent_id.get(..8).unwrap_or(&node.agent_id))];
        notes.extend(Some(std::mem::take(&mut node.notes)).filter(|notes| !notes.is_empty()));
        if several(&up, node) {
            notes.push("another agent has this name: give each its own --name".to_owned());
        }
        node.notes = notes.join("; ");
    }
}

fn node_to_wire(ledger: &Ledger, node: NodeView) -> Option<v1::Node> {
    let agent = ledger.agent(&node.agent_id)?;
    let used = ledger.used(&node.agent_id);
    let mut notes = node.notes;
    notes.extend(older_log(agent));
    if let Some(fault) = agent.kept_out(ledger.led()) {
        notes.push(format!("kept out: {} failed: {}", fault.failure.step, fault.words()));
    } else if let Some(fault) = agent.fault() {
        // Until a start works there it is not known to be well.
        let (step, words) = (&fault.failure.step, fault.words());
        notes.push(format!("a start failed ({step}: {words}), one job tries it next"));
    }
    if !agent.strays().is_empty() {
        notes.push(format!("{} attempts unknown to the ledger", agent.strays().len()));
    }
    notes.extend(docket_core::left_on(ledger, agent));
    Some(v1::Node {
        gpus_used: u32::try_from(used.gpus).unwrap_or(u32::MAX),
        resources_used: used.named.iter().map(|(name, n)| (name.to_string(), *n)).collect(),
        name: agent.name().to_owned(),
        agent_id: node.agent_id,
        state: node.state.as_str().to_owned(),
        last_word_ms: node.last_word_ms,
        resources: agent.join().resources.clone(),
        cpus_used: u32::try_from(used.cpus).unwrap_or(u32::MAX),
        mem_used: used.mem_bytes,
        jobs: u32::try_from(ledger.held_by(agent.id()).count()).unwrap_or(u32::MAX),
        notes: notes.join("; "),
        version: agent.join().version.clone(),
        incarnation: agent.incarnation(),
        strays: agent.strays().iter().map(|stray| stray.to_wire()).collect(),
    })
}

/// What its operator has to know: somebody put an older copy of the log in place.
fn older_log(agent: &Agent) -> Option<String> {
    let note = "this controller's log is older than what it once acknowledged";
    match agent.facts_lost() {
        Some(FactsLost { from, to, .. }) => {
            Some(format!("{note}: facts {} to {} of its journal are gone", from.0, to.0))
        }
        None => agent.shows_older_log().then(|| note.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_are_up_under_one_name_are_noted() {
        let node = |name: &str, state: &str, notes: &str| v1::Node {
            name: name.to_owned(),
            state: state.to_owned(),
            notes: notes.to_owned(),
            agent_id: "0123456789".to_owned(),
            ..v1::Node::default()
        };
        let mut nodes = vec![
            node("n1", "up", ""),
            node("n1", "up", "its disk is full: no new jobs"),
            node("n1", "down", ""),
            node("n2", "up", ""),
            node("n2", "silent", ""),
        ];
        note_shared_names(&mut nodes);
        let noted: Vec<bool> = nodes.iter().map(|n| n.notes.contains("another agent")).collect();
        assert_eq!(noted, [true, true, true, false, false]);
        let full = "agent 01234567; its disk is full: no new jobs; another";
        assert!(nodes[1].notes.starts_with(full), "{}", nodes[1].notes);
        // One was deleted and another made in its place: only one can get work.
        assert_eq!([&nodes[3].notes, &nodes[4].notes], ["agent 01234567"; 2]);
    }
}
