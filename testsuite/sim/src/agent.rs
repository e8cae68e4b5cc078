//! The agent's process: the real core, its small file, its clock; and the socket to the keeper.

use crate::invariants::Happening;
use crate::journal::Journal;
use crate::keeper::Keeper;
use crate::network::{Side, Up};
use crate::process::Key;
use crate::rng::Rng;
use crate::world::{Event, World, local, real};
use docket_core::leader::SessionEnd;
use proto::v1::{KeeperEvent, KeeperHello, KeeperRequest, NodeResources, keeper_request};
use std::collections::{BTreeMap, VecDeque};
use worker_agent_core::{
    Action, AgentCore, CoreConfig, End, Event as Heard, Saved, SessionNo, Target, User,
};

/// The shell sends a tick at least twice a second.
const TICK_MS: u64 = 500;

/// A keeper that cannot be reached is tried again after this.
const KEEPER_RETRY_MS: u64 = 300;

/// One machine.
#[derive(Debug)]
pub(crate) struct Node {
    /// The agent's file.
    pub saved: Saved,
    pub core: Option<AgentCore>,
    pub frozen: bool,
    pub life: u64,
    pub started_ms: u64,
    pub process_id: Vec<u8>,
    pub inbox: Vec<Event>,
    timer_ms: Option<u64>,
    /// The file cannot be written so many times.
    pub save_fails: u32,
    /// Number of the connection to the keeper; messages of an older one are lost.
    pub epoch: u64,
    pub to_keeper: VecDeque<KeeperRequest>,
    pub from_keeper: VecDeque<KeeperEvent>,
    pub keeper: Keeper,
    /// Every process that its journal started.
    pub processes: BTreeMap<Key, usize>,
    pub booted: bool,
    /// It goes down for good with the next process that begins.
    pub falls_at_start: bool,
    pub boot: u64,
    pub wall_skew_ms: i64,
    /// How its clocks differ from real time, in 10,000.
    pub rate: i64,
    /// Agent ids that are gone with their disks.
    pub lost_ids: Vec<String>,
}

impl Node {
    pub fn new(n: usize, rng: &mut Rng) -> Node {
        Node {
            saved: Saved {
                agent_id: format!("agent-{n}-{:x}", rng.below(1 << 32)),
                ..Saved::default()
            },
            core: None,
            frozen: false,
            life: 0,
            started_ms: 0,
            process_id: Vec::new(),
            inbox: Vec::new(),
            timer_ms: None,
            save_fails: 0,
            epoch: 0,
            to_keeper: VecDeque::new(),
            from_keeper: VecDeque::new(),
            keeper: Keeper::new(rng.bytes()),
            processes: BTreeMap::new(),
            booted: true,
            falls_at_start: false,
            boot: 1,
            wall_skew_ms: 0,
            rate: 0,
            lost_ids: Vec::new(),
        }
    }

    pub fn agent_up(&self) -> bool {
        self.core.is_some()
    }

    /// Its disk is another one: nothing of its agent and its journal is left.
    pub fn lose_disk(&mut self, keeps_agent: bool, n: usize, rng: &mut Rng) {
        self.keeper.journal = Journal::new(rng.bytes());
        self.keeper.full = false;
        self.processes.clear();
        if !keeps_agent {
            let agent_id = format!("agent-{n}-{:x}", rng.below(1 << 32));
            let saved = Saved { agent_id, ..Saved::default() };
            self.lost_ids.push(std::mem::replace(&mut self.saved, saved).agent_id);
        }
    }
}

