//! The keeper's program is replaced under its jobs: they stay its children with their pids, attempts
//! and exit codes; a program that cannot take over leaves the old one serving.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proto::v1::keeper_request::Kind as Request;
use proto::v1::{KeeperUpgrade, KillCause, Phase, finish_fact::End};
use rustix::process::{Pid, Signal, kill_process};

use crate::crash::waiting;
use crate::kill::Hung;
use crate::lease::leased;
use crate::pace::{order, wait_told};
use crate::program::{self, Fault};
use crate::runner::Test;
use crate::world::{
    Job, Mode, World, exited, is_alive, kill_pid, modes, status_of, wait_for, wait_for_file,
};

pub const TESTS: &[Test] = &[
    ("a_newer_program_takes_over_under_running_jobs", takes_over),
    ("a_keeper_that_was_replaced_and_dies_comes_back_as_the_newer_program", dies_after),
    ("an_older_keepers_adopted_jobs_are_taken_over_too", adopted_before),
    ("a_grace_goes_on_over_an_upgrade_and_no_second_sigterm_is_sent", grace_goes_on),
    ("a_lease_and_a_suspension_go_on_over_an_upgrade", lease_and_pace),
    ("orphans_are_reaped_and_steal_no_status_after_an_upgrade", orphans),
    ("what_cannot_take_over_leaves_the_keeper_serving", refused),
    ("a_program_that_cannot_be_executed_leaves_the_keeper_serving", not_executable),
    ("a_program_that_dies_when_it_takes_over_loses_no_job", dies_at_once),
    ("a_start_that_hangs_puts_an_upgrade_off", hung_start),
    ("unacknowledged_ends_and_acknowledgements_cross_an_upgrade", facts_cross),
];

const NEWER: &str = "99.1.0";

fn ask(world: &mut World, program: &Path) {
    let exe = program.as_os_str().as_bytes().to_vec();
    world.send(Request::Upgrade(KeeperUpgrade { exe }));
}

/// Asks, and becomes the client of the newer program.
fn upgrade(world: &mut World, program: &Path) {
    let pid = world.welcome.pid;
    ask(world, program);
    serves(world, NEWER);
    assert_eq!(world.welcome.pid, pid, "the same process: {}", world.log());
}

fn serves(world: &mut World, version: &str) {
    wait_for("a keeper of that version", || {
        world.connect();
        (world.welcome.version == version).then_some(())
    });
}

/// Asks, and waits for the reason against it.
fn refusal(world: &mut World, program: &Path) -> String {
    let before = world.problems().len();
    ask(world, program);
    world.until("a refusal", |world| world.problems().get(before).cloned())
}

fn go(world: &World) {
    fs::write(world.open_path("go"), "").unwrap();
}

fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn out(world: &World, job: &Job) -> String {
    fs::read_to_string(world.run_file(job, ".out")).unwrap_or_default()
}

fn takes_over() {
    for mode in modes() {
        let mut world = World::new(mode);
        let surroundings = Job::shell(50, "ulimit -Sn; ls /proc/$$/fd; umask");
        world.outcome(&surroundings);
        let jobs: Vec<Job> = (1..=5).map(|n| waiting(&world, n, 40 + n as u32)).collect();
        let pids: Vec<u32> = jobs
            .iter()
            .map(|job| {
                world.run(job);
                world.start_of(job).pid
            })
            .collect();
        let (old, guard, held) =
            (world.welcome.clone(), world.guard_pid(), descriptors(world.welcome.pid));
        let newer = program::copy(&world, NEWER, Fault::None);
        upgrade(&mut world, &newer);
        assert_eq!(world.welcome.journal_id, old.journal_id);
        assert_eq!(world.guard_pid(), guard);
        assert_eq!(fs::read_link(format!("/proc/{}/exe", old.pid)).unwrap(), newer);
        assert!(descriptors(old.pid) <= held + 1, "nothing leaks into the newer program");
        let items = world.manifest().items;
        let running: Vec<_> =
            items.iter().filter(|i| i.phase() == Phase::Running).map(|i| i.pid).collect();
        assert_eq!(running, pids);
        assert!(pids.iter().all(|pid| parent_of(*pid) == old.pid), "children stay children");
        let again = Job { job: 51, ..surroundings.clone() };
        assert_eq!(status_of(&world.outcome(&again)), 0);
        assert_eq!(out(&world, &again), out(&world, &surroundings), "{mode:?}");
        world.kill(&jobs[0], KillCause::Cancel, 20_000, None);
        assert_eq!(world.finish_of(&jobs[0]).killed_for, KillCause::Cancel as i32);
        go(&world);
        for job in &jobs[1..] {
            let finish = world.finish_of(job);
            assert_eq!(status_of(&finish), exited(40 + job.job as u32), "{}", world.log());
            assert!(finish.rusage.is_some() && finish.leftover == 0);
            assert_eq!(world.finishes(job.attempt_ref()).len(), 1);
        }
        assert!(world.job_processes().is_empty(), "{mode:?}");
    }
}

