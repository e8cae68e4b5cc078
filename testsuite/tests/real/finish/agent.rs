//! The agent is killed, stopped or frozen: what its jobs become, how soon, and what comes back.

use super::{assert_once, let_go, pid_of, running_job, waiting_job};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::time::Duration;
use testsuite::patience::{SOON, let_pass, wait_until};
use testsuite::world::{End, Pace, Role, Split, alive, group_and_session};
use testsuite::{heavy_world, world};

/// Within this the death of an agent is on record.
const AT_ONCE: SignedDuration = SignedDuration::from_secs(1);

const DIED: End<'static> = End::without_code("agent-died", "RUN -> EXIT agent-died");

/// Options of a job that survives its agent.
const SURVIVES: [&str; 2] = ["--on-disconnect", "unknown"];

#[test]
fn a_job_whose_agent_is_killed_has_ended_within_a_second_and_its_tree_dies_at_the_return() {
    let mut split = Split::start(heavy_world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 42);
    let pid = pid_of(&split.world, "a");
    let killed = Timestamp::now();
    split.agent.kill9();
    split.world.must_end(job, DIED);
    let told = split.world.tale(job).when(DIED.line);
    assert!(told.duration_since(killed) <= AT_ONCE, "killed at {killed}, told at {told}");
    assert!(alive(pid), "nothing could reach it yet");
    split.agent_again();
    split.world.must_be_gone(job);
    // What its keeper tells changes nothing (P5), and is shown as late: docket itself killed it.
    let task = split.world.wait_job(job, "the late end is shown", |t| !t["late_outcome"].is_null());
    assert_eq!(task["late_outcome"]["signal"], 15, "{task:#}");
    let text = split.world.ok(&["show", &job.to_string()]);
    let text: Vec<&str> = text.split_whitespace().collect();
    let says = "killed by docket with all its processes: its node came back with it";
    assert!(text.join(" ").contains(says), "{text:?}");
    split.world.must_end(job, DIED);
    let tale = split.world.tale(job);
    assert!(tale.tells("still held attempt 1, which is over"), "{tale:#?}");
    assert!(tale.tells("nothing of attempt 1 lives there any more"), "{tale:#?}");
    assert_once(&split.world, "a");
    assert_eq!(split.world.docket(&["run", "--", "true"]).code, Some(0), "the node works on");
}

/// Who kills the group or the session of an agent, as a terminal or a service manager does, reaches
/// neither the keeper nor a job.
#[test]
fn nothing_that_keeps_a_job_is_in_the_group_or_session_of_its_agent() {
    let split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 42);
    let (group, session) = group_and_session(split.agent.pid()).expect("the agent lives");
    let keeping = [Role::Guard, Role::Keeper].map(|role| split.world.find(role).expect("it lives"));
    let jobs = split.world.processes_of(job);
    assert!(!jobs.is_empty());
    for process in keeping.iter().chain(&jobs) {
        let (its_group, its_session) = group_and_session(process.pid).expect("it lives");
        assert_ne!((its_group, its_session), (group, session), "{process:?}");
        assert!(its_group != group && its_session != session, "{process:?}");
    }
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(42, "RUN -> EXIT exit-code 42"));
}

#[test]
fn the_real_code_of_a_job_that_ended_without_its_agent_is_shown_as_late() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 42);
    let pid = pid_of(&split.world, "a");
    split.agent.kill9();
    split.world.must_end(job, DIED);
    let_go(&split.world, "a");
    wait_until("the job has ended", SOON, || !alive(pid));
    split.agent_again();
    let task = split.world.wait_job(job, "the late end is shown", |t| !t["late_outcome"].is_null());
    assert_eq!(task["late_outcome"]["kind"], "exit-code", "{task:#}");
    assert_eq!(task["late_outcome"]["code"], 42, "{task:#}");
    split.world.must_end(job, DIED);
    let tale = split.world.tale(job);
    assert!(tale.tells("told the real end, too late to count: exit-code 42"), "{tale:#?}");
    assert_once(&split.world, "a");
}

#[test]
fn a_job_that_may_be_unknown_is_so_within_a_second_and_comes_back_with_its_agent() {
    let mut split = Split::start(heavy_world!(), Pace::QUICK);
    let job = running_job(&split.world, &SURVIVES, "a", 42);
    let before = split.world.show(job);
    let killed = Timestamp::now();
    split.agent.kill9();
    let task = split.world.wait_state(job, "UNKWN");
    let told = split.world.tale(job).when("-> UNKWN");
    assert!(told.duration_since(killed) <= AT_ONCE, "killed at {killed}: {task:#}");
    assert_eq!((&task["terminal"], &task["transient"]), (&false.into(), &true.into()), "{task:#}");
    assert!(task["transient_since"].is_string(), "{task:#}");
    assert!(task["finish_time"].is_null() && task["exit_code"].is_null(), "{task:#}");
    split.agent_again();
    let after = split.world.wait_state(job, "RUN");
    for field in ["pid", "attempt", "start_time", "submit_time", "node"] {
        assert_eq!(after[field], before[field], "{field} of a job that never stopped");
    }
    assert!(after["transient_since"].is_null(), "{after:#}");
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(42, "RUN -> EXIT exit-code 42"));
    split.world.must_be_gone(job);
    assert_once(&split.world, "a");
}