impl World {
    pub(crate) fn agent_start(&mut self, n: usize) {
        if self.nodes[n].agent_up() || !self.nodes[n].booted {
            return;
        }
        let (process_id, seed) = (self.rng.bytes(), self.rng.draw());
        let config = CoreConfig {
            name: format!("n{n}"),
            process_id: process_id.clone(),
            version: "sim".to_owned(),
            program: Vec::new(),
            resources: NodeResources {
                cpus: self.plan.cpus,
                mem_bytes: 1 << 30,
                ..Default::default()
            },
            heartbeat_interval_ms: self.plan.beat_ms,
            kill_grace_ms: 1_000,
            output_max_bytes: 0,
            runs_dir: b"/r".to_vec(),
            own_uid: 0,
            own_gid: 0,
            allow_root_jobs: true,
            seed,
        };
        let now = self.now;
        let node = &mut self.nodes[n];
        node.core = Some(AgentCore::new(config, node.saved.clone()));
        node.life += 1;
        (node.started_ms, node.frozen, node.timer_ms) = (now, false, None);
        node.process_id = process_id.clone();
        node.inbox.clear();
        self.truth.agents.insert(process_id, None);
        let life = self.nodes[n].life;
        self.trace.note(self.now, || format!("agent {n} starts, life {life}"));
        self.at(1, Event::KeeperDial { node: n, life });
        self.agent_step(n, Heard::Tick { load_permille: 0 });
    }

    /// `kill -9`: its kernel closes every socket.
    pub(crate) fn agent_dies(&mut self, n: usize, politely: bool) {
        if !self.nodes[n].agent_up() {
            return;
        }
        self.trace.note(self.now, || format!("agent {n} dies"));
        self.agent_gone(n);
        let open: Vec<u64> = self.conns_of_agent(n);
        for conn in open {
            let reset = !politely && self.rng.permille(300);
            let end = if reset { SessionEnd::Reset } else { SessionEnd::Fin };
            self.agent_closes(conn, end);
        }
        // The keeper's client is gone; what was under way to it is read to the end.
        if self.rng.permille(500) {
            self.nodes[n].to_keeper.clear();
        }
        self.nodes[n].from_keeper.clear();
    }

    /// The process is no more; what its sockets do is the caller's.
    pub(crate) fn agent_gone(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.core = None;
        node.frozen = false;
        node.inbox.clear();
        let process_id = node.process_id.clone();
        self.truth.agents.insert(process_id, Some(self.now));
    }

    pub(crate) fn agent_step(&mut self, n: usize, event: Heard) {
        let node = &mut self.nodes[n];
        let now = local(node.rate, self.now - node.started_ms.min(self.now));
        let Some(core) = &mut node.core else { return };
        let actions = core.step(event, now);
        let life = node.life;
        for action in actions {
            if self.nodes[n].life != life || !self.nodes[n].agent_up() {
                return;
            }
            match action {
                Action::Save(_) if self.nodes[n].save_fails > 0 => {
                    self.nodes[n].save_fails -= 1;
                    self.at(0, Event::NotSaved { node: n, life });
                    break;
                }
                other => self.agent_does(n, other),
            }
        }
        self.agent_timer(n);
    }

    fn agent_does(&mut self, n: usize, action: Action) {
        let life = self.nodes[n].life;
        match action {
            Action::Save(saved) => self.nodes[n].saved = saved,
            Action::Dial { session, target } => {
                let Target::Listed(number) = target else { return };
                let controller = (number % self.controllers.len() as u64) as usize;
                let delay = self.latency();
                self.at(delay, Event::Dialled { node: n, life, no: session, controller });
            }
            Action::ToLeader { session, message } => {
                if let Some(conn) = self.conn_of(n, session) {
                    self.send_up(conn, Up::Message(Box::new(message)));
                }
            }
            Action::Abandon(no) => {
                if let Some(conn) = self.conn_of(n, no)
                    && let Some(conn) = self.conns.get_mut(&conn)
                    && conn.agent == Side::Reading
                {
                    conn.agent = Side::Abandoned;
                }
            }
            Action::Release(no) => {
                if let Some(conn) = self.conn_of(n, no) {
                    self.agent_closes(conn, SessionEnd::Fin);
                }
            }
            Action::ReleaseBefore(no) => {
                for conn in self.conns_of_agent(n) {
                    if self.conns.get(&conn).is_some_and(|conn| conn.no < no) {
                        self.agent_closes(conn, SessionEnd::Fin);
                    }
                }
            }
            Action::ToKeeper(request) => self.ask_keeper(n, request),
            Action::LookUpUser(uid) => {
                let delay = self.rng.skewed(20);
                self.at(delay, Event::LookedUp { node: n, life, uid });
            }
            Action::End(end) => self.agent_ends(n, end),
            Action::Warn(text) => self.trace.note(self.now, || format!("agent {n} warns: {text}")),
            Action::Note(text) => self.trace.note(self.now, || format!("agent {n}: {text}")),
            Action::OpenBulk { .. } | Action::Sweep(_) => {}
        }
    }

