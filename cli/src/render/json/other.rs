//! Everything in JSON that is no task: submits, events, nodes, the cluster, settings, checks.

use super::TaskJson;
use crate::render::quantity::utc;
use crate::render::{Check, SettingRow, named};
use proto::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// What `submit --json` prints.
pub fn submitted(answer: &v1::SubmitAnswer) -> String {
    #[derive(Serialize)]
    struct SubmitJson {
        id: String,
        job: u64,
        repeated: bool,
    }
    let (id, job) = (answer.job.to_string(), answer.job);
    super::text(&SubmitJson { id, job, repeated: answer.repeated }) + "\n"
}

/// What `retry --json` prints.
pub fn retried(results: &[v1::RetryResult]) -> String {
    #[derive(Serialize)]
    struct RetryJson<'a> {
        retry_of: u64,
        job: Option<u64>,
        error: Option<&'a str>,
    }
    let one = |result: &v1::RetryResult| {
        let (error, job) = (result.error.as_deref(), Some(result.job).filter(|job| *job > 0));
        super::text(&RetryJson { retry_of: result.of, job, error })
    };
    let each: Vec<String> = results.iter().map(one).collect();
    format!("[{}]\n", each.join(",\n "))
}

#[derive(Serialize)]
pub struct EventJson {
    position: u64,
    time: String,
    who: String,
    what: String,
}

impl From<&v1::Event> for EventJson {
    fn from(event: &v1::Event) -> Self {
        EventJson {
            position: event.position,
            time: utc(event.wall_ms),
            who: event.who.clone(),
            what: event.what.clone(),
        }
    }
}

#[derive(Serialize)]
pub struct ExplainJson {
    id: Option<String>,
    headline: String,
    lines: Vec<String>,
    place: Option<u64>,
    queued: Option<u64>,
    could_start_time: Option<String>,
    nodes: Vec<ExplainNodeJson>,
    task: Option<TaskJson>,
}

#[derive(Serialize)]
struct ExplainNodeJson {
    node: String,
    has: String,
    why: String,
    never: bool,
}

impl From<&v1::ExplainNode> for ExplainNodeJson {
    fn from(node: &v1::ExplainNode) -> Self {
        ExplainNodeJson {
            node: node.node.clone(),
            has: node.has.clone(),
            why: node.why.clone(),
            never: node.never,
        }
    }
}

/// What `submit --dry-run --json` prints.
pub fn dry_run(answer: &v1::DryRunAnswer) -> String {
    #[derive(Serialize)]
    struct DryRunJson {
        now: bool,
        ever: bool,
        headline: String,
        lines: Vec<String>,
        could_start_time: Option<String>,
        nodes: Vec<ExplainNodeJson>,
    }
    let told = DryRunJson {
        now: answer.now,
        ever: answer.ever,
        headline: answer.headline.clone(),
        lines: answer.lines.clone(),
        could_start_time: answer.start_wall_ms.map(utc),
        nodes: answer.nodes.iter().map(ExplainNodeJson::from).collect(),
    };
    super::text(&told) + "\n"
}

impl From<&v1::ExplainAnswer> for ExplainJson {
    fn from(answer: &v1::ExplainAnswer) -> Self {
        ExplainJson {
            id: answer.task.as_ref().map(crate::render::task_id),
            headline: answer.headline.clone(),
            lines: answer.lines.clone(),
            place: (answer.place > 0).then_some(answer.place),
            queued: (answer.place > 0).then_some(answer.queued),
            could_start_time: answer.start_wall_ms.map(utc),
            nodes: answer.nodes.iter().map(ExplainNodeJson::from).collect(),
            task: answer.task.as_ref().map(TaskJson::from),
        }
    }
}

#[derive(Serialize)]
pub struct NodeJson {
    name: String,
    agent_id: String,
    state: String,
    last_word_ms: Option<u64>,
    cpus: u32,
    cpus_used: u32,
    mem_bytes: u64,
    mem_used_bytes: u64,
    gpus: u32,
    gpus_used: u32,
    resources: BTreeMap<String, u64>,
    resources_used: BTreeMap<String, u64>,
    labels: BTreeMap<String, String>,
    limits: Option<String>,
    limits_by: Option<LimitsByJson>,
    jobs: u32,
    notes: Option<String>,
    version: String,
    incarnation: u64,
    strays: usize,
}

/// What enforces each limit: `v2`, `v1`, `rlimits`, `none`.
#[derive(Debug, Serialize)]
struct LimitsByJson {
    mem: String,
    cpus: String,
    pids: String,
}

impl From<v1::LimitsBy> for LimitsByJson {
    fn from(by: v1::LimitsBy) -> Self {
        LimitsByJson { mem: by.mem, cpus: by.cpus, pids: by.pids }
    }
}

