//! Submit: once per request id, within the limits, never twice.

use super::world::*;
use crate::ledger::{Kind, Outcome, Rejection};
use proto::JobId;
use proto::v1::{self, command::Kind as Command};

fn uuid_at(wall_ms: u64) -> String {
    format!("{:08x}-{:04x}-7000-8000-000000000001", wall_ms >> 16, wall_ms & 0xffff)
}

#[test]
fn a_submit_is_queued_under_the_next_id() {
    let mut world = World::new();
    assert_eq!(world.submit(), JobId(1));
    assert_eq!(world.submit(), JobId(2));
    let task = world.task(JobId(1));
    assert_eq!((task.state.as_str(), task.substate.as_str()), ("PEND", "queued"));
    assert_eq!(task.message, "no node has joined");
    assert_eq!((task.name.as_str(), task.queue.as_str(), task.attempt), ("prep", "default", 1));
}

#[test]
fn the_same_request_gets_the_first_answer() {
    let mut world = World::new();
    let first = world.submit_with(spec(), "mia", "r");
    let again = world.submit_with(spec(), "mia", "r");
    assert_eq!(first, Outcome::Submitted { job: JobId(1), repeated: false });
    assert_eq!(again, Outcome::Submitted { job: JobId(1), repeated: true });
    assert_eq!(world.ledger.next_job_id(), JobId(2));
}

#[test]
fn the_same_request_of_another_user_is_another_request() {
    let mut world = World::new();
    world.submit_with(spec(), "mia", "r");
    let other = world.submit_with(spec(), "tom", "r");
    assert_eq!(other, Outcome::Submitted { job: JobId(2), repeated: false });
}

#[test]
fn the_same_request_for_other_content_names_the_first() {
    let mut world = World::new();
    world.submit_with(spec(), "mia", "r");
    let other = v1::JobSpec { cpus: 2, ..spec() };
    let refused = world.submit_with(other, "mia", "r");
    assert_eq!(refused, Outcome::Rejected(Rejection::KeyReused { first: JobId(1) }));
}

#[test]
fn a_repeated_request_needs_no_blobs_and_no_room_in_the_queue() {
    let mut world = World::new();
    limit_queue(&mut world, 1);
    world.submit_with(spec(), "mia", "r");
    let (_, command) = submit(&spec(), "mia", "r");
    let again = world.apply(command);
    assert_eq!(again, Outcome::Submitted { job: JobId(1), repeated: true });
}

fn limit_queue(world: &mut World, max_queue: u64) {
    let policy = v1::Policy { max_queue, ..v1::Policy::default() };
    let configure = v1::ConfigureCommand { policy: Some(policy), ..Default::default() };
    assert_eq!(world.apply(Command::Configure(configure)), Outcome::Configured);
}

#[test]
fn a_full_queue_refuses_and_an_end_makes_room() {
    let mut world = World::new();
    limit_queue(&mut world, 2);
    let first = world.submit();
    world.submit();
    let full = world.submit_with(spec(), "mia", "r");
    assert_eq!(full, Outcome::Rejected(Rejection::QueueFull { limit: 2 }));
    world.cancel(first);
    // A refusal is not remembered: the same request is taken now.
    let taken = world.submit_with(spec(), "mia", "r");
    assert_eq!(taken, Outcome::Submitted { job: JobId(3), repeated: false });
}

#[test]
fn a_generated_id_older_than_a_day_is_refused_unless_it_is_remembered() {
    let mut world = World::new();
    let id = uuid_at(world.wall_ms);
    assert!(matches!(world.submit_with(spec(), "mia", &id), Outcome::Submitted { .. }));
    world.pass(25 * 3600 * 1000);
    // The job is still there, so its request is remembered.
    let again = world.submit_with(spec(), "mia", &id);
    assert_eq!(again, Outcome::Submitted { job: JobId(1), repeated: true });
    let old = uuid_at(world.wall_ms - 24 * 3600 * 1000 - 1);
    let refused = world.submit_with(spec(), "mia", &old);
    assert_eq!(refused, Outcome::Rejected(Rejection::RequestExpired));
    let young = uuid_at(world.wall_ms - 23 * 3600 * 1000);
    assert!(matches!(world.submit_with(spec(), "mia", &young), Outcome::Submitted { .. }));
}

#[test]
fn a_key_that_a_user_chose_does_not_expire_by_its_looks() {
    let mut world = World::new();
    let (blobs, mut command) = submit(&spec(), "mia", &uuid_at(1));
    if let Command::Submit(submit) = &mut command {
        submit.user_key = true;
    }
    let taken = world.apply_all(blobs, vec![command]).outcomes.remove(0);
    assert!(matches!(taken, Outcome::Submitted { .. }));
}

