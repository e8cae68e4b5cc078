//! Ending jobs: nothing of a tree survives, with cgroups and without, and the cause is told right.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use proto::v1::KillCause;
use proto::v1::finish_fact::End;

use crate::runner::Test;
use crate::world::{Job, Mode, World, exited, is_alive, modes, status_of, wait_for, wait_for_file};

pub const TESTS: &[Test] = &[
    ("a_tree_that_resists_leaves_nothing_alive", resisting_tree),
    ("a_cancelled_job_is_told_with_its_own_status", cancelled),
    ("what_follows_a_killed_tree_in_its_place_lives", follows_a_kill),
    ("what_forks_while_its_tree_is_told_to_end_is_told_too", late_fork),
    ("what_an_order_gives_longer_is_not_told_as_leftover_before", longer_order),
    ("a_background_process_ends_with_its_job", background),
    ("a_cancel_that_comes_too_late_changes_nothing", too_late),
    ("a_cancel_of_a_start_under_way_waits_for_it", cancelled_at_once),
    ("a_single_signal_is_only_that", single_signal),
    ("orders_for_what_is_unknown_are_noted", unknown),
    ("the_next_attempt_waits_for_the_tree_of_the_last", next_attempt),
    ("what_cannot_die_is_told_as_leftover_and_killed_on", leftover),
    ("a_hung_start_is_told_and_can_be_killed", hung_start),
    ("orphans_are_reaped_and_steal_no_status", orphans),
    ("hundreds_live_and_die_together", hundreds),
];

/// Ignores SIGTERM in every process: children, a new session, a daemon, one without environment.
pub fn resisting(world: &World, ready: &str) -> Job {
    let file = world.open_path(ready).display().to_string();
    let deaf = "trap '' TERM; while :; do sleep 1; done";
    let mut job = Job::shell(
        1,
        &format!(
            "trap '' TERM HUP; (sh -c \"{deaf}\") & setsid sh -c \"{deaf}\" & \
             (setsid sh -c \"({deaf}) & exit 0\") ; nohup sh -c \"{deaf}\" >/dev/null 2>&1 & \
             env -i PATH=$PATH KEEPER_WORLD=$KEEPER_WORLD sh -c \"{deaf}\" & \
             sleep 0.1; touch {file}; {deaf}"
        ),
    );
    job.spec.kill_grace_ms = Some(200);
    job
}

fn resisting_tree() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = resisting(&world, "ready");
        world.run(&job);
        let start = world.start_of(&job);
        wait_for_file(&world.open_path("ready"));
        let before = world.processes();
        assert!(before.len() > 7, "{before:?}");
        world.kill(&job, KillCause::Cancel, 0, None);
        let finish = world.finish_of(&job);
        assert_eq!((status_of(&finish), finish.leftover), (9, 0), "{mode:?} {}", world.log());
        assert_eq!(finish.killed_for, KillCause::Cancel as i32);
        let keepers = [world.guard_pid(), world.welcome.pid];
        let left: Vec<u32> = before.into_iter().filter(|pid| is_alive(*pid)).collect();
        assert!(left.iter().all(|pid| keepers.contains(pid)), "{mode:?}: {left:?}");
        assert!(!is_alive(start.pid));
        assert_eq!(world.pong().live, 0);
    }
}

/// A cgroup that was killed once must not be the birthplace of the next job: the kernel would kill
/// it at birth, and docket would tell of a signal that nobody sent.
fn follows_a_kill() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = resisting(&world, "ready");
        world.run(&job);
        wait_for_file(&world.open_path("ready"));
        world.kill(&job, KillCause::Cancel, 0, None);
        world.finish_of(&job);
        for id in 2..6 {
            let next = Job::shell(id, "exit 3");
            world.run(&next);
            assert_eq!(status_of(&world.finish_of(&next)), exited(3));
        }
    }
}

fn cancelled() {
    let mut world = World::new(Mode::Best);
    let ready = world.open_path("ready");
    let text = format!("trap 'exit 123' TERM; touch {}; sleep 999 & wait", ready.display());
    let job = Job::shell(1, &text);
    world.run(&job);
    wait_for_file(&ready);
    world.kill(&job, KillCause::Cancel, 20_000, None);
    let finish = world.finish_of(&job);
    assert_eq!(status_of(&finish), exited(123));
    assert_eq!(finish.killed_for, KillCause::Cancel as i32);
    let plain = Job::shell(2, "sleep 999 & sleep 999");
    world.run(&plain);
    world.start_of(&plain);
    world.kill(&plain, KillCause::Fenced, 20_000, None);
    let finish = world.finish_of(&plain);
    assert_eq!((status_of(&finish), finish.killed_for), (15, KillCause::Fenced as i32));
    assert!(world.job_processes().is_empty());
}

