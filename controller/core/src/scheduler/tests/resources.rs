//! Gpus and named consumables in a pass: each cause of waiting has its words, all of several are told, and
//! what the cluster has is kept for who comes first.

use super::super::*;
use super::limits::configure;
use super::planned;
use crate::ledger::tests::world::*;
use crate::ledger::{Kind, Outcome};
use crate::{Sight, Word, explain};
use proto::JobId;
use proto::v1::{self, DownCause, Policy, command::Kind as Command};
use std::collections::BTreeMap;

fn amounts(some: &[(&str, u64)]) -> BTreeMap<String, u64> {
    some.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
}

fn licences(world: &mut World, offers: &[(&str, u64)]) {
    configure(world, Policy { resources: amounts(offers), ..Policy::default() });
}

fn asks(gpus: u32, named: &[(&str, u64)]) -> v1::JobSpec {
    v1::JobSpec { gpus, resources: amounts(named), ..spec() }
}

fn node(world: &mut World, id: &str, cpus: u32, gpus: u32, offers: &[(&str, u64)]) {
    let resources = v1::NodeResources {
        cpus,
        mem_bytes: 8 << 30,
        gpus,
        resources: amounts(offers),
        ..Default::default()
    };
    let join = v1::Join { resources: Some(resources), ..join(id, 1, "j1") };
    world.apply(Command::AgentUp(v1::AgentUpCommand { join: Some(join) }));
    world.at_join(id, Vec::new());
}

/// A node of 4 cpus, 2 gpus and 3 of scratch; the cluster has 2 of matlab.
fn world() -> World {
    let mut world = World::new();
    node(&mut world, N1, 4, 2, &[("scratch", 3)]);
    licences(&mut world, &[("matlab", 2)]);
    world
}

fn sight(world: &World) -> Sight {
    let up = world.ledger.agents_up().into_iter();
    let word = Word { reachable: true, ..Word::default() };
    let agents = up.map(|id| (id, word.clone())).collect();
    Sight { now_wall_ms: world.wall_ms, agents }
}

fn told(world: &World, job: JobId) -> v1::ExplainAnswer {
    explain(&world.ledger, &sight(world), job, false).expect("it is there")
}

fn summary(world: &World, job: JobId) -> String {
    world.task(job).message
}

fn runs(world: &mut World, spec: v1::JobSpec) -> JobId {
    let job = world.submit_spec(spec);
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    world.start(job);
    job
}

#[test]
fn each_cause_has_its_reason_and_several_are_all_told() {
    type Ready = fn(&mut World);
    let nothing: Ready = |_| {};
    let busy: Ready = |world| {
        runs(world, v1::JobSpec { cpus: 3, ..asks(2, &[("scratch", 2), ("matlab", 1)]) });
    };
    let drained: Ready = |world| {
        world.apply(Command::Drain(v1::DrainCommand {
            by: Some(user("root")),
            request_id: "r".to_owned(),
            agent_id: N1.to_owned(),
            reason: "new disk".to_owned(),
            undrain: false,
        }));
    };
    let (cpus, gpus) = (|n| v1::JobSpec { cpus: n, ..spec() }, |n| asks(n, &[]));
    let scratch = |n| asks(0, &[("scratch", n)]);
    let matlab = |n| asks(0, &[("matlab", n)]);
    let mem = v1::JobSpec { mem_bytes: 10 << 40, ..spec() };
    let rows: [(Ready, v1::JobSpec, &str); 15] = [
        (busy, cpus(2), "cpus: 2 asked, 1 free"),
        (busy, gpus(1), "gpus: 1 asked, 0 free"),
        (busy, scratch(2), "scratch: 2 asked, 1 free"),
        (busy, matlab(2), "matlab: 2 asked, 1 of 2 free in the cluster"),
        (
            busy,
            v1::JobSpec { cpus: 2, ..asks(1, &[("scratch", 2), ("matlab", 2)]) },
            "matlab: 2 asked, 1 of 2 free in the cluster; cpus: 2 asked, 1 free; gpus: 1 asked, 0 free; \
             scratch: 2 asked, 1 free",
        ),
        (nothing, cpus(5), "no node is large enough: cpus: 5 asked, 4 in all on n1"),
        (nothing, gpus(3), "no node is large enough: gpus: 3 asked, 2 in all on n1"),
        (nothing, scratch(4), "no node is large enough: scratch: 4 asked, 3 in all on n1"),
        (
            nothing,
            asks(0, &[("fpga", 1)]),
            "no node is large enough: fpga: 1 asked, 0 in all on n1",
        ),
        (nothing, matlab(3), "matlab: 3 asked, the cluster has 2 in all"),
        (nothing, mem, "no node is large enough: memory: 10T asked, 8G in all on n1"),
        (
            nothing,
            v1::JobSpec { cpus: 5, ..asks(3, &[("matlab", 3)]) },
            "matlab: 3 asked, the cluster has 2 in all; no node is large enough: cpus: 5 asked, 4 in all; \
             gpus: 3 asked, 2 in all on n1",
        ),
        (nothing, v1::JobSpec { node: Some("n9".into()), ..spec() }, "no node is named n9"),
        (
            nothing,
            v1::JobSpec { node_labels: [("disk".into(), "ssd".into())].into(), ..spec() },
            "no node has the label disk=ssd",
        ),
        (drained, gpus(1), "n1 drained by root: new disk"),
    ];
    for (ready, spec, expected) in rows {
        let mut world = world();
        ready(&mut world);
        let job = world.submit_spec(spec);
        assert_eq!(summary(&world, job), expected);
        let answer = told(&world, job);
        assert_eq!(answer.headline, format!("Job {job} is PEND: {expected}."));
        assert!(planned(&world).is_empty(), "{expected}");
    }
}

