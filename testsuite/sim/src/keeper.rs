//! A pretend keeper and its guard: takes orders, journals, starts and ends process trees, tells
//! facts. It keeps to design 6 as the real one does; what it lacks is everything about Linux.

use crate::invariants::Happening;
use crate::journal::{Journal, Record};
use crate::process::{Key, Process};
use crate::world::{Event, World};
use proto::digest::Digest;
use proto::mutants::Mutant;
use proto::v1::{
    self, FinishFact, KeeperEvent, KeeperManifest, KeeperPong, KeeperRequest, KeeperWelcome,
    KillCause, ManifestItem, Phase, RefusedFact, StartFact, StartFailure, finish_fact,
    keeper_event, keeper_request,
};
use std::collections::BTreeMap;

/// Facts in one message: small, so that a finish is often torn from its start.
const FACTS_MAX: u64 = 4;

/// On a full disk so many of 1,000 runs are not even refused: too much waits for room already.
const DROPPED_PERMILLE: u64 = 700;

/// What waits until the batch before it is durable.
#[derive(Debug)]
pub(crate) enum After {
    Welcome,
    Manifest(u64),
    Pong(u64),
    Spawn(Key),
    Kill(Key, KillCause, u64),
}

/// Where an attempt stands for the keeper's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Spawning { kill: Option<(KillCause, u64)> },
    Running { process: usize },
    Closing { process: usize },
}

/// One node's keeper.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub journal: Journal,
    pub up: bool,
    pub frozen: bool,
    pub life: u64,
    /// Refuses so many runs for its disk's sake.
    pub refuses: u32,
    /// Its disk has no room for one record more, the reserve is used up.
    pub full: bool,
    /// The next run that comes takes the last of it.
    pub fills: bool,
    /// Lets so many starts fail for the node's sake.
    pub fails: u32,
    pub inbox: Vec<Event>,
    pub(crate) pending: Vec<Record>,
    pub(crate) after: Vec<After>,
    syncing: bool,
    next_fact: u64,
    welcomed: bool,
    pub(crate) tasks: BTreeMap<Key, Stage>,
}

impl Keeper {
    pub fn new(journal_id: Vec<u8>) -> Keeper {
        Keeper {
            journal: Journal::new(journal_id),
            up: false,
            frozen: false,
            life: 0,
            refuses: 0,
            full: false,
            fills: false,
            fails: 0,
            inbox: Vec::new(),
            pending: Vec::new(),
            after: Vec::new(),
            syncing: false,
            next_fact: 1,
            welcomed: false,
            tasks: BTreeMap::new(),
        }
    }

    /// Nothing of the journal waits to be taken by the controller, and nothing runs.
    pub fn idle(&self) -> bool {
        self.tasks.is_empty()
            && self.pending.is_empty()
            && self.journal.acked >= self.journal.last_fact
    }

    /// No room: what has happened waits for it, what has not begun is refused.
    fn park(&mut self) {
        for record in &mut self.pending {
            if let Record::Accepted { key, .. } = record {
                self.tasks.remove(key);
                *record = refused(*key, failure("journal", 28, true));
            }
        }
    }

    /// Attempts whose end waits for room: over, and not yet a fact.
    fn parked(&self) -> impl Iterator<Item = Key> {
        let listed = !Mutant::ParkedUnlisted.active();
        self.pending.iter().filter(move |_| listed).filter_map(|record| match record {
            Record::Closed { key, .. } => Some(*key),
            Record::Refused { fact } => Key::from_wire(fact.attempt.as_ref(), fact.token.as_ref()),
            _ => None,
        })
    }

    pub(crate) fn forget(&mut self) {
        self.pending.clear();
        self.after.clear();
        self.tasks.clear();
        self.inbox.clear();
        (self.syncing, self.welcomed, self.frozen, self.up) = (false, false, false, false);
    }
}

