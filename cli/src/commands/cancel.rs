//! `docket cancel`: ids at once; a set is counted first and asked about on a terminal; without one it
//! needs `-y`.

use super::context::{Context, parts};
use crate::args::{CancelArgs, Output};
use crate::client::{Client, ClientError, Patience, request_id, result_exit};
use crate::exit;
use crate::failure::Failure;
use crate::say::{note, print};
use proto::v1::{CancelRequest, CancelResult};
use std::io::{BufRead, IsTerminal, Write};

/// Most jobs in one request; the server's limit.
const JOBS_MAX: usize = 10_000;
/// Lines about single jobs of a set; more are only counted.
const LISTED_MAX: usize = 20;

/// Asks to cancel jobs.
pub async fn cancel(context: &Context, args: &CancelArgs) -> Result<u8, Failure> {
    let mut client = context.client().await?;
    if args.ids.is_empty() {
        return cancel_set(context, args, &mut client).await;
    }
    let mut results = Vec::new();
    for part in args.ids.chunks(JOBS_MAX) {
        let (jobs, tasks) = parts(part);
        let request = CancelRequest {
            request_id: request_id(),
            jobs,
            tasks,
            signal: args.signal,
            ..CancelRequest::default()
        };
        results.extend(send(&mut client, &request).await?);
    }
    tell(context, args, &results, usize::MAX)
}

async fn cancel_set(
    context: &Context,
    args: &CancelArgs,
    client: &mut Client,
) -> Result<u8, Failure> {
    let set = CancelRequest {
        user: args.user.clone(),
        name_glob: args.name.clone(),
        states: args.state.clone(),
        all: args.all,
        signal: args.signal,
        ..CancelRequest::default()
    };
    if !args.yes {
        let dry = CancelRequest { dry_run: true, ..set.clone() };
        let would = send(client, &dry).await?;
        let count = would.iter().filter(|result| result.outcome == "would-cancel").count();
        if count == 0 {
            note("no such live jobs: nothing to cancel");
            return Ok(exit::DONE);
        }
        if !std::io::stdin().is_terminal() {
            return Err(Failure::Usage(nobody_to_ask(count)));
        }
        if !agreed(count)? {
            note("nothing was cancelled");
            return Ok(exit::FAILED);
        }
    }
    let request = CancelRequest { request_id: request_id(), ..set };
    let results = send(client, &request).await?;
    let code = tell(context, args, &results, LISTED_MAX)?;
    if !args.json {
        let done = results.iter().filter(|result| result.error.is_none()).count();
        print(&format!("{done} job{}\n", if done == 1 { "" } else { "s" }))?;
    }
    Ok(code)
}

async fn send(
    client: &mut Client,
    request: &CancelRequest,
) -> Result<Vec<CancelResult>, ClientError> {
    let answer = client
        .ask(Patience::CHANGE, note, async |client| client.jobs().cancel(request.clone()).await)
        .await?;
    Ok(answer.results)
}

/// A set that nobody agreed to is not cancelled: a script says so with -y.
fn nobody_to_ask(count: usize) -> String {
    let jobs = if count == 1 { "job" } else { "jobs" };
    format!(
        "{count} live {jobs} would be cancelled, and there is no terminal to ask on: nothing was \
         cancelled; add -y to cancel without a question"
    )
}

/// Asks on the terminal; anything but yes is no.
fn agreed(count: usize) -> Result<bool, Failure> {
    let _ = write!(std::io::stderr(), "docket: cancel {count} live job(s)? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(Failure::Input)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Says what became of each; the exit code is that of the first refusal.
fn tell(
    context: &Context,
    args: &CancelArgs,
    results: &[CancelResult],
    most: usize,
) -> Result<u8, Failure> {
    if args.json {
        print(&context.renderer(Output::Json).cancelled(results))?;
    } else if results.len() <= most {
        print(&context.renderer(Output::Table).cancelled(results))?;
    }
    let mut code = exit::DONE;
    for result in results {
        if let Some(error) = &result.error {
            note(error);
            if code == exit::DONE {
                code = result_exit(result.error_code);
            }
        }
    }
    Ok(code)
}
