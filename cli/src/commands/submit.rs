//! `docket submit`.

use super::context::Context;
use super::follow::{Until, follow};
use super::from::submit_from;
use super::input::{Unasked, stdin};
use super::outcome::exit_code_of_all;
use super::run::submit as send;
use super::stuck::with_word;
use super::work::work;
use crate::args::{Output, SubmitArgs};
use crate::client::{Client, Patience, request_id};
use crate::exit;
use crate::failure::Failure;
use crate::render::{dry_run_json, submitted_json, task_line, verdict};
use crate::say::{note, print};
use crate::spec::{Here, build};
use proto::v1::{ExplainAnswer, SubmitRequest};
use proto::{JobId, TaskId};

/// Submits one job, or one for each line of a file.
pub async fn submit(context: &Context, args: &SubmitArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.from {
        return submit_from(context, args, file).await;
    }
    let (work, options) = work(context, "submit", &args.words, &args.job)?;
    if options.signal.is_some() && options.time.is_none() {
        note(
            "--signal: sent only where the cluster or the queue sets a limit, for no --time is given",
        );
    }
    let here = Here::now(&options)?;
    let stdin = stdin(&options, Unasked::Null).await?;
    let request = build(&options, &work, &here, stdin, request_id())?;
    let mut client = context.client().await?;
    if args.dry_run {
        return dry_run(context, &client, &request, args.json).await;
    }
    let answer = send(&mut client, &request).await?;
    let told = match args.json {
        true => print(&submitted_json(&answer)),
        false => print(&format!("{}\n", answer.job)),
    };
    told.map_err(|failure| failure.of_submit(answer.job))?;
    if args.wait || options.slurm.wait {
        wait_for(&mut client, answer.job, args.json).await
    } else {
        Ok(exit::DONE)
    }
}

/// `--dry-run`: what would become of it.
async fn dry_run(
    context: &Context,
    client: &Client,
    request: &SubmitRequest,
    json: bool,
) -> Result<u8, Failure> {
    let mut client = client.clone();
    let ask = async |client: &Client| client.jobs().dry_run(request.clone()).await;
    let answer = client.ask(Patience::READ, note, ask).await?;
    let code = if answer.ever || answer.nodes.is_empty() { exit::DONE } else { exit::FAILED };
    match json {
        true => print(&dry_run_json(&answer))?,
        false => {
            let (headline, lines, nodes) = (answer.headline, answer.lines, answer.nodes);
            let told = ExplainAnswer { headline, lines, nodes, ..ExplainAnswer::default() };
            print(&context.renderer(Output::Table).explain(&[told]))?;
        }
    }
    Ok(code)
}

/// `--wait`: as `docket wait` of the one job.
async fn wait_for(client: &mut Client, job: u64, json: bool) -> Result<u8, Failure> {
    let asker = client.clone();
    let ids = [TaskId::plain(JobId(job))];
    let ended = with_word(&asker, &ids, follow(client, &ids, Until::All, |_| ())).await?;
    for task in &ended {
        if json {
            print(&task_line(task))?;
        }
        if task.state != "DONE" {
            note(&verdict(task));
        }
    }
    Ok(exit_code_of_all(&ended))
}
