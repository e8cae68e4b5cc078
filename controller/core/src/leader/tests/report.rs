//! Facts: in order, few at a time, acknowledged when applied and to the session that sent them.

use super::world::{World, batch, finished, join, rejoin, started};
use crate::leader::SessionEnd;
use proto::JobId;
use proto::v1::{self, agent_message::Kind as Up};

#[test]
fn facts_are_acknowledged_only_when_applied() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.hold = true;
    world.facts(session, 1, 3, vec![]);
    assert!(world.take(session).is_empty());
    world.commit();
    assert_eq!(world.take(session), ["ack 3"]);
}

#[test]
fn facts_that_come_twice_are_acknowledged_twice_and_change_nothing() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    for _ in 0..2 {
        world.facts(session, 3, 3, vec![finished(3, job, 7)]);
        assert_eq!(world.take(session), ["ack 3"]);
        assert_eq!(world.end(job), "EXIT ExitCode");
    }
    assert_eq!(world.ledger.counters().after_end, 1);
}

#[test]
fn a_new_session_gets_no_acknowledgement_for_what_the_old_one_sent() {
    let mut world = World::new();
    let first = world.joined(join(1), vec![]);
    world.hold = true;
    world.facts(first, 1, 2, vec![]);
    let second = world.open(rejoin(2, 7, 3));
    world.commit();
    assert_eq!(world.take(second), ["welcome"]);
    world.hold = false;
    world.facts(second, 1, 2, vec![]);
    assert_eq!(world.take(second), ["ack 2"]);
}

#[test]
fn a_hole_is_asked_for_and_what_lies_behind_it_is_not_taken() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.facts(session, 1, 2, vec![]);
    world.facts(session, 4, 5, vec![]);
    world.facts(session, 6, 6, vec![]);
    assert_eq!(world.take(session), ["ack 2", "resend from 3"]);
    world.facts(session, 3, 6, vec![]);
    assert_eq!(world.take(session), ["ack 6"]);
}

#[test]
fn a_fact_for_which_the_registry_has_no_room_is_put_off_before_its_batch_is_acknowledged() {
    let mut world = World::new();
    let policy = Some(v1::Policy { unknown_finish_max: 1, ..Default::default() });
    world.apply(vec![v1::command::Kind::Configure(v1::ConfigureCommand {
        policy,
        ..Default::default()
    })]);
    let session = world.joined(join(1), vec![]);
    world.facts(session, 1, 2, vec![started(1, JobId(50)), started(2, JobId(51))]);
    assert_eq!(world.take(session), ["later 2", "ack 2"]);
}

#[test]
fn few_batches_are_in_flight_and_the_rest_is_merged() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.proposals();
    world.hold = true;
    for seq in 1..=100 {
        world.facts(session, seq, seq, vec![]);
    }
    let proposed = world.proposals();
    assert_eq!(proposed, ["facts 1..=1", "facts 2..=2", "facts 3..=3", "facts 4..=4"]);
    world.hold = false;
    world.commit();
    assert_eq!(world.proposals(), ["facts 5..=100"]);
    assert_eq!(world.take(session).last().unwrap(), "ack 100");
}

#[test]
fn more_than_may_wait_is_dropped_and_asked_for_again() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.hold = true;
    for seq in 1..=20_000 {
        world.facts(session, seq, seq, vec![]);
    }
    world.hold = false;
    world.commit();
    assert_eq!(world.take(session), ["ack 1", "ack 2", "ack 3", "ack 4", "resend from 5"]);
    world.facts(session, 5, 20_000, vec![]);
    assert_eq!(world.take(session), ["ack 20000"]);
}

#[test]
fn a_proposal_that_is_never_applied_is_asked_for_again() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.hold = true;
    world.facts(session, 1, 2, vec![]);
    world.waiting.clear();
    world.hold = false;
    world.pass(10_000);
    assert_eq!(world.take(session), ["resend from 1"]);
    world.facts(session, 1, 2, vec![]);
    assert_eq!(world.take(session), ["ack 2"]);
}

#[test]
fn facts_of_another_journal_or_without_sense_end_the_session() {
    let bad = [
        v1::Facts { journal_id: vec![1], ..batch(1, 1, vec![]) },
        batch(2, 1, vec![]),
        batch(1, 1, vec![started(9, JobId(1))]),
    ];
    for facts in bad {
        let mut world = World::new();
        let session = world.joined(join(1), vec![]);
        world.say(session, Up::Facts(facts));
        assert!(world.take(session)[0].starts_with("refused: "));
        assert!(world.closed(session) && world.reachable().is_empty());
    }
}

#[test]
fn an_agent_cannot_report_the_attempt_of_another() {
    let mut world = World::new();
    let first = world.joined(join(1), vec![]);
    let job = world.running(first, 1);
    let other = v1::Join { agent_id: "a2".into(), name: "n2".into(), ..join(1) };
    let second = world.joined(other, vec![]);
    world.facts(second, 1, 1, vec![finished(1, job, 0)]);
    assert_eq!(world.take(second), ["ack 1"]);
    assert_eq!(world.end(job), "RUN");
    assert_eq!(world.ledger.counters().wrong_agent, 1);
}

#[test]
fn a_finish_that_was_received_is_not_overtaken_by_the_close() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.proposals();
    world.hold = true;
    for seq in 3..=10 {
        let facts = if seq == 10 { vec![finished(10, job, 7)] } else { vec![] };
        world.facts(session, seq, seq, facts);
    }
    world.close(session, SessionEnd::Fin);
    world.pass(500);
    assert_eq!(world.proposals()[4..], ["facts 7..=10", "down 1 Rdhup"]);
    world.commit();
    assert_eq!(world.end(job), "EXIT ExitCode");
}

#[test]
fn a_finish_that_was_dropped_behind_a_hole_is_not_overtaken_by_the_close_either() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.facts(session, 4, 4, vec![finished(4, job, 7)]);
    assert_eq!(world.take(session), ["resend from 3"]);
    world.close(session, SessionEnd::Fin);
    world.pass(2_000);
    assert_eq!(world.end(job), "RUN");
    let session = world.joined(rejoin(2, 8, 5), vec![]);
    world.facts(session, 3, 4, vec![finished(4, job, 7)]);
    assert_eq!(world.end(job), "EXIT ExitCode");
}
