//! `docket hold`, `release`, `suspend`, `resume` and `set`: each job is answered for itself.

use super::context::{Context, parts};
use crate::args::{EditArgs, Output, SetArgs};
use crate::client::{Client, ClientError, Patience, request_id, result_exit};
use crate::exit;
use crate::failure::Failure;
use crate::say::{note, print};
use proto::v1::{EditRequest, EditResult, SetRequest};

/// Most jobs in one request; the server's limit.
const JOBS_MAX: usize = 10_000;

/// What is done to the jobs.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Keep them in the queue.
    Hold,
    /// Let them start.
    Release,
    /// Stop their trees.
    Suspend,
    /// Let their trees go on.
    Resume,
    /// Change what was asked at the submit: of the request only the change counts.
    Set(Box<SetRequest>),
}

/// `docket set`.
pub async fn set(context: &Context, args: &SetArgs) -> Result<u8, Failure> {
    let change = SetRequest {
        priority: args.priority,
        array_limit: args.array_limit,
        time: args.time,
        name: args.name.clone(),
        cpus: args.cpus,
        mem_bytes: args.mem,
        ..SetRequest::default()
    };
    let change = Edit::Set(Box::new(change));
    edit(context, &args.jobs, change).await
}

/// Changes jobs, and says what became of each; the exit code is that of the first refusal.
pub async fn edit(context: &Context, args: &EditArgs, edit: Edit) -> Result<u8, Failure> {
    let mut client = context.client().await?;
    let mut results = Vec::new();
    for part in args.ids.chunks(JOBS_MAX) {
        let (jobs, tasks) = parts(part);
        // One id for all tries of one request: repeated, it changes nothing more.
        let request = EditRequest { request_id: request_id(), jobs, tasks };
        results.extend(send(&mut client, &edit, &request).await?);
    }
    tell(context, args.json, &results)
}

async fn send(
    client: &mut Client,
    edit: &Edit,
    request: &EditRequest,
) -> Result<Vec<EditResult>, ClientError> {
    let ask = async |client: &Client| {
        let (mut jobs, request) = (client.jobs(), request.clone());
        match edit {
            Edit::Hold => jobs.hold(request).await,
            Edit::Release => jobs.release(request).await,
            Edit::Suspend => jobs.suspend(request).await,
            Edit::Resume => jobs.resume(request).await,
            Edit::Set(change) => {
                let EditRequest { request_id, jobs: ids, tasks } = request;
                jobs.set(SetRequest { request_id, jobs: ids, tasks, ..(**change).clone() }).await
            }
        }
    };
    Ok(client.ask(Patience::CHANGE, note, ask).await?.results)
}

fn tell(context: &Context, json: bool, results: &[EditResult]) -> Result<u8, Failure> {
    let form = if json { Output::Json } else { Output::Table };
    print(&context.renderer(form).edited(results))?;
    let refused = results.iter().filter_map(|result| Some((result.error.as_ref()?, result)));
    let mut code = exit::DONE;
    for (error, result) in refused {
        note(error);
        if code == exit::DONE {
            code = result_exit(result.error_code);
        }
    }
    Ok(code)
}
