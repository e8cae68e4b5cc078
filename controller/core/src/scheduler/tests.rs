//! The scheduler over a real ledger: order, fit, reasons, and the cost of a long queue.

mod backfill;
mod limits;
mod random;
mod resources;
mod shares;
mod simulated;

use super::*;
use crate::ledger::tests::world::*;
use crate::ledger::{NodeFault, Outcome};
use proto::v1;
use proto::{JobId, OrderId};
use std::collections::BTreeSet;

fn all(world: &World) -> BTreeSet<String> {
    world.ledger.agents_up()
}

fn planned(world: &World) -> Vec<(JobId, String)> {
    plan(&world.ledger, &all(world), 100)
        .placements
        .iter()
        .map(|p| (p.attempt.task.job, p.agent_id.to_string()))
        .collect()
}

fn cpus(world: &mut World, cpus: u32) -> JobId {
    world.submit_spec(v1::JobSpec { cpus, ..spec() })
}

#[test]
fn priority_goes_first_then_the_order_of_submits() {
    let mut world = World::with_node();
    let low = world.submit_spec(v1::JobSpec { cpus: 4, priority: -1, ..spec() });
    let (first, second) = (cpus(&mut world, 4), cpus(&mut world, 4));
    let n1 = || N1.to_owned();
    assert_eq!(planned(&world), [(first, n1()), (second, n1())]);
    let urgent = world.submit_spec(v1::JobSpec { cpus: 4, priority: 1, ..spec() });
    assert_eq!(planned(&world), [(urgent, n1()), (first, n1())]);
    assert!(planned(&world).iter().all(|(job, _)| *job != low));
}

#[test]
fn every_placement_of_a_plan_is_taken_by_apply() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    for n in 0..30 {
        world.submit_spec(v1::JobSpec {
            cpus: 1 + n % 5,
            mem_bytes: u64::from(n % 3) << 30,
            ..spec()
        });
    }
    let plan = plan(&world.ledger, &all(&world), 100);
    assert!(plan.placements.len() > 4);
    for placement in plan.placements {
        let command = placement.to_command().kind.expect("an assign");
        assert_eq!(world.apply(command), Outcome::Assigned);
    }
    for node in [N1, N2] {
        assert!(world.ledger.used(node).cpus <= 8);
    }
}

#[test]
fn a_small_task_goes_past_a_large_one_on_nodes_that_are_not_kept_for_it() {
    let mut world = World::with_node();
    world.running();
    world.node_up(N2, 1, "k1");
    let holder = cpus(&mut world, 6);
    assert_eq!(world.assign_to(holder, N2), Outcome::Assigned);
    let (large, small) = (cpus(&mut world, 8), cpus(&mut world, 2));
    assert_eq!(planned(&world), [(small, N2.to_owned())], "less is missing on n1");
    let plan = plan(&world.ledger, &all(&world), 100);
    assert_eq!(plan.unplaced.first().map(|unplaced| unplaced.task), Some(large.into()));
}

#[test]
fn a_nearly_full_node_is_filled_first() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let holder = cpus(&mut world, 5);
    world.assign_to(holder, N2);
    let next = cpus(&mut world, 3);
    assert_eq!(planned(&world), [(next, N2.to_owned())]);
}

#[test]
fn only_reachable_nodes_get_orders() {
    let mut world = World::with_node();
    let job = world.submit();
    let nobody = Reach::default();
    assert!(plan(&world.ledger, &nobody.reachable, 100).placements.is_empty());
    let why = why(&world.ledger, &nobody, job).expect("it is queued");
    assert_eq!(why.summary, "n1 gets no new jobs: it is silent");
    let outlook = Outlook::new(&world.ledger, &nobody, world.ledger.led());
    let seen = world.ledger.job(job).expect("it is there").to_wire_seen(&world.ledger, &outlook);
    assert_eq!(seen.message, why.summary, "a list says what explain says");
}

#[test]
fn the_node_that_comes_closest_is_named_with_the_limit_that_it_lacks() {
    let mut world = World::with_node();
    let resources = v1::NodeResources { cpus: 32, mem_bytes: 2 << 30, ..Default::default() };
    let join = v1::Join { resources: Some(resources), ..join(N2, 1, "k1") };
    world.apply(v1::command::Kind::AgentUp(v1::AgentUpCommand { join: Some(join) }));
    let summary = |world: &World, job| {
        why(&world.ledger, &all(world).into(), job).map(|why| why.summary).unwrap_or_default()
    };
    let wide = cpus(&mut world, 64);
    let text = "no node is large enough: cpus: 64 asked, 32 in all on n2, the closest";
    assert_eq!(summary(&world, wide), text);
    // By the share that is there: bytes and cpus do not compare.
    let both = world.submit_spec(v1::JobSpec { cpus: 10, mem_bytes: 4 << 30, ..spec() });
    let text = "no node is large enough: cpus: 10 asked, 8 in all on n1, the closest";
    assert_eq!(summary(&world, both), text);
}

