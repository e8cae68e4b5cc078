//! Nobody misses an end while controller, agent or keeper are away (P3, P4), and none is invented.

use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;
use testsuite::heavy_world;
use testsuite::patience::{LATER, SOON, let_pass, wait_until};
use testsuite::world;
use testsuite::world::{Daemon, Role, World, alive};

/// Jobs that end with 0..19 while the controller is away.
const JOBS: usize = 20;

/// How long the controller stays away: 3 s in the gate, `DOCKET_TEST_OUTAGE` seconds by hand.
fn outage() -> Duration {
    let seconds = std::env::var("DOCKET_TEST_OUTAGE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

/// A job that says who it is, waits for the file `go`, and ends with `code`.
fn waiting_job(world: &World, options: &[&str], code: usize) -> u64 {
    let script = format!(
        "echo \"$$ $DOCKET_ATTEMPT\" >> started.{code}\n\
         while [ ! -e go ]; do sleep 0.05; done\n\
         echo end >> ended; exit {code}"
    );
    world.submit_sh(options, &script)
}

/// Pid and attempt of a waiting job, from its own mouth.
fn pid_and_attempt(world: &World, code: usize) -> (i32, String) {
    let line = world.first_line(&format!("started.{code}"));
    let (pid, attempt) = line.split_once(' ').expect("pid and attempt");
    (pid.parse().expect("a pid"), attempt.to_owned())
}

fn time(task: &Value, field: &str) -> Timestamp {
    let text = task[field].as_str().unwrap_or_else(|| panic!("no {field} in {task:#}"));
    text.parse().unwrap_or_else(|e| panic!("{field} {text}: {e}"))
}

/// Separate controller and agent that serve jobs of the calling user, root included.
fn split_world(world: &mut World) -> (String, Daemon, Daemon) {
    let address = World::free_address();
    world.talk_to(&address);
    world.be_quick();
    world.set("DOCKET_AGENT__ALLOW_ROOT_JOBS", "true");
    let controller = world.controller(&address);
    let agent = world.agent(&address, "n1", 32);
    (address, controller, agent)
}

fn start_twenty(world: &World) -> Vec<u64> {
    let jobs: Vec<u64> = (0..JOBS).map(|code| waiting_job(world, &[], code)).collect();
    for &job in &jobs {
        world.wait_state(job, "RUN");
    }
    (0..JOBS).for_each(|code| assert!(alive(pid_and_attempt(world, code).0)));
    jobs
}

fn assert_twenty_ends(world: &World, jobs: &[u64], went: Timestamp, ended: Timestamp) {
    for (code, &job) in jobs.iter().enumerate() {
        let task = world.wait_end(job);
        assert_eq!(task["exit_code"].as_u64(), Some(code as u64), "{task:#}");
        assert_eq!(task["attempt"], 1, "{task:#}");
        let finish = time(&task, "finish_time");
        assert!(went <= finish && finish <= ended, "{went} <= {finish} <= {ended}: {task:#}");
        assert!(time(&task, "start_time") <= went, "{task:#}");
    }
    assert_eq!(world.lines("ended").len(), JOBS, "each job ran to its end once");
}

/// Lets the twenty go while nobody is there to hear it; gives the times between which they ended.
fn end_twenty_unheard(world: &World) -> (Timestamp, Timestamp) {
    // Times are told in whole milliseconds: give the lower bound the same grain.
    let went = Timestamp::from_millisecond(Timestamp::now().as_millisecond()).expect("now fits");
    world.touch("go");
    wait_until("all twenty have ended", SOON, || {
        (0..JOBS).all(|code| !alive(pid_and_attempt(world, code).0))
    });
    let ended = Timestamp::now() + jiff::SignedDuration::from_millis(500);
    (went, ended)
}

#[test]
fn ends_while_the_controller_is_away_are_all_delivered() {
    let mut world = heavy_world!();
    let (address, mut controller, mut agent) = split_world(&mut world);
    let jobs = start_twenty(&world);
    controller.kill9();
    let (went, ended) = end_twenty_unheard(&world);
    let_pass(outage(), "the agent waits for its controller", || {
        agent.must_live();
        true
    });
    let _controller = world.controller(&address);
    assert_twenty_ends(&world, &jobs, went, ended);
}

#[test]
fn ends_while_the_embedded_node_is_away_are_all_delivered() {
    let mut world = heavy_world!();
    world.be_quick();
    let mut node = world.up(32);
    let jobs = start_twenty(&world);
    node.kill9();
    let (went, ended) = end_twenty_unheard(&world);
    let_pass(outage(), "the keeper lives on", || world.find(Role::Keeper).is_some());
    let _node = world.up(32);
    assert_twenty_ends(&world, &jobs, went, ended);
}

#[test]
fn short_jobs_keep_their_real_code_however_often_the_agent_dies() {
    let mut world = heavy_world!();
    let (address, _controller, mut agent) = split_world(&mut world);
    let script = "echo \"$DOCKET_JOB_ID\" >> ran; exit 0";
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.extend((0..8).map(|_| world.submit_sh(&["--on-disconnect", "unknown"], script)));
        agent.kill9();
        agent = world.agent_unseen(&address, "n1", 32);
    }
    for &job in &jobs {
        let task = world.wait_end(job);
        assert_eq!((&task["state"], &task["exit_code"]), (&"DONE".into(), &0.into()), "{task:#}");
        assert_eq!(task["attempt"], 1, "{task:#}");
    }
    let mut ran: Vec<u64> = world.lines("ran").iter().map(|id| id.parse().unwrap()).collect();
    ran.sort_unstable();
    assert_eq!(ran, jobs, "each ran once");
}

#[test]
fn a_job_that_nobody_can_vouch_for_is_lost_at_the_time_limit() {
    let mut world = heavy_world!();
    world.set("DOCKET_CONTROLLER__TRANSIENT_JOB_TIMEOUT", "2s");
    let (_address, _controller, mut agent) = split_world(&mut world);
    let job = waiting_job(&world, &["--on-disconnect", "unknown"], 8);
    world.wait_state(job, "RUN");
    agent.kill9();
    let task = world.wait_end(job);
    assert_eq!(task["reason"]["kind"], "lost", "{task:#}");
    assert_eq!(task["exit_code"], Value::Null, "{task:#}");
}

#[test]
fn the_guard_reads_the_status_of_a_job_whose_keeper_was_killed() {
    let mut world = heavy_world!();
    world.be_quick();
    let _node = world.up(4);
    for (round, code) in [42, 7, 0].into_iter().enumerate() {
        let job = waiting_job(&world, &[], code);
        world.wait_state(job, "RUN");
        let (pid, _) = pid_and_attempt(&world, code);
        world.kill_role(Role::Keeper);
        if round > 0 {
            // It ends while nobody but the guard is its parent, as far as a race can be won.
            world.touch("go");
        }
        wait_until("the guard has started a new keeper", SOON, || {
            world.find(Role::Keeper).is_some()
        });
        if round == 0 {
            assert!(alive(pid), "the job lives on");
            world.touch("go");
        }
        let task = world.wait_end(job);
        assert_eq!(task["exit_code"].as_u64(), Some(code as u64), "the real code: {task:#}");
        assert_eq!(task["attempt"], 1, "{task:#}");
        std::fs::remove_file(world.file("go")).unwrap();
    }
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0), "the new keeper takes orders");
}

