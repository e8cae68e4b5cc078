//! Connections: taken, greeted, told. What a client gets is durable, in order, and only as fast as
//! it reads.

use std::io;

use proto::v1::{KeeperPong, KeeperVolatileExit, KeeperWelcome, keeper_event};

use super::cgroup::Slots;
use super::identity;
use super::limits;
use super::poll::Source;
use super::run::{Health, Keeper};
use super::wire::Connection;

/// Output that a client may leave unread before its orders are left unread too.
const OUT_HIGH_BYTES: usize = 1 << 20;

/// Facts are added to a client's output up to this.
const OUT_LOW_BYTES: usize = 256 << 10;

impl Keeper {
    pub(super) fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        match Connection::accept(listener) {
            Ok(Some(connection)) => {
                let id = self.next_id;
                self.next_id += 1;
                if self.poll.add(connection.fd(), Source::Connection(id)).is_ok() {
                    self.connections.insert(id, connection);
                }
                self.limit_ungreeted();
            }
            Ok(None) => self.log.say("refused a connection of another user"),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => self.log.say(format!("accept failed: {e}")),
        }
    }

    /// Connections that said nothing yet are held to a handful, oldest out first.
    fn limit_ungreeted(&mut self) {
        const UNGREETED_MAX: usize = 8;
        let silent: Vec<u64> =
            self.connections.iter().filter(|(_, c)| !c.greeted).map(|(id, _)| *id).collect();
        for id in silent.iter().rev().skip(UNGREETED_MAX) {
            self.connections.remove(id);
        }
    }

    pub(super) fn answer(&mut self, connection: u64, kind: keeper_event::Kind) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.push(kind);
        }
    }

    /// To the one client, if there is one.
    pub(super) fn tell_client(&mut self, kind: keeper_event::Kind) {
        if let Some(client) = self.connections.values_mut().find(|c| c.greeted) {
            client.push(kind);
        }
    }

    /// Sends what is durable and new, as far as each peer takes it.
    pub(super) fn tell(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            if let Err(e) = self.tell_one(id) {
                self.log.say(format!("connection closed: {e}"));
                self.connections.remove(&id);
            }
        }
    }

    fn tell_one(&mut self, id: u64) -> io::Result<()> {
        // What is not read before a newer program takes over is lost with the connection, as the
        // client knows; what is read would be an order that nobody answers.
        let reads = !self.is_about_to_be_replaced();
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        loop {
            while connection.pending() < OUT_LOW_BYTES {
                let facts = self.journal.facts_from(connection.next_fact);
                let Some(facts) = facts.map_err(io::Error::other)? else { break };
                connection.next_fact = facts.to + 1;
                connection.push(keeper_event::Kind::Facts(facts));
            }
            if connection.pending() == 0 {
                break;
            }
            connection.flush()?;
            if connection.pending() > 0 {
                break;
            }
        }
        let read = reads && connection.pending() < OUT_HIGH_BYTES;
        let write = connection.pending() > 0;
        if connection.interest != (read, write) {
            self.poll.change(connection.fd(), Source::Connection(id), read, write)?;
            connection.interest = (read, write);
        }
        Ok(())
    }

    pub(super) fn welcome(&mut self, connection: u64, resend_from: u64) {
        let acked = self.journal.book().acked();
        let limits_by = limits::told(self.slots.as_ref().map(Slots::controllers));
        let welcome = KeeperWelcome {
            journal_id: self.journal.id().to_vec(),
            boot_id: self.boot_id.clone(),
            next_seq: self.journal.next_seq(),
            acked,
            version: self.version.into(),
            pid: std::process::id(),
            limits: limits_by.mem.clone(),
            limits_by: Some(limits_by),
            first_seq: self.journal.first_seq(),
        };
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        connection.push(keeper_event::Kind::Welcome(welcome));
        connection.next_fact = if resend_from > 0 { resend_from } else { acked + 1 };
        for finish in self.volatile.values() {
            let finish = Some(finish.clone());
            connection.push(keeper_event::Kind::NotJournalled(KeeperVolatileExit { finish }));
        }
    }

    pub(super) fn pong(&self, nonce: u64) -> KeeperPong {
        let book = self.journal.book();
        KeeperPong {
            nonce,
            boottime_ms: identity::boottime_ms(),
            digest: self.digest(),
            last_seq: book.last_fact(),
            last_order: book.last_order(),
            disk_full: !self.has_room || matches!(self.health, Health::Full),
            problem: self.problem(),
            live: self.tasks.values().filter(|task| !task.is_told()).count() as u32,
            first_seq: self.journal.first_seq(),
        }
    }

    /// What the operator should know; empty: nothing.
    fn problem(&self) -> String {
        match (&self.health, &self.slow_spawn) {
            (Health::Broken(why), _) => why.clone(),
            (Health::Full, _) => "disk full: the keeper's journal waits for room".into(),
            (Health::Good, Some(slow)) => slow.clone(),
            (Health::Good, None) if self.notice.is_none() => {
                "the keeper has no guard: if it dies too, exit statuses are lost".into()
            }
            (Health::Good, None) => self.growth.uncut.clone().unwrap_or_default(),
        }
    }
}
