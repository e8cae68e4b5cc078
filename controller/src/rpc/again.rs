//! `Retry`: a job that has ended is submitted again, as it was asked and since changed. To the log it is
//! a submit like any other, under a request id of its own; the ledger has all that it needs.

use super::convert::{self, ValidSubmit};
use super::identity::Caller;
use super::server::{Shared, may_change};
use super::status::{code_number, rejected, unexpected};
use crate::pump::View;
use docket_core::ledger::{Array, Entry, Job, Ledger, Outcome, Ranges, Rejection, StateName};
use prost::Message as _;
use proto::{JobId, v1};
use tonic::Status;

/// A job that was named: all of it, or some tasks.
#[derive(Clone, Debug)]
struct Wanted {
    job: JobId,
    tasks: Option<Vec<v1::TaskRange>>,
}

/// What is submitted again, and whose it is.
struct Again {
    spec: v1::JobSpec,
    env: Vec<u8>,
    stdin: Option<Vec<u8>>,
    owner: Caller,
}

/// Why it is not.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Ledger(#[from] Rejection),
    #[error(
        "job {job} has not ended, it is {state}: docket wait {job}, or docket cancel {job} first"
    )]
    Lives { job: String, state: StateName },
    #[error("no task of job {job} failed: docket retry {job} runs all of them again")]
    NoneFailed { job: JobId },
    #[error("job {job} is DONE, it did not fail: docket retry {job} runs it again all the same")]
    Done { job: JobId },
}

/// Answers one retry; one result per job, in the order of the ids.
pub async fn retry(
    shared: &Shared,
    caller: &Caller,
    request: v1::RetryRequest,
) -> Result<v1::RetryAnswer, Status> {
    let v1::RetryRequest { request_id, jobs, tasks, failed } = request;
    let key = convert::request_key(request_id, false)?;
    let named = convert::named(&jobs, tasks)?;
    let whole = named.jobs.into_iter().map(|job| Wanted { job, tasks: None });
    let some =
        named.tasks.into_iter().map(|set| Wanted { job: JobId(set.job), tasks: Some(set.ranges) });
    shared.linearizable().await?;
    let mut results = Vec::new();
    for (number, wanted) in whole.chain(some).enumerate() {
        // Each is a submit of its own, so each needs an id of its own.
        let id = format!("{key}/{number}");
        let mut result = v1::RetryResult { of: wanted.job.0, ..v1::RetryResult::default() };
        match submit(shared, caller, wanted, failed, id).await {
            Ok(job) => result.job = job,
            Err(status) => {
                result.error = Some(status.message().to_owned());
                result.error_code = code_number(status.code());
            }
        }
        results.push(result);
    }
    Ok(v1::RetryAnswer { results })
}

async fn submit(
    shared: &Shared,
    caller: &Caller,
    wanted: Wanted,
    failed: bool,
    request_id: String,
) -> Result<u64, Status> {
    let by = caller.clone();
    let look = move |view: View<'_>| again(view.ledger, &by, &wanted, failed);
    let again = shared.pump.read(look).await?.map_err(Refused::into_status)?;
    let garbled = |what: &str, error: prost::DecodeError| {
        Status::internal(format!("the {what} of the job cannot be read: {error}"))
    };
    let env = v1::EnvBlob::decode(&*again.env).map_err(|error| garbled("environment", error))?;
    let request = v1::SubmitRequest {
        request_id,
        spec: Some(again.spec),
        env: Some(env),
        stdin: again.stdin,
        ..v1::SubmitRequest::default()
    };
    let ValidSubmit { command, blobs } = convert::submit(request, &again.owner)?;
    let accepted = shared.propose(v1::command::Kind::Submit(command), blobs).await?;
    match accepted.outcome {
        Outcome::Submitted { job, .. } => Ok(job.0),
        Outcome::Rejected(rejection) => Err(rejected(&rejection)),
        other => Err(unexpected(&other)),
    }
}

