//! Wire requests to validated ones: the only validation (style rule 11). Everything behind it
//! checks nothing again. A refusal names the field, what was given and what is allowed (design 7).

use super::identity::Caller;
use docket_core::ledger::{
    ARRAY_MAX, ASKED_MAX, DEPENDENCIES_MAX, DRAIN_REASON_MAX, RESOURCE_NAME_RULE, Ranges,
    StateName, judge_dependencies, judge_resources,
};
use prost::Message as _;
use proto::{JobId, TaskId, v1};
use std::collections::BTreeSet;

/// Encoded specification, and encoded environment, each.
pub const SPEC_MAX_BYTES: usize = 1024 * 1024;
/// Standard input that travels with a submit.
pub const STDIN_MAX_BYTES: usize = 1024 * 1024;
/// One argument or variable: Linux takes 131,072 with its final zero.
pub const STRING_MAX_BYTES: usize = 131_071;
/// Ids in one request.
pub const IDS_MAX: usize = 10_000;
/// Names of jobs, queues, nodes, and request ids: they are shown, not read.
pub(super) const NAME_MAX_BYTES: usize = 255;
/// A path or file name pattern (PATH_MAX of Linux without its final zero).
const PATH_MAX_BYTES: usize = 4095;
/// A comment.
const COMMENT_MAX_BYTES: usize = 4096;
/// Labels of `--node-label`.
const LABELS_MAX: usize = 64;
/// Exit codes are a byte, so more than these would repeat.
const SUCCESS_CODES_MAX: usize = 256;
/// More cpus or GPUs than any machine has.
pub(super) const CPUS_MAX: u32 = 65_536;
/// The queue of jobs that name none.
pub(super) const QUEUE_DEFAULT: &str = "default";
/// `Cancel --signal` and `List --limit`.
const SIGNAL_MAX: u32 = 64;
/// Tasks of one `List` answer, if the request does not say.
const LIST_DEFAULT: u32 = 1000;
/// Tasks of one `List` answer: 10,000 rows stay far below a message's limit.
const LIST_MAX: u32 = 10_000;

/// A request that is refused before anything else looks at it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {given}; allowed: {allowed}")]
pub struct Invalid {
    /// Which field, in the user's words.
    pub field: &'static str,
    /// What was given.
    pub given: String,
    /// What is allowed.
    pub allowed: String,
}

/// A submit that may be proposed.
#[derive(Debug)]
pub struct ValidSubmit {
    /// The command; it names its blobs by hash.
    pub command: v1::SubmitCommand,
    /// Those blobs.
    pub blobs: Vec<v1::Blob>,
}

/// Whole jobs, and some tasks of arrays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Named {
    /// Whole ones.
    pub jobs: Vec<JobId>,
    /// Tasks.
    pub tasks: Vec<v1::TaskSet>,
}

/// Which jobs a cancel means.
#[derive(Debug, PartialEq)]
pub enum Selection {
    /// These.
    Jobs(Named),
    /// All live ones that match.
    Matching(Filter),
}

/// A filter over jobs; empty parts match all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this user.
    pub user: Option<String>,
    /// Whose name matches.
    pub name: Option<NameGlob>,
    /// In one of these states.
    pub states: BTreeSet<StateName>,
    /// Only those that did not end.
    pub live_only: bool,
    /// Only `EXIT`.
    pub failed: bool,
    /// Ended ones only if they ended at or after this, wall ms.
    pub ended_since_wall_ms: Option<u64>,
}

/// A name with `*` and `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameGlob(Vec<char>);

/// A list that may be answered.
#[derive(Debug, PartialEq, Eq)]
pub struct ValidList {
    /// Which jobs.
    pub filter: Filter,
    /// Ids below this, or from the newest.
    pub below: Option<JobId>,
    /// Of the array right at that place, tasks below this one come first.
    pub below_task: Option<u32>,
    /// One line for each array.
    pub fold: bool,
    /// At most so many.
    pub limit: usize,
}

pub(super) fn invalid(
    field: &'static str,
    given: impl Into<String>,
    allowed: impl Into<String>,
) -> Invalid {
    Invalid { field, given: given.into(), allowed: allowed.into() }
}

fn sized(field: &'static str, bytes: usize, max: usize) -> Result<(), Invalid> {
    if bytes <= max {
        return Ok(());
    }
    Err(invalid(field, format!("{bytes} bytes"), format!("at most {max} bytes")))
}

