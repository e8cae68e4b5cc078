//! How a job ended is told as it was: by `run`, by `wait`, and in JSON.

use serde_json::Value;
use testsuite::world;
use testsuite::world::World;

/// `run` and `wait` exit with this; JSON tells code, signal and kind.
struct End {
    script: &'static str,
    exits: i32,
    code: Option<i64>,
    signal: Option<i64>,
}

const ENDS: [End; 9] = [
    End { script: "exit 0", exits: 0, code: Some(0), signal: None },
    End { script: "exit 1", exits: 1, code: Some(1), signal: None },
    End { script: "exit 7", exits: 7, code: Some(7), signal: None },
    End { script: "exit 42", exits: 42, code: Some(42), signal: None },
    End { script: "exit 137", exits: 137, code: Some(137), signal: None },
    End { script: "exit 255", exits: 255, code: Some(255), signal: None },
    End { script: "kill -TERM $$", exits: 143, code: None, signal: Some(15) },
    End { script: "kill -KILL $$", exits: 137, code: None, signal: Some(9) },
    End { script: "kill -37 $$", exits: 165, code: None, signal: Some(37) },
];

fn assert_end(task: &Value, end: &End) {
    let script = end.script;
    assert_eq!(task["exit_code"].as_i64(), end.code, "exit code of `{script}`: {task:#}");
    assert_eq!(task["signal"].as_i64(), end.signal, "signal of `{script}`: {task:#}");
    let state = if end.exits == 0 { "DONE" } else { "EXIT" };
    assert_eq!(task["state"], state, "{task:#}");
    assert_eq!(task["terminal"], true);
    let kind = if end.signal.is_some() { "signal" } else { "exit-code" };
    if state == "EXIT" {
        assert_eq!(task["reason"]["kind"], kind, "kind of `{script}`: {task:#}");
    }
    for time in ["submit_time", "start_time", "finish_time"] {
        assert!(task[time].is_string(), "{time} of `{script}` is set: {task:#}");
    }
}

#[test]
fn run_exits_as_the_job_did() {
    let world = world!();
    let _node = world.up(4);
    for (index, end) in ENDS.iter().enumerate() {
        let ran = world.docket(&["run", "--", "sh", "-c", end.script]);
        assert_eq!(ran.code, Some(end.exits), "`{}`: {}", end.script, ran.describe());
        assert_eq!(ran.text(), "", "a silent job prints nothing");
        assert_eq!(ran.err().is_empty(), end.exits == 0, "one line unless DONE: {}", ran.err());
        assert_end(&world.show(index as u64 + 1), end);
    }
}

#[test]
fn wait_exits_as_the_job_did_and_show_agrees_at_once() {
    let world = world!();
    let _node = world.up(4);
    for end in &ENDS {
        let job = world.submit_sh(&[], end.script);
        let ran = world.docket(&["wait", &job.to_string()]);
        assert_eq!(ran.code, Some(end.exits), "`{}`: {}", end.script, ran.describe());
        // Read your writes: what `wait` saw, the next command sees.
        assert_end(&world.show(job), end);
        let again = world.docket(&["wait", &job.to_string()]);
        assert_eq!(again.code, Some(end.exits), "an ended job can be waited for");
    }
}

#[test]
fn several_jobs_are_waited_for_together() {
    let world = world!();
    let _node = world.up(4);
    let good = world.submit_sh(&[], "exit 0").to_string();
    let good2 = world.submit_sh(&[], "exit 0").to_string();
    let bad = world.submit_sh(&[], "exit 9").to_string();
    assert_eq!(world.docket(&["wait", &good, &good2]).code, Some(0));
    assert_eq!(world.docket(&["wait", &good, &bad]).code, Some(1));
    let endless = world.submit_sh(&[], "while :; do sleep 0.2; done").to_string();
    let ran = world.docket(&["wait", &endless, "--timeout", "1s"]);
    assert_eq!(ran.code, Some(124), "{}", ran.describe());
}