impl Refused {
    fn into_status(self) -> Status {
        match self {
            Refused::Ledger(rejection) => rejected(&rejection),
            other => super::status::not_to_retry(other.to_string()),
        }
    }
}

fn again(
    ledger: &Ledger,
    caller: &Caller,
    wanted: &Wanted,
    failed: bool,
) -> Result<Again, Refused> {
    let entry = ledger.find_entry(wanted.job)?;
    let head = entry.head();
    if !may_change(caller, head.by().uid) {
        return Err(Rejection::NotOwner { job: wanted.job, owner: head.by().name.clone() }.into());
    }
    let spec = match entry {
        Entry::Job(_) if wanted.tasks.is_some() => {
            return Err(Rejection::NotAnArray { job: wanted.job }.into());
        }
        Entry::Job(job) => plain(job, failed)?,
        Entry::Array(array) => some_tasks(array, wanted, failed)?,
    };
    let owner = Caller { user: head.by().name.clone(), uid: head.by().uid, admin: false };
    let (env, stdin) = (head.env_bytes().to_vec(), head.stdin_bytes().map(<[u8]>::to_vec));
    Ok(Again { spec, env, stdin, owner })
}

fn plain(job: &Job, failed: bool) -> Result<v1::JobSpec, Refused> {
    if !job.terminal() {
        return Err(Refused::Lives { job: job.id().to_string(), state: job.state_name() });
    }
    match failed && job.state_name() == StateName::Done {
        true => Err(Refused::Done { job: job.id() }),
        false => Ok(as_asked(job)),
    }
}

/// An array of those tasks of it that are meant.
fn some_tasks(array: &Array, wanted: &Wanted, failed: bool) -> Result<v1::JobSpec, Refused> {
    let all = array.numbers();
    let meant = match &wanted.tasks {
        None => all.clone(),
        Some(ranges) => docket_core::ledger::ranges(ranges).unwrap_or_default(),
    };
    let lacking = meant.without(&all);
    if let Some(task) = lacking.first() {
        let (job, tasks) = (wanted.job, array.asked());
        return Err(Rejection::NoSuchTask { job, task: Some(task), tasks }.into());
    }
    let so = |holds: &dyn Fn(&Job) -> bool| {
        let shared = array.shared().filter(|(_, job)| holds(job));
        let shared = shared.flat_map(|(members, _)| members.stretches());
        let own = array.own_tasks().filter(|job| holds(job));
        let own = own.filter_map(|job| job.task_id().index).map(|number| (number, number));
        Ranges::of(shared.chain(own)).common(&meant)
    };
    let live = so(&|job| !job.terminal());
    if let Some(number) = live.first() {
        let job = array.task_id(number);
        let state = array.task(number).map_or(StateName::Pend, Job::state_name);
        return Err(Refused::Lives { job: job.to_string(), state });
    }
    let chosen = if failed { so(&|job| job.state_name() == StateName::Exit) } else { meant };
    if chosen.is_empty() {
        return Err(Refused::NoneFailed { job: wanted.job });
    }
    let range = |(first, last)| v1::TaskRange { first, last, step: 1 };
    let ranges = chosen.stretches().map(range).collect();
    let (limit, race) = (array.limit(), array.races());
    Ok(v1::JobSpec { array: Some(v1::ArraySpec { ranges, limit, race }), ..as_asked(array.head()) })
}

/// What was asked for, with what was set since. It waits for no hold and no time any more; for the jobs that
/// it depends on it does, and if one of them failed it ends for that again.
fn as_asked(job: &Job) -> v1::JobSpec {
    let ask = job.ask();
    v1::JobSpec {
        name: job.name(),
        cpus: ask.cpus,
        mem_bytes: ask.mem_bytes,
        priority: job.priority(),
        time_limit_ms: job.time_limit_ms(),
        hold: false,
        begin_wall_ms: None,
        retry_of: Some(job.id().0),
        ..job.spec().clone()
    }
}
