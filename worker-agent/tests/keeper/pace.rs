//! Suspend and resume: told when the tree really stands still or goes on, whichever way it is
//! stopped, and over the death of the keeper.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use proto::v1::keeper_request::Kind as Request;
use proto::v1::{KeeperLater, KeeperResume, KeeperSuspend, KillCause, Phase, fact};

use crate::runner::Test;
use crate::world::{Job, Mode, World, exited, modes, own_program, status_of, wait_for};

pub const TESTS: &[Test] = &[
    ("a_suspended_tree_stands_still_and_goes_on_when_resumed", stands_still),
    ("a_tree_that_forks_all_the_time_is_stopped_whole", forking),
    ("a_parent_that_waits_for_the_exec_of_its_child_is_stopped", spawning),
    ("the_same_pace_ordered_again_is_no_second_fact", ordered_again),
    ("a_suspend_before_the_start_is_carried_out_at_the_start", before_start),
    ("a_suspended_job_outlives_its_keeper_and_is_resumed", outlives_keeper),
    ("a_suspended_job_is_killed_by_the_next_keeper", killed_by_the_next),
    ("a_keeper_that_dies_at_any_moment_of_a_suspend_loses_none", random_deaths),
    ("what_a_dead_keeper_stopped_by_signals_goes_on_when_its_slot_is_thawed", both_ways),
    ("a_suspended_job_hears_its_cancel_at_once", cancelled),
    ("a_suspended_job_that_dies_takes_its_tree_along", dies_suspended),
    ("a_pace_for_what_is_unknown_ended_or_another_attempt_is_noted", unknown),
    ("suspension_does_not_count_to_the_limit_whoever_dies", limit),
    ("what_cannot_be_stopped_is_named_and_not_told_as_suspended", unstoppable),
    ("a_pace_told_later_is_told_only_while_it_holds", later),
];

pub fn order(world: &mut World, job: &Job, suspend: bool) {
    let order_id = world.order_id();
    let (attempt, token) = (Some(job.attempt_ref()), Some(job.token()));
    world.send(match suspend {
        true => Request::Suspend(KeeperSuspend { order_id, attempt, token }),
        false => Request::Resume(KeeperResume { order_id, attempt, token }),
    });
}

/// Suspended (`true`) and resumed facts told of a job, each place of the journal once.
fn told(world: &World, job: &Job) -> Vec<bool> {
    let mut told = std::collections::BTreeMap::new();
    for fact in &world.facts {
        let (attempt, suspended) = match &fact.kind {
            Some(fact::Kind::Suspended(f)) => (f.attempt, true),
            Some(fact::Kind::Resumed(f)) => (f.attempt, false),
            _ => continue,
        };
        if attempt == Some(job.attempt_ref()) {
            told.insert(fact.seq, suspended);
        }
    }
    told.into_values().collect()
}

pub fn wait_told(world: &mut World, job: &Job, expected: &[bool]) {
    world.until("a pace", |world| (told(world, job).len() >= expected.len()).then_some(()));
    assert_eq!(told(world, job), expected);
}

/// Four processes that write all the time, in three sessions.
fn writers(world: &World) -> Job {
    let dir = world.open_path("w");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let loop_ = |n: u32| format!("while :; do echo x >> {}/{n}; done", dir.display());
    let mut job = Job::shell(
        1,
        &format!(
            "({}) & setsid sh -c '{}' & (setsid sh -c '({}) & exit 0'); {}",
            loop_(1),
            loop_(2),
            loop_(3),
            loop_(4)
        ),
    );
    job.spec.kill_grace_ms = Some(200);
    job
}

fn sizes(dir: &Path) -> Vec<u64> {
    let size = |n: u32| fs::metadata(dir.join(n.to_string())).map_or(0, |meta| meta.len());
    (1..=4).map(size).collect()
}

fn wait_all_write(dir: &Path) {
    let before = sizes(dir);
    wait_for("every process to write", || {
        sizes(dir).iter().zip(&before).all(|(now, then)| now > then).then_some(())
    });
}

fn assert_still(world: &mut World, dir: &Path) {
    let before = sizes(dir);
    std::thread::sleep(Duration::from_millis(60));
    world.pong();
    assert_eq!(sizes(dir), before, "{}", world.log());
}

