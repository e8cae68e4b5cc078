//! Array jobs through real processes: one submit, any number of tasks, each with its own end.

use serde_json::Value;
use std::time::Duration;
use testsuite::heavy_world;
use testsuite::patience::let_pass;
use testsuite::world::World;

fn submit(world: &World, numbers: &str, script: &str) -> u64 {
    world.submit(&["-a", numbers, "--", "sh", "-c", script])
}

/// A task as JSON shows it.
fn task(world: &World, id: &str) -> Value {
    let shown: Value = serde_json::from_str(&world.ok(&["show", "--json", id])).unwrap();
    shown[0].clone()
}

fn counts(world: &World, job: u64) -> Value {
    task(world, &job.to_string())["array"]["counts"].clone()
}

#[test]
fn each_task_of_an_array_runs_with_its_number_and_ends_with_its_own_code() {
    let world = heavy_world!();
    let _node = world.up(2);
    let script = "echo task $DOCKET_TASK_ID of $DOCKET_JOB_ID; exit $DOCKET_TASK_ID";
    let job = submit(&world, "0-6:3,7", script);
    let id = job.to_string();
    let ran = world.docket(&["wait", &id]);
    assert_eq!(ran.code, Some(1), "not all are DONE: {}", ran.describe());
    assert!(ran.err().contains("4 of 4 ended: 1 DONE, 3 EXIT"), "{}", ran.err());
    for number in [0, 3, 6, 7] {
        let one = format!("{job}_{number}");
        assert_eq!(task(&world, &one)["exit_code"], number);
        assert_eq!(world.docket(&["wait", &one]).code, Some(number));
        assert_eq!(world.ok(&["logs", &one]), format!("task {number} of {job}\n"));
    }
    let ran = world.docket(&["show", &format!("{job}_1")]);
    assert_eq!(ran.code, Some(66), "{}", ran.describe());
    assert!(ran.err().contains("its tasks are 0-6:3,7"), "{}", ran.err());
    assert_eq!(counts(&world, job), serde_json::json!({"DONE": 1, "EXIT": 3}));
    let ran = world.docket(&["logs", &id]);
    assert!(ran.err().contains(&format!("name one of its tasks, as {job}_N")), "{}", ran.err());
    let ran = world.docket(&["run", "-a", "0-3", "--", "true"]);
    assert!(ran.code == Some(2) && ran.err().contains("docket submit -a"), "{}", ran.describe());
    let folded = world.ok(&["list"]);
    assert_eq!(folded.lines().filter(|line| line.starts_with(&id)).count(), 1, "{folded}");
    let each: Vec<String> = world.ok(&["list", "-o", "jsonl"]).lines().map(str::to_owned).collect();
    let ids: Vec<Value> = each
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone())
        .collect();
    assert_eq!(ids, [0, 3, 6, 7].map(|n| Value::from(format!("{job}_{n}"))), "the oldest first");
}

#[test]
fn a_limit_of_an_array_holds_until_it_is_changed() {
    let world = heavy_world!();
    let _node = world.up(8);
    let job = submit(
        &world,
        "0-19%2",
        "echo $DOCKET_TASK_ID >> began; while [ ! -e go ]; do sleep 0.05; done",
    );
    let id = job.to_string();
    let running = |wanted: u64| {
        world.wait_job(job, "tasks run", |_| counts(&world, job)["RUN"] == wanted);
    };
    running(2);
    assert!(world.ok(&["explain", &format!("{job}_7")]).contains("2 tasks of its array"));
    world.ok(&["set", &id, "--array-limit", "5"]);
    running(5);
    assert_eq!(world.lines("began").len(), 5, "no more than the limit have begun");
    world.ok(&["set", &id, "--array-limit", "none"]);
    running(8);
    world.touch("go");
    assert_eq!(world.docket(&["wait", &id]).code, Some(0));
    let mut began = world.lines("began");
    began.sort();
    began.dedup();
    assert_eq!(began.len(), 20, "each ran");
    assert_eq!(world.lines("began").len(), 20, "and ran once");
}