impl World {
    pub(crate) fn keeper_request(&mut self, n: usize, request: KeeperRequest) {
        use keeper_request::Kind;
        let Some(kind) = request.kind else { return };
        match kind {
            Kind::Hello(_) => self.nodes[n].keeper.after.push(After::Welcome),
            Kind::Run(run) => self.order_run(n, &run),
            Kind::Kill(kill) => self.order_kill(n, &kill),
            Kind::Suspend(o) => {
                let key = Key::from_wire(o.attempt.as_ref(), o.token.as_ref());
                self.order_suspend(n, o.order_id, key, true);
            }
            Kind::Resume(o) => {
                let key = Key::from_wire(o.attempt.as_ref(), o.token.as_ref());
                self.order_suspend(n, o.order_id, key, false);
            }
            // No client here changes a limit.
            Kind::Limit(o) => self.note_order(n, o.order_id),
            Kind::Renew(renew) => self.renew_leases(n, renew.h_ms),
            Kind::Forget(o) => self.note_order(n, o.order_id),
            Kind::Ack(ack) => {
                self.tell(&Happening::KeeperAcked { node: n, to: ack.to });
                self.nodes[n].keeper.pending.push(Record::Acked(ack.to));
            }
            Kind::Manifest(ask) => self.nodes[n].keeper.after.push(After::Manifest(ask.nonce)),
            Kind::Ping(ping) => self.nodes[n].keeper.after.push(After::Pong(ping.nonce)),
            Kind::Later(later) => {
                if let Some(fact) = self.nodes[n].keeper.journal.facts.get(&later.seq).cloned() {
                    self.nodes[n].keeper.pending.push(Record::Again(fact));
                }
            }
            Kind::Resend(resend) => self.nodes[n].keeper.next_fact = resend.from.max(1),
            Kind::Stop(_) | Kind::Upgrade(_) => {}
        }
        self.keeper_turn(n);
    }

    /// There is room again: what waited for it becomes durable.
    pub(crate) fn keeper_room(&mut self, n: usize) {
        let keeper = &mut self.nodes[n].keeper;
        keeper.fills = false;
        if std::mem::take(&mut keeper.full) && keeper.up {
            self.keeper_turn(n);
        }
    }

    /// Everything of one turn becomes durable together, a moment later.
    pub(crate) fn keeper_turn(&mut self, n: usize) {
        let delay = self.rng.skewed(8);
        let keeper = &mut self.nodes[n].keeper;
        if !keeper.syncing {
            keeper.syncing = true;
            let life = keeper.life;
            self.at(delay, Event::KeeperSync { node: n, life });
        }
    }

    pub(crate) fn keeper_sync(&mut self, n: usize) {
        let keeper = &mut self.nodes[n].keeper;
        keeper.syncing = false;
        if keeper.full {
            keeper.park();
        } else {
            for record in std::mem::take(&mut keeper.pending) {
                keeper.journal.write(record);
            }
        }
        for after in std::mem::take(&mut keeper.after) {
            self.keeper_does(n, after);
        }
        self.stream_facts(n);
    }

    fn keeper_does(&mut self, n: usize, after: After) {
        match after {
            After::Welcome => self.welcome_agent(n),
            After::Manifest(nonce) => {
                let manifest = self.manifest(n, nonce);
                self.tell_agent(n, keeper_event::Kind::Manifest(manifest));
            }
            After::Pong(nonce) => {
                let pong = self.pong(n, nonce);
                self.tell_agent(n, keeper_event::Kind::Pong(pong));
            }
            After::Spawn(key) => {
                let (life, delay) = (self.nodes[n].keeper.life, self.rng.skewed(60));
                self.at(delay, Event::Spawn { node: n, life, key });
            }
            After::Kill(key, cause, grace) => self.keeper_kills(n, key, cause, grace),
        }
    }

