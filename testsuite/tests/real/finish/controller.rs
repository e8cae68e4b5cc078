//! The controller is killed at each step of a job's life, and stands still for a while.

use super::{assert_once, let_go, pid_of, running_job, waiting_job};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testsuite::patience::{SOON, let_pass, wait_until};
use testsuite::world::{Daemon, End, Pace, Split, World, alive, time_of};
use testsuite::{heavy_world, world};

#[test]
fn a_controller_killed_after_the_submit_starts_the_job_when_there_is_a_node() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let (status, _) = split.agent.terminate(SOON);
    assert!(status.success(), "{status}");
    let job = waiting_job(&split.world, &[], "a", 3);
    assert_eq!(split.world.show(job)["substate"], "queued");
    split.bounce_controller();
    assert_eq!(split.world.show(job)["substate"], "queued");
    split.agent_again();
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(3, "RUN -> EXIT exit-code 3"));
    assert_once(&split.world, "a");
}

#[test]
fn a_controller_killed_after_the_assignment_never_gives_the_job_away_twice() {
    let mut split = Split::start(world!(), Pace::QUICK);
    // The order is on its way to an agent that does not read.
    split.agent.freeze();
    let job = waiting_job(&split.world, &[], "a", 4);
    split.world.wait_job(job, "it is assigned", |task| task["substate"] == "dispatched");
    split.bounce_controller();
    let task = split.world.wait_state(job, "UNKWN");
    assert_eq!((&task["terminal"], &task["attempt"]), (&false.into(), &1.into()), "{task:#}");
    split.agent.thaw();
    split.world.wait_state(job, "RUN");
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(4, "RUN -> EXIT exit-code 4"));
    assert_once(&split.world, "a");
}

#[test]
fn a_controller_killed_after_the_start_finds_the_job_running() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 5);
    let before = split.world.show(job);
    split.bounce_controller();
    let after = split.world.wait_state(job, "RUN");
    for field in ["pid", "attempt", "start_time", "submit_time", "node"] {
        assert_eq!(after[field], before[field], "{field} after the restart");
    }
    assert!(split.world.tale(job).tells("-> UNKWN"), "for a moment nobody knew");
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(5, "RUN -> EXIT exit-code 5"));
    assert_once(&split.world, "a");
}

#[test]
fn a_controller_killed_after_the_cancel_carries_it_out_when_the_agent_is_back() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 6);
    split.agent.freeze();
    for _ in 0..3 {
        split.world.ok(&["cancel", &job.to_string()]);
    }
    let task = split.world.show(job);
    assert_eq!((&task["terminal"], &task["cancel_requested"]), (&false.into(), &true.into()));
    split.bounce_controller();
    assert_eq!(split.world.show(job)["cancel_requested"], true, "an intent is on record");
    split.agent.thaw();
    let task = split.world.wait_end(job);
    assert_eq!((&task["state"], &task["signal"]), (&"EXIT".into(), &15.into()), "{task:#}");
    assert_eq!(task["reason"]["kind"], "cancelled", "{task:#}");
    split.world.must_be_gone(job);
    assert_once(&split.world, "a");
}

#[test]
fn a_controller_killed_after_the_end_hears_of_it_from_the_journal() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 7);
    let pid = pid_of(&split.world, "a");
    // It ends and is journalled, and its agent cannot say so before the controller dies.
    split.agent.freeze();
    let_go(&split.world, "a");
    wait_until("the job has ended", SOON, || !alive(pid));
    split.controller.kill9();
    split.agent.thaw();
    split.controller_again();
    split.world.must_end(job, End::code(7, "-> EXIT exit-code 7"));
    assert_once(&split.world, "a");
}

#[test]
fn a_controller_killed_after_the_acknowledgement_tells_the_same_end_again() {
    let mut split = Split::start(world!(), Pace::QUICK);
    for (name, code) in [("a", 8), ("b", 0), ("c", 9)] {
        let job = running_job(&split.world, &[], name, code);
        let_go(&split.world, name);
        let ran = split.world.docket(&["wait", &job.to_string()]);
        // Nothing of the end may hang on what the controller does after it said it.
        split.controller.kill9();
        assert_eq!(ran.code.map(i64::from), Some(code), "{}", ran.describe());
        split.controller_again();
        let task = split.world.show(job);
        assert_eq!(task["exit_code"], code, "read your own write: {task:#}");
        assert_eq!(task["terminal"], true, "{task:#}");
        split.node_is_up();
        assert_eq!(split.world.show(job), task, "and what the agent says again is no news");
        assert_once(&split.world, name);
    }
}

