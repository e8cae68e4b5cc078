//! A world for the agent's core: a clock, a keeper and a controller played by hand. Every action is
//! kept until a test takes it.
#![allow(dead_code, reason = "each test program uses its part")]

use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_event::Kind as FromKeeper;
use proto::v1::keeper_request::Kind as ToKeeper;
use proto::v1::leader_message::Kind as Down;
use worker_agent_core::{Action, AgentCore, CoreConfig, Event, Saved, SessionNo, User};

/// Between heartbeats.
pub const INTERVAL_MS: u64 = 1_000;
/// Of the controller.
pub const TIMEOUT_MS: u64 = 5_000;
/// The keeper's journal.
pub const JOURNAL: [u8; 3] = [7, 7, 7];

/// One agent.
pub struct World {
    pub core: AgentCore,
    pub now: u64,
    pub term: u64,
    /// Actions not taken by the test yet.
    pub actions: Vec<Action>,
}

pub fn config() -> CoreConfig {
    CoreConfig {
        name: "n1".into(),
        process_id: vec![9; 16],
        version: "0.1.0".into(),
        program: b"/bin/docket".to_vec(),
        resources: v1::NodeResources { cpus: 4, ..v1::NodeResources::default() },
        heartbeat_interval_ms: INTERVAL_MS,
        kill_grace_ms: 10_000,
        output_max_bytes: 1 << 30,
        runs_dir: b"/d/runs".to_vec(),
        own_uid: 0,
        own_gid: 0,
        allow_root_jobs: false,
        seed: 1,
    }
}

pub fn identity() -> Saved {
    Saved { agent_id: "a1".into(), ..Saved::default() }
}

