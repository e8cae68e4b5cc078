//! The scheduler over virtual time: what is reserved starts by then, whoever goes before; and nothing waits
//! for ever (docs/adr/0011-order.md states the bounds).

use super::super::*;
use super::limits::configure;
use super::random::{Ask, agent, node_up, submit_ask};
use crate::ledger::tests::world::*;
use crate::ledger::{Kind, Outcome};
use proptest::prelude::*;
use proto::JobId;
use proto::v1::{Policy, fact};
use std::collections::{BTreeMap, BTreeSet};

const S: u64 = 1_000;

/// A cluster in which tasks end when their time is over.
struct Sim {
    world: World,
    /// How long each runs, ms.
    lasts: BTreeMap<JobId, u64>,
    /// What runs, by its end, wall ms.
    ends: BTreeSet<(u64, JobId)>,
}

impl Sim {
    fn new(nodes: &[u32]) -> Sim {
        let mut world = World::new();
        for (number, cpus) in nodes.iter().enumerate() {
            node_up(&mut world, number, (*cpus, 64));
        }
        configure(&mut world, Policy { share_weight: Some(0), ..Policy::default() });
        Sim { world, lasts: BTreeMap::new(), ends: BTreeSet::new() }
    }

    /// A job of one user with a limit, and how long it really runs.
    fn submit(&mut self, cpus: u32, limit_s: u64, runs_s: u64) -> JobId {
        let ask = Ask {
            user: 0,
            queue: 0,
            cpus,
            mem: 0,
            priority: 0,
            limit_s: Some(limit_s),
            array: None,
            node: None,
            more: (0, 0, 0),
        };
        let job = submit_ask(&mut self.world, &ask).expect("nothing is limited");
        self.lasts.insert(job, runs_s * S);
        job
    }

    /// One pass: what it places runs.
    fn pass(&mut self) {
        let plan = plan(&self.world.ledger, &self.world.ledger.agents_up(), usize::MAX);
        for placed in plan.placements {
            let command = placed.to_command().kind.expect("an assign");
            assert_eq!(self.world.apply(command), Outcome::Assigned);
            let job = placed.attempt.task.job;
            let start = fact::Kind::Start(start_of(job, placed.attempt.attempt));
            self.world.facts(&placed.agent_id, vec![start]);
            self.ends.insert((self.world.wall_ms + self.lasts[&job], job));
        }
    }

    /// Goes to the next end and ends what is over; false if nothing runs.
    fn next(&mut self) -> bool {
        let Some((at, _)) = self.ends.first().copied() else { return false };
        self.until(at);
        true
    }

    /// Goes to that time, and ends on the way what is over by then.
    fn until(&mut self, at: u64) {
        while let Some((end, job)) = self.ends.first().copied().filter(|(end, _)| *end <= at) {
            self.world.pass(end.saturating_sub(self.world.wall_ms));
            self.ends.pop_first();
            let on = self.world.job(job).grant().expect("it runs").agent.to_string();
            let finish = self.world.finish_fact(job, code(0));
            self.world.facts(&on, vec![fact::Kind::Finish(finish)]);
        }
        self.world.pass(at.saturating_sub(self.world.wall_ms));
    }

    fn kept(&self, job: JobId) -> Option<Start> {
        Outlook::by_ledger(&self.world.ledger).start(job).filter(|start| start.reserved)
    }

    fn waits(&self, job: JobId) -> bool {
        self.world.kind(job) == Kind::Queued
    }

    /// When a job starts, wall ms.
    fn starts(&mut self, job: JobId) -> u64 {
        while self.waits(job) && self.next() {
            self.pass();
        }
        assert!(!self.waits(job), "it starts once all that runs has ended");
        self.world.wall_ms
    }
}

/// Cpus, limit and how much of it is used, in percent.
type Work = (u32, u64, u64);

fn work() -> impl Strategy<Value = Work> {
    (1u32..9, 1u64..120, 1u64..101)
}