/// The child that the handler leaves was not there when SIGTERM went out: it is asked when nobody is
/// above it any more, long before the grace is over. The one that was there hears SIGTERM once, and
/// what it starts to clean up is left alone.
fn late_fork() {
    for mode in modes() {
        let mut world = World::new(mode);
        let (ready, heard) = (world.open_path("ready"), world.open_path("heard"));
        let text = format!(
            "sh -c 'trap \"echo >> {heard}\" TERM; touch {ready}; \
                while [ ! -s {heard} ]; do sleep 0.05; done; sleep 0.5 && echo clean >> {heard}' & \
             trap 'sleep 999 & exit 7' TERM; while :; do sleep 0.05; done",
            heard = heard.display(),
            ready = ready.display()
        );
        let job = Job::shell(1, &text);
        world.run(&job);
        wait_for_file(&ready);
        world.kill(&job, KillCause::Cancel, 600_000, None);
        let finish = world.finish_of(&job);
        assert_eq!((status_of(&finish), finish.leftover), (exited(7), 0), "{}", world.log());
        assert_eq!(fs::read(&heard).unwrap(), b"\nclean\n", "{mode:?}");
    }
}

fn longer_order() {
    let mut world = World::new(Mode::Best);
    let ready = world.open_path("ready");
    let deaf = format!("trap '' TERM; touch {}; while :; do sleep 1; done", ready.display());
    let mut job = Job::shell(1, &format!("(trap '' TERM; {deaf}) & trap 'exit 7' TERM; wait"));
    job.spec.kill_grace_ms = Some(200);
    world.run(&job);
    wait_for_file(&ready);
    // Longer than its own grace and the five seconds after it.
    world.kill(&job, KillCause::Cancel, 7_000, None);
    let finish = world.finish_of(&job);
    assert_eq!((status_of(&finish), finish.leftover), (exited(7), 0), "{}", world.log());
}

fn background() {
    for mode in modes() {
        let mut world = World::new(mode);
        let began = Instant::now();
        let job = Job::shell(1, "sleep 300 & echo tail; exit 4");
        let finish = world.outcome(&job);
        assert_eq!((status_of(&finish), finish.leftover), (exited(4), 0));
        assert_eq!(finish.killed_for, KillCause::Unspecified as i32, "it ended by itself");
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(fs::read(world.run_file(&job, ".out")).unwrap(), b"tail\n");
        assert!(world.job_processes().is_empty(), "{mode:?}");
    }
}

fn too_late() {
    let mut world = World::new(Mode::Best);
    let job = Job::shell(1, "exit 0");
    world.run(&job);
    world.finish_of(&job);
    world.kill(&job, KillCause::Cancel, 0, None);
    world.pong();
    let finishes = world.finishes(job.attempt_ref());
    assert_eq!(finishes.len(), 1);
    assert_eq!(finishes[0].killed_for, KillCause::Unspecified as i32);
}

fn cancelled_at_once() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = Job::argv(1, &["sleep", "999"]);
        world.run(&job);
        world.kill(&job, KillCause::Cancel, 10_000, None);
        let finish = world.finish_of(&job);
        assert_eq!((status_of(&finish), finish.killed_for), (15, KillCause::Cancel as i32));
        assert!(finish.start.is_some());
    }
}

fn single_signal() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let (ready, told) = (world.open_path("ready"), world.open_path("told"));
        let text = format!(
            "trap 'echo usr1 > {}' USR1; touch {}; while [ ! -s {} ]; do sleep 0.05; done; exit 6",
            told.display(),
            ready.display(),
            told.display()
        );
        let job = Job::shell(1, &text);
        world.run(&job);
        wait_for_file(&ready);
        world.kill(&job, KillCause::Cancel, 0, Some(libc::SIGUSR1 as u32));
        let finish = world.finish_of(&job);
        // The shell hears it; a sleep that was running dies of it, which the shell ignores.
        assert_eq!(status_of(&finish), exited(6));
        assert_eq!(finish.killed_for, KillCause::Unspecified as i32, "no kill sequence");
    }
}

fn unknown() {
    let mut world = World::new(Mode::Best);
    world.kill(&Job::shell(77, "true"), KillCause::Cancel, 0, None);
    let noted = world.last_order_id();
    let manifest = world.manifest();
    assert_eq!((manifest.last_order, manifest.items.len()), (noted, 0));
    assert!(world.facts.is_empty());
}

fn next_attempt() {
    let mut world = World::new(Mode::Best);
    let job = Job::argv(1, &["sleep", "999"]);
    world.run(&job);
    world.start_of(&job);
    let mut next = job.clone();
    next.attempt = 2;
    world.run(&next);
    let refused = world.until("a refusal", |world| {
        world.facts.iter().find_map(|f| match &f.kind {
            Some(proto::v1::fact::Kind::Refused(refused)) => Some(refused.clone()),
            _ => None,
        })
    });
    assert_eq!(refused.attempt, Some(next.attempt_ref()));
    let failure = refused.failure.unwrap();
    assert!(failure.node_fault && failure.errno == libc::EBUSY, "{failure:?}");
    world.kill(&job, KillCause::Cancel, 20_000, None);
    world.finish_of(&job);
    next.attempt = 3;
    next.spec.argv = vec![b"true".to_vec()];
    assert_eq!(status_of(&world.outcome(&next)), 0);
}

