//! Connections between agents and controllers, as TCP gives them: each direction keeps its order,
//! a cut holds everything back and lets it go late, an end travels behind what was sent before it.

use crate::watch::Watch;
use crate::world::{Event, World};
use docket_core::leader::{Event as Leads, SessionEnd, SessionId};
use proto::v1::{AgentMessage, LeaderMessage, agent_message};
use std::collections::VecDeque;
use worker_agent_core::{Event as Heard, SessionNo};

/// Way up.
#[derive(Debug)]
pub(crate) enum Up {
    Message(Box<AgentMessage>),
    End(SessionEnd),
}

/// Way down.
#[derive(Debug)]
pub(crate) enum Down {
    Message(Box<LeaderMessage>),
    End,
}

/// What the agent does with its side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Reading,
    /// Given up, and open all the same.
    Abandoned,
    Closed,
}

/// One connection with its session stream.
#[derive(Debug)]
pub(crate) struct Conn {
    pub node: usize,
    pub controller: usize,
    pub agent_life: u64,
    pub controller_life: u64,
    pub no: SessionNo,
    pub agent: Side,
    pub controller_open: bool,
    /// Its Join came.
    pub joined: bool,
    pub agent_id: String,
    pub incarnation: u64,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    held_up: u32,
    held_down: u32,
    pub watch: Watch,
}

impl Conn {
    /// Whether it is an open session with that controller.
    pub fn serves(&self, controller: usize) -> bool {
        let open = self.joined && self.controller_open && self.agent == Side::Reading;
        open && self.controller == controller
    }
}

/// Between one node and one controller.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub up_cut: bool,
    pub down_cut: bool,
    /// Since when nothing comes up, if so.
    pub silent_ms: Option<u64>,
    /// A kernel gives its connections up for certain, if it is long.
    pub resets: bool,
    /// Of the newest cut; an older one's heal is void.
    pub serial: u64,
}

impl Link {
    pub fn cut(&self) -> bool {
        self.up_cut || self.down_cut
    }
}

impl World {
    pub(crate) fn connect(&mut self, n: usize, no: SessionNo, controller: usize) {
        self.next_conn += 1;
        let conn = Conn {
            node: n,
            controller,
            agent_life: self.nodes[n].life,
            controller_life: self.controllers[controller].life,
            no,
            agent: Side::Reading,
            controller_open: true,
            joined: false,
            agent_id: String::new(),
            incarnation: 0,
            up: VecDeque::new(),
            down: VecDeque::new(),
            held_up: 0,
            held_down: 0,
            watch: Watch::default(),
        };
        self.conns.insert(self.next_conn, conn);
    }

    pub(crate) fn conn_of(&self, n: usize, no: SessionNo) -> Option<u64> {
        let life = self.nodes[n].life;
        let mut open = self.conns.iter().rev();
        open.find(|(_, conn)| conn.node == n && conn.agent_life == life && conn.no == no)
            .map(|(id, _)| *id)
    }

    pub(crate) fn conns_of_agent(&self, n: usize) -> Vec<u64> {
        let life = self.nodes[n].life;
        let own =
            |conn: &Conn| conn.node == n && conn.agent_life == life && conn.agent != Side::Closed;
        self.conns.iter().filter(|(_, conn)| own(conn)).map(|(id, _)| *id).collect()
    }

    pub(crate) fn send_up(&mut self, id: u64, item: Up) {
        let delay = self.latency();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.agent == Side::Closed {
            return;
        }
        conn.up.push_back(item);
        self.at(delay, Event::Up { conn: id });
    }

    pub(crate) fn send_down(&mut self, id: u64, item: Down) {
        let delay = self.latency();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.controller_open {
            return;
        }
        if let Down::Message(message) = &item {
            conn.watch.sent(message);
        }
        conn.down.push_back(item);
        self.at(delay, Event::Down { conn: id });
    }