    fn agent_ends(&mut self, n: usize, end: End) {
        if let End::Refused { reason } = &end {
            self.tell(&Happening::AgentRefused { node: n, reason });
        }
        self.agent_dies(n, true);
        let delay = self.rng.range(10, 8_000);
        self.at(delay, Event::AgentStart { node: n });
    }

    fn agent_timer(&mut self, n: usize) {
        let now = self.now;
        let node = &mut self.nodes[n];
        let Some(core) = &node.core else { return };
        let due = core
            .next_due_ms()
            .map_or(u64::MAX, |due| real(node.rate, due).saturating_add(node.started_ms));
        let at = due.clamp(now + 1, now + TICK_MS);
        if node.timer_ms.is_none_or(|timer| timer > at || timer <= now) {
            node.timer_ms = Some(at);
            let life = node.life;
            self.queue.push(at, Event::AgentTick { node: n, life, at });
        }
    }

    pub(crate) fn agent_tick(&mut self, n: usize, at: u64) {
        if self.nodes[n].timer_ms == Some(at) {
            self.nodes[n].timer_ms = None;
            self.agent_step(n, Heard::Tick { load_permille: 100 });
        }
    }

    pub(crate) fn dialled(&mut self, n: usize, no: SessionNo, controller: usize) {
        if self.links[n][controller].cut() {
            let life = self.nodes[n].life;
            let delay = self.rng.range(1_000, 5_000);
            return self.at(delay, Event::DialFailed { node: n, life, no });
        }
        if !self.controllers[controller].up {
            return self.dial_failed(n, no);
        }
        self.connect(n, no, controller);
        self.agent_step(n, Heard::Connected { session: no, address: String::new() });
    }

    pub(crate) fn dial_failed(&mut self, n: usize, no: SessionNo) {
        self.agent_step(n, Heard::Disconnected { session: no, why: "dial failed".to_owned() });
    }

    pub(crate) fn looked_up(&mut self, n: usize, uid: u32) {
        let user = User {
            name: "mia".to_owned(),
            gid: uid,
            groups: vec![uid],
            home: b"/".to_vec(),
            shell: b"/bin/sh".to_vec(),
        };
        self.agent_step(n, Heard::UserLookedUp { uid, user: Ok(user) });
    }

    /// The newest client wins: what was under way on an older connection is lost.
    pub(crate) fn keeper_dial(&mut self, n: usize) {
        let life = self.nodes[n].life;
        if !self.nodes[n].keeper.up {
            self.at(KEEPER_RETRY_MS, Event::KeeperDial { node: n, life });
            return self.agent_step(n, Heard::KeeperTrouble("no keeper".to_owned()));
        }
        self.keeper_link_reset(n);
        let hello = keeper_request::Kind::Hello(KeeperHello::default());
        self.ask_keeper(n, KeeperRequest { kind: Some(hello) });
    }

    fn keeper_link_reset(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.epoch += 1;
        node.to_keeper.clear();
        node.from_keeper.clear();
    }

    pub(crate) fn keeper_link_breaks(&mut self, n: usize) {
        self.keeper_link_reset(n);
        if self.nodes[n].agent_up() {
            let (life, epoch) = (self.nodes[n].life, self.nodes[n].epoch);
            self.at(1, Event::KeeperGone { node: n, life, epoch });
        }
    }

    pub(crate) fn keeper_gone(&mut self, n: usize) {
        self.agent_step(n, Heard::KeeperLost);
        let life = self.nodes[n].life;
        self.at(1, Event::KeeperDial { node: n, life });
    }

    fn ask_keeper(&mut self, n: usize, request: KeeperRequest) {
        let (epoch, delay) = (self.nodes[n].epoch, self.rng.skewed(4));
        self.nodes[n].to_keeper.push_back(request);
        self.at(delay, Event::ToKeeper { node: n, epoch });
    }
}
