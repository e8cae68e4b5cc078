//! Gpus with indices, named consumables of nodes and of the cluster: given together or not at all, and
//! given back no sooner than is proven.

use super::image::bytes;
use super::world::*;
use crate::ledger::{Amounts, Kind, Ledger, Outcome};
use proto::JobId;
use proto::v1::{self, DownCause, ExitKind, Phase, command::Kind as Command, fact};

/// What proves that nothing of it lives.
type Prove = fn(&mut World);

fn amounts(some: &[(&str, u64)]) -> std::collections::BTreeMap<String, u64> {
    some.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
}

/// A node of 8 cpus with so many gpus and these consumables, that is up.
fn node(world: &mut World, agent: &str, incarnation: u64, gpus: u32, offers: &[(&str, u64)]) {
    join_with(world, agent, incarnation, "j1", gpus, offers);
    world.at_join(agent, Vec::new());
}

fn join_with(
    world: &mut World,
    agent: &str,
    incarnation: u64,
    journal: &str,
    gpus: u32,
    offers: &[(&str, u64)],
) {
    let resources = v1::NodeResources {
        cpus: 8,
        mem_bytes: 8 << 30,
        gpus,
        resources: amounts(offers),
        ..Default::default()
    };
    let boot_id = world.boot.as_bytes().to_vec();
    let next_seq = match world.ledger.agent(agent) {
        Some(known) if **known.journal_id() == *journal.as_bytes() => *world.seq(agent),
        _ => {
            *world.seq(agent) = 1;
            1
        }
    };
    let base = join(agent, incarnation, journal);
    let join = v1::Join { resources: Some(resources), boot_id, next_seq, ..base };
    let up = Command::AgentUp(v1::AgentUpCommand { join: Some(join) });
    assert_eq!(world.apply(up), Outcome::AgentUp);
}

fn cluster(world: &mut World, offers: &[(&str, u64)]) {
    let policy = v1::Policy { resources: amounts(offers), ..v1::Policy::default() };
    let configure = v1::ConfigureCommand { policy: Some(policy), ..Default::default() };
    assert_eq!(world.apply(Command::Configure(configure)), Outcome::Configured);
}

fn asks(world: &mut World, gpus: u32, named: &[(&str, u64)]) -> JobId {
    world.submit_spec(v1::JobSpec { gpus, resources: amounts(named), ..spec() })
}

fn why_stale(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Stale { what } => what,
        _ => "it is not stale",
    }
}

fn gpus(world: &World, job: JobId) -> &[u32] {
    world.job(job).gpu_ids()
}

/// What is bound of the cluster's `matlab`.
fn matlab(world: &World) -> u64 {
    world.ledger.used_of_cluster("matlab")
}

fn again(world: &World) -> Ledger {
    let image = bytes(&world.ledger.freeze());
    let ledger = Ledger::thaw(image.clone().into_iter()).expect("it is whole");
    ledger.check();
    assert_eq!(bytes(&ledger.freeze()), image, "read back and written again");
    ledger
}

/// Runs on a node with a licence, and its agent dies: EXIT agent-died, and nobody knows more.
fn lost_holder(world: &mut World) -> JobId {
    node(world, N1, 1, 2, &[("scratch", 4)]);
    cluster(world, &[("matlab", 2)]);
    let job = asks(world, 1, &[("matlab", 1), ("scratch", 3)]);
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    world.start(job);
    world.down(N1, 1, DownCause::Rdhup);
    assert_eq!(world.reason(job), Some(ExitKind::AgentDied));
    assert_eq!(matlab(world), 1, "it may still hold it");
    assert_eq!(world.ledger.leftovers_of(N1).count(), 1);
    again(world);
    job
}

#[test]
fn the_lowest_free_gpus_are_given_and_each_once() {
    let mut world = World::new();
    node(&mut world, N1, 1, 4, &[]);
    let jobs = [asks(&mut world, 2, &[]), asks(&mut world, 1, &[]), asks(&mut world, 2, &[])];
    assert_eq!(world.assign_to(jobs[0], N1), Outcome::Assigned);
    assert_eq!(world.assign_to(jobs[1], N1), Outcome::Assigned);
    assert_eq!((gpus(&world, jobs[0]), gpus(&world, jobs[1])), (&[0, 1][..], &[2][..]));
    assert_eq!(why_stale(&world.assign_to(jobs[2], N1)), "gpus: 2 asked, 1 free");
    world.start(jobs[0]);
    world.finish(jobs[0], code(0));
    let last = asks(&mut world, 3, &[]);
    assert_eq!(world.assign_to(last, N1), Outcome::Assigned);
    assert_eq!(gpus(&world, last), [0, 1, 3], "what is free, not what is next");
    again(&world);
}