fn dies_after() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = waiting(&world, 1, 17);
        world.run(&job);
        let start = world.start_of(&job);
        let newer = program::copy(&world, NEWER, Fault::None);
        upgrade(&mut world, &newer);
        let later = Job { job: 2, ..waiting(&world, 2, 18) };
        world.run(&later);
        world.start_of(&later);
        // What stands under its name by now was never checked.
        fs::remove_file(&newer).unwrap();
        let pid = world.welcome.pid;
        world.kill_keeper();
        world.connect();
        assert_ne!(world.welcome.pid, pid);
        assert_eq!(world.welcome.version, NEWER, "{}", world.log());
        assert!(is_alive(start.pid));
        go(&world);
        assert_eq!(status_of(&world.finish_of(&job)), exited(17));
        assert_eq!(status_of(&world.finish_of(&later)), exited(18));
    }
}

fn adopted_before() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = waiting(&world, 1, 21);
        world.run(&job);
        let start = world.start_of(&job);
        world.kill_keeper();
        world.connect();
        let newer = program::copy(&world, NEWER, Fault::None);
        upgrade(&mut world, &newer);
        assert_eq!(parent_of(start.pid), world.guard_pid());
        go(&world);
        assert_eq!(status_of(&world.finish_of(&job)), exited(21), "{mode:?} {}", world.log());
    }
}

fn grace_goes_on() {
    for mode in modes() {
        let mut world = World::new(mode);
        let file = world.open_path("heard");
        let (ready, heard) = (world.open_path("ready"), file.display());
        let text = format!(
            "trap 'echo x >> {heard}' TERM; touch {}; while :; do sleep 0.05; done",
            ready.display()
        );
        let job = Job::shell(1, &text);
        world.run(&job);
        world.start_of(&job);
        wait_for_file(&ready);
        world.kill(&job, KillCause::Cancel, 4_000, None);
        wait_for_file(&file);
        let newer = program::copy(&world, NEWER, Fault::None);
        upgrade(&mut world, &newer);
        let finish = world.finish_of(&job);
        assert_eq!((status_of(&finish), finish.killed_for), (9, KillCause::Cancel as i32));
        assert_eq!(fs::read_to_string(&file).unwrap(), "x\n", "{mode:?}: one SIGTERM");
        assert!(world.job_processes().is_empty(), "{mode:?}");
    }
}

fn lease_and_pace() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let suspended = waiting(&world, 1, 5);
        world.run(&suspended);
        world.start_of(&suspended);
        order(&mut world, &suspended, true);
        wait_told(&mut world, &suspended, &[true]);
        let short = leased(Job::argv(2, &["sleep", "999"]), 6_000);
        let long = leased(waiting(&world, 3, 6), 600_000);
        for job in [&short, &long] {
            world.run(job);
            world.start_of(job);
        }
        let newer = program::copy(&world, NEWER, Fault::None);
        upgrade(&mut world, &newer);
        assert_eq!(world.phase_of(&short), Some(Phase::Running), "not with its older program");
        assert_eq!(world.phase_of(&suspended), Some(Phase::Suspended));
        let finish = world.finish_of(&short);
        assert_eq!((status_of(&finish), finish.killed_for), (9, KillCause::Lease as i32));
        let lived = finish.finish_wall_ms - finish.start.unwrap().start_wall_ms;
        assert!(lived >= 5_000, "{mode:?}: its fence was the old one, not {lived} ms");
        go(&world);
        assert_eq!(status_of(&world.finish_of(&long)), exited(6));
        assert_eq!(world.phase_of(&suspended), Some(Phase::Suspended), "{mode:?}");
        order(&mut world, &suspended, false);
        assert_eq!(status_of(&world.finish_of(&suspended)), exited(5));
    }
}

fn orphans() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let file = world.open_path("go").display().to_string();
        let text = format!(
            "while [ ! -e {file} ]; do sleep 0.05; done; \
             i=0; while [ $i -lt 100 ]; do (true &); i=$((i+1)); done; exit 5"
        );
        let jobs: Vec<Job> = (1..=10).map(|n| Job::shell(n, &text)).collect();
        for job in &jobs {
            world.run(job);
            world.start_of(job);
        }
        let newer = program::copy(&world, NEWER, Fault::None);
        upgrade(&mut world, &newer);
        go(&world);
        for job in &jobs {
            assert_eq!(status_of(&world.finish_of(job)), exited(5), "{mode:?} {}", world.log());
        }
        let keeper = world.welcome.pid;
        wait_for("no child of the keeper", || {
            let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
            children.unwrap_or_default().trim().is_empty().then_some(())
        });
    }
}

