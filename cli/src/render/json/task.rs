//! A task in JSON: the fields of design 7, in their order. A new field may come, none goes.

use crate::parse::warn_text;
use crate::render::escape::bytes_text;
use crate::render::quantity::utc;
use crate::render::reason::{culprit, dependency_id, dependency_kind, kind_name};
use proto::v1::{
    ArrayView, DependencyFailure, DependencyKind, DependencyView, ExitKind, Reason, Rusage, Task,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// A task; null where a field does not apply.
#[derive(Debug, Serialize)]
pub struct TaskJson {
    id: String,
    job: u64,
    task: Option<u32>,
    name: String,
    user: String,
    queue: String,
    state: String,
    substate: Option<String>,
    terminal: bool,
    transient: bool,
    reason: Option<ReasonJson>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    cancelled_by: Option<String>,
    late_outcome: Option<ReasonJson>,
    attempt: Option<u32>,
    node: Option<String>,
    priority: i32,
    submit_time: String,
    start_time: Option<String>,
    finish_time: Option<String>,
    transient_since: Option<String>,
    command: Vec<String>,
    dir: String,
    cpus: u32,
    mem_bytes: u64,
    gpus: u32,
    gpu_ids: Vec<u32>,
    resources: BTreeMap<String, u64>,
    rusage: Option<RusageJson>,
    usage: Option<UsageJson>,
    oom: bool,
    stdout_path: Option<String>,
    stderr_path: Option<String>,
    stdout_bytes: Option<u64>,
    stderr_bytes: Option<u64>,
    stdout_cut_bytes: Option<u64>,
    stderr_cut_bytes: Option<u64>,
    retry_of: Option<u64>,
    message: Option<String>,
    pid: Option<u32>,
    time_limit_ms: Option<u64>,
    /// The signal that warns of it, as `--signal` takes it.
    warn: Option<String>,
    comment: Option<String>,
    cancel_requested: bool,
    suspend_requested: Option<bool>,
    retries: u32,
    retried: u32,
    decided_time: Option<String>,
    script: bool,
    /// What it waits for, or waited: as `--from` takes it.
    after_ok: Option<Vec<String>>,
    after_any: Option<Vec<String>>,
    after_not_ok: Option<Vec<String>>,
    after_start: Option<Vec<String>>,
    after_each: Option<Vec<String>>,
    /// Those of them that are not met.
    waits_for: Option<Vec<String>>,
    begin: Option<String>,
    /// Of an array as a whole.
    array: Option<ArrayJson>,
}

/// How far an array is: its tasks as asked for, how many there are, by state, and how many may run at once.
#[derive(Debug, Serialize)]
struct ArrayJson {
    tasks: String,
    total: u64,
    counts: BTreeMap<String, u64>,
    limit: Option<u32>,
    race: bool,
}

/// Why a task ended: its kind, and the fields that this kind has.
#[derive(Debug, Serialize)]
pub struct ReasonJson {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    core_dumped: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dependency: Option<DependencyJson>,
}

/// Which dependency failed, and what became of the job or task that was waited for.
#[derive(Debug, Serialize)]
struct DependencyJson {
    kind: &'static str,
    id: String,
    state: &'static str,
    reason: Option<&'static str>,
    code: Option<i32>,
    signal: Option<i32>,
}

#[derive(Debug, Serialize)]
struct RusageJson {
    user_s: f64,
    system_s: f64,
    max_rss_bytes: u64,
}

/// What it used. Without `whole_tree` the times leave out processes that nothing waited for; without
/// a count of the whole tree `peak_memory_bytes` is null.
#[derive(Debug, Serialize)]
struct UsageJson {
    user_time_s: f64,
    system_time_s: f64,
    whole_tree: bool,
    max_rss_bytes: u64,
    peak_memory_bytes: Option<u64>,
    oom_kills: u32,
    oom_of_node: bool,
}

impl From<&Task> for TaskJson {
    fn from(task: &Task) -> Self {
        // Counted at the end: until then nobody knows.
        let counted = |bytes: u64| task.terminal.then_some(bytes);
        TaskJson {
            id: crate::render::task_id(task),
            job: task.job,
            task: task.task,
            name: task.name.clone(),
            user: task.user.clone(),
            queue: task.queue.clone(),
            state: task.state.clone(),
            substate: filled(&task.substate),
            terminal: task.terminal,
            transient: task.transient,
            reason: task.reason.as_ref().map(ReasonJson::from),
            exit_code: task.exit_code,
            signal: task.signal,
            cancelled_by: task.cancelled_by.clone(),
            late_outcome: task.late_outcome.as_ref().map(ReasonJson::from),
            attempt: Some(task.attempt).filter(|attempt| *attempt > 0),
            node: task.node.clone(),
            priority: task.priority,
            submit_time: utc(task.submit_wall_ms),
            start_time: task.start_wall_ms.map(utc),
            finish_time: task.finish_wall_ms.map(utc),
            transient_since: task.transient_since_wall_ms.map(utc),
            command: task.command.iter().map(|word| bytes_text(word)).collect(),
            dir: bytes_text(&task.dir),
            cpus: task.cpus,
            mem_bytes: task.mem_bytes,
            gpus: task.gpus,
            gpu_ids: task.gpu_ids.clone(),
            resources: task.resources.clone(),
            rusage: task.rusage.as_ref().map(RusageJson::from),
            usage: task.rusage.as_ref().map(UsageJson::from),
            oom: task.rusage.is_some_and(|used| used.oom_kills > 0),
            stdout_path: path(&task.stdout_path),
            stderr_path: path(&task.stderr_path),
            stdout_bytes: counted(task.stdout_bytes),
            stderr_bytes: counted(task.stderr_bytes),
            stdout_cut_bytes: counted(task.stdout_cut_bytes),
            stderr_cut_bytes: counted(task.stderr_cut_bytes),
            retry_of: task.retry_of,
            message: filled(&task.message),
            pid: Some(task.pid).filter(|pid| *pid > 0),
            time_limit_ms: task.time_limit_ms,
            warn: task.warn.as_ref().map(warn_text),
            comment: filled(&task.comment),
            cancel_requested: task.cancel_requested,
            suspend_requested: task.suspend_requested,
            retries: task.retries,
            retried: task.retried,
            decided_time: task.decided_wall_ms.map(utc),
            script: task.script,
            after_ok: dependencies(task, DependencyKind::AfterOk),
            after_any: dependencies(task, DependencyKind::AfterAny),
            after_not_ok: dependencies(task, DependencyKind::AfterNotOk),
            after_start: dependencies(task, DependencyKind::AfterStart),
            after_each: dependencies(task, DependencyKind::AfterEach),
            waits_for: some_ids(task.dependencies.iter().filter(|dep| dep.open)),
            begin: task.begin_wall_ms.map(utc),
            array: task.array.as_ref().map(ArrayJson::from),
        }
    }
}

fn dependencies(task: &Task, kind: DependencyKind) -> Option<Vec<String>> {
    some_ids(task.dependencies.iter().filter(|dep| dep.kind() == kind))
}

/// Ids as `--after-ok` takes them; null if there is none.
fn some_ids<'a>(deps: impl Iterator<Item = &'a DependencyView>) -> Option<Vec<String>> {
    let ids: Vec<String> = deps.map(dependency_id).collect();
    (!ids.is_empty()).then_some(ids)
}

