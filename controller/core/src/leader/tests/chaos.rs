//! Two model nodes under random losses, then peace: every job ends, none runs twice, nothing is
//! left behind. One seed gives one run.

use super::world::{BEAT_MS, World, batch, join};
use crate::leader::{Event, SessionEnd, SessionId};
use proto::digest::Digest;
use proto::v1::{self, Phase, agent_message::Kind as Up, fact::Kind as Told};
use proto::v1::{finish_fact::End, leader_message::Kind as Down};
use proto::{AttemptId, JobId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Runs of the test: each is a fraction of a second.
const SEEDS: u64 = 40;

/// splitmix64: the whole run follows from the seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// A keeper with its journal, and an agent that comes and goes.
struct Node {
    name: String,
    /// What is known of each record: `None` is one that is no fact.
    journal: Vec<Option<Told>>,
    acked: u64,
    sent: u64,
    live: BTreeMap<AttemptId, (Phase, v1::Token)>,
    known: BTreeSet<AttemptId>,
    spawned: Vec<JobId>,
    last_order: u64,
    incarnation: u64,
    process: u8,
    session: Option<SessionId>,
    joined: bool,
    pipe: VecDeque<Up>,
}

impl Node {
    fn new(name: &str) -> Self {
        Node {
            name: name.into(),
            journal: vec![],
            acked: 0,
            sent: 0,
            live: BTreeMap::new(),
            known: BTreeSet::new(),
            spawned: vec![],
            last_order: 0,
            incarnation: 0,
            process: 1,
            session: None,
            joined: false,
            pipe: VecDeque::new(),
        }
    }

    fn connect(&mut self, world: &mut World) {
        self.incarnation += 1;
        (self.joined, self.sent) = (false, self.acked);
        self.pipe.clear();
        self.session = Some(world.open(v1::Join {
            agent_id: self.name.clone(),
            name: self.name.clone(),
            process_id: vec![self.process],
            next_seq: self.journal.len() as u64 + 1,
            term_seen: world.term,
            ..join(self.incarnation)
        }));
    }

    fn cut(&mut self, world: &mut World, end: SessionEnd) {
        if let Some(session) = self.session.take() {
            world.close(session, end);
        }
    }

    fn write(&mut self, record: Option<Told>) {
        self.journal.push(record);
        self.tell();
    }

    fn tell(&mut self) {
        let to = self.journal.len() as u64;
        if self.joined && self.sent < to {
            let from = self.sent + 1;
            let seqs = (from..=to).zip(&self.journal[self.sent as usize..]);
            let facts = seqs.filter_map(|(seq, kind)| {
                kind.clone().map(|kind| v1::Fact { seq, kind: Some(kind) })
            });
            self.pipe.push_back(Up::Facts(batch(from, to, facts.collect())));
            self.sent = to;
        }
    }

    fn manifest(&mut self, asked: u64) {
        let items = self.live.iter().map(|(attempt, (phase, token))| v1::ManifestItem {
            attempt: Some(attempt.to_wire()),
            token: Some(*token),
            phase: (*phase).into(),
            ..Default::default()
        });
        self.pipe.push_back(Up::Manifest(v1::ManifestPage {
            items: items.collect(),
            last: true,
            last_seq: self.journal.len() as u64,
            last_order: self.last_order,
            asked,
        }));
    }

    fn beat(&mut self) {
        let digest: Digest = self.live.iter().map(|(id, (phase, _))| (*id, *phase)).collect();
        if self.joined {
            self.pipe.push_back(Up::Heartbeat(v1::Heartbeat {
                digest: digest.value(),
                last_seq: self.journal.len() as u64,
                last_order: self.last_order,
                keeper_answers: true,
                ..Default::default()
            }));
        }
    }

    fn hear(&mut self, world: &mut World, dice: &mut Dice) {
        let Some(session) = self.session else { return };
        for kind in world.take_raw(session) {
            match kind {
                Down::Welcome(_) => {
                    self.joined = true;
                    self.tell();
                    self.manifest(0);
                }
                Down::Run(run) => self.run(&run, dice),
                Down::Kill(kill) => self.kill(&kill),
                Down::Ack(ack) => self.acked = self.acked.max(ack.to),
                Down::Resend(resend) => {
                    self.sent = resend.from - 1;
                    self.tell();
                }
                Down::Later(later) => {
                    let again = self.journal[later.seq as usize - 1].clone();
                    self.write(again);
                }
                Down::SendManifest(ask) => self.manifest(ask.nonce),
                Down::Ping(ping) => self.pipe.push_back(Up::Pong(v1::Pong { nonce: ping.nonce })),
                Down::Refused(refused) => {
                    assert!(!refused.fatal, "{}", refused.reason);
                    self.session = None;
                }
                _ => {}
            }
        }
        if world.closed(session) {
            self.session = None;
        }
    }

    fn run(&mut self, run: &v1::RunOrder, dice: &mut Dice) {
        self.last_order = self.last_order.max(run.order_id);
        let attempt = AttemptId::from_wire(run.attempt.as_ref()).unwrap();
        let token = run.token.unwrap();
        if !self.known.insert(attempt) {
            return;
        }
        if dice.roll(10) == 0 {
            let failure = v1::StartFailure { node_fault: true, ..Default::default() };
            let (attempt, token) = (run.attempt, run.token);
            let refused = v1::RefusedFact { attempt, token, failure: Some(failure) };
            return self.write(Some(Told::Refused(refused)));
        }
        self.spawned.push(attempt.task.job);
        self.live.insert(attempt, (Phase::Accepted, token));
        self.write(None);
        if dice.roll(3) > 0 {
            self.start(attempt);
        }
    }

    fn start(&mut self, attempt: AttemptId) {
        let Some((phase, token)) = self.live.get_mut(&attempt) else { return };
        if *phase == Phase::Accepted {
            *phase = Phase::Running;
            let (attempt, token) = (Some(attempt.to_wire()), Some(*token));
            self.write(Some(Told::Start(v1::StartFact { attempt, token, ..Default::default() })));
        }
    }

    fn kill(&mut self, kill: &v1::KillOrder) {
        self.last_order = self.last_order.max(kill.order_id);
        let attempt = AttemptId::from_wire(kill.attempt.as_ref()).unwrap();
        if kill.signal.is_none() {
            self.finish(attempt, kill.cause());
        }
    }

    fn finish(&mut self, attempt: AttemptId, cause: v1::KillCause) {
        let Some((_, token)) = self.live.remove(&attempt) else { return };
        let status = if cause == v1::KillCause::Unspecified { 0 } else { 9 };
        self.write(Some(Told::Finish(v1::FinishFact {
            attempt: Some(attempt.to_wire()),
            token: Some(token),
            end: Some(End::WaitStatus(status)),
            killed_for: cause.into(),
            ..Default::default()
        })));
    }

    fn some_live(&self, dice: &mut Dice) -> Option<AttemptId> {
        let count = self.live.len() as u64;
        (count > 0).then(|| self.live.keys().nth(dice.roll(count) as usize).copied())?
    }

    fn deliver(&mut self, world: &mut World, count: u64) {
        for _ in 0..count {
            let (Some(session), Some(kind)) = (self.session, self.pipe.pop_front()) else { return };
            world.say(session, kind);
        }
    }
}

struct Chaos {
    world: World,
    nodes: [Node; 2],
    dice: Dice,
    jobs: Vec<JobId>,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let nodes = [Node::new("a1"), Node::new("a2")];
        Chaos { world: World::new(), nodes, dice: Dice(seed), jobs: vec![] }
    }

    fn step(&mut self) {
        let Chaos { world, nodes, dice, jobs } = self;
        let node = &mut nodes[dice.roll(2) as usize];
        match dice.roll(24) {
            0..=3 if jobs.len() < 40 => jobs.push(world.submit()),
            4 if !jobs.is_empty() => {
                let job = jobs[dice.roll(jobs.len() as u64) as usize];
                world.cancel(job, None);
            }
            5 => node.cut(world, SessionEnd::Other),
            6 => {
                node.process += 1;
                node.cut(world, [SessionEnd::Fin, SessionEnd::Reset][dice.roll(2) as usize]);
            }
            7..=9 if node.session.is_none() => node.connect(world),
            10 => node.connect(world),
            11 => world.hold = !world.hold,
            12 => drop(world.waiting.pop_back()),
            13 if dice.roll(3) == 0 => world.pass(40_000),
            14 if dice.roll(3) == 0 => world.stall(dice.roll(90_000)),
            15 if dice.roll(3) == 0 => {
                world.waiting.clear();
                world.event(Event::Deposed);
                let term = world.term + 1;
                world.elect(term);
            }
            16..=18 => {
                if let Some(attempt) = node.some_live(dice) {
                    node.start(attempt);
                    if dice.roll(2) == 0 {
                        node.finish(attempt, v1::KillCause::Unspecified);
                    }
                }
            }
            19 => node.beat(),
            _ => {}
        }
        world.proposals();
        let count = dice.roll(4);
        node.deliver(world, count);
        node.hear(world, dice);
        world.pass(dice.roll(700));
        if !world.hold {
            world.commit();
            assert_eq!(
                world.reachable().iter().filter(|a| !world.ledger.agents_up().contains(*a)).count(),
                0,
                "the leader gives orders to an agent whose manifest the ledger has not judged"
            );
        }
    }

    fn heal(&mut self) {
        self.world.hold = false;
        self.world.commit();
        for _ in 0..120 {
            for node in &mut self.nodes {
                if node.session.is_none() {
                    node.connect(&mut self.world);
                }
                self.world.proposals();
                node.hear(&mut self.world, &mut self.dice);
                node.beat();
                while let Some(attempt) = node.live.keys().next().copied() {
                    node.start(attempt);
                    node.finish(attempt, v1::KillCause::Unspecified);
                }
                let all = node.pipe.len() as u64;
                node.deliver(&mut self.world, all);
            }
            self.world.pass(BEAT_MS);
        }
    }

    fn judge(&self, seed: u64) {
        let mut runs: BTreeMap<JobId, u32> = BTreeMap::new();
        for node in &self.nodes {
            assert!(node.live.is_empty(), "seed {seed}: {} still runs something", node.name);
            assert_eq!(node.acked, node.journal.len() as u64, "seed {seed}: {}", node.name);
            node.spawned.iter().for_each(|job| *runs.entry(*job).or_default() += 1);
        }
        for job in &self.jobs {
            let record = self.world.ledger.job(*job).unwrap();
            assert!(record.terminal(), "seed {seed}: job {job} is {:?}", record.state());
            let count = runs.get(job).copied().unwrap_or(0);
            assert!(count <= 1, "seed {seed}: job {job} ran {count} times");
        }
    }
}

#[test]
fn after_any_losses_every_job_ends_and_none_runs_twice() {
    for seed in 0..SEEDS {
        let mut chaos = Chaos::new(seed);
        for _ in 0..300 {
            chaos.step();
        }
        chaos.heal();
        chaos.judge(seed);
    }
}
