//! What dies and what does not: `kill -9` of the keeper touches no job and loses no exit status.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use prost::Message;
use proto::v1::journal_record::Kind;
use proto::v1::keeper_request::Kind as Request;
use proto::v1::{Accepted, JournalRecord, KeeperAck, KillCause, finish_fact::End};

use crate::kill::Hung;
use crate::runner::Test;
use crate::world::{
    Job, Mode, World, exited, is_alive, kill_pid, modes, seqs, status_of, wait_for, wait_for_file,
};

pub const TESTS: &[Test] = &[
    ("a_job_outlives_its_keeper_with_its_real_exit_code", outlives_keeper),
    ("an_end_while_no_keeper_lives_is_told_by_the_next", ends_without_keeper),
    ("a_kill_goes_on_after_the_keeper_died", kill_goes_on),
    ("unacknowledged_facts_are_sent_again_and_only_those", resent),
    ("an_accepted_attempt_never_starts_twice", never_twice),
    ("a_job_outlives_keeper_and_guard", outlives_both),
    ("a_dead_guard_stops_nothing", guard_dies),
    ("crashes_at_any_moment_lose_and_invent_no_status", random_crashes),
    ("a_keeper_that_dies_around_a_start_or_an_end_loses_no_status", around_start_and_end),
    ("a_start_that_fails_after_its_keeper_died_is_told_as_that", fails_without_keeper),
    ("a_start_that_hangs_when_its_keeper_dies_is_not_told_as_a_signal", hangs_without_keeper),
    ("an_acceptance_without_start_ends_as_unknown", accepted_only),
];

/// Exits with this code once the file is there.
pub fn waiting(world: &World, job: u64, code: u32) -> Job {
    let file = world.open_path("go").display().to_string();
    Job::shell(job, &format!("while [ ! -e {file} ]; do sleep 0.05; done; exit {code}"))
}

fn outlives_keeper() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = waiting(&world, 1, 42);
        world.run(&job);
        let start = world.start_of(&job);
        let old = world.welcome.clone();
        world.kill_keeper();
        world.connect();
        assert_ne!(world.welcome.pid, old.pid);
        assert_eq!(world.welcome.journal_id, old.journal_id);
        let items = world.manifest().items;
        assert_eq!(items.len(), 1);
        assert_eq!((items[0].pid, items[0].pid_start_ticks), (start.pid, start.pid_start_ticks));
        assert!(is_alive(start.pid));
        fs::write(world.open_path("go"), "").unwrap();
        let finish = world.finish_of(&job);
        assert_eq!(status_of(&finish), exited(42), "{mode:?} {}", world.log());
        assert_eq!(finish.start, Some(start));
        assert!(finish.rusage.is_some(), "the guard counted it");
    }
}

fn ends_without_keeper() {
    for mode in modes() {
        let mut world = World::new(mode);
        let jobs: Vec<Job> = (1..=5).map(|n| waiting(&world, n, n as u32)).collect();
        for job in &jobs {
            world.run(job);
        }
        let pids: Vec<u32> = jobs.iter().map(|job| world.start_of(job).pid).collect();
        // Twice in a row, so that the guard pauses before it starts the next.
        world.kill_keeper();
        world.connect();
        world.kill_keeper();
        fs::write(world.open_path("go"), "").unwrap();
        wait_for("the end of the jobs", || (!pids.iter().any(|p| is_alive(*p))).then_some(()));
        world.connect();
        for job in &jobs {
            assert_eq!(status_of(&world.finish_of(job)), exited(job.job as u32), "{}", world.log());
        }
        assert!(fs::metadata(world.dir().join("guard.exits")).unwrap().len() == 0);
    }
}

fn kill_goes_on() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let ready = world.open_path("ready");
        let text = format!(
            "trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done') & \
             touch {}; while :; do sleep 1; done",
            ready.display()
        );
        let mut job = Job::shell(1, &text);
        job.spec.kill_grace_ms = Some(500);
        world.run(&job);
        wait_for_file(&ready);
        world.kill(&job, KillCause::Cancel, 0, None);
        world.pong();
        world.kill_keeper();
        world.connect();
        let finish = world.finish_of(&job);
        assert_eq!((status_of(&finish), finish.killed_for), (9, KillCause::Cancel as i32));
        assert!(world.job_processes().is_empty(), "{mode:?}");
        // What the dead keeper killed is no birthplace of the next one's jobs.
        for id in 2..5 {
            assert_eq!(status_of(&world.outcome(&Job::shell(id, "exit 3"))), exited(3));
        }
    }
}

fn resent() {
    let mut world = World::new(Mode::Best);
    for n in 1..=10 {
        world.outcome(&Job::shell(n, "exit 0"));
    }
    let first: Vec<_> = std::mem::take(&mut world.facts);
    let acked = first[7].seq;
    world.send(Request::Ack(KeeperAck { to: acked }));
    world.pong();
    // Once to the next client, once after a crash, each time in order from where it stands.
    for crash in [false, true] {
        if crash {
            // An acknowledgement is durable with the next write.
            world.outcome(&Job::shell(50, "exit 0"));
            world.facts.clear();
            world.kill_keeper();
        }
        world.connect();
        assert_eq!(world.welcome.acked, acked);
        let wanted: Vec<_> = first.iter().filter(|f| f.seq > acked).cloned().collect();
        let got = world.until("the facts again", |world| {
            (world.facts.len() >= wanted.len()).then(|| world.facts[..wanted.len()].to_vec())
        });
        assert_eq!(got, wanted);
        world.facts.clear();
    }
}

