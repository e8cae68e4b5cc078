//! Manifests: nothing is ordered before they are judged, and what follows from the verdicts.

use super::world::{BEAT_MS, World, attempt, batch, finished, item, join, rejoin, started, token};
use crate::leader::{SessionEnd, SessionId};
use crate::ledger::StateName;
use proto::JobId;
use proto::digest::{Digest, item as hash_of};
use proto::v1::{self, Phase, agent_message::Kind as Up, leader_message::Kind as Down};

/// A job that was dispatched on session 1 of `a1`, whose agent then went away unheard.
fn dispatched_and_cut() -> (World, JobId) {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    world.take(session);
    world.close(session, SessionEnd::Other);
    (world, job)
}

#[test]
fn no_order_goes_out_before_the_manifest_is_judged() {
    let mut world = World::new();
    let session = world.open(join(1));
    let job = world.submit();
    world.pass(2_000);
    assert_eq!(world.take(session), ["welcome"]);
    assert!(world.reachable().is_empty());
    world.manifest(session, 0, vec![], 0, 0);
    assert_eq!(world.take(session), [format!("run {job}/1")]);
}

#[test]
fn a_manifest_waits_until_the_facts_it_rests_on_are_applied() {
    let mut world = World::new();
    let session = world.open(join(1));
    world.take(session);
    world.manifest(session, 0, vec![], 4, 0);
    assert_eq!(world.proposals(), ["up 1"]);
    world.facts(session, 1, 4, vec![]);
    assert_eq!(world.proposals(), ["facts 1..=4", "manifest page 0"]);
    assert_eq!(world.reachable(), ["a1"]);
}

#[test]
fn an_order_that_never_arrived_goes_again_with_the_same_attempt_and_token() {
    let (mut world, job) = dispatched_and_cut();
    let order = world.order(job);
    let session = world.joined(rejoin(2, 7, 1), vec![]);
    let runs: Vec<v1::RunOrder> = world
        .take_raw(session)
        .into_iter()
        .filter_map(|kind| if let Down::Run(run) = kind { Some(run) } else { None })
        .collect();
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].attempt, runs[0].token), (attempt(job), token()));
    assert_eq!(runs[0].order_id, order);
    assert_eq!((runs[0].user.as_str(), runs[0].uid, runs[0].cpus), ("mia", 1000, 1));
}

#[test]
fn an_accepted_attempt_is_claimed_and_not_sent_again() {
    let (mut world, job) = dispatched_and_cut();
    let session = world.joined(rejoin(2, 7, 2), vec![item(job, Phase::Accepted)]);
    world.facts(session, 1, 1, vec![]);
    assert_eq!(world.take(session), ["ack 1"]);
    assert_eq!(world.state(job), StateName::Pend);
    world.facts(session, 2, 2, vec![started(2, job)]);
    assert_eq!(world.state(job), StateName::Run);
}

#[test]
fn an_attempt_that_is_over_is_killed_at_the_join() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.close(session, SessionEnd::Fin);
    world.pass(500);
    assert_eq!(world.end(job), "EXIT AgentDied");
    let session = world.joined(rejoin(2, 8, 3), vec![item(job, Phase::Running)]);
    assert_eq!(world.take(session), [format!("kill {job}/1 Fenced")]);
    assert_eq!(world.end(job), "EXIT AgentDied", "the orphan is not taken back");
}

#[test]
fn a_kill_that_got_lost_inside_the_node_is_sent_again_after_two_mismatches() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.close(session, SessionEnd::Fin);
    world.pass(500);
    let session = world.joined(rejoin(2, 8, 3), vec![item(job, Phase::Running)]);
    let Down::Kill(kill) = world.take_raw(session).remove(0) else { panic!("no kill") };
    let alive =
        hash_of(proto::AttemptId::from_wire(kill.attempt.as_ref()).unwrap(), Phase::Running);
    for _ in 0..2 {
        world.pass(BEAT_MS);
        world.beat(session, alive, 2, kill.order_id);
    }
    assert_eq!(world.take(session), ["manifest 1"]);
    world.manifest(session, 1, vec![item(job, Phase::Running)], 2, kill.order_id);
    assert_eq!(world.take(session), [format!("kill {job}/1 Fenced")]);
}

