//! `docket retry`: jobs that have ended, submitted again.

use super::context::{Context, parts};
use crate::args::RetryArgs;
use crate::client::{Client, Patience, request_id, result_exit};
use crate::exit;
use crate::failure::Failure;
use crate::render::retried_json;
use crate::say::{note, print};
use proto::v1::{RetryRequest, RetryResult};

/// Submits them again; the exit code is that of the first refusal.
pub async fn retry(context: &Context, args: &RetryArgs) -> Result<u8, Failure> {
    let mut client = context.client().await?;
    let (jobs, tasks) = parts(&args.ids);
    // One id for all tries of the request: repeated, it submits nothing twice.
    let request = RetryRequest { request_id: request_id(), jobs, tasks, failed: args.failed };
    let ask = async |client: &Client| client.jobs().retry(request.clone()).await;
    let results = client.ask(Patience::CHANGE, note, ask).await?.results;
    tell(args, &results)
}

fn tell(args: &RetryArgs, results: &[RetryResult]) -> Result<u8, Failure> {
    let ids = results.iter().filter(|result| result.error.is_none());
    match args.json {
        true => print(&retried_json(results))?,
        false => print(&ids.map(|result| format!("{}\n", result.job)).collect::<String>())?,
    }
    let mut code = exit::DONE;
    for (error, result) in results.iter().filter_map(|r| Some((r.error.as_ref()?, r))) {
        note(error);
        if code == exit::DONE {
            code = result_exit(result.error_code);
        }
    }
    Ok(code)
}
