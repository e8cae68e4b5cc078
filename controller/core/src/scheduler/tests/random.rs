//! Random clusters and queues: a pass is never over capacity, places all or nothing, starts everything that
//! fits unless a limit or a reservation keeps it back, and explanations agree with it.

use super::super::feasible::feasible;
use super::super::*;
use super::limits::configure;
use crate::ledger::tests::world::*;
use crate::ledger::{Job, Kind, Ledger, Outcome};
use proptest::prelude::*;
use proto::v1::{self, Policy, QueuePolicy, command::Kind as Command};
use proto::{JobId, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// A node: cpus, memory in GiB.
type Node = (u32, u64);

#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub user: usize,
    pub queue: usize,
    pub cpus: u32,
    pub mem: u64,
    pub priority: i32,
    pub limit_s: Option<u64>,
    /// Its tasks, if it is an array, and how many at once.
    pub array: Option<(u32, Option<u32>)>,
    /// Only on this node.
    pub node: Option<usize>,
    /// Gpus, some of its node, some of the cluster.
    pub more: (u32, u64, u64),
}

#[derive(Clone, Debug)]
struct Case {
    nodes: Vec<Node>,
    policy: Policy,
    runs: Vec<(Ask, usize)>,
    waits: Vec<Ask>,
}

const USERS: [&str; 3] = ["mia", "tom", "ann"];
const QUEUES: [&str; 2] = ["default", "short"];

