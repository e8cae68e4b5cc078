//! Loss of a worker: silence ends nothing, the death of an agent does, and they are not confused.

use super::world::{BEAT_MS, TIMEOUT_MS, World, item, join, rejoin, started};
use crate::leader::{NodeState, SessionEnd, SessionId};
use crate::ledger::StateName;
use proto::JobId;
use proto::v1::{self, GoodbyeKind, Phase, agent_message::Kind as Up};

/// A world with one running job, its session, and an empty list of proposals.
fn running() -> (World, SessionId, JobId) {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.proposals();
    (world, session, job)
}

fn state_of_node(world: &World) -> NodeState {
    world.leader.node_views(&world.ledger, world.now)[0].state
}

#[test]
fn silence_makes_jobs_unknown_once_and_ends_none() {
    let (mut world, _, job) = running();
    world.pass(TIMEOUT_MS - 100);
    assert_eq!(world.end(job), "RUN");
    assert!(world.proposals().is_empty());
    world.pass(20_000);
    assert_eq!(world.end(job), "UNKWN");
    assert_eq!(world.proposals(), ["down 1 Silence"]);
    assert_eq!(state_of_node(&world), NodeState::Silent);
}

#[test]
fn any_message_ends_the_silence() {
    let (mut world, session, job) = running();
    for _ in 0..10 {
        world.pass(TIMEOUT_MS - 1_000);
        world.say(session, Up::Pong(v1::Pong { nonce: 0 }));
        let vouched = v1::Heartbeat { keeper_answers: true, ..Default::default() };
        world.say(session, Up::Heartbeat(vouched));
    }
    assert_eq!(world.end(job), "RUN");
}

#[test]
fn a_close_by_the_agents_kernel_ends_its_jobs_within_a_second() {
    for end in [SessionEnd::Fin, SessionEnd::Reset] {
        let (mut world, session, job) = running();
        world.close(session, end);
        world.pass(250);
        assert_eq!(world.end(job), "RUN");
        world.pass(100);
        assert_eq!(world.end(job), "EXIT AgentDied");
        assert_eq!(world.proposals(), ["down 1 Rdhup"]);
        assert_eq!(state_of_node(&world), NodeState::Down);
    }
}

#[test]
fn what_was_only_dispatched_does_not_end_with_its_agent() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    world.close(session, SessionEnd::Fin);
    world.pass(1_000);
    assert_eq!(world.end(job), "UNKWN");
}

#[test]
fn a_close_that_proves_nothing_is_a_silence() {
    for end in [SessionEnd::Local, SessionEnd::Other] {
        let (mut world, session, job) = running();
        world.close(session, end);
        world.pass(TIMEOUT_MS - 1_000);
        assert_eq!(world.end(job), "RUN");
        world.pass(2_000);
        assert_eq!(world.end(job), "UNKWN");
    }
}

#[test]
fn a_late_fin_after_a_partition_ends_nothing() {
    let (mut world, session, job) = running();
    world.pass(BEAT_MS + 2_000);
    world.close(session, SessionEnd::Fin);
    world.pass(2_000);
    assert_eq!(world.end(job), "RUN");
    world.pass(TIMEOUT_MS);
    assert_eq!(world.end(job), "UNKWN");
}

#[test]
fn a_reset_after_a_join_that_waited_long_in_the_log_ends_nothing() {
    let (mut world, _, job) = running();
    world.hold = true;
    let second = world.open(rejoin(2, 7, 2));
    world.manifest(second, 0, vec![item(job, v1::Phase::Running)], 1, world.order(job));
    // The log is slow, the line is cut meanwhile, and a kernel gives it up.
    world.pass(BEAT_MS + 2_500);
    world.hold = false;
    world.commit();
    assert_eq!(world.end(job), "RUN");
    world.close(second, SessionEnd::Reset);
    world.pass(2_000);
    assert_eq!(world.end(job), "RUN", "its last word is as old as its join");
}

#[test]
fn a_fin_behind_a_stall_of_the_leader_ends_nothing() {
    let (mut world, session, job) = running();
    world.stall(60_000);
    // It wakes: an old word first, which looks young, then the close.
    world.say(session, Up::Pong(v1::Pong { nonce: 0 }));
    world.close(session, SessionEnd::Reset);
    world.pass(2_000);
    assert_eq!(world.end(job), "RUN");
}

