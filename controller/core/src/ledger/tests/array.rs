//! Array jobs: one entry for any number of tasks, each with its own life.

use super::world::*;
use crate::ledger::{CancelVerdict, Kind, Outcome, Ranges, Rejection, StateName};
use crate::scheduler::plan;
use proto::v1::{self, command::Kind as Command, fact, finish_fact::End};
use proto::{JobId, TaskId};

fn range(first: u32, last: u32) -> v1::TaskRange {
    v1::TaskRange { first, last, step: 0 }
}

fn array_spec(ranges: Vec<v1::TaskRange>, limit: Option<u32>) -> v1::JobSpec {
    v1::JobSpec { array: Some(v1::ArraySpec { ranges, limit, race: false }), ..spec() }
}

fn array(world: &mut World, last: u32, limit: Option<u32>) -> JobId {
    world.submit_spec(array_spec(vec![range(0, last)], limit))
}

fn set(job: JobId, first: u32, last: u32) -> Vec<v1::TaskSet> {
    vec![v1::TaskSet { job: job.0, ranges: vec![range(first, last)] }]
}

fn task(job: JobId, number: u32) -> TaskId {
    TaskId { job, index: Some(number) }
}

/// Plans and applies it; gives the tasks that were given away, in order.
fn give(world: &mut World) -> Vec<TaskId> {
    let plan = plan(&world.ledger, &world.ledger.agents_up(), 1_000);
    let mut given = Vec::new();
    for placement in plan.placements {
        given.push(placement.attempt.task);
        let command = placement.to_command().kind.expect("an assign");
        assert_eq!(world.apply(command), Outcome::Assigned, "{placement:?}");
    }
    given
}

fn kind(world: &World, id: TaskId) -> Kind {
    world.ledger.job(id).expect("the task is there").kind()
}

fn end(world: &mut World, id: TaskId, status: u32) {
    let attempt = world.ledger.job(id).map_or(1, |job| job.attempt());
    let start = fact::Kind::Start(start_of(id, attempt));
    let finish = fact::Kind::Finish(finish_of(id, attempt, End::WaitStatus(status)));
    world.facts(N1, vec![start, finish]);
}

fn counts(world: &World, job: JobId) -> Vec<(StateName, u64)> {
    let array = world.ledger.array(job).expect("it is an array");
    array.tally().by_name().into_iter().collect()
}

fn cancel(world: &mut World, jobs: Vec<u64>, tasks: Vec<v1::TaskSet>, id: &str) -> CancelVerdict {
    let by = Some(user("mia"));
    let command = v1::CancelCommand { by, request_id: id.to_owned(), jobs, signal: None, tasks };
    match world.apply(Command::Cancel(command)) {
        Outcome::Cancelled(mut results) => results.remove(0).verdict,
        other => CancelVerdict::Refused(Rejection::malformed("test", format!("{other:?}"))),
    }
}

fn hold(world: &mut World, tasks: Vec<v1::TaskSet>, release: bool, id: &str) -> bool {
    let (by, request_id) = (Some(user("mia")), id.to_owned());
    let command = v1::HoldCommand { by, request_id, jobs: Vec::new(), release, tasks };
    match world.apply(Command::Hold(command)) {
        Outcome::Edited(results) => results[0].result.is_ok(),
        _ => false,
    }
}

#[test]
fn one_entry_makes_any_number_of_tasks_that_start_in_order_beside_other_jobs() {
    let mut world = World::with_node();
    let first = array(&mut world, 4, None);
    let plain = world.submit();
    let last = array(&mut world, 999_999 - 6, None);
    assert_eq!(world.ledger.live(), 1_000_000);
    assert_eq!(world.ledger.pending_count(), 1_000_000);
    let expected = (0..5).map(|n| task(first, n)).chain([plain.into()]);
    let expected: Vec<TaskId> = expected.chain([task(last, 0), task(last, 1)]).collect();
    assert_eq!(give(&mut world), expected);
    assert_eq!(counts(&world, last), [(StateName::Pend, 999_994)]);
    let refused = world.submit_with(spec(), "mia", "one-more");
    assert!(matches!(refused, Outcome::Rejected(Rejection::QueueFull { .. })), "{refused:?}");
    for number in 0..5 {
        end(&mut world, task(first, number), 0);
    }
    assert!(world.ledger.array(first).is_some_and(|array| array.terminal()));
    assert_eq!(counts(&world, first), [(StateName::Done, 5)]);
    assert_eq!(give(&mut world).len(), 5, "what they had is free");
}

#[test]
fn each_task_ends_in_its_own_way_and_the_array_with_its_last() {
    let mut world = World::with_node();
    let job = array(&mut world, 2, None);
    give(&mut world);
    end(&mut world, task(job, 1), 3 << 8);
    assert_eq!(counts(&world, job), [(StateName::Pend, 2), (StateName::Exit, 1)]);
    let folded = world.ledger.array(job).expect("it is there").to_wire(&world.ledger);
    assert_eq!((folded.state.as_str(), folded.terminal), ("PEND", false), "the least advanced");
    end(&mut world, task(job, 0), 0);
    end(&mut world, task(job, 2), 9);
    let folded = world.ledger.array(job).expect("it is there").to_wire(&world.ledger);
    assert_eq!((folded.state.as_str(), folded.terminal), ("EXIT", true));
    let code = |n| world.ledger.numbered(task(job, n)).map(|job| job.to_wire(&world.ledger));
    assert_eq!(code(1).and_then(|task| task.exit_code), Some(3));
    assert_eq!(code(2).and_then(|task| task.signal), Some(9));
}

