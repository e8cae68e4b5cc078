//! Ten jobs with known ends, and agent, keeper, controller, or all that the node runs killed at random
//! moments, alone or together. At the end every job has one end, every code is right or honestly not known, nothing of
//! any job lives, and nothing ran twice.

use super::job::Job;
use super::judge::{Killed, judge};
use super::{Chance, side_by_side};
use crate::patience::let_pass;
use crate::world::{Daemon, Pace, Role, Split, Turn, World};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Jobs of a round.
const JOBS: usize = 10;

/// Within this the blows fall and the jobs are submitted.
const SPAN: Duration = Duration::from_millis(2500);

/// A killed agent or controller stays away for so long at most.
const DOWN_MAX: Duration = Duration::from_millis(1500);

/// Who is killed at once, as a set of these bits.
const AGENT: u64 = 1;
const KEEPER: u64 = 2;
const CONTROLLER: u64 = 4;
/// Guard, keeper and all jobs.
const JOBS_TOO: u64 = 8;

/// The most that a blow can be.
const ALL: u64 = AGENT | KEEPER | CONTROLLER | JOBS_TOO;

/// One moment at which somebody is killed.
#[derive(Clone, Debug)]
struct Blow {
    at: Duration,
    victims: u64,
    down: Duration,
}

/// What a round does.
#[derive(Clone, Debug)]
struct Plan {
    jobs: Vec<Job>,
    blows: Vec<Blow>,
}

/// How the jobs of the rounds ended, by kind.
#[derive(Debug, Default)]
pub struct Tally {
    /// Rounds that passed.
    pub passed: u64,
    /// Numbers of those that did not.
    pub failed: Vec<u64>,
    /// Jobs by the kind of their end.
    pub ends: BTreeMap<String, u64>,
}

impl Plan {
    fn draw(mut chance: Chance) -> Plan {
        let jobs = (0..JOBS).map(|number| Job::draw(&mut chance, number, SPAN)).collect();
        let mut blows: Vec<Blow> = (0..1 + chance.below(4))
            .map(|_| Blow {
                at: chance.span(SPAN),
                victims: 1 + chance.below(ALL),
                down: chance.span(DOWN_MAX),
            })
            .collect();
        blows.sort_by_key(|blow| blow.at);
        Plan { jobs, blows }
    }

    fn killed(&self) -> Killed {
        let any = |who| self.blows.iter().any(|blow| blow.victims & who != 0);
        let jobs = any(JOBS_TOO);
        Killed { agent: any(AGENT), keeper: any(KEEPER) || jobs, jobs }
    }
}

/// Runs rounds of one seed in worlds around `exe`, so many at a time; calls `done` after each.
pub fn run(
    exe: &Path,
    turn: &Arc<Turn>,
    seed: u64,
    first: u64,
    count: u64,
    at_a_time: usize,
    done: &(dyn Fn() + Sync),
) -> Tally {
    let results = side_by_side(first, count, at_a_time, done, |number| {
        round(World::new(exe, Arc::clone(turn)), seed, number)
    });
    let mut tally = Tally::default();
    for (number, ends) in results {
        match ends {
            Some(ends) => {
                tally.passed += 1;
                ends.into_iter().for_each(|kind| *tally.ends.entry(kind).or_default() += 1);
            }
            None => tally.failed.push(number),
        }
    }
    tally.failed.sort_unstable();
    tally
}

/// One round; gives the kinds of its jobs' ends.
fn round(world: World, seed: u64, number: u64) -> Vec<String> {
    let plan = Plan::draw(Chance::of(seed, number));
    let again = format!(
        "again: cargo run -p testsuite --bin rounds -- --seed {seed} --first {number} --rounds 1"
    );
    let mut split = Split::start(world, Pace::QUICK);
    let ids = fight(&mut split, &plan);
    split.node_is_up();
    let mut kinds = Vec::new();
    for (job, &id) in plan.jobs.iter().zip(&ids) {
        wait_end(&split, id, &again);
        let told = "an end that was not heard is told late";
        let task = split.world.wait_job(id, told, |task| {
            task["reason"]["kind"] != "agent-died" || !task["late_outcome"].is_null()
        });
        split.world.must_be_gone(id);
        let tale = split.world.tale(id);
        match judge(&split.world, job, plan.killed(), &task, &tale) {
            Ok(kind) => kinds.push(kind),
            Err(why) => panic!("job {id}: {why}\n{task:#}\n{tale:#?}\n{plan:#?}\n{again}"),
        }
    }
    kinds
}

/// Waits for a job's end. One that does not come is told as docket sees it, while it still does.
fn wait_end(split: &Split, id: u64, again: &str) {
    let waited = catch_unwind(AssertUnwindSafe(|| split.world.wait_end(id)));
    if let Err(panic) = waited {
        let id = id.to_string();
        for what in [&["explain", &id][..], &["events", &id], &["nodes"], &["list", "--all"]] {
            let ran = split.world.docket(what);
            eprintln!("{}{}", ran.text(), ran.err());
        }
        eprintln!("{again}");
        resume_unwind(panic);
    }
}

/// Submits and kills; everybody is back when this returns, and all jobs are acknowledged.
fn fight(split: &mut Split, plan: &Plan) -> Vec<u64> {
    let begin = Instant::now();
    let until = |at: Duration| {
        let_pass(at.saturating_sub(begin.elapsed()), "time passes", || true);
    };
    let address = split.address().to_owned();
    let world = &split.world;
    let mut field =
        Field { world, address, agent: &mut split.agent, controller: &mut split.controller };
    std::thread::scope(|scope| {
        let mut submitters = Vec::new();
        for job in &plan.jobs {
            submitters.push(scope.spawn(move || {
                until(job.submitted_at);
                job.submit(world)
            }));
        }
        for blow in &plan.blows {
            until(blow.at);
            field.strike(blow);
        }
        submitters.into_iter().map(|handle| handle.join().expect("a job is submitted")).collect()
    })
}

/// Where blows fall, while others submit.
struct Field<'a> {
    world: &'a World,
    address: String,
    agent: &'a mut Daemon,
    controller: &'a mut Daemon,
}

impl Field<'_> {
    fn strike(&mut self, blow: &Blow) {
        let hits = |who| blow.victims & who != 0;
        if hits(AGENT) {
            self.agent.kill9();
        }
        if hits(CONTROLLER) {
            self.controller.kill9();
        }
        if hits(JOBS_TOO) {
            self.world.kill_what_a_node_runs();
        }
        if hits(KEEPER) {
            // One that is not there is as good as killed.
            self.world.kill_if_there(Role::Keeper);
        }
        let_pass(blow.down, "they are away", || true);
        if hits(CONTROLLER) {
            *self.controller = self.world.controller(&self.address);
        }
        if hits(AGENT) {
            *self.agent = self.world.agent_unseen(&self.address, Split::NODE, Split::CPUS);
        }
    }
}