    fn welcome_agent(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.keeper.welcomed = true;
        node.keeper.next_fact = node.keeper.journal.acked + 1;
        let welcome = KeeperWelcome {
            journal_id: node.keeper.journal.id.clone(),
            boot_id: node.boot.to_le_bytes().to_vec(),
            next_seq: node.keeper.journal.records + 1,
            acked: node.keeper.journal.acked,
            version: "sim".to_owned(),
            pid: 1,
            limits: "none".to_owned(),
            limits_by: None,
            // It never lets go of a record.
            first_seq: 1,
        };
        self.tell_agent(n, keeper_event::Kind::Welcome(welcome));
    }

    fn stream_facts(&mut self, n: usize) {
        while self.nodes[n].keeper.welcomed {
            let most = self.rng.range(1, FACTS_MAX) as usize;
            let keeper = &mut self.nodes[n].keeper;
            let Some(facts) = keeper.journal.facts_from(keeper.next_fact, most) else { return };
            keeper.next_fact = facts.to + 1;
            self.tell_agent(n, keeper_event::Kind::Facts(facts));
        }
    }

    fn tell_agent(&mut self, n: usize, kind: keeper_event::Kind) {
        let (epoch, delay) = (self.nodes[n].epoch, self.rng.skewed(4));
        self.nodes[n].from_keeper.push_back(KeeperEvent { kind: Some(kind) });
        self.at(delay, Event::FromKeeper { node: n, epoch });
    }

    pub(crate) fn note_order(&mut self, n: usize, order: u64) {
        self.nodes[n].keeper.pending.push(Record::Order(order));
    }

    fn order_run(&mut self, n: usize, run: &v1::KeeperRun) {
        let Some(key) = Key::from_wire(run.attempt.as_ref(), run.token.as_ref()) else {
            return self.note_order(n, run.order_id);
        };
        let agent_id = self.nodes[n].saved.agent_id.clone();
        let order = Happening::RunTaken { node: n, agent: &agent_id, key, order: run.order_id };
        self.tell(&order);
        let keeper = &self.nodes[n].keeper;
        let under_way = |record: &Record| matches!(record, Record::Accepted { key: other, .. } if *other == key);
        if keeper.journal.knows(key)
            || keeper.tasks.contains_key(&key)
            || keeper.pending.iter().any(under_way)
        {
            return self.note_order(n, run.order_id);
        }
        if let Some(failure) = &run.refuse {
            let end = finish_fact::End::StartFailure(failure.clone());
            let fact = self.finish_of(n, key, end);
            self.note_order(n, run.order_id);
            self.nodes[n].keeper.pending.push(Record::Closed { key, fact });
            return;
        }
        self.nodes[n].keeper.full |= self.nodes[n].keeper.fills;
        if self.nodes[n].keeper.full && self.rng.permille(DROPPED_PERMILLE) {
            return self.trace.note(self.now, || format!("node {n} drops {}", key.attempt));
        }
        if let Some(failure) = self.lease_refusal(n, run).or_else(|| self.refusal(n, key)) {
            self.note_order(n, run.order_id);
            return self.nodes[n].keeper.pending.push(refused(key, failure));
        }
        let Some(job) = self.client.plan_of(&run.spec) else { return };
        let boot = self.nodes[n].boot;
        let keeper = &mut self.nodes[n].keeper;
        keeper.tasks.insert(key, Stage::Spawning { kill: None });
        let fence_after = run.fence_after_ms.zip(run.h_ms);
        keeper.pending.push(Record::Accepted { key, order: run.order_id, job, boot, fence_after });
        keeper.after.push(After::Spawn(key));
    }

    fn refusal(&mut self, n: usize, key: Key) -> Option<StartFailure> {
        let other = self.nodes[n]
            .keeper
            .tasks
            .iter()
            .any(|(k, _)| k.attempt.task == key.attempt.task && *k != key);
        let keeper = &mut self.nodes[n].keeper;
        if other {
            return Some(failure("previous-attempt", 16, true));
        }
        if keeper.full {
            return Some(failure("journal", 28, true));
        }
        if keeper.refuses > 0 {
            keeper.refuses -= 1;
            return Some(failure("run-directory", 28, true));
        }
        None
    }