#[test]
fn a_job_nobody_here_knows_is_no_reason_to_kill_it() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![item(JobId(77), Phase::Running)]);
    assert!(world.take(session).is_empty());
    assert_eq!(world.ledger.agent("a1").unwrap().strays().len(), 1);
}

#[test]
fn a_higher_attempt_than_the_ledgers_makes_the_leader_close_the_session() {
    let (mut world, job) = dispatched_and_cut();
    let newer = v1::ManifestItem {
        attempt: Some(v1::AttemptRef { job: job.0, task: None, attempt: 2 }),
        ..item(job, Phase::Running)
    };
    let session = world.joined(rejoin(2, 7, 1), vec![newer]);
    assert!(world.take(session)[0].contains("which this leader does not know yet"));
    assert!(world.closed(session) && world.reachable().is_empty());
}

#[test]
fn a_lost_data_directory_ends_what_it_held_as_vanished() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.close(session, SessionEnd::Other);
    world.joined(v1::Join { journal_id: vec![10], ..rejoin(2, 8, 1) }, vec![]);
    assert_eq!(world.end(job), "EXIT Vanished");
}

#[test]
fn a_node_whose_acknowledged_facts_this_log_never_had_gets_work_again() {
    let (mut world, job) = dispatched_and_cut();
    let session = world.open(v1::Join { first_seq: 21, ..rejoin(2, 7, 22) });
    world.take(session);
    world.manifest(session, 0, vec![], 21, 0);
    world.facts(session, 21, 21, vec![]);
    assert_eq!(world.take(session), ["ack 21"], "no fact that is gone is asked for");
    assert_eq!(world.end(job), "EXIT Vanished", "it may have run: its order does not go again");
    assert_eq!(world.reachable(), ["a1"]);
}

#[test]
fn what_an_older_log_lacks_is_asked_for_though_nothing_new_comes() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.close(session, SessionEnd::Other);
    // It was acknowledged to 4; this log knows facts 1 and 2.
    let session = world.open(v1::Join { first_seq: 1, acked_seq: 4, ..rejoin(2, 7, 5) });
    assert_eq!(world.take(session), ["welcome", "resend from 3"]);
    world.manifest(session, 0, vec![], 4, 0);
    world.facts(session, 5, 5, vec![]);
    world.facts(session, 3, 4, vec![finished(4, job, 7)]);
    assert_eq!(world.take(session), ["ack 4"], "what came before the answer is older than it");
    assert_eq!(world.end(job), "EXIT ExitCode");
    assert_eq!(world.reachable(), ["a1"]);
}

#[test]
fn pages_are_judged_one_by_one_and_orders_wait_for_the_last() {
    let mut world = World::new();
    let session = world.open(join(1));
    let job = world.submit();
    world.take(session);
    let page = |last| v1::ManifestPage { last, ..Default::default() };
    world.say(session, Up::Manifest(page(false)));
    world.say(session, Up::Manifest(page(false)));
    assert!(world.take(session).is_empty());
    world.say(session, Up::Manifest(page(true)));
    assert_eq!(world.take(session), [format!("run {job}/1")]);
    let pages = ["up 1", "manifest page 0", "manifest page 1", "manifest page 2"];
    assert_eq!(world.proposals()[..4], pages);
}

#[test]
fn a_manifest_whose_proposal_is_lost_is_asked_for_anew_and_the_old_page_never_goes_twice() {
    let mut world = World::new();
    let session = world.open(join(1));
    world.take(session);
    world.hold = true;
    world.manifest(session, 0, vec![], 0, 0);
    let slow = std::mem::take(&mut world.waiting);
    world.hold = false;
    world.pass(5_000);
    world.beats(session, 10_000);
    assert_eq!(world.take(session), ["manifest 1"]);
    world.waiting = slow;
    world.commit();
    assert!(world.reachable().is_empty(), "it comes after all: its verdicts are those of nobody");
    world.manifest(session, 1, vec![], 0, 0);
    assert_eq!(world.reachable(), ["a1"]);
}

#[test]
fn a_page_that_answers_an_older_question_is_void() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.proposals();
    world.manifest(session, 5, vec![], 0, 0);
    assert!(world.proposals().is_empty());
}

/// Beats with that digest until the leader asks; how many it took.
fn beats_until_asked(world: &mut World, session: SessionId, beat: (u64, u64, u64)) -> usize {
    for count in 1..10 {
        world.pass(BEAT_MS);
        world.beat(session, beat.0, beat.1, beat.2);
        if !world.take(session).is_empty() {
            return count;
        }
    }
    panic!("it never asks");
}

