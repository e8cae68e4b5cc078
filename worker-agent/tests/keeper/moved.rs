//! A data directory that was copied or renamed: a copy touches nothing of the first, and a directory
//! under another name is still the same.

use std::fs;
use std::path::Path;

use proto::v1::fact;
use proto::v1::keeper_request::Kind as Request;

use crate::runner::Test;
use crate::world::{
    Job, Mode, World, exited, is_alive, kill_pid, modes, status_of, wait_for, wait_for_file,
};

pub const TESTS: &[Test] = &[
    ("a_copied_journal_is_set_aside_and_no_process_of_the_first_is_touched", copied_journal),
    ("a_journal_without_its_place_is_taken_as_it_is", journal_without_place),
    ("a_directory_that_was_renamed_without_its_keeper_is_no_copy", renamed_without_keeper),
    ("a_renamed_directory_keeps_its_keeper_and_its_jobs", renamed),
    ("a_keeper_that_dies_in_a_renamed_directory_comes_back_there", renamed_and_killed),
    ("the_jobs_of_a_renamed_directory_end_when_nobody_comes", renamed_and_left),
    ("a_run_for_the_old_name_of_a_directory_is_a_named_node_fault", run_for_old_name),
];

/// Files and directories, as `cp -a` has them; no sockets.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (kind, to) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else if kind.is_file() {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A job that ends with 5 when its file is there, with a child in a session of its own.
fn start(world: &mut World, id: u64) -> (Job, Vec<u32>) {
    let (ready, go) = (world.open_path("ready"), world.open_path("go"));
    let text = format!(
        "setsid sleep 999 & touch {}; while [ ! -e {} ]; do sleep 0.05; done; exit 5",
        ready.display(),
        go.display()
    );
    let job = Job::shell(id, &text);
    world.run(&job);
    let main = world.start_of(&job).pid;
    wait_for_file(&ready);
    wait_for("the whole tree", || (world.job_processes().len() >= 2).then_some(()));
    let mut pids = world.job_processes();
    // The shell's own pauses come and go.
    pids.retain(|pid| *pid == main || session_of(*pid) == *pid);
    (job, pids)
}

fn session_of(pid: u32) -> u32 {
    let pid = rustix::process::Pid::from_raw(pid as i32);
    rustix::process::getsid(pid).map_or(0, |sid| sid.as_raw_nonzero().get() as u32)
}

fn let_go(world: &World) {
    fs::write(world.open_path("go"), "").unwrap();
}

fn set_aside(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("journal.copied-")).count()
}

fn copied_journal() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let (job, pids) = start(&mut world, 1);
        let mut other = World::bare(mode, 10_000);
        copy(&world.dir(), &other.dir());
        other.launch().unwrap();
        other.connect();
        assert!(other.manifest().items.is_empty());
        assert_ne!(other.welcome.journal_id, world.welcome.journal_id);
        assert_eq!(other.welcome.next_seq, 1);
        assert_eq!(set_aside(&other.dir()), 1);
        let said = other.log();
        assert!(said.contains("is a copy of another"), "{said}");
        assert!(said.contains("journal.copied-"), "{said}");
        // It has a journal of its own from now on.
        assert_eq!(status_of(&other.outcome(&Job::shell(2, "exit 4"))), exited(4));
        let own = other.welcome.journal_id.clone();
        other.kill_keeper();
        other.connect();
        assert_eq!((&other.welcome.journal_id, set_aside(&other.dir())), (&own, 1));
        assert!(other.welcome.next_seq > 1);
        assert!(pids.iter().all(|pid| is_alive(*pid)), "{mode:?} {}", other.log());
        world.kill_keeper();
        world.connect();
        let_go(&world);
        assert_eq!(status_of(&world.finish_of(&job)), exited(5), "{mode:?} {}", world.log());
    }
}

/// Of a release that did not write it yet.
fn journal_without_place() {
    let mut world = World::new(Mode::Best);
    let (job, pids) = start(&mut world, 1);
    let old = world.welcome.journal_id.clone();
    let place = world.dir().join("journal.place");
    fs::remove_file(&place).unwrap();
    world.kill_keeper();
    world.connect();
    assert_eq!((&world.welcome.journal_id, set_aside(&world.dir())), (&old, 0));
    assert!(place.exists(), "from now on a copy is known");
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{}", world.log());
    let_go(&world);
    assert_eq!(status_of(&world.finish_of(&job)), exited(5));
}

