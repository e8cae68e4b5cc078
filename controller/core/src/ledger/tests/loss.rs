//! Loss of a worker and change of the leader: who knows what, and what follows from it.

use super::world::*;
use crate::ledger::{DownWhy, Kind, Outcome, Session};
use proto::v1::{
    self, DownCause, ExitKind, OnDisconnect, command::Kind as Command, fact, finish_fact::End,
};

#[test]
fn a_dead_agents_running_tasks_end_at_once_and_the_dispatched_ones_are_unknown() {
    let mut world = World::with_node();
    let (runs, stopped, given) = (world.running(), world.suspended(), world.dispatched());
    let outcome = world.down(N1, 1, DownCause::Rdhup);
    assert_eq!(outcome, Outcome::AgentDown { ended: 2, unknown: 1 });
    for job in [runs, stopped] {
        let task = world.task(job);
        assert_eq!(world.reason(job), Some(ExitKind::AgentDied));
        assert_eq!((task.exit_code, task.finish_wall_ms), (None, Some(world.wall_ms)));
    }
    assert_eq!(world.kind(given), Kind::Unknown);
    assert_eq!(world.job(given).started(), None);
    assert_eq!(world.ledger.used(N1).jobs, 1);
}

#[test]
fn on_disconnect_unknown_treats_a_dead_agent_as_silence() {
    let mut world = World::with_node();
    let survivor =
        world.submit_spec(v1::JobSpec { on_disconnect: OnDisconnect::Unknown as i32, ..spec() });
    world.assign_to(survivor, N1);
    world.start(survivor);
    let other = world.running();
    world.down(N1, 1, DownCause::Rdhup);
    assert_eq!((world.kind(survivor), world.kind(other)), (Kind::Unknown, Kind::Exit));
}

#[test]
fn the_clusters_on_disconnect_counts_where_the_job_says_nothing() {
    let mut world = World::with_node();
    let policy =
        v1::Policy { on_disconnect: OnDisconnect::Unknown as i32, ..v1::Policy::default() };
    world.apply(Command::Configure(v1::ConfigureCommand {
        policy: Some(policy),
        ..Default::default()
    }));
    let stays = world.running();
    let ends =
        world.submit_spec(v1::JobSpec { on_disconnect: OnDisconnect::Exit as i32, ..spec() });
    world.assign_to(ends, N1);
    world.start(ends);
    world.down(N1, 1, DownCause::Rdhup);
    assert_eq!((world.kind(stays), world.kind(ends)), (Kind::Unknown, Kind::Exit));
}

#[test]
fn silence_ends_nothing() {
    let mut world = World::with_node();
    let jobs = [world.running(), world.suspended(), world.dispatched()];
    world.pass(31_000);
    assert_eq!(world.down(N1, 1, DownCause::Silence), Outcome::AgentDown { ended: 0, unknown: 3 });
    for job in jobs {
        let task = world.task(job);
        assert_eq!((task.state.as_str(), task.transient), ("UNKWN", true));
        assert_eq!(task.transient_since_wall_ms, Some(world.wall_ms));
        assert_eq!(task.decided_wall_ms, Some(world.wall_ms + 300_000));
    }
    assert_eq!(world.ledger.used(N1).jobs, 3, "what may live keeps its resources");
}

#[test]
fn a_report_about_an_older_session_is_stale() {
    let mut world = World::with_node();
    let job = world.running();
    world.join(N1, 2, "j1");
    assert!(matches!(world.down(N1, 1, DownCause::Rdhup), Outcome::Stale { .. }));
    assert_eq!(world.kind(job), Kind::Running);
    // What the older session had was not claimed by the process that dies now.
    assert_eq!(world.down(N1, 2, DownCause::Rdhup), Outcome::AgentDown { ended: 0, unknown: 1 });
    assert_eq!(world.kind(job), Kind::Unknown);
}

#[test]
fn a_new_term_makes_everything_held_unknown_and_keeps_older_marks() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let job = world.running();
    let other = world.submit();
    world.assign_to(other, N2);
    world.pass(1000);
    world.down(N2, 1, DownCause::Silence);
    assert_eq!(world.since_led(other), Some(1000));
    world.pass(1000);
    assert_eq!(world.term(2), Outcome::TermStarted { count: 1 });
    assert_eq!((world.since_led(job), world.since_led(other)), (Some(2000), Some(1000)));
    for term in 3..9 {
        world.pass(1000);
        assert_eq!(world.term(term), Outcome::TermStarted { count: 0 });
    }
    assert_eq!(world.since_led(job), Some(2000), "over any number of restarts");
    assert!(matches!(world.term(8), Outcome::Stale { .. }));
    let session = world.ledger.agent(N1).map(|agent| agent.session());
    assert_eq!(session, Some(Session::Down(DownWhy::NewTerm)));
}

#[test]
fn an_unknown_task_is_lost_when_its_time_is_over() {
    let mut world = World::with_node();
    let job = world.running();
    world.pass(40_000);
    world.down(N1, 1, DownCause::Silence);
    assert_eq!(world.ledger.next_deadline_led(), Some(340_000));
    world.led_ms = 339_999;
    assert_eq!(world.tick(), (0, false));
    world.led_ms = 340_000;
    assert_eq!(world.tick(), (1, false));
    assert_eq!(world.reason(job), Some(ExitKind::Lost));
    assert_eq!(world.task(job).exit_code, None);
}