#[test]
fn a_node_that_comes_back_with_fewer_gpus_keeps_what_is_given_and_gives_none_beyond() {
    let mut world = World::new();
    node(&mut world, N1, 1, 4, &[]);
    let (low, high) = (asks(&mut world, 2, &[]), asks(&mut world, 2, &[]));
    for job in [low, high] {
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
        world.start(job);
    }
    world.finish(low, code(0));
    join_with(&mut world, N1, 2, "j1", 2, &[]);
    let item = world.item(high, Phase::Running);
    world.at_join(N1, vec![item]);
    assert_eq!((world.kind(high), gpus(&world, high)), (Kind::Running, &[2, 3][..]));
    let next = asks(&mut world, 2, &[]);
    assert_eq!(world.assign_to(next, N1), Outcome::Assigned);
    assert_eq!(gpus(&world, next), [0, 1]);
    world.finish(high, code(0));
    let wide = asks(&mut world, 3, &[]);
    assert_eq!(why_stale(&world.assign_to(wide, N1)), "gpus: 3 asked, 2 in all");
    let one = asks(&mut world, 1, &[]);
    assert_eq!(why_stale(&world.assign_to(one, N1)), "gpus: 1 asked, 0 free");
}

#[test]
fn all_is_given_together_or_nothing_and_all_that_is_missing_is_told() {
    let mut world = World::new();
    node(&mut world, N1, 1, 1, &[("scratch", 4), ("matlab", 9)]);
    cluster(&mut world, &[("matlab", 2), ("ansys", 1)]);
    let first = asks(&mut world, 1, &[("scratch", 3), ("matlab", 1), ("ansys", 1)]);
    assert_eq!(world.assign_to(first, N1), Outcome::Assigned);
    let given = world.job(first).grant().and_then(|g| g.given.clone()).expect("it has more");
    let named = |some: &[(&str, u64)]| -> Amounts {
        some.iter().map(|(name, amount)| ((*name).into(), *amount)).collect()
    };
    assert_eq!(given.node, named(&[("scratch", 3)]), "of its node");
    assert_eq!(
        given.cluster,
        named(&[("ansys", 1), ("matlab", 1)]),
        "the cluster's, whatever nodes offer"
    );
    let second = asks(&mut world, 1, &[("scratch", 2), ("matlab", 2), ("ansys", 1)]);
    let told = "gpus: 1 asked, 0 free; scratch: 2 asked, 1 free; ansys: 1 asked, 0 of 1 free in the \
                cluster; matlab: 2 asked, 1 of 2 free in the cluster";
    assert_eq!(why_stale(&world.assign_to(second, N1)), told);
    assert_eq!(world.kind(second), Kind::Queued);
    assert_eq!((matlab(&world), world.ledger.used(N1).gpus), (1, 1), "nothing of it is taken");
    world.start(first);
    world.finish(first, code(0));
    assert_eq!(world.assign_to(second, N1), Outcome::Assigned);
    assert_eq!(matlab(&world), 2);
    again(&world);
}

#[test]
fn a_name_that_becomes_the_clusters_frees_what_was_given_of_a_node() {
    let mut world = World::new();
    node(&mut world, N1, 1, 0, &[("matlab", 1)]);
    let first = asks(&mut world, 0, &[("matlab", 1)]);
    assert_eq!(world.assign_to(first, N1), Outcome::Assigned);
    cluster(&mut world, &[("matlab", 1)]);
    assert_eq!(matlab(&world), 0, "that was the node's");
    let second = asks(&mut world, 0, &[("matlab", 1)]);
    assert_eq!(world.assign_to(second, N1), Outcome::Assigned);
    world.start(first);
    world.finish(first, code(0));
    assert_eq!(matlab(&world), 1);
    cluster(&mut world, &[]);
    again(&world);
    world.start(second);
    world.finish(second, code(0));
    assert_eq!((matlab(&world), world.ledger.used(N1).named.len()), (0, 0));
}

#[test]
fn fewer_licences_than_are_bound_bind_nobody_more() {
    let mut world = World::new();
    node(&mut world, N1, 1, 0, &[]);
    cluster(&mut world, &[("matlab", 2)]);
    let first = asks(&mut world, 0, &[("matlab", 2)]);
    assert_eq!(world.assign_to(first, N1), Outcome::Assigned);
    cluster(&mut world, &[("matlab", 1)]);
    let second = asks(&mut world, 0, &[("matlab", 1)]);
    let told = "matlab: 1 asked, 0 of 1 free in the cluster";
    assert_eq!(why_stale(&world.assign_to(second, N1)), told);
    assert_eq!(world.task(second).message, told);
    let never = asks(&mut world, 0, &[("matlab", 2)]);
    assert_eq!(world.task(never).message, "matlab: 2 asked, the cluster has 1 in all");
}

