//! The keeper and its clients: one at a time, the newest; a life that ends when nothing is left.

use std::fs;
use std::io;
use std::time::Duration;

use proto::AttemptId;
use proto::digest::Digest;
use proto::v1::journal_record::Kind;
use proto::v1::keeper_event::Kind as Event;
use proto::v1::keeper_request::Kind as Request;
use proto::v1::{KeeperHello, KeeperLater, KeeperPing, KeeperStop, KillCause, Phase};
use rustix::process::{Pid, Signal, kill_process};
use worker_agent::keeper::{Client, LockState, lock_state};

use crate::runner::Test;
use crate::world::{DEADLINE, Job, Mode, World, exited, is_alive, status_of, wait_for};

pub const TESTS: &[Test] = &[
    ("the_newest_client_wins", newest_wins),
    ("an_idle_keeper_ends_and_its_guard_too", idle_end),
    ("what_is_owed_keeps_the_keeper", owed),
    ("a_second_launch_starts_nothing", second_launch),
    ("manifest_and_digest_say_the_same", manifest),
    ("a_fact_told_later_comes_behind_the_others", later),
    ("an_acknowledgement_is_journalled_behind_what_is_told_anew_for_it", acked_behind),
    ("stop_ends_jobs_only_if_asked", stop),
    ("a_deleted_directory_ends_the_keeper_after_its_jobs", deleted),
    ("a_journal_that_is_not_understood_is_named", bad_journal),
    ("a_full_disk_refuses_runs_and_keeps_ends", full_disk),
    ("an_end_that_waits_for_room_is_listed_as_ended", parked),
    ("a_request_before_hello_is_refused", no_hello),
];

fn newest_wins() {
    let mut world = World::new(Mode::Best);
    let mut older = Client::connect(&world.dir()).unwrap();
    older.send(Request::Hello(KeeperHello::default())).unwrap();
    assert!(matches!(older.receive(DEADLINE).unwrap(), Some(Event::Welcome(_))));
    world.connect();
    let ended = wait_for("the older one's end", || older.receive(Duration::from_secs(1)).err());
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    // A connection that says nothing takes no one's place.
    let silent = Client::connect(&world.dir()).unwrap();
    assert_eq!(status_of(&world.outcome(&Job::shell(1, "exit 2"))), exited(2));
    drop(silent);
}

fn idle_end() {
    let mut world = World::with_idle(Mode::Best, 100);
    world.outcome(&Job::shell(1, "true"));
    let pids = [world.welcome.pid, world.guard_pid()];
    world.ack_all();
    world.pong();
    world.disconnect();
    world.wait_ended();
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    world.launch().unwrap();
    world.connect();
    assert!(world.welcome.acked > 0, "an orderly end keeps acknowledgements");
    assert_eq!(world.manifest().items.len(), 0);
}

fn owed() {
    let mut world = World::with_idle(Mode::Best, 50);
    world.outcome(&Job::shell(1, "true"));
    let pid = world.welcome.pid;
    world.disconnect();
    // Ten times what it stays when idle.
    let ended = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        !is_alive(pid)
    });
    assert!(!ended);
    world.connect();
    assert_eq!(world.welcome.pid, pid);
    assert_eq!(world.phase_of(&Job::shell(1, "")), Some(Phase::Ended));
}

fn second_launch() {
    let mut world = World::new(Mode::Best);
    let (pid, guard) = (world.welcome.pid, world.guard_pid());
    world.launch().unwrap();
    world.connect();
    assert_eq!((world.welcome.pid, world.guard_pid()), (pid, guard));
    let LockState::Held { by } = lock_state(&world.dir()).unwrap() else { panic!("free") };
    assert!(by.contains(env!("CARGO_PKG_VERSION")), "{by}");
    let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let words = format!("docket\0keeper\0--data\0{}\0", world.dir().display());
    assert!(argv.starts_with(words.as_bytes()), "{}", String::from_utf8_lossy(&argv));
}

