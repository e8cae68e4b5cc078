//! M1: a recorded log of the old kind, whose jobs stayed RUN for ever over any number of restarts,
//! heals by itself: its replay, a new term, and then either its nodes or the time to live.

use super::image::bytes;
use super::world::*;
use crate::ledger::{Kind, Ledger, StateName};
use prost::Message as _;
use proto::v1::{self, ExitKind, Phase};
use proto::{JobId, OrderId};

/// Encoded proposals, each behind its length, as [`record`] wrote them once.
const RECORDED: &[u8] = include_bytes!("fixtures/stuck-in-run.bin");

const NODES: [&str; 4] = ["agent-1", "agent-2", "agent-3", "agent-4"];

/// On each node a job that was heard to start and one that was not; then nothing more of anybody.
fn record() -> Vec<v1::Proposal> {
    let mut world = World::new();
    NODES.iter().for_each(|node| world.node_up(node, 1, "j1"));
    for node in NODES {
        let (ran, given) = (world.submit(), world.submit());
        world.assign_to(ran, node);
        let start = world.start_fact(ran);
        world.facts(node, vec![start]);
        world.assign_to(given, node);
        // Restarts leave no entry in such a log, only time.
        world.pass(3_600_000);
    }
    world.log
}

/// The ledger after the replay, with its controller restarted again and again.
fn replayed() -> World {
    let (mut world, mut rest) = (World::new(), RECORDED);
    while !rest.is_empty() {
        let proposal = v1::Proposal::decode_length_delimited(&mut rest).expect("a proposal");
        world.index += 1;
        world.ledger.apply(world.index, &proposal);
        let image = bytes(&world.ledger.freeze());
        world.ledger = Ledger::thaw(image.into_iter()).expect("its own image");
        world.ledger.check();
    }
    (world.wall_ms, world.led_ms) = (world.ledger.wall(), world.ledger.led());
    NODES.iter().for_each(|node| *world.seq(node) = 2);
    world
}

/// Of the node with that number from 0: the job that ran, the one that was only given to it.
fn jobs(node: u64) -> (JobId, JobId) {
    (JobId(node * 2 + 1), JobId(node * 2 + 2))
}

/// One that never knows is lost in the end.
fn time_to_live_passes(world: &mut World) {
    world.pass(2 * 300_000);
    while world.tick().1 {}
}

#[test]
fn the_recorded_log_replays_to_jobs_that_stay_run() {
    let mut world = replayed();
    world.pass(30 * 24 * 3_600_000);
    world.tick();
    let counts = world.ledger.counts();
    assert_eq!((counts.get(&StateName::Run), counts.get(&StateName::Pend)), (Some(&4), Some(&4)));
    assert_eq!(world.ledger.next_deadline_led(), None, "nothing would ever end them");
}

#[test]
fn a_new_term_and_its_nodes_or_the_time_to_live_end_each_of_them() {
    let mut world = replayed();
    world.term(5);
    let since = world.led_ms;
    assert_eq!(world.ledger.counts().get(&StateName::Unkwn), Some(&8));
    // More restarts do not begin the time to live anew (B2).
    world.pass(10_000);
    world.term(6);
    assert!((1..=8).all(|job| world.since_led(JobId(job)) == Some(since)));
    // Node 1 comes back with both, and each ends with its own code.
    let (ran, given) = jobs(0);
    world.join(NODES[0], 2, "j1");
    let items = vec![world.item(ran, Phase::Running), world.item(given, Phase::Accepted)];
    world.at_join(NODES[0], items);
    assert_eq!((world.kind(ran), world.kind(given)), (Kind::Running, Kind::Dispatched));
    world.finish(ran, code(0));
    world.finish(given, code(3));
    assert_eq!((world.kind(ran), world.task(given).exit_code), (Kind::Done, Some(3)));
    // Node 2 lost its directory, node 3 only the jobs: what ran has vanished, and an order that the
    // same journal never saw goes again.
    world.join(NODES[1], 2, "j2");
    world.at_join(NODES[1], Vec::new());
    world.join(NODES[2], 2, "j1");
    world.at_join(NODES[2], Vec::new());
    let vanished = [jobs(1).0, jobs(1).1, jobs(2).0].map(|job| world.reason(job));
    assert_eq!(vanished, [Some(ExitKind::Vanished); 3]);
    let again = jobs(2).1;
    assert_eq!(world.kind(again), Kind::Dispatched);
    assert!(world.job(again).grant().is_some_and(|grant| grant.order > OrderId(0)));
    let finish = world.finish_fact(again, code(0));
    world.facts(NODES[2], vec![v1::fact::Kind::Finish(finish)]);
    assert_eq!(world.kind(again), Kind::Done);
    // Node 4 never comes.
    time_to_live_passes(&mut world);
    let (ran, given) = jobs(3);
    assert_eq!([world.reason(ran), world.reason(given)], [Some(ExitKind::Lost); 2]);
    assert_eq!(world.ledger.live(), 0, "none is left");
}

#[test]
fn without_any_node_all_of_them_are_lost_in_time_and_none_has_an_invented_code() {
    let mut world = replayed();
    world.term(5);
    time_to_live_passes(&mut world);
    assert_eq!(world.ledger.live(), 0);
    let codes = (1..=8).map(|job| world.task(JobId(job)).exit_code);
    assert!(codes.into_iter().all(|code| code.is_none()));
}

/// Writes the recording; run by hand, once, with the program whose log it is.
#[test]
#[ignore = "writes the recording anew: cargo test -p docket-core write_the_recording -- --ignored"]
#[allow(clippy::disallowed_methods, reason = "it writes the file that the others read")]
fn write_the_recording() {
    let bytes: Vec<u8> = record().iter().flat_map(|p| p.encode_length_delimited_to_vec()).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ledger/tests/fixtures/stuck-in-run.bin");
    std::fs::write(path, bytes).expect("the folder is there");
}