#[test]
fn a_late_end_frees_what_an_attempt_left_behind() {
    let mut world = World::new();
    let job = lost_holder(&mut world);
    join_with(&mut world, N1, 2, "j1", 2, &[("scratch", 4)]);
    let used = world.ledger.used(N1);
    assert_eq!((used.gpus, used.named.len(), used.jobs, used.cpus), (1, 1, 0, 0));
    let item = world.item(job, Phase::Running);
    let judged = world.at_join(N1, vec![item]);
    assert!(matches!(judged, Outcome::Manifest(_)));
    assert_eq!((matlab(&world), world.ledger.used(N1).gpus), (1, 1), "it is told to kill it");
    let other = asks(&mut world, 1, &[]);
    assert_eq!(world.assign_to(other, N1), Outcome::Assigned);
    assert_eq!(gpus(&world, other), [1], "never the one that may be in use");
    world.finish(job, code(0));
    assert_eq!((matlab(&world), world.ledger.leftovers().count()), (0, 0));
    let told: Vec<String> = crate::events(&world.ledger, job)
        .map(|answer| answer.events.into_iter().map(|event| event.what).collect())
        .unwrap_or_default();
    let freed = "what attempt 1 held is free again: its end was told";
    assert!(told.iter().any(|what| what == freed), "{told:?}");
    again(&world);
}

#[test]
fn a_manifest_without_it_a_reboot_and_an_operator_free_it() {
    let proofs: [(&str, Prove); 3] = [
        ("manifest", |world| {
            join_with(world, N1, 2, "j1", 2, &[]);
            world.at_join(N1, Vec::new());
        }),
        ("reboot", |world| {
            world.boot = "b2";
            join_with(world, N1, 2, "j1", 2, &[]);
        }),
        ("operator", |world| {
            assert_eq!(world.confirm_dead("root", "r1", N1), Outcome::Proven { count: 1 });
            assert_eq!(world.confirm_dead("root", "r1", N1), Outcome::Proven { count: 1 });
        }),
    ];
    for (name, prove) in proofs {
        let mut world = World::new();
        lost_holder(&mut world);
        prove(&mut world);
        assert_eq!((matlab(&world), world.ledger.leftovers().count()), (0, 0), "{name}");
        assert_eq!(world.ledger.used(N1).gpus, 0, "{name}");
        again(&world);
    }
}

#[test]
fn a_lost_directory_proves_nothing_but_its_node_has_what_it_offers() {
    let mut world = World::new();
    lost_holder(&mut world);
    join_with(&mut world, N1, 2, "j2", 2, &[("scratch", 4)]);
    assert_eq!((matlab(&world), world.ledger.used(N1).gpus), (1, 1));
    world.at_join(N1, Vec::new());
    assert_eq!((matlab(&world), world.ledger.used(N1).gpus), (1, 0));
    assert_eq!(world.ledger.used(N1).named.len(), 0);
    again(&world);
    assert_eq!(world.confirm_dead("root", "r1", N1), Outcome::Proven { count: 1 });
    assert_eq!(matlab(&world), 0);
}

#[test]
fn a_fault_of_the_node_frees_what_never_started_and_nothing_that_did() {
    for (started, bound) in [(false, 0), (true, 1)] {
        let mut world = World::new();
        node(&mut world, N1, 1, 0, &[]);
        cluster(&mut world, &[("matlab", 2)]);
        let job = asks(&mut world, 0, &[("matlab", 1)]);
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
        world.down(N1, 1, DownCause::Silence);
        world.pass(600_000);
        world.tick();
        assert_eq!(world.reason(job), Some(ExitKind::Lost));
        assert_eq!(matlab(&world), 1);
        if started {
            world.start(job);
        }
        let refused = v1::RefusedFact {
            attempt: Some(attempt_ref(job, 1)),
            token: Some(v1::Token { generation: 1, attempt: 1 }),
            failure: Some(node_failure()),
        };
        world.facts(N1, vec![fact::Kind::Refused(refused)]);
        assert_eq!(matlab(&world), bound, "started: {started}");
    }
}

