//! Drained nodes: no new job goes there, what runs there goes on.

use serde_json::Value;
use testsuite::heavy_world;
use testsuite::patience::{SOON, wait_by_command};
use testsuite::world::{Pace, Split, World};

fn node(world: &World) -> Value {
    let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    nodes[0].clone()
}

#[test]
fn a_drained_node_gets_no_new_job_and_what_runs_there_goes_on() {
    let world = heavy_world!();
    let mut daemon = world.up(4);
    let name = node(&world)["name"].as_str().unwrap().to_owned();
    let runs = world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done; exit 3");
    world.wait_state(runs, "RUN");
    let told = world.ok(&["drain", &name, "--reason", "new disk"]);
    assert_eq!(told, format!("{name} is drained: 1 of its jobs go on, docket nodes counts them\n"));
    let waits = world.submit_sh(&[], "exit 4");
    let says = |text: String| assert!(text.contains("new disk"), "{text}");
    says(world.show(waits)["message"].to_string());
    says(world.ok(&["explain", &waits.to_string()]));
    says(world.ok(&["nodes"]));
    assert_eq!(node(&world)["state"], "drained");
    // It stays so over a restart, and what runs ends as it would have.
    daemon.kill9();
    let _daemon = world.up(4);
    world.touch("go");
    assert_eq!(world.wait_end(runs)["exit_code"], 3);
    assert_eq!(node(&world)["state"], "drained");
    assert_eq!(world.show(waits)["state"], "PEND");
    assert_eq!(world.ok(&["undrain", &name]), format!("{name} takes jobs again\n"));
    assert_eq!(world.wait_end(waits)["exit_code"], 4);
    assert_eq!(node(&world)["state"], "up");
    let refused = world.docket(&["drain", "nowhere"]);
    assert!(refused.code == Some(66) && refused.err().contains("no node nowhere"));
}

#[test]
fn a_drained_node_that_is_stopped_has_left_and_may_come_back() {
    let mut split = Split::start(heavy_world!(), Pace::QUICK);
    let job = split.world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done; exit 5");
    split.world.wait_state(job, "RUN");
    split.world.ok(&["drain", Split::NODE]);
    let state = |split: &Split| split.world.node_state(Split::NODE);
    // With a job there it is only restarted, whatever was asked of it.
    split.agent.terminate(SOON);
    wait_by_command("it is down", || state(&split).as_deref() == Some("down"));
    split.agent_unseen_again();
    wait_by_command("it is back", || state(&split).as_deref() == Some("drained"));
    split.world.touch("go");
    assert_eq!(split.world.wait_end(job)["exit_code"], 5);
    split.agent.terminate(SOON);
    wait_by_command("it has left", || state(&split).as_deref() == Some("left"));
    split.bounce_controller();
    wait_by_command("it is left over a restart", || state(&split).as_deref() == Some("left"));
    split.agent_unseen_again();
    split.world.ok(&["undrain", Split::NODE]);
    wait_by_command("it is back", || state(&split).as_deref() == Some("up"));
    let job = split.world.submit_sh(&[], "exit 6");
    assert_eq!(split.world.wait_end(job)["exit_code"], 6);
}
