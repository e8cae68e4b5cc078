//! Waiting for jobs: the end of a stream is never the end of a job, so it is asked for again.

use super::context::requested;
use crate::client::{Backoff, Client, ClientError, Patience};
use crate::say::note;
use proto::v1::{Task, WaitRequest};
use proto::{JobId, TaskId};
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
    jobs: &[TaskId],
    until: Until,
    mut seen: impl FnMut(&Task),
) -> Result<Vec<Task>, ClientError> {
    let mut pending: BTreeSet<TaskId> = jobs.iter().copied().collect();
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
                        if task.terminal && pending.remove(&id_of(&task)) {
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

async fn open(
    client: &Client,
    pending: &BTreeSet<TaskId>,
) -> Result<tonic::Streaming<Task>, Status> {
    let pending: Vec<TaskId> = pending.iter().copied().collect();
    let (jobs, tasks) = requested(&pending);
    let request = WaitRequest { jobs, tasks };
    let mut jobs = client.jobs();
    match tokio::time::timeout(OPEN_TIMEOUT, jobs.wait(request)).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::unavailable("no answer in 30 s")),
    }
}

/// The id of what a message tells about.
pub fn id_of(task: &Task) -> TaskId {
    TaskId { job: JobId(task.job), index: task.task }
}

/// A stream that ended in order before its jobs did.
fn ended_early() -> Status {
    Status::unavailable("the server ended the stream")
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;

    fn task(job: u64, state: &str) -> Result<Task, Status> {
        let terminal = matches!(state, "DONE" | "EXIT");
        Ok(Task { job, state: state.to_owned(), terminal, ..Task::default() })
    }

    fn plain<const N: usize>(jobs: [u64; N]) -> [TaskId; N] {
        jobs.map(|job| TaskId::plain(JobId(job)))
    }

    #[tokio::test]
    async fn the_end_of_a_stream_is_never_the_end_of_a_job() {
        let fake = Fake::default();
        fake.0.lock().unwrap().waits = [
            vec![task(1, "RUN"), task(2, "PEND")],
            vec![task(1, "DONE"), Err(Status::unavailable("stopping"))],
            vec![],
            vec![task(2, "UNKWN"), task(2, "EXIT")],
        ]
        .into();
        let mut client = fake.serve();
        let mut seen = Vec::new();
        let ids = plain([2, 1]);
        let ended = follow(&mut client, &ids, Until::All, |task| seen.push(task.state.clone()));
        let ended: Vec<u64> = ended.await.unwrap().iter().map(|task| task.job).collect();
        assert_eq!(ended, [1, 2]);
        assert_eq!(seen, ["RUN", "PEND", "DONE", "UNKWN", "EXIT"]);
        let asked = fake.0.lock().unwrap().waited.clone();
        assert_eq!(asked, [vec![1, 2], vec![1, 2], vec![2], vec![2]], "only what is still open");
    }

    #[tokio::test]
    async fn any_returns_with_the_first_and_a_refusal_at_once() {
        let fake = Fake::default();
        let missing = Status::not_found("no job 9: the newest is 2");
        fake.0.lock().unwrap().waits =
            [vec![task(1, "RUN"), task(2, "EXIT")], vec![Err(missing)]].into();
        let mut client = fake.serve();
        let ended = follow(&mut client, &plain([1, 2]), Until::Any, |_| ()).await.unwrap();
        assert_eq!((ended.len(), ended[0].job), (1, 2));
        let error = follow(&mut client, &plain([9]), Until::All, |_| ()).await.unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().contains("no job 9")), (66, true));
    }
}