pub(super) fn text(field: &'static str, value: &str, max: usize) -> Result<(), Invalid> {
    sized(field, value.len(), max)?;
    match value.chars().find(|c| c.is_control()) {
        Some(c) => Err(invalid(field, format!("a control character ({c:?})"), "one line of text")),
        None => Ok(()),
    }
}

fn c_string(field: &'static str, value: &[u8], max: usize) -> Result<(), Invalid> {
    sized(field, value.len(), max)?;
    if value.contains(&0) {
        return Err(invalid(field, "a zero byte", "bytes without zero"));
    }
    Ok(())
}

fn path(field: &'static str, value: Option<&Vec<u8>>) -> Result<(), Invalid> {
    let Some(value) = value else { return Ok(()) };
    if value.is_empty() {
        return Err(invalid(field, "an empty path", "a path"));
    }
    c_string(field, value, PATH_MAX_BYTES)
}

/// Checks a submit and encodes what goes with it.
pub fn submit(request: v1::SubmitRequest, caller: &Caller) -> Result<ValidSubmit, Invalid> {
    let v1::SubmitRequest { request_id, user_key, spec, env, stdin, partition: _ } = request;
    let spec = spec.ok_or_else(|| invalid("spec", "nothing", "a job specification"))?;
    let spec = normal(spec);
    check_spec(&spec)?;
    let env = env.unwrap_or_default();
    check_env(&env)?;
    if spec.has_stdin != stdin.is_some() {
        let given = format!("has_stdin = {} and {} stdin", spec.has_stdin, present(&stdin));
        return Err(invalid("stdin", given, "both or neither"));
    }
    sized("stdin", stdin.as_ref().map_or(0, Vec::len), STDIN_MAX_BYTES)?;
    let spec = spec.encode_to_vec();
    sized("job specification (arguments, script and the rest)", spec.len(), SPEC_MAX_BYTES)?;
    let env = env.encode_to_vec();
    sized("environment", env.len(), SPEC_MAX_BYTES)?;
    let request_id = request_key(request_id, user_key)?;
    let (spec, env, stdin) = (blob(spec), blob(env), stdin.map(blob));
    let command = v1::SubmitCommand {
        by: Some(requester(caller)),
        request_id,
        user_key,
        spec_hash: spec.hash.clone(),
        env_hash: env.hash.clone(),
        stdin_hash: stdin.as_ref().map(|blob| blob.hash.clone()),
    };
    let blobs = [Some(spec), Some(env), stdin].into_iter().flatten().collect();
    Ok(ValidSubmit { command, blobs })
}

/// The specification of a submit that is only asked about: checked as one that is meant.
pub fn spec_of(request: v1::SubmitRequest, caller: &Caller) -> Result<v1::JobSpec, Invalid> {
    let spec = request.spec.clone();
    submit(request, caller)?;
    // A submit without one is refused.
    Ok(normal(spec.unwrap_or_default()))
}

/// Who asks, as the log keeps it.
pub fn requester(caller: &Caller) -> v1::Requester {
    v1::Requester { user: caller.user.clone(), uid: caller.uid, admin: caller.admin }
}

/// A request id that may be logged; a fresh one where the client gave none.
pub fn request_key(request_id: String, user_key: bool) -> Result<String, Invalid> {
    text("request id", &request_id, NAME_MAX_BYTES)?;
    match (request_id.is_empty(), user_key) {
        (true, true) => Err(invalid("--key", "an empty key", "a key of your choice")),
        (true, false) => Ok(uuid::Uuid::now_v7().to_string()),
        (false, _) => Ok(request_id),
    }
}

fn present<T>(value: &Option<T>) -> &'static str {
    if value.is_some() { "a" } else { "no" }
}

fn blob(data: Vec<u8>) -> v1::Blob {
    v1::Blob { hash: blake3::hash(&data).as_bytes().to_vec(), data }
}

/// Fills in what the documented defaults say, so that equal jobs have equal bytes.
fn normal(mut spec: v1::JobSpec) -> v1::JobSpec {
    spec.cpus = spec.cpus.max(1);
    if spec.queue.is_empty() {
        spec.queue = QUEUE_DEFAULT.to_owned();
    }
    if spec.name.is_empty() {
        spec.name = default_name(&spec);
    }
    spec
}

fn default_name(spec: &v1::JobSpec) -> String {
    let program = spec.argv.first().filter(|_| spec.script.is_none());
    let base = program.and_then(|program| program.rsplit(|b| *b == b'/').next());
    let name = String::from_utf8_lossy(base.unwrap_or(b"script")).into_owned();
    let clean: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
    if clean.is_empty() { "job".to_owned() } else { clean }
}

