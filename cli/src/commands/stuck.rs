//! Jobs that no node can ever run: whoever waits for one is told so once, at a terminal or not.

use crate::client::{Client, Patience};
use crate::say::note;
use proto::TaskId;
use proto::v1::{ExplainAnswer, ExplainRequest};
use std::pin::pin;
use std::time::Duration;

/// When a job that waits is looked at.
struct Looks {
    /// At once for a person, and most short jobs have ended.
    first: Duration,
    /// A job that is queued longer is looked at again: a node that was just started has joined by then.
    second: Duration,
    /// And so often from then on: the only node that could run it may have come back smaller.
    again: Duration,
}

const LOOKS: Looks = Looks {
    first: Duration::from_millis(200),
    second: Duration::from_secs(2),
    again: Duration::from_secs(30),
};
/// So many of the jobs that are waited for are looked at; the rest shows what `list` shows.
const LOOKED_AT_MAX: usize = 16;

/// Waits, and says in one line meanwhile which job can never run.
pub async fn with_word<T>(client: &Client, jobs: &[TaskId], waiting: impl Future<Output = T>) -> T {
    let mut waiting = pin!(waiting);
    tokio::select! {
        done = &mut waiting => return done,
        () = tell_when_stuck(client, jobs, || ()) => {}
    }
    waiting.await
}

/// Looks until it can say which of the jobs can never run, and says it. `queued` is called once if
/// there was nothing of that kind to say for a moment.
pub async fn tell_when_stuck(client: &Client, jobs: &[TaskId], queued: impl FnOnce()) {
    tell_at(client, jobs, &LOOKS, queued).await;
}

async fn tell_at(client: &Client, jobs: &[TaskId], looks: &Looks, queued: impl FnOnce()) {
    tokio::time::sleep(looks.first).await;
    if told(client, jobs).await {
        return;
    }
    tokio::time::sleep(looks.second.saturating_sub(looks.first)).await;
    if told(client, jobs).await {
        return;
    }
    queued();
    loop {
        tokio::time::sleep(looks.again).await;
        if told(client, jobs).await {
            return;
        }
    }
}

async fn told(client: &Client, jobs: &[TaskId]) -> bool {
    for job in jobs.iter().take(LOOKED_AT_MAX) {
        if let Some(why) = never_runs(client, *job).await {
            note(&why);
            return true;
        }
    }
    false
}

/// The words for a job that no node can ever run. An error is none: whoever follows the job tells.
async fn never_runs(client: &Client, job: TaskId) -> Option<String> {
    let mut client = client.clone();
    let request = ExplainRequest { job: job.job.0, task: job.index };
    let ask = async |client: &Client| client.jobs().explain(request).await;
    let answer = client.ask(Patience::READ, |_| (), ask).await.ok()?;
    words(job, &answer)
}

fn words(job: TaskId, answer: &ExplainAnswer) -> Option<String> {
    let task = answer.task.as_ref().filter(|task| task.state == "PEND")?;
    let never = !answer.nodes.is_empty() && answer.nodes.iter().all(|node| node.never);
    never.then(|| {
        let why = &task.message;
        format!(
            "job {job} waits: {why}; it starts if a node joins that can run it: docket explain {job}, \
             or docket cancel {job}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;
    use proto::v1::{ExplainNode, Task};

    const SEVEN: TaskId = TaskId { job: proto::JobId(7), index: None };

    fn answer(state: &str, never: &[bool]) -> ExplainAnswer {
        let message = "no node is large enough: cpus: 64 asked, 8 in all on n1".to_owned();
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
        let text = words(SEVEN, &answer("PEND", &[true, true])).unwrap();
        assert!(text.starts_with("job 7 waits: no node is large enough: cpus"), "{text}");
        assert!(text.contains("it starts if a node joins that can run it"), "{text}");
        for (state, never) in
            [("PEND", &[true, false][..]), ("PEND", &[]), ("RUN", &[true]), ("EXIT", &[])]
        {
            assert_eq!(words(SEVEN, &answer(state, never)), None, "{state} {never:?}");
        }
    }

    /// Whether the job was said to be queued before it was told that it can never run.
    async fn queued_before(looks: &Looks, explains: Vec<ExplainAnswer>) -> bool {
        let fake = Fake::default();
        fake.0.lock().unwrap().explains = explains.into();
        let mut queued = false;
        tell_at(&fake.serve(), &[SEVEN], looks, || queued = true).await;
        assert!(fake.0.lock().unwrap().explains.is_empty());
        queued
    }

    #[tokio::test]
    async fn a_job_that_can_never_run_is_told_at_once() {
        assert!(LOOKS.first < Duration::from_secs(1));
        let looks = Looks { first: Duration::from_millis(1), ..LOOKS };
        assert!(!queued_before(&looks, vec![answer("PEND", &[true, true])]).await);
    }

    #[tokio::test]
    async fn a_job_whose_only_node_joins_late_and_too_small_is_told_then() {
        let short = Duration::from_millis(1);
        let looks = Looks { first: short, second: short, again: short };
        let none = answer("PEND", &[]);
        let all = vec![none.clone(), none.clone(), none, answer("PEND", &[true])];
        assert!(queued_before(&looks, all).await);
    }

    #[tokio::test]
    async fn a_server_that_cannot_tell_is_not_an_error() {
        let fake = Fake::default();
        let client = fake.serve();
        assert_eq!(never_runs(&client, SEVEN).await, None);
        assert_eq!(with_word(&client, &[SEVEN], async { 5 }).await, 5);
    }
}
