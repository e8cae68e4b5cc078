//! What people build from jobs: a race, a portfolio of solvers, a training that is killed and goes on.

use testsuite::patience::{SOON, wait_until};
use testsuite::world;
use testsuite::world::Role;

#[test]
fn the_first_success_of_a_race_cancels_the_rest() {
    let world = world!();
    let _node = world.up(3);
    // Task 0 fails, 1 and 2 run on, 3 to 19 wait: 1 wins when it is let go.
    let script = "case $DOCKET_TASK_ID in 0) exit 1;; esac\n\
                  while [ ! -e win-$DOCKET_TASK_ID ]; do sleep 0.05; done; echo won";
    let job = world.submit_sh(&["-a", "0-19%3", "--race"], script);
    let counts = |state: &str| world.show(job)["array"]["counts"][state].as_u64().unwrap_or(0);
    wait_until("three run and one has failed", SOON, || (counts("RUN"), counts("EXIT")) == (3, 1));
    world.touch("win-1");
    let ran = world.docket(&["wait", &job.to_string()]);
    assert_eq!(ran.code, Some(0), "a race that was won is DONE: {}", ran.describe());
    let tasks = |state: &str| world.ok(&["list", "--all", "--state", state, "-o", "jsonl"]);
    assert_eq!(tasks("DONE").lines().count(), 1);
    let ended = tasks("EXIT");
    assert_eq!(ended.matches(r#""kind":"cancelled""#).count(), 18, "{ended}");
    assert_eq!(world.ok(&["logs", &format!("{job}_1")]), "won\n");
    let processes = world.processes();
    let left = processes.iter().filter(|process| process.role(world.exe()).is_none());
    assert_eq!(left.count(), 0, "nothing of the losers lives: {processes:?}");
}

#[test]
fn a_portfolio_of_solvers_is_done_by_codes_10_and_20() {
    let world = world!();
    let _node = world.up(4);
    // As SAT solvers end: 10 satisfiable, 20 unsatisfiable, 0 unknown, else an error.
    let script = "exit $((DOCKET_TASK_ID * 10))";
    let codes = ["-a", "0-3", "--success-codes", "10,20"];
    let job = world.submit_sh(&codes, script);
    assert_eq!(world.docket(&["wait", &job.to_string()]).code, Some(1), "0 and 30 are no answers");
    for (task, state, code) in [(0, "EXIT", 0), (1, "DONE", 10), (2, "DONE", 20), (3, "EXIT", 30)] {
        let id = format!("{job}_{task}");
        let shown = world.ok(&["show", "-o", "jsonl", &id]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(
            (shown["state"].as_str(), shown["exit_code"].as_i64()),
            (Some(state), Some(code))
        );
        assert_eq!(world.docket(&["wait", &id]).code, Some(code as i32), "its own code");
    }
    // As a race: the first answer ends the others.
    let script = "[ $DOCKET_TASK_ID = 2 ] && exit 20; sleep 1000";
    let race = world.submit_sh(&["-a", "0-3", "--race", "--success-codes", "10,20"], script);
    assert_eq!(world.docket(&["wait", &race.to_string()]).code, Some(0));
}

#[test]
fn a_training_that_is_killed_goes_on_from_its_checkpoint() {
    let world = world!();
    let _node = world.up(1);
    // Each epoch is written down when it is done; a new try begins behind the last one.
    let script = "epoch=$(cat checkpoint 2>/dev/null || echo 0)\n\
                  echo \"attempt $DOCKET_ATTEMPT from $epoch\"\n\
                  while [ $epoch -lt 6 ]; do epoch=$((epoch+1)); echo $epoch > next; mv next checkpoint\n\
                  [ $epoch = 3 ] && [ $DOCKET_ATTEMPT = 1 ] && while :; do sleep 0.05; done\n\
                  sleep 0.02; done; echo trained";
    let out = world.file("train.log");
    let out = out.to_str().unwrap();
    let job = world.submit_sh(&["--retries", "2", "--retry-on", "signal", "-o", out], script);
    wait_until("its third epoch", SOON, || world.lines("checkpoint") == ["3"]);
    let pid = world.show(job)["pid"].as_i64().unwrap();
    // The machine's own killer, or a person with kill -9.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    assert_eq!(world.wait_end(job)["state"], "DONE");
    let log = world.lines("train.log");
    assert_eq!(log, ["attempt 1 from 0", "attempt 2 from 3", "trained"], "appended on the retry");
    assert_eq!(world.show(job)["retried"], 1);
    assert!(world.find(Role::Up).is_some());
}
