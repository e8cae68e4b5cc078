//! Which entries live and where they lie: eight bytes an entry, and the one function that
//! moves it, used alike by appending and by recovery.

use std::collections::VecDeque;

use crate::frame::{ALIGN, RecordView};
use crate::record::BATCH_BYTES_MAX;

/// The longest segment whose every offset a location can hold.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 16 << 30;

const _: () = assert!(SEGMENT_BYTES_MAX / ALIGN as u64 <= u32::MAX as u64);
const _: () = assert!(BATCH_BYTES_MAX < SEGMENT_BYTES_MAX && BATCH_BYTES_MAX <= u32::MAX as u64);

/// Where a payload lies: eight-byte units into its segment, and its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Location {
    unit: u32,
    bytes: u32,
}

/// A stretch of entries of one term in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u64,
    term: u64,
    segment: u64,
}

/// An entry found in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Located {
    pub index: u64,
    pub term: u64,
    pub segment: u64,
    pub offset: u64,
    pub bytes: u32,
}

/// The live entries. Invariant: `runs` is empty exactly if `entries` is, its first run begins at
/// the first entry, and `first` of the runs ascends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// Position before the first live entry: (index, term), term 0 if unknown.
    base: (u64, u64),
    entries: VecDeque<Location>,
    runs: VecDeque<Run>,
    /// The newest vote.
    pub vote: Option<Vec<u8>>,
    /// The newest committed position: (index, term).
    pub committed: Option<(u64, u64)>,
    /// `from` of the newest cut, 0 if there was none.
    pub cut_from: u64,
}

impl Index {
    /// An empty log after the given position.
    pub(crate) fn after(index: u64, term: u64) -> Index {
        Index { base: (index, term), ..Index::default() }
    }

    /// Position before the first live entry.
    pub(crate) fn base(&self) -> (u64, u64) {
        self.base
    }

    /// First live index, or the one that the next entry will have.
    pub(crate) fn first(&self) -> u64 {
        self.base.0 + 1
    }

    /// Last live index; the base if the log is empty.
    pub(crate) fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    /// Term of a live entry, or of the position before the first where it is known.
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.0 && self.base.1 > 0 {
            return Some(self.base.1);
        }
        self.locate(index).map(|found| found.term)
    }

    pub(crate) fn locate(&self, index: u64) -> Option<Located> {
        let ordinal = index.checked_sub(self.first())?;
        let location = self.entries.get(usize::try_from(ordinal).ok()?)?;
        let run = self.runs.get(self.runs.partition_point(|run| run.first <= index) - 1)?;
        Some(Located {
            index,
            term: run.term,
            segment: run.segment,
            offset: u64::from(location.unit) * ALIGN as u64,
            bytes: location.bytes,
        })
    }

    /// Takes over one record of a frame that begins at `frame_offset` of `segment`.
    pub(crate) fn apply(&mut self, segment: u64, frame_offset: u64, record: RecordView<'_>) {
        match record {
            RecordView::Entry { term, payload, at } => {
                self.push(term, segment, frame_offset + at, payload.len());
            }
            RecordView::Vote(vote) => self.vote = Some(vote.to_owned()),
            RecordView::Committed { index, term } => self.committed = Some((index, term)),
            RecordView::Cut { from, previous_term } => self.cut(from, previous_term),
        }
    }

    /// Adds the next entry.
    pub(crate) fn push(&mut self, term: u64, segment: u64, offset: u64, bytes: usize) {
        let index = self.last() + 1;
        let fits = self.runs.back().is_some_and(|run| run.term == term && run.segment == segment);
        if !fits {
            self.runs.push_back(Run { first: index, term, segment });
        }
        // Both fit, see the assertion on SEGMENT_BYTES_MAX and BATCH_BYTES_MAX.
        let unit = (offset / ALIGN as u64) as u32;
        self.entries.push_back(Location { unit, bytes: bytes as u32 });
    }

    /// Voids the entries from `from` on.
    pub(crate) fn cut(&mut self, from: u64, previous_term: u64) {
        self.cut_from = from;
        let Some(keep) = from.checked_sub(self.first()) else {
            self.jump(from.saturating_sub(1), previous_term);
            return;
        };
        self.entries.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
        while self.runs.back().is_some_and(|run| run.first >= from) {
            self.runs.pop_back();
        }
    }

    /// Voids every entry; the next one follows the given position.
    pub(crate) fn jump(&mut self, index: u64, term: u64) {
        self.base = (index, term);
        self.entries.clear();
        self.runs.clear();
    }

    /// The segment that holds `index`, if it lives.
    pub(crate) fn segment_of(&self, index: u64) -> Option<u64> {
        self.locate(index).map(|found| found.segment)
    }

    /// Forgets the entries that lie in segments before `segment`.
    pub(crate) fn forget_before(&mut self, segment: u64) {
        let mut runs = self.runs.iter();
        let keep_from = match runs.find(|run| run.segment >= segment) {
            Some(run) => run.first,
            None => self.last() + 1,
        };
        let base = (keep_from - 1, self.term_at(keep_from - 1).unwrap_or(0));
        let gone = usize::try_from(keep_from - self.first()).unwrap_or(usize::MAX);
        self.entries.drain(..gone.min(self.entries.len()));
        self.runs.retain(|run| run.segment >= segment);
        self.base = base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> Index {
        let mut index = Index::default();
        for (term, segment) in [(1, 1), (1, 1), (2, 1), (2, 2), (3, 2)] {
            index.push(term, segment, 64, 8);
        }
        index
    }

    #[test]
    fn an_entry_costs_eight_bytes() {
        assert_eq!(size_of::<Location>(), 8);
    }

    #[test]
    fn offsets_beyond_four_gibibytes_do_not_wrap() {
        let mut index = Index::default();
        index.push(1, 1, SEGMENT_BYTES_MAX - 8, 8);
        assert_eq!(index.locate(1).map(|found| found.offset), Some(SEGMENT_BYTES_MAX - 8));
    }

    #[test]
    fn terms_and_segments_are_found_through_runs() {
        let index = filled();
        let terms: Vec<_> = (0..=6).map(|at| index.term_at(at)).collect();
        assert_eq!(terms, [None, Some(1), Some(1), Some(2), Some(2), Some(3), None]);
        assert_eq!(index.segment_of(3), Some(1));
        assert_eq!(index.segment_of(4), Some(2));
    }

    #[test]
    fn a_cut_in_the_middle_of_a_run_keeps_its_head() {
        let mut index = filled();
        index.cut(2, 1);
        assert_eq!((index.first(), index.last()), (1, 1));
        index.push(9, 3, 64, 8);
        assert_eq!(index.term_at(1), Some(1));
        assert_eq!(index.term_at(2), Some(9));
    }

    #[test]
    fn a_cut_before_the_first_entry_empties_the_log_and_moves_its_start() {
        let mut index = Index::after(20, 4);
        index.push(4, 7, 64, 8);
        index.cut(15, 3);
        assert!(index.entries.is_empty());
        assert_eq!((index.first(), index.last(), index.term_at(14)), (15, 14, Some(3)));
    }

    #[test]
    fn forgetting_segments_keeps_the_term_before_the_first_entry() {
        let mut index = filled();
        index.forget_before(2);
        assert_eq!((index.first(), index.last()), (4, 5));
        assert_eq!(index.term_at(3), Some(2));
        assert_eq!(index.term_at(2), None);
        index.forget_before(3);
        assert!(index.entries.is_empty());
        assert_eq!(index.base(), (5, 3));
    }
}
