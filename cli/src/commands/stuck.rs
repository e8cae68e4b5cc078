//! Jobs that no node can ever run: whoever waits for one is told so once, at a terminal or not.

use crate::client::{Client, Patience};
use crate::say::note;
use proto::v1::{ExplainAnswer, ExplainRequest};
use std::pin::pin;
use std::time::Duration;

/// A job that is queued longer is looked at: a node that was just started has joined by then.
pub const QUEUED_QUIETLY: Duration = Duration::from_secs(2);
/// So many of the jobs that are waited for are looked at; the rest shows what `list` shows.
const LOOKED_AT_MAX: usize = 16;

/// Waits; if that takes longer than a moment, says in one line which job can never run.
pub async fn with_word<T>(client: &Client, jobs: &[u64], waiting: impl Future<Output = T>) -> T {
    let mut waiting = pin!(waiting);
    let client = client.clone();
    let word = async move {
        tokio::time::sleep(QUEUED_QUIETLY).await;
        for job in jobs.iter().take(LOOKED_AT_MAX) {
            if let Some(why) = never_runs(&client, *job).await {
                note(&why);
                break;
            }
        }
    };
    tokio::select! {
        done = &mut waiting => return done,
        () = word => {}
    }
    waiting.await
}

/// The words for a job that no node can ever run. An error is none: whoever follows the job tells.
pub async fn never_runs(client: &Client, job: u64) -> Option<String> {
    let mut client = client.clone();
    let request = ExplainRequest { job, task: None };
    let ask = async |client: &Client| client.jobs().explain(request).await;
    let answer = client.ask(Patience::READ, |_| (), ask).await.ok()?;
    words(job, &answer)
}

fn words(job: u64, answer: &ExplainAnswer) -> Option<String> {
    let task = answer.task.as_ref().filter(|task| task.state == "PEND")?;
    let never = !answer.nodes.is_empty() && answer.nodes.iter().all(|node| node.never);
    never.then(|| {
        let why = &task.message;
        format!("job {job} waits: {why}; docket explain {job}, or docket cancel {job}")
    })
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;
    use proto::v1::{ExplainNode, Task};

    fn answer(state: &str, never: &[bool]) -> ExplainAnswer {
        let message = "no node is large enough: cpus: 64 asked, 8 in all".to_owned();
        ExplainAnswer {
            task: Some(Task { job: 7, state: state.to_owned(), message, ..Task::default() }),
            nodes: never
                .iter()
                .map(|never| ExplainNode { never: *never, ..ExplainNode::default() })
                .collect(),
            ..ExplainAnswer::default()
        }
    }

    #[test]
    fn only_a_queued_job_that_every_node_refuses_for_ever_is_told() {
        let text = words(7, &answer("PEND", &[true, true])).unwrap();
        assert!(text.starts_with("job 7 waits: no node is large enough: cpus"), "{text}");
        for (state, never) in
            [("PEND", &[true, false][..]), ("PEND", &[]), ("RUN", &[true]), ("EXIT", &[])]
        {
            assert_eq!(words(7, &answer(state, never)), None, "{state} {never:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_cannot_tell_is_not_an_error() {
        let fake = Fake::default();
        let client = fake.serve();
        assert_eq!(never_runs(&client, 7).await, None);
        assert_eq!(with_word(&client, &[7], async { 5 }).await, 5);
    }
}