#[test]
fn a_close_within_reach_of_a_stall_ends_nothing_though_the_last_word_looks_young() {
    let (mut world, session, job) = running();
    world.stall(60_000);
    world.say(session, Up::Pong(v1::Pong { nonce: 0 }));
    world.pass(5_000);
    world.close(session, SessionEnd::Fin);
    world.pass(2_000);
    assert_eq!(world.end(job), "RUN");
}

#[test]
fn a_stall_of_the_leader_adds_two_seconds_at_most_and_the_count_goes_on() {
    let (mut world, _, job) = running();
    world.pass(10_000);
    world.stall(600_000);
    assert_eq!(world.end(job), "RUN");
    world.pass(TIMEOUT_MS - 12_000 - 100);
    assert_eq!(world.end(job), "RUN");
    world.pass(200);
    assert_eq!(world.end(job), "UNKWN");
}

#[test]
fn a_stall_while_a_death_is_confirmed_makes_it_a_silence() {
    let (mut world, session, job) = running();
    world.close(session, SessionEnd::Fin);
    world.stall(5_000);
    world.pass(5_000);
    assert_eq!(world.end(job), "RUN");
}

#[test]
fn a_join_of_the_same_process_shows_that_it_lives() {
    let (mut world, session, job) = running();
    world.close(session, SessionEnd::Reset);
    world.pass(200);
    let second = world.joined(rejoin(2, 7, 3), vec![item(job, Phase::Running)]);
    world.pass(1_000);
    assert_eq!(world.end(job), "RUN");
    assert!(!world.closed(second));
}

#[test]
fn a_join_of_the_same_process_before_the_close_shows_it_too() {
    let (mut world, session, job) = running();
    world.hold = true;
    world.open(rejoin(2, 7, 3));
    world.close(session, SessionEnd::Fin);
    world.pass(1_000);
    world.commit();
    assert_eq!(world.end(job), "RUN");
}

#[test]
fn an_agent_that_is_back_at_once_as_another_process_has_died() {
    let (mut world, session, job) = running();
    world.close(session, SessionEnd::Fin);
    world.pass(100);
    let second = world.open(rejoin(2, 8, 3));
    assert_eq!(world.proposals(), ["down 1 Rdhup", "up 2"]);
    assert_eq!(world.end(job), "EXIT AgentDied");
    world.take(second);
    world.manifest(second, 0, vec![item(job, Phase::Running)], 2, 0);
    assert_eq!(world.take(second), [format!("kill {job}/1 Fenced")]);
}

#[test]
fn a_goodbye_before_a_restart_makes_jobs_unknown_at_once() {
    let (mut world, session, job) = running();
    world.goodbye(session, GoodbyeKind::Restart);
    assert_eq!(world.take(session), ["goodbye"]);
    assert!(world.reachable().is_empty());
    world.close(session, SessionEnd::Fin);
    assert_eq!(world.end(job), "UNKWN");
    assert_eq!(world.proposals(), ["down 1 Goodbye"]);
}

#[test]
fn a_goodbye_before_a_reconnect_ends_nothing_and_silence_is_counted() {
    let (mut world, session, job) = running();
    world.goodbye(session, GoodbyeKind::Reconnect);
    world.close(session, SessionEnd::Fin);
    world.pass(TIMEOUT_MS - 100);
    assert_eq!(world.end(job), "RUN");
    world.pass(200);
    assert_eq!(world.end(job), "UNKWN");
}

#[test]
fn an_agent_that_left_is_not_counted() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.proposals();
    world.goodbye(session, GoodbyeKind::Leave);
    world.close(session, SessionEnd::Fin);
    world.pass(2 * TIMEOUT_MS);
    assert_eq!(world.proposals(), ["down 1 Leave"]);
    assert_eq!(state_of_node(&world), NodeState::Left);
}

#[test]
fn a_session_that_was_silent_shows_what_it_holds_before_it_gets_an_order() {
    let (mut world, session, job) = running();
    world.pass(TIMEOUT_MS + 1_000);
    assert_eq!(world.end(job), "UNKWN");
    let order = world.order(job);
    world.beat(session, 0, 2, order);
    assert_eq!(world.take(session), ["manifest 1"]);
    let next = world.submit();
    assert!(world.take(session).is_empty() && world.reachable().is_empty());
    // Its facts are taken as always.
    world.facts(session, 3, 3, vec![]);
    assert_eq!(world.take(session), ["ack 3"]);
    world.manifest(session, 1, vec![item(job, Phase::Running)], 3, order);
    assert_eq!(world.end(job), "RUN");
    assert_eq!(world.take(session), [format!("run {next}/1")]);
}

