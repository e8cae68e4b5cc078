//! Jobs that wait for others and for a time, through real processes: each starts once or ends at once.

use jiff::Timestamp;
use serde_json::{Value, json};
use testsuite::heavy_world;
use testsuite::patience::{SOON, wait_until};
use testsuite::world::World;

fn shown(world: &World, id: &str) -> Value {
    let shown: Value = serde_json::from_str(&world.ok(&["show", "--json", id])).unwrap();
    shown[0].clone()
}

/// Waits until a task is terminal.
fn wait_end_of(world: &World, id: &str) -> Value {
    world.docket(&["wait", id]);
    shown(world, id)
}

/// Submits with options, a shell script and its end.
fn sh(world: &World, option: &str, id: impl ToString, script: &str) -> u64 {
    world.submit_sh(&[option, &id.to_string()], script)
}

#[test]
fn a_chain_goes_on_over_kills_of_the_controller_and_each_link_runs_once() {
    let world = heavy_world!();
    let mut node = world.up(2);
    let first = world.submit_sh(&[], "echo 0 >> ran; while [ ! -e go ]; do sleep 0.05; done");
    let mut chain = vec![first];
    for n in 1..=6 {
        let last = chain[n - 1];
        chain.push(sh(&world, "--after-ok", last, &format!("echo {n} >> ran; sleep 0.1")));
    }
    let end = *chain.last().unwrap();
    let task = world.show(end);
    assert_eq!((&task["state"], &task["substate"]), (&"PEND".into(), &"waiting".into()));
    assert_eq!(task["message"], format!("waits for {}", chain[5]));
    assert_eq!(task["waits_for"], json!([chain[5].to_string()]));
    world.wait_state(first, "RUN");
    node.kill9();
    let mut node = world.up(2);
    assert_eq!(world.show(end)["substate"], "waiting", "a restart lets nothing go");
    world.touch("go");
    world.wait_end(chain[2]);
    node.kill9();
    let _node = world.up(2);
    assert_eq!(world.wait_end(end)["state"], "DONE");
    assert_eq!(world.lines("ran"), ["0", "1", "2", "3", "4", "5", "6"], "in order, each once");
    let told = world.ok(&["events", &end.to_string()]);
    let met = format!("after-ok {} is met", chain[5]);
    assert_eq!(told.matches(&met).count(), 1, "{told}");
}

#[test]
fn what_can_no_longer_start_ends_at_once_and_says_why() {
    let world = heavy_world!();
    let _node = world.up(2);
    let other = world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done; exit 3");
    let needs = sh(&world, "--after", other, "echo >> ran");
    let then = sh(&world, "--after-ok", needs, "echo >> ran");
    let cleanup = sh(&world, "--after-any", needs, "echo cleaned");
    let failed = sh(&world, "--after-not", other, "echo failed");
    let started = sh(&world, "-d", format!("after:{other}"), "echo started");
    assert_eq!(world.wait_end(started)["state"], "DONE", "after its start, before its end");
    let told = world.ok(&["explain", &needs.to_string()]);
    assert!(told.contains(&format!("after-ok {other}: {other} is RUN")), "{told}");
    world.touch("go");
    assert_eq!(world.wait_end(failed)["state"], "DONE");
    assert_eq!(world.wait_end(cleanup)["state"], "DONE");
    let task = world.wait_end(needs);
    let dependency = json!({
        "kind": "after-ok", "id": other.to_string(), "state": "EXIT", "reason": "exit-code", "code": 3,
        "signal": null
    });
    assert_eq!(task["reason"], json!({"kind": "dependency-failed", "dependency": dependency}));
    let ran = world.docket(&["wait", &then.to_string()]);
    assert_eq!(ran.code, Some(1), "{}", ran.describe());
    let why = format!("after-ok {needs}, which is EXIT dependency-failed");
    assert!(ran.err().contains(&why), "{}", ran.err());
    assert!(!world.file("ran").exists(), "none of them ran");
    // The same again, now that all of it is over: decided from the ledger (I01).
    let again = sh(&world, "--after-ok", other, "echo >> ran");
    assert_eq!(world.wait_end(again)["reason"]["kind"], "dependency-failed");
    let cancelled = world.submit_sh(&["--hold"], "true");
    let waits = sh(&world, "--after-ok", cancelled, "echo >> ran");
    world.ok(&["cancel", &cancelled.to_string()]);
    assert_eq!(world.wait_end(waits)["reason"]["dependency"]["reason"], "cancelled");
}