#[test]
fn a_wall_clock_that_jumps_settles_nothing() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Silence);
    world.wall_ms += 10 * 24 * 3600 * 1000;
    assert_eq!(world.tick(), (0, false));
    assert_eq!(world.kind(job), Kind::Unknown);
    // Led time that runs backwards between leaders does not count either.
    world.pass(5000);
    world.tick();
    world.led_ms = 0;
    world.tick();
    assert_eq!(world.ledger.led(), 5000);
}

#[test]
fn at_the_begin_of_a_term_the_time_to_live_is_doubled() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Silence);
    world.led_ms = 290_000;
    world.term(2);
    world.led_ms = 310_000;
    assert_eq!(world.tick(), (0, false), "its agent gets heartbeat_timeout to join");
    world.led_ms = 320_000;
    assert_eq!(world.tick(), (1, false));
    assert_eq!(world.reason(job), Some(ExitKind::Lost));
}

#[test]
fn an_election_every_second_cannot_hold_a_task_for_ever() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Silence);
    let mut term = 1;
    while world.kind(job) == Kind::Unknown {
        term += 1;
        world.pass(1000);
        world.term(term);
        world.tick();
    }
    assert_eq!(world.led_ms, 600_000);
}

#[test]
fn the_real_outcome_after_a_settled_end_is_shown_and_changes_nothing() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Rdhup);
    world.join(N1, 2, "j1");
    world.finish(job, code(42));
    let task = world.task(job);
    assert_eq!((task.state.as_str(), task.exit_code), ("EXIT", None));
    assert_eq!(world.reason(job), Some(ExitKind::AgentDied));
    assert_eq!(task.late_outcome.and_then(|late| late.code), Some(42));
    world.finish(job, code(1));
    assert_eq!(world.task(job).late_outcome.and_then(|late| late.code), Some(42), "the first");
    assert_eq!(world.ledger.counters().late_outcomes, 1);
}

#[test]
fn a_finish_settles_an_unknown_task() {
    let mut world = World::with_node();
    let job = world.running();
    world.term(2);
    world.join(N1, 2, "j1");
    world.finish(job, code(0));
    assert_eq!(world.kind(job), Kind::Done);
}

#[test]
fn a_start_ends_the_doubt_about_a_dispatched_task_in_the_newest_session() {
    let mut world = World::with_node();
    let job = world.dispatched();
    world.term(2);
    world.join(N1, 2, "j1");
    world.start(job);
    assert_eq!(world.kind(job), Kind::Running);
    assert_eq!(world.job(job).grant().map(|grant| grant.incarnation), Some(2));
}

#[test]
fn an_old_start_that_comes_again_is_no_news_of_an_unknown_task() {
    let mut world = World::with_node();
    let job = world.running();
    world.term(2);
    world.join(N1, 2, "j1");
    world.facts_at(N1, 1, vec![fact::Kind::Start(start_of(job, 1))]);
    assert_eq!(world.kind(job), Kind::Unknown);
}

#[test]
fn a_node_fault_of_an_unknown_task_queues_the_next_attempt() {
    let mut world = World::with_node();
    let job = world.dispatched();
    world.down(N1, 1, DownCause::Goodbye);
    world.join(N1, 2, "j1");
    world.finish(job, End::StartFailure(node_failure()));
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, 2));
}

#[test]
fn lost_with_a_cancel_intent_shows_who_cancelled() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Silence);
    world.cancel(job);
    world.pass(300_000);
    world.tick();
    assert_eq!(world.reason(job), Some(ExitKind::Lost));
    assert_eq!(world.task(job).cancelled_by.as_deref(), Some("mia"));
}

#[test]
fn one_agents_tasks_become_unknown_without_ending_its_session_for_good() {
    let mut world = World::with_node();
    let job = world.running();
    let unknown = v1::UnknownCommand {
        agent_id: N1.to_owned(),
        incarnation: 1,
        why: "its keeper does not answer".to_owned(),
    };
    assert_eq!(world.apply(Command::Unknown(unknown)), Outcome::Unknown { count: 1 });
    assert_eq!(world.task(job).message, "n1: its keeper does not answer");
    // It speaks again in the same session: the manifest that was asked for brings it back.
    let mut page = world.page(N1, vec![world.item(job, v1::Phase::Running)]);
    page.at_join = false;
    page.last_order = u64::MAX;
    world.apply(Command::Manifest(page));
    assert_eq!(world.kind(job), Kind::Running);
    assert_eq!(world.ledger.agent(N1).map(|agent| agent.session()), Some(Session::Up));
}

#[test]
fn only_the_last_sixteen_causes_are_kept_and_the_rest_is_counted() {
    let mut world = World::with_node();
    let job = world.running();
    for incarnation in 2..12 {
        world.term(incarnation);
        world.join(N1, incarnation, "j1");
        let item = world.item(job, v1::Phase::Running);
        world.at_join(N1, vec![item]);
    }
    assert_eq!(world.job(job).causes().len(), 16);
    assert_eq!(world.job(job).causes_dropped(), 6);
    let events = crate::events(&world.ledger, job).expect("the job is there");
    assert!(events.truncated);
    assert_eq!(events.events.len(), 17, "the submit is always told");
}
