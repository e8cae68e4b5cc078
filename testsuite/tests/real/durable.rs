//! An acknowledged job survives the death of every docket process and runs once (P1).

use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use testsuite::heavy_world;
use testsuite::patience::{LATER, SOON, wait_until};
use testsuite::skip::{program, skipped};
use testsuite::world::{Role, World};

/// Kills in the crash test.
const ROUNDS: usize = 50;

#[test]
fn fifty_kills_right_after_the_acknowledgement_lose_nothing_and_run_nothing_twice() {
    let world = heavy_world!();
    let mut acknowledged = Vec::new();
    for _ in 0..ROUNDS {
        let mut node = world.up(4);
        let script = "echo \"$DOCKET_JOB_ID $DOCKET_ATTEMPT\" >> ran";
        acknowledged.push(world.submit_sh(&[], script));
        node.kill9();
        world.kill_all_daemons();
    }
    let expected: Vec<u64> = (1..=ROUNDS as u64).collect();
    assert_eq!(acknowledged, expected, "ids are dense: none was lost and given again");
    let _node = world.up(4);
    assert_eq!(world.list_ids(), expected, "every acknowledged job is there");
    let tasks: Vec<Value> = acknowledged.iter().map(|&job| world.wait_end(job)).collect();
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for line in world.lines("ran") {
        let job = line.split(' ').next().expect("a line has a first word").to_owned();
        *runs.entry(job).or_default() += 1;
    }
    let mut unread = 0;
    for task in &tasks {
        let id = task["id"].as_str().expect("ids are strings");
        match runs.get(id).copied().unwrap_or(0) {
            1 => {}
            // Keeper and guard were killed between accepting it and its first step: docket cannot
            // know whether it began, says so, and never starts it a second time.
            0 => assert_eq!(task["reason"]["kind"], "unknown-status", "not run: {task:#}"),
            n => panic!("job {id} ran {n} times: {task:#}"),
        }
        // A status that nobody could read is called that; one that was read is the real one.
        let kind = task["reason"]["kind"].as_str().unwrap_or("exit-code");
        match kind {
            "exit-code" => assert_eq!(task["exit_code"], 0, "{task:#}"),
            "unknown-status" => {
                unread += 1;
                assert_eq!(task["exit_code"], Value::Null, "{task:#}");
            }
            other => panic!("an end nobody caused: {other} in {task:#}"),
        }
    }
    assert!(unread < ROUNDS, "at least the last jobs ran under a living keeper");
}

/// Seconds since 1970 of a trace line `PID SECONDS.MICROS call(…`.
fn stamp(line: &str) -> f64 {
    let field = line.split_whitespace().nth(1).expect("a trace line has a time");
    field.parse().unwrap_or_else(|_| panic!("no time in {line}"))
}

