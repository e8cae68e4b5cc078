//! Where output may go: to regular files; whatever else is named is refused by name and never waited
//! for, and a mount that does not answer holds up nobody but who waits for it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use proto::v1::journal_record::Kind;
use proto::v1::{JournalRecord, KillCause, Phase, finish_fact::End};
use rustix::process::{Pid, Signal, kill_process};

use crate::fuse::Fuse;
use crate::runner::Test;
use crate::world::{Job, Mode, World, exited, modes, status_of, wait_for, wait_for_file};

pub const TESTS: &[Test] = &[
    ("an_output_that_is_no_regular_file_is_refused_by_name_and_never_waited_for", odd_outputs),
    ("an_output_on_a_mount_that_hangs_is_told_and_goes_on_when_it_answers", goes_on),
    ("an_output_on_a_mount_that_hangs_fails_by_name_when_it_is_aborted", aborted),
    ("a_start_that_hangs_in_open_can_be_cancelled", cancelled),
    ("a_child_that_is_killed_before_its_exec_never_started", killed_before_exec),
    ("others_start_and_end_while_starts_hang_in_open", others_go_on),
    ("more_hung_starts_than_threads_are_told_and_all_go_on_when_the_mount_answers", too_many_hang),
    ("a_thousand_running_jobs_end_with_their_own_codes_and_cost_little", thousand),
];

fn odd_outputs() {
    for mode in modes() {
        let mut world = World::new(mode);
        let fifo = world.open_path("fifo");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, 0o666.into(), 0).unwrap();
        std::process::Command::new("chmod").arg("666").arg(&fifo).status().unwrap();
        let socket = world.open_path("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        std::process::Command::new("chmod").arg("666").arg(&socket).status().unwrap();
        // With a reader the FIFO opens, and is refused for what it is.
        let read = world.open_path("read-fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &read, kind, 0o666.into(), 0).unwrap();
        std::process::Command::new("chmod").arg("666").arg(&read).status().unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let _reader = rustix::fs::open(&read, flags, rustix::fs::Mode::empty()).unwrap();
        let places: [(PathBuf, i32); 6] = [
            (fifo, libc::ENXIO),
            (read, libc::EINVAL),
            (world.open_path(""), libc::EISDIR),
            (socket, libc::ENXIO),
            ("/dev/full".into(), libc::EINVAL),
            ("/dev/zero".into(), libc::EINVAL),
        ];
        let mut id = 0;
        for (path, errno) in places {
            for stderr in [false, true] {
                id += 1;
                let mut job = Job::argv(id, &["true"]);
                let (given, step) = match stderr {
                    false => (&mut job.stdout, "stdout"),
                    true => (&mut job.stderr, "stderr"),
                };
                *given = Some(path.clone());
                let failure = world.start_failure(&job);
                let told = (failure.step.as_str(), failure.errno, failure.path.as_slice());
                assert_eq!(told, (step, errno, path.as_os_str().as_bytes()), "{mode:?}");
                assert!(!failure.node_fault);
                assert!(failure.message.contains(&path.display().to_string()), "{failure:?}");
            }
        }
        let mut null = Job::shell(id + 1, "echo gone; exit 3");
        null.stdout = Some("/dev/null".into());
        assert_eq!(status_of(&world.outcome(&null)), exited(3));
        let pong = world.pong();
        assert!(pong.live == 0 && pong.problem.is_empty(), "{pong:?}");
    }
}

/// A world with a job whose output hangs in open, as its keeper has told.
fn hanging(world: &mut World) -> Option<(Fuse, Job)> {
    hanging_job(world, "exec sleep 999")
}

fn hanging_job(world: &mut World, text: &str) -> Option<(Fuse, Job)> {
    let Some(fuse) = Fuse::mount(world.open_path("mount")) else {
        println!("skipped: no FUSE file system can be mounted here");
        return None;
    };
    let mut job = Job::shell(1, text);
    job.stdout = Some(fuse.file());
    job.spec.kill_grace_ms = Some(100);
    let other = running(world, 2);
    world.run(&job);
    wait_for("the open", || (fuse.hanging() > 0).then_some(()));
    let problem = wait_for("the node to be flagged", || {
        Some(world.pong().problem).filter(|problem| !problem.is_empty())
    });
    assert!(problem.contains("spawn blocked in stdout") && problem.contains("1/1"), "{problem}");
    // What runs goes on and ends.
    fs::write(world.open_path("go"), "").unwrap();
    assert_eq!(status_of(&world.finish_of(&other)), exited(5));
    Some((fuse, job))
}

fn running(world: &mut World, id: u64) -> Job {
    let (file, up) = (world.open_path("go"), world.open_path("up"));
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 5", file.display());
    let job = Job::shell(id, &format!("touch {}; {wait}", up.display()));
    world.run(&job);
    wait_for_file(&up);
    job
}

fn serves_again(world: &mut World) {
    assert_eq!(status_of(&world.outcome(&Job::shell(90, "exit 4"))), exited(4));
    wait_for("the flag to go", || world.pong().problem.is_empty().then_some(()));
}

fn goes_on() {
    let mut world = World::new(Mode::Best);
    let Some((fuse, job)) = hanging_job(&mut world, "exit 7") else { return };
    fuse.answers();
    assert_eq!(status_of(&world.finish_of(&job)), exited(7), "{}", world.log());
    serves_again(&mut world);
}

fn aborted() {
    let mut world = World::new(Mode::Best);
    let Some((fuse, job)) = hanging(&mut world) else { return };
    fuse.aborts();
    match world.finish_of(&job).end {
        Some(End::StartFailure(failure)) => {
            assert_eq!(failure.step, "stdout");
            assert_eq!(Path::new(std::str::from_utf8(&failure.path).unwrap()), fuse.file());
        }
        other => panic!("{other:?}"),
    }
    serves_again(&mut world);
}

/// The kernel lets go of an open that a file server has taken only when that answers or is gone: until
/// then not even SIGKILL ends it, and the cancel waits.
fn cancelled() {
    for (mode, answers) in [(Mode::Best, true), (Mode::Best, false), (Mode::Marks, true)] {
        let mut world = World::new(mode);
        let Some((fuse, job)) = hanging(&mut world) else { return };
        world.kill(&job, KillCause::Cancel, 0, None);
        assert_eq!(world.phase_of(&job), Some(Phase::Accepted));
        wait_for("the cancel to be durable", || {
            let noted = |record: &JournalRecord| matches!(record.kind, Some(Kind::Kill(_)));
            world.journal_records().iter().any(|(_, record)| noted(record)).then_some(())
        });
        if answers {
            fuse.answers()
        } else {
            fuse.aborts()
        }
        let finish = world.finish_of(&job);
        match finish.end {
            // Nothing ran: the open failed before the kill came.
            Some(End::StartFailure(failure)) if !answers => assert_eq!(failure.step, "stdout"),
            Some(End::WaitStatus(status)) => {
                assert_eq!(finish.killed_for, KillCause::Cancel as i32, "{mode:?}");
                assert!([9, 15].contains(&status), "{mode:?}: {status}");
            }
            other => panic!("{mode:?}: {other:?} {}", world.log()),
        }
        serves_again(&mut world);
        assert!(world.job_processes().is_empty(), "{mode:?}");
    }
}

/// The one child of a process that has not ended.
fn only_child(parent: u32) -> u32 {
    let parent_of = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut words = stat.rsplit(") ").next()?.split(' ');
        let state = words.next()?;
        (state != "Z").then(|| words.next().and_then(|word| word.parse::<u32>().ok())).flatten()
    };
    wait_for("one child", || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let children: Vec<u32> = pids.filter(|pid| parent_of(pid) == Some(parent)).collect();
        match children[..] {
            [child] => Some(child),
            _ => None,
        }
    })
}

