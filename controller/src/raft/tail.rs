//! The newest entries of the log in memory: apply and replication read here, unsynced entries
//! included, and go to the disk only for what is older.

use super::types::Entry;
use std::collections::VecDeque;

/// Entries are kept up to this many payload bytes: a minute of heavy load, so that a follower
/// that is a little behind costs no disk read.
const TAIL_MAX_BYTES: usize = 32 * 1024 * 1024;

/// A run of entries without gap that ends with the last one appended.
#[derive(Default)]
pub struct Tail {
    entries: VecDeque<(Entry, usize)>,
    bytes: usize,
    /// Entries below this index are on disk; only those may leave the memory.
    written_end: u64,
    /// Grows with each cut: a completion from before it says nothing about the entries after it.
    generation: u64,
}

impl Tail {
    /// An empty tail behind a log whose next index is `next`.
    pub fn new(next: u64) -> Self {
        Tail { written_end: next, ..Tail::default() }
    }

    /// What a later [`Tail::written`] must name.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Appends the next entry, whose encoded payload has `bytes` bytes.
    pub fn push(&mut self, entry: Entry, bytes: usize) {
        debug_assert!(self.end().is_none_or(|end| end == entry.log_id.index));
        self.entries.push_back((entry, bytes));
        self.bytes += bytes;
    }

    /// Everything below `end` is on disk, as appended in `generation`; makes room.
    pub fn written(&mut self, end: u64, generation: u64) {
        if generation == self.generation {
            self.written_end = self.written_end.max(end);
        }
        while self.bytes > TAIL_MAX_BYTES && self.first().is_some_and(|i| i < self.written_end) {
            self.drop_first();
        }
    }

    /// Forgets `from` and everything behind it.
    pub fn cut(&mut self, from: u64) {
        while let Some((_, bytes)) = self.entries.pop_back_if(|(e, _)| e.log_id.index >= from) {
            self.bytes -= bytes;
        }
        self.written_end = self.written_end.min(from);
        self.generation += 1;
    }

    /// Forgets everything up to `index`.
    pub fn purge(&mut self, index: u64) {
        while self.first().is_some_and(|first| first <= index) {
            self.drop_first();
        }
    }

    /// Index of the oldest entry in memory.
    pub fn first(&self) -> Option<u64> {
        self.entries.front().map(|(entry, _)| entry.log_id.index)
    }

    /// Copies of the entries `from..end`, as far as they are in memory; entries are cheap to copy.
    pub fn range(&self, from: u64, end: u64) -> impl Iterator<Item = Entry> + '_ {
        let first = self.first().unwrap_or(end);
        let skip = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
        let upto = self.entries.iter().skip(skip).take_while(move |(e, _)| e.log_id.index < end);
        upto.map(|(entry, _)| entry.clone())
    }

    fn end(&self) -> Option<u64> {
        self.entries.back().map(|(entry, _)| entry.log_id.index + 1)
    }

    fn drop_first(&mut self) {
        if let Some((_, bytes)) = self.entries.pop_front() {
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::LogId;
    use super::*;
    use openraft::EntryPayload;

    fn blank(index: u64) -> Entry {
        Entry { log_id: LogId::new_term_index(1, index), payload: EntryPayload::Blank }
    }

    fn indexes(tail: &Tail, from: u64, end: u64) -> Vec<u64> {
        tail.range(from, end).map(|e| e.log_id.index).collect()
    }

    #[test]
    fn only_written_entries_leave_the_memory() {
        let mut tail = Tail::new(5);
        for index in 5..9 {
            tail.push(blank(index), TAIL_MAX_BYTES);
        }
        tail.written(7, tail.generation());
        assert_eq!(indexes(&tail, 0, 100), [7, 8]);
        tail.written(9, tail.generation());
        assert_eq!(indexes(&tail, 0, 100), [8], "the last entry fits");
        assert_eq!(indexes(&tail, 9, 100), [0; 0]);
    }

    #[test]
    fn a_completion_from_before_a_cut_says_nothing_about_later_entries() {
        let mut tail = Tail::new(0);
        (0..4).for_each(|index| tail.push(blank(index), TAIL_MAX_BYTES));
        let before = tail.generation();
        tail.cut(2);
        assert_eq!(indexes(&tail, 0, 9), [0, 1]);
        (2..4).for_each(|index| tail.push(blank(index), TAIL_MAX_BYTES));
        tail.written(4, before);
        assert_eq!(indexes(&tail, 0, 9), [0, 1, 2, 3], "none of them is known to be written");
        tail.written(4, tail.generation());
        assert_eq!(indexes(&tail, 0, 9), [3]);
    }

    #[test]
    fn purge_forgets_the_oldest() {
        let mut tail = Tail::new(0);
        (0..4).for_each(|index| tail.push(blank(index), 1));
        tail.purge(1);
        assert_eq!(indexes(&tail, 1, 4), [2, 3]);
        assert_eq!(indexes(&tail, 3, 4), [3]);
    }
}