    pub(crate) fn spawn(&mut self, n: usize, key: Key) {
        let Some(Stage::Spawning { kill }) = self.nodes[n].keeper.tasks.get(&key).copied() else {
            return;
        };
        let Some(job) = self.nodes[n].keeper.journal.live.get(&key).map(|live| live.job) else {
            return;
        };
        let bad_exec = self.plan.jobs[job].bad_exec;
        let node_fault = !bad_exec && self.nodes[n].keeper.fails > 0;
        if bad_exec || node_fault {
            if node_fault {
                self.nodes[n].keeper.fails -= 1;
            }
            let what =
                if bad_exec { failure("exec", 2, false) } else { failure("cgroup", 11, true) };
            let fact = self.finish_of(n, key, finish_fact::End::StartFailure(what));
            let keeper = &mut self.nodes[n].keeper;
            keeper.tasks.remove(&key);
            keeper.pending.push(Record::Closed { key, fact });
            return self.keeper_turn(n);
        }
        let process = self.give_birth(n, key, job);
        self.nodes[n].keeper.tasks.insert(key, Stage::Running { process });
        self.note_start(n, key, process);
        if let Some((cause, grace)) = kill {
            self.nodes[n].keeper.pending.push(Record::KillNoted);
            self.nodes[n].keeper.after.push(After::Kill(key, cause, grace));
        }
        self.keeper_turn(n);
    }

    fn give_birth(&mut self, n: usize, key: Key, job: usize) -> usize {
        let process = self.truth.processes.len();
        let ends_ms = self.plan.jobs[job].duration_ms.map(|duration| self.now + duration);
        let lease = self.nodes[n].keeper.journal.live.get(&key).and_then(|live| live.fence_after);
        self.truth.processes.push(Process {
            key,
            node: n,
            job,
            pid: process as u32 + 100,
            born_ms: self.now,
            ends_ms,
            ended: None,
            empty_ms: None,
            killed_for: KillCause::Unspecified,
            stopped_ms: None,
            stopped_sum_ms: 0,
            lease_ms: lease.map(|(lease, _)| lease),
            fence_ms: lease.map(|(lease, h)| h + lease),
            rebooted: false,
            serial: 0,
        });
        self.nodes[n].processes.insert(key, process);
        self.trace.note(self.now, || format!("node {n} runs {} as process {process}", key.attempt));
        self.tell(&Happening::Spawned { process });
        self.falls_soon(n);
        if let Some(at) = ends_ms {
            self.queue.push(at, Event::MainEnds { process, serial: 0 });
        }
        if let Some(limit) = self.plan.jobs[job].limit_ms {
            self.at(limit, Event::LimitReached { process });
        }
        if lease.is_some() {
            self.at(0, Event::FenceReached { process });
        }
        process
    }

    pub(crate) fn note_start(&mut self, n: usize, key: Key, process: usize) {
        let journalled =
            self.nodes[n].keeper.journal.live.get(&key).is_some_and(|l| l.started.is_some());
        if !journalled {
            let fact = self.start_of(key, process);
            self.nodes[n].keeper.pending.push(Record::Started { key, fact });
        }
    }

    fn start_of(&self, key: Key, process: usize) -> StartFact {
        let found = &self.truth.processes[process];
        StartFact {
            attempt: Some(key.attempt_ref()),
            token: Some(key.token()),
            pid: found.pid,
            pid_start_ticks: found.born_ms / 10,
            start_wall_ms: self.wall(self.nodes[found.node].wall_skew_ms, found.born_ms),
            ..StartFact::default()
        }
    }

    pub(crate) fn finish_of(&self, n: usize, key: Key, end: finish_fact::End) -> FinishFact {
        let process = self.nodes[n].processes.get(&key).copied();
        FinishFact {
            attempt: Some(key.attempt_ref()),
            token: Some(key.token()),
            end: Some(end),
            start: process.map(|process| self.start_of(key, process)),
            finish_wall_ms: self.wall(self.nodes[n].wall_skew_ms, self.now),
            ..FinishFact::default()
        }
    }