fn stands_still() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = writers(&world);
        let dir = world.open_path("w");
        world.run(&job);
        wait_all_write(&dir);
        for round in 1..=3 {
            order(&mut world, &job, true);
            wait_told(&mut world, &job, &[[true, false]; 3].concat()[..2 * round - 1]);
            assert_still(&mut world, &dir);
            assert_eq!(world.phase_of(&job), Some(Phase::Suspended), "{mode:?}");
            order(&mut world, &job, false);
            wait_told(&mut world, &job, &[[true, false]; 3].concat()[..2 * round]);
            wait_all_write(&dir);
            assert_eq!(world.phase_of(&job), Some(Phase::Running));
        }
        world.kill(&job, KillCause::Cancel, 20_000, None);
        world.finish_of(&job);
        assert!(world.job_processes().is_empty());
    }
}

fn forking() {
    for mode in modes() {
        let mut world = World::new(mode);
        let file = world.open_path("forks");
        // Each process is born, writes, forks the next and is gone.
        let text = format!(
            "f() {{ echo x >> {}; (f &) ; }}; f; f; while :; do (exit 0); done",
            file.display()
        );
        let mut job = Job::shell(1, &text);
        job.spec.kill_grace_ms = Some(100);
        world.run(&job);
        wait_for("forks", || fs::metadata(&file).is_ok_and(|m| m.len() > 20).then_some(()));
        for round in 1..=5 {
            order(&mut world, &job, true);
            wait_told(&mut world, &job, &[[true, false]; 5].concat()[..2 * round - 1]);
            let before = fs::metadata(&file).unwrap().len();
            std::thread::sleep(Duration::from_millis(40));
            assert_eq!(fs::metadata(&file).unwrap().len(), before, "{mode:?} round {round}");
            order(&mut world, &job, false);
            wait_told(&mut world, &job, &[[true, false]; 5].concat()[..2 * round]);
        }
        world.kill(&job, KillCause::Cancel, 10, None);
        world.finish_of(&job);
    }
}

fn spawning() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let program = own_program().display().to_string();
        let mut job = Job::argv(1, &[&program, "spawn-loop"]);
        job.spec.kill_grace_ms = Some(100);
        world.run(&job);
        world.start_of(&job);
        for round in 1..=15 {
            order(&mut world, &job, true);
            wait_told(&mut world, &job, &[[true, false]; 15].concat()[..2 * round - 1]);
            order(&mut world, &job, false);
            wait_told(&mut world, &job, &[[true, false]; 15].concat()[..2 * round]);
        }
        world.kill(&job, KillCause::Cancel, 10, None);
        world.finish_of(&job);
    }
}

fn ordered_again() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = Job::argv(1, &["sleep", "999"]);
        world.run(&job);
        world.start_of(&job);
        order(&mut world, &job, false);
        order(&mut world, &job, true);
        order(&mut world, &job, true);
        wait_told(&mut world, &job, &[true]);
        order(&mut world, &job, true);
        world.pong();
        // In one turn: the last word counts, and the tree was suspended throughout.
        order(&mut world, &job, false);
        order(&mut world, &job, true);
        world.pong();
        wait_for("the suspension", || {
            (world.phase_of(&job) == Some(Phase::Suspended)).then_some(())
        });
        order(&mut world, &job, false);
        order(&mut world, &job, false);
        world.until("the resume", |world| (told(world, &job).last() == Some(&false)).then_some(()));
        world.pong();
        let told = told(&world, &job);
        assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "{told:?}");
        assert_eq!(world.phase_of(&job), Some(Phase::Running));
    }
}

fn before_start() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = Job::argv(1, &["sleep", "999"]);
        world.run(&job);
        order(&mut world, &job, true);
        wait_told(&mut world, &job, &[true]);
        let resumed = Job::argv(2, &["true"]);
        world.run(&resumed);
        order(&mut world, &resumed, true);
        order(&mut world, &resumed, false);
        assert_eq!(status_of(&world.finish_of(&resumed)), 0);
    }
}

