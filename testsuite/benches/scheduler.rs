//! `cargo bench -p testsuite --bench scheduler`: what a placement costs at 1 k, 100 k and 1 M tasks that
//! wait, of plain jobs of several users and of one array, and how that grows. Nothing is asserted: the
//! numbers are for people (docs/scheduling.md tells which are expected).

use docket_core::ledger::{Ledger, Outcome};
use docket_core::scheduler::{Outlook, Rank, plan};
use hdrhistogram::Histogram;
use prost::Message as _;
use proto::v1::{self, command::Kind};
use proto::{JobId, TaskId};
use std::collections::BTreeSet;
use std::time::Instant;

/// Tasks that wait, by the name that is printed.
const SIZES: [(&str, u64); 3] = [("1k", 1_000), ("100k", 100_000), ("1M", 1_000_000)];

/// Placements of a pass: a quarter of what a plan may have.
const PLACEMENTS: usize = 256;

/// Passes that are measured, after a tenth of them that are not.
const PASSES: usize = 400;

/// Turns of plan, apply and end: fewer tasks than the smallest queue has.
const TURNS: usize = 15;

/// Placements of a turn.
const TURN: usize = 50;

const NODES: u64 = 16;
const USERS: u64 = 8;
const WALL_MS: u64 = 1_700_000_000_000;

fn main() {
    println!("{USERS} users, 5 asks, 3 time limits, {NODES} nodes of 64 cpus; medians in µs");
    print!("{:34}", "");
    SIZES.iter().for_each(|(name, _)| print!("{name:>10}"));
    println!("    growth");
    for (what, fill) in [("jobs", jobs as fn(&mut Log, u64)), ("one array", array)] {
        let mut rows = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for (_, tasks) in SIZES {
            let mut log = Log::new();
            fill(&mut log, tasks);
            let measured =
                [pass(&log.ledger), empty_pass(&log), explained(&log.ledger), turn(&mut log)];
            rows.iter_mut().zip(measured).for_each(|(row, ns)| row.push(ns));
        }
        let names = ["a placement", "a pass that places none", "explain", "placement to end"];
        for (name, row) in names.into_iter().zip(&rows) {
            print(&format!("{what}: {name}"), row);
        }
    }
}

fn print(name: &str, ns: &[f64]) {
    print!("{name:34}");
    for value in ns {
        print!("{:>10.2}", value / 1000.0);
    }
    match (ns.first(), ns.last()) {
        (Some(first), Some(last)) => println!("{:>10.2}", last / first),
        _ => println!(),
    }
}

/// Median of one pass, for each of its placements.
fn pass(ledger: &Ledger) -> f64 {
    let up = ledger.agents_up();
    median(PASSES, || plan(ledger, &up, PLACEMENTS).placements.len())
}

/// A pass while no node has room for anything: what a queue costs that waits.
fn empty_pass(log: &Log) -> f64 {
    let nobody = BTreeSet::from(["agent-full".to_owned()]);
    median(PASSES, || {
        assert!(plan(&log.ledger, &nobody, PLACEMENTS).placements.is_empty());
        1
    })
}

/// Why the last task waits, and its place.
fn explained(ledger: &Ledger) -> f64 {
    let newest = JobId(ledger.next_job_id().0 - 1);
    let last = ledger.array(newest).and_then(|array| array.numbers().numbers().last());
    let id = TaskId { job: newest, index: last };
    median(20, || {
        let why = Outlook::new(ledger, &ledger.agents_up().into(), ledger.led()).why(id);
        let rank = Rank::of(ledger, id, ledger.led());
        usize::from(why.is_some()) * usize::from(rank.is_some())
    })
}

/// Plan, assign and end, for each task.
fn turn(log: &mut Log) -> f64 {
    let up = log.ledger.agents_up();
    median(TURNS, || {
        let placements = plan(&log.ledger, &up, TURN).placements;
        let assigns = placements.iter().filter_map(|placed| placed.to_command().kind).collect();
        let outcomes = log.apply(Vec::new(), assigns);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Assigned), "{outcomes:?}");
        let ends = placements.iter().map(|placed| (placed.agent_id.to_string(), placed.attempt));
        log.end(ends.collect());
        placements.len()
    })
}

/// The median of ns per unit; `run` tells how many units it did.
fn median(rounds: usize, mut run: impl FnMut() -> usize) -> f64 {
    let mut times = Histogram::<u64>::new(3).expect("3 digits are allowed");
    for round in 0..rounds + rounds / 10 {
        let begun = Instant::now();
        let units = run().max(1) as u64;
        let ps = begun.elapsed().as_nanos() as u64 * 1000 / units;
        if round >= rounds / 10 {
            times.record(ps).expect("a histogram of any size");
        }
    }
    times.value_at_quantile(0.5) as f64 / 1000.0
}

/// A ledger and the log that makes it.
struct Log {
    ledger: Ledger,
    index: u64,
    seqs: Vec<u64>,
}

