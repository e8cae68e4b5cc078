//! A reconnect storm (design 3, 7.4): a thousand agents may come at once, each with a full manifest.
//! Only so many joins and manifest pages are in the log at any time; the others wait for their turn
//! in order, so that none starves, and facts and heartbeats of those that have joined go on.

use super::SessionId;
use super::turn::Turn;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Joins in the log at once. Each is about 1 KiB, so a quarter of an entry: two of these are always
/// under way, and a commit of 10 ms lets 6,000 agents join in a second.
pub(super) const JOINS_MAX: usize = 64;

/// Manifest pages in the log at once. A full one is about 60 KiB and takes apply a few ms; four fill
/// an entry, so facts of others wait behind one entry of pages at the most.
pub(super) const PAGES_MAX: usize = 4;

/// What is in the log: of an agent, in a session, of that manifest (0 for a join).
pub(super) type Flight = (String, u64, u64);

/// Sessions that wait for a place in the log, and what has one.
#[derive(Debug)]
pub(super) struct Gate {
    most: usize,
    waiting: VecDeque<SessionId>,
    /// The same: a session waits once.
    known: BTreeSet<SessionId>,
    in_flight: BTreeMap<Flight, (SessionId, u64)>,
}

impl Gate {
    pub fn new(most: usize) -> Self {
        let (waiting, known) = (VecDeque::new(), BTreeSet::new());
        Gate { most, waiting, known, in_flight: BTreeMap::new() }
    }

    /// It wants a place, behind the others.
    pub fn queue(&mut self, id: SessionId) {
        if self.known.insert(id) {
            self.waiting.push_back(id);
        }
    }

    /// Whose turn it is, if there is a place.
    pub fn next(&mut self) -> Option<SessionId> {
        if self.in_flight.len() >= self.most {
            return None;
        }
        let id = self.waiting.pop_front()?;
        self.known.remove(&id);
        Some(id)
    }

    /// It is proposed.
    pub fn takes(&mut self, flight: Flight, id: SessionId, now: u64) {
        self.in_flight.insert(flight, (id, now));
    }

    /// It was applied: its place is free. The session that had it.
    pub fn lands(&mut self, flight: &Flight) -> Option<SessionId> {
        self.in_flight.remove(flight).map(|(id, _)| id)
    }

    /// Time passed: proposals that were lost hold no place.
    pub fn tick(&mut self, turn: &Turn<'_>) {
        self.in_flight.retain(|_, (_, since)| !turn.lost(*since));
    }
}