    /// The main process is reaped: the rest of its tree gets the kill sequence.
    pub(crate) fn reaped(&mut self, n: usize, process: usize) {
        let key = self.truth.processes[process].key;
        if self.nodes[n].keeper.tasks.get(&key) == Some(&Stage::Running { process }) {
            self.nodes[n].keeper.tasks.insert(key, Stage::Closing { process });
            self.nodes[n].keeper.pending.push(Record::Exited);
            self.keeper_turn(n);
        }
    }

    /// Its tree is empty: the finish may be told.
    pub(crate) fn keeper_closes(&mut self, n: usize, process: usize) {
        let found = &self.truth.processes[process];
        let (key, killed_for, found_job) = (found.key, found.killed_for, found.job);
        let Some((_, status)) = found.ended else { return };
        if self.nodes[n].keeper.tasks.get(&key) != Some(&Stage::Closing { process }) {
            return;
        }
        let mut fact = self.finish_of(n, key, finish_fact::End::WaitStatus(status));
        fact.set_killed_for(killed_for);
        fact.out_of_memory = self.plan.jobs[found_job].oom && status == 9;
        let keeper = &mut self.nodes[n].keeper;
        keeper.tasks.remove(&key);
        keeper.pending.push(Record::Closed { key, fact });
        self.keeper_turn(n);
    }

    fn phases(&self, n: usize) -> impl Iterator<Item = (Key, Phase)> {
        self.nodes[n].keeper.tasks.iter().map(|(key, stage)| {
            let phase = match stage {
                Stage::Spawning { .. } => Phase::Accepted,
                Stage::Running { process } | Stage::Closing { process } => {
                    match self.truth.processes[*process].stopped_ms {
                        Some(_) => Phase::Suspended,
                        None => Phase::Running,
                    }
                }
            };
            (*key, phase)
        })
    }

    fn manifest(&self, n: usize, nonce: u64) -> KeeperManifest {
        let keeper = &self.nodes[n].keeper;
        let live = self.phases(n).map(|(key, phase)| {
            // Known before its record is durable, which on a full disk takes long.
            let process = self.nodes[n].processes.get(&key);
            let start = process.map(|process| self.start_of(key, *process)).unwrap_or_default();
            ManifestItem {
                attempt: Some(key.attempt_ref()),
                token: Some(key.token()),
                phase: phase.into(),
                pid: start.pid,
                pid_start_ticks: start.pid_start_ticks,
                start_wall_ms: start.start_wall_ms,
                gpus: Vec::new(),
            }
        });
        let over = keeper.journal.ended.values().copied().chain(keeper.parked());
        let ended = over.map(|key| ManifestItem {
            attempt: Some(key.attempt_ref()),
            token: Some(key.token()),
            phase: Phase::Ended.into(),
            ..ManifestItem::default()
        });
        KeeperManifest {
            nonce,
            items: live.chain(ended).collect(),
            last_seq: keeper.journal.last_fact,
            last_order: keeper.journal.last_order,
        }
    }

    fn pong(&self, n: usize, nonce: u64) -> KeeperPong {
        let keeper = &self.nodes[n].keeper;
        let digest: Digest = self.phases(n).map(|(key, phase)| (key.attempt, phase)).collect();
        KeeperPong {
            nonce,
            boottime_ms: self.boot_clock(n),
            digest: digest.value(),
            last_seq: keeper.journal.last_fact,
            last_order: keeper.journal.last_order,
            disk_full: keeper.full || keeper.refuses > 3,
            problem: String::new(),
            live: keeper.tasks.len() as u32,
            first_seq: 1,
        }
    }
}

fn refused(key: Key, failure: StartFailure) -> Record {
    let (attempt, token) = (Some(key.attempt_ref()), Some(key.token()));
    Record::Refused { fact: RefusedFact { attempt, token, failure: Some(failure) } }
}

fn failure(step: &str, errno: i32, node_fault: bool) -> StartFailure {
    StartFailure { step: step.to_owned(), errno, node_fault, ..StartFailure::default() }
}