pub fn ada() -> User {
    User {
        name: "ada".into(),
        gid: 100,
        groups: vec![100, 27],
        home: b"/home/ada".to_vec(),
        shell: b"/bin/sh".to_vec(),
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(config(), identity())
    }

    pub fn with(config: CoreConfig, saved: Saved) -> Self {
        let core = AgentCore::new(config, saved);
        let mut world = World { core, now: 1_000, term: 3, actions: Vec::new() };
        world.happens(Event::Tick { load_permille: 0 });
        world
    }

    /// An agent that joined as session 1, its own traffic of that taken.
    pub fn joined() -> Self {
        let mut world = Self::new();
        world.keeper_welcomes(0);
        world.joins(1);
        world.actions.clear();
        world
    }

    pub fn happens(&mut self, event: Event) {
        let actions = self.core.step(event, self.now);
        self.actions.extend(actions);
    }

    /// Time passes in ticks of at most 100 ms.
    pub fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.now = end.min(self.now + 100);
            self.happens(Event::Tick { load_permille: 0 });
        }
    }

    /// The process stands still, then ticks once.
    pub fn stall(&mut self, ms: u64) {
        self.now += ms;
        self.happens(Event::Tick { load_permille: 0 });
    }

    pub fn keeper_welcome(acked: u64) -> v1::KeeperWelcome {
        v1::KeeperWelcome {
            journal_id: JOURNAL.to_vec(),
            boot_id: vec![1],
            next_seq: acked + 1,
            acked,
            version: "0.1.0".into(),
            pid: 1,
            limits: "v2".into(),
            limits_by: Some(v1::LimitsBy {
                mem: "v2".into(),
                cpus: "v1".into(),
                pids: "none".into(),
            }),
            first_seq: 0,
        }
    }

    pub fn keeper_welcomes(&mut self, acked: u64) {
        self.keeper(FromKeeper::Welcome(Self::keeper_welcome(acked)));
    }

    pub fn keeper(&mut self, kind: FromKeeper) {
        self.happens(Event::FromKeeper(v1::KeeperEvent { kind: Some(kind) }));
    }

    /// The keeper answers every ping that is waiting.
    pub fn keeper_pongs(&mut self, boottime_ms: u64) {
        self.pongs(boottime_ms, 0);
    }

    /// The same, of a journal that begins at `first_seq`.
    pub fn keeper_pongs_from(&mut self, first_seq: u64) {
        self.pongs(1, first_seq);
    }

    fn pongs(&mut self, boottime_ms: u64, first_seq: u64) {
        let nonces: Vec<u64> = self
            .sent_down()
            .iter()
            .filter_map(|request| match request {
                ToKeeper::Ping(ping) => Some(ping.nonce),
                _ => None,
            })
            .collect();
        for nonce in nonces {
            let pong = v1::KeeperPong {
                nonce,
                boottime_ms,
                digest: 5,
                last_seq: 8,
                last_order: 6,
                first_seq,
                ..v1::KeeperPong::default()
            };
            self.keeper(FromKeeper::Pong(pong));
        }
    }

    pub fn facts(&mut self, from: u64, to: u64) {
        let journal_id = JOURNAL.to_vec();
        self.keeper(FromKeeper::Facts(v1::Facts { journal_id, from, to, facts: vec![] }));
    }

    pub fn connects(&mut self, no: u64) {
        let address = "10.0.0.1:5".into();
        self.happens(Event::Connected { session: SessionNo(no), address });
    }

    pub fn welcome() -> v1::Welcome {
        let cluster_id = "c1".into();
        v1::Welcome { cluster_id, generation: 1, heartbeat_timeout_ms: TIMEOUT_MS }
    }

    /// Connects session `no` and welcomes it.
    pub fn joins(&mut self, no: u64) {
        self.connects(no);
        self.leader(no, Down::Welcome(Self::welcome()));
    }

    /// The controller of session `no` says something, with its term and the right incarnation.
    pub fn leader(&mut self, no: u64, kind: Down) {
        let (term, incarnation) = (self.term, self.core.saved().incarnation);
        self.leader_says(no, term, incarnation, kind);
    }

    pub fn leader_says(&mut self, no: u64, term: u64, incarnation: u64, kind: Down) {
        let message = v1::LeaderMessage { term, incarnation, kind: Some(kind) };
        self.happens(Event::FromLeader { session: SessionNo(no), message });
    }

    pub fn breaks(&mut self, no: u64) {
        let why = "reset".into();
        self.happens(Event::Disconnected { session: SessionNo(no), why });
    }

    /// Passes time until the core dials; the number of the new session.
    pub fn dials(&mut self) -> u64 {
        for _ in 0..2_000 {
            let dialled = self.actions.iter().find_map(|action| match action {
                Action::Dial { session, .. } => Some(session.0),
                _ => None,
            });
            if let Some(no) = dialled {
                self.actions.retain(|action| !matches!(action, Action::Dial { .. }));
                return no;
            }
            self.pass(10);
        }
        panic!("no dial within 20 s");
    }

    /// Takes what was sent to the controller.
    pub fn sent_up(&mut self) -> Vec<Up> {
        let mut taken = Vec::new();
        self.actions.retain(|action| match action {
            Action::ToLeader { message, .. } => {
                taken.extend(message.kind.clone());
                false
            }
            _ => true,
        });
        taken
    }

    /// Takes what was sent to the keeper.
    pub fn sent_down(&mut self) -> Vec<ToKeeper> {
        let mut taken = Vec::new();
        self.actions.retain(|action| match action {
            Action::ToKeeper(request) => {
                taken.extend(request.kind.clone());
                false
            }
            _ => true,
        });
        taken
    }

    /// Takes the warnings.
    pub fn warnings(&mut self) -> Vec<String> {
        let mut taken = Vec::new();
        self.actions.retain(|action| match action {
            Action::Warn(text) => {
                taken.push(text.clone());
                false
            }
            _ => true,
        });
        taken
    }

    pub fn heartbeats(&mut self) -> Vec<v1::Heartbeat> {
        let sent = self.sent_up().into_iter();
        sent.filter_map(|kind| if let Up::Heartbeat(beat) = kind { Some(beat) } else { None })
            .collect()
    }

    pub fn has(&self, wanted: &Action) -> bool {
        self.actions.contains(wanted)
    }
}

/// A run order of ada for attempt `job`/1.
pub fn run_order(job: u64) -> v1::RunOrder {
    use prost::Message as _;
    let spec = v1::JobSpec {
        name: "sim".into(),
        dir: b"/jobs".to_vec(),
        stdout_pattern: Some(b"%x-%j.log".to_vec()),
        ..v1::JobSpec::default()
    };
    v1::RunOrder {
        order_id: job,
        attempt: attempt(job),
        token: token(),
        spec: spec.encode_to_vec(),
        env: v1::EnvBlob { vars: vec![b"A=1".to_vec()] }.encode_to_vec(),
        user: "ada".into(),
        uid: 1000,
        cpus: 2,
        mem_bytes: 77,
        ..v1::RunOrder::default()
    }
}

pub fn kill_order(job: u64) -> v1::KillOrder {
    v1::KillOrder {
        order_id: 100 + job,
        attempt: attempt(job),
        token: token(),
        cause: v1::KillCause::Cancel.into(),
        grace_ms: None,
        signal: None,
    }
}

pub fn attempt(job: u64) -> Option<v1::AttemptRef> {
    Some(v1::AttemptRef { job, task: None, attempt: 1 })
}

pub fn token() -> Option<v1::Token> {
    Some(v1::Token { generation: 1, attempt: 1 })
}