#[test]
fn a_node_tells_all_that_keeps_a_job_from_it() {
    let mut world = world();
    runs(&mut world, v1::JobSpec { cpus: 3, ..asks(2, &[]) });
    let job = world.submit_spec(v1::JobSpec { cpus: 2, ..asks(1, &[]) });
    world.down(N1, 1, DownCause::Silence);
    let words: Vec<String> = told(&world, job).nodes.into_iter().map(|node| node.why).collect();
    let expected = "gets no new jobs: silent; cpus: 2 asked, 1 free; gpus: 1 asked, 0 free";
    assert_eq!(words, [expected]);
}

#[test]
fn who_holds_a_licence_is_told_and_what_frees_it_when_nobody_knows() {
    let mut world = world();
    node(&mut world, N2, 4, 0, &[]);
    let lost = runs(&mut world, asks(0, &[("matlab", 1)]));
    let spec = v1::JobSpec { time_limit_ms: Some(60_000), ..asks(0, &[("matlab", 1)]) };
    let holder = world.submit_spec(spec);
    assert_eq!(world.assign_to(holder, N2), Outcome::Assigned);
    let waits = world.submit_spec(asks(0, &[("matlab", 1)]));
    let lines = told(&world, waits).lines;
    let held = format!("matlab is held by {lost}, {holder}.");
    assert!(lines.contains(&held), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("By the time limits of these")), "{lines:?}");
    world.down(N1, 1, DownCause::Rdhup);
    assert_eq!(world.kind(lost), Kind::Exit);
    let lines = told(&world, waits).lines;
    let left = format!(
        "1 of matlab is held by job {lost}, which ended as agent-died on n1: it may live until n1 is back \
         without it; if you know that it is dead: docket nodes confirm-dead n1"
    );
    assert!(lines.contains(&left), "{lines:?}");
    let own = told(&world, lost).lines;
    let may = "It may still live and hold matlab 1: that is free once n1 is back without it, or after: docket \
               nodes confirm-dead n1";
    assert!(own.iter().any(|line| line == may), "{own:?}");
    let noted = crate::left_on(&world.ledger, world.ledger.agent(N1).expect("it is there"));
    let note =
        format!("{lost} may hold matlab 1 after its end: docket nodes confirm-dead frees that");
    assert_eq!(noted, Some(note));
    world.confirm_dead("root", "r1", N1);
    assert_eq!(planned(&world), [(waits, N2.to_owned())]);
}

#[test]
fn what_the_cluster_has_is_kept_for_who_comes_first() {
    let mut world = world();
    let holder = runs(&mut world, asks(0, &[("matlab", 1)]));
    let two = world.submit_spec(asks(0, &[("matlab", 2)]));
    let one = world.submit_spec(asks(0, &[("matlab", 1)]));
    let none = world.submit_spec(spec());
    assert_eq!(planned(&world), [(none, N1.to_owned())], "the last one is kept");
    let kept = format!("matlab: 1 asked, 0 of 2 free beside what is kept for {two}");
    assert_eq!(summary(&world, one), kept);
    world.finish(holder, code(0));
    let placed: Vec<JobId> = planned(&world).into_iter().map(|(job, _)| job).collect();
    assert_eq!(placed, [two, none]);
}

