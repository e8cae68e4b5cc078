//! Gpus with indices and licences of the cluster, through real processes: never more than there are, also
//! over a kill of the agent, and given back only on proof.

use serde_json::{Value, json};
use testsuite::heavy_world;
use testsuite::patience::{SOON, wait_until};
use testsuite::world::{Pace, Split, World};

/// Notes when it begins and when it ends; ends once `go` is there.
const HOLDS: &str = "echo + $DOCKET_JOB_ID >> log; while [ ! -e go ]; do sleep 0.05; done; \
                     echo - $DOCKET_JOB_ID >> log";

fn running(world: &World, jobs: &[u64]) -> Vec<u64> {
    jobs.iter().copied().filter(|job| world.show(*job)["state"] == "RUN").collect()
}

fn nodes(world: &World) -> Vec<Value> {
    serde_json::from_str(&world.ok(&["nodes", "--json"])).unwrap()
}

fn licences(world: &World) -> Value {
    let status: Value = serde_json::from_str(&world.ok(&["cluster", "status", "--json"])).unwrap();
    let status = status.as_array().map_or(status.clone(), |all| all[0].clone());
    status["resources"][0].clone()
}

#[test]
fn two_licences_are_never_held_by_three_and_a_lost_holder_keeps_its_own() {
    let mut world = heavy_world!();
    world.set("DOCKET_CONTROLLER__RESOURCES", "matlab=2");
    let mut split = Split::start(world, Pace::QUICK);
    let submit = |_| split.world.submit_sh(&["--resource", "matlab=1"], HOLDS);
    let jobs: Vec<u64> = (0..5).map(submit).collect();
    wait_until("two of five run", SOON, || running(&split.world, &jobs).len() == 2);
    let all = |used: u64, left: u64| json!({"name": "matlab", "total": 2, "used": used, "left_over": left});
    assert_eq!(licences(&split.world), all(2, 0));
    let waits = split.world.show(jobs[2]);
    assert_eq!(waits["message"], "matlab: 1 asked, 0 of 2 free in the cluster");
    assert_eq!(waits["resources"], json!({"matlab": 1}));
    wait_until("both have begun", SOON, || split.world.lines("log").len() == 2);
    // Its agent dies: both are EXIT agent-died, and their trees live on under the keeper.
    split.agent.kill9();
    for job in &jobs[..2] {
        assert_eq!(split.world.wait_end(*job)["reason"]["kind"], "agent-died");
    }
    let address = split.address().to_owned();
    let _second = split.world.agent(&address, "n2", 4);
    assert_eq!(licences(&split.world), all(2, 2), "bound by what may live");
    assert!(!split.world.processes_of(jobs[0]).is_empty(), "and does");
    let told = told(&split.world, jobs[2]);
    assert!(told.contains("docket nodes confirm-dead n1"), "{told}");
    assert!(running(&split.world, &jobs).is_empty(), "n2 has room and there is no licence");
    // The node is back, and is told to kill what is over: only then the next two begin.
    split.agent_again();
    wait_until("the next two run", SOON, || running(&split.world, &jobs).len() == 2);
    jobs[..2].iter().for_each(|job| split.world.must_be_gone(*job));
    assert_eq!(licences(&split.world), all(2, 0));
    let events = split.world.ok(&["events", &jobs[0].to_string()]);
    assert!(events.contains("is free again: its end was told"), "{events}");
    split.world.touch("go");
    for job in &jobs[2..] {
        assert_eq!(split.world.wait_end(*job)["state"], "DONE");
    }
    never_more_than(&split.world.lines("log"), 2);
}

