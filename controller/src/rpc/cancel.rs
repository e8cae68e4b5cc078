//! `Cancel`: of ids, or of all live jobs that match. What may be cancelled is decided in apply; a
//! dry run only counts what would be tried.

use super::convert::{self, Filter, IDS_MAX, Selection};
use super::identity::Caller;
use super::list;
use super::server::{Shared, may_change};
use super::status::{code_number, rejected, unexpected};
use crate::pump::View;
use docket_core::ledger::{CancelResult, CancelVerdict, Outcome, Rejection};
use proto::{JobId, v1};
use tonic::Status;

/// Answers one cancel; one result per job, in the order of the ids.
pub async fn cancel(
    shared: &Shared,
    caller: &Caller,
    request: v1::CancelRequest,
) -> Result<v1::CancelAnswer, Status> {
    let selected = convert::selection(&request)?;
    let key = convert::request_key(request.request_id, false)?;
    let jobs = match selected {
        Selection::Jobs(jobs) => jobs,
        Selection::Matching(filter) => {
            list::matching(shared, own_unless_named(filter, caller)).await?
        }
    };
    let mut results = Vec::with_capacity(jobs.len());
    for (part, jobs) in jobs.chunks(IDS_MAX).enumerate() {
        let done = if request.dry_run {
            would_cancel(shared, caller, jobs.to_vec()).await?
        } else {
            // Each part is a command of its own, so each needs an id of its own.
            let request_id = if part == 0 { key.clone() } else { format!("{key}/{part}") };
            propose(shared, caller, request_id, jobs, request.signal).await?
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
    jobs: &[JobId],
    signal: Option<u32>,
) -> Result<Vec<v1::CancelResult>, Status> {
    let command = v1::CancelCommand {
        by: Some(convert::requester(caller)),
        request_id,
        jobs: jobs.iter().map(|id| id.0).collect(),
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
    jobs: Vec<JobId>,
) -> Result<Vec<v1::CancelResult>, Status> {
    let caller = caller.clone();
    let look = move |view: View<'_>| {
        jobs.iter().map(|id| to_wire(&verdict(&view, &caller, *id))).collect::<Vec<_>>()
    };
    let mut results = shared.read(look).await?;
    for result in results.iter_mut().filter(|r| r.outcome == CancelVerdict::Requested.as_str()) {
        result.outcome = "would-cancel".to_owned();
    }
    Ok(results)
}

fn verdict(view: &View<'_>, caller: &Caller, job: JobId) -> CancelResult {
    let verdict = match view.ledger.find(job) {
        Err(rejection) => CancelVerdict::Refused(rejection),
        Ok(found) if !may_change(caller, found.by().uid) => {
            let owner = found.by().name.clone();
            CancelVerdict::Refused(Rejection::NotOwner { job, owner })
        }
        Ok(found) if found.terminal() => CancelVerdict::AlreadyEnded,
        Ok(_) => CancelVerdict::Requested,
    };
    CancelResult { job, verdict }
}
