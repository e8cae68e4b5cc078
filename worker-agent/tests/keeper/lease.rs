//! Leases: a leased tree lives until its fence, which only renewals move, and dies with its keeper.

use std::fs;
use std::time::{Duration, Instant};

use proto::v1::keeper_request::Kind as Request;
use proto::v1::{FinishFact, KeeperRenew, KeeperSuspend, KillCause, RefusedFact, finish_fact::End};
use rustix::process::{Pid, Signal, kill_process};

use crate::kill::resisting;
use crate::runner::Test;
use crate::world::{
    Job, Mode, World, boottime_ms, exited, is_alive, kill_pid, modes, status_of, wait_for,
    wait_for_file,
};

pub const TESTS: &[Test] = &[
    ("orders_for_an_earlier_attempt_do_not_touch_the_next", late_orders),
    ("a_leased_run_without_echo_or_past_its_fence_is_refused", refused),
    ("a_leased_tree_is_killed_at_its_fence_and_not_before", at_the_fence),
    ("renewals_move_a_fence_forward_and_never_back", renewed),
    ("a_fence_cuts_a_grace_and_a_suspension_short", cuts_short),
    ("a_leased_tree_dies_with_its_keeper_and_others_do_not", dies_with_keeper),
    ("a_keeper_that_stands_still_is_fenced_by_its_guard", fenced_by_guard),
    ("a_leased_job_that_ended_by_itself_keeps_its_own_end", own_end),
    ("the_next_attempt_is_refused_until_the_fenced_tree_is_gone", next_attempt),
    ("a_leased_tree_dies_with_its_directory", deleted),
    ("without_a_guard_nothing_leased_starts", no_guard),
];

pub fn leased(mut job: Job, fence_after_ms: u64) -> Job {
    job.fence_after_ms = Some(fence_after_ms);
    job.h_ms = Some(boottime_ms());
    job
}

fn refusal_of(world: &mut World, job: &Job) -> RefusedFact {
    let attempt = Some(job.attempt_ref());
    world.until("a refusal", |world| {
        world.facts.iter().find_map(|f| match &f.kind {
            Some(proto::v1::fact::Kind::Refused(refused)) if refused.attempt == attempt => {
                Some(refused.clone())
            }
            _ => None,
        })
    })
}

fn refused_for_its_lease(world: &mut World, job: &Job) {
    world.run(job);
    let failure = refusal_of(world, job).failure.unwrap();
    assert!(failure.step == "lease" && failure.node_fault, "{failure:?}");
}

fn fenced(finish: &FinishFact) {
    assert_eq!((status_of(finish), finish.killed_for), (9, KillCause::Lease as i32));
    assert_eq!(finish.leftover, 0);
}

fn refused() {
    let mut world = World::new(Mode::Best);
    let plain = Job::argv(1, &["sleep", "999"]);
    let without = Job { fence_after_ms: Some(60_000), ..plain.clone() };
    refused_for_its_lease(&mut world, &without);
    let past = Job {
        job: 2,
        fence_after_ms: Some(5_000),
        h_ms: Some(boottime_ms() - 5_001),
        ..plain.clone()
    };
    refused_for_its_lease(&mut world, &past);
    let future = Job { job: 3, h_ms: Some(boottime_ms() + 60_000), ..past };
    refused_for_its_lease(&mut world, &future);
    assert!(world.manifest().items.is_empty());
    let good = leased(Job::argv(4, &["true"]), 60_000);
    assert_eq!(status_of(&world.outcome(&good)), 0);
}

fn at_the_fence() {
    for mode in modes() {
        let mut world = World::new(mode);
        let mut job = leased(resisting(&world, "ready"), 3_000);
        job.spec.kill_grace_ms = Some(600_000);
        let fence = boottime_ms() + 3_000;
        let other = Job::argv(2, &["sleep", "999"]);
        world.run(&other);
        world.run(&job);
        wait_for_file(&world.open_path("ready"));
        let finish = world.finish_of(&job);
        let now = boottime_ms();
        fenced(&finish);
        assert!(now + 10 >= fence, "{mode:?}: killed {} ms early", fence - now);
        assert_eq!(world.job_processes().len(), 1, "{mode:?}: the one without lease");
        assert!(world.log().contains("reached its fence"), "the keeper did it, not its guard");
    }
}