fn never_twice() {
    let mut world = World::new(Mode::Best);
    let count = world.open_path("count");
    let text = format!(
        "echo x >> {}; while [ ! -e {} ]; do sleep 0.05; done",
        count.display(),
        world.open_path("go").display()
    );
    let mut job = Job::shell(1, &text);
    job.order_id = Some(7);
    world.run(&job);
    world.run(&job);
    world.start_of(&job);
    world.run(&job);
    world.kill_keeper();
    world.connect();
    world.run(&job);
    world.pong();
    wait_for_file(&count);
    fs::write(world.open_path("go"), "").unwrap();
    world.finish_of(&job);
    world.run(&job);
    world.ack_all();
    world.run(&job);
    world.pong();
    world.kill_keeper();
    world.connect();
    world.run(&job);
    assert_eq!(world.manifest().items.len(), 0);
    assert_eq!(fs::read_to_string(count).unwrap(), "x\n");
    assert_eq!(world.finishes(job.attempt_ref()).len(), 1);
}

fn outlives_both() {
    for mode in modes() {
        let mut world = World::new(mode);
        let job = waiting(&world, 1, 9);
        let victim = Job::shell(2, "setsid sleep 999 & sleep 999");
        world.run(&job);
        world.run(&victim);
        let pid = world.start_of(&job).pid;
        world.start_of(&victim);
        kill_pid(world.guard_pid());
        world.kill_keeper();
        world.wait_ended();
        assert!(is_alive(pid));
        world.launch().unwrap();
        world.connect();
        world.kill(&victim, KillCause::Cancel, 20_000, None);
        let finish = world.finish_of(&victim);
        assert_eq!(finish.killed_for, KillCause::Cancel as i32);
        fs::write(world.open_path("go"), "").unwrap();
        let finish = world.finish_of(&job);
        // Init reaped it: only a kernel that keeps statuses for a pidfd can say more.
        match finish.end {
            Some(End::WaitStatus(status)) => assert_eq!(status, exited(9)),
            Some(End::UnknownStatus(true)) => assert!(!finish.started_unknown),
            other => panic!("{other:?}"),
        }
        assert!(world.job_processes().is_empty(), "{mode:?}");
    }
}

fn guard_dies() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let job = waiting(&world, 1, 3);
        world.run(&job);
        world.start_of(&job);
        kill_pid(world.guard_pid());
        let next = Job::shell(2, "sleep 300 & exit 4");
        assert_eq!(status_of(&world.outcome(&next)), exited(4));
        fs::write(world.open_path("go"), "").unwrap();
        assert_eq!(status_of(&world.finish_of(&job)), exited(3));
        assert!(world.job_processes().is_empty());
        assert!(world.pong().problem.contains("guard"));
        assert!(world.launch().is_ok(), "the lock is the keeper's now, no second one starts");
        let pid = world.welcome.pid;
        world.connect();
        assert_eq!(world.welcome.pid, pid);
    }
}

fn random_crashes() {
    for (mode, from) in [(Mode::Best, 0), (Mode::Best, 3), (Mode::Marks, 0), (Mode::Marks, 3)] {
        let mut world = World::new(mode);
        let mut id = 0;
        // One guard throughout: it gives up after five keepers in a row that died young.
        for round in from..from + 4u64 {
            let jobs: Vec<Job> = (0..10)
                .map(|n| {
                    id += 1;
                    Job::shell(id, &format!("exit {n}"))
                })
                .collect();
            for job in &jobs {
                world.run(job);
            }
            // Some facts in, at another point each round.
            for _ in 0..round {
                world.pump(std::time::Duration::from_millis(2));
            }
            world.kill_keeper();
            world.connect();
            for (n, job) in jobs.iter().enumerate() {
                // What the dead keeper had not read never arrived: the leader would send it again.
                let known =
                    world.phase_of(job).is_some() || !world.finishes(job.attempt_ref()).is_empty();
                if !known {
                    continue;
                }
                let finish = world.finish_of(job);
                match finish.end {
                    Some(End::WaitStatus(status)) => assert_eq!(status, exited(n as u32)),
                    // Accepted and never born: the guard's board proves it.
                    Some(End::StartFailure(failure)) => {
                        assert!(failure.node_fault && failure.errno == libc::EOWNERDEAD);
                    }
                    other => panic!("{other:?}: the guard lived"),
                }
            }
            world.ack_all();
        }
        assert!(seqs(&world.facts).len() > 20);
        assert!(world.job_processes().is_empty());
    }
}