#[test]
fn a_job_that_ends_while_its_agent_is_dead_has_its_own_code_and_time() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &SURVIVES, "a", 7);
    let pid = pid_of(&split.world, "a");
    split.agent.kill9();
    split.world.wait_state(job, "UNKWN");
    let_go(&split.world, "a");
    wait_until("the job has ended", SOON, || !alive(pid));
    let ended = Timestamp::now();
    let_pass(Duration::from_secs(1), "the end is known to nobody", || {
        split.world.find(testsuite::world::Role::Agent).is_none()
    });
    split.agent_again();
    let task = split.world.must_end(job, End::code(7, "UNKWN -> EXIT exit-code 7"));
    let finish = testsuite::world::time_of(&task, "finish_time");
    let slack = SignedDuration::from_millis(500);
    assert!(finish.duration_since(ended) <= slack, "its own time, not that of the news: {task:#}");
    assert_once(&split.world, "a");
}

#[test]
fn an_agent_that_is_stopped_in_order_ends_no_job_whatever_its_policy() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let jobs = [("a", &[][..]), ("b", &SURVIVES[..])]
        .map(|(name, options)| (name, running_job(&split.world, options, name, 9)));
    let (status, took) = split.agent.terminate(SOON);
    assert!(status.success() && took < Duration::from_secs(5), "{status} after {took:?}");
    for (name, job) in jobs {
        let task = split.world.wait_state(job, "UNKWN");
        assert_eq!(task["terminal"], false, "{task:#}");
        assert!(alive(pid_of(&split.world, name)), "{name} lives under its keeper");
    }
    split.agent_again();
    for (name, job) in jobs {
        split.world.wait_state(job, "RUN");
        let_go(&split.world, name);
        split.world.must_end(job, End::code(9, "RUN -> EXIT exit-code 9"));
        assert_once(&split.world, name);
    }
}

#[test]
fn a_frozen_agent_makes_its_jobs_unknown_and_goes_on_without_a_rejoin() {
    let split = Split::start(heavy_world!(), Pace::QUICK);
    let jobs = [("a", &[][..]), ("b", &SURVIVES[..])]
        .map(|(name, options)| (name, running_job(&split.world, options, name, 9)));
    let incarnation = split.incarnation();
    let frozen = Timestamp::now();
    split.agent.freeze();
    for (_, job) in jobs {
        let task = split.world.wait_state(job, "UNKWN");
        assert_eq!(task["terminal"], false, "silence ends nothing: {task:#}");
        let silent = split.world.tale(job).when("-> UNKWN").duration_since(frozen);
        // The last word may be one heartbeat old; P2 gives 2 s more.
        let bounds = SignedDuration::from_secs(3)..SignedDuration::from_secs(6 + 2);
        assert!(bounds.contains(&silent), "unknown after {silent:?}");
    }
    split.agent.thaw();
    for (name, job) in jobs {
        let task = split.world.wait_state(job, "RUN");
        assert_eq!(task["transient_since"], Value::Null, "{task:#}");
        assert_eq!(split.incarnation(), incarnation, "the session went on");
        let_go(&split.world, name);
        split.world.must_end(job, End::code(9, "RUN -> EXIT exit-code 9"));
        assert!(!split.world.tale(job).tells("agent-died"), "nobody died");
        assert_once(&split.world, name);
    }
}

#[test]
fn a_frozen_agent_gets_no_new_job_and_the_one_it_was_given_runs_once() {
    let split = Split::start(world!(), Pace::QUICK);
    split.agent.freeze();
    // Assigned before anybody can know that the agent stands still.
    let first = waiting_job(&split.world, &[], "a", 3);
    split.world.wait_job(first, "it is assigned", |task| task["substate"] == "dispatched");
    split.world.wait_state(first, "UNKWN");
    let second = waiting_job(&split.world, &[], "b", 4);
    let_pass(Duration::from_secs(1), "the silent node is given nothing", || {
        split.world.show(second)["substate"] == "queued"
    });
    split.agent.thaw();
    for (name, job, code) in [("a", first, 3), ("b", second, 4)] {
        let_go(&split.world, name);
        split.world.must_end(job, End::code(code, &format!("-> EXIT exit-code {code}")));
        assert_once(&split.world, name);
    }
}

#[test]
fn a_frozen_agent_that_never_wakes_loses_its_job_at_the_time_limit_and_no_sooner() {
    let split = Split::start(world!(), Pace::FORGETFUL);
    let job = running_job(&split.world, &[], "a", 5);
    let pid = pid_of(&split.world, "a");
    split.agent.freeze();
    split.world.must_end(job, End::without_code("lost", "UNKWN -> EXIT lost"));
    let tale = split.world.tale(job);
    let unknown = tale.when("-> EXIT lost").duration_since(tale.when("-> UNKWN"));
    assert!(unknown >= SignedDuration::from_secs(3), "unknown for {unknown:?}");
    assert!(alive(pid));
    split.agent.thaw();
    split.world.must_be_gone(job);
    let task = split.world.wait_job(job, "the late end is shown", |t| !t["late_outcome"].is_null());
    assert_eq!(task["late_outcome"]["signal"], 15, "{task:#}");
    split.world.must_end(job, End::without_code("lost", "UNKWN -> EXIT lost"));
    assert_once(&split.world, "a");
}