impl From<&v1::Node> for NodeJson {
    fn from(node: &v1::Node) -> Self {
        let has = node.resources.clone().unwrap_or_default();
        NodeJson {
            name: node.name.clone(),
            agent_id: node.agent_id.clone(),
            state: node.state.clone(),
            last_word_ms: node.last_word_ms,
            cpus: has.cpus,
            cpus_used: node.cpus_used,
            mem_bytes: has.mem_bytes,
            mem_used_bytes: node.mem_used,
            gpus: has.gpus,
            gpus_used: node.gpus_used,
            resources: has.resources,
            resources_used: node.resources_used.clone(),
            labels: has.labels.into_iter().collect(),
            limits: Some(has.limits).filter(|text| !text.is_empty()),
            limits_by: has.limits_by.map(LimitsByJson::from),
            jobs: node.jobs,
            notes: Some(node.notes.clone()).filter(|text| !text.is_empty()),
            version: node.version.clone(),
            incarnation: node.incarnation,
            strays: node.strays.len(),
        }
    }
}

#[derive(Serialize)]
pub struct StatusJson {
    cluster_id: String,
    generation: u64,
    term: u64,
    leader: Option<u64>,
    applied: u64,
    voters: u64,
    version: String,
    level: u32,
    tasks_by_state: BTreeMap<String, u64>,
    uptime_ms: u64,
    pid: u32,
    data: String,
    listen: Option<String>,
    http: Option<String>,
    embedded: bool,
    user: String,
    host: String,
    disk_full: bool,
    resources: Vec<ClusterResourceJson>,
}

/// Of a named consumable of the cluster: how much there is, is bound, and is bound by what is over and not
/// proven dead.
#[derive(Serialize)]
struct ClusterResourceJson {
    name: String,
    total: u64,
    used: u64,
    left_over: u64,
}

impl From<&v1::ClusterResource> for ClusterResourceJson {
    fn from(resource: &v1::ClusterResource) -> Self {
        let v1::ClusterResource { name, total, used, left_over } = resource.clone();
        ClusterResourceJson { name, total, used, left_over }
    }
}

impl From<&v1::StatusAnswer> for StatusJson {
    fn from(status: &v1::StatusAnswer) -> Self {
        StatusJson {
            cluster_id: status.cluster_id.clone(),
            generation: status.generation,
            term: status.term,
            leader: Some(status.leader).filter(|leader| *leader > 0),
            applied: status.applied,
            voters: status.voters,
            version: status.version.clone(),
            level: status.level,
            tasks_by_state: status.tasks_by_state.clone().into_iter().collect(),
            uptime_ms: status.uptime_ms,
            pid: status.pid,
            data: status.data.clone(),
            listen: Some(status.listen.clone()).filter(|listen| !listen.is_empty()),
            http: Some(status.http.clone()).filter(|http| !http.is_empty()),
            embedded: status.embedded,
            user: status.user.clone(),
            host: status.host.clone(),
            disk_full: status.disk_full,
            resources: status.resources.iter().map(ClusterResourceJson::from).collect(),
        }
    }
}

#[derive(Serialize)]
pub struct CancelJson {
    id: String,
    job: u64,
    outcome: Option<String>,
    error: Option<String>,
}

impl From<&v1::CancelResult> for CancelJson {
    fn from(result: &v1::CancelResult) -> Self {
        CancelJson {
            id: named(result.job, result.tasks.as_ref()),
            job: result.job,
            outcome: Some(result.outcome.clone()).filter(|outcome| !outcome.is_empty()),
            error: result.error.clone(),
        }
    }
}

#[derive(Serialize)]
pub struct EditJson {
    id: String,
    job: u64,
    outcome: Option<String>,
    state: Option<String>,
    node: Option<String>,
    error: Option<String>,
}

impl From<&v1::EditResult> for EditJson {
    fn from(result: &v1::EditResult) -> Self {
        let filled = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        EditJson {
            id: named(result.job, result.tasks.as_ref()),
            job: result.job,
            outcome: filled(&result.outcome),
            state: filled(&result.state),
            node: result.node.clone(),
            error: result.error.clone(),
        }
    }
}

#[derive(Serialize)]
pub struct SettingJson {
    key: String,
    value: Option<String>,
    source: String,
}

impl From<&SettingRow> for SettingJson {
    fn from(row: &SettingRow) -> Self {
        SettingJson { key: row.key.clone(), value: row.value.clone(), source: row.source.clone() }
    }
}

#[derive(Serialize)]
pub struct CheckJson {
    what: &'static str,
    health: &'static str,
    found: String,
}

impl From<&Check> for CheckJson {
    fn from(check: &Check) -> Self {
        CheckJson { what: check.what, health: check.health.name(), found: check.found.clone() }
    }
}
