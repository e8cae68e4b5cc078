//! Manifests: what the agent has against what the ledger says it should have.

use super::world::*;
use crate::ledger::{Kind, ManifestOutcome, Outcome, Rejection, Session};
use proto::v1::{self, DownCause, ExitKind, Phase, command::Kind as Command, fact};
use proto::{AttemptId, JobId, OrderId, Seq, TaskId};

fn judged(outcome: Outcome) -> ManifestOutcome {
    match outcome {
        Outcome::Manifest(outcome) => outcome,
        other => unreachable!("not judged: {other:?}"),
    }
}

fn id(job: JobId, attempt: u32) -> AttemptId {
    AttemptId { task: TaskId::plain(job), attempt }
}

/// The leader changed and the agent is back with the same journal.
fn rejoin(world: &mut World) {
    let term = world.ledger.term() + 1;
    let incarnation = world.ledger.agent(N1).map_or(1, |agent| agent.incarnation() + 1);
    world.term(term);
    assert_eq!(world.join(N1, incarnation, "j1"), Outcome::AgentUp);
}

#[test]
fn what_both_have_is_claimed_as_the_manifest_says_and_moves_to_the_session() {
    let mut world = World::with_node();
    let (runs, stops, waits) = (world.running(), world.running(), world.dispatched());
    rejoin(&mut world);
    let items = vec![
        world.item(runs, Phase::Running),
        world.item(stops, Phase::Suspended),
        world.item(waits, Phase::Accepted),
    ];
    let outcome = judged(world.at_join(N1, items));
    assert_eq!((outcome.claimed, outcome.judged), (3, true));
    let kinds = [runs, stops, waits].map(|job| world.kind(job));
    assert_eq!(kinds, [Kind::Running, Kind::Suspended, Kind::Dispatched]);
    for job in [runs, stops, waits] {
        assert_eq!(world.job(job).grant().map(|grant| grant.incarnation), Some(2));
        assert!(!world.task(job).transient);
    }
    assert_eq!(world.task(runs).pid, 4711, "the start that was heard stays");
}

#[test]
fn a_task_whose_start_was_never_heard_runs_by_the_manifest_until_its_fact_comes() {
    let mut world = World::with_node();
    let job = world.dispatched();
    rejoin(&mut world);
    let item = world.item(job, Phase::Running);
    world.at_join(N1, vec![item]);
    assert_eq!((world.kind(job), world.task(job).pid), (Kind::Running, 77));
    world.start(job);
    assert_eq!((world.task(job).pid, world.task(job).stdout_path.len()), (4711, 13));
    world.start(job);
    assert_eq!(world.ledger.counters().repeated, 1);
}

#[test]
fn what_is_over_for_the_ledger_is_killed() {
    let mut world = World::with_node();
    let died = world.running();
    let requeued = world.dispatched();
    let fenced = world.running();
    world.refuse(requeued);
    world.down(N1, 1, DownCause::Rdhup);
    rejoin(&mut world);
    let first_attempt = v1::ManifestItem {
        attempt: Some(attempt_ref(requeued, 1)),
        token: Some(v1::Token { generation: 1, attempt: 1 }),
        ..world.item(died, Phase::Running)
    };
    let other_token = v1::ManifestItem {
        token: Some(v1::Token { generation: 7, attempt: 1 }),
        ..world.item(fenced, Phase::Running)
    };
    let items = vec![world.item(died, Phase::Running), first_attempt, other_token];
    let outcome = judged(world.at_join(N1, items));
    assert_eq!(outcome.kill, [id(died, 1), id(requeued, 1), id(fenced, 1)]);
    assert_eq!(world.reason(died), Some(ExitKind::AgentDied), "the claim is refused");
}

#[test]
fn the_time_line_tells_of_an_orphan_that_was_found_and_of_its_proven_end_once_each() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Rdhup);
    for _ in 0..2 {
        rejoin(&mut world);
        let item = world.item(job, Phase::Running);
        world.at_join(N1, vec![item]);
    }
    let told = |world: &World, what: &str| {
        let events = crate::events(&world.ledger, job).map(|answer| answer.events);
        events.into_iter().flatten().filter(|event| event.what.contains(what)).count()
    };
    assert_eq!(told(&world, "still held attempt 1"), 1);
    assert_eq!(told(&world, "nothing of attempt 1 lives"), 0);
    world.finish(job, code(3));
    world.finish(job, code(3));
    assert_eq!(told(&world, "still held attempt 1"), 1);
    assert_eq!(told(&world, "nothing of attempt 1 lives"), 1);
    assert_eq!(world.reason(job), Some(ExitKind::AgentDied), "terminal absorbs");
}

