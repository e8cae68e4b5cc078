//! `docket run`: submit, be there, exit as the job did; a node is started where there is none.

use super::attend::{Shown, Signals, attend};
use super::context::Context;
use super::input::{Unasked, stdin};
use super::work::work;
use crate::args::{JobOptions, RunArgs};
use crate::client::{Client, ClientError, Patience, default_data_dir, request_id};
use crate::failure::Failure;
use crate::roles::{self, Background};
use crate::say::note;
use crate::spec::{Here, build};
use proto::v1::{SubmitAnswer, SubmitRequest};
use std::time::Duration;

/// A node that `run` started ends by itself after this time without jobs and clients.
const IDLE_EXIT: Duration = Duration::from_secs(600);

/// `run` shows one output and exits as one job did.
const ARRAY: &str = "an array has an output and an exit code for each task: docket submit -a … -W waits for \
     all, docket logs ID_N shows one";

/// Runs a job from its submit to its end.
pub async fn run(context: &Context, args: &RunArgs) -> Result<u8, Failure> {
    let (work, options) = work(context, "run", &args.words, &args.job)?;
    if options.array.is_some() {
        return Err(Failure::Usage(ARRAY.to_owned()));
    }
    let here = Here::now(&options)?;
    let stdin = stdin(&options, Unasked::Passed).await?;
    let request = build(&options, &work, &here, stdin, request_id())?;
    let mut client = find_or_start(context).await?;
    let mut signals = Signals::take()?;
    let (answer, wish) = signals.patiently(submit(&mut client, &request)).await?;
    attend(&client, answer.job, shown(&options), &mut signals, wish).await
}

/// Sends one submit, again with the same request id until there is an answer.
pub async fn submit(client: &mut Client, request: &SubmitRequest) -> Result<SubmitAnswer, Failure> {
    let ask = async |client: &Client| client.jobs().submit(request.clone()).await;
    let answer = client.ask(Patience::CHANGE, note, ask).await?;
    if !answer.warning.is_empty() {
        note(&answer.warning);
    }
    Ok(answer)
}

/// An output that was sent to a file is there, not here.
fn shown(options: &JobOptions) -> Shown {
    Shown { stdout: options.stdout.is_none(), stderr: options.stderr.is_none() }
}

/// The server, or the embedded node, started now unless somebody else just did.
async fn find_or_start(context: &Context) -> Result<Client, Failure> {
    match Client::find(&context.places).await {
        Err(ClientError::NoServer { named: false, .. }) => {}
        other => return Ok(other?),
    }
    let dir = default_data_dir(&context.places)?;
    if let Background::Started { pid } = roles::start_in_background(&dir, IDLE_EXIT).await? {
        note(&format!("started a node for you (pid {pid}; stops when idle, or: docket down)"));
    }
    Ok(Client::find(&context.places).await?)
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;
    use tonic::Status;

    #[tokio::test]
    async fn every_try_of_a_submit_carries_the_same_request_id() {
        let fake = Fake::default();
        let answer = SubmitAnswer { job: 7, ..SubmitAnswer::default() };
        fake.0.lock().unwrap().submits = [
            Err(Status::unavailable("no leader")),
            Err(Status::unavailable("outcome unknown")),
            Ok(answer),
        ]
        .into();
        let mut client = fake.serve();
        let request = SubmitRequest { request_id: request_id(), ..SubmitRequest::default() };
        assert_eq!(submit(&mut client, &request).await.unwrap().job, 7);
        let sent = fake.0.lock().unwrap().submitted.clone();
        assert_eq!(sent, vec![request.request_id; 3]);
    }

    #[tokio::test]
    async fn a_refusal_is_not_tried_again_and_has_its_exit_code() {
        let fake = Fake::default();
        let full = Status::resource_exhausted("queue full: 5 tasks; try again later");
        fake.0.lock().unwrap().submits = [Err(full)].into();
        let error = submit(&mut fake.serve(), &SubmitRequest::default()).await.unwrap_err();
        assert_eq!((error.exit_code(), fake.0.lock().unwrap().submitted.len()), (75, 1));
        assert_eq!(error.to_string(), "queue full: 5 tasks; try again later");
    }
}