fn refused() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = waiting(&world, 1, 3);
        world.run(&job);
        world.start_of(&job);
        let text = world.open_path("text");
        fs::write(&text, "echo no").unwrap();
        fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
        let fifo = world.open_path("fifo");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, 0o777.into(), 0).unwrap();
        let old = world.welcome.clone();
        let none = world.open_path("none");
        let wrong = [
            none.as_path(),
            &world.dir().clone(),
            &text,
            &fifo,
            Path::new("/bin/true"),
            Path::new("/bin/false"),
            Path::new("docket"),
        ]
        .map(Path::to_owned);
        for program in wrong {
            let why = refusal(&mut world, &program);
            assert!(why.contains(&program.display().to_string()), "{why}");
            assert!(why.contains("cannot take over"), "{why}");
            assert_eq!(world.pong().live, 1, "it serves on");
        }
        world.connect();
        assert_eq!((world.welcome.pid, &world.welcome.version), (old.pid, &old.version));
        go(&world);
        assert_eq!(status_of(&world.finish_of(&job)), exited(3), "{mode:?}");
    }
}

fn not_executable() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = waiting(&world, 1, 4);
        world.run(&job);
        let start = world.start_of(&job);
        let old = world.welcome.clone();
        let newer = program::copy(&world, NEWER, Fault::NotExecutable);
        let why = refusal(&mut world, &newer);
        assert!(why.contains("cannot be executed"), "{mode:?}: {why}");
        let limits = Job::shell(2, "ulimit -Sn; ls /proc/$$/fd");
        assert_eq!(status_of(&world.outcome(&limits)), 0);
        assert!(out(&world, &limits).ends_with("\n0\n1\n2\n"), "{}", out(&world, &limits));
        world.connect();
        assert_eq!((world.welcome.pid, &world.welcome.version), (old.pid, &old.version));
        assert_eq!(parent_of(start.pid), old.pid);
        go(&world);
        assert_eq!(status_of(&world.finish_of(&job)), exited(4), "{mode:?}");
    }
}

fn dies_at_once() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = waiting(&world, 1, 6);
        world.run(&job);
        let start = world.start_of(&job);
        let old = world.welcome.clone();
        let newer = program::copy(&world, NEWER, Fault::DiesAtOnce);
        ask(&mut world, &newer);
        wait_for("the end of that process", || (!is_alive(old.pid)).then_some(()));
        world.connect();
        assert_eq!(world.welcome.version, old.version, "the guard starts what served before");
        assert!(is_alive(start.pid));
        go(&world);
        assert_eq!(status_of(&world.finish_of(&job)), exited(6), "{mode:?} {}", world.log());
    }
}

fn hung_start() {
    let mut world = World::new(Mode::Best);
    let Some(hung) = Hung::mount(world.open_path("hung")) else {
        return println!("skipped: no FUSE file system can be mounted here");
    };
    let mut job = Job::argv(1, &["true"]);
    job.spec.dir = hung.at.as_os_str().as_bytes().to_vec();
    let newer = program::copy(&world, NEWER, Fault::None);
    // Both are read in one turn: the check passes, and the start behind it hangs.
    let keeper = Pid::from_raw(world.welcome.pid as i32).unwrap();
    kill_process(keeper, Signal::STOP).unwrap();
    ask(&mut world, &newer);
    world.run(&job);
    kill_process(keeper, Signal::CONT).unwrap();
    let why = world.until("a refusal", |world| world.problems().first().cloned());
    assert!(why.contains("does not come back"), "{why}");
    assert_eq!(world.pong().live, 1, "it serves on");
    // Another check does not wait behind the hung start for ever: it passes, and is put off too.
    ask(&mut world, &newer);
    let refused = |world: &World| {
        world.problems().iter().filter(|problem| problem.contains("does not come back")).count()
    };
    world.until("a second refusal", |world| (refused(world) == 2).then_some(()));
    assert_eq!(world.pong().live, 1);
    drop(hung);
    wait_for("the end of the hang", || (world.pong().live == 0).then_some(()));
    ask(&mut world, &newer);
    serves(&mut world, NEWER);
    let finish = world.finish_of(&job);
    assert!(matches!(finish.end, Some(End::StartFailure(_))), "{finish:?}");
}

fn facts_cross() {
    let mut world = World::new(Mode::Best);
    for n in 1..=6 {
        world.outcome(&Job::shell(n, "exit 0"));
    }
    let first: Vec<_> = std::mem::take(&mut world.facts);
    let acked = first[3].seq;
    world.send(Request::Ack(proto::v1::KeeperAck { to: acked }));
    let newer = program::copy(&world, NEWER, Fault::None);
    upgrade(&mut world, &newer);
    assert_eq!(world.welcome.acked, acked, "an upgrade keeps acknowledgements");
    let wanted: Vec<_> = first.iter().filter(|f| f.seq > acked).cloned().collect();
    let got = world.until("the facts again", |world| {
        (world.facts.len() >= wanted.len()).then(|| world.facts[..wanted.len()].to_vec())
    });
    assert_eq!(got, wanted);
    let next = Job::shell(7, "exit 2");
    assert_eq!(status_of(&world.outcome(&next)), exited(2));
    kill_pid(world.guard_pid());
    let why = refusal(&mut world, &newer);
    assert!(why.contains("its guard died"), "{why}");
}