#[test]
fn a_task_a_range_or_all_of_an_array_are_cancelled() {
    let world = heavy_world!();
    let _node = world.up(2);
    let job = submit(&world, "0-99999", "while :; do sleep 0.2; done");
    let id = job.to_string();
    world.wait_job(job, "two run", |_| counts(&world, job)["RUN"] == 2);
    assert_eq!(world.ok(&["cancel", &format!("{job}_9")]), format!("{job}_9 cancelled\n"));
    world.ok(&["cancel", &format!("{job}_10-19,30")]);
    assert_eq!(counts(&world, job), serde_json::json!({"EXIT": 12, "PEND": 99_986, "RUN": 2}));
    world.ok(&["cancel", &format!("{job}_0")]);
    world.wait_job(job, "the next one runs", |_| {
        task(&world, &format!("{job}_2"))["state"] == "RUN"
    });
    assert_eq!(task(&world, &format!("{job}_0"))["reason"]["kind"], "cancelled");
    world.ok(&["cancel", &id]);
    world.wait_end(job);
    assert_eq!(counts(&world, job), serde_json::json!({"EXIT": 100_000}));
    assert_eq!(task(&world, &format!("{job}_55555"))["cancelled_by"], whoami(&world));
}

/// Jobs that `list` shows, an array as one.
fn arrays(world: &World) -> usize {
    world.ok(&["list", "--all", "-o", "id"]).lines().count()
}

fn whoami(world: &World) -> String {
    world.ok(&["run", "--", "id", "-un"]).trim().to_owned()
}

#[test]
fn an_array_goes_on_over_deaths_of_everything_and_each_task_ends_once() {
    let world = heavy_world!();
    let mut node = world.up(2);
    let script = "echo $DOCKET_TASK_ID >> began; sleep 0.3; exit $((DOCKET_TASK_ID % 3))";
    let job = submit(&world, "0-23", script);
    for round in 1..=3 {
        world.wait_job(job, "some have ended", |_| {
            let counts = counts(&world, job);
            let of = |state: &str| counts[state].as_u64().unwrap_or(0);
            of("DONE") + of("EXIT") >= round * 4
        });
        node.kill9();
        node = world.up(2);
    }
    world.wait_end(job);
    for number in 0..24 {
        let one = task(&world, &format!("{job}_{number}"));
        assert_eq!(one["exit_code"], number % 3, "{one:#}");
    }
    let mut began = world.lines("began");
    assert_eq!(began.len(), 24, "each ran once");
    began.sort();
    began.dedup();
    assert_eq!(began.len(), 24);
    drop(node);
}

#[test]
fn tasks_of_an_array_are_held_released_and_named_in_their_output_files() {
    let world = heavy_world!();
    let _node = world.up(1);
    let job = world.submit(&[
        "-a",
        "1-3",
        "-o",
        "out.%j.%3a",
        "--",
        "sh",
        "-c",
        "echo $DOCKET_TASK_ID; while [ ! -e go ]; do sleep 0.05; done",
    ]);
    world.wait_job(job, "one runs", |_| counts(&world, job)["RUN"] == 1);
    let second = format!("{job}_2");
    world.ok(&["hold", &second]);
    world.touch("go");
    world.wait_job(job, "two have ended", |_| counts(&world, job)["DONE"] == 2);
    assert_eq!(task(&world, &second)["substate"], "held");
    world.ok(&["release", &second]);
    assert_eq!(world.docket(&["wait", &job.to_string()]).code, Some(0));
    for number in 1..=3 {
        assert_eq!(world.first_line(&format!("out.{job}.00{number}")), number.to_string());
    }
    let waited = world.docket(&["wait", &format!("{job}_1-3")]);
    assert_eq!(waited.code, Some(0), "{}", waited.describe());
}

/// Peer fault 13: a submit of 10,000 tasks is one entry of the log.
#[test]
fn an_array_whose_submit_is_cut_off_by_a_kill_is_there_whole_or_not_and_once() {
    let world = heavy_world!();
    // No node has so many cpus: nothing starts.
    let submit = |key: &str| {
        ["submit", "--key", key, "-c", "64", "-a", "0-9999", "--", "true"].map(str::to_owned)
    };
    for round in 0..6u64 {
        let mut node = world.up(1);
        let key = format!("k{round}");
        let mut first = world.docket_command(&submit(&key)).spawn().unwrap();
        let_pass(Duration::from_millis(8 * round), "the submit is on its way", || true);
        node.kill9();
        first.kill().unwrap();
        first.wait().unwrap();
        let node = world.up(1);
        let there = arrays(&world);
        assert!(there == round as usize || there == round as usize + 1, "{there}");
        let id: u64 = world.ok(&submit(&key)).trim().parse().unwrap();
        assert_eq!(world.ok(&submit(&key)).trim(), id.to_string(), "the same key, the same job");
        assert_eq!(counts(&world, id), serde_json::json!({"PEND": 10_000}));
        assert_eq!(arrays(&world), round as usize + 1);
        drop(node);
    }
}
