//! Limits of users and queues: what they keep back, and in which words.

use super::super::*;
use super::{all, planned};
use crate::ledger::tests::world::*;
use crate::ledger::{Outcome, Rejection};
use proto::v1::{self, Policy, QueuePolicy, command::Kind as Command};
use proto::{JobId, TaskId};

pub(super) fn configure(world: &mut World, policy: Policy) {
    let policy = Some(policy);
    let command = v1::ConfigureCommand { policy, ..v1::ConfigureCommand::default() };
    assert_eq!(world.apply(Command::Configure(command)), Outcome::Configured);
}

fn queue(name: &str) -> QueuePolicy {
    QueuePolicy { name: name.to_owned(), ..QueuePolicy::default() }
}

fn with_queues(queues: Vec<QueuePolicy>) -> Policy {
    Policy { queues, closed_queues: true, ..Policy::default() }
}

fn by(world: &mut World, user: &str, cpus: u32) -> JobId {
    let request = world.next_request();
    job_of(&world.submit_with(v1::JobSpec { cpus, ..spec() }, user, &request))
}

fn in_queue(world: &mut World, name: &str, spec: v1::JobSpec) -> Outcome {
    let request = world.next_request();
    world.submit_with(v1::JobSpec { queue: name.to_owned(), ..spec }, "mia", &request)
}

fn jobs(world: &World) -> Vec<JobId> {
    planned(world).into_iter().map(|(job, _)| job).collect()
}

fn summary(world: &World, job: impl Into<TaskId>) -> String {
    why(&world.ledger, &all(world).into(), job).map(|why| why.summary).unwrap_or_default()
}

