//! `Cancel`: of ids, or of all live jobs that match. What may be cancelled is decided in apply; a
//! dry run only counts what would be tried.

use super::convert::{self, Filter, IDS_MAX, Named, Selection};
use super::identity::Caller;
use super::list;
use super::server::{Shared, may_change};
use super::status::{code_number, rejected, unexpected};
use crate::pump::View;
use docket_core::ledger::{CancelResult, CancelVerdict, Entry, Outcome, Ranges, Rejection};
use proto::{JobId, TaskId, v1};
use tonic::Status;

/// Answers one cancel; one result per job, in the order of the ids.
pub async fn cancel(
    shared: &Shared,
    caller: &Caller,
    request: v1::CancelRequest,
) -> Result<v1::CancelAnswer, Status> {
    let selected = convert::selection(&request)?;
    let key = convert::request_key(request.request_id, false)?;
    let parts = match selected {
        Selection::Jobs(named) => vec![named],
        Selection::Matching(filter) => {
            let jobs = list::matching(shared, own_unless_named(filter, caller)).await?;
            let part = |jobs: &[JobId]| Named { jobs: jobs.to_vec(), tasks: Vec::new() };
            jobs.chunks(IDS_MAX).map(part).collect()
        }
    };
    let mut results = Vec::new();
    for (part, named) in parts.into_iter().enumerate() {
        let done = if request.dry_run {
            would_cancel(shared, caller, named).await?
        } else {
            // Each part is a command of its own, so each needs an id of its own.
            let request_id = if part == 0 { key.clone() } else { format!("{key}/{part}") };
            propose(shared, caller, request_id, named, request.signal).await?
        };
        results.extend(done);
    }
    Ok(v1::CancelAnswer { results })
}

/// A selection without a user means one's own jobs, also for those who may change all.
fn own_unless_named(filter: Filter, caller: &Caller) -> Filter {
    Filter { user: filter.user.or_else(|| Some(caller.user.clone())), ..filter }
}

async fn propose(
    shared: &Shared,
    caller: &Caller,
    request_id: String,
    named: Named,
    signal: Option<u32>,
) -> Result<Vec<v1::CancelResult>, Status> {
    let command = v1::CancelCommand {
        by: Some(convert::requester(caller)),
        request_id,
        jobs: named.jobs.iter().map(|id| id.0).collect(),
        tasks: named.tasks,
        signal,
    };
    let accepted = shared.propose(v1::command::Kind::Cancel(command), Vec::new()).await?;
    match accepted.outcome {
        Outcome::Cancelled(results) => Ok(results.iter().map(to_wire).collect()),
        Outcome::Rejected(rejection) => Err(rejected(&rejection)),
        other => Err(unexpected(&other)),
    }
}

fn to_wire(result: &CancelResult) -> v1::CancelResult {
    let mut wire = result.to_wire();
    if let CancelVerdict::Refused(rejection) = &result.verdict {
        wire.error_code = code_number(rejected(rejection).code());
    }
    wire
}

/// What a cancel would try, in words of the same answer.
async fn would_cancel(
    shared: &Shared,
    caller: &Caller,
    named: Named,
) -> Result<Vec<v1::CancelResult>, Status> {
    let caller = caller.clone();
    let look = move |view: View<'_>| {
        let whole = named.jobs.iter().map(|id| verdict(&view, &caller, *id, None));
        let some = named.tasks.iter().map(|set| {
            let tasks = docket_core::ledger::ranges(&set.ranges).ok();
            verdict(&view, &caller, JobId(set.job), tasks)
        });
        whole.chain(some).map(|result| to_wire(&result)).collect::<Vec<_>>()
    };
    let mut results = shared.read(look).await?;
    for result in results.iter_mut().filter(|r| r.outcome == CancelVerdict::Requested.as_str()) {
        result.outcome = "would-cancel".to_owned();
    }
    Ok(results)
}

fn verdict(view: &View<'_>, caller: &Caller, job: JobId, tasks: Option<Ranges>) -> CancelResult {
    let ended = |entry: Entry<'_>| match &tasks {
        None => Ok(entry.terminal()),
        Some(tasks) => {
            let states = tasks.numbers().map(|n| TaskId { job, index: Some(n) });
            let ended: Result<Vec<bool>, _> =
                states.map(|id| view.ledger.find(id).map(|task| task.terminal())).collect();
            ended.map(|ended| ended.iter().all(|ended| *ended))
        }
    };
    let found = view.ledger.find_entry(job);
    let verdict = match found.and_then(|entry| Ok((entry.head().by(), ended(entry)?))) {
        Err(rejection) => CancelVerdict::Refused(rejection),
        Ok((by, _)) if !may_change(caller, by.uid) => {
            CancelVerdict::Refused(Rejection::NotOwner { job, owner: by.name.clone() })
        }
        Ok((_, true)) => CancelVerdict::AlreadyEnded,
        Ok((_, false)) => CancelVerdict::Requested,
    };
    CancelResult { job, tasks, verdict }
}
