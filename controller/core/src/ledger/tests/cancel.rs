//! Cancel, signal and the other edits: who may, what happens at once, what is an intent.

use super::world::*;
use crate::ledger::{CancelVerdict, Kind, Outcome, Rejection};
use proto::v1::{self, ExitKind, command::Kind as Command};
use proto::{JobId, OrderId};

fn verdict(outcome: &Outcome) -> Option<&CancelVerdict> {
    match outcome {
        Outcome::Cancelled(results) => results.first().map(|result| &result.verdict),
        _ => None,
    }
}

fn signal(world: &mut World, job: JobId, signal: u32, request: &str) -> Outcome {
    world.apply(Command::Cancel(v1::CancelCommand {
        tasks: Vec::new(),
        by: Some(user("mia")),
        request_id: request.to_owned(),
        jobs: vec![job.0],
        signal: Some(signal),
    }))
}

#[test]
fn what_waits_ends_at_once() {
    let mut world = World::new();
    let job = world.submit();
    assert_eq!(verdict(&world.cancel(job)), Some(&CancelVerdict::Cancelled));
    let task = world.task(job);
    assert_eq!((task.state.as_str(), task.exit_code), ("EXIT", None));
    assert_eq!(task.cancelled_by.as_deref(), Some("mia"));
    assert_eq!(task.finish_wall_ms, Some(world.wall_ms));
    assert_eq!(verdict(&world.cancel(job)), Some(&CancelVerdict::AlreadyEnded));
}

#[test]
fn what_an_agent_holds_gets_an_intent_with_its_own_order_id() {
    let mut world = World::with_node();
    for job in [world.dispatched(), world.running(), world.suspended()] {
        let before = world.kind(job);
        assert_eq!(verdict(&world.cancel(job)), Some(&CancelVerdict::Requested));
        assert_eq!(world.kind(job), before);
        assert!(world.task(job).cancel_requested);
        let order = world.job(job).cancel().map(|cancel| cancel.order);
        assert_eq!(order, Some(OrderId(world.index << 12)));
        // A second cancel keeps the first.
        assert_eq!(verdict(&world.cancel(job)), Some(&CancelVerdict::Requested));
        assert_eq!(world.job(job).cancel().map(|cancel| cancel.order), order);
    }
}

#[test]
fn the_same_cancel_again_gets_the_same_answer() {
    let mut world = World::with_node();
    let (waits, runs) = (world.submit(), world.running());
    let cancel = Command::Cancel(v1::CancelCommand {
        tasks: Vec::new(),
        by: Some(user("mia")),
        request_id: "c".to_owned(),
        jobs: vec![waits.0, runs.0, 99],
        signal: None,
    });
    let first = world.apply(cancel.clone());
    world.finish(runs, code(0));
    assert_eq!(world.apply(cancel), first);
}

#[test]
fn only_owner_and_admin_may() {
    let mut world = World::with_node();
    let job = world.running();
    let refused = CancelVerdict::Refused(Rejection::NotOwner { job, owner: "mia".to_owned() });
    assert_eq!(verdict(&world.cancel_by(user("tom"), &[job])), Some(&refused));
    let namesake = v1::Requester { uid: 1, ..user("mia") };
    assert_eq!(verdict(&world.cancel_by(namesake, &[job])), Some(&refused), "name and uid count");
    assert!(world.job(job).cancel().is_none());
    let asked = world.cancel_by(user("root"), &[job]);
    assert_eq!(verdict(&asked), Some(&CancelVerdict::Requested));
    assert_eq!(world.task(job).cancelled_by.as_deref(), Some("root"));
}

#[test]
fn an_unknown_id_is_told_with_the_newest() {
    let mut world = World::new();
    world.submit();
    let refused = Rejection::NoSuchJob { job: JobId(9), newest: JobId(1) };
    assert_eq!(verdict(&world.cancel(JobId(9))), Some(&CancelVerdict::Refused(refused)));
}

#[test]
fn a_node_fault_of_a_cancelled_task_ends_it_as_cancelled() {
    let mut world = World::with_node();
    let job = world.dispatched();
    world.cancel(job);
    world.refuse(job);
    assert_eq!(world.reason(job), Some(ExitKind::Cancelled));
}

#[test]
fn a_signal_is_recorded_once_for_the_leader_to_carry_out() {
    let mut world = World::with_node();
    let job = world.running();
    assert_eq!(verdict(&signal(&mut world, job, 10, "s")), Some(&CancelVerdict::Signalled));
    let first = world.job(job).signal().map(|signal| (signal.order, signal.signal));
    assert_eq!(first.map(|(_, signal)| signal), Some(10));
    assert_eq!(verdict(&signal(&mut world, job, 10, "s")), Some(&CancelVerdict::Signalled));
    assert_eq!(world.job(job).signal().map(|signal| (signal.order, signal.signal)), first);
    signal(&mut world, job, 12, "t");
    assert_eq!(world.job(job).signal().map(|signal| signal.signal), Some(12));
    assert_eq!(world.kind(job), Kind::Running);
}

#[test]
fn a_signal_needs_a_process_and_a_number() {
    let mut world = World::with_node();
    let job = world.submit();
    let refused = signal(&mut world, job, 10, "s");
    assert!(matches!(
        verdict(&refused),
        Some(CancelVerdict::Refused(Rejection::WrongState { .. }))
    ));
    let bad = signal(&mut world, job, 65, "s");
    assert!(matches!(bad, Outcome::Rejected(Rejection::Malformed { field: "signal", .. })));
}

#[test]
fn a_higher_priority_goes_first_and_the_order_of_submits_decides_among_equals() {
    let mut world = World::new();
    let jobs = [world.submit(), world.submit(), world.submit()];
    let priority = |job: JobId, priority| {
        Command::Priority(v1::PriorityCommand {
            tasks: Vec::new(),
            by: Some(user("mia")),
            request_id: "p".to_owned(),
            jobs: vec![job.0],
            priority,
        })
    };
    world.apply(priority(jobs[2], 5));
    world.apply(priority(jobs[0], -5));
    let lines = world.ledger.lines();
    let order: Vec<JobId> = lines.flat_map(|(_, l)| l.iter().map(|(_, id)| id.job)).collect();
    assert_eq!(order, [jobs[2], jobs[1], jobs[0]]);
}

#[test]
fn a_held_job_leaves_the_queue_and_a_running_one_cannot_be_held() {
    let mut world = World::with_node();
    let (waits, runs) = (world.submit(), world.running());
    let hold = Command::Hold(v1::HoldCommand {
        tasks: Vec::new(),
        by: Some(user("mia")),
        request_id: "h".to_owned(),
        jobs: vec![waits.0, runs.0],
        release: false,
    });
    let Outcome::Edited(results) = world.apply(hold) else { unreachable!("an edit answers edits") };
    assert_eq!(results[0].result, Ok(()));
    assert!(matches!(results[1].result, Err(Rejection::WrongState { .. })));
    assert_eq!((world.kind(waits), world.kind(runs)), (Kind::Held, Kind::Running));
    assert_eq!(world.ledger.pending_count(), 0);
}
