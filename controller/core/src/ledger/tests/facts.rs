//! Facts: taken once, by meaning; what is not known yet waits in the registry, never dropped.

use super::world::*;
use crate::ledger::{Kind, Outcome};
use proto::Seq;
use proto::v1::{self, ExitKind, KillCause, fact, finish_fact::End};

#[test]
fn a_job_runs_and_ends_with_its_real_code() {
    let mut world = World::with_node();
    let job = world.running();
    assert_eq!(world.task(job).pid, 4711);
    world.finish(job, code(7));
    let task = world.task(job);
    assert_eq!((task.state.as_str(), task.exit_code, task.terminal), ("EXIT", Some(7), true));
    assert_eq!(task.finish_wall_ms, Some(1_700_000_001_000));
    assert_eq!(task.node.as_deref(), Some("n1"));
    assert_eq!(task.stderr_tail, b"last words");
}

#[test]
fn a_fast_jobs_start_and_finish_travel_as_one_fact() {
    let mut world = World::with_node();
    let job = world.dispatched();
    let mut finish = world.finish_fact(job, code(0));
    finish.start = Some(start_of(job, 1));
    world.facts(N1, vec![fact::Kind::Finish(finish)]);
    let task = world.task(job);
    assert_eq!((task.state.as_str(), task.start_wall_ms), ("DONE", Some(1_700_000_000_500)));
    assert!(task.stderr_tail.is_empty(), "only a failed attempt shows its last words");
}

#[test]
fn a_success_code_makes_it_done() {
    let mut world = World::with_node();
    let job = world.submit_spec(v1::JobSpec { success_codes: vec![0, 10], ..spec() });
    world.assign_to(job, N1);
    world.finish(job, code(10));
    assert_eq!(world.kind(job), Kind::Done);
}

#[test]
fn a_batch_is_acknowledged_up_to_its_own_end_also_when_it_comes_again() {
    let mut world = World::with_node();
    let job = world.running();
    world.finish(job, code(3));
    let again = vec![fact::Kind::Start(start_of(job, 1))];
    let Outcome::FactsTaken { high, later, .. } = world.facts_at(N1, 1, again) else {
        unreachable!("a batch at or below high is applied again by meaning")
    };
    assert_eq!((high, later.len()), (Seq(1), 0));
    assert_eq!(world.reason(job), Some(ExitKind::ExitCode));
    assert_eq!(world.ledger.counters().after_end, 1);
    assert_eq!(world.ledger.agent(N1).map(|agent| agent.high()), Some(Seq(2)));
}

#[test]
fn a_gap_asks_again_from_the_first_missing_seq() {
    let mut world = World::with_node();
    let job = world.running();
    let fact = fact::Kind::Finish(world.finish_fact(job, code(0)));
    let gap = world.facts_at(N1, 3, vec![fact]);
    assert_eq!(gap, Outcome::FactsGap { agent_id: N1.into(), from: Seq(2) });
    assert_eq!(world.kind(job), Kind::Running);
}

#[test]
fn facts_of_another_journal_are_stale() {
    let mut world = World::with_node();
    let job = world.running();
    world.join(N1, 2, "j2");
    let fact = world.finish_fact(job, code(0));
    let facts = v1::Facts {
        journal_id: b"j1".to_vec(),
        from: 2,
        to: 2,
        facts: vec![v1::Fact { seq: 2, kind: Some(fact::Kind::Finish(fact)) }],
    };
    let command = v1::FactsCommand { agent_id: N1.to_owned(), incarnation: 1, facts: Some(facts) };
    let outcome = world.apply(v1::command::Kind::Facts(command));
    assert!(matches!(outcome, Outcome::Stale { .. }), "{outcome:?}");
}