#[test]
fn a_job_whose_controller_and_agent_died_together_is_lost_in_bounded_time() {
    let mut split = Split::start(world!(), Pace::FORGETFUL);
    let job = running_job(&split.world, &[], "a", 5);
    split.agent.kill9();
    split.controller.kill9();
    split.controller_again();
    // The agent never returns. The new leader knows nothing of a death: it was not there.
    split.world.must_end(job, End::without_code("lost", "UNKWN -> EXIT lost"));
    assert_once(&split.world, "a");
}

#[test]
fn two_restarts_of_the_controller_move_no_time_limit() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let limit = jiff::SignedDuration::from_secs(5);
    let job = running_job(&split.world, &["-t", "5s", "--kill-grace", "1s"], "a", 5);
    let before = split.world.show(job);
    split.bounce_controller();
    split.bounce_controller();
    let task = split.world.wait_end(job);
    for field in ["submit_time", "start_time", "attempt", "time_limit_ms"] {
        assert_eq!(task[field], before[field], "{field} after two restarts");
    }
    assert_eq!(task["reason"]["kind"], "time-limit", "{task:#}");
    let ran = time_of(&task, "finish_time").duration_since(time_of(&task, "start_time"));
    // Start and end are told by the wall clock, the limit is kept by another.
    let (early, late) = (limit - jiff::SignedDuration::from_millis(100), limit + limit);
    assert!(early <= ran && ran <= late, "it ran for {ran:?}");
    split.world.must_be_gone(job);
    assert_once(&split.world, "a");
}

#[test]
fn a_time_limit_that_passes_without_a_controller_is_kept_and_told_with_its_own_time() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let limit = jiff::SignedDuration::from_secs(2);
    let job = running_job(&split.world, &["-t", "2s", "--kill-grace", "1s"], "a", 5);
    let pid = pid_of(&split.world, "a");
    split.controller.kill9();
    split.world.must_be_gone(job);
    // Reaped, so its end is written down; whatever is decided about it from now on is decided late.
    wait_until("its end is written down", SOON, || !Path::new(&format!("/proc/{pid}")).exists());
    let back = jiff::Timestamp::now();
    split.controller_again();
    let task = split.world.wait_end(job);
    assert_eq!(task["reason"]["kind"], "time-limit", "{task:#}");
    let (start, finish) = (time_of(&task, "start_time"), time_of(&task, "finish_time"));
    let ran = finish.duration_since(start);
    assert!(ran >= limit - jiff::SignedDuration::from_millis(100), "it ran for {ran:?}");
    assert!(finish < back, "its own time, not that of the next controller: {task:#}");
    assert_once(&split.world, "a");
}

#[test]
fn a_controller_with_another_clusters_directory_gets_no_agent_and_kills_nothing() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 5);
    let pid = pid_of(&split.world, "a");
    split.controller.kill9();
    let (data, aside) = (split.world.dir().join("controller"), split.world.dir().join("aside"));
    std::fs::rename(&data, &aside).unwrap();
    split.controller_again();
    let status = split.agent.ended_within(SOON);
    assert!(!status.success(), "{status}");
    assert!(split.agent.printed().contains("belongs to cluster"), "{}", split.agent.printed());
    assert!(alive(pid), "nobody may kill a job that is not theirs");
    // The right one comes back, and so does the agent.
    split.controller.kill9();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&aside, &data).unwrap();
    split.controller_again();
    split.agent_again();
    split.world.wait_state(job, "RUN");
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(5, "RUN -> EXIT exit-code 5"));
    assert_once(&split.world, "a");
}

/// Agents, each a node of its own.
const AGENTS: usize = 20;