#[test]
fn one_that_can_never_have_enough_keeps_nobody_back() {
    let mut world = world();
    let never = world.submit_spec(asks(0, &[("matlab", 3)]));
    let one = world.submit_spec(asks(0, &[("matlab", 2)]));
    assert_eq!(planned(&world), [(one, N1.to_owned())]);
    let lines = told(&world, never).lines;
    let raise = "docket cluster set resource.matlab 3";
    assert!(lines.iter().any(|line| line.contains(raise)), "{lines:?}");
}

#[test]
fn a_job_that_a_node_is_kept_for_has_its_licence_kept_too() {
    let mut world = world();
    runs(&mut world, v1::JobSpec { cpus: 3, ..spec() });
    let wide = world.submit_spec(v1::JobSpec { cpus: 4, ..asks(0, &[("matlab", 2)]) });
    let small = world.submit_spec(asks(0, &[("matlab", 1)]));
    node(&mut world, N2, 2, 0, &[]);
    assert!(planned(&world).is_empty(), "n2 has room for the small one");
    let kept = format!("matlab: 1 asked, 0 of 2 free beside what is kept for {wide}");
    assert_eq!(summary(&world, small), kept);
}

#[test]
fn a_task_waits_for_a_gpu_until_one_of_another_ends() {
    let mut world = world();
    let holder = runs(&mut world, v1::JobSpec { time_limit_ms: Some(60_000), ..asks(2, &[]) });
    let waits = world.submit_spec(asks(1, &[]));
    let answer = told(&world, waits);
    assert!(answer.start_wall_ms.is_some(), "{answer:?}");
    world.finish(holder, code(0));
    assert_eq!(planned(&world), [(waits, N1.to_owned())]);
}

#[test]
fn what_would_never_fit_is_told_at_once_with_the_closest_node() {
    let nobody = World::new();
    let huge = v1::JobSpec { mem_bytes: 10 << 40, ..spec() };
    assert_eq!(never(&nobody.ledger, &huge), None, "nobody knows");
    let mut world = world();
    node(&mut world, N2, 16, 0, &[]);
    let warns = |spec: &v1::JobSpec| never(&world.ledger, spec);
    let closest = "no node is large enough: memory: 10T asked, 8G in all on n1, the closest";
    assert_eq!(warns(&huge).as_deref(), Some(closest));
    assert_eq!(warns(&v1::JobSpec { cpus: 16, ..spec() }), None);
    assert!(warns(&v1::JobSpec { cpus: 16, gpus: 1, ..spec() }).is_some(), "on no one node");
    let licence = warns(&asks(0, &[("matlab", 3)]));
    assert_eq!(licence.as_deref(), Some("matlab: 3 asked, the cluster has 2 in all"));
    let named = warns(&v1::JobSpec { node: Some("n9".to_owned()), ..spec() });
    assert_eq!(named.as_deref(), Some("no node is named n9"));
}

#[test]
fn would_says_where_when_and_whether_ever() {
    let mut world = world();
    let reach: Reach = world.ledger.agents_up().into();
    let free = would(&world.ledger, &reach, &asks(2, &[("matlab", 2)]));
    assert!(free.now && free.ever && free.warning().is_none());
    runs(&mut world, v1::JobSpec { time_limit_ms: Some(60_000), ..asks(2, &[("matlab", 1)]) });
    let busy = would(&world.ledger, &reach, &asks(1, &[]));
    assert!(!busy.now && busy.ever);
    let start = busy.start.expect("when the other ends");
    assert_eq!(start.name, "n1");
    assert!(start.kept.at_wall_ms.is_some_and(|at| at > world.wall_ms));
    let short = would(&world.ledger, &reach, &asks(0, &[("matlab", 2)]));
    assert!(!short.now && short.ever && short.cluster.is_some());
    let never = would(&world.ledger, &reach, &asks(3, &[]));
    assert!(!never.now && !never.ever);
    let away = would(&world.ledger, &Reach::default(), &spec());
    assert!(!away.now && away.ever, "it is silent, and could");
}
