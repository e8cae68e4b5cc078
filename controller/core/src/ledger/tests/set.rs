//! `docket set` of name, time, cpus and memory (case J02), and the limits of the cluster.

use super::world::*;
use crate::leader::{Want, desired};
use crate::ledger::{Kind, Outcome, Rejection};
use prost::Message as _;
use proto::v1::{self, command::Kind as Command, set_command::Change, time_change::To};
use proto::v1::{fact, finish_fact::End};
use proto::{JobId, TaskId};

fn set(world: &mut World, job: JobId, request: &str, change: Change) -> Result<(), Rejection> {
    set_as(world, Some(user("mia")), job, request, change)
}

fn set_as(
    world: &mut World,
    by: Option<v1::Requester>,
    job: JobId,
    request: &str,
    change: Change,
) -> Result<(), Rejection> {
    let command = v1::SetCommand {
        by,
        request_id: request.to_owned(),
        jobs: vec![job.0],
        tasks: Vec::new(),
        change: Some(change),
    };
    match world.apply(Command::Set(command)) {
        Outcome::Edited(results) => results[0].result.clone(),
        Outcome::Rejected(rejection) => Err(rejection),
        other => panic!("{other:?}"),
    }
}

fn time(to: To) -> Change {
    Change::Time(v1::TimeChange { to: Some(to) })
}

fn configure(world: &mut World, policy: v1::Policy) {
    let configure = v1::ConfigureCommand { policy: Some(policy), ..Default::default() };
    world.apply(Command::Configure(configure));
}

fn limited(world: &mut World, ms: u64) -> JobId {
    world.submit_spec(v1::JobSpec { time_limit_ms: Some(ms), ..spec() })
}

#[test]
fn a_limit_is_set_moved_and_lifted_and_its_node_is_told() {
    let mut world = World::with_node();
    let job = limited(&mut world, 10_000);
    world.assign_to(job, N1);
    world.start(job);
    let limit = |world: &World| world.job(job).time_limit_ms();
    assert_eq!(set(&mut world, job, "s1", time(To::ByMs(5_000))), Ok(()));
    assert_eq!(limit(&world), Some(15_000));
    // The same request again moves it no further (P8).
    assert_eq!(set(&mut world, job, "s1", time(To::ByMs(5_000))), Ok(()));
    assert_eq!(limit(&world), Some(15_000));
    let other = set(&mut world, job, "s1", time(To::ByMs(6_000)));
    assert!(matches!(other, Err(Rejection::KeyReused { .. })), "{other:?}");
    let wants = desired(world.job(job), N1, 1);
    assert!(wants.iter().any(|want| matches!(want, Want::Limit { .. })), "{wants:?}");
    assert_eq!(set(&mut world, job, "s2", time(To::LimitMs(2_000))), Ok(()));
    assert_eq!(limit(&world), Some(2_000));
    assert_eq!(set(&mut world, job, "s3", time(To::None(true))), Ok(()));
    assert_eq!(limit(&world), None);
    let nothing = set(&mut world, job, "s4", time(To::ByMs(1_000)));
    assert!(matches!(nothing, Err(Rejection::WrongState { .. })), "{nothing:?}");
    let events = crate::events(&world.ledger, job).unwrap().events;
    let what: Vec<&str> = events[3..].iter().map(|event| event.what.as_str()).collect();
    assert_eq!(
        what,
        ["set its time limit to 15s", "set its time limit to 2s", "lifted its time limit"]
    );
    world.finish(job, code(0));
    let late = set(&mut world, job, "s5", time(To::LimitMs(9)));
    assert!(matches!(late, Err(Rejection::AlreadyTerminal { .. })), "{late:?}");
}

#[test]
fn what_a_node_was_given_is_not_changed_and_what_waits_is() {
    let mut world = World::with_node();
    let (waits, runs) = (world.submit(), world.running());
    for change in [Change::Cpus(3), Change::MemBytes(1 << 20), Change::Name("new".to_owned())] {
        let request = world.next_request();
        assert_eq!(set(&mut world, waits, &request, change.clone()), Ok(()));
        let named = matches!(change, Change::Name(_));
        let request = world.next_request();
        let result = set(&mut world, runs, &request, change);
        assert_eq!(result.is_ok(), named, "{result:?}");
    }
    let task = world.task(waits);
    assert_eq!((task.cpus, task.mem_bytes, &*task.name), (3, 1 << 20, "new"));
    let cpus = world.task(runs).cpus;
    assert_eq!((cpus, &*world.task(runs).name), (spec().cpus, "new"));
    world.assign_to(waits, N1);
    assert_eq!(world.job(waits).grant().unwrap().cpus, 3, "what is asked now is granted");
}

#[test]
fn of_an_array_all_or_some_are_changed_in_one_step() {
    let mut world = World::with_node();
    let range = v1::TaskRange { first: 0, last: 999_999, step: 1 };
    let array = v1::ArraySpec { ranges: vec![range], ..Default::default() };
    configure(&mut world, v1::Policy { max_queue: 2_000_000, ..v1::Policy::default() });
    let job = world.submit_spec(v1::JobSpec { array: Some(array), ..spec() });
    assert_eq!(set(&mut world, job, "s1", time(To::LimitMs(7_000))), Ok(()));
    assert_eq!(set(&mut world, job, "s2", Change::Cpus(2)), Ok(()));
    let task = |world: &World, n| world.ledger.numbered(TaskId { job, index: Some(n) }).unwrap();
    assert_eq!(task(&world, 999_999).time_limit_ms(), Some(7_000));
    assert_eq!(task(&world, 5).ask().cpus, 2);
    assert_eq!(world.ledger.array(job).unwrap().head().time_limit_ms(), Some(7_000));
    assert_eq!(task(&world, 5).kind(), Kind::Queued);
    world.ledger.check();
}