fn refused(outcome: Outcome) -> String {
    match outcome {
        Outcome::Rejected(why) => why.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_user_has_no_more_tasks_on_nodes_than_allowed_and_holds_nobody_up() {
    let mut world = World::with_node();
    configure(&mut world, Policy { user_max_tasks: Some(2), ..Policy::default() });
    let first = [by(&mut world, "mia", 1), by(&mut world, "mia", 1)];
    let third = by(&mut world, "mia", 1);
    let other = by(&mut world, "tom", 1);
    assert_eq!(jobs(&world), [first[0], other, first[1]], "shares take turns");
    for job in first {
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    }
    assert_eq!(summary(&world, third), "user mia has 2 of 2 tasks on nodes (user_max_tasks): 1, 2");
    assert_eq!(jobs(&world), [other]);
    let early = world.assign_to(third, N1);
    assert!(matches!(early, Outcome::Stale { .. }), "apply looks again: {early:?}");
    world.start(first[0]);
    world.finish(first[0], code(0));
    assert_eq!(jobs(&world), [other, third]);
}

#[test]
fn the_rest_of_a_limit_of_cpus_is_kept_for_who_comes_first() {
    let mut world = World::with_node();
    configure(&mut world, Policy { user_max_cpus: Some(4), ..Policy::default() });
    let holder = by(&mut world, "mia", 2);
    assert_eq!(world.assign_to(holder, N1), Outcome::Assigned);
    let (large, small) = (by(&mut world, "mia", 4), by(&mut world, "mia", 1));
    let other = by(&mut world, "tom", 4);
    assert_eq!(jobs(&world), [other]);
    let text = "user mia has 2 of 4 cpus on nodes, 4 more are asked (user_max_cpus): 1";
    assert_eq!(summary(&world, large), text);
    let text = "the rest of user_max_cpus of user mia is kept for 2, which comes first";
    assert_eq!(summary(&world, small), text);
    let request = world.next_request();
    let never = world.submit_with(v1::JobSpec { cpus: 5, ..spec() }, "mia", &request);
    let text =
        "it could never start: cpus: 5 asked, user mia may have 4 (user_max_cpus); ask for less";
    assert_eq!(refused(never), text);
}

#[test]
fn a_limit_of_tasks_in_the_ledger_counts_those_that_wait_and_says_which() {
    let mut world = World::with_node();
    configure(&mut world, Policy { user_max_queue: Some(2), ..Policy::default() });
    let first = by(&mut world, "mia", 1);
    by(&mut world, "mia", 1);
    let request = world.next_request();
    let text = "user mia has 2 of 2 tasks that have not ended, 1 more are asked (user_max_queue): \
                1, 2; try again when some have ended";
    assert_eq!(refused(world.submit_with(spec(), "mia", &request)), text);
    by(&mut world, "tom", 1);
    world.cancel(first);
    assert_eq!(
        world.submit_with(spec(), "mia", &request),
        Outcome::Submitted { job: JobId(4), repeated: false }
    );
}

#[test]
fn a_queue_has_limits_and_defaults_of_its_own() {
    let mut world = World::with_node();
    let short = QueuePolicy {
        max_tasks: Some(1),
        max_queue: Some(3),
        default_time_ms: Some(60_000),
        max_time_ms: Some(600_000),
        max_priority: Some(5),
        users: vec!["mia".to_owned()],
        ..queue("short")
    };
    configure(&mut world, with_queues(vec![short]));
    let job = job_of(&in_queue(&mut world, "short", spec()));
    assert_eq!(world.job(job).time_limit_ms(), Some(60_000));
    let long = v1::JobSpec { time_limit_ms: Some(600_001), ..spec() };
    let text = refused(in_queue(&mut world, "short", long));
    assert!(text.contains("at most 10m00s (queues.short.max_time)"), "{text}");
    let urgent = v1::JobSpec { priority: 6, ..spec() };
    let text = refused(in_queue(&mut world, "short", urgent));
    assert!(text.contains("at most 5 (queues.short.max_priority)"), "{text}");
    let second = job_of(&in_queue(&mut world, "short", spec()));
    assert_eq!(jobs(&world), [job]);
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    let text = "queue short has 1 of 1 tasks on nodes (queues.short.max_tasks): 1";
    assert_eq!(summary(&world, second), text);
    job_of(&in_queue(&mut world, "short", spec()));
    let text = refused(in_queue(&mut world, "short", spec()));
    assert!(text.contains("3 of 3 tasks that have not ended"), "{text}");
    let request = world.next_request();
    let spec = v1::JobSpec { queue: "short".to_owned(), ..spec() };
    let tom = refused(world.submit_with(spec, "tom", &request));
    assert_eq!(tom, "queue short does not take jobs of tom: it is for mia");
}

#[test]
fn an_unknown_queue_is_refused_by_name_with_the_nearest() {
    let mut world = World::with_node();
    let open = in_queue(&mut world, "batch", spec());
    assert!(matches!(open, Outcome::Submitted { .. }), "logs of before took any name");
    configure(&mut world, with_queues(vec![queue("batch")]));
    let text = "no queue bach: did you mean batch? There are: batch, default";
    assert_eq!(refused(in_queue(&mut world, "bach", spec())), text);
    assert!(matches!(in_queue(&mut world, "default", spec()), Outcome::Submitted { .. }));
    configure(&mut world, with_queues(Vec::new()));
    let gone = in_queue(&mut world, "overnight", spec());
    assert!(matches!(gone, Outcome::Rejected(Rejection::NoSuchQueue { nearest: None, .. })));
}

#[test]
fn a_limit_that_is_raised_lets_tasks_start_and_one_that_is_lowered_ends_none() {
    let mut world = World::with_node();
    configure(&mut world, Policy { user_max_tasks: Some(1), ..Policy::default() });
    let [a, b, c] = [0; 3].map(|_| by(&mut world, "mia", 1));
    assert_eq!(jobs(&world), [a]);
    configure(&mut world, Policy { user_max_tasks: Some(2), ..Policy::default() });
    assert_eq!(jobs(&world), [a, b]);
    for job in [a, b] {
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    }
    configure(&mut world, Policy { user_max_tasks: Some(1), ..Policy::default() });
    assert_eq!(summary(&world, c), "user mia has 2 of 1 tasks on nodes (user_max_tasks): 1, 2");
}
