//! The data directory of a node goes away under its living agent while jobs wait: they go on waiting
//! at no cost, everybody is told what the node says, and they run once it takes jobs again.

use std::fs;
use std::time::Duration;
use testsuite::patience::{let_pass, wait_by_command};
use testsuite::world;
use testsuite::world::{Pace, Split};

/// Some of the node's own tries would fit, if it made any.
const LONG_ENOUGH: Duration = Duration::from_secs(4);

/// Waits until `docket nodes` tells that of the one node there is.
#[track_caller]
fn nodes_tell(split: &Split, words: &str) {
    wait_by_command(&format!("nodes tells {words:?}"), || {
        split.world.ok(&["nodes", "-o", "json"]).contains(words)
    });
}

#[track_caller]
fn waits_at_no_cost(split: &Split, jobs: &[u64], words: &str) {
    for job in jobs {
        let task = split.world.show(*job);
        assert_eq!((&task["state"], &task["attempt"]), (&"PEND".into(), &1.into()), "{task:#}");
        assert_eq!(task["substate"], "queued", "{task:#}");
        let told = split.world.ok(&["explain", &job.to_string()]);
        assert!(told.contains("takes no jobs") && told.contains(words), "{told}");
        assert!(split.world.ok(&["list"]).contains("takes no jobs"));
    }
}

#[test]
fn jobs_that_wait_when_their_nodes_directory_is_deleted_wait_on_and_run_on_its_next_one() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let world = &split.world;
    let script = format!("while ! test -e {}; do sleep 0.05; done", world.file("go").display());
    let running = world.submit_sh(&[], &script);
    world.wait_state(running, "RUN");
    fs::remove_dir_all(split.agent_data()).unwrap();
    let deleted = "was deleted under this agent";
    nodes_tell(&split, deleted);
    let waiting: Vec<u64> = (0..3).map(|_| world.submit(&["--", "true"])).collect();
    waits_at_no_cost(&split, &waiting, deleted);
    // The end of what ran before proves nothing about starts, and its keeper leaves after it.
    world.touch("go");
    assert_eq!(world.wait_end(running)["state"], "DONE");
    let_pass(LONG_ENOUGH, "no job was touched", || true);
    waits_at_no_cost(&split, &waiting, deleted);
    // Nothing has to be asked of the node to end one.
    world.ok(&["cancel", &waiting[0].to_string()]);
    assert_eq!(world.show(waiting[0])["reason"]["kind"], "cancelled");
    split.agent.terminate(testsuite::patience::SOON);
    // Of two nodes with that name, for the new directory is a new node: the ends tell that it is up.
    split.agent_unseen_again();
    for job in &waiting[1..] {
        let task = split.world.wait_end(*job);
        assert_eq!((&task["state"], &task["attempt"]), (&"DONE".into(), &1.into()), "{task:#}");
    }
}

#[test]
fn a_job_that_waits_for_a_node_whose_directory_was_renamed_runs_when_it_is_back() {
    let split = Split::start(world!(), Pace::QUICK);
    let elsewhere = split.world.dir().join("elsewhere");
    fs::rename(split.agent_data(), &elsewhere).unwrap();
    nodes_tell(&split, "was renamed to");
    let job = split.world.submit(&["--", "true"]);
    let_pass(LONG_ENOUGH, "no job was touched", || true);
    waits_at_no_cost(&split, &[job], "was renamed to");
    fs::rename(&elsewhere, split.agent_data()).unwrap();
    let task = split.world.wait_end(job);
    assert_eq!((&task["state"], &task["attempt"]), (&"DONE".into(), &1.into()), "{task:#}");
}
