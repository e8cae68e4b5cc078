//! Single messages are lost, doubled or late, by a relay that speaks the protocol.

use super::{assert_once, let_go, running_job, waiting_job};
use jiff::SignedDuration;
use std::time::Duration;
use testsuite::patience::{SOON, let_pass, wait_until};
use testsuite::world;
use testsuite::world::{End, Pace, Relay, Rule, Split, Way, World, time_of};

/// Jobs of a test, with exit codes from 0.
const JOBS: i64 = 10;

fn behind_relay(world: World, pace: Pace) -> (Relay, Split) {
    let address = World::free_address();
    let relay = Relay::start(&address);
    let split = Split::start_at(world, pace, &address, relay.address());
    (relay, split)
}

/// Where a job of that code ends.
fn end_of(code: i64) -> (String, &'static str) {
    match code {
        0 => ("-> DONE exit-code 0".to_owned(), "DONE"),
        _ => (format!("-> EXIT exit-code {code}"), "EXIT"),
    }
}

fn assert_ends(world: &World, jobs: &[u64]) {
    for (code, &job) in (0..).zip(jobs) {
        let (line, state) = end_of(code);
        let end = End { state, reason: "exit-code", code: Some(code), line: &line };
        world.must_end(job, end);
        assert_eq!(world.tale(job).count("ended: "), 1, "one end took effect");
        assert_once(world, &code.to_string());
    }
}

fn start_jobs(world: &World) -> Vec<u64> {
    (0..JOBS).map(|code| waiting_job(world, &[], &code.to_string(), code)).collect()
}

#[test]
fn every_fact_whose_answer_is_lost_is_said_again_and_counts_once() {
    let (relay, split) = behind_relay(world!(), Pace::QUICK);
    relay.set(Rule::LosesFirstAnswers);
    let jobs = start_jobs(&split.world);
    (0..JOBS).for_each(|code| let_go(&split.world, &code.to_string()));
    assert_ends(&split.world, &jobs);
    assert!(relay.answers_lost() > 0, "answers were lost");
    wait_until("each end was said at least twice", SOON, || {
        jobs.iter().all(|&job| relay.finishes_of(job) >= 2)
    });
    assert_ends(&split.world, &jobs);
    assert_eq!(split.world.docket(&["wait", &jobs[0].to_string()]).code, Some(0));
}

#[test]
fn facts_that_come_twice_and_again_after_the_end_change_nothing() {
    let (relay, mut split) = behind_relay(world!(), Pace::QUICK);
    relay.set(Rule::Twice);
    let jobs = start_jobs(&split.world);
    (0..JOBS).for_each(|code| let_go(&split.world, &code.to_string()));
    assert_ends(&split.world, &jobs);
    let told: Vec<_> =
        jobs.iter().map(|&job| (split.world.show(job), split.world.tale(job))).collect();
    // A running job beside them must not be touched by what is said of others either.
    let running = running_job(&split.world, &[], "live", 11);
    relay.say_again();
    relay.say_again();
    split.bounce_controller();
    split.node_is_up();
    split.world.wait_state(running, "RUN");
    relay.say_again();
    let_go(&split.world, "live");
    split.world.must_end(running, End::code(11, "RUN -> EXIT exit-code 11"));
    for (&job, told) in jobs.iter().zip(&told) {
        assert_eq!((split.world.show(job), split.world.tale(job)), *told, "job {job} is as it was");
    }
    assert_once(&split.world, "live");
}

#[test]
fn facts_that_come_late_keep_their_own_times_and_order() {
    const LATE: Duration = Duration::from_millis(700);
    let (relay, split) = behind_relay(world!(), Pace::QUICK);
    relay.set(Rule::Late(LATE));
    // It is over before its start is heard.
    let fast = split.world.submit_sh(&[], "echo $$ >> started.fast; exit 12");
    let task = split.world.must_end(fast, End::code(12, "-> EXIT exit-code 12"));
    let ran = time_of(&task, "finish_time").duration_since(time_of(&task, "start_time"));
    assert!(ran < SignedDuration::try_from(LATE).unwrap(), "its own times: {task:#}");
    assert_once(&split.world, "fast");
    let slow = running_job(&split.world, &[], "slow", 13);
    let_go(&split.world, "slow");
    let task = split.world.must_end(slow, End::code(13, "RUN -> EXIT exit-code 13"));
    let heard = split.world.tale(slow).when("RUN -> EXIT");
    let late = heard.duration_since(time_of(&task, "finish_time"));
    assert!(late >= SignedDuration::from_millis(600), "it was heard {late:?} after it: {task:#}");
}

#[test]
fn a_line_that_is_silent_beyond_the_time_limit_loses_jobs_and_their_ends_are_late() {
    let (relay, split) = behind_relay(world!(), Pace::FORGETFUL);
    let ends = running_job(&split.world, &[], "ends", 14);
    let goes_on = running_job(&split.world, &[], "goes_on", 15);
    relay.set(Rule::Silent);
    let_go(&split.world, "ends");
    let lost = End::without_code("lost", "UNKWN -> EXIT lost");
    [ends, goes_on].into_iter().for_each(|job| drop(split.world.must_end(job, lost)));
    relay.set(Rule::Open);
    for (job, field, value) in [(ends, "code", 14), (goes_on, "signal", 15)] {
        let shown = "the late end is shown";
        let task = split.world.wait_job(job, shown, |t| !t["late_outcome"].is_null());
        assert_eq!(task["late_outcome"][field], value, "{task:#}");
        split.world.must_end(job, lost);
        split.world.must_be_gone(job);
    }
    ["ends", "goes_on"].into_iter().for_each(|name| assert_once(&split.world, name));
}

#[test]
fn a_line_that_stutters_ends_no_job() {
    let (relay, split) = behind_relay(world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 16);
    for _ in 0..5 {
        relay.set(Rule::Silent);
        let before = relay.messages(Way::Up);
        let_pass(Duration::from_millis(600), "nothing passes", || {
            relay.messages(Way::Up) <= before + 1
        });
        relay.set(Rule::Open);
        wait_until("words pass again", SOON, || relay.messages(Way::Up) > before + 1);
    }
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(16, "RUN -> EXIT exit-code 16"));
    assert!(!split.world.tale(job).tells("UNKWN"), "{:#?}", split.world.tale(job));
}

#[test]
fn a_line_that_flaps_about_the_heartbeat_time_out_leaves_each_job_with_one_attempt() {
    let pace = Pace {
        heartbeat: Duration::from_millis(300),
        silence: Duration::from_secs(1),
        ..Pace::QUICK
    };
    let (relay, split) = behind_relay(world!(), pace);
    let jobs = start_jobs(&split.world);
    jobs.iter().for_each(|&job| drop(split.world.wait_state(job, "RUN")));
    for n in 0..8 {
        relay.set(Rule::Silent);
        // Just under, just over.
        let_pass(Duration::from_millis(700 + 100 * (n % 7)), "nothing passes", || true);
        relay.set(Rule::Open);
        let_pass(Duration::from_millis(300), "words pass", || true);
    }
    (0..JOBS).for_each(|code| let_go(&split.world, &code.to_string()));
    assert_ends(&split.world, &jobs);
    let unknown = jobs.iter().filter(|&&job| split.world.tale(job).tells("UNKWN")).count();
    assert!(unknown > 0, "some of it was noticed");
}
