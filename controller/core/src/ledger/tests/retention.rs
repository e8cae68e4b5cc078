//! Retention and the memory of requests: what leaves, when, and what is still known of it.

use super::world::*;
use crate::ledger::{Kind, Outcome, Rejection};
use proto::JobId;
use proto::v1::{self, command::Kind as Command};

const DAY: u64 = 24 * 3600 * 1000;

fn policy(world: &mut World, policy: v1::Policy) {
    let configure = v1::ConfigureCommand { policy: Some(policy), ..Default::default() };
    assert_eq!(world.apply(Command::Configure(configure)), Outcome::Configured);
}

fn ended(world: &mut World) -> JobId {
    let job = world.submit();
    world.cancel(job);
    job
}

#[test]
fn an_ended_job_leaves_after_its_time_and_a_live_one_never() {
    let mut world = World::new();
    let (done, live) = (ended(&mut world), world.submit());
    assert_eq!(world.ledger.next_deadline_led(), Some(7 * DAY));
    world.pass(7 * DAY - 1);
    assert_eq!(world.tick(), (0, false));
    world.pass(1);
    assert_eq!(world.tick(), (1, false));
    assert!(world.ledger.evicted(done) && !world.ledger.evicted(live));
    assert_eq!(world.ledger.find(done).err(), Some(Rejection::Evicted { job: done }));
    assert_eq!(world.ledger.next_deadline_led(), None);
}

#[test]
fn beyond_max_completed_the_least_recently_finished_goes_first() {
    let mut world = World::new();
    policy(&mut world, v1::Policy { max_completed: 2, ..v1::Policy::default() });
    let (first, second) = (world.submit(), world.submit());
    let third = world.submit();
    for job in [second, first, third] {
        world.pass(10);
        world.cancel(job);
    }
    assert!(world.ledger.evicted(second));
    assert_eq!((world.kind(first), world.kind(third)), (Kind::Exit, Kind::Exit));
}

#[test]
fn a_tick_settles_at_most_a_thousand_and_says_that_more_is_due() {
    let mut world = World::new();
    for _ in 0..1001 {
        let (blobs, command) = {
            let request = world.next_request();
            submit(&spec(), "mia", &request)
        };
        world.index += 1;
        let proposal = v1::Proposal {
            level: 1,
            wall_ms: world.wall_ms,
            led_ms: 0,
            blobs,
            commands: vec![v1::Command { kind: Some(command) }],
        };
        world.ledger.apply(world.index, &proposal);
    }
    let all: Vec<JobId> = (1..=1001).map(JobId).collect();
    world.cancel_by(user("mia"), &all);
    world.pass(7 * DAY);
    assert_eq!(world.tick(), (1000, true));
    // 1 of the retention is left; the requests of all are older than their window already.
    assert_eq!(world.tick(), (1, false));
    assert_eq!(world.tick(), (0, false));
}

#[test]
fn a_request_is_remembered_for_a_day_also_when_its_job_has_left() {
    let mut world = World::new();
    policy(&mut world, v1::Policy { max_completed: 1, ..v1::Policy::default() });
    assert_eq!(job_of(&world.submit_with(spec(), "mia", "r")), JobId(1));
    world.cancel(JobId(1));
    let second = world.submit();
    world.cancel(second);
    assert!(world.ledger.evicted(JobId(1)));
    let again = world.submit_with(spec(), "mia", "r");
    assert_eq!(again, Outcome::Submitted { job: JobId(1), repeated: true });
    let other = world.submit_with(v1::JobSpec { cpus: 3, ..spec() }, "mia", "r");
    assert_eq!(other, Outcome::Rejected(Rejection::KeyReused { first: JobId(1) }));
    world.pass(DAY);
    assert_eq!(world.tick(), (1, false));
    // A key of a user is new after that.
    assert_eq!(job_of(&world.submit_with(spec(), "mia", "r")), JobId(3));
}

#[test]
fn what_nobody_uses_any_more_is_let_go() {
    let mut world = World::new();
    policy(&mut world, v1::Policy { max_completed: 1, ..v1::Policy::default() });
    let mut jobs = Vec::new();
    for cpus in 1..=3 {
        jobs.push(world.submit_spec(v1::JobSpec { cpus, ..spec() }));
    }
    for job in jobs {
        world.cancel(job);
    }
    // check() counts the uses; here: the specification of the first can be submitted no more
    // without its blob.
    let (_, command) = submit(&v1::JobSpec { cpus: 1, ..spec() }, "mia", "again");
    let refused = world.apply(command);
    assert!(matches!(refused, Outcome::Rejected(Rejection::Malformed { .. })), "{refused:?}");
}

#[test]
fn only_an_admin_configures_and_a_cluster_keeps_its_id() {
    let mut world = World::new();
    let by = |name: &str, id: &str| {
        Command::Configure(v1::ConfigureCommand {
            by: Some(user(name)),
            cluster_id: Some(id.to_owned()),
            generation: Some(2),
            ..Default::default()
        })
    };
    assert_eq!(world.apply(by("mia", "c")), Outcome::Rejected(Rejection::NotAdmin));
    assert_eq!(world.apply(by("root", "c")), Outcome::Configured);
    assert_eq!((world.ledger.cluster_id(), world.ledger.generation()), ("c", 2));
    assert!(matches!(world.apply(by("root", "d")), Outcome::Rejected(_)));
    let back = v1::ConfigureCommand { generation: Some(1), ..Default::default() };
    assert!(matches!(world.apply(Command::Configure(back)), Outcome::Rejected(_)));
}
