//! Limits that the keeper holds by itself: wall time whatever the job and the keeper's own deaths do.

use std::time::Duration;

use proto::v1::keeper_request::Kind as Request;
use proto::v1::{FinishFact, KeeperLimit, KeeperSuspend, KillCause, WarnSignal};

use crate::runner::Test;
use crate::world::{Job, Mode, World, exited, modes, status_of, wait_for, wait_for_file};

pub const TESTS: &[Test] = &[
    ("a_time_limit_ends_a_job_once_whatever_it_does_about_it", whatever_it_does),
    ("a_keeper_that_dies_in_the_grace_of_a_time_limit_tells_it_once", dies_in_the_grace),
    ("a_grace_does_not_begin_again_with_each_keeper", grace_over_keepers),
    ("a_suspend_within_the_grace_changes_nothing", suspended_in_the_grace),
    ("a_time_limit_needs_no_client", without_client),
    ("a_limit_that_was_changed_holds_whichever_keeper_lives", changed_limit),
    ("a_warning_comes_once_to_whom_it_is_for", warned_once),
];

/// What is recorded is rounded to clock ticks of 10 ms at its begin.
const ROUNDING_MS: u64 = 30;

/// The recorded time from start to end.
fn ran_ms(finish: &FinishFact) -> u64 {
    finish.finish_wall_ms - finish.start.as_ref().unwrap().start_wall_ms
}

fn limited(job: u64, text: &str, limit_ms: u64, grace_ms: u64) -> Job {
    let mut job = Job::shell(job, text);
    job.spec.time_limit_ms = Some(limit_ms);
    job.spec.kill_grace_ms = Some(grace_ms);
    job
}

/// Says that it heard SIGTERM and goes on.
fn deaf(world: &World, job: u64, limit_ms: u64, grace_ms: u64) -> Job {
    let heard = world.open_path("heard").display().to_string();
    let text = format!("trap 'touch {heard}' TERM; while :; do sleep 0.05; done");
    limited(job, &text, limit_ms, grace_ms)
}

fn assert_time_limit_once(world: &mut World, job: &Job) -> FinishFact {
    let finish = world.finish_of(job);
    assert_eq!(finish.killed_for, KillCause::TimeLimit as i32, "{finish:?}");
    assert_eq!(finish.leftover, 0);
    let limit_ms = job.spec.time_limit_ms.unwrap();
    assert!(
        ran_ms(&finish) + ROUNDING_MS >= limit_ms,
        "{} ms, not before its time",
        ran_ms(&finish)
    );
    // All that is to come has come: the keeper answers behind it.
    world.pong();
    assert_eq!(world.finishes(job.attempt_ref()).len(), 1, "{}", world.log());
    assert!(world.job_processes().is_empty());
    finish
}

fn whatever_it_does() {
    for mode in modes() {
        let mut world = World::new(mode);
        let obeys = limited(1, "sleep 999", 300, 20_000);
        world.run(&obeys);
        let finish = assert_time_limit_once(&mut world, &obeys);
        assert_eq!(status_of(&finish), 15, "{mode:?}");

        let zero = limited(2, "trap 'exit 0' TERM; sleep 999 & wait", 300, 20_000);
        world.run(&zero);
        let finish = assert_time_limit_once(&mut world, &zero);
        assert_eq!(status_of(&finish), exited(0), "its own status is told beside the cause");

        let ignores = deaf(&world, 3, 300, 400);
        world.run(&ignores);
        let finish = assert_time_limit_once(&mut world, &ignores);
        assert_eq!(status_of(&finish), 9);
        assert!(world.open_path("heard").exists(), "SIGTERM comes first");
        assert!(
            ran_ms(&finish) + ROUNDING_MS >= 700,
            "{} ms: SIGKILL after the grace",
            ran_ms(&finish)
        );

        let short = limited(4, "exit 3", 20_000, 400);
        let finish = world.outcome(&short);
        assert_eq!((finish.killed_for, status_of(&finish)), (0, exited(3)), "in time");
    }
}

fn dies_in_the_grace() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = deaf(&world, 1, 300, 800);
        world.run(&job);
        world.start_of(&job);
        wait_for_file(&world.open_path("heard"));
        world.kill_keeper();
        world.connect();
        let finish = assert_time_limit_once(&mut world, &job);
        assert_eq!(status_of(&finish), 9, "{mode:?}");

        // And one that ends on the SIGTERM of a keeper which does not see it any more.
        let heard = world.open_path("heard-too");
        let text =
            format!("trap 'touch {}; sleep 0.3; exit 0' TERM; sleep 999 & wait", heard.display());
        let job = limited(2, &text, 300, 20_000);
        world.run(&job);
        world.start_of(&job);
        wait_for_file(&heard);
        world.kill_keeper();
        wait_for("its end", || world.job_processes().is_empty().then_some(()));
        world.connect();
        let finish = assert_time_limit_once(&mut world, &job);
        assert_eq!(status_of(&finish), exited(0));
    }
}

