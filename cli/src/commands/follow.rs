//! Waiting for jobs: the end of a stream is never the end of a job, so it is asked for again.

use crate::client::{Backoff, Client, ClientError, Patience};
use crate::say::note;
use proto::v1::{Task, WaitRequest};
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::Status;

/// Longest wait for a stream to open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// When to stop waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// All have ended.
    All,
    /// One has.
    Any,
}

/// Follows jobs until they have ended, over any number of broken streams and restarts of the
/// server; gives the ended ones in the order of their ends. Every message is shown to `seen` first.
pub async fn follow(
    client: &mut Client,
    jobs: &[u64],
    until: Until,
    mut seen: impl FnMut(&Task),
) -> Result<Vec<Task>, ClientError> {
    let mut pending: BTreeSet<u64> = jobs.iter().copied().collect();
    let mut ended = Vec::new();
    let mut backoff = Backoff::new(Patience::ENDLESS, note);
    loop {
        let lost = match open(client, &pending).await {
            Err(status) => status,
            Ok(mut stream) => loop {
                match stream.message().await {
                    Err(status) => break status,
                    Ok(None) => break ended_early(),
                    Ok(Some(task)) => {
                        backoff.reset();
                        seen(&task);
                        if task.terminal && pending.remove(&task.job) {
                            ended.push(task);
                        }
                        if pending.is_empty() || (until == Until::Any && !ended.is_empty()) {
                            return Ok(ended);
                        }
                    }
                }
            },
        };
        backoff.failed(client, &lost).await?;
    }
}

async fn open(client: &Client, pending: &BTreeSet<u64>) -> Result<tonic::Streaming<Task>, Status> {
    let request = WaitRequest { jobs: pending.iter().copied().collect() };
    let mut jobs = client.jobs();
    match tokio::time::timeout(OPEN_TIMEOUT, jobs.wait(request)).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::unavailable("no answer in 30 s")),
    }
}

/// A stream that ended in order before its jobs did.
fn ended_early() -> Status {
    Status::unavailable("the server ended the stream")
}