#[test]
fn an_agent_id_that_is_new_here_over_an_old_journal_is_judged_and_heard() {
    let mut world = World::with_node();
    let join = v1::Join { next_seq: 20, ..join("a9", 1, "j9") };
    let up = v1::AgentUpCommand { join: Some(join) };
    assert_eq!(world.apply(Command::AgentUp(up)), Outcome::AgentUp);
    let page = v1::ManifestCommand { last_seq: 19, ..world.page("a9", vec![]) };
    let outcome = judged(world.apply(Command::Manifest(page)));
    assert!(outcome.judged, "nobody asks for facts that are gone from its journal");
    assert_eq!(world.ledger.agent("a9").map(|agent| agent.session()), Some(Session::Up));
}

#[test]
fn a_living_job_with_another_token_is_no_orphan_in_the_time_line() {
    let mut world = World::with_node();
    let job = world.running();
    rejoin(&mut world);
    let other_token = v1::ManifestItem {
        token: Some(v1::Token { generation: 7, attempt: 1 }),
        ..world.item(job, Phase::Running)
    };
    world.at_join(N1, vec![other_token]);
    let events = crate::events(&world.ledger, job).map(|answer| answer.events);
    assert!(events.into_iter().flatten().all(|event| !event.what.contains("still held")));
}

#[test]
fn an_evicted_job_is_killed_and_an_id_of_the_future_is_listed() {
    let mut world = World::with_node();
    let job = world.running();
    let item = world.item(job, Phase::Running);
    world.down(N1, 1, DownCause::Rdhup);
    world.pass(8 * 24 * 3600 * 1000);
    world.tick();
    assert!(world.ledger.evicted(job));
    rejoin(&mut world);
    let future = v1::ManifestItem { attempt: Some(attempt_ref(JobId(50), 1)), ..item.clone() };
    let outcome = judged(world.at_join(N1, vec![item, future]));
    assert_eq!((outcome.kill, outcome.strays), (vec![id(job, 1)], vec![id(JobId(50), 1)]));
    let strays = world.ledger.agent(N1).map(|agent| agent.strays().to_vec());
    assert_eq!(strays, Some(vec![id(JobId(50), 1)]));
}

#[test]
fn a_higher_attempt_than_the_ledgers_means_that_the_leader_is_stale() {
    let mut world = World::with_node();
    let job = world.running();
    rejoin(&mut world);
    let newer =
        v1::ManifestItem { attempt: Some(attempt_ref(job, 2)), ..world.item(job, Phase::Running) };
    let outcome = judged(world.at_join(N1, vec![newer]));
    assert_eq!(outcome.newer, [id(job, 2)]);
}

#[test]
fn an_order_that_never_arrived_goes_again_with_the_same_attempt_and_order_id() {
    let mut world = World::with_node();
    let job = world.dispatched();
    let order = world.job(job).grant().map(|grant| grant.order);
    rejoin(&mut world);
    assert_eq!(world.kind(job), Kind::Unknown);
    let outcome = judged(world.at_join(N1, Vec::new()));
    assert_eq!((outcome.resend, outcome.vanished), (vec![id(job, 1)], 0));
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Dispatched, 1));
    assert_eq!(world.job(job).grant().map(|grant| grant.order), order);
    assert_eq!(world.job(job).grant().map(|grant| grant.incarnation), Some(2));
}

#[test]
fn what_another_journal_does_not_have_has_vanished_and_is_never_queued_again() {
    let mut world = World::with_node();
    let (runs, given) = (world.running(), world.dispatched());
    world.down(N1, 1, DownCause::Goodbye);
    world.join(N1, 2, "j2");
    let outcome = judged(world.at_join(N1, Vec::new()));
    assert_eq!((outcome.vanished, outcome.resend.len()), (2, 0));
    for job in [runs, given] {
        assert_eq!(world.reason(job), Some(ExitKind::Vanished));
        assert_eq!(world.task(job).exit_code, None);
    }
}

#[test]
fn a_started_task_that_the_same_journal_does_not_know_is_not_started_again() {
    let mut world = World::with_node();
    let job = world.running();
    rejoin(&mut world);
    let outcome = judged(world.at_join(N1, Vec::new()));
    assert_eq!((outcome.vanished, world.reason(job)), (1, Some(ExitKind::Vanished)));
}

#[test]
fn the_manifest_waits_for_the_facts_it_was_made_with() {
    let mut world = World::with_node();
    let job = world.running();
    rejoin(&mut world);
    let mut page = world.page(N1, Vec::new());
    page.last_seq = 2;
    let refused = Rejection::FactsNotApplied { high: Seq(1), last: Seq(2) };
    assert_eq!(world.apply(Command::Manifest(page.clone())), Outcome::Rejected(refused));
    assert_eq!(world.kind(job), Kind::Unknown);
    // The finish that it knew of comes, and only then the manifest.
    world.finish(job, code(0));
    let outcome = judged(world.apply(Command::Manifest(page)));
    assert_eq!((outcome.vanished, world.kind(job)), (0, Kind::Done));
}

