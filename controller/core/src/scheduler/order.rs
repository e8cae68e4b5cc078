//! The order of the queue, merged from one line per distinct ask. A line whose head cannot be
//! placed is left for this pass, so a pass costs as much as there are placements and distinct
//! asks, however long the queue is.

use crate::ledger::{Ask, Ledger};
use proto::JobId;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::sync::Arc;

type Place = (Reverse<i32>, JobId);

/// The heads of all lines.
pub(super) struct Heads<'a, I: Iterator<Item = Place>> {
    lines: Vec<(&'a Arc<Ask>, Peekable<I>)>,
    heads: BTreeSet<(Place, usize)>,
}

/// One line per distinct ask.
pub(super) fn heads(ledger: &Ledger) -> Heads<'_, impl Iterator<Item = Place>> {
    let mut lines: Vec<_> = ledger.classes().map(|(ask, line)| (ask, line.peekable())).collect();
    let heads = lines
        .iter_mut()
        .enumerate()
        .filter_map(|(number, (_, line))| Some((*line.peek()?, number)))
        .collect();
    Heads { lines, heads }
}

impl<'a, I: Iterator<Item = Place>> Heads<'a, I> {
    /// The first task of all lines that are left, with what it asks and its line's number.
    pub fn first(&self) -> Option<(JobId, &'a Arc<Ask>, usize)> {
        let ((_, id), number) = self.heads.first()?;
        let (ask, _) = self.lines.get(*number)?;
        Some((*id, ask, *number))
    }

    /// Its head was placed: the next one of that line steps forward.
    pub fn placed(&mut self, number: usize) {
        self.heads.pop_first();
        let Some((_, line)) = self.lines.get_mut(number) else { return };
        line.next();
        if let Some(next) = line.peek() {
            self.heads.insert((*next, number));
        }
    }

    /// Its head cannot be placed, so none of that line can.
    pub fn refused(&mut self) {
        self.heads.pop_first();
    }
}
