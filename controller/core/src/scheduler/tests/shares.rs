//! The order itself: priority, age, shares, and their weights.

use super::super::*;
use super::limits::configure;
use super::planned;
use crate::ledger::tests::world::*;
use crate::ledger::{Ledger, Outcome, points};
use proto::v1::{self, Policy, QueuePolicy, command::Kind as Command};
use proto::{JobId, TaskId};

const HOUR: u64 = 3_600_000;

fn by(world: &mut World, user: &str, spec: v1::JobSpec) -> JobId {
    let request = world.next_request();
    job_of(&world.submit_with(spec, user, &request))
}

fn jobs(world: &World) -> Vec<JobId> {
    planned(world).into_iter().map(|(job, _)| job).collect()
}

fn rank(ledger: &Ledger, id: impl Into<TaskId>) -> Rank {
    Rank::of(ledger, id.into(), ledger.led()).expect("it is queued")
}

/// G10: one user floods the queue, then another one submits.
#[test]
fn who_has_nothing_starts_at_the_next_free_slot_before_ten_thousand_of_another() {
    let mut world = World::with_node();
    let ranges = vec![v1::TaskRange { first: 0, last: 9_999, step: 0 }];
    let array = Some(v1::ArraySpec { ranges, ..Default::default() });
    let flood = by(&mut world, "mia", v1::JobSpec { array, ..spec() });
    for placed in plan(&world.ledger, &world.ledger.agents_up(), 100).placements {
        let assign = placed.to_command().kind.expect("an assign");
        assert_eq!(world.apply(assign), Outcome::Assigned);
    }
    world.pass(HOUR);
    let one = by(&mut world, "tom", spec());
    assert_eq!(rank(&world.ledger, one).place, 1);
    let id = TaskId { job: flood, index: Some(0) };
    let start = v1::fact::Kind::Start(start_of(id, 1));
    let end = v1::fact::Kind::Finish(finish_of(id, 1, code(0)));
    world.facts(N1, vec![start, end]);
    assert_eq!(jobs(&world), [one]);
}

#[test]
fn shares_take_turns_within_one_pass() {
    let mut world = World::with_node();
    let mia: Vec<JobId> = (0..6).map(|_| by(&mut world, "mia", spec())).collect();
    let tom: Vec<JobId> = (0..6).map(|_| by(&mut world, "tom", spec())).collect();
    let turns = [mia[0], tom[0], mia[1], tom[1], mia[2], tom[2], mia[3], tom[3]];
    assert_eq!(jobs(&world), turns);
    configure(&mut world, Policy { share_weight: Some(0), ..Policy::default() });
    let in_order: Vec<JobId> = mia.iter().chain(&tom).copied().take(8).collect();
    assert_eq!(jobs(&world), in_order, "without shares the order of submits");
}

#[test]
fn waiting_outweighs_priority_by_the_weights() {
    let mut world = World::with_node();
    let whole = |priority| v1::JobSpec { cpus: 8, priority, ..spec() };
    let old = by(&mut world, "mia", whole(0));
    world.pass(2 * HOUR);
    let (two, three) = (by(&mut world, "mia", whole(2)), by(&mut world, "mia", whole(3)));
    let order = |world: &World| [old, two, three].map(|job| rank(&world.ledger, job).place);
    assert_eq!(order(&world), [2, 3, 1], "2 hours are 2 points, and it was submitted before");
    configure(&mut world, Policy { priority_weight: Some(10), ..Policy::default() });
    assert_eq!(order(&world), [3, 2, 1], "places are made anew");
    configure(&mut world, Policy { age_weight: Some(5), ..Policy::default() });
    assert_eq!(order(&world), [1, 3, 2]);
}

#[test]
fn the_age_counts_from_a_release_and_goes_on_over_retries() {
    let mut world = World::with_node();
    let held = by(&mut world, "mia", v1::JobSpec { hold: true, ..spec() });
    let job = by(&mut world, "mia", v1::JobSpec { retries: 1, ..retrying() });
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    world.start(job);
    world.pass(HOUR);
    world.hold(held, true, "r");
    world.finish(job, code(1));
    assert_eq!(rank(&world.ledger, held).number.age, 0);
    assert_eq!(points(rank(&world.ledger, job).number.age), "1.00");
    assert_eq!(jobs(&world), [job, held]);
}

#[test]
fn a_queue_adds_to_the_priority_of_its_jobs() {
    let mut world = World::with_node();
    let urgent = QueuePolicy { name: "urgent".to_owned(), priority: 10, ..QueuePolicy::default() };
    configure(&mut world, Policy { queues: vec![urgent], ..Policy::default() });
    let first = by(&mut world, "mia", v1::JobSpec { priority: 9, ..spec() });
    let second = by(&mut world, "mia", v1::JobSpec { queue: "urgent".to_owned(), ..spec() });
    assert_eq!(jobs(&world), [second, first]);
    assert_eq!(points(rank(&world.ledger, second).number.priority), "10.00");
}

#[test]
fn a_place_counts_tasks_and_names_who_is_right_before() {
    let mut world = World::with_node();
    let ranges = vec![v1::TaskRange { first: 0, last: 999, step: 0 }];
    let array = Some(v1::ArraySpec { ranges, ..Default::default() });
    let array = by(&mut world, "mia", v1::JobSpec { array, ..spec() });
    let behind = by(&mut world, "mia", spec());
    let place = |world: &World, id| {
        let rank = rank(&world.ledger, id);
        (rank.place, rank.of)
    };
    assert_eq!(place(&world, behind.into()), (1001, 1001));
    let task = |n| TaskId { job: array, index: Some(n) };
    assert_eq!(place(&world, task(500)), (501, 1001));
    world.prioritise(array, -1, "p");
    assert_eq!(place(&world, behind.into()), (1, 1001));
    assert_eq!(place(&world, task(500)), (502, 1001));
    let before = rank(&world.ledger, task(0)).ahead.expect("one is before it");
    assert_eq!((before.task, points(before.more)), (behind.into(), "1.00".to_owned()));
    let set =
        v1::TaskSet { job: array.0, ranges: vec![v1::TaskRange { first: 7, last: 7, step: 0 }] };
    world.apply(Command::Priority(v1::PriorityCommand {
        by: Some(user("mia")),
        request_id: "one".to_owned(),
        jobs: Vec::new(),
        tasks: vec![set],
        priority: 1,
    }));
    assert_eq!(place(&world, task(7)), (1, 1001));
    assert_eq!(place(&world, task(500)), (502, 1001));
}