#[test]
fn what_cannot_be_waited_for_is_refused_by_name() {
    let world = heavy_world!();
    let _node = world.up(2);
    let job = world.submit_sh(&["--hold"], "true");
    let next = (job + 1).to_string();
    for (options, code, part) in [
        (&["--after-ok", "999"][..], 66, "no job 999 to wait for: the newest is 1"),
        (&["--after-ok", &next], 66, "a job can only wait for older ones"),
        (&["--after-ok", "1_3"], 2, "job 1 is not an array"),
        (&["--after-each", "1", "-a", "0-3"], 2, "job 1 is not an array"),
        (&["--after-each", "1"], 2, "give --array"),
        (&["-d", "aftrok:1"], 2, "did you mean afterok?"),
        (&["-d", "singleton"], 2, "%1"),
        (&["--begin", "10 o'clock"], 2, "no time: give"),
    ] {
        let args = [&["submit"], options, &["--", "true"]].concat();
        let ran = world.docket(&args);
        assert_eq!(ran.code, Some(code), "{options:?}: {}", ran.describe());
        assert!(ran.err().contains(part), "{options:?}: {}", ran.err());
    }
    let ids = vec!["1"; 10_001].join(",");
    let ran = world.docket(&["submit", "--after-any", &ids, "-d", "afterok:1", "--", "true"]);
    assert_eq!(ran.code, Some(0), "the same id again is one: {}", ran.describe());
}

#[test]
fn arrays_wait_as_a_whole_and_task_by_task() {
    let world = heavy_world!();
    let _node = world.up(4);
    let script =
        "while [ ! -e go.$DOCKET_TASK_ID ]; do sleep 0.05; done; exit $((DOCKET_TASK_ID == 2))";
    let first = world.submit_sh(&["-a", "0-3"], script);
    let each = "echo $DOCKET_TASK_ID >> each";
    let second = world.submit_sh(&["-a", "0-3", "--after-each", &first.to_string()], each);
    let whole = sh(&world, "--after-any", second, "echo whole");
    let part = sh(&world, "--after-ok", format!("{first}_0-1"), "echo part");
    world.touch("go.1");
    wait_end_of(&world, &format!("{second}_1"));
    assert_eq!(world.lines("each"), ["1"], "the others wait on");
    world.touch("go.2");
    let task = wait_end_of(&world, &format!("{second}_2"));
    assert_eq!(task["reason"]["dependency"]["id"], format!("{first}_2"));
    assert_eq!(world.show(part)["substate"], "waiting");
    assert_eq!(world.show(whole)["substate"], "waiting");
    world.touch("go.0");
    assert_eq!(world.wait_end(part)["state"], "DONE");
    world.touch("go.3");
    assert_eq!(world.wait_end(whole)["state"], "DONE");
    let mut ran = world.lines("each");
    ran.sort();
    assert_eq!(ran, ["0", "1", "3"]);
    // One step, however many tasks wait.
    let gate = world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done; exit 1");
    let options = ["-a", "0-899999", "--after-ok", &gate.to_string()];
    let many = world.submit_sh(&options, "true");
    world.touch("go");
    let task = world.wait_end(many);
    assert_eq!(task["array"]["counts"], json!({"EXIT": 900_000}));
}