#[test]
fn the_death_of_the_guard_alone_changes_nothing_for_a_job() {
    let mut world = world!();
    world.be_quick();
    let _node = world.up(4);
    let job = waiting_job(&world, &[], 13);
    world.wait_state(job, "RUN");
    world.kill_role(Role::Guard);
    assert!(alive(pid_and_attempt(&world, 13).0));
    world.touch("go");
    assert_eq!(world.wait_end(job)["exit_code"], 13);
}

#[test]
fn an_agent_that_starts_long_before_its_controller_joins_by_itself() {
    let mut world = world!();
    let address = World::free_address();
    world.talk_to(&address);
    world.be_quick();
    world.set("DOCKET_AGENT__ALLOW_ROOT_JOBS", "true");
    let mut agent = world.agent_unseen(&address, "n1", 2);
    let_pass(Duration::from_secs(2), "the agent waits", || {
        agent.must_live();
        true
    });
    let _controller = world.controller(&address);
    wait_until("the node is up", LATER, || world.node_state("n1").as_deref() == Some("up"));
    assert_eq!(world.docket(&["run", "--", "sh", "-c", "exit 3"]).code, Some(3));
}

#[test]
fn two_restarts_change_no_time_of_a_running_job() {
    let mut world = heavy_world!();
    world.be_quick();
    let mut node = world.up(2);
    let job = waiting_job(&world, &[], 5);
    let before = world.wait_state(job, "RUN");
    for _ in 0..2 {
        node.kill9();
        node = world.up(2);
        let after = world.wait_state(job, "RUN");
        for field in ["submit_time", "start_time", "attempt", "node"] {
            assert_eq!(after[field], before[field], "{field} after a restart");
        }
    }
    world.touch("go");
    assert_eq!(world.wait_end(job)["exit_code"], 5);
    assert_eq!(world.lines("started.5").len(), 1);
}