#[test]
fn facts_of_other_attempts_tokens_and_agents_are_counted_and_do_nothing() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let job = world.running();
    world.facts(N2, vec![fact::Kind::Finish(finish_of(job, 1, code(9)))]);
    let mut other_token = finish_of(job, 1, code(9));
    other_token.token = Some(v1::Token { generation: 9, attempt: 1 });
    world.facts(N1, vec![fact::Kind::Finish(other_token)]);
    let mut nothing = finish_of(job, 1, code(9));
    nothing.attempt = None;
    world.facts(N1, vec![fact::Kind::Finish(nothing)]);
    assert_eq!(world.kind(job), Kind::Running);
    let counters = world.ledger.counters();
    assert_eq!((counters.wrong_agent, counters.other_attempt, counters.malformed), (1, 1, 1));
}

#[test]
fn a_second_finish_changes_nothing() {
    let mut world = World::with_node();
    let job = world.running();
    world.finish(job, code(1));
    let before = world.task(job);
    world.finish(job, code(2));
    assert_eq!(world.task(job), before);
}

#[test]
fn a_node_fault_opens_the_next_attempt_five_times_then_it_is_start_failed() {
    let mut world = World::with_node();
    let job = world.dispatched();
    for attempt in 1..=5 {
        world.refuse(job);
        assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, attempt + 1));
        let kept_out = world.assign_to(job, N1);
        assert!(matches!(kept_out, Outcome::Stale { .. }), "{kept_out:?}");
        world.led_ms = world.ledger.next_deadline_led().expect("the node is tried again");
        world.tick();
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    }
    world.finish(job, End::StartFailure(node_failure()));
    assert_eq!(world.reason(job), Some(ExitKind::StartFailed));
    let reason = world.task(job).reason.and_then(|reason| reason.start_failure);
    assert_eq!(reason, Some(node_failure()));
    assert_eq!(world.job(job).attempt(), 6);
    assert_eq!(world.ledger.counters().node_faults, 6);
}

#[test]
fn a_fact_of_a_closed_attempt_does_not_touch_the_next_one() {
    let mut world = World::with_node();
    let job = world.dispatched();
    world.refuse(job);
    world.facts(N1, vec![fact::Kind::Finish(finish_of(job, 1, code(0)))]);
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, 2));
}

#[test]
fn a_users_step_is_start_failed_at_once_and_no_fault_of_the_node() {
    let mut world = World::with_node();
    let job = world.dispatched();
    let failure = v1::StartFailure {
        step: "chdir".to_owned(),
        errno: 2,
        path: b"/gone".to_vec(),
        message: "No such file or directory".to_owned(),
        ..Default::default()
    };
    world.finish(job, End::StartFailure(failure));
    assert_eq!(world.reason(job), Some(ExitKind::StartFailed));
    let told = "could not be started: chdir /gone: No such file or directory";
    assert_eq!(world.task(job).message, told);
    assert!(world.ledger.agent(N1).is_some_and(|agent| agent.fault().is_none()));
    assert_eq!(world.task(job).exit_code, None, "no invented 127");
}

#[test]
fn a_node_that_starts_something_again_is_trusted_again() {
    let mut world = World::with_node();
    let job = world.dispatched();
    world.refuse(job);
    assert!(world.ledger.agent(N1).is_some_and(|agent| agent.fault().is_some()));
    world.pass(1000);
    world.tick();
    world.assign_to(job, N1);
    world.start(job);
    assert!(world.ledger.agent(N1).is_some_and(|agent| agent.fault().is_none()));
}

/// What was started before the fault says nothing about starts after it.
#[test]
fn the_end_of_what_ran_before_a_fault_does_not_clear_it() {
    let mut world = World::with_node();
    let before = world.running();
    let told_late = world.dispatched();
    let refused = world.dispatched();
    world.refuse(refused);
    let fault = |world: &World| world.ledger.agent(N1).and_then(|agent| agent.fault().cloned());
    assert!(fault(&world).is_some());
    world.finish(before, code(0));
    assert!(fault(&world).is_some(), "it was started before the fault");
    world.finish(told_late, code(0));
    assert!(fault(&world).is_some(), "its order was given before the fault");
    world.pass(1000);
    world.tick();
    assert_eq!(world.assign_to(refused, N1), Outcome::Assigned);
    world.finish(refused, code(3));
    assert_eq!(fault(&world), None, "this one was started after it");
}