fn check_spec(spec: &v1::JobSpec) -> Result<(), Invalid> {
    text("--name", &spec.name, NAME_MAX_BYTES)?;
    text("--queue", &spec.queue, NAME_MAX_BYTES)?;
    text("--comment", &spec.comment, COMMENT_MAX_BYTES)?;
    check_command(spec)?;
    check_paths(spec)?;
    check_resources(spec)?;
    check_dependencies(spec)?;
    check_numbers(spec)
}

fn check_dependencies(spec: &v1::JobSpec) -> Result<(), Invalid> {
    judge_dependencies(spec).map_err(|why| {
        let ids =
            format!("at most {DEPENDENCIES_MAX} ids of jobs (12) or of tasks of arrays (12_0-4)");
        invalid("dependencies", why, ids)
    })
}

fn check_command(spec: &v1::JobSpec) -> Result<(), Invalid> {
    if spec.script.is_none() && spec.argv.first().is_none_or(Vec::is_empty) {
        return Err(invalid("command", "nothing to run", "a command or a script"));
    }
    if spec.script.as_ref().is_some_and(Vec::is_empty) {
        return Err(invalid("script", "an empty script", "a script with contents"));
    }
    spec.argv.iter().try_for_each(|arg| c_string("argument", arg, STRING_MAX_BYTES))
}

fn check_paths(spec: &v1::JobSpec) -> Result<(), Invalid> {
    if spec.dir.first() != Some(&b'/') {
        let given = format!("`{}`", String::from_utf8_lossy(&spec.dir));
        return Err(invalid("--dir", given, "an absolute path"));
    }
    path("--dir", Some(&spec.dir))?;
    path("--stdin", spec.stdin_path.as_ref())?;
    path("--stdout", spec.stdout_pattern.as_ref())?;
    path("--stderr", spec.stderr_pattern.as_ref())?;
    if spec.has_stdin && spec.stdin_path.is_some() {
        return Err(invalid("--stdin", "a file and contents", "one of them"));
    }
    Ok(())
}

fn check_resources(spec: &v1::JobSpec) -> Result<(), Invalid> {
    for (field, value) in [("--cpus", spec.cpus), ("--gpus", spec.gpus)] {
        if value > CPUS_MAX {
            return Err(invalid(field, value.to_string(), format!("at most {CPUS_MAX}")));
        }
    }
    judge_resources(&spec.resources).map_err(|why| {
        let allowed = format!("at most {ASKED_MAX} as NAME=N; {RESOURCE_NAME_RULE}");
        invalid("--resource", why, allowed)
    })?;
    if let Some(node) = &spec.node {
        text("--node", node, NAME_MAX_BYTES)?;
    }
    let labels = spec.node_labels.len();
    if labels > LABELS_MAX {
        return Err(invalid("--node-label", format!("{labels} labels"), format!("{LABELS_MAX}")));
    }
    spec.node_labels.iter().try_for_each(|(name, value)| {
        text("--node-label", name, NAME_MAX_BYTES)?;
        text("--node-label", value, NAME_MAX_BYTES)
    })
}

fn check_numbers(spec: &v1::JobSpec) -> Result<(), Invalid> {
    if !(-1000..=1000).contains(&spec.priority) {
        return Err(invalid("--priority", spec.priority.to_string(), "-1000 to 1000"));
    }
    if let Some(array) = &spec.array {
        numbers("--array", &array.ranges)?;
        if array.limit == Some(0) {
            return Err(invalid("--array", "%0", "%1 or more, or no limit"));
        }
    }
    if spec.time_limit_ms == Some(0) {
        return Err(invalid("--time", "0", "more than 0, or no limit"));
    }
    if let Some(warn) = spec.warn.filter(|warn| !(1..=64).contains(&warn.signal)) {
        return Err(invalid("--signal", warn.signal.to_string(), "1 to 64"));
    }
    if let Some(code) = spec.success_codes.iter().find(|code| **code > 255) {
        return Err(invalid("--success-codes", code.to_string(), "0 to 255"));
    }
    let codes = spec.success_codes.len();
    if codes > SUCCESS_CODES_MAX {
        let allowed = format!("at most {SUCCESS_CODES_MAX}");
        return Err(invalid("--success-codes", format!("{codes} codes"), allowed));
    }
    if let Some(umask) = spec.umask.filter(|umask| *umask > 0o777) {
        return Err(invalid("umask", format!("{umask:#o}"), "at most 0777"));
    }
    if v1::OnDisconnect::try_from(spec.on_disconnect).is_err() {
        let given = spec.on_disconnect.to_string();
        return Err(invalid("--on-disconnect", given, "exit or unknown"));
    }
    Ok(())
}

