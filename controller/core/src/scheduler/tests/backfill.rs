//! Reservations: nothing large starves behind small ones, and who goes before delays nobody.

use super::super::*;
use super::{all, planned};
use crate::ledger::Outcome;
use crate::ledger::tests::world::*;
use proto::{JobId, TaskId, v1};

const S: u64 = 1_000;

fn job(world: &mut World, cpus: u32, limit_s: Option<u64>) -> JobId {
    let time_limit_ms = limit_s.map(|s| s * S);
    world.submit_spec(v1::JobSpec { cpus, time_limit_ms, ..spec() })
}

fn runs(world: &mut World, cpus: u32, limit_s: Option<u64>) -> JobId {
    let job = job(world, cpus, limit_s);
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    world.start(job);
    job
}

fn jobs(world: &World) -> Vec<JobId> {
    planned(world).into_iter().map(|(job, _)| job).collect()
}

fn start(world: &World, job: JobId) -> Start {
    Outlook::by_ledger(&world.ledger).start(job).expect("a node could run it")
}

/// G02: a job that needs the whole node, in an endless stream of small ones.
#[test]
fn a_large_job_starts_in_an_endless_stream_of_small_ones() {
    let mut world = World::with_node();
    let mut running: Vec<JobId> = (0..8).map(|_| runs(&mut world, 1, None)).collect();
    let large = job(&mut world, 4, None);
    let mut ends = 0;
    while world.kind(large) == crate::ledger::Kind::Queued {
        job(&mut world, 1, None);
        let first = running.remove(0);
        world.finish(first, code(0));
        ends += 1;
        for (job, node) in planned(&world) {
            assert_eq!(world.assign_to(job, &node), Outcome::Assigned);
            world.start(job);
            running.push(job);
        }
        assert!(ends <= 4, "it starts as soon as four of those before it have ended");
    }
    assert_eq!(ends, 4);
}

#[test]
fn a_node_is_kept_until_the_limits_of_what_runs_there_and_shorter_ones_go_before() {
    let mut world = World::with_node();
    let (long, short) = (runs(&mut world, 4, Some(3600)), runs(&mut world, 2, Some(600)));
    let large = job(&mut world, 8, Some(60));
    let forever = job(&mut world, 1, None);
    let too_long = job(&mut world, 1, Some(3600));
    let in_time = job(&mut world, 1, Some(1800));
    assert_eq!(jobs(&world), [in_time]);
    let kept = start(&world, large);
    assert!(kept.reserved);
    assert_eq!(kept.kept.after, [short, long].map(TaskId::plain));
    assert_eq!(kept.kept.at_wall_ms, Some(world.wall_ms + 3610 * S), "limit and kill grace");
    let why = |world: &World, job| {
        why(&world.ledger, &all(world).into(), job).map(|why| why.summary).unwrap_or_default()
    };
    let text = "n1 kept for 3, which starts there by 23:13:30 UTC: this one could delay that";
    assert_eq!(why(&world, forever), text);
    assert_eq!(why(&world, too_long), text);
    assert_eq!(why(&world, large), "cpus: 8 asked, 2 free");
}

#[test]
fn what_is_left_beside_a_reservation_is_for_everybody() {
    let mut world = World::with_node();
    runs(&mut world, 4, Some(3600));
    let large = job(&mut world, 6, None);
    let beside = [job(&mut world, 1, None), job(&mut world, 1, None)];
    let third = job(&mut world, 1, None);
    assert_eq!(jobs(&world), beside, "8 - 6 cpus are left when it starts");
    assert!(start(&world, large).reserved);
    assert!(!start(&world, third).reserved);
}

#[test]
fn the_time_of_the_leader_counts_and_not_that_of_the_newest_entry() {
    let mut world = World::with_node();
    runs(&mut world, 7, Some(3600));
    job(&mut world, 8, None);
    let short = job(&mut world, 1, Some(1800));
    assert_eq!(jobs(&world), [short]);
    let at = |later_s: u64| {
        let led_ms = world.ledger.led() + later_s * S;
        plan_at(&world.ledger, &all(&world), led_ms, 10).placements.len()
    };
    assert_eq!((at(1700), at(1900)), (1, 0));
}

#[test]
fn who_no_node_can_run_or_a_limit_keeps_out_holds_nobody_up() {
    let mut world = World::with_node();
    runs(&mut world, 4, None);
    job(&mut world, 64, None);
    let named = world.submit_spec(v1::JobSpec { node: Some("n9".to_owned()), ..spec() });
    let small = job(&mut world, 1, None);
    assert_eq!(jobs(&world), [small]);
    assert!(Outlook::by_ledger(&world.ledger).start(named).is_none());
}

#[test]
fn each_group_of_nodes_has_its_own_reservation() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let on = |node: &str, cpus| v1::JobSpec { node: Some(node.to_owned()), cpus, ..spec() };
    for (agent, name) in [(N1, "n1"), (N2, "n2")] {
        let holder = world.submit_spec(on(name, 6));
        assert_eq!(world.assign_to(holder, agent), Outcome::Assigned);
    }
    let large = ["n1", "n2"].map(|name| world.submit_spec(on(name, 8)));
    let anywhere = job(&mut world, 8, None);
    world.submit_spec(on("n2", 1));
    assert_eq!(jobs(&world), [], "both nodes are kept");
    assert_eq!(large.map(|job| start(&world, job).reserved), [true, true]);
    assert!(!start(&world, anywhere).reserved, "it comes after those");
}

#[test]
fn a_job_that_is_stopped_ends_nobody_knows_when() {
    let mut world = World::with_node();
    let stopped = runs(&mut world, 6, Some(3600));
    let large = job(&mut world, 8, None);
    job(&mut world, 1, Some(60));
    assert_eq!(jobs(&world).len(), 1);
    let mut page = world.page(N1, vec![world.item(stopped, v1::Phase::Suspended)]);
    page.at_join = false;
    world.apply(v1::command::Kind::Manifest(page));
    assert_eq!(jobs(&world), []);
    assert_eq!(start(&world, large).kept.at_wall_ms, None);
}

#[test]
fn an_array_has_a_reservation_for_its_first_task_only() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    for agent in [N1, N2] {
        let holder = job(&mut world, 6, None);
        assert_eq!(world.assign_to(holder, agent), Outcome::Assigned);
    }
    let ranges = vec![v1::TaskRange { first: 0, last: 99, step: 0 }];
    let array = Some(v1::ArraySpec { ranges, ..Default::default() });
    world.submit_spec(v1::JobSpec { cpus: 8, array, ..spec() });
    let small = [job(&mut world, 1, None), job(&mut world, 1, None)];
    assert_eq!(jobs(&world), small, "the other node is free for all");
}
