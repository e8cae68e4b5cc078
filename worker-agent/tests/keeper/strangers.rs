//! Processes that are nobody's job: whatever becomes of guard and keeper, they are not touched.

use std::fs::{self, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use worker_agent::keeper;

use crate::runner::Test;
use crate::world::{
    Job, Mode, WORLD_VARIABLE, World, exited, is_alive, kill_pid, own_program, status_of, wait_for,
};

pub const TESTS: &[Test] =
    &[("a_keeper_whose_guard_was_dead_at_its_start_touches_nobody", dead_guard)];

/// A keeper as a guard starts it, but below a shell with another child: as one whose guard died before
/// it looked is below whoever takes orphans, with all the other processes of the machine. Gives the
/// shell, and the end that a guard would write to.
fn below_a_stranger(world: &World, guard: Option<u32>) -> (Child, OwnedFd) {
    let lock = world.dir().join("keeper.lock");
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(lock).unwrap();
    let (notice, notice_end) = pipe_with(PipeFlags::NONBLOCK).unwrap();
    fcntl_setfd(&notice_end, FdFlags::CLOEXEC).unwrap();
    fcntl_setfd(&lock, FdFlags::empty()).unwrap();
    let text = "sleep 999 & echo $! > \"$0\"; \"$@\" & wait $!; wait";
    let mut command = Command::new("sh");
    command
        .args(["-c", text])
        .arg(world.open_path("stranger"))
        .arg(own_program())
        .args(["keeper", "--data"])
        .arg(world.dir())
        .args(["--handed", &format!("{},{}", lock.as_raw_fd(), notice.as_raw_fd())])
        .env(WORLD_VARIABLE, world.room())
        .env(keeper::IDLE_SWITCH, "10000");
    if let Some(guard) = guard {
        command.args(["--guard", &guard.to_string()]);
    }
    let shell = command.spawn().unwrap();
    // Nobody holds the lock: a client would start another one before.
    wait_for("the keeper to listen", || keeper::dial(&world.dir()).ok().map(drop));
    (shell, notice_end)
}

fn dead_guard() {
    // A process that is surely dead, and that was no parent of the keeper's.
    let mut dead = Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    for guard in [None, Some(dead.id())] {
        let mut world = World::bare(Mode::Best, 10_000);
        let (mut shell, _notice) = below_a_stranger(&world, guard);
        world.connect();
        let stranger = fs::read_to_string(world.open_path("stranger")).unwrap();
        let stranger: u32 = stranger.trim().parse().unwrap();
        let job = Job::shell(1, "exit 3");
        assert_eq!(status_of(&world.outcome(&job)), exited(3));
        assert!(is_alive(stranger), "guard {guard:?}: {}", world.log());
        kill_pid(stranger);
        drop(world);
        shell.wait().unwrap();
    }
}
