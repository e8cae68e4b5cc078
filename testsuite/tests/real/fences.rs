//! Leases with real processes: a node that nobody hears ends its leased job before the next attempt
//! starts elsewhere, and what it tells later touches nothing (B02, B10, B13, B16, B19; peer faults 4, 7).

use testsuite::heavy_world;
use testsuite::patience::{SOON, wait_until};
use testsuite::world::{Pace, Split};

/// Says every 20 ms, by the clock of the machine, which attempt lives; `go.N` ends it.
const LIVES: &str = "echo began $DOCKET_ATTEMPT $DOCKET_NODE >> story\n\
     while [ ! -e go.$DOCKET_ATTEMPT ]; do\n\
     echo $DOCKET_ATTEMPT $(date +%s%N) >> alive; sleep 0.02; done; exit 7";

/// Each attempt's first and last word.
fn lives(split: &Split, attempt: &str) -> (u128, u128) {
    let lines = split.world.lines("alive");
    let of = |line: &String| {
        let (n, time) = line.split_once(' ')?;
        (n == attempt).then(|| time.parse::<u128>().expect("nanoseconds"))
    };
    let times: Vec<u128> = lines.iter().filter_map(of).collect();
    (*times.first().expect("it lived"), *times.last().expect("it lived"))
}

#[test]
fn a_leased_job_of_a_silent_node_moves_to_another_and_never_runs_twice_at_once() {
    let split = Split::start(heavy_world!(), Pace::FORGETFUL);
    let options = ["--retries", "1", "--retry-on", "lost", "--fence-after", "6s", "-o", "out"];
    let job = split.world.submit_sh(&options, LIVES);
    split.world.first_line("story");
    let address = split.address().to_owned();
    let _second = split.world.agent(&address, "n2", 4);
    split.agent.freeze();
    split.world.wait_job(job, "the second attempt runs", |task| {
        task["state"] == "RUN" && task["attempt"] == 2
    });
    assert_eq!(split.world.show(job)["node"], "n2");
    let second_lives = || split.world.lines("story").len() == 2;
    wait_until("the second attempt has begun", SOON, second_lives);
    let (first, second) = (lives(&split, "1"), lives(&split, "2"));
    assert!(first.1 < second.0, "the first was dead before the second began: {first:?} {second:?}");
    // The first one's node comes back and tells its end: counted, and the second goes on.
    split.agent.thaw();
    let id = job.to_string();
    wait_until("its late end", SOON, || {
        let events = split.world.ok(&["events", &id]);
        events.contains("told the real end of attempt 1, too late to count")
    });
    let task = split.world.show(job);
    assert_eq!((&task["state"], &task["attempt"]), (&"RUN".into(), &2.into()), "{task:#}");
    split.world.touch("go.2");
    let task = split.world.wait_end(job);
    assert_eq!((&task["exit_code"], &task["attempt"]), (&7.into(), &2.into()), "{task:#}");
    assert_eq!(split.world.lines("story").len(), 2, "two attempts, no third");
}

#[test]
fn a_silence_within_the_lease_costs_a_leased_job_nothing() {
    let split = Split::start(heavy_world!(), Pace::QUICK);
    let options = ["--retries", "3", "--retry-on", "lost", "--fence-after", "60s"];
    let job = split.world.submit_sh(&options, LIVES);
    split.world.first_line("story");
    split.agent.freeze();
    split.world.wait_state(job, "UNKWN");
    split.agent.thaw();
    split.world.wait_state(job, "RUN");
    split.world.touch("go.1");
    let task = split.world.wait_end(job);
    assert_eq!((&task["exit_code"], &task["attempt"]), (&7.into(), &1.into()), "{task:#}");
}

/// Case B07: undrain while a job still runs there starts nothing beside it.
#[test]
fn a_node_that_is_drained_and_undrained_again_and_again_starts_each_job_once() {
    let world = heavy_world!();
    let _node = world.up(2);
    let nodes: serde_json::Value =
        serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    let name = nodes[0]["name"].as_str().unwrap().to_owned();
    let runs = world.submit_sh(&["--retries", "5"], LIVES);
    world.first_line("story");
    for _ in 0..20 {
        world.ok(&["drain", &name]);
        world.ok(&["undrain", &name]);
    }
    let last = world.submit_sh(&[], "exit 4");
    assert_eq!(world.wait_end(last)["exit_code"], 4);
    assert_eq!(world.show(runs)["attempt"], 1);
    assert_eq!(world.lines("story").len(), 1);
    world.touch("go.1");
    world.touch("go.2");
    world.ok(&["cancel", &runs.to_string()]);
    world.wait_end(runs);
}