/// A process in a frozen cgroup of v1 takes no signal until it is thawed.
fn leftover() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let freezer = format!("/sys/fs/cgroup/freezer/keeper-test-{}-{mode:?}", std::process::id());
        if fs::create_dir(&freezer).is_err() {
            return;
        }
        let mut job = Job::shell(
            1,
            &format!(
                "sleep 999 & echo $! > {freezer}/cgroup.procs; echo FROZEN > {freezer}/freezer.state; \
                 exit 7"
            ),
        );
        job.spec.kill_grace_ms = Some(100);
        let finish = world.outcome(&job);
        let told_after = finish.finish_wall_ms;
        assert_eq!((status_of(&finish), finish.leftover), (exited(7), 1), "{mode:?}");
        assert!(
            told_after < finish.start.unwrap().start_wall_ms + 5_000,
            "the time of the main's end"
        );
        assert_eq!(world.pong().live, 0);
        let mut next = job.clone();
        next.attempt = 2;
        world.run(&next);
        world.until("a refusal", |world| world.log().contains("1/2 refused").then_some(()));
        assert_eq!(world.job_processes().len(), 1);
        fs::write(format!("{freezer}/freezer.state"), "THAWED").unwrap();
        wait_for("the leftover's end", || world.job_processes().is_empty().then_some(()));
        wait_for("its cgroup's end", || fs::remove_dir(&freezer).ok());
    }
}

/// A file system whose server never answers: entering it hangs in the kernel.
pub struct Hung {
    pub at: PathBuf,
    _server: OwnedFd,
}

impl Hung {
    pub fn mount(at: PathBuf) -> Option<Hung> {
        fs::create_dir(&at).ok()?;
        let server: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").ok()?.into();
        // For mount(8); other children of this test let go of it at once.
        rustix::io::fcntl_setfd(&server, rustix::io::FdFlags::empty()).ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let mut mount = Command::new("mount");
        let status = mount.args(["-i", "-t", "fuse", "-o", &options, "none"]).arg(&at).status();
        rustix::io::fcntl_setfd(&server, rustix::io::FdFlags::CLOEXEC).ok()?;
        status.ok()?.success().then_some(Hung { at, _server: server })
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn hung_start() {
    let mut world = World::new(Mode::Best);
    let Some(hung) = Hung::mount(world.open_path("hung")) else { return };
    let running = Job::shell(1, "sleep 11; exit 3");
    world.run(&running);
    let mut job = Job::argv(2, &["true"]);
    job.spec.dir = hung.at.as_os_str().as_bytes().to_vec();
    job.spec.kill_grace_ms = Some(100);
    world.run(&job);
    let queued = Job::shell(3, "exit 4");
    world.run(&queued);
    let problem = wait_for("the node to be flagged", || {
        Some(world.pong().problem).filter(|problem| !problem.is_empty())
    });
    assert!(problem.contains("blocked in chdir") && problem.contains("2/1"), "{problem}");
    assert_eq!(status_of(&world.finish_of(&running)), exited(3), "the loop goes on");
    let slots = world.log().contains("cgroup slots");
    if slots {
        world.kill(&job, KillCause::Cancel, 0, None);
    } else {
        // Without a slot nobody knows the child: only the end of the hang ends it.
        drop(hung);
    }
    let finish = world.finish_of(&job);
    // Nothing of it ran either way, so there is no wait status of a main process.
    assert!(matches!(finish.end, Some(End::StartFailure(_))), "{finish:?}");
    assert_eq!(finish.killed_for == KillCause::Cancel as i32, slots, "{finish:?}");
    assert_eq!(status_of(&world.finish_of(&queued)), exited(4));
    wait_for("the flag to go", || world.pong().problem.is_empty().then_some(()));
}

fn orphans() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = Job::shell(1, "i=0; while [ $i -lt 200 ]; do (true &); i=$((i+1)); done; exit 5");
        let other = Job::shell(2, "sleep 0.2; exit 6");
        world.run(&other);
        world.run(&job);
        assert_eq!(status_of(&world.finish_of(&job)), exited(5));
        assert_eq!(status_of(&world.finish_of(&other)), exited(6));
        let keeper = world.welcome.pid;
        wait_for("no child of the keeper", || {
            let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
            children.unwrap_or_default().trim().is_empty().then_some(())
        });
    }
}

fn hundreds() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let jobs: Vec<Job> = (1..=300).map(|n| Job::argv(n, &["sleep", "999"])).collect();
        for job in &jobs {
            world.run(job);
        }
        for job in &jobs {
            world.start_of(job);
        }
        assert_eq!(world.pong().live, 300);
        assert_eq!(world.manifest().items.len(), 300);
        for job in &jobs {
            world.kill(job, KillCause::Cancel, 20_000, None);
        }
        for job in &jobs {
            assert_eq!(status_of(&world.finish_of(job)), 15, "{mode:?}");
        }
        assert_eq!(world.pong().live, 0);
    }
}