impl Log {
    fn new() -> Log {
        let mut log = Log { ledger: Ledger::new(), index: 0, seqs: vec![1; NODES as usize + 1] };
        let policy = v1::Policy { max_queue: 10_000_000, ..v1::Policy::default() };
        let configure = v1::ConfigureCommand { policy: Some(policy), ..Default::default() };
        log.apply(Vec::new(), vec![Kind::Configure(configure)]);
        (1..=NODES).for_each(|n| log.join(&format!("agent-{n}"), 64));
        log.join("agent-full", 1);
        log
    }

    fn join(&mut self, agent: &str, cpus: u32) {
        let resources = v1::NodeResources { cpus, mem_bytes: 1 << 40, ..Default::default() };
        let join = v1::Join {
            agent_id: agent.to_owned(),
            name: agent.to_owned(),
            incarnation: 1,
            journal_id: b"j".to_vec(),
            next_seq: 1,
            boot_id: b"b".to_vec(),
            resources: Some(resources),
            ..v1::Join::default()
        };
        let page = v1::ManifestCommand {
            agent_id: agent.to_owned(),
            incarnation: 1,
            journal_id: b"j".to_vec(),
            last: true,
            at_join: true,
            ..v1::ManifestCommand::default()
        };
        let up = v1::AgentUpCommand { join: Some(join) };
        self.apply(Vec::new(), vec![Kind::AgentUp(up), Kind::Manifest(page)]);
    }

    fn apply(&mut self, blobs: Vec<v1::Blob>, commands: Vec<Kind>) -> Vec<Outcome> {
        self.index += 1;
        let commands = commands.into_iter().map(|kind| v1::Command { kind: Some(kind) }).collect();
        let (wall_ms, led_ms) = (WALL_MS + self.index, self.index);
        let level = proto::LEVEL;
        let proposal = v1::Proposal { level, wall_ms, led_ms, blobs, commands };
        self.ledger.apply(self.index, &proposal).outcomes
    }

    fn submit(&self, number: u64, hash: u8) -> Kind {
        let user = number % USERS;
        Kind::Submit(v1::SubmitCommand {
            by: Some(v1::Requester { user: format!("u{user}"), uid: user as u32, admin: false }),
            request_id: format!("{number}-{hash}"),
            user_key: true,
            spec_hash: vec![hash; 32],
            env_hash: vec![255; 32],
            stdin_hash: None,
        })
    }

    /// Ends what was assigned, as its nodes would tell it.
    fn end(&mut self, ends: Vec<(String, proto::AttemptId)>) {
        let mut facts = Vec::new();
        for (agent, attempt) in ends {
            let number: usize = agent.trim_start_matches("agent-").parse().unwrap_or_default();
            let Some(seq) = self.seqs.get_mut(number) else { continue };
            let wire = Some(attempt.to_wire());
            let token = Some(v1::Token { generation: 1, attempt: attempt.attempt });
            let finish = v1::FinishFact {
                attempt: wire,
                token,
                end: Some(v1::finish_fact::End::WaitStatus(0)),
                finish_wall_ms: WALL_MS,
                ..v1::FinishFact::default()
            };
            let kind = Some(v1::fact::Kind::Finish(finish));
            let batch = v1::Facts {
                journal_id: b"j".to_vec(),
                from: *seq,
                to: *seq,
                facts: vec![v1::Fact { seq: *seq, kind }],
            };
            *seq += 1;
            let facts_of = v1::FactsCommand { agent_id: agent, incarnation: 1, facts: Some(batch) };
            facts.push(Kind::Facts(facts_of));
        }
        self.apply(Vec::new(), facts);
    }
}

fn blob(hash: u8, spec: &v1::JobSpec) -> v1::Blob {
    v1::Blob { hash: vec![hash; 32], data: spec.encode_to_vec() }
}

/// Plain jobs: five asks, each with three time limits.
fn jobs(log: &mut Log, tasks: u64) {
    let spec = |n: u8| v1::JobSpec {
        argv: vec![b"true".to_vec()],
        cpus: 2 + u32::from(n % 5) / 3,
        mem_bytes: u64::from(n % 5) << 30,
        time_limit_ms: Some(u64::from(n / 5 + 1) * 600_000),
        ..v1::JobSpec::default()
    };
    for first in (0..tasks).step_by(1000) {
        let mut blobs: Vec<v1::Blob> = (0..15).map(|n| blob(n, &spec(n))).collect();
        blobs.push(v1::Blob { hash: vec![255; 32], data: Vec::new() });
        let submits = (first..(first + 1000).min(tasks)).map(|n| log.submit(n, (n / 7 % 15) as u8));
        let submits = submits.collect();
        log.apply(blobs, submits);
    }
    assert_eq!(log.ledger.pending_count(), tasks);
}

/// One array of one user, behind a job of each other one.
fn array(log: &mut Log, tasks: u64) {
    let ranges = vec![v1::TaskRange { first: 0, last: tasks as u32 - 1, step: 0 }];
    let spec = v1::JobSpec {
        argv: vec![b"true".to_vec()],
        cpus: 2,
        array: Some(v1::ArraySpec { ranges, ..v1::ArraySpec::default() }),
        ..v1::JobSpec::default()
    };
    let blobs = vec![blob(0, &spec), v1::Blob { hash: vec![255; 32], data: Vec::new() }];
    let submit = log.submit(0, 0);
    log.apply(blobs, vec![submit]);
    assert_eq!(log.ledger.pending_count(), tasks);
}