fn manifest() {
    let mut world = World::new(Mode::Best);
    let mut jobs = vec![Job::argv(1, &["sleep", "999"]), Job::argv(2, &["sleep", "999"])];
    jobs[1].task = Some(7);
    for job in &jobs {
        world.run(job);
        world.start_of(job);
    }
    let last = Job { order_id: Some(900), ..Job::shell(3, "exit 1") };
    world.outcome(&last);
    let manifest = world.manifest();
    let phases: Vec<Phase> = manifest.items.iter().map(|item| item.phase()).collect();
    assert_eq!(phases, [Phase::Running, Phase::Running, Phase::Ended]);
    assert_eq!(manifest.last_order, 900);
    assert_eq!(manifest.last_seq, world.facts.last().unwrap().seq);
    let expected: Digest = jobs
        .iter()
        .map(|job| (AttemptId::from_wire(Some(&job.attempt_ref())).unwrap(), Phase::Running))
        .collect();
    let pong = world.pong();
    assert_eq!((pong.digest, pong.live), (expected.value(), 2));
    assert_eq!((pong.last_seq, pong.last_order), (manifest.last_seq, manifest.last_order));
    assert!(!pong.disk_full && pong.problem.is_empty() && pong.boottime_ms > 0);
}

fn later() {
    let mut world = World::new(Mode::Best);
    let job = Job::shell(1, "exit 3");
    world.outcome(&job);
    let first = world.facts.last().unwrap().clone();
    world.send(Request::Later(KeeperLater { seq: first.seq }));
    let again = world
        .until("the fact again", |world| world.facts.iter().find(|f| f.seq > first.seq).cloned());
    assert_eq!(again.kind, first.kind);
    world.send(Request::Ack(proto::v1::KeeperAck { to: first.seq }));
    assert_eq!(world.phase_of(&job), Some(Phase::Ended), "still owed");
    world.ack_all();
    assert_eq!(world.phase_of(&job), None);
}

fn acked_behind() {
    let mut world = World::new(Mode::Best);
    world.outcome(&Job::shell(1, "exit 3"));
    let seq = world.facts.last().unwrap().seq;
    // Both are read in one turn of the keeper.
    let keeper = Pid::from_raw(world.welcome.pid as i32).unwrap();
    kill_process(keeper, Signal::STOP).unwrap();
    world.send(Request::Later(KeeperLater { seq }));
    world.send(Request::Ack(proto::v1::KeeperAck { to: seq }));
    kill_process(keeper, Signal::CONT).unwrap();
    let again =
        world.until("the fact again", |world| world.facts.iter().map(|f| f.seq).find(|s| *s > seq));
    let acked = world.until("the acknowledgement", |world| {
        let records = world.journal_records();
        records.iter().find_map(|(at, record)| match &record.kind {
            Some(Kind::Acked(acked)) if acked.to == seq => Some(*at),
            _ => None,
        })
    });
    assert!(again < acked, "cut between {acked} and {again} the log would have lost the fact");
}

fn stop() {
    let mut world = World::new(Mode::Best);
    let file = world.open_path("go");
    let text = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 8", file.display());
    let job = Job::shell(1, &text);
    world.run(&job);
    world.start_of(&job);
    world.send(Request::Stop(KeeperStop { kill: false }));
    assert_eq!(world.phase_of(&job), Some(Phase::Running));
    let refused = Job::shell(2, "true");
    world.run(&refused);
    world.until("a refusal", |world| {
        let refusal =
            |f: &proto::v1::Fact| matches!(f.kind, Some(proto::v1::fact::Kind::Refused(_)));
        world.facts.iter().any(refusal).then_some(())
    });
    fs::write(file, "").unwrap();
    assert_eq!(status_of(&world.finish_of(&job)), exited(8));
    world.wait_ended();
}

