//! The log while it is open: append, sync, seal, rotation, purge. Synchronous, no thread.
//!
//! Every write goes to bytes that were never written before; in-memory state moves only after
//! the write, so a refused append leaves the log as it was.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use crate::error::{OpenError, ReadError, WriteError, is_no_space};
use crate::frame::{
    ALIGN, Encoder, FRAME_HEADER_BYTES, FrameHeader, FrameKind, RECORD_HEADER_BYTES, RecordView,
    batch_bytes,
};
use crate::open::{self, Recovered};
use crate::reader::{Reader, SegmentFile, Shared, Space};
use crate::record::{BATCH_BYTES_MAX, Identity, LogEntry, Record, VOTE_BYTES_MAX};
use crate::scan::Seen;
use crate::storage::{Storage, StorageFile};

mod rotate;

pub(crate) use rotate::give_name;

/// Sizes of a log. A segment also grows beyond these for a batch that would not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Length of the first segment; each next one is four times as long.
    pub first_segment_bytes: u64,
    /// Length at which segments stop growing.
    pub max_segment_bytes: u64,
    /// The least reserve that is kept allocated for times of a full disk.
    pub reserve_min_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            first_segment_bytes: 1 << 20,
            max_segment_bytes: 64 << 20,
            reserve_min_bytes: 1 << 20,
        }
    }
}

impl Options {
    /// For the keeper's journal: segments of at most 4 MiB.
    pub fn keeper() -> Self {
        Options { max_segment_bytes: 4 << 20, ..Options::default() }
    }
}

/// How many times longer each next segment is.
const GROWTH: u64 = 4;
/// The closing seal always has its room.
const CLOSE_BYTES: u64 = FRAME_HEADER_BYTES as u64;
/// The reserve is this part of what is in use.
const RESERVE_PART: u64 = 50;

/// The segment that takes the writes.
#[derive(Debug)]
pub(crate) struct Active<F> {
    pub seq: u64,
    pub file: Arc<SegmentFile<F>>,
    /// Length of the file.
    pub bytes: u64,
    /// Where the next frame goes.
    pub offset: u64,
    pub salt: u64,
    /// Whether its closing seal is on disk: only a new segment can take the next frame.
    pub closed: bool,
}

impl<F> Active<F> {
    fn open_bytes(&self) -> u64 {
        if self.closed { 0 } else { self.bytes.saturating_sub(self.offset + CLOSE_BYTES) }
    }
}

/// The file that becomes the next segment. After a failed rotation it may already carry the
/// name of one, which recovery knows as a crash in rotation.
#[derive(Debug)]
pub(crate) struct Spare<F> {
    name: String,
    file: F,
    bytes: u64,
}

/// An open log.
#[derive(Debug)]
pub struct Log<S: Storage> {
    storage: S,
    identity: Identity,
    options: Options,
    reader: Reader<S::File>,
    active: Active<S::File>,
    spare: Option<Spare<S::File>>,
    /// The reserve could not be allocated, which was said.
    reserve_lacks: bool,
    /// Sequence number and length of every segment, oldest first, the active one last.
    segments: VecDeque<(u64, u64)>,
    next_batch: u64,
    durable: u64,
    /// Whether the newest frame is a seal or nothing was written yet.
    sealed: bool,
    encoder: EncoderBox,
    failed: Option<Arc<WriteError>>,
    mark: u64,
}

/// Keeps the encoder's buffer out of the log's Debug output.
struct EncoderBox(Encoder);

impl std::fmt::Debug for EncoderBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encoder")
    }
}

/// What recovery hands to a new [`Log`].
pub(crate) struct Parts<S: Storage> {
    pub storage: S,
    pub identity: Identity,
    pub options: Options,
    pub shared: Shared<S::File>,
    pub active: Active<S::File>,
    pub segments: VecDeque<(u64, u64)>,
    pub next_batch: u64,
    pub sealed: bool,
}