#[test]
fn a_finish_lost_while_everybody_stayed_connected_is_found_by_the_digest() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    let order = world.order(job);
    let holds = [(world.ledger.job(job).unwrap().attempt_id(), Phase::Running)];
    let right: Digest = holds.into_iter().collect();
    for _ in 0..5 {
        world.pass(BEAT_MS);
        world.beat(session, right.value(), 2, order);
    }
    assert!(world.take(session).is_empty(), "equal digests ask nothing");
    assert_eq!(beats_until_asked(&mut world, session, (0, 2, order)), 2);
    world.manifest(session, 1, vec![], 2, order);
    assert_eq!(world.end(job), "EXIT Vanished");
}

#[test]
fn a_run_that_got_lost_inside_the_node_makes_its_agent_join_again() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    assert_eq!(world.take(session), [format!("run {job}/1")]);
    // The keeper never took it and no later order comes: O stays where it was.
    assert_eq!(beats_until_asked(&mut world, session, (0, 0, 0)), 3);
    world.manifest(session, 1, vec![], 0, 0);
    assert!(world.take(session).is_empty(), "it may still be under way");
    assert_eq!(beats_until_asked(&mut world, session, (0, 0, 0)), 2);
    world.manifest(session, 2, vec![], 0, 0);
    assert!(world.take(session).concat().contains("join again") && world.closed(session));
    let session = world.joined(rejoin(2, 7, 1), vec![]);
    assert_eq!(world.take(session), [format!("run {job}/1")]);
}

#[test]
fn a_run_whose_refusal_waits_for_room_on_the_node_is_not_lost() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    world.take(session);
    for (beats, nonce) in [(3, 1), (2, 2), (2, 3)] {
        assert_eq!(beats_until_asked(&mut world, session, (0, 0, 0)), beats);
        world.manifest(session, nonce, vec![item(job, Phase::Ended)], 0, 0);
    }
    assert!(!world.closed(session) && world.take(session).is_empty());
}

#[test]
fn a_run_that_the_manifest_lists_as_ended_is_not_ordered_again() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    world.take(session);
    let order = world.order(job);
    assert_eq!(beats_until_asked(&mut world, session, (0, 0, order)), 2);
    world.manifest(session, 1, vec![item(job, Phase::Ended)], 0, order);
    let sent = world.take(session);
    assert!(sent.is_empty(), "its end is on the way, a second run would begin behind it: {sent:?}");
}

#[test]
fn three_heartbeats_that_cannot_be_compared_ask_for_the_manifest() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    let order = world.order(job);
    let ahead = (0, 99, order);
    assert_eq!(beats_until_asked(&mut world, session, ahead), 3, "F is not applied");
    world.manifest(session, 1, vec![item(job, Phase::Running)], 2, order);
    let behind = (0, 2, order - 1);
    assert_eq!(beats_until_asked(&mut world, session, behind), 3, "O is not the last order");
}

#[test]
fn a_manifest_that_does_not_come_is_asked_for_again() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    assert_eq!(beats_until_asked(&mut world, session, (1, 0, 0)), 2);
    assert_eq!(beats_until_asked(&mut world, session, (1, 0, 0)), 4);
    world.manifest(session, 1, vec![], 0, 0);
    world.manifest(session, 2, vec![], 0, 0);
    assert_eq!(world.proposals().iter().filter(|p| *p == "manifest page 0").count(), 2);
}

#[test]
fn within_a_session_only_orders_that_were_taken_are_judged() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let first = world.running(session, 1);
    let order = world.order(first);
    assert_eq!(beats_until_asked(&mut world, session, (0, 2, order)), 2);
    // The order of a second job crosses the answer.
    let second = world.submit();
    assert_eq!(world.take(session), [format!("run {second}/1")]);
    world.manifest(session, 1, vec![item(first, Phase::Running)], 2, order);
    assert!(world.take(session).is_empty());
    assert_eq!(world.state(second), StateName::Pend);
    let facts = vec![started(4, second), finished(5, second, 0)];
    world.say(session, Up::Facts(batch(3, 5, facts)));
    assert_eq!(world.end(second), "DONE ExitCode");
}