fn fill(nodes: &[u32], work: &[Work], exact: bool) -> (Sim, Vec<JobId>) {
    let mut sim = Sim::new(nodes);
    let mut jobs = Vec::new();
    for (cpus, minutes, part) in work {
        let limit_s = minutes * 60;
        let runs_s = if exact { limit_s } else { limit_s * part / 100 };
        jobs.push(sim.submit(*cpus, limit_s, runs_s));
        sim.world.pass(S);
    }
    (sim, jobs)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// With limits that are right the first reservation is worth as much as nobody behind it.
    #[test]
    fn whoever_goes_before_delays_the_first_reservation_by_nothing(
        nodes in prop::collection::vec(8u32..13, 1..3),
        work in prop::collection::vec(work(), 4..24),
    ) {
        let (mut with, jobs) = fill(&nodes, &work, true);
        with.pass();
        let Some(first) = jobs.iter().copied().find(|job| with.kept(*job).is_some()) else {
            return Ok(());
        };
        let (mut without, _) = fill(&nodes, &work, true);
        for job in jobs.iter().filter(|job| **job > first) {
            without.world.cancel_by(user("root"), &[*job]);
        }
        without.pass();
        let (with, without) = (with.starts(first), without.starts(first));
        prop_assert!(with <= without, "{} ms later", with - without);
    }

    /// With limits that are too long it starts when it was told at the latest, and what it is told only
    /// becomes earlier.
    #[test]
    fn the_first_reservation_is_kept_whatever_ends_early(
        nodes in prop::collection::vec(8u32..13, 1..3),
        work in prop::collection::vec(work(), 4..24),
    ) {
        let (mut sim, jobs) = fill(&nodes, &work, false);
        sim.pass();
        let Some(first) = jobs.iter().copied().find(|job| sim.kept(*job).is_some()) else {
            return Ok(());
        };
        let mut told = u64::MAX;
        while sim.waits(first) {
            let kept = sim.kept(first).expect("it stays the first");
            let at = kept.kept.at_wall_ms.expect("all have limits");
            prop_assert!(at <= told, "put off by {} ms", at - told);
            told = at;
            prop_assert!(sim.next(), "something it waits for runs");
            sim.pass();
        }
        prop_assert!(sim.world.wall_ms <= told);
    }

    /// Weights: 1 point of priority, 36,000 an hour. What comes 1 s later and is 3 points above stands
    /// behind: so only what came within the first second can ever stand before it.
    #[test]
    fn nothing_starves_behind_a_stream_of_a_higher_priority(
        stream in prop::collection::vec((1u32..4, 0i32..4, 1u64..6), 8),
        wide in 1u32..9,
    ) {
        let mut sim = Sim::new(&[8]);
        let policy = Policy { share_weight: Some(0), age_weight: Some(36_000), ..Policy::default() };
        configure(&mut sim.world, policy);
        let mut came = 0;
        let mut come = |sim: &mut Sim| {
            let (cpus, priority, runs_s) = stream[came % stream.len()];
            came += 1;
            let job = sim.submit(cpus, 600, runs_s);
            sim.world.prioritise(job, priority, &format!("p{came}"));
        };
        (0..8).for_each(|_| come(&mut sim));
        sim.pass();
        let job = sim.submit(wide, 600, 1);
        let began = sim.world.wall_ms;
        // Of those before it 8 wait and 1 comes in its first second; each takes 5 s at most, and then it
        // waits for the last that runs.
        let bound = (8 + 1 + 1) * 5 * S;
        while sim.waits(job) {
            prop_assert!(sim.world.wall_ms - began <= bound, "it starves");
            let at = sim.world.wall_ms + S;
            sim.until(at);
            come(&mut sim);
            sim.pass();
        }
    }
}

#[test]
fn the_simulation_places_on_every_node() {
    let mut sim = Sim::new(&[8, 8]);
    let jobs = [sim.submit(8, 60, 60), sim.submit(8, 60, 60)];
    sim.pass();
    let on = jobs.map(|job| sim.world.job(job).grant().map(|grant| grant.agent.to_string()));
    assert_eq!(on.map(Option::unwrap_or_default), [agent(0), agent(1)]);
}