impl<S: Storage> Log<S> {
    /// Opens a log, or makes one in an empty directory. Judges what it finds by the decision
    /// table (design 4) and changes nothing on disk if it refuses.
    ///
    /// # Errors
    /// [`OpenError`]: each refusal by its name, or a failed system call.
    pub fn open(
        storage: S,
        identity: Identity,
        options: Options,
    ) -> Result<(Log<S>, Recovered), OpenError> {
        open::open(storage, identity, options, &mut |_| ())
    }

    /// The same, telling `seen` after each frame how many bytes of the segments are read: a long
    /// start can say how far it is.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_seen(
        storage: S,
        identity: Identity,
        options: Options,
        seen: &mut dyn FnMut(Seen),
    ) -> Result<(Log<S>, Recovered), OpenError> {
        open::open(storage, identity, options, seen)
    }

    pub(crate) fn from_parts(parts: Parts<S>) -> Log<S> {
        let mut log = Log {
            storage: parts.storage,
            identity: parts.identity,
            options: parts.options,
            reader: Reader::new(parts.shared),
            active: parts.active,
            spare: None,
            reserve_lacks: false,
            segments: parts.segments,
            next_batch: parts.next_batch,
            durable: parts.next_batch - 1,
            sealed: parts.sealed,
            encoder: EncoderBox(Encoder::new()),
            failed: None,
            mark: 0,
        };
        log.replenish();
        log
    }

    /// Writes a batch with one system call. It is readable at once and durable after the next
    /// [`Log::sync`]. Gives the batch's sequence number; an empty batch writes nothing.
    ///
    /// # Errors
    /// [`WriteError::NoSpace`] and the refusals of a wrong batch leave the log as it was; any
    /// other failure ends the log's writing life.
    pub fn append(&mut self, records: &[Record]) -> Result<u64, WriteError> {
        self.append_all(records.iter())
    }

    pub(crate) fn append_all<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Record> + Clone,
    ) -> Result<u64, WriteError> {
        self.check_alive()?;
        let cut_terms = self.check_batch(records.clone())?;
        if records.clone().next().is_none() {
            self.reader.lock_mut().mark = self.mark;
            return Ok(self.next_batch - 1);
        }
        let bytes = batch_bytes(records.clone());
        if bytes > BATCH_BYTES_MAX {
            return Err(WriteError::BatchTooLong { bytes, max: BATCH_BYTES_MAX });
        }
        if self.active.open_bytes() < bytes {
            let (index, term) = self.end();
            self.rotate(index, term, bytes)?;
        }
        let header = FrameHeader {
            first_index: self.last_index() + 1,
            salt: self.active.salt,
            ..FrameHeader::empty(FrameKind::Batch, self.next_batch, self.durable)
        };
        let encoded = self.encoder.0.encode(header, records.clone(), &cut_terms);
        let written = self.active.file.file.write_at(self.active.offset, &encoded.parts);
        self.written(written, bytes)?;
        self.publish(records, &cut_terms, bytes);
        Ok(self.next_batch - 1)
    }

    /// Makes everything appended so far durable with one fdatasync. Gives the newest durable
    /// batch; does nothing if there is nothing new.
    ///
    /// # Errors
    /// [`WriteError::OutcomeUnknown`], after which the log takes no more.
    pub fn sync(&mut self) -> Result<u64, WriteError> {
        self.check_alive()?;
        if self.durable + 1 < self.next_batch {
            let synced = self.active.file.file.sync_data();
            synced.map_err(|e| self.fail("fdatasync of", e))?;
            self.durable = self.next_batch - 1;
        }
        Ok(self.durable)
    }

    /// For idle moments: syncs, records on disk that the last batch is durable (64 bytes and a
    /// sync of their own), and refills the reserve. Does nothing if nothing was written since.
    ///
    /// # Errors
    /// As [`Log::sync`]. A full disk is no error here.
    pub fn seal(&mut self) -> Result<(), WriteError> {
        self.sync()?;
        if !self.sealed && self.active.open_bytes() >= CLOSE_BYTES {
            match self.write_seal(FrameKind::Seal) {
                Ok(()) => {
                    self.sync()?;
                    self.sealed = true;
                }
                Err(WriteError::NoSpace { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        self.replenish();
        Ok(())
    }

    /// Reads live entries, not yet synced ones too. See [`Reader::read`].
    ///
    /// # Errors
    /// [`ReadError`]: purged, not written yet, damaged, or unreadable.
    pub fn read(&self, from: u64, to_inclusive: u64) -> Result<Vec<LogEntry>, ReadError> {
        self.reader.read(from, to_inclusive)
    }

    /// A handle for reading from other threads.
    pub fn reader(&self) -> Reader<S::File> {
        self.reader.clone()
    }

    /// First live index, or the one that the first entry will have.
    pub fn first_index(&self) -> u64 {
        self.reader.first_index()
    }

    /// Last live index; if there is no entry, the one before [`Log::first_index`], 0 in a new
    /// log.
    pub fn last_index(&self) -> u64 {
        self.reader.last_index()
    }

    /// Term of a live entry, or of the last purged one if it is known.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.reader.term_at(index)
    }

    /// Position (index, term) before the first live entry; term 0 if unknown.
    pub fn purged(&self) -> (u64, u64) {
        self.reader.lock().index.base()
    }

    /// How much can still be written.
    ///
    /// # Errors
    /// What the file system answers when asked for its free space.
    pub fn free_space(&self) -> io::Result<Space> {
        self.reader.free_space()
    }

    /// Removes the segments of which every entry is at or below `up_to_inclusive`, or moves them
    /// into `archive` (same file system). The segment being written stays, so some entries at or
    /// below may stay readable. An index beyond the log's end: see [`Log::skip_to`].
    ///
    /// # Errors
    /// [`WriteError::Purge`] if a file cannot be moved or removed: those before it are gone, the
    /// log stays usable.
    pub fn purge(
        &mut self,
        up_to_inclusive: u64,
        archive: Option<&Path>,
    ) -> Result<(), WriteError> {
        self.check_alive()?;
        if up_to_inclusive > self.last_index() {
            return self.skip_to(up_to_inclusive, 0);
        }
        let keep = {
            let shared = self.reader.lock();
            shared.index.segment_of((up_to_inclusive + 1).max(shared.index.first()))
        };
        self.drop_before(keep.unwrap_or(self.active.seq), archive)
    }

    /// Voids every entry and continues after a position beyond the end, as after a snapshot of
    /// somebody else. Durable when it returns.
    ///
    /// # Errors
    /// [`WriteError::NoSpace`] leaves the log as it was; [`WriteError::NotNext`] if the position
    /// is inside the log.
    pub fn skip_to(&mut self, index: u64, term: u64) -> Result<(), WriteError> {
        self.check_alive()?;
        if index < self.last_index() {
            return Err(WriteError::NotNext { expected: self.last_index() + 1, found: index + 1 });
        }
        self.rotate(index, term, CLOSE_BYTES)?;
        {
            let mut shared = self.reader.lock_mut();
            shared.index.jump(index, term);
            shared.mark = self.mark;
        }
        self.drop_before(self.active.seq, None)
    }

    /// Marks what the next append or skip belongs to: see [`Shared::mark`].
    pub(crate) fn set_mark(&mut self, mark: u64) {
        self.mark = mark;
    }

    /// Whether a write or fsync has failed, so that nothing more can be written.
    pub fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    fn check_alive(&self) -> Result<(), WriteError> {
        match &self.failed {
            None => Ok(()),
            Some(first) => Err(WriteError::Failed { first: Arc::clone(first) }),
        }
    }

    /// Ends the log's writing life.
    fn fail(&mut self, doing: &'static str, source: io::Error) -> WriteError {
        let file = self.active.file.name.clone();
        let error = WriteError::OutcomeUnknown { doing, file, source: Arc::new(source) };
        self.failed = Some(Arc::new(error.clone()));
        error
    }

    /// Last position.
    fn end(&self) -> (u64, u64) {
        let shared = self.reader.lock();
        let last = shared.index.last();
        (last, shared.index.term_at(last).unwrap_or(0))
    }

    /// Checks a batch before anything is written; gives the term before each cut.
    fn check_batch<'a>(
        &self,
        records: impl Iterator<Item = &'a Record> + Clone,
    ) -> Result<Vec<u64>, WriteError> {
        let shared = self.reader.lock();
        let (mut first, mut next) = (shared.index.first(), shared.index.last() + 1);
        let mut cut_terms = Vec::new();
        for (place, record) in records.clone().enumerate() {
            match record {
                Record::Entry { index, .. } if *index != next => {
                    return Err(WriteError::NotNext { expected: next, found: *index });
                }
                Record::Entry { .. } => next += 1,
                Record::Vote(vote) if vote.len() > VOTE_BYTES_MAX => {
                    return Err(WriteError::VoteTooLong { bytes: vote.len(), max: VOTE_BYTES_MAX });
                }
                Record::Vote(_) | Record::Committed { .. } => {}
                Record::Cut { from } => {
                    if *from < first || *from > next {
                        return Err(WriteError::CutOutside { from: *from, first, last: next - 1 });
                    }
                    let mut here = None;
                    for earlier in records.clone().take(place) {
                        match earlier {
                            Record::Entry { index, term, .. } if index + 1 == *from => {
                                here = Some(*term);
                            }
                            _ => {}
                        }
                    }
                    let before = here.or_else(|| shared.index.term_at(from - 1));
                    cut_terms.push(before.unwrap_or(0));
                    next = *from;
                    first = first.min(next);
                }
            }
        }
        Ok(cut_terms)
    }

    /// Judges a write of `bytes` at the end of the active segment.
    fn written(&mut self, written: io::Result<()>, bytes: u64) -> Result<(), WriteError> {
        match written {
            Ok(()) => Ok(()),
            Err(e) if is_no_space(&e) => {
                // A copy-on-write file system can run out inside allocated space. What got
                // through must not come back as a batch that was refused: void its header.
                let zeros = [0; FRAME_HEADER_BYTES];
                let void =
                    self.active.file.file.write_at(self.active.offset, &[IoSlice::new(&zeros)]);
                void.map_err(|e| self.fail("write to", e))?;
                Err(WriteError::NoSpace { need_bytes: bytes })
            }
            Err(e) => Err(self.fail("write to", e)),
        }
    }

    /// Takes a written batch into the index.
    fn publish<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Record>,
        cut_terms: &[u64],
        bytes: u64,
    ) {
        let mut shared = self.reader.lock_mut();
        let mut at = FRAME_HEADER_BYTES;
        let mut cut_terms = cut_terms.iter();
        for record in records {
            let payload_at = (at + RECORD_HEADER_BYTES) as u64;
            let (view, payload_bytes) = match record {
                Record::Entry { term, payload, .. } => {
                    (RecordView::Entry { term: *term, payload, at: payload_at }, payload.len())
                }
                Record::Vote(vote) => (RecordView::Vote(vote), vote.len()),
                Record::Committed { index, term } => {
                    (RecordView::Committed { index: *index, term: *term }, 8)
                }
                Record::Cut { from } => {
                    let previous_term = cut_terms.next().copied().unwrap_or(0);
                    (RecordView::Cut { from: *from, previous_term }, 8)
                }
            };
            shared.index.apply(self.active.seq, self.active.offset, view);
            at = (at + RECORD_HEADER_BYTES + payload_bytes).next_multiple_of(ALIGN);
        }
        self.active.offset += bytes;
        self.next_batch += 1;
        self.sealed = false;
        shared.mark = self.mark;
        shared.room.open_bytes = self.active.open_bytes();
    }

    fn write_seal(&mut self, kind: FrameKind) -> Result<(), WriteError> {
        let header = FrameHeader {
            first_index: self.last_index() + 1,
            salt: self.active.salt,
            ..FrameHeader::empty(kind, self.next_batch, self.durable)
        };
        let frame = header.encode();
        let written = self.active.file.file.write_at(self.active.offset, &[IoSlice::new(&frame)]);
        self.written(written, CLOSE_BYTES)?;
        self.active.offset += CLOSE_BYTES;
        self.next_batch += 1;
        self.reader.lock_mut().room.open_bytes = self.active.open_bytes();
        Ok(())
    }
}
