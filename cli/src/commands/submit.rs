//! `docket submit`.

use super::context::Context;
use super::follow::{Until, follow};
use super::from::submit_from;
use super::input::{Unasked, stdin};
use super::outcome::exit_code_of_all;
use super::run::submit as send;
use super::stuck::with_word;
use super::work::work;
use crate::args::SubmitArgs;
use crate::client::{Client, request_id};
use crate::exit;
use crate::failure::Failure;
use crate::render::{submitted_json, task_line, verdict};
use crate::say::{note, print};
use crate::spec::{Here, build};
use proto::{JobId, TaskId};

/// Submits one job, or one for each line of a file.
pub async fn submit(context: &Context, args: &SubmitArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.from {
        return submit_from(context, args, file).await;
    }
    let (work, options) = work(context, "submit", &args.words, &args.job)?;
    let here = Here::now(&options)?;
    let stdin = stdin(&options, Unasked::Null).await?;
    let request = build(&options, &work, &here, stdin, request_id())?;
    let mut client = context.client().await?;
    let answer = send(&mut client, &request).await?;
    let told = match args.json {
        true => print(&submitted_json(&answer)),
        false => print(&format!("{}\n", answer.job)),
    };
    told.map_err(|failure| failure.of_submit(answer.job))?;
    if args.wait { wait_for(&mut client, answer.job, args.json).await } else { Ok(exit::DONE) }
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