fn outlives_keeper() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = writers(&world);
        let dir = world.open_path("w");
        world.run(&job);
        wait_all_write(&dir);
        order(&mut world, &job, true);
        wait_told(&mut world, &job, &[true]);
        for acked in [false, true] {
            if acked {
                world.ack_all();
                // Durable with the next write.
                world.outcome(&Job::shell(9, "exit 0"));
            }
            world.kill_keeper();
            world.connect();
            assert_eq!(world.phase_of(&job), Some(Phase::Suspended), "{mode:?} {}", world.log());
            assert_still(&mut world, &dir);
        }
        assert_eq!(told(&world, &job), [true], "told once");
        order(&mut world, &job, false);
        wait_told(&mut world, &job, &[true, false]);
        wait_all_write(&dir);
        assert_eq!(world.phase_of(&job), Some(Phase::Running));
    }
}

fn killed_by_the_next() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = Job::shell(1, "trap 'exit 33' TERM; while :; do sleep 0.05; done");
        world.run(&job);
        let pid = world.start_of(&job).pid;
        wait_for("the shell's trap", || catches_term(pid).then_some(()));
        order(&mut world, &job, true);
        wait_told(&mut world, &job, &[true]);
        world.kill_keeper();
        world.connect();
        world.kill(&job, KillCause::Cancel, 20_000, None);
        let finish = world.finish_of(&job);
        assert_eq!((status_of(&finish), finish.killed_for), (exited(33), 1), "{mode:?}");
        assert!(world.job_processes().is_empty());
        // The slot of a suspended job is nobody's birthplace.
        assert_eq!(status_of(&world.outcome(&Job::shell(2, "exit 5"))), exited(5));
    }
}

/// SIGTERM is 15: bit 14 of the mask.
fn catches_term(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & (1 << 14) != 0)
}

fn random_deaths() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = writers(&world);
        let dir = world.open_path("w");
        world.run(&job);
        wait_all_write(&dir);
        for round in 0..6u64 {
            let suspend = round % 2 == 0;
            order(&mut world, &job, suspend);
            std::thread::sleep(Duration::from_micros(500 * round));
            world.kill_keeper();
            world.connect();
            // Perhaps it was never read: the leader orders again what it does not see.
            order(&mut world, &job, suspend);
            wait_for("the phase", || {
                let wanted = if suspend { Phase::Suspended } else { Phase::Running };
                (world.phase_of(&job) == Some(wanted)).then_some(())
            });
            if suspend {
                assert_still(&mut world, &dir);
            } else {
                wait_all_write(&dir);
            }
        }
        wait_told(&mut world, &job, &[[true, false]; 3].concat());
    }
}

/// A keeper may have died while it stopped by signals what the next one freezes.
fn both_ways() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = writers(&world);
        let dir = world.open_path("w");
        world.run(&job);
        wait_all_write(&dir);
        order(&mut world, &job, true);
        wait_told(&mut world, &job, &[true]);
        world.kill_keeper();
        for pid in world.job_processes() {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        }
        world.connect();
        order(&mut world, &job, false);
        wait_told(&mut world, &job, &[true, false]);
        wait_all_write(&dir);
    }
}

fn cancelled() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = Job::shell(1, "trap 'exit 44' TERM; while :; do sleep 0.05; done");
        world.run(&job);
        let pid = world.start_of(&job).pid;
        wait_for("the shell's trap", || catches_term(pid).then_some(()));
        order(&mut world, &job, true);
        wait_told(&mut world, &job, &[true]);
        world.kill(&job, KillCause::Cancel, 30_000, None);
        let finish = world.finish_of(&job);
        assert_eq!(status_of(&finish), exited(44), "{mode:?}: it heard SIGTERM");
        assert_eq!(finish.killed_for, KillCause::Cancel as i32);
        // A cancel within the same turn as the suspend, whichever is first.
        for (id, cancel_first) in [(2, true), (3, false)] {
            let job = Job::argv(id, &["sleep", "999"]);
            world.run(&job);
            world.start_of(&job);
            if cancel_first {
                world.kill(&job, KillCause::Cancel, 30_000, None);
                order(&mut world, &job, true);
            } else {
                order(&mut world, &job, true);
                world.kill(&job, KillCause::Cancel, 30_000, None);
            }
            assert_eq!(status_of(&world.finish_of(&job)), 15);
        }
    }
}

fn dies_suspended() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = Job::shell(1, "sleep 999 & setsid sleep 999 & sleep 999");
        world.run(&job);
        let pid = world.start_of(&job).pid;
        order(&mut world, &job, true);
        wait_told(&mut world, &job, &[true]);
        crate::world::kill_pid(pid);
        let finish = world.finish_of(&job);
        assert_eq!((status_of(&finish), finish.leftover), (9, 0), "{mode:?}");
        assert!(world.job_processes().is_empty());
        assert_eq!(status_of(&world.outcome(&Job::shell(2, "exit 5"))), exited(5));
    }
}