#[test]
fn a_limit_holds_over_plans_and_can_be_changed_while_tasks_run() {
    let mut world = World::with_node();
    let job = array(&mut world, 9, Some(2));
    let plain = world.submit();
    assert_eq!(give(&mut world), [task(job, 0), task(job, 1), plain.into()]);
    assert_eq!(give(&mut world), [], "its limit is reached");
    let why = crate::scheduler::why_by_ledger(&world.ledger, task(job, 2)).expect("it waits");
    assert!(why.summary.contains("2 tasks of its array"), "{}", why.summary);
    let forced = v1::AssignCommand {
        attempt: Some(attempt_ref(task(job, 5), 1)),
        agent_id: N1.to_owned(),
        incarnation: 1,
        journal_id: b"j1".to_vec(),
    };
    let stale = world.apply(Command::Assign(forced));
    assert!(matches!(&stale, Outcome::Stale { what } if what.contains("limit")), "{stale:?}");
    end(&mut world, task(job, 0), 0);
    assert_eq!(give(&mut world), [task(job, 2)]);
    let limit = |world: &mut World, limit, id: &str| {
        let (by, request_id, jobs) = (Some(user("mia")), id.to_owned(), vec![job.0]);
        world.apply(Command::ArrayLimit(v1::ArrayLimitCommand { by, request_id, jobs, limit }))
    };
    limit(&mut world, 4, "l1");
    assert_eq!(give(&mut world), [task(job, 3), task(job, 4)]);
    limit(&mut world, 1, "l2");
    end(&mut world, task(job, 1), 0);
    assert_eq!(give(&mut world), [], "three still run");
    limit(&mut world, 0, "l3");
    assert_eq!(give(&mut world).len(), 4, "no limit: as many as there are cpus");
    limit(&mut world, 4, "l1");
    assert_eq!(world.ledger.array(job).and_then(|array| array.limit()), None, "P8: done once");
}

#[test]
fn a_task_a_range_or_all_are_cancelled_and_what_waits_ends_at_once() {
    let mut world = World::with_node();
    let job = array(&mut world, 99_999, Some(2));
    give(&mut world);
    assert_eq!(cancel(&mut world, vec![], set(job, 7, 7), "c1"), CancelVerdict::Cancelled);
    assert_eq!(kind(&world, task(job, 7)), Kind::Exit);
    assert_eq!(cancel(&mut world, vec![], set(job, 10, 19), "c2"), CancelVerdict::Cancelled);
    assert_eq!(counts(&world, job), [(StateName::Pend, 99_989), (StateName::Exit, 11)]);
    assert_eq!(cancel(&mut world, vec![], set(job, 10, 19), "c3"), CancelVerdict::AlreadyEnded);
    assert_eq!(cancel(&mut world, vec![], set(job, 10, 19), "c2"), CancelVerdict::Cancelled);
    assert_eq!(cancel(&mut world, vec![job.0], vec![], "c4"), CancelVerdict::Requested);
    assert_eq!(counts(&world, job), [(StateName::Pend, 2), (StateName::Exit, 99_998)]);
    assert!(world.ledger.job(task(job, 0)).is_some_and(|job| job.cancel().is_some()));
    let refused = cancel(&mut world, vec![], set(job, 99_990, 100_005), "c5");
    let no_task = Rejection::NoSuchTask { job, task: Some(100_000), tasks: "0-99999".to_owned() };
    assert_eq!(refused, CancelVerdict::Refused(no_task));
    let plain = world.submit();
    let refused = cancel(&mut world, vec![], set(plain, 0, 0), "c6");
    assert_eq!(refused, CancelVerdict::Refused(Rejection::NotAnArray { job: plain }));
}

#[test]
fn some_tasks_are_held_and_released_without_the_others() {
    let mut world = World::with_node();
    let job = array(&mut world, 9, None);
    assert!(hold(&mut world, set(job, 0, 4), false, "h1"));
    assert!(hold(&mut world, set(job, 9, 9), false, "h2"));
    assert_eq!(give(&mut world), [5, 6, 7, 8].map(|n| task(job, n)));
    assert!(hold(&mut world, set(job, 2, 3), true, "h3"));
    assert!(!hold(&mut world, set(job, 5, 8), false, "h4"), "a node has all of them");
    assert!(hold(&mut world, set(job, 4, 8), false, "h5"), "of one of them it makes sense");
    assert_eq!(give(&mut world), [2, 3].map(|n| task(job, n)));
    assert!(hold(&mut world, set(job, 0, 9), true, "h6"));
    assert_eq!(give(&mut world), [0, 1].map(|n| task(job, n)), "as many as there are cpus");
}