#[test]
fn a_job_that_left_the_ledger_is_remembered_by_how_it_ended() {
    let mut world = heavy_world!();
    world.set("DOCKET_CONTROLLER__MAX_COMPLETED", "1");
    let mut node = world.up(2);
    let (good, bad) = (world.submit_sh(&[], "true"), world.submit_sh(&[], "exit 1"));
    for _ in 0..2 {
        let job = world.submit_sh(&[], "true");
        world.wait_end(job);
    }
    let gone = |job: u64| world.docket(&["show", &job.to_string()]).code == Some(66);
    wait_until("both have left the ledger", SOON, || gone(good) && gone(bad));
    node.kill9();
    let _node = world.up(2);
    for (option, job) in [("--after-ok", good), ("--after-not-ok", bad), ("--after-any", bad)] {
        let ran = world.docket(&["run", option, &job.to_string(), "--", "echo", "ran"]);
        assert_eq!((ran.code, ran.text().as_str()), (Some(0), "ran\n"), "{}", ran.describe());
    }
    let failed = world.docket(&["run", "--after-ok", &bad.to_string(), "--", "true"]);
    assert_eq!(failed.code, Some(1), "{}", failed.describe());
    assert!(failed.err().contains(&format!("after-ok {bad}, which is EXIT")), "{}", failed.err());
}

#[test]
fn a_job_begins_at_its_time_and_what_show_prints_can_be_submitted_again() {
    let world = heavy_world!();
    let mut node = world.up(2);
    let other = world.submit_sh(&[], "true");
    let id = other.to_string();
    let options = ["--begin", "now+2s", "--after-any", &id];
    let job = world.submit_sh(&options, "date +%s%3N > began");
    let task = world.show(job);
    assert_eq!((&task["substate"], &task["after_any"]), (&"waiting".into(), &json!([id])));
    let begin: Timestamp = task["begin"].as_str().unwrap().parse().unwrap();
    node.kill9();
    let _node = world.up(2);
    assert_eq!(world.wait_end(job)["state"], "DONE");
    let began: i64 = world.first_line("began").trim().parse().unwrap();
    assert!(began >= begin.as_millisecond(), "{began} is before {begin}");
    let told = world.ok(&["events", &job.to_string()]);
    assert_eq!(told.matches("its time to begin has come").count(), 1, "{told}");
    let line = world.ok(&["show", "-o", "jsonl", &job.to_string()]);
    let ran = world.docket_with_stdin(&["submit", "--from", "-"], line.as_bytes());
    let again: u64 = ran.text().trim().parse().unwrap();
    assert_eq!(world.wait_end(again)["begin"], task["begin"], "over, so it holds nothing back");
    let far = world.submit_sh(&["--begin", "2099-12-31T23:59:59Z"], "true");
    assert_eq!(world.show(far)["message"], "begins at 2099-12-31 23:59:59 UTC");
    world.ok(&["cancel", &far.to_string()]);
    assert_eq!(world.show(far)["reason"]["kind"], "cancelled");
}

#[test]
fn a_local_time_is_that_of_the_zone_and_one_moment_when_clocks_are_changed() {
    let mut world = heavy_world!();
    // Central Europe's rules, whatever this machine knows of zones.
    world.set("TZ", "CET-1CEST,M3.5.0,M10.5.0/3");
    let _node = world.up(1);
    let begin = |text: &str| {
        let job = world.submit_sh(&["--begin", text], "true");
        let begin = world.show(job)["begin"].clone();
        world.ok(&["cancel", &job.to_string()]);
        begin
    };
    assert_eq!(begin("2099-01-15T12:00"), "2099-01-15T11:00:00.000Z");
    // Left out by the clocks: as late as if they had not been put forward. Shown twice: the first.
    assert_eq!(begin("2099-03-29T02:30"), "2099-03-29T01:30:00.000Z");
    assert_eq!(begin("2099-10-25T02:30"), "2099-10-25T00:30:00.000Z");
}
