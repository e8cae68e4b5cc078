//! The order of the queue, merged from one line per distinct ask. A line whose head cannot be
//! placed is left for this pass, so a pass costs as much as there are placements and distinct
//! asks, however long the queue is.

use crate::ledger::{Ask, Ledger, Place};
use proto::{JobId, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::sync::Arc;

/// The heads of all lines.
pub(super) struct Heads<'a, I: Iterator<Item = Place>> {
    ledger: &'a Ledger,
    lines: Vec<Line<'a, I>>,
    heads: BTreeSet<(Place, usize)>,
    /// Tasks of arrays with a limit that this pass may still place.
    room: BTreeMap<JobId, u64>,
}

/// Tasks that ask the same.
struct Line<'a, I: Iterator<Item = Place>> {
    ask: &'a Arc<Ask>,
    places: Peekable<I>,
    /// Tasks of arrays behind those that were placed.
    behind: BTreeSet<Place>,
}

/// One line per distinct ask.
pub(super) fn heads(ledger: &Ledger) -> Heads<'_, impl Iterator<Item = Place>> {
    let line = |(ask, line): (_, _)| Line::new(ask, line);
    let mut lines: Vec<_> = ledger.classes().map(line).collect();
    let room = BTreeMap::new();
    let heads = lines
        .iter_mut()
        .enumerate()
        .filter_map(|(number, line)| Some((line.head(&room)?, number)))
        .collect();
    Heads { ledger, lines, heads, room }
}

impl<'a, I: Iterator<Item = Place>> Heads<'a, I> {
    /// The first task of all lines that are left, with what it asks and its line's number.
    pub fn first(&self) -> Option<(TaskId, &'a Arc<Ask>, usize)> {
        let ((_, id), number) = self.heads.first()?;
        let line = self.lines.get(*number)?;
        Some((*id, line.ask, *number))
    }

    /// Its head was placed: the next one of that line steps forward.
    pub fn placed(&mut self, number: usize) {
        let array = self.heads.first().and_then(|((_, id), _)| self.ledger.array(id.job));
        if let Some((array, room)) = array.and_then(|array| Some((array, array.room()?))) {
            let left = self.room.entry(array.id()).or_insert(room);
            *left = left.saturating_sub(1);
        }
        self.passed(number);
    }

    /// Its head is left where it is, and says nothing about those behind it.
    pub fn passed(&mut self, number: usize) {
        let Some((place, _)) = self.heads.pop_first() else { return };
        let Some(line) = self.lines.get_mut(number) else { return };
        line.taken(place);
        line.behind.extend(self.ledger.array(place.1.job).and_then(|array| array.behind(place)));
        if let Some(next) = line.head(&self.room) {
            self.heads.insert((next, number));
        }
    }

    /// Its head cannot be placed, so none of that line can.
    pub fn refused(&mut self) {
        self.heads.pop_first();
    }
}

impl<'a, I: Iterator<Item = Place>> Line<'a, I> {
    fn new(ask: &'a Arc<Ask>, places: I) -> Self {
        Line { ask, places: places.peekable(), behind: BTreeSet::new() }
    }

    fn taken(&mut self, place: Place) {
        if !self.behind.remove(&place) {
            self.places.next();
        }
    }

    /// The first that is left; tasks of an array whose limit is reached are passed over.
    fn head(&mut self, room: &BTreeMap<JobId, u64>) -> Option<Place> {
        let full = |place: &Place| room.get(&place.1.job) == Some(&0);
        self.behind.retain(|place| !full(place));
        while self.places.next_if(full).is_some() {}
        self.behind.first().into_iter().chain(self.places.peek()).min().copied()
    }
}
