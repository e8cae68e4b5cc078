//! One term of leading: its sessions, its agents, and which duty each event belongs to.

use super::lease::{self, Leases};
use super::life::{Life, Pulse};
use super::newcomer::Newcomer;
use super::pace::Pace;
use super::placing::Placing;
use super::session::Session;
use super::storm::{Gate, JOINS_MAX, PAGES_MAX};
use super::timers::Timer;
use super::turn::{Refusal, Turn};
use super::{Event, SessionId};
use super::{facts, heartbeat, join, liveness, manifest, outcomes, placing, timers};
use crate::ledger::{self, DownWhy};
use proto::v1::{AgentMessage, DownCause, GoodbyeAnswer, agent_message, leader_message};
use std::collections::{BTreeMap, BTreeSet};

/// One term.
#[derive(Debug)]
pub(super) struct Reign {
    pub term: u64,
    /// Its first entry is applied: joins are taken, led time is known.
    pub begun: Option<Begun>,
    pub pace: Pace,
    /// Streams whose Join is not answered yet.
    pub newcomers: BTreeMap<SessionId, Newcomer>,
    /// The newest session of each agent that has one.
    pub sessions: BTreeMap<SessionId, Session>,
    /// By agent id: every agent of the ledger.
    pub lives: BTreeMap<String, Life>,
    pub placing: Placing,
    pub timer: Timer,
    pub leases: Leases,
    /// Joins that are in the log or wait for that.
    pub joins: Gate,
    /// The same of manifest pages.
    pub pages: Gate,
    nonces: u64,
}

/// Where led time stood when the term's first entry was applied (design 2, "Two times").
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub led_ms: u64,
    pub at_ms: u64,
}

impl Reign {
    pub fn new(term: u64, now: u64, rounds: u64) -> Self {
        Reign {
            term,
            begun: None,
            pace: Pace::new(now),
            newcomers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            lives: BTreeMap::new(),
            placing: Placing::default(),
            timer: Timer::default(),
            leases: Leases::after(rounds),
            joins: Gate::new(JOINS_MAX),
            pages: Gate::new(PAGES_MAX),
            nonces: 0,
        }
    }

    pub fn step(&mut self, turn: &mut Turn<'_>, event: Event<'_>) {
        turn.term = self.term;
        self.pace.observe(turn.now);
        match event {
            Event::Applied { index, commands, applied } => {
                outcomes::applied(self, turn, index, commands, applied);
            }
            Event::Opened { session, join, peer_addr: _ } => {
                join::opened(self, turn, session, join);
            }
            Event::Message { session, message } => self.message(turn, session, message),
            Event::Closed { session, end } => liveness::closed(self, turn, session, end),
            Event::Confirmed { round } => lease::confirmed(self, turn, round),
            Event::Tick { wall_ms } => self.tick(turn, wall_ms),
            // The caller ends a reign and begins one.
            Event::Elected { .. } | Event::Deposed => {}
        }
    }

    /// The first entry of the term is applied: every agent of the ledger is counted from now on,
    /// and whoever waited may join.
    pub fn begin(&mut self, turn: &mut Turn<'_>) {
        if self.begun.is_some() {
            return;
        }
        self.begun = Some(Begun { led_ms: turn.ledger.led(), at_ms: turn.now });
        for agent in turn.ledger.agents() {
            let life = Life::inherited(agent.incarnation(), inherited_pulse(agent, turn.now));
            self.lives.entry(agent.id().to_string()).or_insert(life);
        }
        self.placing.look_again();
        for id in self.newcomers.keys().copied().collect::<Vec<_>>() {
            join::proceed(self, turn, id);
        }
    }

    /// Led time now; `None` before the term has begun.
    pub fn led_ms(&self, now_ms: u64) -> Option<u64> {
        let begun = self.begun?;
        Some(begun.led_ms.saturating_add(now_ms.saturating_sub(begun.at_ms)))
    }

    /// It leads no longer: agents look for the next leader.
    pub fn end(self, turn: &mut Turn<'_>) {
        for id in self.newcomers.into_keys().chain(self.sessions.into_keys()) {
            turn.send_away(id, join::not_leading());
        }
    }