/// The directory of a node's agent is gone: that says nothing about the job, however often.
#[test]
fn a_node_that_is_out_costs_a_waiting_job_none_of_its_tries() {
    let mut world = World::with_node();
    let job = world.dispatched();
    let out = v1::StartFailure { node_out: true, ..node_failure() };
    for attempt in 1..=20 {
        world.refuse_with(job, out.clone());
        assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, attempt + 1));
        assert_eq!(world.job(job).node_faults(), 0);
        world.led_ms = world.ledger.next_deadline_led().expect("the node is tried again");
        world.tick();
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    }
    world.refuse(job);
    assert_eq!(world.job(job).node_faults(), 1, "another fault counts");
}

#[test]
fn a_task_that_was_heard_to_start_is_not_started_again_for_a_node_fault() {
    let mut world = World::with_node();
    let job = world.running();
    world.refuse(job);
    assert_eq!(world.kind(job), Kind::Running, "only a repetition of the order was refused");
    world.finish(job, End::StartFailure(node_failure()));
    assert_eq!(world.reason(job), Some(ExitKind::StartFailed));
}

#[test]
fn the_keepers_cause_wins_with_the_wait_status_beside_it() {
    let mut world = World::with_node();
    let job = world.running();
    world.cancel(job);
    let mut finish = world.finish_fact(job, End::WaitStatus(15));
    finish.set_killed_for(KillCause::Cancel);
    world.facts(N1, vec![fact::Kind::Finish(finish)]);
    let task = world.task(job);
    assert_eq!(task.reason.as_ref().map(|reason| reason.kind()), Some(ExitKind::Cancelled));
    assert_eq!((task.signal, task.cancelled_by.as_deref()), (Some(15), Some("mia")));
    assert_eq!(task.message, "cancelled by mia (signal 15)");
    assert_eq!(task.killed, "by docket with all its processes: mia asked to cancel it");
}

#[test]
fn a_cancel_that_came_too_late_leaves_the_natural_end_and_says_so() {
    let mut world = World::with_node();
    let job = world.running();
    world.cancel(job);
    world.finish(job, code(0));
    assert_eq!(world.kind(job), Kind::Done);
    let events = crate::events(&world.ledger, job).expect("the job is there").events;
    let told = "the cancel came too late: it ended by itself";
    assert!(events.iter().any(|event| event.what == told), "{events:?}");
}

#[test]
fn an_end_that_nobody_could_read_has_no_code() {
    let mut world = World::with_node();
    let job = world.dispatched();
    let mut finish = world.finish_fact(job, End::UnknownStatus(true));
    finish.started_unknown = true;
    world.facts(N1, vec![fact::Kind::Finish(finish)]);
    assert_eq!(world.reason(job), Some(ExitKind::UnknownStatus));
    assert_eq!((world.task(job).exit_code, world.task(job).signal), (None, None));
    let rebooted = world.running();
    world.finish(rebooted, End::NodeRebooted(true));
    assert_eq!(world.reason(rebooted), Some(ExitKind::NodeRebooted));
}

#[test]
fn the_time_line_tells_who_did_what_at_which_position() {
    let mut world = World::with_node();
    world.term(1);
    world.node_up(N1, 2, "j1");
    let job = world.running();
    world.finish(job, code(3));
    let events = crate::events(&world.ledger, job).expect("the job is there");
    let told: Vec<(u64, &str, &str)> =
        events.events.iter().map(|e| (e.position, e.who.as_str(), e.what.as_str())).collect();
    let p = told[0].0;
    let mia = format!("mia (uid {})", user("mia").uid);
    assert_eq!(
        told,
        [
            (p, mia.as_str(), "submitted, request request-1"),
            (p + 1, "controller 1", "assigned to n1, attempt 1"),
            (p + 2, "agent n1", "started, pid 4711"),
            (p + 3, "agent n1", "ended: exit code 3 (real wait status 0x300)"),
            (p + 3, "controller 1", "RUN -> EXIT exit-code 3"),
        ]
    );
    assert!(!events.truncated);
}