#[test]
fn the_reason_names_what_is_short() {
    let mut world = World::with_node();
    let holder = cpus(&mut world, 6);
    world.assign_to(holder, N1);
    let summary = |world: &World, job| {
        why(&world.ledger, &all(world).into(), job).map(|why| why.summary).unwrap_or_default()
    };
    let waits = cpus(&mut world, 4);
    assert_eq!(summary(&world, waits), "cpus: 4 asked, 2 free");
    assert_eq!(world.task(waits).message, "cpus: 4 asked, 2 free");
    let never = cpus(&mut world, 64);
    assert_eq!(summary(&world, never), "no node is large enough: cpus: 64 asked, 8 in all on n1");
    let memory = world.submit_spec(v1::JobSpec { mem_bytes: 9 << 30, ..spec() });
    assert_eq!(
        summary(&world, memory),
        "no node is large enough: memory: 9G asked, 8G in all on n1"
    );
    let named = world.submit_spec(v1::JobSpec { node: Some("n7".to_owned()), ..spec() });
    assert_eq!(summary(&world, named), "no node is named n7");
    let labels = [("gpu".to_owned(), "a100".to_owned())].into();
    let labelled = world.submit_spec(v1::JobSpec { node_labels: labels, ..spec() });
    assert_eq!(summary(&world, labelled), "no node has the label gpu=a100");
    let behind = world.submit();
    let kept = "n1 kept for 2, which waits there for jobs that have no time limit";
    assert_eq!(summary(&world, behind), kept);
    assert!(matches!(world.cancel(waits), Outcome::Cancelled(_)));
    assert_eq!(summary(&world, behind), "waits its turn");
    assert_eq!(why(&world.ledger, &all(&world).into(), holder), None, "it does not wait");
}

#[test]
fn a_node_with_a_fault_is_kept_out_and_tried_again() {
    let mut world = World::with_node();
    let job = world.dispatched();
    world.refuse(job);
    assert!(planned(&world).is_empty());
    let told = world.task(job).message;
    let expected = "n1 kept out after cgroup: No space left on device; tried again in 1s";
    assert_eq!(told, expected);
    world.pass(1000);
    world.tick();
    assert_eq!(planned(&world), [(job, N1.to_owned())]);
}

#[test]
fn a_node_that_had_a_fault_is_tried_with_one_task_first() {
    let mut world = World::with_node();
    let first = world.dispatched();
    let others = [world.submit(), world.submit()];
    world.refuse(first);
    world.pass(1000);
    world.tick();
    assert_eq!(planned(&world), [(first, N1.to_owned())], "one of three that fit");
    assert_eq!(world.assign_to(first, N1), Outcome::Assigned);
    assert!(planned(&world).is_empty(), "its outcome is waited for");
    let why = "n1 had a fault (cgroup: No space left on device): one task tries it first";
    assert_eq!(world.task(others[0]).message, why);
    let early = world.assign_to(others[0], N1);
    assert!(matches!(early, Outcome::Stale { .. }), "{early:?}");
    world.start(first);
    assert_eq!(planned(&world), others.map(|job| (job, N1.to_owned())), "it works again");
}

#[test]
fn faults_of_one_moment_count_as_one() {
    let mut world = World::with_node();
    let jobs = [world.dispatched(), world.dispatched(), world.dispatched()];
    for job in jobs {
        world.refuse(job);
    }
    let agent = world.ledger.agent(N1).expect("it is there");
    assert_eq!(agent.fault().map(|fault| fault.count), Some(1));
    world.pass(1000);
    world.tick();
    assert_eq!(world.assign_to(jobs[0], N1), Outcome::Assigned);
    world.refuse(jobs[0]);
    let agent = world.ledger.agent(N1).expect("it is there");
    assert_eq!(agent.fault().map(|fault| fault.count), Some(2), "tried again in vain");
}

#[test]
fn the_step_that_keeps_a_node_out_is_named_once() {
    let fault = |step: &str, message: &str| NodeFault {
        failure: v1::StartFailure {
            step: step.into(),
            errno: 28,
            message: message.into(),
            ..Default::default()
        },
        count: 1,
        until_led_ms: 0,
        wall_ms: 0,
        order: OrderId(0),
    };
    assert_eq!(fault("cgroup", "").words(), "errno 28");
    assert_eq!(fault("cgroup", "No space left on device").words(), "No space left on device");
    assert_eq!(fault("cgroup", "cgroup: No space").words(), "No space");
    let path = fault("run-directory", "run-directory /d/runs/5: No such file or directory");
    assert_eq!(path.words(), "/d/runs/5: No such file or directory");
    assert_eq!(fault("run", "runner: gone").words(), "runner: gone");
}

#[test]
fn a_pass_looks_at_one_of_all_tasks_that_ask_the_same() {
    let mut world = World::with_node();
    for _ in 0..150 {
        cpus(&mut world, 64);
    }
    let fits = cpus(&mut world, 2);
    let plan = plan(&world.ledger, &all(&world), 100);
    assert_eq!(plan.unplaced.len(), 1);
    assert_eq!(plan.placements.first().map(|p| p.attempt.task.job), Some(fits));
}

#[test]
fn a_plan_is_no_longer_than_asked() {
    let mut world = World::with_node();
    for _ in 0..8 {
        world.submit();
    }
    assert_eq!(plan(&world.ledger, &all(&world), 3).placements.len(), 3);
    assert_eq!(plan(&world.ledger, &all(&world), 100).placements.len(), 8, "all that fit");
}