#[test]
fn the_limits_of_the_cluster_hold_at_submit_and_after() {
    let mut world = World::with_node();
    let (default_time_ms, max_time_ms) = (Some(1_000), Some(5_000));
    configure(&mut world, v1::Policy { default_time_ms, max_time_ms, ..v1::Policy::default() });
    let job = world.submit();
    assert_eq!(world.job(job).time_limit_ms(), Some(1_000), "default_time");
    let asked = limited(&mut world, 5_000);
    assert_eq!(world.job(asked).time_limit_ms(), Some(5_000));
    let over = set(&mut world, job, "s1", time(To::LimitMs(5_001)));
    assert_eq!(
        over,
        Err(Rejection::OverMaxTime {
            asked_ms: Some(5_001),
            max_ms: 5_000,
            key: "max_time".to_owned()
        })
    );
    let none = set(&mut world, job, "s2", time(To::None(true)));
    assert_eq!(
        none,
        Err(Rejection::OverMaxTime { asked_ms: None, max_ms: 5_000, key: "max_time".to_owned() })
    );
    let admin = Some(v1::Requester { admin: true, ..user("root") });
    assert_eq!(set_as(&mut world, admin, job, "s3", time(To::LimitMs(9_000))), Ok(()));
    // What an admin gave its owner may shorten, though it stays above what is allowed.
    assert_eq!(set(&mut world, job, "s4", time(To::ByMs(-1_000))), Ok(()));
    assert_eq!(world.job(job).time_limit_ms(), Some(8_000));
    configure(
        &mut world,
        v1::Policy { default_time_ms: None, max_time_ms, ..v1::Policy::default() },
    );
    let job = world.submit();
    assert_eq!(world.job(job).time_limit_ms(), Some(5_000), "without a default: max_time");
}

/// Design 3, Times: the controller orders the kill at limit + grace + heartbeat_timeout (case A31).
#[test]
fn what_its_node_lets_run_past_its_limit_is_ordered_to_end() {
    let mut world = World::with_node();
    let spec = v1::JobSpec { time_limit_ms: Some(60_000), kill_grace_ms: Some(5_000), ..spec() };
    let job = world.submit_spec(spec);
    world.assign_to(job, N1);
    world.start(job);
    let ordered = |world: &World| {
        let wants = desired(world.job(job), N1, 1);
        wants.iter().any(|want| matches!(want, Want::TimeUp { .. }))
    };
    world.pass(50_000);
    // A stop does not count: it begins anew when the job goes on.
    let stopped = world.stop_fact(job, true);
    world.facts(N1, vec![stopped]);
    world.pass(500_000);
    assert_eq!(world.tick(), (0, false));
    let goes_on = world.stop_fact(job, false);
    world.facts(N1, vec![goes_on]);
    world.pass(60_000 + 5_000 + 30_000 - 1_000);
    assert_eq!(world.tick(), (0, false), "its node may still tell");
    let due = world.ledger.next_deadline_led().unwrap();
    assert!(due > world.led_ms, "{due}");
    world.pass(due - world.led_ms);
    assert!(!ordered(&world));
    assert_eq!(world.tick(), (1, false));
    assert!(ordered(&world));
    world.pass(1_000_000);
    assert_eq!(world.tick(), (0, false), "once");
    let end = v1::FinishFact {
        killed_for: v1::KillCause::TimeLimit as i32,
        ..world.finish_fact(job, End::WaitStatus(9))
    };
    world.facts(N1, vec![fact::Kind::Finish(end)]);
    assert_eq!(world.reason(job), Some(v1::ExitKind::TimeLimit));
}

fn configure_as(
    world: &mut World,
    request: &str,
    policy: v1::Policy,
    before: Option<v1::Policy>,
) -> Outcome {
    let (by, request_id) =
        (Some(v1::Requester { admin: true, ..user("root") }), request.to_owned());
    let (policy, before) = (Some(policy), before.map(|before| before.encode_to_vec()));
    let command = v1::ConfigureCommand { by, request_id, policy, before, ..Default::default() };
    world.apply(Command::Configure(command))
}

#[test]
fn a_value_of_the_cluster_is_changed_once_and_never_takes_back_what_others_set() {
    let mut world = World::with_node();
    let first = world.ledger.policy().clone();
    let wider = v1::Policy { max_queue: 7, ..first.clone() };
    let done = configure_as(&mut world, "p1", wider.clone(), Some(first.clone()));
    assert_eq!(done, Outcome::Configured);
    // Made from what it was before: somebody was faster.
    let other = v1::Policy { job_ttl_ms: 5, ..first.clone() };
    let stale = configure_as(&mut world, "p2", other, Some(first.clone()));
    assert!(matches!(stale, Outcome::Stale { .. }), "{stale:?}");
    assert_eq!(world.ledger.policy(), &wider);
    let third = v1::Policy { max_queue: 9, ..wider.clone() };
    assert_eq!(configure_as(&mut world, "p3", third, Some(wider.clone())), Outcome::Configured);
    // The first request again, whose answer was lost: it is done already (P8), also after a restart.
    let image: Vec<Vec<u8>> = world.ledger.freeze().chunks().collect();
    world.ledger = crate::ledger::Ledger::thaw(image.into_iter()).unwrap();
    assert_eq!(configure_as(&mut world, "p1", wider.clone(), Some(wider)), Outcome::Configured);
    assert_eq!(world.ledger.policy().max_queue, 9);
}