#[test]
fn a_retried_task_goes_through_the_queue_again_and_counts_to_the_limit_once() {
    let mut world = World::with_node();
    let spec = v1::JobSpec { array: array_spec(vec![range(3, 6)], Some(1)).array, ..retrying() };
    let job = world.submit_spec(spec);
    assert_eq!(give(&mut world), [task(job, 3)]);
    end(&mut world, task(job, 3), 1 << 8);
    assert_eq!(kind(&world, task(job, 3)), Kind::Queued);
    assert_eq!(give(&mut world), [task(job, 3)], "in its place");
    assert_eq!(world.ledger.job(task(job, 3)).map(|job| job.attempt()), Some(2));
    end(&mut world, task(job, 3), 0);
    assert_eq!(give(&mut world), [task(job, 4)]);
}

#[test]
fn an_array_leaves_the_ledger_as_a_whole() {
    let mut world = World::with_node();
    let job = array(&mut world, 1, None);
    let other = world.submit();
    give(&mut world);
    end(&mut world, task(job, 0), 0);
    end(&mut world, other.into(), 0);
    world.pass(world.ledger.policy().job_ttl_ms - 1);
    end(&mut world, task(job, 1), 0);
    world.pass(1);
    world.tick();
    assert!(world.ledger.evicted(other) && !world.ledger.evicted(job), "its last end counts");
    world.pass(world.ledger.policy().job_ttl_ms);
    world.tick();
    assert!(world.ledger.evicted(job));
    assert!(world.ledger.counts().is_empty(), "{:?}", world.ledger.counts());
}

#[test]
fn what_cannot_be_an_array_is_refused_by_name() {
    let mut world = World::new();
    for ranges in [vec![], vec![range(5, 4)], vec![range(0, 1_000_000)]] {
        let outcome = world.submit_with(array_spec(ranges, None), "mia", "r");
        let refused = matches!(&outcome, Outcome::Rejected(Rejection::Malformed { field, .. })
            if *field == "spec.array");
        assert!(refused, "{outcome:?}");
    }
    let steps = vec![v1::TaskRange { first: 0, last: 10, step: 5 }, range(4, 6)];
    let job = world.submit_spec(array_spec(steps, None));
    let numbers = world.ledger.array(job).map(|array| array.numbers().clone());
    assert_eq!(numbers, Some(Ranges::of([(0, 0), (4, 6), (10, 10)])), "each number once");
}

#[test]
fn an_array_of_more_tasks_than_may_be_kept_stays_for_who_waits_for_it() {
    let mut world = World::with_node();
    let policy = v1::Policy { max_completed: 3, ..v1::Policy::default() };
    let configure = v1::ConfigureCommand { policy: Some(policy), ..Default::default() };
    world.apply(Command::Configure(configure));
    let job = array(&mut world, 4, None);
    give(&mut world);
    for number in 0..5 {
        end(&mut world, task(job, number), 0);
    }
    assert!(!world.ledger.evicted(job), "five ended tasks, and three may be kept");
    world.pass(600_000);
    world.tick();
    assert!(!world.ledger.evicted(job), "nothing else has ended");
    let other = world.submit();
    give(&mut world);
    end(&mut world, other.into(), 0);
    assert!(
        world.ledger.evicted(job) && !world.ledger.evicted(other),
        "it makes room for the next"
    );
    // Of a million that share a record one is kept.
    let many = array(&mut world, 999_999, None);
    cancel(&mut world, vec![many.0], vec![], "c1");
    assert!(!world.ledger.evicted(many) && !world.ledger.evicted(other));
}

#[test]
fn the_first_task_of_a_race_that_is_done_cancels_the_others() {
    let mut world = World::with_node();
    let array = v1::ArraySpec { ranges: vec![range(0, 9)], limit: Some(3), race: true };
    let job = world.submit_spec(v1::JobSpec { array: Some(array), ..spec() });
    assert_eq!(give(&mut world).len(), 3);
    end(&mut world, task(job, 0), 256);
    let tally = |world: &World| *world.ledger.array(job).unwrap().tally();
    assert_eq!(tally(&world).ended(), 1, "a failure ends nothing else");
    end(&mut world, task(job, 1), 0);
    assert_eq!((tally(&world).ended(), tally(&world).of(Kind::Dispatched)), (9, 1));
    assert!(world.ledger.job(task(job, 2)).unwrap().cancel().is_some(), "its node is told");
    // Another one that was done meanwhile keeps its own end.
    end(&mut world, task(job, 2), 0);
    assert_eq!((tally(&world).ended(), tally(&world).of(Kind::Done)), (10, 2));
    let whole = world.ledger.array(job).unwrap().to_wire(&world.ledger);
    assert_eq!(&*whole.state, "DONE", "it was won");
    let events = crate::events(&world.ledger, job).unwrap().events;
    let won = "is the first that is DONE: the others are cancelled";
    let told: Vec<_> = events.iter().filter(|event| event.what.ends_with(won)).collect();
    assert!(told.len() == 1 && told[0].what.starts_with("task 1 "), "{events:?}");
}
