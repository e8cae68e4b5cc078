//! A leader, its ledger and a clock; agents are what a test says on their behalf.

use crate::leader::{Action, Event, Leader, LeaderConfig, SessionEnd, SessionId};
use crate::ledger::{Ledger, Outcome, StateName};
use prost::Message as _;
use proto::v1::{
    self, agent_message::Kind as Up, command::Kind as Do, leader_message::Kind as Down,
};
use proto::{AttemptId, JobId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const TIMEOUT_MS: u64 = 30_000;
pub const BEAT_MS: u64 = 10_000;

/// The world. What the leader proposes is applied at once unless `hold` is set.
pub struct World {
    pub ledger: Ledger,
    pub leader: Leader,
    pub now: u64,
    pub term: u64,
    /// Proposals wait for [`World::commit`] instead of being applied at once.
    pub hold: bool,
    pub waiting: VecDeque<v1::Command>,
    /// A quorum answers each question at once; else they gather in `rounds`.
    pub confirms: bool,
    pub rounds: Vec<u64>,
    /// Kinds of what was proposed, in order, for tests to take.
    pub proposed: Vec<String>,
    sent: BTreeMap<SessionId, Vec<v1::LeaderMessage>>,
    closed: BTreeSet<SessionId>,
    index: u64,
    sessions: u64,
}

impl World {
    /// A leader of term 1 whose first entry is applied.
    pub fn new() -> Self {
        let mut world = World::dark();
        world.elect(1);
        world
    }

    /// A bootstrapped ledger, and nobody leads.
    pub fn dark() -> Self {
        let mut world = World {
            ledger: Ledger::new(),
            leader: Leader::new(LeaderConfig::default()),
            now: 1_000,
            term: 0,
            hold: false,
            waiting: VecDeque::new(),
            confirms: true,
            rounds: Vec::new(),
            proposed: Vec::new(),
            sent: BTreeMap::new(),
            closed: BTreeSet::new(),
            index: 0,
            sessions: 0,
        };
        let by = Some(v1::Requester { user: "root".into(), uid: 0, admin: true });
        let cluster_id = Some("c1".to_string());
        world.apply(vec![Do::Configure(v1::ConfigureCommand {
            by,
            cluster_id,
            ..Default::default()
        })]);
        world
    }

    pub fn elect(&mut self, term: u64) {
        self.term = term;
        self.event(Event::Elected { term });
        self.apply(vec![Do::Term(v1::TermCommand { leader: 1, term })]);
    }

    pub fn event(&mut self, event: Event<'_>) {
        let actions = self.leader.step(&self.ledger, self.now, event);
        for action in actions {
            match action {
                Action::Propose(command) => {
                    self.proposed.push(name(&command));
                    self.waiting.push_back(command);
                }
                Action::Send { session, message } => {
                    self.sent.entry(session).or_default().push(message);
                }
                Action::Close { session } => {
                    self.closed.insert(session);
                }
                Action::Confirm { round } => self.rounds.push(round),
            }
        }
        if !self.hold {
            self.commit();
        }
        if self.confirms {
            while !self.rounds.is_empty() {
                let round = self.rounds.remove(0);
                self.event(Event::Confirmed { round });
            }
        }
    }

    /// Applies what waits, and what that leads to.
    pub fn commit(&mut self) {
        let last = self.proposed.len().saturating_sub(10);
        assert!(last < 3_000, "it proposes without end: {:?}", &self.proposed[last..]);
        while !self.waiting.is_empty() {
            let batch: Vec<v1::Command> = self.waiting.drain(..).collect();
            self.apply_commands(batch);
        }
    }

    /// Applies what waits now, as one entry; what that leads to waits.
    pub fn commit_once(&mut self) {
        let batch: Vec<v1::Command> = self.waiting.drain(..).collect();
        self.apply_commands(batch);
    }

    pub fn apply(&mut self, kinds: Vec<Do>) -> Vec<Outcome> {
        let commands = kinds.into_iter().map(|kind| v1::Command { kind: Some(kind) }).collect();
        self.apply_commands(commands)
    }

    fn apply_commands(&mut self, commands: Vec<v1::Command>) -> Vec<Outcome> {
        let env = v1::EnvBlob::default().encode_to_vec();
        let [plain, leased, array, later] =
            [spec(), leased_spec(), array_spec(), later_spec()].map(|spec| spec.encode_to_vec());
        let blobs = [plain, env, leased, array, later];
        let proposal = v1::Proposal {
            level: proto::LEVEL,
            wall_ms: self.now,
            led_ms: self.now,
            blobs: (0..).zip(blobs).map(|(n, data)| v1::Blob { hash: hash(n), data }).collect(),
            commands,
        };
        self.index += 1;
        let applied = self.ledger.apply(self.index, &proposal);
        self.ledger.check();
        let (index, commands) = (self.index, &proposal.commands);
        self.event(Event::Applied { index, commands, applied: &applied });
        applied.outcomes
    }

    /// Lets time pass, tick by tick.
    pub fn pass(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.now < until {
            self.now = (self.now + LeaderConfig::default().tick_ms).min(until);
            self.event(Event::Tick { wall_ms: self.now });
        }
    }

    /// The leader's loop stands still that long, then takes a tick.
    pub fn stall(&mut self, ms: u64) {
        self.now += ms;
        self.event(Event::Tick { wall_ms: self.now });
    }

    pub fn open(&mut self, join: v1::Join) -> SessionId {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        self.event(Event::Opened { session, join, peer_addr: "memory".into() });
        session
    }

    /// Joins, and shows a manifest of these.
    pub fn joined(&mut self, join: v1::Join, items: Vec<v1::ManifestItem>) -> SessionId {
        let last_seq = join.next_seq - 1;
        let session = self.open(join);
        assert_eq!(self.take(session), ["welcome"]);
        self.manifest(session, 0, items, last_seq, 0);
        session
    }

    pub fn say(&mut self, session: SessionId, kind: Up) {
        let message = v1::AgentMessage { kind: Some(kind) };
        self.event(Event::Message { session, message });
    }

    pub fn manifest(
        &mut self,
        session: SessionId,
        asked: u64,
        items: Vec<v1::ManifestItem>,
        last_seq: u64,
        last_order: u64,
    ) {
        let page = v1::ManifestPage { items, last: true, last_seq, last_order, asked };
        self.say(session, Up::Manifest(page));
    }

    pub fn facts(&mut self, session: SessionId, from: u64, to: u64, facts: Vec<v1::Fact>) {
        self.say(session, Up::Facts(batch(from, to, facts)));
    }

    pub fn beat(&mut self, session: SessionId, digest: u64, last_seq: u64, last_order: u64) {
        self.say(
            session,
            Up::Heartbeat(v1::Heartbeat {
                digest,
                last_seq,
                last_order,
                keeper_answers: true,
                ..Default::default()
            }),
        );
    }

    /// Beats that say nothing of interest, for that long.
    pub fn beats(&mut self, session: SessionId, ms: u64) {
        for _ in 0..ms / BEAT_MS {
            self.pass(BEAT_MS);
            let beat = v1::Heartbeat { keeper_answers: false, ..Default::default() };
            self.say(session, Up::Heartbeat(beat));
        }
        self.pass(ms % BEAT_MS);
    }

    pub fn goodbye(&mut self, session: SessionId, kind: v1::GoodbyeKind) {
        self.say(session, Up::Goodbye(v1::Goodbye { kind: kind.into() }));
    }

    pub fn close(&mut self, session: SessionId, end: SessionEnd) {
        self.event(Event::Closed { session, end });
    }

    pub fn submit(&mut self) -> JobId {
        self.submit_of(0)
    }

    /// A job that may be tried again unseen, so its attempts have leases.
    pub fn submit_leased(&mut self) -> JobId {
        self.submit_of(2)
    }

    /// An array of the tasks 0 to 4.
    pub fn submit_array(&mut self) -> JobId {
        self.submit_of(3)
    }

    /// A job that does not start before [`LATER_MS`].
    pub fn submit_later(&mut self) -> JobId {
        self.submit_of(4)
    }

    fn submit_of(&mut self, spec: u8) -> JobId {
        let by = Some(v1::Requester { user: "mia".into(), uid: 1000, admin: false });
        let request_id = format!("key-{}", self.index);
        let (spec_hash, env_hash) = (hash(spec), hash(1));
        let submit = v1::SubmitCommand {
            by,
            request_id,
            user_key: true,
            spec_hash,
            env_hash,
            stdin_hash: None,
        };
        match self.apply(vec![Do::Submit(submit)]).first() {
            Some(Outcome::Submitted { job, .. }) => *job,
            other => panic!("the submit came to {other:?}"),
        }
    }

    pub fn cancel(&mut self, job: JobId, signal: Option<u32>) {
        let by = Some(v1::Requester { user: "mia".into(), uid: 1000, admin: false });
        let request_id = format!("cancel-{}", self.index);
        let jobs = vec![job.0];
        self.apply(vec![Do::Cancel(v1::CancelCommand {
            tasks: Vec::new(),
            by,
            request_id,
            jobs,
            signal,
        })]);
    }

    /// A job that runs on the agent of that session, as its first two facts told.
    pub fn running(&mut self, session: SessionId, seq: u64) -> JobId {
        let job = self.submit();
        assert_eq!(self.take(session), [format!("run {job}/1")]);
        self.facts(session, seq, seq + 1, vec![started(seq + 1, job)]);
        assert_eq!(self.take(session), [format!("ack {}", seq + 1)]);
        assert_eq!(self.state(job), StateName::Run);
        job
    }

    pub fn state(&self, job: JobId) -> StateName {
        self.ledger.job(job).unwrap().state_name()
    }

    /// State and reason, as `EXIT AgentDied`.
    pub fn end(&self, job: JobId) -> String {
        let job = self.ledger.job(job).unwrap();
        let reason = job.state().ended().map(|ended| format!(" {:?}", ended.reason.kind()));
        format!("{}{}", job.state_name(), reason.unwrap_or_default())
    }

    /// Order id of the newest run order of a job.
    pub fn order(&self, job: JobId) -> u64 {
        self.ledger.job(job).unwrap().grant().unwrap().order.0
    }

    /// What was sent on a session since it was last asked, in short words. Every message must carry
    /// the term and, but for refusals, an incarnation.
    pub fn take(&mut self, session: SessionId) -> Vec<String> {
        let messages = self.sent.remove(&session).unwrap_or_default();
        messages.iter().for_each(|message| self.stamped(message));
        messages.iter().filter_map(words).collect()
    }

    /// The same, unabridged.
    pub fn take_raw(&mut self, session: SessionId) -> Vec<Down> {
        let messages = self.sent.remove(&session).unwrap_or_default();
        messages.into_iter().filter_map(|message| message.kind).collect()
    }

    fn stamped(&self, message: &v1::LeaderMessage) {
        let refusal = matches!(message.kind, Some(Down::Refused(_)));
        assert!(refusal || (message.term == self.term && message.incarnation > 0));
    }

    pub fn closed(&self, session: SessionId) -> bool {
        self.closed.contains(&session)
    }

    /// Kinds proposed since it was last asked.
    pub fn proposals(&mut self) -> Vec<String> {
        std::mem::take(&mut self.proposed)
    }

    pub fn reachable(&self) -> Vec<String> {
        self.leader.reachable().into_iter().collect()
    }
}

fn words(message: &v1::LeaderMessage) -> Option<String> {
    let of = |attempt: &Option<v1::AttemptRef>| AttemptId::from_wire(attempt.as_ref()).unwrap();
    Some(match message.kind.as_ref().unwrap() {
        Down::Welcome(_) => "welcome".into(),
        Down::Run(order) => format!("run {}", of(&order.attempt)),
        Down::Kill(v1::KillOrder { attempt, signal: Some(signal), .. }) => {
            format!("signal {} {signal}", of(attempt))
        }
        Down::Kill(order) => format!("kill {} {:?}", of(&order.attempt), order.cause()),
        Down::Ack(ack) => format!("ack {}", ack.to),
        Down::Resend(resend) => format!("resend from {}", resend.from),
        Down::Later(later) => format!("later {}", later.seq),
        Down::SendManifest(ask) => format!("manifest {}", ask.nonce),
        Down::Ping(ping) => format!("ping {}", ping.nonce),
        Down::Goodbye(_) => "goodbye".into(),
        Down::Refused(refused) if refused.fatal => format!("refused for good: {}", refused.reason),
        Down::Refused(refused) => format!("refused: {}", refused.reason),
        // Each heartbeat has one; tests of heartbeats look at it unabridged.
        Down::Heartbeat(_) => return None,
        other => format!("{other:?}"),
    })
}

fn name(command: &v1::Command) -> String {
    match command.kind.as_ref().unwrap() {
        Do::AgentUp(up) => format!("up {}", up.join.as_ref().unwrap().incarnation),
        Do::AgentDown(down) => format!("down {} {:?}", down.incarnation, down.cause()),
        Do::Unknown(unknown) => format!("unknown {}", unknown.incarnation),
        Do::Facts(v1::FactsCommand { facts: Some(facts), .. }) => {
            format!("facts {}..={}", facts.from, facts.to)
        }
        Do::Manifest(page) => format!("manifest page {}", page.page),
        Do::Assign(assign) => {
            format!("assign {}", AttemptId::from_wire(assign.attempt.as_ref()).unwrap())
        }
        Do::Tick(_) => "tick".into(),
        other => format!("{other:?}"),
    }
}

fn hash(n: u8) -> Vec<u8> {
    vec![n; 32]
}

fn spec() -> v1::JobSpec {
    v1::JobSpec { argv: vec![b"true".to_vec()], dir: b"/".to_vec(), cpus: 1, ..Default::default() }
}

/// What a lease of [`World::submit_leased`] takes, ms.
pub const LEASE_MS: u64 = 40_000;

fn array_spec() -> v1::JobSpec {
    let ranges = vec![v1::TaskRange { first: 0, last: 4, step: 1 }];
    v1::JobSpec { array: Some(v1::ArraySpec { ranges, ..Default::default() }), ..spec() }
}

fn leased_spec() -> v1::JobSpec {
    let retry_on = vec![v1::ExitKind::AgentDied.into(), v1::ExitKind::Lost.into()];
    v1::JobSpec { retries: 1, retry_on, fence_after_ms: Some(LEASE_MS), ..spec() }
}

/// Agent `a1`, its process 7, in that session.
pub fn join(incarnation: u64) -> v1::Join {
    v1::Join {
        agent_id: "a1".into(),
        name: "n1".into(),
        incarnation,
        process_id: vec![7],
        journal_id: vec![9],
        boot_id: vec![1],
        cluster_id: "c1".into(),
        generation: 1,
        protocol: proto::PROTOCOL,
        level: proto::LEVEL,
        resources: Some(v1::NodeResources { cpus: 2, mem_bytes: 1 << 30, ..Default::default() }),
        next_seq: 1,
        heartbeat_interval_ms: BEAT_MS,
        ..Default::default()
    }
}

/// The same agent after a restart: another process, the journal as far as `next_seq`.
pub fn rejoin(incarnation: u64, process: u8, next_seq: u64) -> v1::Join {
    v1::Join { process_id: vec![process], next_seq, ..join(incarnation) }
}

pub fn attempt(job: JobId) -> Option<v1::AttemptRef> {
    Some(v1::AttemptRef { job: job.0, task: None, attempt: 1 })
}

pub fn token() -> Option<v1::Token> {
    Some(v1::Token { generation: 1, attempt: 1 })
}

pub fn item(job: JobId, phase: v1::Phase) -> v1::ManifestItem {
    v1::ManifestItem {
        attempt: attempt(job),
        token: token(),
        phase: phase.into(),
        pid: 100,
        ..Default::default()
    }
}

pub fn batch(from: u64, to: u64, facts: Vec<v1::Fact>) -> v1::Facts {
    v1::Facts { journal_id: vec![9], from, to, facts }
}

pub fn started(seq: u64, job: JobId) -> v1::Fact {
    let start =
        v1::StartFact { attempt: attempt(job), token: token(), pid: 100, ..Default::default() };
    v1::Fact { seq, kind: Some(v1::fact::Kind::Start(start)) }
}

pub fn finished(seq: u64, job: JobId, code: u32) -> v1::Fact {
    let finish = v1::FinishFact {
        attempt: attempt(job),
        token: token(),
        end: Some(v1::finish_fact::End::WaitStatus(code << 8)),
        finish_wall_ms: 5,
        ..Default::default()
    };
    v1::Fact { seq, kind: Some(v1::fact::Kind::Finish(finish)) }
}

/// The wall time before which some jobs do not start.
pub const LATER_MS: u64 = 20_000;

fn later_spec() -> v1::JobSpec {
    v1::JobSpec { begin_wall_ms: Some(LATER_MS), ..spec() }
}
