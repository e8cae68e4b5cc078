//! Many at once: a node at which every start fails among good ones (G01), ten thousand submits side by
//! side (I10), and what a watcher sees of a job that is tried again (K05).

use proto::v1::jobs_client::JobsClient;
use proto::v1::{SubmitRequest, Task, WaitRequest};
use std::collections::{BTreeMap, BTreeSet};
use testsuite::client::{connect, request, runtime, spec, submit_many};
use testsuite::heavy_world;
use testsuite::patience::{SOON, wait_until};
use testsuite::world::{Pace, Split};
use tonic::Code;
use tonic::transport::Channel;

#[test]
fn a_node_at_which_every_start_fails_does_not_eat_the_queue() {
    const JOBS: usize = 200;
    let split = Split::start(heavy_world!(), Pace::QUICK);
    let address = split.address().to_owned();
    let good = ["n2", "n3", "n4"];
    let _good: Vec<_> = good.iter().map(|name| split.world.agent(&address, name, 2)).collect();
    // It cannot make run directories any more.
    let runs = split.agent_data().join("runs");
    if runs.exists() {
        std::fs::remove_dir_all(&runs).unwrap();
    }
    std::fs::write(&runs, "in the way").unwrap();
    let ids = runtime().block_on(async {
        let mut client = connect(&address).await;
        submit_many(&mut client, vec![spec(&["true"]); JOBS]).await
    });
    let mut attempts = 0;
    let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
    for id in &ids {
        let task = split.world.wait_end(*id);
        assert_eq!(task["state"], "DONE", "{task:#}");
        assert_eq!(task["retried"], 0, "no retry of the job is used up");
        attempts += task["attempt"].as_u64().unwrap() - 1;
        *nodes.entry(task["node"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert!(!nodes.contains_key(Split::NODE), "nothing can have run there: {nodes:?}");
    assert!(attempts > 0, "it was tried");
    assert!(attempts < 70, "one at a time, with back-off: {attempts} starts failed there");
    let told = split.world.ok(&["nodes"]);
    assert!(told.contains("run-directory"), "the step that fails is told: {told}");
}

/// All of them at once; gives the ids, and the requests that were told to come again.
async fn submit_all(
    client: &JobsClient<Channel>,
    requests: Vec<SubmitRequest>,
) -> (Vec<u64>, Vec<SubmitRequest>) {
    let mut tasks = tokio::task::JoinSet::new();
    for request in requests {
        let mut client = client.clone();
        tasks.spawn(async move { (client.submit(request.clone()).await, request) });
    }
    let (mut ids, mut again) = (Vec::new(), Vec::new());
    for (answer, request) in tasks.join_all().await {
        match answer {
            Ok(answer) => ids.push(answer.into_inner().job),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                assert!(status.message().contains("the queue is full"), "{status:?}");
                again.push(request);
            }
        }
    }
    (ids, again)
}

#[test]
fn thousands_of_submits_side_by_side_are_each_one_job_or_told_to_come_again() {
    const SUBMITS: usize = 10_000;
    const QUEUE: usize = 6_000;
    let mut world = heavy_world!();
    world.set("DOCKET_CONTROLLER__MAX_QUEUE", &QUEUE.to_string());
    let address = testsuite::world::World::free_address();
    let _node = world.up_with(2, &["--listen", &address]);
    let held = || request(proto::v1::JobSpec { hold: true, ..spec(&["true"]) });
    let runtime = runtime();
    let client = runtime.block_on(connect(&address));
    let (ids, again) =
        runtime.block_on(submit_all(&client, (0..SUBMITS).map(|_| held()).collect()));
    assert_eq!((ids.len(), again.len()), (QUEUE, SUBMITS - QUEUE), "as many as there is room for");
    world.ok(&["cancel", "--all", "-y"]);
    // The same requests again: what was refused is no job, so they are ones now.
    let (more, again) = runtime.block_on(submit_all(&client, again));
    assert_eq!((more.len(), again.len()), (SUBMITS - QUEUE, 0));
    let ids: BTreeSet<u64> = ids.into_iter().chain(more).collect();
    assert_eq!((ids.len(), ids.last()), (SUBMITS, Some(&(SUBMITS as u64))), "each is one job");
}

#[test]
fn whoever_watches_a_job_that_is_tried_again_sees_one_terminal_state() {
    let world = heavy_world!();
    let address = testsuite::world::World::free_address();
    let _node = world.up_with(2, &["--listen", &address]);
    let script = "while [ ! -e go.$DOCKET_ATTEMPT ]; do sleep 0.02; done; exit 9";
    let job = world.submit_sh(&["--retries", "2"], script);
    let seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            runtime().block_on(async {
                let mut client = connect(&address).await;
                let ask = WaitRequest { jobs: vec![job], tasks: Vec::new() };
                let mut stream = client.wait(ask).await.unwrap().into_inner();
                let mut seen: Vec<Task> = Vec::new();
                while let Some(task) = stream.message().await.unwrap() {
                    let over = task.terminal;
                    seen.push(task);
                    if over {
                        break;
                    }
                }
                seen
            })
        });
        for attempt in 1..=3 {
            world.wait_job(job, "the attempt runs", |task| {
                task["state"] == "RUN" && task["attempt"] == attempt
            });
            world.touch(&format!("go.{attempt}"));
        }
        watcher.join().unwrap()
    });
    let terminal: Vec<bool> = seen.iter().map(|task| task.terminal).collect();
    assert_eq!(terminal.iter().filter(|over| **over).count(), 1, "{terminal:?}");
    let last = seen.last().unwrap();
    assert_eq!((last.terminal, last.attempt, &*last.state), (true, 3, "EXIT"));
    let exit = |task: &Task| matches!(task.state.as_str(), "EXIT" | "DONE");
    assert!(seen.iter().all(|task| exit(task) == task.terminal));
    wait_until("it stays so", SOON, || world.show(job)["attempt"] == 3);
}