fn renewed() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = leased(Job::argv(1, &["sleep", "999"]), 1_500);
        world.run(&job);
        let pid = world.start_of(&job).pid;
        let begun = Instant::now();
        let first = boottime_ms();
        let mut last = first;
        while begun.elapsed() < Duration::from_millis(4_000) {
            last = boottime_ms();
            world.send(Request::Renew(KeeperRenew { h_ms: last }));
            world.send(Request::Renew(KeeperRenew { h_ms: first }));
            world.send(Request::Renew(KeeperRenew { h_ms: last + 600_000 }));
            world.pump(Duration::from_millis(50));
            assert!(is_alive(pid), "{mode:?} {}", world.log());
        }
        fenced(&world.finish_of(&job));
        let over = boottime_ms();
        assert!(over + 10 >= last + 1_500 && over < last + 60_000, "{}", over - last);
    }
}

fn cuts_short() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let ready = world.open_path("ready");
        let text = format!("trap '' TERM; touch {}; while :; do sleep 1; done", ready.display());
        let cancelled = leased(Job::shell(1, &text), 3_000);
        world.run(&cancelled);
        wait_for_file(&ready);
        world.kill(&cancelled, KillCause::Cancel, 600_000, None);
        let suspended = leased(Job::argv(2, &["sleep", "999"]), 3_000);
        world.run(&suspended);
        world.start_of(&suspended);
        let order_id = world.order_id();
        let (attempt, token) = (Some(suspended.attempt_ref()), Some(suspended.token()));
        world.send(Request::Suspend(KeeperSuspend { order_id, attempt, token }));
        fenced(&world.finish_of(&suspended));
        let finish = world.finish_of(&cancelled);
        assert_eq!((status_of(&finish), finish.killed_for), (9, KillCause::Cancel as i32));
        assert!(world.job_processes().is_empty(), "{mode:?}");
    }
}

fn dies_with_keeper() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = leased(resisting(&world, "ready"), 600_000);
        let file = world.open_path("go").display().to_string();
        let text = format!("while [ ! -e {file} ]; do sleep 0.05; done; exit 42");
        let other = Job::shell(2, &text);
        world.run(&other);
        world.run(&job);
        let pid = world.start_of(&job).pid;
        let spared = world.start_of(&other).pid;
        wait_for_file(&world.open_path("ready"));
        // The second time right away, so that the guard pauses: no keeper helps it.
        world.kill_keeper();
        world.connect();
        fenced(&world.finish_of(&job));
        assert!(!is_alive(pid) && is_alive(spared), "{mode:?}");
        let again = leased(Job::shell(3, "trap '' TERM; sleep 999 & sleep 999"), 600_000);
        world.run(&again);
        let pid = world.start_of(&again).pid;
        world.kill_keeper();
        wait_for("its end without a keeper", || (!is_alive(pid)).then_some(()));
        world.connect();
        fenced(&world.finish_of(&again));
        fs::write(world.open_path("go"), "").unwrap();
        let finish = world.finish_of(&other);
        assert_eq!((status_of(&finish), finish.killed_for), (exited(42), 0), "{mode:?}");
        assert!(world.job_processes().is_empty());
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

fn fenced_by_guard() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = leased(resisting(&world, "ready"), 3_000);
        let other = Job::argv(2, &["sleep", "999"]);
        world.run(&other);
        world.run(&job);
        let pid = world.start_of(&job).pid;
        wait_for_file(&world.open_path("ready"));
        signal(world.welcome.pid, Signal::STOP);
        let fence = job.h_ms.unwrap() + 3_000;
        wait_for("the guard's fence", || (!is_alive(pid)).then_some(()));
        assert!(boottime_ms() + 10 >= fence + 1_000, "{mode:?}");
        wait_for("the whole tree", || (world.job_processes().len() == 1).then_some(()));
        signal(world.welcome.pid, Signal::CONT);
        fenced(&world.finish_of(&job));
        assert_eq!(world.manifest().items.iter().filter(|item| item.phase == 2).count(), 1);
    }
}

