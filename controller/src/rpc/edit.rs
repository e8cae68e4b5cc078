//! Edits of jobs by their owner: hold, release, suspend, resume, set. What may be changed is
//! decided in apply; each is one command for all ids of a request, with one result per job.

use super::convert::{self, Named};
use super::identity::Caller;
use super::server::Shared;
use super::status::{code_number, rejected, unexpected};
use crate::pump::View;
use docket_core::ledger::{EditResult, Job, Ledger, Outcome, Ranges};
use proto::TaskId;
use proto::v1::{self, command};
use tonic::Status;

/// What is done to the jobs.
#[derive(Clone, PartialEq, Debug)]
pub enum Edit {
    /// Keep them in the queue.
    Hold,
    /// Let them go to a node again.
    Release,
    /// Stop their trees.
    Suspend,
    /// Let their trees go on.
    Resume,
    /// Change their place in the queue.
    Priority(i32),
    /// Change how many tasks of an array may be on nodes at once; 0: any number.
    ArrayLimit(u32),
    /// Change what was asked at the submit.
    Set(v1::set_command::Change),
}

impl Edit {
    /// The outcome's name on the wire.
    fn done(&self) -> &'static str {
        match self {
            Edit::Hold => "held",
            Edit::Release => "released",
            Edit::Suspend => "suspend-requested",
            Edit::Resume => "resume-requested",
            Edit::Priority(_) | Edit::ArrayLimit(_) | Edit::Set(_) => "set",
        }
    }

    fn command(self, by: v1::Requester, request_id: String, named: Named) -> command::Kind {
        let (by, tasks) = (Some(by), named.tasks);
        let jobs = named.jobs.iter().map(|id| id.0).collect();
        match self {
            Edit::Hold | Edit::Release => {
                let release = self == Edit::Release;
                command::Kind::Hold(v1::HoldCommand { tasks, by, request_id, jobs, release })
            }
            Edit::Suspend | Edit::Resume => {
                let resume = self == Edit::Resume;
                command::Kind::Suspend(v1::SuspendCommand { tasks, by, request_id, jobs, resume })
            }
            Edit::ArrayLimit(limit) => {
                command::Kind::ArrayLimit(v1::ArrayLimitCommand { by, request_id, jobs, limit })
            }
            Edit::Set(change) => {
                let change = Some(change);
                command::Kind::Set(v1::SetCommand { by, request_id, jobs, tasks, change })
            }
            Edit::Priority(priority) => command::Kind::Priority(v1::PriorityCommand {
                tasks,
                by,
                request_id,
                jobs,
                priority,
            }),
        }
    }
}

/// Answers one edit; one result per job, in the order of the ids.
pub async fn edit(
    shared: &Shared,
    caller: &Caller,
    edit: Edit,
    request: v1::EditRequest,
) -> Result<v1::EditAnswer, Status> {
    let request_id = convert::request_key(request.request_id, false)?;
    let named = convert::named(&request.jobs, request.tasks)?;
    let command = edit.clone().command(convert::requester(caller), request_id, named);
    let accepted = shared.propose(command, Vec::new()).await?;
    match accepted.outcome {
        Outcome::Edited(results) => {
            let look = move |view: View<'_>| {
                results.iter().map(|result| to_wire(view.ledger, &edit, result)).collect()
            };
            Ok(v1::EditAnswer { results: shared.pump.read(look).await? })
        }
        Outcome::Rejected(rejection) => Err(rejected(&rejection)),
        other => Err(unexpected(&other)),
    }
}

fn to_wire(ledger: &Ledger, edit: &Edit, edited: &EditResult) -> v1::EditResult {
    let EditResult { job, tasks, result } = edited;
    let told = tasks.as_ref().map(Ranges::to_string);
    match result {
        Ok(()) => {
            // Of several tasks none speaks for all.
            let index = tasks.as_ref().filter(|tasks| tasks.len() == 1).and_then(Ranges::first);
            let found = ledger.job(TaskId { job: *job, index });
            let agent = found.and_then(Job::grant).and_then(|grant| ledger.agent(&grant.agent));
            v1::EditResult {
                job: job.0,
                outcome: edit.done().to_owned(),
                state: found.map_or_else(String::new, |job| job.state_name().to_string()),
                node: agent.map(|agent| agent.name().to_owned()),
                tasks: told,
                ..v1::EditResult::default()
            }
        }
        Err(rejection) => v1::EditResult {
            job: job.0,
            error: Some(rejection.to_string()),
            error_code: code_number(rejected(rejection).code()),
            tasks: told,
            ..v1::EditResult::default()
        },
    }
}
