//! Reading entries from any thread while the log is being written.
//!
//! The index is behind a lock that is held for memory work only, never across a system call:
//! a reader does not wait for an fsync. Bytes of a segment are never rewritten, so a location
//! stays readable after the lock is gone, even if its entry is cut or purged meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::ReadError;
use crate::frame::{RECORD_HEADER_BYTES, RecordHeader};
use crate::index::{Index, Located};
use crate::record::LogEntry;
use crate::storage::StorageFile;

/// A segment's open file and its name, for messages.
#[derive(Debug)]
pub(crate) struct SegmentFile<F> {
    pub name: String,
    pub file: F,
}

/// What writer and readers share.
#[derive(Debug)]
pub(crate) struct Shared<F> {
    pub index: Index,
    pub files: BTreeMap<u64, Arc<SegmentFile<F>>>,
    pub room: Room,
    /// Number of the newest request of the [`crate::Writer`] that the index contains.
    pub mark: u64,
}

/// Space that the log has taken on disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Room {
    pub open_bytes: u64,
    pub spare_bytes: u64,
    pub reserve_bytes: u64,
}

/// How much can still be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Room in the open segment, in bytes.
    pub open_bytes: u64,
    /// The spare segment, which is the reserve: allocated, so nobody else can take it.
    pub spare_bytes: u64,
    /// What the file system has left.
    pub disk_free_bytes: u64,
    /// What should stay: max(1 MiB, 2 % of what is in use).
    pub reserve_bytes: u64,
    /// Whether new work may be taken: the rest can be written without touching the reserve.
    pub above_reserve: bool,
}

/// What must be free beside the reserve to take new work: two proposals of 256 KiB are in
/// flight at most, and some room is left for their framing and for the entries that follow.
const MARGIN_BYTES: u64 = 1 << 20;
/// The longest span read at once.
const SPAN_BYTES: u64 = 1 << 20;

/// A cloneable view of a log for reading.
#[derive(Debug)]
pub struct Reader<F> {
    shared: Arc<RwLock<Shared<F>>>,
}

impl<F> Clone for Reader<F> {
    fn clone(&self) -> Self {
        Reader { shared: Arc::clone(&self.shared) }
    }
}

impl<F: StorageFile> Reader<F> {
    pub(crate) fn new(shared: Shared<F>) -> Reader<F> {
        Reader { shared: Arc::new(RwLock::new(shared)) }
    }

    // No code panics while it holds this lock, so a poisoned one still guards whole data.
    pub(crate) fn lock(&self) -> RwLockReadGuard<'_, Shared<F>> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_mut(&self) -> RwLockWriteGuard<'_, Shared<F>> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads live entries, each checked against its checksum. An empty range gives nothing.
    ///
    /// # Errors
    /// [`ReadError`]: purged, not written yet, damaged, or unreadable.
    pub fn read(&self, from: u64, to_inclusive: u64) -> Result<Vec<LogEntry>, ReadError> {
        if from > to_inclusive {
            return Ok(Vec::new());
        }
        let plan = Plan::new(&self.lock(), from, to_inclusive)?;
        plan.run()
    }

    /// First live index, or the one that the first entry will have.
    pub fn first_index(&self) -> u64 {
        self.lock().index.first()
    }

    /// Last live index; if there is no entry, the one before [`Reader::first_index`], 0 in a
    /// new log.
    pub fn last_index(&self) -> u64 {
        self.lock().index.last()
    }

    /// Term of a live entry, or of the last purged one if it is known.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.lock().index.term_at(index)
    }

    /// How much can still be written.
    ///
    /// # Errors
    /// What the file system answers when asked for its free space.
    pub fn free_space(&self) -> io::Result<Space> {
        let (room, newest) = {
            let shared = self.lock();
            (shared.room, shared.files.last_key_value().map(|(_, file)| Arc::clone(file)))
        };
        let disk_free_bytes = newest.map_or(Ok(0), |newest| newest.file.free_bytes())?;
        let all = room.open_bytes + room.spare_bytes + disk_free_bytes;
        Ok(Space {
            open_bytes: room.open_bytes,
            spare_bytes: room.spare_bytes,
            disk_free_bytes,
            reserve_bytes: room.reserve_bytes,
            above_reserve: all >= room.reserve_bytes + MARGIN_BYTES,
        })
    }
}

/// Entries of one segment that are read with one system call.
struct Span<F> {
    file: Arc<SegmentFile<F>>,
    entries: Vec<Located>,
}

/// Where the asked entries lie: made under the lock, run without it.
pub(crate) struct Plan<F> {
    spans: Vec<Span<F>>,
}

impl<F: StorageFile> Plan<F> {
    pub(crate) fn new(shared: &Shared<F>, from: u64, to: u64) -> Result<Plan<F>, ReadError> {
        let (first, last) = (shared.index.first(), shared.index.last());
        if from < first {
            return Err(ReadError::Purged { asked: from, first });
        }
        let mut spans: Vec<Span<F>> = Vec::new();
        for index in from..=to {
            let found = shared.index.locate(index);
            let found = found.ok_or(ReadError::Beyond { asked: to, last })?;
            match spans.last_mut() {
                Some(span) if span.takes(&found) => span.entries.push(found),
                _ => {
                    let file = shared.files.get(&found.segment);
                    let file = file.expect("a live entry's segment is open until purged");
                    spans.push(Span { file: Arc::clone(file), entries: vec![found] });
                }
            }
        }
        Ok(Plan { spans })
    }

    pub(crate) fn run(self) -> Result<Vec<LogEntry>, ReadError> {
        let mut out = Vec::with_capacity(self.spans.iter().map(|span| span.entries.len()).sum());
        for span in &self.spans {
            span.read(&mut out)?;
        }
        Ok(out)
    }
}

fn record_start(entry: &Located) -> u64 {
    entry.offset - RECORD_HEADER_BYTES as u64
}

fn record_end(entry: &Located) -> u64 {
    entry.offset + u64::from(entry.bytes)
}

impl<F: StorageFile> Span<F> {
    fn takes(&self, next: &Located) -> bool {
        self.entries.first().is_some_and(|first| {
            first.segment == next.segment && record_end(next) - record_start(first) <= SPAN_BYTES
        })
    }

    fn read(&self, out: &mut Vec<LogEntry>) -> Result<(), ReadError> {
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else {
            return Ok(());
        };
        let start = record_start(first);
        let mut bytes = vec![0; (record_end(last) - start) as usize];
        let read = self.file.file.read_at(start, &mut bytes);
        let read = read.and_then(|read| {
            if read == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        });
        read.map_err(|source| ReadError::Io {
            file: self.file.name.clone(),
            offset: start,
            source,
        })?;
        for entry in &self.entries {
            out.push(self.check(entry, &bytes[(record_start(entry) - start) as usize..])?);
        }
        Ok(())
    }

    /// Takes an entry out of `bytes`, which begin at its record header.
    fn check(&self, entry: &Located, bytes: &[u8]) -> Result<LogEntry, ReadError> {
        let (head, rest) = bytes.split_at(RECORD_HEADER_BYTES);
        let head = RecordHeader::decode(head);
        let payload = &rest[..entry.bytes as usize];
        let found = crc32c::crc32c(payload);
        if found != head.crc || head.term != entry.term || head.bytes != entry.bytes {
            return Err(ReadError::Damaged {
                file: self.file.name.clone(),
                offset: record_start(entry),
                index: entry.index,
                expected: head.crc,
                found,
            });
        }
        Ok(LogEntry { index: entry.index, term: entry.term, payload: payload.to_vec() })
    }
}