/// Each NAME=VALUE, each name once: of two a program would see the first or the last, as it likes.
fn check_env(env: &v1::EnvBlob) -> Result<(), Invalid> {
    let mut names = BTreeSet::new();
    env.vars.iter().try_for_each(|var| {
        c_string("environment variable", var, STRING_MAX_BYTES)?;
        let shown = || format!("`{}`", String::from_utf8_lossy(&var[..var.len().min(60)]));
        match var.iter().position(|byte| *byte == b'=') {
            Some(at) if at > 0 && names.insert(&var[..at]) => Ok(()),
            Some(at) if at > 0 => Err(invalid(
                "environment variable",
                format!("{} is the second", shown()),
                "each name once",
            )),
            _ => Err(invalid("environment variable", shown(), "NAME=value")),
        }
    })
}

/// Checks the ids of a request.
pub fn job_ids(jobs: &[u64]) -> Result<Vec<JobId>, Invalid> {
    if jobs.is_empty() {
        return Err(invalid("job ids", "none", "at least one"));
    }
    if jobs.len() > IDS_MAX {
        let allowed = format!("at most {IDS_MAX} in one request");
        return Err(invalid("job ids", jobs.len().to_string(), allowed));
    }
    jobs.iter().copied().map(job_id).collect()
}

/// Checks what a request names: whole jobs, and tasks of arrays.
pub fn named(jobs: &[u64], tasks: Vec<v1::TaskSet>) -> Result<Named, Invalid> {
    if jobs.len().saturating_add(tasks.len()) > IDS_MAX {
        let allowed = format!("at most {IDS_MAX} in one request");
        return Err(invalid("job ids", (jobs.len() + tasks.len()).to_string(), allowed));
    }
    for set in &tasks {
        job_id(set.job)?;
        numbers("task", &set.ranges)?;
    }
    let jobs = match (jobs.is_empty(), tasks.is_empty()) {
        (true, false) => Vec::new(),
        _ => job_ids(jobs)?,
    };
    Ok(Named { jobs, tasks })
}

/// Each task by itself, for answers that have one of each.
pub fn one_by_one(named: Named) -> Result<Vec<Which>, Invalid> {
    let mut all: Vec<Which> = named.jobs.into_iter().map(Which::Whole).collect();
    for set in named.tasks {
        let job = JobId(set.job);
        for index in numbers("task", &set.ranges)?.numbers() {
            if all.len() >= IDS_MAX {
                let allowed = format!("at most {IDS_MAX} in one request, or the whole array");
                return Err(invalid("tasks", "more", allowed));
            }
            all.push(Which::One(TaskId { job, index: Some(index) }));
        }
    }
    Ok(all)
}

/// One thing that an answer tells about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// A plain job, or an array as a whole.
    Whole(JobId),
    /// A task.
    One(TaskId),
}

impl Which {
    /// Its job.
    pub fn job(self) -> JobId {
        match self {
            Which::Whole(job) => job,
            Which::One(task) => task.job,
        }
    }
}

fn numbers(field: &'static str, ranges: &[v1::TaskRange]) -> Result<Ranges, Invalid> {
    let found = docket_core::ledger::ranges(ranges).map_err(|why| {
        invalid(field, why, format!("numbers such as 0-99:2,120, at most {ARRAY_MAX}"))
    })?;
    match found.is_empty() {
        true => Err(invalid(field, "no number", "at least one task")),
        false => Ok(found),
    }
}

/// Checks one id.
pub fn job_id(job: u64) -> Result<JobId, Invalid> {
    match job {
        0 => Err(invalid("job id", "0", "1 or more")),
        id => Ok(JobId(id)),
    }
}

/// A plain job, or a task of an array.
pub fn task_id(job: u64, index: Option<u32>) -> Result<TaskId, Invalid> {
    Ok(TaskId { job: job_id(job)?, index })
}