fn ask() -> impl Strategy<Value = Ask> {
    let limit = prop_oneof![1 => Just(None), 3 => (1u64..100).prop_map(|n| Some(n * 60))];
    let array =
        prop_oneof![5 => Just(None), 1 => (1u32..12, prop::option::of(1u32..4)).prop_map(Some)];
    let node = prop_oneof![6 => Just(None), 1 => (0usize..4).prop_map(Some)];
    let some = |most: u64| prop_oneof![3 => Just(0), 1 => 1..most];
    let more = (some(4).prop_map(|n| n as u32), some(5), some(4));
    (0usize..3, 0usize..2, 1u32..9, 0u64..5, -3i32..4, limit, array, (node, more)).prop_map(
        |(user, queue, cpus, mem, priority, limit_s, array, (node, more))| Ask {
            user,
            queue,
            cpus,
            mem,
            priority,
            limit_s,
            array,
            node,
            more,
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let some = || prop::option::weighted(0.3, 1u64..12);
    let licences = prop::option::weighted(0.8, 0u64..5);
    let policy = (some(), some(), some(), some(), 0u32..200, licences).prop_map(
        |(tasks, cpus, q_tasks, q_cpus, share, licences)| {
            let short = QueuePolicy {
                name: "short".to_owned(),
                priority: 2,
                max_tasks: q_tasks,
                max_cpus: q_cpus,
                ..QueuePolicy::default()
            };
            Policy {
                user_max_tasks: tasks,
                user_max_cpus: cpus,
                share_weight: Some(share),
                resources: licences.into_iter().map(|n| ("matlab".to_owned(), n)).collect(),
                queues: vec![short],
                ..Policy::default()
            }
        },
    );
    let nodes = prop::collection::vec((1u32..13, 1u64..9), 1..4);
    let runs = prop::collection::vec((ask(), 0usize..4), 0..10);
    (nodes, policy, runs, prop::collection::vec(ask(), 1..20))
        .prop_map(|(nodes, policy, runs, waits)| Case { nodes, policy, runs, waits })
}

pub(super) fn agent(number: usize) -> String {
    format!("agent-{}", number + 1)
}

pub(super) fn node_up(world: &mut World, number: usize, (cpus, gib): Node) {
    let id = agent(number);
    let offers = [("scratch".to_owned(), 4), ("matlab".to_owned(), 1)].into();
    let resources = v1::NodeResources {
        cpus,
        mem_bytes: gib << 30,
        gpus: 3,
        resources: offers,
        ..Default::default()
    };
    let join = v1::Join { resources: Some(resources), ..join(&id, 1, "j") };
    world.apply(Command::AgentUp(v1::AgentUpCommand { join: Some(join) }));
    world.at_join(&id, Vec::new());
}

pub(super) fn submit_ask(world: &mut World, ask: &Ask) -> Option<JobId> {
    let request = world.next_request();
    let array = ask.array.map(|(tasks, limit)| {
        let ranges = vec![v1::TaskRange { first: 0, last: tasks - 1, step: 0 }];
        v1::ArraySpec { ranges, limit, ..Default::default() }
    });
    let (gpus, scratch, matlab) = ask.more;
    let named = [("scratch", scratch), ("matlab", matlab)].into_iter().filter(|(_, n)| *n > 0);
    let spec = v1::JobSpec {
        gpus,
        resources: named.map(|(name, n)| (name.to_owned(), n)).collect(),
        cpus: ask.cpus,
        mem_bytes: ask.mem << 30,
        priority: ask.priority,
        time_limit_ms: ask.limit_s.map(|s| s * 1000),
        queue: QUEUES[ask.queue].to_owned(),
        node: ask.node.map(|n| format!("n{}", n + 1)),
        array,
        ..spec()
    };
    match world.submit_with(spec, USERS[ask.user], &request) {
        Outcome::Submitted { job, .. } => Some(job),
        _ => None,
    }
}

/// What runs is there by the limits of before: those in force may have been lowered since.
fn world_of(case: &Case) -> World {
    let mut world = World::new();
    for (number, node) in case.nodes.iter().enumerate() {
        node_up(&mut world, number, *node);
    }
    for (ask, node) in &case.runs {
        let ask = Ask { array: None, node: None, queue: 0, ..ask.clone() };
        let id = submit_ask(&mut world, &ask).expect("nothing is limited yet");
        let on = agent(node % case.nodes.len());
        if world.assign_to(id, &on) != Outcome::Assigned {
            world.cancel_by(user("root"), &[id]);
        }
        world.pass(10_000);
    }
    configure(&mut world, case.policy.clone());
    for ask in &case.waits {
        submit_ask(&mut world, ask);
    }
    world
}

fn queued(ledger: &Ledger) -> Vec<(TaskId, Job)> {
    let of = |entry: crate::ledger::Entry<'_>| match entry {
        crate::ledger::Entry::Job(job) => vec![(job.task_id(), job.clone())],
        crate::ledger::Entry::Array(array) => {
            let numbers: Vec<u32> = array.numbers().numbers().collect();
            numbers
                .into_iter()
                .filter_map(|n| Some((array.task_id(n), array.task(n)?.clone())))
                .collect()
        }
    };
    let all = ledger.newest_first(None).flat_map(of);
    all.filter(|(_, job)| job.kind() == Kind::Queued).collect()
}

/// What a plan leaves on each node, and what users, queues and arrays have then.
struct After {
    pool: Pool,
    free: BTreeMap<String, Free>,
    tasks: BTreeMap<String, u64>,
    cpus: BTreeMap<String, u64>,
    arrays: BTreeMap<JobId, u64>,
}

fn after(ledger: &Ledger, plan: &Plan) -> After {
    let free = |agent: &crate::ledger::Agent| (agent.id().to_string(), Free::of(agent, ledger));
    let mut after = After {
        pool: Pool::of(ledger),
        free: ledger.agents().map(free).collect(),
        tasks: BTreeMap::new(),
        cpus: BTreeMap::new(),
        arrays: BTreeMap::new(),
    };
    for agent in ledger.agents() {
        ledger.held_by(agent.id()).for_each(|job| after.count(job));
    }
    for placed in &plan.placements {
        let job = ledger.job(placed.attempt.task).expect("it is queued");
        let free = after.free.get_mut(&*placed.agent_id).expect("a node that is there");
        assert!(free.covers(job.ask()), "over capacity: {placed:?}");
        free.take(job.ask());
        assert_eq!(after.pool.missing(job.ask()), None, "over what the cluster has: {placed:?}");
        after.pool.take(job.ask());
        after.count(job);
    }
    after
}

impl After {
    fn count(&mut self, job: &Job) {
        for whose in [format!("u{}", job.by().name), format!("q{}", job.queue())] {
            *self.tasks.entry(whose.clone()).or_default() += 1;
            *self.cpus.entry(whose).or_default() += u64::from(job.ask().cpus);
        }
        *self.arrays.entry(job.id()).or_default() += 1;
    }

    fn limits(&self, ledger: &Ledger, job: &Job) -> Vec<(u64, Option<u64>, u64, Option<u64>)> {
        let policy = ledger.policy();
        let queue = ledger.queue(job.queue());
        let of = |whose: String, tasks, cpus| {
            let has = |map: &BTreeMap<String, u64>| map.get(&whose).copied().unwrap_or(0);
            (has(&self.tasks), tasks, has(&self.cpus), cpus)
        };
        vec![
            of(format!("u{}", job.by().name), policy.user_max_tasks, policy.user_max_cpus),
            of(
                format!("q{}", job.queue()),
                queue.and_then(|q| q.max_tasks),
                queue.and_then(|q| q.max_cpus),
            ),
        ]
    }

    /// Whether a limit lets one more of this job start.
    fn allows(&self, ledger: &Ledger, job: &Job) -> bool {
        let cpus = u64::from(job.ask().cpus);
        let full = |(tasks, max_tasks, used, max_cpus): (u64, Option<u64>, u64, Option<u64>)| {
            max_tasks.is_some_and(|max| tasks >= max)
                || max_cpus.is_some_and(|max| used + cpus > max)
        };
        let array = ledger.array(job.id()).and_then(|array| array.limit());
        let placed = self.arrays.get(&job.id()).copied().unwrap_or(0);
        let array_full = array.is_some_and(|limit| placed >= u64::from(limit));
        !array_full && !self.limits(ledger, job).into_iter().any(full)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_pass_starts_all_that_may_start_and_nothing_else_and_explanations_agree(case in case()) {
        let mut world = world_of(&case);
        let plan = plan(&world.ledger, &world.ledger.agents_up(), usize::MAX);
        let ledger = &world.ledger;
        let placed: BTreeSet<TaskId> = plan.placements.iter().map(|p| p.attempt.task).collect();
        prop_assert_eq!(placed.len(), plan.placements.len(), "nothing starts twice");
        let after = after(ledger, &plan);
        let outlook = Outlook::by_ledger(ledger);
        for (id, job) in queued(ledger) {
            let why = outlook.why(id).expect("it is queued");
            prop_assert_eq!(why.starts, placed.contains(&id), "{}: {}", id, &why.summary);
            let start = outlook.start(id);
            if let Some(start) = start.filter(|start| start.reserved) {
                prop_assert!(!why.starts, "what starts needs no reservation");
                let free = &after.free[&*start.agent_id];
                prop_assert!(!free.covers(job.ask()), "{}: it fits already", id);
            }
            if placed.contains(&id) {
                let over = after.limits(ledger, &job).into_iter().any(|(tasks, max, cpus, max_cpus)| {
                    max.is_some_and(|max| tasks > max) || max_cpus.is_some_and(|max| cpus > max)
                });
                prop_assert!(!over, "{}: a limit is passed", id);
                continue;
            }
            let kept_back = |agent: &crate::ledger::Agent| {
                let node = why.nodes.iter().find(|node| node.agent_id == *agent.id());
                matches!(node.and_then(|n| n.refusal.as_ref()), Some(Refusal::KeptFor { .. }))
            };
            let open = ledger.agents().find(|agent| {
                let free = &after.free[&**agent.id()];
                feasible(job.ask(), agent, free, ledger.led()).is_none() && !kept_back(agent)
            });
            let lacks = after.pool.missing(job.ask());
            let kept = why.cluster.as_ref().is_some_and(|missing| missing.each().any(|m| m.kept_for.is_some()));
            prop_assert!(why.cluster.is_none() || lacks.is_some() || kept, "{}: {}", id, &why.summary);
            let limited = why.limit.is_some() || why.cluster.is_some() || !after.allows(ledger, &job);
            prop_assert!(limited || lacks.is_none() || open.is_none(), "{}: {}", id, &why.summary);
            prop_assert!(open.is_none() || limited, "{} fits and does not start: {}", id, why.summary);
            prop_assert!(!why.summary.is_empty());
        }
        for placement in plan.placements {
            let command = placement.to_command().kind.expect("an assign");
            prop_assert_eq!(world.apply(command), Outcome::Assigned, "{:?}", placement);
        }
    }

    #[test]
    fn a_place_is_how_many_tasks_come_before(case in case()) {
        let world = world_of(&case);
        let ledger = &world.ledger;
        let mut ranks: Vec<(i64, TaskId, u64)> = queued(ledger)
            .into_iter()
            .filter_map(|(id, _)| Rank::of(ledger, id, ledger.led()).map(|rank| (id, rank)))
            .map(|(id, rank)| (-rank.number.total(), id, rank.place))
            .collect();
        ranks.sort_unstable();
        // Tasks of full arrays have a number and no place: nobody stands behind them.
        let full = |id: &TaskId| ledger.array(id.job).is_some_and(|array| array.room() == Some(0));
        let waiting = ranks.iter().filter(|(_, id, _)| !full(id));
        for (place, (_, id, told)) in (1u64..).zip(waiting) {
            prop_assert_eq!(place, *told, "{}", id);
        }
    }
}