#[test]
fn a_cancelled_retry_frees_nothing_that_its_closed_attempt_may_use() {
    let mut world = World::new();
    node(&mut world, N1, 1, 0, &[]);
    cluster(&mut world, &[("matlab", 1)]);
    let resources = amounts(&[("matlab", 1)]);
    let job = world.submit_spec(v1::JobSpec { resources, ..retrying() });
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    world.start(job);
    world.down(N1, 1, DownCause::Rdhup);
    assert_eq!((world.kind(job), matlab(&world)), (Kind::Waiting, 1), "the fence binds it");
    world.cancel(job);
    assert_eq!((world.kind(job), matlab(&world)), (Kind::Exit, 1));
    again(&world);
    assert_eq!(world.fenced(job, 1), Outcome::Proven { count: 1 }, "it had a lease");
    assert_eq!(matlab(&world), 0);
}

#[test]
fn without_a_lease_time_alone_frees_nothing() {
    let mut world = World::new();
    let job = lost_holder(&mut world);
    assert_eq!(world.fenced(job, 1), Outcome::Proven { count: 0 });
    assert_eq!(matlab(&world), 1);
}

#[test]
fn eviction_frees_nothing() {
    let mut world = World::new();
    let job = lost_holder(&mut world);
    world.pass(8 * 24 * 3_600_000);
    world.tick();
    assert!(world.ledger.evicted(job));
    assert_eq!(matlab(&world), 1);
    assert_eq!(world.ledger.holders("matlab").len(), 1);
    again(&world);
    let fact = finish_of(job, 1, code(0));
    node(&mut world, N1, 2, 2, &[]);
    assert_eq!(matlab(&world), 0, "the manifest of its journal lacks it");
    world.facts(N1, vec![fact::Kind::Finish(fact)]);
    assert_eq!(matlab(&world), 0, "once");
}

#[test]
fn a_restored_ledger_learns_from_the_node_which_gpus_an_attempt_has() {
    let mut world = World::new();
    node(&mut world, N1, 1, 4, &[]);
    let job = asks(&mut world, 2, &[]);
    // Another log gave it away, and this one opened a generation since.
    let generation = v1::ConfigureCommand { generation: Some(2), ..Default::default() };
    world.apply(Command::Configure(generation));
    assert_eq!(world.kind(job), Kind::Held);
    let item = v1::ManifestItem { gpus: vec![1, 3], ..world.item(job, Phase::Running) };
    join_with(&mut world, N1, 2, "j1", 4, &[]);
    let judged = world.at_join(N1, vec![item]);
    assert!(matches!(judged, Outcome::Manifest(_)));
    assert_eq!((world.kind(job), gpus(&world, job)), (Kind::Running, &[1, 3][..]));
    let next = asks(&mut world, 2, &[]);
    assert_eq!(world.assign_to(next, N1), Outcome::Assigned);
    assert_eq!(gpus(&world, next), [0, 2]);
    again(&world);
}

#[test]
fn gpus_of_which_nobody_knows_the_indices_keep_all_others_back() {
    let mut world = World::new();
    node(&mut world, N1, 1, 4, &[]);
    let job = asks(&mut world, 1, &[]);
    let generation = v1::ConfigureCommand { generation: Some(2), ..Default::default() };
    world.apply(Command::Configure(generation));
    // A fact alone tells of it.
    world.facts(N1, vec![fact::Kind::Start(start_of(job, 1))]);
    assert_eq!((world.kind(job), gpus(&world, job)), (Kind::Running, &[][..]));
    let next = asks(&mut world, 1, &[]);
    assert_eq!(why_stale(&world.assign_to(next, N1)), "gpus: 1 asked, 0 free");
    let item = v1::ManifestItem { gpus: vec![2], ..world.item(job, Phase::Running) };
    let mut page = world.page(N1, vec![item]);
    page.at_join = false;
    world.apply(Command::Manifest(page));
    assert_eq!(gpus(&world, job), [2]);
    assert_eq!(world.assign_to(next, N1), Outcome::Assigned);
    assert_eq!(gpus(&world, next), [0]);
}

#[test]
fn names_and_amounts_that_cannot_be_are_refused() {
    let mut world = World::with_node();
    let many: Vec<String> = (0..17).map(|n| format!("r{n}")).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 1)).collect();
    for bad in [&[("a b", 1)][..], &[("", 1)], &[("a", 0)], &many] {
        let request = world.next_request();
        let spec = v1::JobSpec { resources: amounts(bad), ..spec() };
        let outcome = world.submit_with(spec, "mia", &request);
        assert!(matches!(outcome, Outcome::Rejected(_)), "{bad:?}: {outcome:?}");
    }
    let policy = v1::Policy { resources: amounts(&[("a/b", 1)]), ..Default::default() };
    let configure = v1::ConfigureCommand { policy: Some(policy), ..Default::default() };
    assert!(matches!(world.apply(Command::Configure(configure)), Outcome::Rejected(_)));
}