fn can_trace() -> bool {
    program("strace").is_some()
        && Command::new("strace")
            .args(["-f", "-o", "/dev/null", "true"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
}

/// The system calls of one process, its threads included, in the order in which they happened.
struct Trace {
    strace: std::process::Child,
    file: std::path::PathBuf,
}

impl Trace {
    /// Begins to watch a process for `calls`.
    fn of(world: &World, pid: i32, calls: &str) -> Trace {
        let (file, said) = (world.file("trace"), world.file("strace.err"));
        let strace = Command::new("strace")
            .args(["-f", "-ttt", "-s", "65536", "-e", &format!("trace={calls}")])
            .args(["-p", &pid.to_string(), "-o"])
            .arg(&file)
            .stderr(std::fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        wait_until("strace is attached", SOON, || {
            std::fs::read_to_string(&said).is_ok_and(|text| text.contains("attached"))
        });
        Trace { strace, file }
    }

    /// Lets the process go; gives the lines.
    fn end(mut self) -> Vec<String> {
        let strace = rustix::process::Pid::from_child(&self.strace);
        rustix::process::kill_process(strace, rustix::process::Signal::INT).unwrap();
        self.strace.wait().unwrap();
        let text = std::fs::read(&self.file).unwrap();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }
}

/// The first line from `from` on that holds.
#[track_caller]
fn place(lines: &[String], what: &str, from: usize, holds: impl Fn(&str) -> bool) -> usize {
    let found = lines[from..].iter().position(|line| holds(line));
    let missing = || panic!("no {what} after line {from} of the trace\n{}", lines.join("\n"));
    from + found.unwrap_or_else(missing)
}

/// An fdatasync that has succeeded.
fn is_synced(line: &str) -> bool {
    (line.contains("fdatasync(") || line.contains("fdatasync resumed")) && line.ends_with("= 0")
}

#[test]
fn a_submit_is_on_disk_before_it_is_acknowledged() {
    if !can_trace() {
        let test = "a_submit_is_on_disk_before_it_is_acknowledged";
        return skipped(test, "strace is missing or not allowed");
    }
    let world = heavy_world!();
    let node = world.up(1);
    // A blocker keeps the marked job queued: whatever is written, is written for its submit.
    let blocker = world.submit_sh(&[], "while :; do sleep 0.2; done");
    world.wait_state(blocker, "RUN");
    let calls =
        "read,readv,recvfrom,recvmsg,pwritev,pwritev2,pwrite64,write,writev,fdatasync,fsync";
    let trace = Trace::of(&world, node.pid(), calls);
    let mark = "marked-job-7f3a";
    world.submit(&["-J", mark, "--", "true"]);
    let acknowledged = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("the clock is past 1970")
        .as_secs_f64();
    let lines = trace.end();
    let received = place(&lines, "request", 0, |line| {
        line.contains(mark) && ["read", "recv"].iter().any(|call| line.contains(call))
    });
    let written =
        place(&lines, "log write", received, |line| line.contains(mark) && line.contains("write"));
    let synced = place(&lines, "fdatasync", written, is_synced);
    assert!(stamp(&lines[synced]) < acknowledged, "the acknowledgement came before the disk");
}

#[test]
fn an_acceptance_is_on_disk_before_its_process_is_born() {
    if !can_trace() {
        let test = "an_acceptance_is_on_disk_before_its_process_is_born";
        return skipped(test, "strace is missing or not allowed");
    }
    let world = heavy_world!();
    let _node = world.up(1);
    // A first job: whatever the keeper does once only, it has done.
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0));
    let keeper = world.find(Role::Keeper).expect("a node has a keeper");
    let calls = "pwritev,pwritev2,pwrite64,write,writev,fdatasync,fsync,clone,clone3,fork,vfork";
    let trace = Trace::of(&world, keeper.pid, calls);
    let mark = "marked-job-7f3a.out";
    let job = world.submit(&["-o", mark, "--", "true"]);
    let task = world.wait_end(job);
    let lines = trace.end();
    assert_eq!((&task["state"], &task["attempt"]), (&"DONE".into(), &1.into()), "{task:#}");
    let written = place(&lines, "acceptance in the journal", 0, |line| {
        line.contains(mark) && line.contains("pwrite")
    });
    let synced = place(&lines, "fdatasync", written, is_synced);
    let born = place(&lines, "birth of a process", 0, |line| {
        let births = ["clone(", "clone3(", "fork("];
        births.iter().any(|call| line.contains(call)) && !line.contains("CLONE_THREAD")
    });
    assert!(synced < born, "line {born} comes before {synced}:\n{}", lines.join("\n"));
}

#[test]
fn a_restart_lists_every_queued_job() {
    const QUEUED: usize = 1000;
    let world = heavy_world!();
    let address = World::free_address();
    let mut node = world.up_with(1, &["--listen", &address]);
    let blocker = world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done");
    world.wait_state(blocker, "RUN");
    let numbers: Vec<String> = (0..QUEUED).map(|n| n.to_string()).collect();
    let specs = numbers.iter().map(|n| testsuite::client::spec(&["true", n])).collect();
    let mut ids = testsuite::client::runtime().block_on(async {
        let mut client = testsuite::client::connect(&address).await;
        testsuite::client::submit_many(&mut client, specs).await
    });
    ids.insert(0, blocker);
    assert_eq!(world.list_ids(), ids, "before the kill");
    node.kill9();
    let _node = world.up(8);
    assert_eq!(world.list_ids(), ids, "after the restart");
    assert_eq!(world.show(ids[QUEUED])["command"][1], numbers[QUEUED - 1].as_str());
    world.touch("go");
    wait_until("every job has run", LATER * 2, || {
        let out = world.ok(&["list", "--all", "--state", "DONE", "--limit", "100000", "-o", "id"]);
        out.lines().count() == QUEUED + 1
    });
}

#[test]
fn the_log_can_be_verified_and_damage_is_named() {
    let world = heavy_world!();
    let mut node = world.up(2);
    let job = world.submit(&["--", "true"]);
    world.wait_end(job);
    let (status, _) = node.terminate(SOON);
    assert!(status.success(), "{status}");
    let log = find_log(&world);
    let log_dir = log.parent().expect("a segment lies in a directory").to_owned();
    world.ok(&["wal".as_ref(), "verify".as_ref(), log_dir.as_os_str()]);
    let mut bytes = std::fs::read(&log).unwrap();
    // The first byte of the submit's own program name: acknowledged data.
    let place = bytes.windows(4).position(|w| w == b"true").expect("the submit is in the log");
    bytes[place] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let ran = world.docket(&["wal".as_ref(), "verify".as_ref(), log_dir.as_os_str()]);
    assert_ne!(ran.code, Some(0), "{}", ran.describe());
    let told = ran.text() + &ran.err();
    let name = log.file_name().expect("a segment has a name").to_string_lossy().into_owned();
    assert!(told.contains(&name), "the file is named: {told}");
    // A lone controller must not start over acknowledged data that rotted.
    let data = world.data();
    let mut node = world.start(&["up".as_ref(), "--data".as_ref(), data.as_os_str()]);
    let status = node.ended_within(SOON);
    assert!(!status.success(), "{}", node.printed());
    assert!(node.printed().contains(&name), "{}", node.printed());
}

#[test]
fn a_damaged_log_is_repaired_only_on_request_and_what_waited_is_held() {
    let world = heavy_world!();
    let mut node = world.up(1);
    let first = world.submit(&["--", "true"]);
    world.wait_end(first);
    let runs = world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done; exit 3");
    world.wait_state(runs, "RUN");
    let waits = world.submit(&["--", "true"]);
    let forgotten = world.submit(&["--", "echo", "forgotten-by-the-log"]);
    // With an entry behind it the log knows that it was on disk.
    world.submit(&["--", "true"]);
    node.kill9();
    let (log, at) = find_in_log(&world, b"forgotten-by-the-log");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let data = world.data();
    let repair = |more: &[&str]| {
        let mut words = vec!["wal".as_ref(), "repair".as_ref(), data.as_os_str()];
        words.extend(more.iter().map(std::ffi::OsStr::new));
        world.docket(&words)
    };
    let asked = repair(&[]);
    assert_eq!(asked.code, Some(2), "{}", asked.describe());
    assert!(asked.text().contains("given up   entries"), "{}", asked.describe());
    assert_eq!(std::fs::read(&log).unwrap(), bytes, "nothing is changed without a yes");
    let done = repair(&["--yes"]);
    assert_eq!(done.code, Some(0), "{}", done.describe());
    let name = log.file_name().expect("a segment has a name").to_string_lossy().into_owned();
    let kept = data.join("controller/damaged-2").join(format!("{name}.damaged"));
    assert_eq!(std::fs::read(kept).unwrap(), bytes, "the damaged file is kept");
    let again = repair(&["--yes"]);
    assert!(again.text().contains("no repair is needed"), "{}", again.describe());
    let _node = world.up(1);
    assert_eq!(world.show(first)["state"], "DONE");
    world.wait_state(runs, "RUN");
    assert!(!world.list_ids().contains(&forgotten), "it was given up");
    let told = world.ok(&["explain", &waits.to_string()]);
    assert!(told.contains("may have run already"), "{told}");
    world.touch("go");
    assert_eq!(world.wait_end(runs)["exit_code"], 3);
    assert_eq!(world.show(waits)["state"], "PEND", "it is held");
    let new = world.submit(&["--", "true"]);
    assert!(new > forgotten + 1000, "{new}: no id is given twice");
    world.wait_end(new);
    world.ok(&["release", &waits.to_string()]);
    assert_eq!(world.wait_end(waits)["state"], "DONE");
}

/// The controller's segment with the submit in it: the keeper's journal lies elsewhere.
fn find_log(world: &World) -> std::path::PathBuf {
    find_in_log(world, b"true").0
}

/// The controller's segment with these bytes, and where.
fn find_in_log(world: &World, words: &[u8]) -> (std::path::PathBuf, usize) {
    let mut rooms = vec![world.data()];
    let mut found = Vec::new();
    while let Some(room) = rooms.pop() {
        for entry in std::fs::read_dir(room).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("keeper") {
                rooms.push(path);
            } else if path.extension().is_some_and(|ext| ext == "wal") {
                found.push(path);
            }
        }
    }
    let place = |path: std::path::PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        bytes.windows(words.len()).position(|w| w == words).map(|at| (path, at))
    };
    found.into_iter().find_map(place).expect("a segment holds the submit")
}