    /// The agent's socket is closed; the end travels behind what was sent.
    pub(crate) fn agent_closes(&mut self, id: u64, end: SessionEnd) {
        self.send_up(id, Up::End(end));
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.agent = Side::Closed;
        }
    }

    /// What the peer's kernel has and its process, which stands still, has not read: a reset that
    /// comes behind it takes none of it away. Upwards, then downwards.
    fn unread(&self, id: u64) -> (usize, usize) {
        let Some(conn) = self.conns.get(&id) else { return (0, 0) };
        let up = |event: &&Event| matches!(event, Event::Up { conn } if *conn == id);
        let down = |event: &&Event| matches!(event, Event::Down { conn } if *conn == id);
        let (controller, node) = (&self.controllers[conn.controller], &self.nodes[conn.node]);
        (controller.inbox.iter().filter(up).count(), node.inbox.iter().filter(down).count())
    }

    /// The machine is gone: nothing more comes, not even an end.
    pub(crate) fn agent_vanishes(&mut self, n: usize) {
        for id in self.conns_of_agent(n) {
            let (unread, _) = self.unread(id);
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.agent = Side::Closed;
            conn.up.truncate(unread);
            conn.held_up = 0;
            if self.rng.permille(500) {
                // The next machine of that address knows nothing of it.
                let delay = self.rng.range(500, 60_000);
                self.at(delay, Event::Reset { conn: id });
            }
        }
    }

    /// An answer from a machine that does not know the connection.
    pub(crate) fn reset(&mut self, id: u64) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.up.clear();
            conn.up.push_back(Up::End(SessionEnd::Reset));
            self.up_arrives(id);
        }
    }

    /// What a cut holds back reaches nobody's socket, whoever stands still behind it.
    pub(crate) fn held_on_the_way(&mut self, event: &Event) -> bool {
        let (Event::Up { conn: id } | Event::Down { conn: id }) = event else { return false };
        let Some(conn) = self.conns.get_mut(id) else { return false };
        let link = &self.links[conn.node][conn.controller];
        match event {
            Event::Up { .. } if link.up_cut => conn.held_up += 1,
            Event::Down { .. } if link.down_cut => conn.held_down += 1,
            _ => return false,
        }
        true
    }

    pub(crate) fn up_arrives(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if self.links[conn.node][conn.controller].up_cut {
            conn.held_up += 1;
            return;
        }
        let Some(item) = conn.up.pop_front() else { return };
        let (c, life, n) = (conn.controller, conn.controller_life, conn.node);
        if !conn.controller_open || self.controllers[c].life != life || !self.controllers[c].up {
            if conn.agent == Side::Closed {
                self.conns.remove(&id);
            }
            return;
        }
        let session = SessionId(id);
        match item {
            Up::Message(message) if conn.joined => {
                if let Some(agent_message::Kind::Goodbye(_)) = &message.kind {
                    self.truth.goodbyes.insert((conn.agent_id.clone(), conn.incarnation));
                }
                self.trace.note(self.now, || format!("n{n} > c{c} #{id} {}", up_words(&message)));
                self.heard(id);
                self.watch_beat(id, &message);
                self.leader_step(c, Leads::Message { session, message: *message });
                self.watch_answer(id);
            }
            Up::Message(message) => {
                let Some(agent_message::Kind::Join(join)) = message.kind else { return };
                conn.joined = true;
                conn.agent_id = join.agent_id.clone();
                conn.incarnation = join.incarnation;
                let number = join.incarnation;
                self.trace.note(self.now, || format!("n{n} > c{c} #{id} Join {number}"));
                self.heard(id);
                self.leader_step(c, Leads::Opened { session, join, peer_addr: String::new() });
            }
            Up::End(end) => {
                conn.controller_open = false;
                let joined = conn.joined;
                self.trace.note(self.now, || format!("n{n} > c{c} #{id} ends: {end:?}"));
                if joined {
                    self.leader_step(c, Leads::Closed { session, end });
                }
            }
        }
    }

    /// What the invariants count as the agent's last word.
    fn heard(&mut self, id: u64) {
        let Some(conn) = self.conns.get(&id) else { return };
        let leads =
            self.truth.reign.as_ref().is_some_and(|reign| reign.controller == conn.controller);
        if leads {
            let known = self.controllers[conn.controller].ledger.agent(&conn.agent_id);
            let newest = known.is_some_and(|agent| agent.incarnation() == conn.incarnation);
            self.truth.heard(&conn.agent_id, self.now, newest);
        }
    }

    pub(crate) fn down_arrives(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if self.links[conn.node][conn.controller].down_cut {
            conn.held_down += 1;
            return;
        }
        let Some(item) = conn.down.pop_front() else { return };
        let (n, c, session) = (conn.node, conn.controller, conn.no);
        if conn.agent != Side::Reading || self.nodes[n].life != conn.agent_life {
            return;
        }
        match item {
            Down::Message(message) => {
                let message = *message;
                self.trace.note(self.now, || format!("n{n} < c{c} #{id} {}", down_words(&message)));
                self.agent_step(n, Heard::FromLeader { session, message });
            }
            Down::End => {
                self.trace.note(self.now, || format!("n{n} < c{c} #{id} ends"));
                self.agent_step(n, Heard::Disconnected { session, why: "ended".to_owned() });
            }
        }
    }

    /// The leader closes a stream once what was sent before is out.
    pub(crate) fn controller_closes(&mut self, id: u64) {
        self.send_down(id, Down::End);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if std::mem::take(&mut conn.controller_open) {
            let c = conn.controller;
            self.leader_step(c, Leads::Closed { session: SessionId(id), end: SessionEnd::Local });
        }
    }

    /// The controller's process is gone: its kernel ends every stream.
    pub(crate) fn controller_drops_all(&mut self, c: usize) {
        let open: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.controller == c && conn.controller_open)
            .map(|(id, _)| *id)
            .collect();
        for id in open {
            self.send_down(id, Down::End);
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.controller_open = false;
            }
        }
    }

    pub(crate) fn cut(&mut self, n: usize, c: usize, up: bool, down: bool, for_ms: u64) {
        let now = self.now;
        let link = &mut self.links[n][c];
        if up {
            link.silent_ms.get_or_insert(now);
        }
        link.up_cut |= up;
        link.down_cut |= down;
        link.serial += 1;
        let serial = link.serial;
        self.trace.note(self.now, || format!("cut n{n} c{c} up {up} down {down} for {for_ms} ms"));
        self.at(for_ms, Event::LinkHeals { node: n, controller: c, serial });
    }

    /// Only the way down is open again: what was held back on it arrives, late.
    pub(crate) fn down_heals(&mut self, n: usize, c: usize) {
        if !std::mem::take(&mut self.links[n][c].down_cut) {
            return;
        }
        self.trace.note(self.now, || format!("n{n} c{c} heals downwards"));
        let held: Vec<(u64, u32)> = self
            .conns
            .iter_mut()
            .map(|(id, conn)| (*id, conn))
            .filter(|(_, conn)| conn.node == n && conn.controller == c)
            .map(|(id, conn)| (id, std::mem::take(&mut conn.held_down)))
            .collect();
        for (id, held) in held {
            for _ in 0..held {
                let delay = self.latency();
                self.at(delay, Event::Down { conn: id });
            }
        }
    }

    /// What was held back goes on, late; unless a kernel gave the connection up meanwhile.
    pub(crate) fn link_heals(&mut self, n: usize, c: usize, serial: u64) {
        let link = &mut self.links[n][c];
        if link.serial != serial || !link.cut() {
            return;
        }
        let old = self.plan.old_word_ms();
        let long = link.silent_ms.is_some_and(|since| self.now - since > old);
        let certain = link.resets;
        *link = Link { serial, ..Link::default() };
        self.trace.note(self.now, || format!("n{n} c{c} heals"));
        let ids: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.node == n && conn.controller == c)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let given_up = long && (self.rng.permille(400) || certain);
            let reset = self.rng.permille(500) || certain;
            let (unread_up, unread_down) = self.unread(id);
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let (up, down) =
                (std::mem::take(&mut conn.held_up), std::mem::take(&mut conn.held_down));
            if given_up && up + down > 0 {
                conn.up.truncate(unread_up);
                conn.down.truncate(unread_down);
                let end = if reset { SessionEnd::Reset } else { SessionEnd::Other };
                conn.up.push_back(Up::End(end));
                conn.down.push_back(Down::End);
                // Each kernel finds out by itself.
                let (delay_up, delay_down) = (self.latency(), self.rng.below(5_000));
                self.at(delay_up, Event::Up { conn: id });
                self.at(delay_down, Event::Down { conn: id });
                continue;
            }
            for _ in 0..up {
                let delay = self.latency();
                self.at(delay, Event::Up { conn: id });
            }
            for _ in 0..down {
                let delay = self.latency();
                self.at(delay, Event::Down { conn: id });
            }
        }
    }
}