impl From<&ArrayView> for ArrayJson {
    fn from(array: &ArrayView) -> Self {
        ArrayJson {
            tasks: array.tasks.clone(),
            total: array.total,
            counts: array.counts.clone().into_iter().collect(),
            limit: array.limit,
            race: array.race,
        }
    }
}

impl From<&Reason> for ReasonJson {
    fn from(reason: &Reason) -> Self {
        let kind = reason.kind();
        let failure = reason.start_failure.as_ref();
        ReasonJson {
            kind: kind_name(kind),
            code: reason.code,
            signal: reason.signal,
            core_dumped: (kind == ExitKind::Signal).then_some(reason.core_dumped),
            by: reason.by.clone(),
            step: failure.map(|failure| failure.step.clone()),
            errno: failure.map(|failure| failure.errno),
            path: failure.and_then(|failure| path(&failure.path)),
            message: failure
                .and_then(|failure| filled(&failure.message))
                .or_else(|| reason.detail.as_ref().and_then(|detail| filled(detail))),
            dependency: reason.dependency.as_ref().map(DependencyJson::from),
        }
    }
}

impl From<&DependencyFailure> for DependencyJson {
    fn from(failure: &DependencyFailure) -> Self {
        let end = failure.end();
        DependencyJson {
            kind: dependency_kind(failure.kind()),
            id: culprit(failure),
            state: if failure.done { "DONE" } else { "EXIT" },
            reason: (end != ExitKind::Unspecified).then(|| kind_name(end)),
            code: failure.code,
            signal: failure.signal,
        }
    }
}

impl From<&Rusage> for RusageJson {
    fn from(rusage: &Rusage) -> Self {
        RusageJson {
            user_s: seconds(rusage.user_us),
            system_s: seconds(rusage.system_us),
            max_rss_bytes: rusage.max_rss_bytes,
        }
    }
}

impl From<&Rusage> for UsageJson {
    fn from(used: &Rusage) -> Self {
        UsageJson {
            user_time_s: seconds(used.user_us),
            system_time_s: seconds(used.system_us),
            whole_tree: used.whole_tree,
            max_rss_bytes: used.max_rss_bytes,
            peak_memory_bytes: used.peak_bytes,
            oom_kills: used.oom_kills,
            oom_of_node: used.oom_of_node,
        }
    }
}

/// Microseconds as seconds; exact far beyond any job's life.
#[allow(clippy::cast_precision_loss)]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn path(bytes: &[u8]) -> Option<String> {
    (!bytes.is_empty()).then(|| bytes_text(bytes))
}