/// The same directory under another name is the same place.
fn renamed_without_keeper() {
    for mode in modes() {
        let mut world = World::new(mode);
        let (job, _) = start(&mut world, 1);
        let old = world.welcome.journal_id.clone();
        let guard = world.guard_pid();
        world.disconnect();
        kill_pid(guard);
        kill_pid(world.welcome.pid);
        world.wait_ended();
        world.rename("elsewhere");
        world.connect();
        assert_eq!((&world.welcome.journal_id, set_aside(&world.dir())), (&old, 0));
        assert!(world.phase_of(&job).is_some(), "{mode:?} {}", world.log());
    }
}

fn noticed(world: &World) {
    wait_for("the keeper to notice", || world.log().contains("is now").then_some(()));
}

fn renamed() {
    for mode in [Mode::Best, Mode::Nobody] {
        if !modes().contains(&mode) {
            continue;
        }
        // Before the keeper looked, and after.
        for waits in [false, true] {
            let mut world = World::new(mode);
            let (job, _) = start(&mut world, 1);
            let keeper = world.welcome.pid;
            world.rename("elsewhere");
            if waits {
                noticed(&world);
            }
            world.disconnect();
            world.connect();
            assert_eq!(world.welcome.pid, keeper, "{mode:?} {}", world.log());
            let_go(&world);
            assert_eq!(status_of(&world.finish_of(&job)), exited(5), "{mode:?} {}", world.log());
            // And it works on under its new name, whoever takes the old one.
            fs::create_dir(world.dir().with_file_name("data")).unwrap();
            assert_eq!(status_of(&world.outcome(&Job::shell(2, "exit 4"))), exited(4));
            assert!(!world.log().contains("deleted"), "{}", world.log());
        }
    }
}

fn renamed_and_killed() {
    for mode in modes() {
        let mut world = World::new(mode);
        let (job, pids) = start(&mut world, 1);
        let old = world.welcome.journal_id.clone();
        world.rename("elsewhere");
        world.kill_keeper();
        world.connect();
        assert_eq!(world.welcome.journal_id, old);
        assert!(pids.iter().all(|pid| is_alive(*pid)), "{mode:?} {}", world.log());
        let_go(&world);
        assert_eq!(status_of(&world.finish_of(&job)), exited(5), "{mode:?} {}", world.log());
        assert!(!world.log().contains("gone"), "{}", world.log());
    }
}

fn renamed_and_left() {
    for killed in [false, true] {
        let mut world = World::with_idle(Mode::Best, 20);
        let (_, pids) = start(&mut world, 1);
        let (keeper, guard) = (world.welcome.pid, world.guard_pid());
        world.rename("elsewhere");
        if killed {
            world.kill_keeper();
        }
        world.disconnect();
        wait_for("the end of the jobs", || (!pids.iter().any(|p| is_alive(*p))).then_some(()));
        wait_for("the end of all", || (!is_alive(keeper) && !is_alive(guard)).then_some(()));
        let said = world.log();
        assert!(said.contains("nobody came to the renamed data directory"), "{said}");
    }
}

fn run_for_old_name() {
    let mut world = World::new(Mode::Best);
    let old = world.dir();
    let mut run = Job::shell(1, "true").to_run(&mut world);
    world.rename("elsewhere");
    // Another node may have begun there meanwhile: nothing of this one goes into its directory.
    for (id, taken) in [(1, false), (2, true)] {
        if taken {
            fs::create_dir(&old).unwrap();
        }
        run.order_id = world.order_id();
        run.attempt = Some(Job::shell(id, "true").attempt_ref());
        world.send(Request::Run(run.clone()));
        let failure = world.until("a refusal", |world| {
            world.facts.iter().find_map(|f| match &f.kind {
                Some(fact::Kind::Refused(refused)) if refused.attempt == run.attempt => {
                    refused.failure.clone()
                }
                Some(fact::Kind::Finish(finish)) if finish.attempt == run.attempt => {
                    panic!("{:?} {taken}", finish.end)
                }
                _ => None,
            })
        });
        assert!(failure.node_fault && failure.step == "data-directory", "{failure:?}");
        let wanted = format!("{} was deleted or moved away under its agent", old.display());
        assert!(failure.message.contains(&wanted), "{}", failure.message);
    }
}