/// One job at a time, its keeper killed after ever longer times: before the clone, before the exec,
/// before the start is durable, before the end is.
fn around_start_and_end() {
    for mode in [Mode::Best, Mode::Marks] {
        let (mut born, mut done) = (0, 0);
        for round in 0..14u64 {
            let mut world = World::new(mode);
            let ran = world.open_path("ran");
            let text = format!("echo x >> {}; setsid sleep 0.3 & exit 23", ran.display());
            let job = Job::shell(1, &text);
            world.run(&job);
            std::thread::sleep(std::time::Duration::from_micros(350 * round));
            world.kill_keeper();
            world.connect();
            let known =
                world.phase_of(&job).is_some() || !world.finishes(job.attempt_ref()).is_empty();
            if !known {
                continue;
            }
            let finish = world.finish_of(&job);
            match finish.end {
                Some(End::WaitStatus(status)) => {
                    assert_eq!(status, exited(23), "{mode:?} round {round}");
                    assert!(finish.start.is_some_and(|start| start.pid > 0));
                    born += 1;
                }
                Some(End::StartFailure(failure)) => {
                    assert!(failure.node_fault && failure.errno == libc::EOWNERDEAD);
                    assert!(!ran.exists(), "{mode:?} round {round}: it ran");
                    done += 1;
                }
                other => panic!("{mode:?} round {round}: {other:?}"),
            }
        }
        assert!(born + done > 3, "{mode:?}: {born} were born, {done} not");
    }
}

fn in_hung_dir(world: &World, hung: &Hung) -> Job {
    let mut job = Job::argv(1, &["true"]);
    job.spec.dir = hung.at.as_os_str().as_bytes().to_vec();
    assert!(!world.log().contains("cannot"));
    job
}

/// The child of the keeper that stands in chdir.
fn wait_in_chdir(world: &World) -> u32 {
    let keeper = world.welcome.pid;
    wait_for("a child on its way", || {
        world.processes().into_iter().find(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let words: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
            let wait = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            words.get(1) == Some(&keeper.to_string().as_str()) && wait.contains("fuse")
        })
    })
}

fn fails_without_keeper() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let Some(hung) = Hung::mount(world.open_path("hung")) else { return };
        let job = in_hung_dir(&world, &hung);
        world.run(&job);
        wait_in_chdir(&world);
        world.kill_keeper();
        drop(hung);
        world.connect();
        let finish = world.finish_of(&job);
        match finish.end {
            Some(End::StartFailure(failure)) => assert_eq!(failure.step, "chdir"),
            other => panic!("{mode:?}: {other:?} {}", world.log()),
        }
    }
}

fn hangs_without_keeper() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let Some(hung) = Hung::mount(world.open_path("hung")) else { return };
        let job = in_hung_dir(&world, &hung);
        world.run(&job);
        wait_in_chdir(&world);
        world.kill_keeper();
        world.connect();
        let finish = world.finish_of(&job);
        assert_eq!(finish.end, Some(End::UnknownStatus(true)), "{mode:?} {}", world.log());
        drop(hung);
    }
}

fn accepted_only() {
    let mut world = World::with_idle(Mode::Best, 100);
    let boot_id = world.welcome.boot_id.clone();
    world.disconnect();
    world.wait_ended();
    let (here, rebooted) = (Job::shell(1, "true"), Job::shell(2, "true"));
    let accepted = |job: &Job, boot_id: &[u8]| {
        let accepted = Accepted {
            attempt: Some(job.attempt_ref()),
            token: Some(job.token()),
            order_id: 5,
            mark: b"nobody has this".to_vec(),
            boot_id: boot_id.to_vec(),
            run_file: b"/nonexistent/1.1".to_vec(),
            ..Accepted::default()
        };
        JournalRecord { kind: Some(Kind::Accepted(accepted)) }.encode_to_vec()
    };
    append_to_journal(&world, &[accepted(&here, &boot_id), accepted(&rebooted, b"before")]);
    world.launch().unwrap();
    world.connect();
    let finish = world.finish_of(&here);
    assert_eq!(finish.end, Some(End::UnknownStatus(true)));
    assert!(finish.started_unknown && finish.start.is_none());
    let finish = world.finish_of(&rebooted);
    assert_eq!(finish.end, Some(End::NodeRebooted(true)));
    world.run(&here);
    world.pong();
    assert_eq!(world.finishes(here.attempt_ref()).len(), 1, "it does not start now either");
}

fn append_to_journal(world: &World, payloads: &[Vec<u8>]) {
    let text = fs::read_to_string(world.dir().join("journal.id")).unwrap();
    let id = u128::from_str_radix(text.trim(), 16).unwrap().to_be_bytes();
    let disk = wal::Disk::open(&world.dir().join("journal")).unwrap();
    let identity = wal::Identity { cluster_id: id, owner_id: 0 };
    let (mut log, _) = wal::Log::open(disk, identity, wal::Options::keeper()).unwrap();
    let first = log.last_index() + 1;
    let records: Vec<wal::Record> = (first..)
        .zip(payloads)
        .map(|(index, payload)| wal::Record::Entry { index, term: 1, payload: payload.clone() })
        .collect();
    log.append(&records).unwrap();
    log.sync().unwrap();
}
