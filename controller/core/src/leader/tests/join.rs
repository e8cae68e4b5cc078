//! Who may join, and which session counts.

use super::world::{World, item, join, rejoin};
use crate::leader::{Event, SessionEnd};
use proto::v1::{self, Phase, agent_message::Kind as Up};

#[test]
fn no_join_is_answered_before_the_first_entry_of_the_term() {
    let mut world = World::dark();
    world.term = 1;
    world.event(Event::Elected { term: 1 });
    let session = world.open(join(1));
    assert!(world.take(session).is_empty());
    assert!(world.proposals().is_empty());
    world.apply(vec![v1::command::Kind::Term(v1::TermCommand { leader: 1, term: 1 })]);
    assert_eq!(world.take(session), ["welcome"]);
}

#[test]
fn a_controller_that_does_not_lead_sends_agents_away() {
    let mut world = World::dark();
    let session = world.open(join(1));
    assert!(world.take(session)[0].starts_with("refused: this controller does not lead"));
    assert!(world.closed(session));
}

#[test]
fn a_deposed_leader_sends_its_agents_away_and_knows_nobody() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    assert_eq!(world.reachable(), ["a1"]);
    world.event(Event::Deposed);
    assert!(world.take(session)[0].starts_with("refused: this controller does not lead"));
    assert!(world.closed(session) && world.reachable().is_empty());
}

#[test]
fn a_join_that_does_not_belong_here_is_refused_by_name() {
    type Spoil = fn(&mut v1::Join);
    let cases: [(&str, Spoil); 9] = [
        ("refused for good: the agent of this data directory belongs to cluster other", |j| {
            j.cluster_id = "other".into()
        }),
        ("refused for good: the agent has seen generation 2", |j| j.generation = 2),
        ("refused: a leader of term 9 exists", |j| j.term_seen = 9),
        ("refused for good: heartbeat_interval is 10001 ms", |j| j.heartbeat_interval_ms = 10_001),
        ("refused for good: heartbeat_interval is 0 ms", |j| j.heartbeat_interval_ms = 0),
        ("refused for good: the agent (docket ) speaks session protocol", |j| j.protocol += 2),
        ("refused for good: the agent (docket ) has level 0", |j| j.level = 0),
        ("refused: the session broke the protocol", |j| j.process_id = vec![]),
        ("refused: the session broke the protocol", |j| j.name = "n".repeat(256)),
    ];
    for (expected, spoil) in cases {
        let mut world = World::new();
        let mut bad = join(1);
        spoil(&mut bad);
        let session = world.open(bad);
        let said = world.take(session);
        assert!(said[0].starts_with(expected), "{said:?}");
        assert!(world.closed(session));
        assert!(world.proposals().is_empty(), "a refused join never reaches the log");
    }
}

#[test]
fn a_term_seen_in_an_older_generation_says_nothing_about_this_one() {
    let mut world = World::new();
    let session = world.open(v1::Join { generation: 0, term_seen: 99, ..join(1) });
    assert_eq!(world.take(session), ["welcome"]);
}

#[test]
fn a_rolled_back_journal_is_refused_and_told_so() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.facts(session, 1, 7, vec![]);
    let older = world.open(rejoin(2, 7, 7));
    assert!(world.take(older)[0].starts_with("refused for good: the journal was rolled back"));
}

#[test]
fn the_newest_session_wins_and_the_end_of_the_older_is_ignored() {
    let mut world = World::new();
    let first = world.joined(join(1), vec![]);
    let job = world.running(first, 1);
    let second = world.open(rejoin(2, 7, 3));
    assert_eq!(world.take(second), ["welcome"]);
    assert!(world.closed(first) && !world.closed(second));
    world.close(first, SessionEnd::Fin);
    world.pass(2_000);
    world.manifest(second, 0, vec![item(job, Phase::Running)], 2, 0);
    assert_eq!(world.end(job), "RUN");
    assert_eq!(world.ledger.job(job).unwrap().grant().unwrap().incarnation, 2);
}

#[test]
fn a_join_with_an_old_incarnation_is_told_to_come_again() {
    let mut world = World::new();
    world.joined(join(5), vec![]);
    let stale = world.open(rejoin(5, 7, 1));
    assert!(world.take(stale)[0].starts_with("refused: this join is out of date"));
}

#[test]
fn a_cloned_directory_is_refused_because_the_older_session_answers() {
    let mut world = World::new();
    let first = world.joined(join(1), vec![]);
    let clone = world.open(rejoin(2, 8, 1));
    assert_eq!(world.take(first), ["ping 1"]);
    world.pass(1_000);
    world.say(first, Up::Pong(v1::Pong { nonce: 1 }));
    assert!(world.take(clone)[0].starts_with("refused for good: agent id a1 is in use"));
    assert!(world.closed(clone) && !world.closed(first));
}

#[test]
fn a_newcomer_joins_after_two_seconds_if_the_older_session_does_not_answer() {
    let mut world = World::new();
    let first = world.joined(join(1), vec![]);
    let second = world.open(rejoin(2, 8, 1));
    world.pass(1_950);
    assert!(world.take(second).is_empty());
    world.say(first, Up::Pong(v1::Pong { nonce: 99 }));
    world.pass(100);
    assert_eq!(world.take(second), ["welcome"]);
    assert!(world.closed(first));
}

#[test]
fn a_newcomer_joins_at_once_if_the_older_session_ends_meanwhile() {
    let mut world = World::new();
    let first = world.joined(join(1), vec![]);
    let second = world.open(rejoin(2, 8, 1));
    world.close(first, SessionEnd::Fin);
    assert_eq!(world.take(second), ["welcome"]);
}

#[test]
fn what_an_agent_says_before_its_welcome_is_taken_after_it_in_order() {
    let mut world = World::new();
    world.hold = true;
    let session = world.open(join(1));
    world.manifest(session, 0, vec![], 2, 0);
    world.facts(session, 1, 2, vec![]);
    assert!(world.take(session).is_empty());
    world.hold = false;
    world.commit();
    assert_eq!(world.take(session), ["welcome", "ack 2"]);
    assert_eq!(world.proposals(), ["up 1", "facts 1..=2", "manifest page 0"]);
}

#[test]
fn a_stream_that_floods_before_its_welcome_is_sent_away() {
    let mut world = World::new();
    world.hold = true;
    let session = world.open(join(1));
    for _ in 0..2_000 {
        world.say(session, Up::Pong(v1::Pong { nonce: 0 }));
    }
    assert!(world.take(session)[0].starts_with("refused: the session broke the protocol"));
}

#[test]
fn a_join_whose_proposal_is_lost_is_told_to_come_again() {
    let mut world = World::new();
    world.hold = true;
    let session = world.open(join(1));
    world.waiting.clear();
    world.pass(10_000);
    assert!(world.take(session)[0].starts_with("refused: the join could not be recorded"));
}

#[test]
fn a_join_whose_stream_ended_before_it_was_applied_still_ends_the_older_session() {
    let mut world = World::new();
    let first = world.joined(join(1), vec![]);
    world.hold = true;
    let second = world.open(rejoin(2, 7, 1));
    world.close(second, SessionEnd::Fin);
    world.hold = false;
    world.commit();
    assert!(world.closed(first) && world.reachable().is_empty());
    let third = world.joined(rejoin(3, 7, 1), vec![]);
    assert!(world.take(third).is_empty());
    assert_eq!(world.reachable(), ["a1"]);
}