#[test]
fn ended_attempts_are_neither_settled_nor_missed() {
    let mut world = World::with_node();
    let job = world.running();
    rejoin(&mut world);
    let item = world.item(job, Phase::Ended);
    let outcome = judged(world.at_join(N1, vec![item]));
    assert_eq!((outcome.claimed, outcome.vanished, outcome.kill.len()), (0, 0, 0));
    assert_eq!(world.kind(job), Kind::Unknown);
}

#[test]
fn within_a_session_only_orders_that_the_agent_had_are_judged() {
    let mut world = World::with_node();
    let (had, on_its_way) = (world.dispatched(), world.dispatched());
    let order = world.job(had).grant().map_or(OrderId(0), |grant| grant.order);
    let mut page = world.page(N1, Vec::new());
    page.at_join = false;
    page.last_order = order.0;
    let outcome = judged(world.apply(Command::Manifest(page)));
    assert_eq!(outcome.resend, [id(had, 1)]);
    assert_eq!(world.kind(on_its_way), Kind::Dispatched);
}

#[test]
fn at_a_join_nothing_of_the_new_session_is_judged() {
    let mut world = World::with_node();
    let old = world.dispatched();
    rejoin(&mut world);
    world.at_join(N1, Vec::new());
    let new = world.dispatched();
    // The same manifest again, as after a change of the leader's mind.
    let outcome = judged(world.at_join(N1, Vec::new()));
    assert_eq!(outcome.resend, [id(old, 1)]);
    assert_eq!(world.kind(new), Kind::Dispatched);
}

#[test]
fn pages_are_judged_in_order_and_what_is_missing_only_at_the_last() {
    let mut world = World::with_node();
    let (a, b, c) = (world.running(), world.running(), world.dispatched());
    rejoin(&mut world);
    let first =
        v1::ManifestCommand { last: false, ..world.page(N1, vec![world.item(a, Phase::Running)]) };
    let second =
        v1::ManifestCommand { page: 1, ..world.page(N1, vec![world.item(b, Phase::Running)]) };
    assert!(matches!(world.apply(Command::Manifest(second.clone())), Outcome::Stale { .. }));
    let outcome = judged(world.apply(Command::Manifest(first.clone())));
    assert!(!outcome.judged && outcome.resend.is_empty());
    assert_eq!(world.ledger.agent(N1).map(|agent| agent.session()), Some(Session::Joining));
    let outcome = judged(world.apply(Command::Manifest(second.clone())));
    assert!(outcome.judged);
    assert_eq!((outcome.resend, outcome.vanished), (vec![id(c, 1)], 0));
    assert!(matches!(world.apply(Command::Manifest(second)), Outcome::Stale { .. }));
}

#[test]
fn a_manifest_of_another_session_is_stale() {
    let mut world = World::with_node();
    let page = world.page(N1, Vec::new());
    world.join(N1, 2, "j1");
    assert!(matches!(world.apply(Command::Manifest(page)), Outcome::Stale { .. }));
    let page = world.page(N1, Vec::new());
    world.down(N1, 2, DownCause::Rdhup);
    assert!(matches!(world.apply(Command::Manifest(page)), Outcome::Stale { .. }));
}

#[test]
fn a_rolled_back_journal_cannot_join() {
    let mut world = World::with_node();
    let job = world.running();
    world.finish(job, code(0));
    let join = v1::Join { next_seq: 2, ..join(N1, 2, "j1") };
    let up = |join| Command::AgentUp(v1::AgentUpCommand { join: Some(join) });
    let refused = Rejection::JournalRolledBack { high: Seq(2), next: Seq(2) };
    assert_eq!(world.apply(up(join.clone())), Outcome::Rejected(refused));
    assert_eq!(world.apply(up(v1::Join { next_seq: 3, ..join })), Outcome::AgentUp);
}

#[test]
fn the_newest_session_wins() {
    let mut world = World::with_node();
    assert!(matches!(world.join(N1, 1, "j1"), Outcome::Stale { .. }));
    assert_eq!(world.join(N1, 5, "j1"), Outcome::AgentUp);
    assert!(matches!(world.join(N1, 4, "j1"), Outcome::Stale { .. }));
}

#[test]
fn a_new_journal_begins_at_one() {
    let mut world = World::with_node();
    let job = world.running();
    world.finish(job, code(0));
    world.node_up(N1, 2, "j2");
    assert_eq!(world.ledger.agent(N1).map(|agent| agent.high()), Some(Seq(0)));
    let next = world.submit();
    world.assign_to(next, N1);
    let start = vec![fact::Kind::Start(start_of(next, 1))];
    assert!(matches!(world.facts_at(N1, 1, start), Outcome::FactsTaken { .. }));
    assert_eq!(world.kind(next), Kind::Running);
}