fn unknown() {
    let mut world = World::new(Mode::Best);
    let job = Job::argv(1, &["sleep", "999"]);
    let ended = Job::argv(2, &["true"]);
    world.run(&job);
    world.start_of(&job);
    world.outcome(&ended);
    let mut other = job.clone();
    other.attempt = 2;
    for job in [&Job::argv(77, &["true"]), &ended, &other] {
        order(&mut world, job, true);
        order(&mut world, job, false);
        order(&mut world, job, true);
    }
    let noted = world.last_order_id();
    let manifest = world.manifest();
    assert_eq!(manifest.last_order, noted);
    assert_eq!(world.phase_of(&job), Some(Phase::Running));
    assert!(told(&world, &job).is_empty() && told(&world, &ended).is_empty());
}

fn limit() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let mut job = Job::argv(1, &["sleep", "999"]);
        job.spec.time_limit_ms = Some(3_000);
        world.run(&job);
        let start = world.start_of(&job);
        order(&mut world, &job, true);
        wait_told(&mut world, &job, &[true]);
        let since = std::time::Instant::now();
        world.kill_keeper();
        world.connect();
        std::thread::sleep(Duration::from_millis(3_200));
        assert_eq!(world.phase_of(&job), Some(Phase::Suspended), "{mode:?}");
        order(&mut world, &job, false);
        let suspended_ms = since.elapsed().as_millis() as u64;
        wait_told(&mut world, &job, &[true, false]);
        world.kill_keeper();
        world.connect();
        let finish = world.finish_of(&job);
        assert_eq!(finish.killed_for, KillCause::TimeLimit as i32);
        let ran_ms = finish.finish_wall_ms - start.start_wall_ms;
        assert!(ran_ms + 50 >= 3_000 + suspended_ms, "{ran_ms} with {suspended_ms} suspended");
    }
}

/// A process in a frozen cgroup of v1 takes no signal until it is thawed.
fn unstoppable() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let freezer = format!("/sys/fs/cgroup/freezer/keeper-pace-{}-{mode:?}", std::process::id());
        if fs::create_dir(&freezer).is_err() {
            return eprintln!("SKIPPED: no v1 freezer");
        }
        let ready = world.open_path("ready");
        let job = Job::shell(
            1,
            &format!(
                "sleep 999 & echo $! > {freezer}/cgroup.procs; \
                 echo FROZEN > {freezer}/freezer.state; echo $! > {}; sleep 999",
                ready.display()
            ),
        );
        world.run(&job);
        let pid = wait_for("the frozen process", || {
            let text = fs::read_to_string(&ready).ok()?;
            text.trim().parse::<u32>().ok()
        });
        order(&mut world, &job, true);
        world.until("its name", |world| {
            world.log().lines().any(|l| l.contains(&format!("{pid} (D)"))).then_some(())
        });
        assert!(told(&world, &job).is_empty(), "{mode:?}");
        assert_eq!(world.phase_of(&job), Some(Phase::Running));
        fs::write(format!("{freezer}/freezer.state"), "THAWED").unwrap();
        wait_told(&mut world, &job, &[true]);
        world.kill(&job, KillCause::Cancel, 20_000, None);
        world.finish_of(&job);
        wait_for("its cgroup's end", || fs::remove_dir(&freezer).ok());
    }
}

fn later() {
    let mut world = World::new(Mode::Best);
    let job = Job::argv(1, &["sleep", "999"]);
    world.run(&job);
    world.start_of(&job);
    order(&mut world, &job, true);
    wait_told(&mut world, &job, &[true]);
    let seq = world.facts.last().unwrap().seq;
    world.send(Request::Later(KeeperLater { seq }));
    wait_told(&mut world, &job, &[true, true]);
    order(&mut world, &job, false);
    wait_told(&mut world, &job, &[true, true, false]);
    world.send(Request::Later(KeeperLater { seq }));
    world.pong();
    world.kill_keeper();
    world.connect();
    assert_eq!(world.phase_of(&job), Some(Phase::Running));
    assert_eq!(told(&world, &job), [true, true, false]);
}