fn own_end() {
    for mode in modes() {
        let mut world = World::new(mode);
        let file = world.open_path("go").display().to_string();
        let text = format!("while [ ! -e {file} ]; do sleep 0.02; done; exit 7");
        let job = leased(Job::shell(1, &text), 600_000);
        world.run(&job);
        let pid = world.start_of(&job).pid;
        signal(world.welcome.pid, Signal::STOP);
        fs::write(world.open_path("go"), "").unwrap();
        wait_for("its end", || (!is_alive(pid)).then_some(()));
        world.kill_keeper();
        world.connect();
        let finish = world.finish_of(&job);
        assert_eq!((status_of(&finish), finish.killed_for), (exited(7), 0), "{mode:?}");
    }
}

/// Peer fault 8: what was meant for attempt 1 and came late finds attempt 2 and leaves it alone.
fn late_orders() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let first = Job::shell(1, "exit 5");
        assert_eq!(status_of(&world.outcome(&first)), exited(5));
        let file = world.open_path("go").display().to_string();
        let text = format!("while [ ! -e {file} ]; do sleep 0.02; done; exit 6");
        let second = Job { attempt: 2, ..Job::shell(1, &text) };
        world.run(&second);
        let pid = world.start_of(&second).pid;
        world.kill(&first, proto::v1::KillCause::Cancel, 0, None);
        world.kill(&first, proto::v1::KillCause::Fenced, 0, None);
        world.kill(&first, proto::v1::KillCause::Cancel, 0, Some(9));
        let order = world.pong().last_order;
        assert!(order >= 5, "they were noted: {order}");
        assert!(is_alive(pid), "{mode:?}");
        fs::write(world.open_path("go"), "").unwrap();
        let finish = world.finish_of(&second);
        assert_eq!((status_of(&finish), finish.killed_for), (exited(6), 0), "{mode:?}");
    }
}

fn next_attempt() {
    let mut world = World::new(Mode::Best);
    let job = leased(Job::argv(1, &["sleep", "999"]), 2_000);
    world.run(&job);
    world.start_of(&job);
    let next = Job { attempt: 2, ..leased(Job::argv(1, &["true"]), 60_000) };
    world.run(&next);
    assert_eq!(refusal_of(&mut world, &next).failure.unwrap().step, "previous-attempt");
    fenced(&world.finish_of(&job));
    let next = Job { attempt: 3, ..next };
    assert_eq!(status_of(&world.outcome(&next)), 0);
}

fn deleted() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = leased(Job::argv(1, &["sleep", "999"]), 600_000);
        let other = Job::argv(2, &["sleep", "999"]);
        world.run(&job);
        world.run(&other);
        let (pid, spared) = (world.start_of(&job).pid, world.start_of(&other).pid);
        fs::remove_dir_all(world.dir()).unwrap();
        wait_for("the leased tree's end", || (!is_alive(pid)).then_some(()));
        assert!(is_alive(spared), "{mode:?}");
        kill_pid(spared);
    }
}

fn no_guard() {
    let mut world = World::new(Mode::Best);
    let running = leased(Job::argv(1, &["sleep", "999"]), 3_000);
    world.run(&running);
    world.start_of(&running);
    kill_pid(world.guard_pid());
    wait_for("the keeper to notice", || world.log().contains("guard died").then_some(()));
    let job = leased(Job::argv(2, &["true"]), 60_000);
    refused_for_its_lease(&mut world, &job);
    fenced(&world.finish_of(&running));
    assert!(matches!(world.outcome(&Job::argv(3, &["true"])).end, Some(End::WaitStatus(0))));
}