/// How long the leader stands still: longer than the heartbeat time-out; 60 s by hand with
/// `DOCKET_TEST_FREEZE=60`.
fn freeze_span() -> Duration {
    let seconds = std::env::var("DOCKET_TEST_FREEZE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(6))
}

fn twenty_agents(split: &Split) -> Vec<Daemon> {
    let world = &split.world;
    let agents: Vec<Daemon> =
        (0..AGENTS).map(|n| world.agent_unseen(split.address(), &format!("m{n}"), 1)).collect();
    wait_until("twenty nodes are up", SOON * 2, || up(world) == AGENTS);
    agents
}

/// Nodes that are up.
fn up(world: &World) -> usize {
    let out = world.ok(&["nodes", "-o", "json"]);
    let nodes: serde_json::Value = serde_json::from_str(&out).expect("nodes prints JSON");
    let nodes = nodes.as_array().expect("a list");
    nodes.iter().filter(|node| node["state"] == "up").count()
}

#[test]
fn a_leader_that_stood_still_ends_no_job_of_twenty_agents() {
    let mut split = Split::start(heavy_world!(), Pace::QUICK);
    let (status, _) = split.agent.terminate(SOON);
    assert!(status.success(), "{status}");
    let mut agents = twenty_agents(&split);
    let jobs: Vec<(String, u64)> = (0..AGENTS)
        .map(|n| (n.to_string(), waiting_job(&split.world, &[], &n.to_string(), 1 + n as i64)))
        .collect();
    jobs.iter().for_each(|(_, job)| drop(split.world.wait_state(*job, "RUN")));
    split.controller.freeze();
    let_pass(freeze_span(), "the agents wait", || {
        agents.iter_mut().for_each(Daemon::must_live);
        true
    });
    split.controller.thaw();
    wait_until("all nodes are up", SOON * 2, || up(&split.world) == AGENTS);
    for (name, job) in &jobs {
        let task = split.world.wait_state(*job, "RUN");
        assert_eq!(task["attempt"], 1, "{task:#}");
        assert!(alive(pid_of(&split.world, name)));
    }
    jobs.iter().for_each(|(name, _)| let_go(&split.world, name));
    for (n, (name, job)) in jobs.iter().enumerate() {
        let code = 1 + n as i64;
        split.world.must_end(*job, End::code(code, &format!("RUN -> EXIT exit-code {code}")));
        assert_once(&split.world, name);
    }
}

/// Copies what is in one directory into another, which is there.
fn copy_into(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([&from.join("."), to]).status();
    assert!(copied.is_ok_and(|status| status.success()), "cp -a");
}

/// Puts the copy in place of the directory: another directory, as a restore makes it.
fn restore(copy: &Path, data: &Path) {
    fs::remove_dir_all(data).and_then(|()| fs::create_dir(data)).expect("the newer one goes");
    copy_into(copy, data);
}

/// Puts everything back inside the very same directories, as a snapshot of the file system does.
fn roll_back(copy: &Path, data: &Path) {
    let inner = data.join("controller");
    for entry in fs::read_dir(&inner).expect("it has served") {
        let path = entry.expect("an entry").path();
        let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        gone.expect("the newer one goes");
    }
    copy_into(&copy.join("controller"), &inner);
}

/// Jobs behind a blocker when the copy is made; after it some ended and some run, and two more came.
fn put_back(split: &mut Split, put: fn(&Path, &Path)) {
    let all = ["-c", &Split::CPUS.to_string()];
    let known = running_job(&split.world, &all, "a", 5);
    // The one that needs the whole node comes last in the queue: else the node were kept for it.
    let last = [&all[..], &["--priority", "-1000"]].concat();
    let [ended, runs, waits] = [("b", &[][..], 6), ("c", &[], 7), ("d", &last, 8)]
        .map(|(name, options, code)| waiting_job(&split.world, options, name, code));
    let dir = split.world.dir().to_owned();
    let (data, copy) = (dir.join("controller"), dir.join("controller.older"));
    let stop = |split: &mut Split| {
        let (status, _) = split.controller.terminate(SOON);
        assert!(status.success(), "{status}");
    };
    stop(split);
    fs::create_dir(&copy).expect("room for a copy");
    copy_into(&data, &copy);
    split.controller_again();
    split.node_is_up();
    let_go(&split.world, "a");
    split.world.must_end(known, End::code(5, "RUN -> EXIT exit-code 5"));
    split.world.wait_state(runs, "RUN");
    let_go(&split.world, "b");
    split.world.must_end(ended, End::code(6, "RUN -> EXIT exit-code 6"));
    let forgotten = running_job(&split.world, &[], "e", 9);
    let_go(&split.world, "e");
    split.world.must_end(forgotten, End::code(9, "RUN -> EXIT exit-code 9"));
    let alive_still = running_job(&split.world, &[], "f", 10);

    stop(split);
    put(&copy, &data);
    split.controller_again();
    split.node_is_up();
    let world = &split.world;
    world.must_end(known, End::code(5, "-> EXIT exit-code 5"));
    world.must_end(ended, End::code(6, "-> EXIT exit-code 6"));
    world.wait_state(runs, "RUN");
    let told = world.ok(&["explain", &waits.to_string()]);
    assert!(told.contains("may have run already"), "{told}");
    for id in [forgotten, alive_still] {
        let shown = world.docket(&["show", &id.to_string()]);
        assert_ne!(shown.code, Some(0), "{}", shown.describe());
        assert!(!shown.err().contains("has ended"), "{}", shown.describe());
    }
    // Whoever wants to end it is told what it is and how.
    let refused = world.docket(&["cancel", &alive_still.to_string()]);
    assert_eq!(refused.code, Some(66), "{}", refused.describe());
    assert!(refused.err().contains("a stray: nothing here may end it"), "{}", refused.describe());
    assert!(alive(pid_of(world, "f")), "nobody may kill what this log forgot");
    let strays = world.ok(&["nodes", "--strays"]);
    assert!(strays.contains(&alive_still.to_string()), "{strays}");
    let nodes = world.ok(&["nodes", "-o", "json"]);
    assert!(nodes.contains("log is older than what it once acknowledged"), "{nodes}");
    let fresh = running_job(world, &[], "g", 11);
    assert!(fresh > alive_still + 1000, "{fresh} was given before");
    for (name, job, code) in [("c", runs, 7), ("g", fresh, 11)] {
        let_go(world, name);
        world.must_end(job, End::code(code, &format!("-> EXIT exit-code {code}")));
    }
    // The node is empty for the ledger now: nothing but the hold keeps it back.
    assert_eq!(world.show(waits)["state"], "PEND");
    let pid = pid_of(world, "f");
    let_go(world, "f");
    wait_until("the forgotten one ended by itself", SOON, || !alive(pid));
    world.ok(&["release", &waits.to_string()]);
    let_go(world, "d");
    world.must_end(waits, End::code(8, "RUN -> EXIT exit-code 8"));
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        assert_once(world, name);
    }
}

