//! Would it ever run, and where: of a job that is not submitted yet.

use super::plan::Pass;
use super::pool::{Missing, Pool};
use super::view::{Free, Reach, View};
use super::why::{NodeVerdict, Start, closest, look};
use crate::ledger::{Ask, Ledger};
use proto::{TaskId, v1};
use std::sync::Arc;

/// What would become of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Would {
    /// Node by node, by name.
    pub nodes: Vec<NodeVerdict>,
    /// What the cluster has too little of now, licences and the like.
    pub cluster: Option<Missing>,
    /// It would start at once, if nothing that is queued comes before it.
    pub now: bool,
    /// Some node that has joined can run it, and the cluster has enough of all it asks.
    pub ever: bool,
    /// When and where it could start if it were the next; `None`: by nothing that is known now.
    pub start: Option<Start>,
}

/// Asks it of a specification. Limits of users and queues are not looked at.
pub fn would(ledger: &Ledger, reach: &Reach, spec: &v1::JobSpec) -> Would {
    let ask = Arc::new(Ask::of(spec));
    let mut would = at_all(ledger, Some(reach), &ask);
    if would.cluster.as_ref().is_none_or(Missing::could_start) {
        let view = View::of(ledger, &reach.reachable, ledger.led());
        would.start = soonest(ledger, view, &ask);
    }
    would
}

/// What whoever submits such a job should hear at once: why nothing that has joined could ever run it.
/// `None`: something could; or no node has joined, so nobody knows.
pub fn never(ledger: &Ledger, spec: &v1::JobSpec) -> Option<String> {
    at_all(ledger, None, &Ask::of(spec)).warning()
}

fn at_all(ledger: &Ledger, reach: Option<&Reach>, ask: &Ask) -> Would {
    let mut nodes: Vec<NodeVerdict> = ledger
        .agents()
        .map(|agent| look(ledger, agent, ask, reach, Free::of(agent, ledger)))
        .collect();
    nodes.sort_by(|a, b| (&a.name, &a.agent_id).cmp(&(&b.name, &b.agent_id)));
    let cluster = Pool::of(ledger).missing(ask);
    let now = cluster.is_none() && nodes.iter().any(|node| node.refusal.is_none());
    let possible = cluster.as_ref().is_none_or(Missing::could_start);
    let ever = possible && nodes.iter().any(|node| !node.never());
    Would { nodes, cluster, now, ever, start: None }
}

/// Behind all that waits now.
fn soonest(ledger: &Ledger, view: View<'_>, ask: &Arc<Ask>) -> Option<Start> {
    let mut pass = Pass::new(ledger, view);
    pass.run(usize::MAX, |_| true);
    let soonest = pass.soonest(TaskId::plain(ledger.next_job_id()), ask)?;
    let (agent, _) = pass.view.nodes.get(soonest.node)?;
    let (agent_id, name) = (Arc::clone(agent.id()), agent.name().to_owned());
    Some(Start { agent_id, name, kept: soonest.kept, reserved: false })
}

impl Would {
    /// What whoever submits it should hear at once: no node that has joined could ever run it, or the cluster
    /// never has that much. `None`: it can run; or no node has joined, so nobody knows.
    pub fn warning(&self) -> Option<String> {
        if self.ever || self.nodes.is_empty() {
            return None;
        }
        match self.cluster.as_ref().filter(|missing| !missing.could_start()) {
            Some(missing) => Some(missing.to_string()),
            None => Some(closest(&self.nodes)),
        }
    }
}