fn deleted() {
    let mut world = World::new(Mode::Best);
    let file = world.open_path("go");
    let text = format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let job = Job::shell(1, &text);
    world.run(&job);
    let (pid, keeper, guard) = (world.start_of(&job).pid, world.welcome.pid, world.guard_pid());
    world.disconnect();
    fs::remove_dir_all(world.dir()).unwrap();
    assert!(is_alive(pid) && is_alive(keeper));
    fs::write(file, "").unwrap();
    let all = [pid, keeper, guard];
    wait_for("the end of all", || (!all.iter().any(|p| is_alive(*p))).then_some(()));
    assert!(!world.dir().exists(), "nothing makes it again");
}

fn bad_journal() {
    let mut world = World::bare(Mode::Best, 100);
    fs::write(world.dir().join("journal.id"), "not an id").unwrap();
    let error = world.launch().unwrap_err();
    assert!(error.contains("journal.id") && error.contains("hexadecimal"), "{error}");
    world.wait_ended();
    fs::remove_file(world.dir().join("journal.id")).unwrap();
    world.launch().unwrap();
    world.connect();
}

fn full_disk() {
    let Some(mut world) = World::on_small_disk(8 << 20) else { return };
    let file = world.open_path("go");
    let text = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 3", file.display());
    let job = Job::shell(1, &text);
    world.run(&job);
    world.start_of(&job);
    let filler = world.dir().join("filler");
    let full = fs::write(&filler, vec![1; 16 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    wait_for("the keeper to see it", || world.pong().disk_full.then_some(()));
    let next = Job::shell(2, "true");
    world.run(&next);
    let refused = world.until("a refusal", |world| {
        world.facts.iter().find_map(|f| match &f.kind {
            Some(proto::v1::fact::Kind::Refused(refused)) => refused.failure.clone(),
            _ => None,
        })
    });
    assert!(refused.node_fault && refused.errno == libc::ENOSPC, "{refused:?}");
    fs::write(file, "").unwrap();
    assert_eq!(status_of(&world.finish_of(&job)), exited(3), "ends are still recorded");
    fs::remove_file(filler).unwrap();
    wait_for("room again", || (!world.pong().disk_full).then_some(()));
    assert_eq!(status_of(&world.outcome(&Job::shell(3, "exit 4"))), exited(4));
}

/// Orders sent at a time until the journal has no room for one more, and how often at most.
const ORDERS: u64 = 2_000;
const ROUNDS_MAX: u64 = 200;

fn parked() {
    let Some(mut world) = World::on_small_disk(8 << 20) else { return };
    let file = world.open_path("go");
    let text = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 3", file.display());
    let job = Job::shell(1, &text);
    world.run(&job);
    world.start_of(&job);
    let filler = world.dir().join("filler");
    fs::write(&filler, vec![1; 16 << 20]).unwrap_err();
    // Each order is a record: in the end the reserve is used up too.
    let nobody = Job::shell(2, "");
    let full = (0..ROUNDS_MAX).any(|_| {
        (0..ORDERS).for_each(|_| world.kill(&nobody, KillCause::Cancel, 1, None));
        let last = world.last_order_id();
        world.pong().last_order < last
    });
    assert!(full, "the reserve has no end");
    fs::write(file, "").unwrap();
    let phase = world.until("the end of the job", |world| {
        Some(world.phase_of(&job)).filter(|phase| *phase != Some(Phase::Running))
    });
    assert_eq!(phase, Some(Phase::Ended), "missing, it would be taken for vanished");
    fs::remove_file(filler).unwrap();
    assert_eq!(status_of(&world.finish_of(&job)), exited(3));
}

fn no_hello() {
    let world = World::new(Mode::Best);
    let mut rude = Client::connect(&world.dir()).unwrap();
    rude.send(Request::Ping(KeeperPing { nonce: 1 })).unwrap();
    let error = rude.receive(DEADLINE).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}