    /// A message of a stream, also one that waited for the Welcome.
    pub fn message(&mut self, turn: &mut Turn<'_>, id: SessionId, message: AgentMessage) {
        if self.newcomers.contains_key(&id) {
            return join::early(self, turn, id, message);
        }
        // An older session of an agent, or one that was sent away: nothing of it counts.
        let Some(session) = self.sessions.get(&id) else { return };
        let agent = session.join.agent_id.clone();
        let Some(kind) = message.kind else {
            return self.expel(turn, id, protocol("an empty message"));
        };
        liveness::heard(self, turn, id, &agent, &kind);
        match kind {
            agent_message::Kind::Join(_) => self.expel(turn, id, protocol("a second Join")),
            agent_message::Kind::Manifest(page) => manifest::take(self, turn, id, page),
            agent_message::Kind::Facts(batch) => facts::take(self, turn, id, batch),
            agent_message::Kind::Heartbeat(beat) => heartbeat::take(self, turn, id, &agent, beat),
            agent_message::Kind::Goodbye(goodbye) => self.goodbye(turn, id, goodbye.kind()),
            agent_message::Kind::Pong(pong) => join::pong(self, turn, id, pong.nonce),
        }
    }

    /// Sends a joined session away. Its agent's silence is counted from its last word.
    pub fn expel(&mut self, turn: &mut Turn<'_>, id: SessionId, refusal: Refusal) {
        turn.send_away(id, refusal);
        liveness::closed(self, turn, id, super::SessionEnd::Local);
    }

    /// Numbers of Pings and manifests: never 0, which stands for the manifest of the join.
    pub fn next_nonce(&mut self) -> u64 {
        self.nonces += 1;
        self.nonces
    }

    /// Agents that get orders now.
    pub fn reachable(&self) -> BTreeSet<String> {
        self.lives
            .iter()
            .filter(|(_, life)| !life.is_lost() && life.refuses().is_none())
            .filter(|(_, life)| {
                life.session
                    .and_then(|id| self.sessions.get(&id))
                    .is_some_and(Session::takes_orders)
            })
            .map(|(agent, _)| agent.clone())
            .collect()
    }

    /// The agent's newest session, if it is open and may get orders.
    pub fn orderly(&mut self, agent: &str) -> Option<&mut Session> {
        let life = self.lives.get(agent).filter(|life| !life.is_lost())?;
        self.sessions.get_mut(&life.session?).filter(|session| session.takes_orders())
    }

    fn goodbye(&mut self, turn: &mut Turn<'_>, id: SessionId, kind: proto::v1::GoodbyeKind) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.goodbye = Some(kind);
            session.send(turn, leader_message::Kind::Goodbye(GoodbyeAnswer {}));
        }
    }

    fn tick(&mut self, turn: &mut Turn<'_>, wall_ms: u64) {
        let passed = self.pace.pass(turn.now);
        liveness::sweep(self, turn, passed);
        join::tick(self, turn);
        self.pages.tick(turn);
        for session in self.sessions.values_mut() {
            facts::tick(session, turn);
            manifest::advance(&mut self.pages, session, turn);
        }
        manifest::pump(self, turn);
        lease::tick(self, turn);
        let lost = |session: &&Session| manifest::lost(session, turn);
        for id in self.sessions.values().filter(lost).map(|s| s.id).collect::<Vec<_>>() {
            manifest::ask(self, turn, id);
        }
        timers::tick(self, turn, wall_ms);
        self.placing.tick(turn);
        placing::run(self, turn);
    }
}

/// An agent that was there when the term began is silent until it joins; one that is known to be
/// gone is not counted.
fn inherited_pulse(agent: &ledger::Agent, now: u64) -> Pulse {
    let lost = |cause| Pulse::Lost { proposed_ms: now, cause };
    match agent.session() {
        ledger::Session::Down(DownWhy::Died) => lost(DownCause::Rdhup),
        ledger::Session::Down(DownWhy::Silent) => lost(DownCause::Silence),
        ledger::Session::Down(DownWhy::Left) => lost(DownCause::Leave),
        ledger::Session::Down(DownWhy::Goodbye) => lost(DownCause::Goodbye),
        ledger::Session::Down(DownWhy::NewTerm)
        | ledger::Session::Joining
        | ledger::Session::Up => Pulse::Counting { quiet_ms: 0 },
    }
}

/// What a peer that does not keep to the protocol is told.
pub(super) fn protocol(what: &str) -> Refusal {
    Refusal { reason: format!("the session broke the protocol: {what}"), fatal: false }
}