#[test]
fn a_controller_put_back_to_an_older_copy_gives_its_node_work_and_no_job_anothers_end() {
    let mut split = Split::start(world!(), Pace::QUICK);
    put_back(&mut split, restore);
    assert!(split.controller.printed().contains("is a COPY"), "{}", split.controller.printed());
    // It is at home now.
    split.bounce_controller();
    assert!(!split.controller.printed().contains("is a COPY"));
}

#[test]
fn a_controller_whose_file_system_was_rolled_back_runs_nothing_twice() {
    let mut split = Split::start(world!(), Pace::QUICK);
    put_back(&mut split, roll_back);
    assert!(!split.controller.printed().contains("is a COPY"));
}

#[test]
fn jobs_that_took_the_ids_of_living_strays_are_told_so_and_run_after_them() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let dir = split.world.dir().to_owned();
    let (data, copy) = (dir.join("controller"), dir.join("controller.older"));
    let known = running_job(&split.world, &[], "a", 5);
    let stop = |split: &mut Split| {
        let (status, _) = split.controller.terminate(SOON);
        assert!(status.success(), "{status}");
    };
    stop(&mut split);
    fs::create_dir(&copy).expect("room for a copy");
    copy_into(&data, &copy);
    split.controller_again();
    split.node_is_up();
    // An end after the copy shows later that more was acknowledged than it has.
    let_go(&split.world, "a");
    split.world.must_end(known, End::code(5, "RUN -> EXIT exit-code 5"));
    let strays = ["b", "c"].map(|name| running_job(&split.world, &[], name, 6));
    stop(&mut split);
    roll_back(&copy, &data);
    split.agent.freeze();
    split.controller_again();
    // Before the node is heard nobody knows better than to give the ids again.
    let [runs, cancelled] =
        [("d", 7), ("e", 8)].map(|(name, code)| waiting_job(&split.world, &[], name, code));
    assert_eq!([runs, cancelled], strays);
    split.agent.thaw();
    split.node_is_up();
    let world = &split.world;
    let told = world.ok(&["explain", &runs.to_string()]);
    assert!(told.contains("Another job that has its id still runs on n1"), "{told}");
    for job in [runs, cancelled] {
        world.ok(&["release", &job.to_string()]);
    }
    let told = world.ok(&["explain", &runs.to_string()]);
    assert!(told.contains(&format!("another job that has the id {runs} still runs")), "{told}");
    assert!(told.contains("docket nodes --strays"), "{told}");
    assert_eq!(world.show(runs)["substate"], "queued");
    // It never started: nobody has to be asked to end it, and the stray goes on.
    world.ok(&["cancel", &cancelled.to_string()]);
    assert_eq!(world.show(cancelled)["reason"]["kind"], "cancelled");
    assert!(alive(pid_of(world, "b")) && alive(pid_of(world, "c")));
    // Jobs behind it are not held up, and the stray's end is not taken for its.
    let other = running_job(world, &[], "f", 9);
    for name in ["f", "b", "d", "c"] {
        let_go(world, name);
    }
    world.must_end(other, End::code(9, "-> EXIT exit-code 9"));
    let task = world.wait_end(runs);
    assert_eq!((&task["exit_code"], &task["attempt"]), (&7.into(), &2.into()), "{task:#}");
    for name in ["a", "b", "c", "d", "f"] {
        assert_once(world, name);
    }
}
