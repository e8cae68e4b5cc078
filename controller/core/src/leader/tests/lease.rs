//! Leases: what is echoed when, and when a lease is believed over.

use super::world::{BEAT_MS, LEASE_MS, World, join, started};
use crate::leader::{Event, SessionEnd, SessionId};
use crate::ledger::Kind;
use proto::v1::{self, agent_message::Kind as Up, leader_message::Kind as Down};

fn beat(world: &mut World, session: SessionId, h_ms: u64) {
    let beat = v1::Heartbeat { h_ms, keeper_answers: true, ..Default::default() };
    world.say(session, Up::Heartbeat(beat));
}

/// The h of each echo since it was last asked.
fn echoes(world: &mut World, session: SessionId) -> Vec<u64> {
    let h = |kind| if let Down::Heartbeat(answer) = kind { Some(answer.h_ms) } else { None };
    world.take_raw(session).into_iter().filter_map(h).collect()
}

fn second() -> v1::Join {
    v1::Join { agent_id: "a2".into(), name: "n2".into(), ..join(1) }
}

fn confirmed(world: &mut World, round: u64) {
    world.event(Event::Confirmed { round });
}

#[test]
fn a_heartbeat_is_echoed_after_a_round_that_began_after_it() {
    let mut world = World::new();
    let (one, two) = (world.joined(join(1), vec![]), world.joined(second(), vec![]));
    world.confirms = false;
    beat(&mut world, one, 11);
    beat(&mut world, two, 22);
    assert_eq!(world.rounds, [1], "the second waits for the next round");
    assert_eq!((echoes(&mut world, one), echoes(&mut world, two)), (vec![], vec![]));
    confirmed(&mut world, 1);
    assert_eq!((echoes(&mut world, one), echoes(&mut world, two)), (vec![11], vec![]));
    assert_eq!(world.rounds, [1, 2]);
    // Of a session that spoke twice meanwhile the newest is asked for.
    beat(&mut world, one, 33);
    beat(&mut world, one, 44);
    confirmed(&mut world, 2);
    assert_eq!((echoes(&mut world, one), echoes(&mut world, two)), (vec![], vec![22]));
    confirmed(&mut world, 3);
    assert_eq!(echoes(&mut world, one), [44]);
    assert_eq!(world.rounds, [1, 2, 3], "nobody waits");
}

#[test]
fn a_round_that_is_lost_is_asked_again_and_a_later_answer_stands_for_it() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.confirms = false;
    beat(&mut world, session, 1);
    world.pass(950);
    assert_eq!(world.rounds, [1]);
    world.pass(100);
    assert_eq!(world.rounds, [1, 2]);
    beat(&mut world, session, 2);
    // The late answer to the first confirms what came before that, and nothing else.
    confirmed(&mut world, 1);
    assert_eq!(echoes(&mut world, session), [1]);
    confirmed(&mut world, 2);
    assert_eq!(echoes(&mut world, session), [0; 0]);
    confirmed(&mut world, 3);
    assert_eq!(echoes(&mut world, session), [2]);
}

#[test]
fn a_leader_that_no_quorum_confirms_renews_nothing() {
    let mut world = World::new();
    let old = world.joined(join(1), vec![]);
    world.confirms = false;
    beat(&mut world, old, 1);
    world.pass(20_000);
    assert_eq!(echoes(&mut world, old), [0; 0]);
    let asked = world.rounds.len() as u64;
    world.event(Event::Deposed);
    confirmed(&mut world, asked);
    world.elect(2);
    let new = world.joined(join(2), vec![]);
    assert_eq!(echoes(&mut world, old), [0; 0]);
    // The answer to a question of an older term proves nothing in this one.
    beat(&mut world, new, 2);
    confirmed(&mut world, asked);
    assert_eq!(echoes(&mut world, new), [0; 0]);
    confirmed(&mut world, asked + 1);
    assert_eq!(echoes(&mut world, new), [2]);
}

#[test]
fn a_leased_run_waits_for_an_echo_of_its_session_and_says_its_lease() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let (leased, plain) = (world.submit_leased(), world.submit());
    assert_eq!(world.take(session), [format!("run {plain}/1")]);
    // No heartbeat of a keeper that does not answer can be the beginning of a fence.
    beat(&mut world, session, 0);
    assert_eq!(world.take(session), [""; 0]);
    beat(&mut world, session, 5);
    let Some(Down::Run(run)) = world.take_raw(session).pop() else { panic!("no run") };
    assert_eq!(run.attempt.map(|attempt| attempt.job), Some(leased.0));
    assert_eq!(run.fence_after_ms, Some(LEASE_MS));
    beat(&mut world, session, 6);
    assert!(!world.take(session).contains(&format!("run {leased}/1")), "once");
}

#[test]
fn a_cancel_of_a_run_that_waits_for_its_echo_goes_after_it() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit_leased();
    world.cancel(job, None);
    assert_eq!(world.take(session), [""; 0]);
    beat(&mut world, session, 5);
    assert_eq!(world.take(session), [format!("run {job}/1"), format!("kill {job}/1 Cancel")]);
}

/// A leased job whose agent died `after_ms` after its last echo.
fn died(world: &mut World) -> proto::JobId {
    let session = world.joined(join(1), vec![]);
    beat(world, session, 5);
    let job = world.submit_leased();
    world.facts(session, 1, 1, vec![started(1, job)]);
    world.pass(BEAT_MS);
    beat(world, session, 15);
    world.close(session, SessionEnd::Fin);
    world.pass(300);
    assert_eq!(world.ledger.job(job).unwrap().kind(), Kind::Waiting);
    job
}

#[test]
fn a_lease_is_over_a_hundredth_and_two_seconds_after_its_last_renewal() {
    let mut world = World::new();
    let job = died(&mut world);
    world.proposals();
    let over = LEASE_MS + LEASE_MS / 100 + 2_000;
    world.pass(over - 300 - 1);
    assert_eq!(world.ledger.job(job).unwrap().kind(), Kind::Waiting);
    world.pass(1_050);
    let job = world.ledger.job(job).unwrap();
    assert_eq!((job.kind(), job.attempt()), (Kind::Queued, 2));
}

#[test]
fn a_new_leader_counts_a_lease_from_its_own_first_entry() {
    let mut world = World::new();
    let job = died(&mut world);
    world.pass(LEASE_MS);
    world.event(Event::Deposed);
    world.elect(2);
    let over = LEASE_MS + LEASE_MS / 100 + 2_000;
    world.pass(over - 1);
    assert_eq!(world.ledger.job(job).unwrap().kind(), Kind::Waiting);
    world.pass(1_050);
    assert_eq!(world.ledger.job(job).unwrap().kind(), Kind::Queued);
}

#[test]
fn a_renewal_through_a_later_session_counts_too() {
    let mut world = World::new();
    let job = died(&mut world);
    // The node is back, and its manifest is long in coming: its keeper is renewed all the same.
    let back = world.open(v1::Join { process_id: vec![8], next_seq: 2, ..join(2) });
    for h in 0..6 {
        world.pass(BEAT_MS);
        beat(&mut world, back, 100 + h);
    }
    assert_eq!(world.ledger.job(job).unwrap().kind(), Kind::Waiting);
    world.close(back, SessionEnd::Other);
    world.pass(LEASE_MS + LEASE_MS / 100 + 2_000 - 1);
    assert_eq!(world.ledger.job(job).unwrap().kind(), Kind::Waiting);
    world.pass(1_050);
    assert_eq!(world.ledger.job(job).unwrap().kind(), Kind::Queued);
}