type Spoil = fn(&mut v1::JobSpec);

#[test]
fn a_spec_that_the_state_machine_cannot_use_is_refused_by_field() {
    let cases: [(&str, Spoil); 4] = [
        ("spec.cpus", |spec| spec.cpus = 0),
        ("spec.priority", |spec| spec.priority = 1001),
        ("spec.argv", |spec| spec.argv.clear()),
        ("spec.has_stdin", |spec| spec.has_stdin = true),
    ];
    for (expected, spoil) in cases {
        let mut world = World::new();
        let mut bad = spec();
        spoil(&mut bad);
        let refused = world.submit_with(bad, "mia", "r");
        let field = match refused {
            Outcome::Rejected(Rejection::Malformed { field, .. }) => field,
            _ => "taken",
        };
        assert_eq!(field, expected);
        assert_eq!(world.ledger.next_job_id(), JobId(1));
    }
}

#[test]
fn a_submit_whose_blob_is_nowhere_is_malformed() {
    let mut world = World::new();
    let (_, command) = submit(&spec(), "mia", "r");
    let refused = world.apply(command);
    assert!(matches!(refused, Outcome::Rejected(Rejection::Malformed { .. })), "{refused:?}");
}

#[test]
fn equal_jobs_share_one_specification() {
    let mut world = World::new();
    let (a, b) = (world.submit(), world.submit());
    let (a, b) = (world.job(a).interned_spec(), world.job(b).interned_spec());
    assert!(std::sync::Arc::ptr_eq(a, b));
}

#[test]
fn a_job_submitted_with_hold_waits_for_its_release() {
    let mut world = World::with_node();
    let job = world.submit_spec(v1::JobSpec { hold: true, ..spec() });
    assert_eq!(world.kind(job), Kind::Held);
    assert!(matches!(world.assign_to(job, N1), Outcome::Stale { .. }));
    let release = v1::HoldCommand {
        tasks: Vec::new(),
        by: Some(user("mia")),
        request_id: "x".to_owned(),
        jobs: vec![job.0],
        release: true,
    };
    world.apply(Command::Hold(release));
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
}

#[test]
fn an_entry_above_the_level_changes_nothing_and_says_so() {
    let mut world = World::new();
    let (blobs, command) = submit(&spec(), "mia", "r");
    let proposal = v1::Proposal {
        level: proto::LEVEL + 1,
        blobs,
        commands: vec![v1::Command { kind: Some(command) }],
        ..v1::Proposal::default()
    };
    let applied = world.ledger.apply(1, &proposal);
    let level = proto::LEVEL + 1;
    let refused = Rejection::TooHighLevel { level, known: proto::LEVEL };
    assert_eq!(applied.outcomes, [Outcome::Rejected(refused)]);
    assert_eq!(world.ledger.applied(), 0);
}

#[test]
fn an_assign_is_checked_again_against_the_state_at_its_position() {
    let mut world = World::with_node();
    let big = world.submit_spec(v1::JobSpec { cpus: 6, ..spec() });
    let other = world.submit_spec(v1::JobSpec { cpus: 6, ..spec() });
    assert_eq!(world.assign_to(big, N1), Outcome::Assigned);
    let stale = Outcome::Stale { what: "cpus: 6 asked, 2 free".to_owned() };
    assert_eq!(world.assign_to(other, N1), stale);
    assert!(matches!(world.assign_to(big, N1), Outcome::Stale { .. }));
    assert_eq!(world.ledger.used(N1).cpus, 6);
    world.start(big);
    world.finish(big, code(0));
    assert_eq!(world.ledger.used(N1).cpus, 0);
    assert_eq!(world.assign_to(other, N1), Outcome::Assigned);
}

#[test]
fn nothing_is_assigned_to_a_session_that_is_not_judged_or_not_the_newest() {
    let mut world = World::with_node();
    let job = world.submit();
    let mut assign = v1::AssignCommand {
        attempt: Some(attempt_ref(job, 1)),
        agent_id: N1.to_owned(),
        incarnation: 2,
        journal_id: b"j1".to_vec(),
    };
    assert!(matches!(world.apply(Command::Assign(assign.clone())), Outcome::Stale { .. }));
    world.join(N1, 2, "j1");
    assert!(matches!(world.apply(Command::Assign(assign.clone())), Outcome::Stale { .. }));
    world.at_join(N1, Vec::new());
    assign.journal_id = b"j0".to_vec();
    assert!(matches!(world.apply(Command::Assign(assign.clone())), Outcome::Stale { .. }));
    assign.journal_id = b"j1".to_vec();
    assert_eq!(world.apply(Command::Assign(assign)), Outcome::Assigned);
}
