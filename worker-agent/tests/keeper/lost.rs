//! A journal or a whole directory that was removed by hand: for the controller its jobs are over, so
//! nothing of them lives on.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use proto::v1::finish_fact::End;
use proto::v1::{StartFailure, fact};

use crate::runner::Test;
use crate::world::{
    Job, Mode, World, exited, is_alive, kill_pid, modes, status_of, wait_for, wait_for_file,
};

pub const TESTS: &[Test] = &[
    ("what_a_removed_journal_knew_is_dead_before_the_first_manifest", removed_journal),
    ("cgroups_of_a_removed_journal_are_found_without_its_guard", removed_without_guard),
    ("a_journal_that_is_gone_takes_a_new_id", new_id),
    ("the_jobs_of_a_deleted_directory_end_when_no_agent_is_there", deleted_directory),
    ("a_run_in_a_deleted_directory_is_a_named_node_fault", deleted_directory_is_named),
    ("the_guard_of_a_deleted_directory_ends_its_jobs", deleted_without_keeper),
    ("the_jobs_of_an_emptied_directory_end_when_another_keeper_comes", emptied_directory),
    ("a_copy_without_journal_touches_no_tree_of_the_first", copy_without_journal),
    ("a_lock_that_is_removed_ends_no_job", removed_lock),
];

/// A job that resists: it ignores TERM and has children in sessions of their own, one of them
/// without a mark.
fn resisting(world: &World, job: u64) -> Job {
    let ready = world.open_path(&format!("ready{job}"));
    let text = format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 99; done' & \
         (setsid env -u DOCKET_TOKEN sleep 999 &) ; touch {}; while :; do sleep 99; done",
        ready.display()
    );
    let mut job = Job::shell(job, &text);
    job.spec.kill_grace_ms = Some(300);
    job
}

/// Every process of the world's jobs, those without a mark too.
fn of_jobs(world: &World) -> Vec<u32> {
    let is_docket = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.starts_with(b"docket\0keeper")
    };
    world.processes().into_iter().filter(|pid| !is_docket(pid)).collect()
}

fn start(world: &mut World, id: u64) -> Vec<u32> {
    let job = resisting(world, id);
    world.run(&job);
    world.start_of(&job);
    wait_for_file(&world.open_path(&format!("ready{id}")));
    // Two shells, a sleep of each, and the one without a mark.
    wait_for("the whole tree", || (of_jobs(world).len() >= 5).then_some(()));
    of_jobs(world)
}

fn remove_journal(world: &World) {
    fs::remove_dir_all(world.dir().join("journal")).unwrap();
    fs::remove_file(world.dir().join("journal.id")).unwrap();
}

fn removed_journal() {
    for mode in modes() {
        let mut world = World::new(mode);
        let old = world.welcome.journal_id.clone();
        start(&mut world, 1);
        remove_journal(&world);
        world.kill_keeper();
        world.connect();
        assert_ne!(world.welcome.journal_id, old);
        assert!(world.manifest().items.is_empty());
        assert_eq!(of_jobs(&world), [0; 0], "{mode:?} {}", world.log());
        assert_eq!(status_of(&world.outcome(&Job::shell(2, "exit 4"))), exited(4));
    }
}

fn removed_without_guard() {
    let mut world = World::new(Mode::Best);
    if !world.log().contains("cgroup slots") {
        return eprintln!("SKIPPED: no cgroup v2 that this user may write");
    }
    start(&mut world, 1);
    remove_journal(&world);
    kill_pid(world.guard_pid());
    world.kill_keeper();
    world.wait_ended();
    world.connect();
    assert!(world.manifest().items.is_empty());
    assert_eq!(of_jobs(&world), [0; 0], "{}", world.log());
}

fn new_id() {
    let mut world = World::new(Mode::Best);
    world.outcome(&Job::shell(1, "exit 3"));
    let old = world.welcome.journal_id.clone();
    fs::remove_dir_all(world.dir().join("journal")).unwrap();
    world.kill_keeper();
    world.connect();
    assert_ne!(world.welcome.journal_id, old);
    assert_eq!(world.welcome.next_seq, 1);
    assert!(world.log().contains("begins a new one"), "{}", world.log());
    // And keeps it from then on.
    let new = world.welcome.journal_id.clone();
    world.kill_keeper();
    world.connect();
    assert_eq!(world.welcome.journal_id, new);
}

fn deleted_directory() {
    for mode in modes() {
        let mut world = World::new(mode);
        start(&mut world, 1);
        let (keeper, guard) = (world.welcome.pid, world.guard_pid());
        fs::remove_dir_all(world.dir()).unwrap();
        world.disconnect();
        wait_for("the end of the jobs", || of_jobs(&world).is_empty().then_some(()));
        wait_for("the end of all", || (!is_alive(keeper) && !is_alive(guard)).then_some(()));
    }
}