/// Somebody, or the kernel for want of memory, kills the child that stands in a step of its start: nothing
/// of the job ran, so it was not started, and it is not the job's fault.
fn killed_before_exec() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let Some((fuse, job)) = hanging(&mut world) else { return };
        let child = only_child(world.welcome.pid);
        kill_process(Pid::from_raw(child as i32).unwrap(), Signal::KILL).unwrap();
        // Only then does the kernel let it end.
        fuse.answers();
        let finish = world.finish_of(&job);
        let Some(End::StartFailure(failure)) = &finish.end else {
            panic!("{mode:?}: {finish:?} {}", world.log())
        };
        assert_eq!((failure.step.as_str(), failure.node_fault), ("stdout", true), "{failure:?}");
        assert!(failure.message.contains("killed by signal 9"), "{failure:?}");
        assert_eq!(finish.start, None, "{mode:?}: it never started");
        let started = |record: &JournalRecord| matches!(&record.kind, Some(Kind::Started(s)) if s.attempt == Some(job.attempt_ref()));
        assert!(!world.journal_records().iter().any(|(_, record)| started(record)), "{mode:?}");
        serves_again(&mut world);
    }
}

/// Started with other threads than the one that hangs, each is reaped, told once, and with its own
/// code; a script is executable though a half-started child of another thread lives.
fn others_go_on() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let Some((fuse, job)) = hanging_job(&mut world, "exit 7") else { return };
        let mut second = Job::shell(3, "exit 8");
        second.stderr = Some(fuse.file());
        world.run(&second);
        wait_for("the second open", || (fuse.hanging() == 2).then_some(()));
        let others: Vec<Job> = (10..40).map(other).collect();
        others.iter().for_each(|other| world.run(other));
        for (n, other) in (10..).zip(&others) {
            assert_eq!(status_of(&world.finish_of(other)), exited(n), "{mode:?}: {}", world.log());
        }
        assert_eq!(fuse.hanging(), 2, "{mode:?}: they ended while both hang");
        assert_eq!(world.phase_of(&job), Some(Phase::Accepted));
        assert_eq!(world.start_failure(&Job::argv(50, &["/nowhere"])).step, "exec");
        let problem = wait_for("both to be told", || {
            Some(world.pong().problem).filter(|problem| problem.contains("and 1 more"))
        });
        assert!(
            problem.contains("spawn blocked in stdout") && problem.contains("1/1"),
            "{problem}"
        );
        fuse.answers();
        assert_eq!(status_of(&world.finish_of(&job)), exited(7), "{mode:?}: {}", world.log());
        assert_eq!(status_of(&world.finish_of(&second)), exited(8), "{mode:?}");
        serves_again(&mut world);
        for job in others.iter().chain([&job, &second]) {
            assert_eq!(world.finishes(job.attempt_ref()).len(), 1, "{mode:?}");
        }
    }
}