#[test]
fn success_codes_decide_what_done_means() {
    let world = world!();
    let _node = world.up(2);
    let job = world.submit_sh(&["--success-codes", "0,10"], "exit 10");
    let ran = world.docket(&["wait", &job.to_string()]);
    assert_eq!(ran.code, Some(10), "the process's own code: {}", ran.describe());
    assert_eq!(world.show(job)["state"], "DONE");
}

fn assert_start_failed(world: &World, args: &[&str], step: &str, errno: i64) {
    let job = world.submit(args);
    let ran = world.docket(&["wait", &job.to_string()]);
    assert_eq!(ran.code, Some(1), "no invented 127: {}", ran.describe());
    let task = world.show(job);
    assert_eq!(task["state"], "EXIT", "{task:#}");
    assert_eq!(task["exit_code"], Value::Null, "{task:#}");
    assert_eq!(task["reason"]["kind"], "start-failed", "{task:#}");
    assert_eq!(task["reason"]["step"], step, "{task:#}");
    assert_eq!(task["reason"]["errno"].as_i64(), Some(errno), "{task:#}");
    assert!(ran.err().contains(step), "wait names the step: {}", ran.err());
}

#[test]
fn a_start_failure_names_its_step_and_errno() {
    let world = world!();
    let _node = world.up(2);
    let enoent = i64::from(libc::ENOENT);
    let eacces = i64::from(libc::EACCES);
    let dir = world.file("");
    let plain = world.file("plain");
    std::fs::write(&plain, "no program").unwrap();
    let (dir, plain) = (dir.to_str().unwrap(), plain.to_str().unwrap());
    assert_start_failed(&world, &["--", "/no/such/program"], "exec", enoent);
    assert_start_failed(&world, &["--", "no-such-program-in-path"], "exec", enoent);
    assert_start_failed(&world, &["--", plain], "exec", eacces);
    assert_start_failed(&world, &["-D", "/no/such/dir", "--", "true"], "chdir", enoent);
    let missing = format!("{dir}/missing/out");
    assert_start_failed(&world, &["-o", &missing, "--", "true"], "stdout", enoent);
    assert_start_failed(&world, &["-e", &missing, "--", "true"], "stderr", enoent);
    // The node took no harm from any of it.
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0));
}

#[test]
fn an_unknown_id_is_66_and_never_a_success() {
    let world = world!();
    let _node = world.up(2);
    world.submit(&["--", "true"]);
    for command in ["show", "wait", "logs", "cancel", "events", "explain"] {
        let ran = world.docket(&[command, "999"]);
        assert_eq!(ran.code, Some(66), "{}", ran.describe());
        assert!(ran.err().contains("999"), "{}", ran.err());
        assert_eq!(ran.text(), "", "nothing on stdout");
    }
}

#[test]
fn the_time_line_tells_who_did_what() {
    let world = world!();
    let _node = world.up(2);
    let job = world.submit_sh(&[], "exit 3").to_string();
    assert_eq!(world.docket(&["wait", &job]).code, Some(3));
    let events = world.ok(&["events", &job]);
    let at = |word: &str| {
        events.find(word).unwrap_or_else(|| panic!("`{word}` is missing in\n{events}"))
    };
    assert!(at("submitted") < at("assigned"), "{events}");
    assert!(at("assigned") < at("exit code 3"), "{events}");
    let explained = world.ok(&["explain", &job]);
    assert!(explained.contains('3') && explained.contains("EXIT"), "{explained}");
}

#[test]
fn a_job_that_does_not_fit_says_why() {
    let world = world!();
    let _node = world.up(2);
    let running = world.submit_sh(&["-c", "2"], "while :; do sleep 0.2; done");
    world.wait_state(running, "RUN");
    let waiting = world.submit(&["-c", "2", "--", "true"]);
    let task = world.show(waiting);
    assert_eq!(task["state"], "PEND", "{task:#}");
    let why = world.ok(&["explain", &waiting.to_string()]);
    assert!(why.contains("cpu"), "{why}");
    assert!(world.ok(&["list"]).contains("cpu"), "the list has the reason too");
    world.ok(&["cancel", &running.to_string()]);
    assert_eq!(world.docket(&["wait", &waiting.to_string()]).code, Some(0), "then it runs");
}