#[test]
fn a_silence_can_come_again_after_the_agent_was_heard() {
    let (mut world, session, job) = running();
    world.pass(TIMEOUT_MS + 1_000);
    let order = world.order(job);
    world.beat(session, 0, 2, order);
    world.manifest(session, 1, vec![item(job, Phase::Running)], 2, order);
    world.proposals();
    world.pass(TIMEOUT_MS + 1_000);
    assert_eq!(world.proposals(), ["down 1 Silence"]);
}

#[test]
fn a_node_whose_keeper_does_not_answer_is_up_and_its_jobs_become_unknown() {
    let (mut world, session, job) = running();
    world.beats(session, TIMEOUT_MS - BEAT_MS);
    assert_eq!(world.end(job), "RUN");
    world.beats(session, 2 * BEAT_MS);
    assert_eq!(world.end(job), "UNKWN");
    assert_eq!(world.proposals(), ["unknown 1"]);
    assert_eq!(state_of_node(&world), NodeState::Up);
    assert!(world.reachable().is_empty());
    let order = world.order(job);
    world.beat(session, 0, 2, order);
    assert_eq!(world.take(session), ["manifest 1"]);
    world.manifest(session, 1, vec![item(job, Phase::Running)], 2, order);
    assert_eq!(world.end(job), "RUN");
}

#[test]
fn a_lost_proposal_of_a_loss_is_made_again() {
    let (mut world, _, job) = running();
    world.hold = true;
    world.pass(TIMEOUT_MS + 100);
    world.waiting.clear();
    world.hold = false;
    world.pass(10_000);
    assert_eq!(world.end(job), "UNKWN");
}

/// A job whose start was under way when a partition began, and is UNKWN since.
fn start_under_way() -> (World, SessionId, JobId) {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    world.pass(TIMEOUT_MS + 1_000);
    assert_eq!(world.end(job), "UNKWN");
    (world, session, job)
}

#[test]
fn a_start_that_comes_late_from_an_agent_that_is_gone_leaves_no_job_in_run() {
    // The partition heals: what the agent had sent comes, and right behind it its end.
    let (mut world, session, job) = start_under_way();
    world.facts(session, 1, 2, vec![started(2, job)]);
    world.goodbye(session, GoodbyeKind::Restart);
    world.close(session, SessionEnd::Fin);
    assert_eq!(world.end(job), "UNKWN");
}

#[test]
fn a_start_that_is_applied_after_its_agent_was_given_up_leaves_no_job_in_run() {
    let (mut world, session, job) = start_under_way();
    world.hold = true;
    world.facts(session, 1, 2, vec![started(2, job)]);
    world.goodbye(session, GoodbyeKind::Restart);
    world.close(session, SessionEnd::Fin);
    world.hold = false;
    world.commit();
    assert_eq!(world.end(job), "UNKWN");
}

#[test]
fn a_new_leader_counts_a_full_timeout_from_its_own_start() {
    let (mut world, _, job) = running();
    world.pass(20_000);
    world.event(crate::leader::Event::Deposed);
    world.elect(2);
    assert_eq!(world.state(job), StateName::Unkwn);
    assert_eq!(state_of_node(&world), NodeState::Silent);
    let session = world.joined(rejoin(2, 7, 3), vec![item(job, Phase::Running)]);
    assert_eq!(world.end(job), "RUN");
    assert_eq!(state_of_node(&world), NodeState::Up);
    assert!(world.take(session).is_empty());
}

#[test]
fn an_agent_that_never_comes_back_is_lost_by_the_ledgers_deadline() {
    let (mut world, _, job) = running();
    world.event(crate::leader::Event::Deposed);
    world.elect(2);
    world.proposals();
    let ttl = world.ledger.policy().transient_job_timeout_ms;
    world.pass(ttl + TIMEOUT_MS + 1_000);
    assert_eq!(world.end(job), "EXIT Lost");
    assert!(world.proposals().contains(&"tick".to_string()));
}

#[test]
fn the_age_of_the_oldest_unknown_task_grows_while_nothing_is_logged() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    assert_eq!(world.leader.unknown_oldest_ms(&world.ledger, world.now), 0);
    world.close(session, SessionEnd::Other);
    while world.state(job) == StateName::Run {
        world.pass(1_000);
    }
    let (applied, began) = (world.ledger.applied(), world.now);
    world.pass(7_000);
    assert_eq!(world.ledger.applied(), applied, "the log is quiet");
    let age = world.leader.unknown_oldest_ms(&world.ledger, world.now);
    assert!((7_000..8_100).contains(&age), "{age} ms after {began}");
}