/// Checks what a cancel selects.
pub fn selection(request: &v1::CancelRequest) -> Result<Selection, Invalid> {
    if let Some(signal) = request.signal.filter(|signal| !(1..=SIGNAL_MAX).contains(signal)) {
        return Err(invalid("--signal", signal.to_string(), format!("1 to {SIGNAL_MAX}")));
    }
    let filter = Filter {
        user: request.user.clone(),
        name: request.name_glob.as_deref().map(name_glob).transpose()?,
        states: states(&request.states)?,
        live_only: true,
        ..Filter::default()
    };
    let selects = Filter { live_only: true, ..Filter::default() } != filter;
    let none = request.jobs.is_empty() && request.tasks.is_empty();
    match (none, selects || request.all) {
        (false, false) => named(&request.jobs, request.tasks.clone()).map(Selection::Jobs),
        (true, true) => Ok(Selection::Matching(filter)),
        (true, false) => Err(invalid("cancel", "no job", "ids, or --user, --name, --state, --all")),
        (false, true) => Err(invalid("cancel", "ids and a selection", "one of them")),
    }
}

/// Checks why a node is drained: it stands in tables.
pub fn reason(reason: &str) -> Result<(), Invalid> {
    text("--reason", reason, DRAIN_REASON_MAX)
}

/// Checks a page of orphans: those after this position, at most so many.
pub fn orphans(request: &v1::OrphansRequest) -> Result<(u64, usize), Invalid> {
    Ok((request.after_position, page_limit(request.limit)?))
}

/// Rows of one page, as asked for.
fn page_limit(limit: u32) -> Result<usize, Invalid> {
    match limit {
        0 => Ok(LIST_DEFAULT as usize),
        1..=LIST_MAX => Ok(limit as usize),
        _ => Err(invalid("--limit", limit.to_string(), format!("at most {LIST_MAX}"))),
    }
}

/// Checks a list. `caller` is whose jobs are meant by default.
pub fn list(request: v1::ListRequest, caller: &Caller) -> Result<ValidList, Invalid> {
    let limit = page_limit(request.limit)?;
    let own = (!request.all_users).then(|| caller.user.clone());
    let filter = Filter {
        user: request.user.or(own),
        name: request.name_glob.as_deref().map(name_glob).transpose()?,
        states: states(&request.states)?,
        live_only: request.live_only,
        failed: request.failed,
        ended_since_wall_ms: request.ended_since_wall_ms,
    };
    let below = Some(JobId(request.after_job)).filter(|id| id.0 > 0);
    let below_task = request.after_task.filter(|_| below.is_some() && !request.fold_arrays);
    Ok(ValidList { filter, below, below_task, fold: request.fold_arrays, limit })
}

fn states(names: &[String]) -> Result<BTreeSet<StateName>, Invalid> {
    names.iter().map(|name| state(name)).collect()
}

fn state(name: &str) -> Result<StateName, Invalid> {
    let upper = name.to_ascii_uppercase();
    let known = StateName::ALL.into_iter().find(|state| state.as_str() == upper);
    known.ok_or_else(|| {
        let all: Vec<&str> = StateName::ALL.into_iter().map(StateName::as_str).collect();
        invalid("--state", format!("`{name}`"), all.join(", "))
    })
}

fn name_glob(pattern: &str) -> Result<NameGlob, Invalid> {
    text("--name", pattern, NAME_MAX_BYTES)?;
    Ok(NameGlob(pattern.chars().collect()))
}