fn up_words(message: &AgentMessage) -> String {
    use agent_message::Kind;
    match &message.kind {
        Some(Kind::Facts(facts)) => {
            let what: Vec<String> = facts.facts.iter().map(fact_words).collect();
            format!("Facts {}..={} {what:?}", facts.from, facts.to)
        }
        Some(Kind::Manifest(page)) => {
            let items: Vec<String> = page
                .items
                .iter()
                .filter_map(|item| {
                    let attempt = item.attempt?;
                    Some(format!("{}/{} {:?}", attempt.job, attempt.attempt, item.phase()))
                })
                .collect();
            format!(
                "Manifest F {} O {} asked {} {items:?}",
                page.last_seq, page.last_order, page.asked
            )
        }
        Some(Kind::Heartbeat(beat)) => {
            format!(
                "Heartbeat F {} O {} keeper {}",
                beat.last_seq, beat.last_order, beat.keeper_answers
            )
        }
        other => format!("{other:?}"),
    }
}

fn fact_words(fact: &proto::v1::Fact) -> String {
    use proto::v1::fact::Kind;
    let (name, attempt) = match &fact.kind {
        Some(Kind::Start(f)) => ("start", f.attempt),
        Some(Kind::Finish(f)) => ("finish", f.attempt),
        Some(Kind::Refused(f)) => ("refused", f.attempt),
        Some(Kind::Suspended(f)) => ("suspended", f.attempt),
        Some(Kind::Resumed(f)) => ("resumed", f.attempt),
        None => ("none", None),
    };
    attempt.map_or_else(String::new, |a| format!("{name} {}/{}", a.job, a.attempt))
}

fn down_words(message: &LeaderMessage) -> String {
    use proto::v1::leader_message::Kind;
    let order = |name: &str, order: u64, attempt: &Option<proto::v1::AttemptRef>| {
        attempt
            .map_or_else(String::new, |a| format!("{name} {}/{} order {order}", a.job, a.attempt))
    };
    match &message.kind {
        Some(Kind::Run(run)) => order("Run", run.order_id, &run.attempt),
        Some(Kind::Kill(kill)) => order("Kill", kill.order_id, &kill.attempt),
        Some(Kind::Ack(ack)) => format!("Ack {}", ack.to),
        Some(Kind::Heartbeat(_)) => "HeartbeatAnswer".to_owned(),
        other => format!("{other:?}"),
    }
}