/// A keeper that dies more often than a grace is long must not keep a job from its end.
fn grace_over_keepers() {
    const GRACE_MS: u64 = 4_000;
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = deaf(&world, 1, 300, GRACE_MS);
        world.run(&job);
        world.start_of(&job);
        wait_for_file(&world.open_path("heard"));
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(GRACE_MS / 3));
            world.kill_keeper();
            world.connect();
        }
        let finish = assert_time_limit_once(&mut world, &job);
        let ran = ran_ms(&finish);
        // Begun anew with each keeper it were two thirds of a grace more.
        assert!(ran + ROUNDING_MS >= 300 + GRACE_MS, "{ran} ms");
        assert!(ran < 300 + GRACE_MS + GRACE_MS / 2, "{mode:?}: {ran} ms {}", world.log());
    }
}

fn suspended_in_the_grace() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = deaf(&world, 1, 300, 1_000);
        world.run(&job);
        world.start_of(&job);
        wait_for_file(&world.open_path("heard"));
        let order_id = world.order_id();
        let (attempt, token) = (Some(job.attempt_ref()), Some(job.token()));
        world.send(Request::Suspend(KeeperSuspend { order_id, attempt, token }));
        let finish = assert_time_limit_once(&mut world, &job);
        assert_eq!(status_of(&finish), 9, "{mode:?}");
        let suspended =
            |f: &proto::v1::Fact| matches!(f.kind, Some(proto::v1::fact::Kind::Suspended(_)));
        assert!(!world.facts.iter().any(suspended));
    }
}

fn without_client() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = limited(1, "sleep 999", 1_000, 20_000);
        world.run(&job);
        world.start_of(&job);
        world.disconnect();
        wait_for("its end", || world.job_processes().is_empty().then_some(()));
        std::thread::sleep(Duration::from_millis(500));
        world.connect();
        let finish = assert_time_limit_once(&mut world, &job);
        let told_ms = finish.finish_wall_ms;
        let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(told_ms + 450 <= now_ms.as_millis() as u64, "{mode:?}: told with its own time");
    }
}

fn order_limit(world: &mut World, job: &Job, time_limit_ms: Option<u64>) {
    let order_id = world.order_id();
    let (attempt, token) = (Some(job.attempt_ref()), Some(job.token()));
    world.send(Request::Limit(KeeperLimit { order_id, attempt, token, time_limit_ms }));
    world.pong();
}

/// Longer, lifted and shorter than what is over; and what a keeper was told the next one knows.
fn changed_limit() {
    for mode in modes() {
        let mut world = World::new(mode);
        let longer = limited(1, "sleep 1.2; exit 4", 600, 20_000);
        world.run(&longer);
        world.start_of(&longer);
        order_limit(&mut world, &longer, Some(60_000));
        world.kill_keeper();
        world.connect();
        let finish = world.finish_of(&longer);
        assert_eq!((finish.killed_for, status_of(&finish)), (0, exited(4)), "{mode:?}");

        let lifted = limited(2, "sleep 1.2; exit 5", 600, 20_000);
        world.run(&lifted);
        world.start_of(&lifted);
        order_limit(&mut world, &lifted, None);
        let finish = world.finish_of(&lifted);
        assert_eq!((finish.killed_for, status_of(&finish)), (0, exited(5)), "{mode:?}");

        let mut shorter = limited(3, "sleep 999", 600_000, 20_000);
        world.run(&shorter);
        world.start_of(&shorter);
        order_limit(&mut world, &shorter, Some(200));
        shorter.spec.time_limit_ms = Some(200);
        assert_time_limit_once(&mut world, &shorter);
    }
}

/// A script's own shell is passed over, unless the warning is for it alone.
fn warned_once() {
    for mode in modes() {
        for (number, main_only) in [(1, false), (2, true)] {
            let mut world = World::new(mode);
            let (main, child) = (world.open_path("main"), world.open_path("child"));
            let (main, child) = (main.display().to_string(), child.display().to_string());
            let text = format!(
                "trap 'echo . >> {main}' USR1\n\
                 sh -c \"trap 'echo . >> {child}' USR1; while :; do sleep 0.05; done\" &\n\
                 while :; do sleep 0.05; done"
            );
            let mut job = limited(number, "", 1_500, 300);
            job.spec.argv.clear();
            job.spec.script = Some(format!("#!/bin/sh\n{text}\n").into_bytes());
            job.spec.warn = Some(WarnSignal { signal: 10, before_ms: 900, main_only });
            world.run(&job);
            world.start_of(&job);
            let heard = if main_only { &main } else { &child };
            wait_for_file(std::path::Path::new(heard));
            world.kill_keeper();
            world.connect();
            world.finish_of(&job);
            let lines = |path: &str| std::fs::read_to_string(path).unwrap_or_default().len() / 2;
            let expected = if main_only { (1, 0) } else { (0, 1) };
            assert_eq!((lines(&main), lines(&child)), expected, "{mode:?} {}", world.log());
        }
    }
}
