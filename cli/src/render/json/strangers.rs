//! What nodes know and the ledger does not, in JSON: orphans and strays.

use super::task::ReasonJson;
use crate::render::attempt_task_id;
use crate::render::quantity::utc;
use proto::v1;
use serde::Serialize;

/// A fact about a job that the ledger does not know.
#[derive(Serialize)]
pub struct OrphanJson {
    id: String,
    job: u64,
    task: Option<u32>,
    attempt: u32,
    node: String,
    expired: bool,
    time: String,
    position: u64,
    fact: String,
    reason: Option<ReasonJson>,
}

impl From<&v1::Orphan> for OrphanJson {
    fn from(orphan: &v1::Orphan) -> Self {
        OrphanJson {
            id: attempt_task_id(orphan.job, orphan.task),
            job: orphan.job,
            task: orphan.task,
            attempt: orphan.attempt,
            node: orphan.node.clone(),
            expired: orphan.expired,
            time: utc(orphan.wall_ms),
            position: orphan.position,
            fact: orphan.fact.clone(),
            reason: orphan.reason.as_ref().map(ReasonJson::from),
        }
    }
}

/// An attempt that a node holds and the ledger does not know.
#[derive(Serialize)]
pub struct StrayJson {
    id: String,
    job: u64,
    task: Option<u32>,
    attempt: u32,
    node: String,
    agent_id: String,
}

/// The strays of all nodes.
pub fn strays(nodes: &[v1::Node]) -> Vec<StrayJson> {
    let of = |node: &v1::Node, stray: &v1::AttemptRef| StrayJson {
        id: attempt_task_id(stray.job, stray.task),
        job: stray.job,
        task: stray.task,
        attempt: stray.attempt,
        node: node.name.clone(),
        agent_id: node.agent_id.clone(),
    };
    nodes.iter().flat_map(|node| node.strays.iter().map(move |stray| of(node, stray))).collect()
}
