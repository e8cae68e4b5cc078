//! `docket show`.

use super::context::{Context, each, requested};
use crate::args::ShowArgs;
use crate::client::{Client, ClientError, Patience};
use crate::exit;
use crate::failure::Failure;
use crate::say::{note, print};
use proto::TaskId;
use proto::v1::{GetRequest, Task};
use tonic::Code;

/// Shows jobs; those that are unknown are told, the others still shown.
pub async fn show(context: &Context, args: &ShowArgs) -> Result<u8, Failure> {
    let ids = each(&args.ids)?;
    let mut client = context.client().await?;
    let (tasks, code) = match get(&mut client, &ids).await {
        Ok(tasks) => (tasks, exit::DONE),
        Err(error) if ids.len() > 1 && not_found(&error) => one_by_one(&mut client, &ids).await?,
        Err(error) => return Err(error.into()),
    };
    if !tasks.is_empty() {
        print(&context.renderer(args.output.form()).show(&tasks))?;
    }
    Ok(code)
}

async fn one_by_one(client: &mut Client, ids: &[TaskId]) -> Result<(Vec<Task>, u8), Failure> {
    let (mut found, mut code) = (Vec::new(), exit::DONE);
    for id in ids {
        match get(client, &[*id]).await {
            Ok(tasks) => found.extend(tasks),
            Err(error) if not_found(&error) => {
                note(&error.to_string());
                code = exit::NO_JOB;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((found, code))
}

fn not_found(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { code: Code::NotFound, .. })
}

async fn get(client: &mut Client, ids: &[TaskId]) -> Result<Vec<Task>, ClientError> {
    let (jobs, tasks) = requested(ids);
    let request = GetRequest { jobs, tasks };
    let answer = client
        .ask(Patience::READ, note, async |client| client.jobs().get(request.clone()).await)
        .await?;
    Ok(answer.tasks)
}
