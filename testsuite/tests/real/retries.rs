//! Retries through real processes: as often as was asked for, and never two at once.

use testsuite::world::{Pace, Split};
use testsuite::{heavy_world, world};

/// Notes its start and its end by attempt, and waits for `go.N` in between; the end is missing if it
/// was killed.
const SCRIPT: &str = "echo began $DOCKET_ATTEMPT $$ >> story; \
     while [ ! -e go.$DOCKET_ATTEMPT ]; do sleep 0.05; done; \
     echo ended $DOCKET_ATTEMPT >> story; exit 7";

#[test]
fn a_job_is_tried_again_as_often_as_it_asked_and_appends_its_output() {
    let world = heavy_world!();
    let _node = world.up(2);
    let script = "echo try $DOCKET_ATTEMPT; [ $DOCKET_ATTEMPT = 3 ]";
    let job = world.submit_sh(&["--retries", "5", "-o", "out"], script);
    let task = world.wait_end(job);
    assert_eq!((&task["state"], &task["attempt"]), (&"DONE".into(), &3.into()), "{task:#}");
    assert_eq!((&task["retries"], &task["retried"]), (&5.into(), &2.into()), "{task:#}");
    assert_eq!(world.lines("out"), ["try 1", "try 2", "try 3"]);
    // None is left; an end that was not named is not tried again; a cancel ends the policy.
    let job = world.submit_sh(&["--retries", "1"], "exit 9");
    assert_eq!(world.wait_end(job)["attempt"], 2);
    let job = world.submit_sh(&["--retries", "3", "--retry-on", "signal"], "exit 9");
    assert_eq!(world.wait_end(job)["attempt"], 1);
    let job = world.submit_sh(&["--retries", "3"], "while :; do sleep 0.1; done");
    world.wait_state(job, "RUN");
    world.ok(&["cancel", &job.to_string()]);
    let task = world.wait_end(job);
    assert_eq!((&task["reason"]["kind"], &task["attempt"]), (&"cancelled".into(), &1.into()));
}

#[test]
fn a_held_job_starts_when_it_is_released() {
    let world = heavy_world!();
    let _node = world.up(2);
    let job = world.submit_sh(&["--hold"], "exit 4");
    let other = world.submit_sh(&[], "exit 5");
    world.wait_end(other);
    assert_eq!(world.show(job)["substate"], "held", "what came later went past it");
    world.ok(&["release", &job.to_string()]);
    assert_eq!(world.wait_end(job)["exit_code"], 4);
}

/// Design 3: a new attempt waits until the old one is proven dead; here by the return of its node.
#[test]
fn a_retry_after_an_agents_death_waits_until_the_old_tree_is_dead() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let options = ["--retries", "1", "--retry-on", "agent-died", "--fence-after", "proof"];
    let job = split.world.submit_sh(&options, SCRIPT);
    split.world.wait_state(job, "RUN");
    split.world.first_line("story");
    split.agent.kill9();
    let waits = |task: &serde_json::Value| task["substate"] == "waiting";
    split.world.wait_job(job, "the next attempt waits for proof", waits);
    let id = job.to_string();
    let text = split.world.ok(&["explain", &id]);
    assert!(text.contains("confirm-dead"), "{text}");
    assert_eq!(split.world.lines("story").len(), 1, "nothing starts beside what may live");
    split.agent_again();
    split.world.wait_job(job, "the second attempt runs", |task| {
        task["state"] == "RUN" && task["attempt"] == 2
    });
    split.world.touch("go.2");
    let task = split.world.wait_end(job);
    assert_eq!((&task["exit_code"], &task["attempt"]), (&7.into(), &2.into()), "{task:#}");
    let told: Vec<String> = split.world.lines("story");
    let words: Vec<&str> = told.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(words, ["began", "began", "ended"], "the first was killed before the second began");
}

#[test]
fn an_operator_vouches_for_a_node_that_does_not_come_back() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let options = ["--retries", "1", "--retry-on", "agent-died", "--fence-after", "proof"];
    let job = split.world.submit_sh(&options, SCRIPT);
    split.world.wait_state(job, "RUN");
    split.agent.kill9();
    let waits = |task: &serde_json::Value| task["substate"] == "waiting";
    split.world.wait_job(job, "the next attempt waits for proof", waits);
    let refused = split.world.docket(&["nodes", "confirm-dead", "n7"]);
    assert!(refused.code == Some(66) && refused.err().contains("no node n7"), "{}", refused.err());
    let told = split.world.ok(&["nodes", "confirm-dead", Split::NODE]);
    assert_eq!(told, "1 task that waited for proof may start again\n");
    split.world.wait_job(job, "it is queued", |task| task["substate"] == "queued");
}

#[test]
fn a_job_whose_node_may_have_to_end_it_is_told_so_once() {
    let world = heavy_world!();
    let _node = world.up(2);
    let leased = ["submit", "--retries", "1", "--retry-on", "lost", "--", "true"];
    let ran = world.docket(&leased);
    assert!(ran.err().contains("after 10m00s without a controller"), "{}", ran.err());
    let proof =
        ["submit", "--retries", "1", "--retry-on", "lost", "--fence-after", "proof", "--", "true"];
    assert_eq!(world.docket(&proof).err(), "");
}