/// Every third one is a script of its own.
fn other(n: u64) -> Job {
    let mut job = Job::shell(n, &format!("exit {n}"));
    if n.is_multiple_of(3) {
        job.spec.argv.clear();
        job.spec.script = Some(format!("#!/bin/sh\nexit {n}\n").into_bytes());
    }
    job
}

/// As many as the spawner leaves alone, and the one at which it stops.
const HUNG: u64 = 9;

fn too_many_hang() {
    let mut world = World::new(Mode::Best);
    let Some((fuse, first)) = hanging_job(&mut world, "exit 1") else { return };
    let rest = (3..HUNG + 2).map(|n| {
        let mut job = Job::shell(n, &format!("exit {n}"));
        job.stdout = Some(fuse.file());
        job
    });
    let rest: Vec<Job> = rest.collect();
    rest.iter().for_each(|job| world.run(job));
    wait_for("all opens", || (fuse.hanging() as u64 == HUNG).then_some(()));
    let waits = Job::shell(20, "exit 20");
    world.run(&waits);
    wait_for("the node to say that starts wait", || {
        world.pong().problem.contains("new starts wait: more than 8 hang").then_some(())
    });
    assert_eq!(world.phase_of(&waits), Some(Phase::Accepted));
    fuse.answers();
    for job in rest.iter().chain([&waits]) {
        let code = job.job as u32;
        assert_eq!(status_of(&world.finish_of(job)), exited(code), "{}", world.log());
    }
    assert_eq!(status_of(&world.finish_of(&first)), exited(1));
    serves_again(&mut world);
}

const JOBS: u64 = 1_000;

/// Of the keeper alone, for each running job.
const MEMORY_MAX_BYTES: u64 = 16 << 10;
const DESCRIPTORS_MAX: u64 = 4;

fn private_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let kib = |line: &str| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    let private = text.lines().filter(|line| line.starts_with("Private_"));
    private.filter_map(kib).sum::<u64>() * 1024
}

fn descriptors(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64
}

fn thousand() {
    for mode in modes() {
        let mut world = World::new(mode);
        world.outcome(&Job::shell(9_999, "exit 0"));
        let pid = world.welcome.pid;
        let before = (private_bytes(pid), descriptors(pid));
        // One line each, in a shell that waits without a child: a thousand must not keep it busy.
        let fifo = world.open_path("gate");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, 0o666.into(), 0).unwrap();
        std::process::Command::new("chmod").arg("666").arg(&fifo).status().unwrap();
        let text = |n: u64| format!("read line < {}; exit {}", fifo.display(), n % 251);
        let jobs: Vec<Job> = (1..=JOBS).map(|n| Job::shell(n, &text(n))).collect();
        for chunk in jobs.chunks(200) {
            chunk.iter().for_each(|job| world.run(job));
            chunk.iter().for_each(|job| drop(world.start_of(job)));
        }
        assert_eq!(world.pong().live, JOBS as u32, "all run at once");
        let after = (private_bytes(pid), descriptors(pid));
        let memory = after.0.saturating_sub(before.0) / JOBS;
        let held = after.1 - before.1;
        println!("{mode:?}: {memory} bytes and {held} descriptors of the keeper for {JOBS} jobs");
        assert!(memory <= MEMORY_MAX_BYTES, "{mode:?}: {memory} bytes a job");
        assert!(held <= DESCRIPTORS_MAX * JOBS, "{mode:?}: {held} descriptors");
        // Opened for writing, and closed without a line: all readers see the end.
        drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
        for job in &jobs {
            assert_eq!(status_of(&world.finish_of(job)), exited((job.job % 251) as u32));
        }
        assert_eq!(world.pong().live, 0);
        world.ack_all();
        let left = wait_for("its descriptors to go", || {
            Some(descriptors(pid)).filter(|count| *count <= before.1 + 3 * 64)
        });
        println!("{mode:?}: {left} descriptors afterwards, {} before", before.1);
    }
}