impl NameGlob {
    /// Whether a name matches: `*` is any run, `?` is one character. Linear in both but for
    /// the last `*`, which is tried at each place.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name): (&[char], Vec<char>) = (&self.0, name.chars().collect());
        let (mut p, mut n) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some('*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(c) if *c == '?' || *c == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => match &mut star {
                    Some((at, from)) => {
                        *from += 1;
                        (p, n) = (*at + 1, *from);
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|c| *c == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> Caller {
        Caller { user: "ann".to_owned(), uid: 1000, admin: false }
    }

    fn request() -> v1::SubmitRequest {
        let spec = v1::JobSpec {
            argv: vec![b"/bin/true".to_vec()],
            dir: b"/tmp".to_vec(),
            ..v1::JobSpec::default()
        };
        v1::SubmitRequest { spec: Some(spec), ..v1::SubmitRequest::default() }
    }

    fn refusal(change: impl FnOnce(&mut v1::SubmitRequest)) -> String {
        let mut request = request();
        change(&mut request);
        submit(request, &caller()).unwrap_err().to_string()
    }

    #[test]
    fn a_minimal_submit_gets_the_documented_defaults() {
        let valid = submit(request(), &caller()).unwrap();
        let spec = v1::JobSpec::decode(&valid.blobs[0].data[..]).unwrap();
        assert_eq!((spec.cpus, &*spec.queue, &*spec.name), (1, "default", "true"));
        assert_eq!(valid.command.spec_hash, blake3::hash(&valid.blobs[0].data).as_bytes());
        assert_eq!(valid.command.stdin_hash, None);
        assert_eq!(valid.command.request_id.len(), 36, "a fresh id");
        assert_eq!(valid.command.by.unwrap().uid, 1000);
    }

    #[test]
    fn a_refusal_names_field_given_and_allowed() {
        let spec =
            |change: fn(&mut v1::JobSpec)| refusal(move |r| r.spec.iter_mut().for_each(change));
        assert_eq!(
            spec(|s| s.argv.push(vec![b'x'; STRING_MAX_BYTES + 1])),
            "argument: 131072 bytes; allowed: at most 131071 bytes"
        );
        assert_eq!(spec(|s| s.priority = 1001), "--priority: 1001; allowed: -1000 to 1000");
        assert_eq!(spec(|s| s.dir = b"x".to_vec()), "--dir: `x`; allowed: an absolute path");
        assert_eq!(
            spec(|s| s.argv.clear()),
            "command: nothing to run; allowed: a command or a script"
        );
        assert!(spec(|s| s.argv[0].push(0)).starts_with("argument: a zero byte"));
        assert!(spec(|s| s.name = "a\nb".to_owned()).starts_with("--name: a control character"));
        assert!(spec(|s| s.has_stdin = true).starts_with("stdin: has_stdin = true and no stdin"));
        assert!(spec(|s| s.script = Some(vec![b'x'; SPEC_MAX_BYTES])).contains("at most 1048576"));
        let env = refusal(|r| r.env = Some(v1::EnvBlob { vars: vec![b"=x".to_vec()] }));
        assert_eq!(env, "environment variable: `=x`; allowed: NAME=value");
        let twice = vec![b"A=1".to_vec(), b"AB=1".to_vec(), b"A=2".to_vec()];
        let env = refusal(|r| r.env = Some(v1::EnvBlob { vars: twice }));
        assert_eq!(env, "environment variable: `A=2` is the second; allowed: each name once");
    }

    #[test]
    fn a_cancel_means_ids_or_a_selection() {
        let by_id = v1::CancelRequest { jobs: vec![3, 4], ..v1::CancelRequest::default() };
        let named = Named { jobs: vec![JobId(3), JobId(4)], tasks: Vec::new() };
        assert_eq!(selection(&by_id), Ok(Selection::Jobs(named)));
        assert!(selection(&v1::CancelRequest::default()).is_err());
        assert!(selection(&v1::CancelRequest { all: true, ..by_id.clone() }).is_err());
        let pend =
            v1::CancelRequest { states: vec!["pend".to_owned()], ..v1::CancelRequest::default() };
        let Ok(Selection::Matching(filter)) = selection(&pend) else { panic!("a selection") };
        assert_eq!(filter.states, BTreeSet::from([StateName::Pend]));
        let bad = v1::CancelRequest { jobs: vec![1], signal: Some(65), ..by_id };
        assert_eq!(selection(&bad).unwrap_err().to_string(), "--signal: 65; allowed: 1 to 64");
    }

    #[test]
    fn a_list_means_the_callers_own_jobs_unless_told() {
        let own = list(v1::ListRequest::default(), &caller()).unwrap();
        assert_eq!((own.filter.user.as_deref(), own.limit, own.below), (Some("ann"), 1000, None));
        let all = v1::ListRequest { all_users: true, after_job: 9, ..v1::ListRequest::default() };
        let all = list(all, &caller()).unwrap();
        assert_eq!((all.filter.user, all.below), (None, Some(JobId(9))));
        let bad = v1::ListRequest { states: vec!["GONE".to_owned()], ..v1::ListRequest::default() };
        assert!(list(bad, &caller()).unwrap_err().to_string().contains("PEND, RUN, SUSP"));
    }

    #[test]
    fn globs_match_as_in_a_shell() {
        let matches = |pattern: &str, name: &str| name_glob(pattern).unwrap().matches(name);
        assert!(matches("a*c?e", "abbcde"));
        assert!(matches("*", ""));
        assert!(matches("**x", "axbx"));
        assert!(!matches("a?", "a"));
        assert!(!matches("a*b", "acd"));
        assert!(matches("sim-*-7", "sim-x-7-7"));
    }
}