fn deleted_without_keeper() {
    for mode in modes() {
        let mut world = World::new(mode);
        start(&mut world, 1);
        let guard = world.guard_pid();
        let meta = fs::metadata(world.dir()).unwrap();
        let ending = format!("-{:x}.{:x}", meta.dev(), meta.ino());
        let slots = world.log().contains("cgroup slots");
        assert_eq!(cgroups(Path::new("/sys/fs/cgroup"), &ending, 6) > 0, slots);
        fs::remove_dir_all(world.dir()).unwrap();
        world.kill_keeper();
        wait_for("the end of the jobs", || of_jobs(&world).is_empty().then_some(()));
        wait_for("the end of the guard", || (!is_alive(guard)).then_some(()));
        assert_eq!(cgroups(Path::new("/sys/fs/cgroup"), &ending, 6), 0, "none is left behind");
    }
}

/// How many cgroups have names that end so.
fn cgroups(dir: &Path, ending: &str, depth: u32) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let dirs = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    dirs.map(|entry| {
        let own = entry.file_name().to_string_lossy().ends_with(ending);
        let below = if depth > 0 { cgroups(&entry.path(), ending, depth - 1) } else { 0 };
        usize::from(own) + below
    })
    .sum()
}

fn emptied_directory() {
    for mode in modes() {
        let mut world = World::new(mode);
        let pids = start(&mut world, 1);
        let guard = world.guard_pid();
        world.disconnect();
        for entry in fs::read_dir(world.dir()).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
        world.connect_patiently();
        assert!(world.manifest().items.is_empty());
        assert!(!pids.iter().any(|p| is_alive(*p)), "{mode:?} {}", world.log());
        wait_for("the end of their guard", || (!is_alive(guard)).then_some(()));
        assert_eq!(status_of(&world.outcome(&Job::shell(2, "exit 4"))), exited(4));
    }
}

fn deleted_directory_is_named() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let running = Job::argv(1, &["sleep", "999"]);
        world.run(&running);
        world.start_of(&running);
        fs::remove_dir_all(world.dir()).unwrap();
        // Before the keeper saw it a run fails at its first step, then it is not even taken.
        let mut id = 1;
        let mut refused = false;
        while !refused {
            id += 1;
            let job = Job::shell(id, "true");
            world.run(&job);
            let (failure, by_refusal) = world.until("a failure", |world| failure_of(world, &job));
            assert_eq!((failure.step.as_str(), failure.errno), ("data-directory", libc::ENOENT));
            assert!(failure.node_fault);
            let dir = world.dir().display().to_string();
            let wanted = format!(
                "data-directory: {dir} was deleted or moved away under its agent: start the agent again"
            );
            assert_eq!(failure.message, wanted);
            refused = by_refusal;
        }
    }
}

/// Why a job did not start, and whether it was not even taken.
fn failure_of(world: &World, job: &Job) -> Option<(StartFailure, bool)> {
    let attempt = Some(job.attempt_ref());
    world.facts.iter().find_map(|f| match &f.kind {
        Some(fact::Kind::Refused(refused)) if refused.attempt == attempt => {
            Some((refused.failure.clone().unwrap(), true))
        }
        Some(fact::Kind::Finish(finish)) if finish.attempt == attempt => match &finish.end {
            Some(End::StartFailure(failure)) => Some((failure.clone(), false)),
            other => panic!("{other:?}"),
        },
        _ => None,
    })
}

/// Files, but no sockets and no lock that anybody holds.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn copy_without_journal() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let pids = start(&mut world, 1);
        // With the journal's id and without.
        for with_id in [true, false] {
            let mut other = World::bare(mode, 10_000);
            copy(&world.dir(), &other.dir());
            if !with_id {
                fs::remove_file(other.dir().join("journal.id")).unwrap();
            }
            other.launch().unwrap();
            other.connect();
            assert!(other.manifest().items.is_empty());
            assert_ne!(other.welcome.journal_id, world.welcome.journal_id);
        }
        assert!(pids.iter().all(|pid| is_alive(*pid)), "{mode:?}");
        // The one without a mark is nobody's to end.
        wait_for("the end of all", || {
            let left = of_jobs(&world);
            left.iter().for_each(|pid| kill_pid(*pid));
            left.is_empty().then_some(())
        });
    }
}

fn removed_lock() {
    for mode in modes() {
        let mut world = World::new(mode);
        let file = world.open_path("go");
        let text = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 5", file.display());
        let job = Job::shell(1, &text);
        world.run(&job);
        let pid = world.start_of(&job).pid;
        fs::remove_file(world.dir().join("keeper.lock")).unwrap();
        world.kill_keeper();
        // Its guard starts the next one, and whoever dials may start another guard.
        world.connect_patiently();
        assert!(is_alive(pid), "{mode:?} {}", world.log());
        fs::write(file, "").unwrap();
        // Where another guard came, nobody who could read the status told this keeper.
        match world.finish_of(&job).end {
            Some(End::WaitStatus(status)) => assert_eq!(status, exited(5)),
            Some(End::UnknownStatus(true)) => {}
            other => panic!("{mode:?} {other:?} {}", world.log()),
        }
    }
}