/// What `explain` says, on one line.
fn told(world: &World, job: u64) -> String {
    let text = world.ok(&["explain", &job.to_string()]);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Of jobs that begin and end by their own word; what was killed ended before another could begin.
fn never_more_than(log: &[String], most: usize) {
    let began = log.iter().filter(|line| line.starts_with('+')).count();
    assert_eq!(began, 5, "each began once: {log:?}");
    // The first two never told their ends: they were killed before the third began.
    let mut holds = 0usize;
    for line in &log[2..] {
        holds = if line.starts_with('+') { holds + 1 } else { holds - 1 };
        assert!(holds <= most, "{log:?}");
    }
}

#[test]
fn gpus_are_given_by_index_and_a_job_sees_its_own_alone() {
    let mut world = heavy_world!();
    world.set("CUDA_VISIBLE_DEVICES", "7");
    let _node = world.up_with(4, &["--gpus", "2", "--resource", "scratch=3"]);
    let tells =
        "echo $DOCKET_GPUS:$CUDA_VISIBLE_DEVICES >> seen; while [ ! -e go ]; do sleep 0.05; done";
    let (a, b) =
        (world.submit_sh(&["--gpus", "1"], tells), world.submit_sh(&["--gpus", "1"], tells));
    for job in [a, b] {
        world.wait_state(job, "RUN");
    }
    let both = world.submit_sh(&["--gpus", "2"], tells);
    let none =
        world.submit_sh(&["--resource", "scratch=3"], "echo none:$CUDA_VISIBLE_DEVICES: >> seen");
    assert_eq!(world.wait_end(none)["state"], "DONE");
    let ids = [a, b].map(|job| world.show(job)["gpu_ids"].clone());
    assert_eq!(ids, [json!([0]), json!([1])]);
    let waits = world.show(both);
    assert_eq!(
        (&waits["message"], &waits["gpu_ids"]),
        (&json!("gpus: 2 asked, 0 free"), &json!([]))
    );
    let node = nodes(&world)[0].clone();
    assert_eq!((&node["gpus"], &node["gpus_used"]), (&json!(2), &json!(2)));
    assert_eq!(node["resources"], json!({"scratch": 3}));
    assert!(world.ok(&["nodes"]).contains("2/2"));
    world.touch("go");
    for job in [a, b, both] {
        assert_eq!(world.wait_end(job)["state"], "DONE");
    }
    assert_eq!(world.show(both)["gpu_ids"], json!([0, 1]));
    let mut seen = world.lines("seen");
    seen.sort();
    assert_eq!(seen, ["0,1:0,1", "0:0", "1:1", "none::"]);
    assert!(world.ok(&["show", &both.to_string()]).contains("2 asked, given: 0,1"));
}

#[test]
fn the_clusters_licences_are_set_while_it_runs_and_what_never_fits_is_said_at_once() {
    let world = heavy_world!();
    let _node = world.up(2);
    let never = world.docket(&["submit", "--mem", "10T", "--", "true"]);
    assert_eq!(never.code, Some(0), "{}", never.describe());
    assert!(never.err().contains("memory: 10T asked"), "{}", never.err());
    let named = world.docket(&["submit", "-w", "n77", "--", "true"]);
    assert!(named.err().contains("no node is named n77"), "{}", named.err());
    let quiet = world.docket(&["submit", "-c", "2", "--", "true"]);
    assert_eq!(quiet.err(), "", "{}", quiet.describe());
    let lacks = world.docket(&["submit", "--resource", "matlab=3", "--", "true"]);
    let job: u64 = lacks.text().trim().parse().unwrap();
    assert!(lacks.err().contains("matlab: 3 asked, 0 in all"), "{}", lacks.err());
    world.ok(&["cluster", "set", "resource.matlab", "2"]);
    let told = told(&world, job);
    assert!(told.contains("the cluster has 2 in all"), "{told}");
    assert!(told.contains("docket cluster set resource.matlab 3"), "{told}");
    world.ok(&["cluster", "set", "resource.matlab", "3"]);
    assert_eq!(world.wait_end(job)["state"], "DONE");
    assert_eq!(licences(&world), json!({"name": "matlab", "total": 3, "used": 0, "left_over": 0}));
    let wrong = world.docket(&["cluster", "set", "resource.a/b", "3"]);
    assert_ne!(wrong.code, Some(0), "{}", wrong.describe());
}
