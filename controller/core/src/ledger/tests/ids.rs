//! A new generation (restore, repair): ids that may have been given are left out, what waits is held.

use super::image::bytes;
use super::world::*;
use crate::ledger::{IDS_PER_GENERATION, Kind, Ledger, Outcome, Rejection, Who};
use proto::v1::{self, Phase, command::Kind as Command};
use proto::{AttemptId, JobId, TaskId};

/// The log lost its end, and was repaired.
fn repaired(world: &mut World) {
    let generation = Some(world.ledger.generation() + 1);
    let configure = v1::ConfigureCommand { generation, ..Default::default() };
    assert_eq!(world.apply(Command::Configure(configure)), Outcome::Configured);
}

#[test]
fn ids_of_the_lost_part_are_neither_given_again_nor_evicted() {
    let mut world = World::with_node();
    let before = world.submit();
    repaired(&mut world);
    let after = world.submit();
    assert_eq!(after, JobId(before.0 + 1 + IDS_PER_GENERATION));
    for between in [JobId(before.0 + 1), JobId(after.0 - 1)] {
        assert!(!world.ledger.evicted(between));
        let newest = JobId(world.ledger.next_job_id().0 - 1);
        let unknown = Rejection::NoSuchJob { job: between, newest };
        assert_eq!(world.ledger.find(between).err(), Some(unknown));
    }
    world.ledger.check();
}

#[test]
fn what_a_node_runs_of_the_lost_part_is_listed_and_not_killed() {
    let mut world = World::with_node();
    let known = world.running();
    repaired(&mut world);
    world.term(9);
    world.join(N1, 50, "j1");
    let stray = v1::ManifestItem {
        attempt: Some(AttemptId { task: TaskId::plain(JobId(known.0 + 5)), attempt: 1 }.to_wire()),
        ..world.item(known, Phase::Running)
    };
    let kept = world.item(known, Phase::Running);
    let Outcome::Manifest(outcome) = world.at_join(N1, vec![kept, stray]) else {
        unreachable!("not judged")
    };
    assert_eq!((outcome.kill.len(), outcome.strays.len(), outcome.claimed), (0, 1, 1));
    assert_eq!(world.kind(known), Kind::Running);
}

#[test]
fn what_waits_is_held_until_somebody_has_looked() {
    let mut world = World::new();
    let (waits, own) = (world.submit(), world.submit_spec(v1::JobSpec { hold: true, ..spec() }));
    repaired(&mut world);
    assert_eq!((world.kind(waits), world.kind(own)), (Kind::Held, Kind::Held));
    let job = |world: &World, id| world.ledger.job(id).cloned().unwrap();
    assert!(job(&world, waits).may_have_run() && !job(&world, own).may_have_run());
    let last = job(&world, waits).causes().last().map(|cause| cause.who.clone());
    assert!(matches!(last, Some(Who::Controller(_))), "{last:?}");
    world.hold(waits, true, "look");
    assert_eq!(world.kind(waits), Kind::Queued);
    assert!(!job(&world, waits).may_have_run());
    let submitted_later = world.submit();
    assert_eq!(world.kind(submitted_later), Kind::Queued);
}

#[test]
fn the_image_tells_the_ids_that_were_left_out() {
    let mut world = World::new();
    let before = world.submit();
    repaired(&mut world);
    world.submit();
    let thawed = Ledger::thaw(bytes(&world.ledger.freeze()).into_iter()).unwrap();
    assert!(!thawed.evicted(JobId(before.0 + 1)));
    assert_eq!(thawed.next_job_id(), world.ledger.next_job_id());
}

#[test]
fn the_same_generation_again_changes_nothing() {
    let mut world = World::new();
    let job = world.submit();
    let generation = Some(world.ledger.generation());
    world.apply(Command::Configure(v1::ConfigureCommand { generation, ..Default::default() }));
    assert_eq!((world.kind(job), world.ledger.next_job_id().0), (Kind::Queued, job.0 + 1));
}
