//! Opening: scan, judge, then the few repairs that the decision table allows.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::error::{OpenError, WriteError, is_no_space};
use crate::index::SEGMENT_BYTES_MAX;
use crate::log::{Active, Log, Options, Parts, give_name};
use crate::reader::{Room, SegmentFile, Shared};
use crate::record::Identity;
use crate::scan::{Replay, Scan, Seen, Segment, Torn, io_error, scan_seen};
use crate::segment::{
    HEADER_BYTES, SEGMENT_BYTES_MIN, SPARE_NAME, SegmentHeader, allocate_between, segment_name,
};
use crate::storage::{Storage, StorageFile};

/// How a log was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There was none; it was made.
    Fresh,
    /// Nothing was damaged.
    Clean,
    /// The last write was torn by a crash; it was never acknowledged and is gone.
    TornTail {
        /// Segment file.
        file: String,
        /// Where the torn frame began, in bytes.
        offset: u64,
        /// Bytes that were zeroed.
        bytes: u64,
        /// What was wrong there.
        reason: String,
    },
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// First live index, or the one that the first entry will have.
    pub first: u64,
    /// Last live index; `first - 1` if there is none.
    pub last: u64,
    /// Position (index, term) before the first live entry; term 0 if unknown.
    pub purged: (u64, u64),
    /// The newest vote.
    pub vote: Option<Vec<u8>>,
    /// The newest committed position (index, term), never beyond `last`.
    pub committed: Option<(u64, u64)>,
    /// How the log was found.
    pub verdict: Verdict,
    /// Number of segments.
    pub segments: usize,
    /// Repairs and oddities, for people.
    pub notes: Vec<String>,
}

/// One read and write of the rewriting of doubtful bytes.
const COPY_BYTES: u64 = 1 << 20;

pub(crate) fn open<S: Storage>(
    storage: S,
    identity: Identity,
    options: Options,
    seen: &mut dyn FnMut(Seen),
) -> Result<(Log<S>, Recovered), OpenError> {
    let scan = scan_seen(&storage, Some(&identity), seen)?;
    let mut notes = Vec::new();
    drop_leftovers(&storage, &scan, &mut notes)?;
    let verdict = match (&scan.torn, scan.segments.last()) {
        (_, None) => return make_fresh(storage, identity, options, notes),
        (Some(torn), _) => erase_tail(&storage, &scan.segments, torn)?,
        (None, _) => Verdict::Clean,
    };
    let Scan { mut segments, replay, torn, .. } = scan;
    if let Some(torn) = torn {
        segments.truncate(torn.place + 1);
    }
    let doubtful = make_durable(&storage, &segments, &replay, &mut notes)?;
    let recovered = describe(&replay, verdict, segments.len(), notes);
    let sealed = !doubtful;
    let mut log = Log::from_parts(parts(storage, identity, options, segments, replay, sealed));
    log.seal().map_err(|e| write_error(e, "the newest segment"))?;
    Ok((log, recovered))
}

fn write_error(error: WriteError, file: &str) -> OpenError {
    io_error("write to", file)(io::Error::other(error))
}

/// Removes what a crash in rotation leaves: a spare and a segment that was never begun.
fn drop_leftovers<S: Storage>(
    storage: &S,
    scan: &Scan<S::File>,
    notes: &mut Vec<String>,
) -> Result<(), OpenError> {
    match storage.remove(SPARE_NAME) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove", SPARE_NAME)(e));
        }
        _ => {}
    }
    if let Some(unborn) = &scan.unborn {
        storage.remove(unborn).map_err(io_error("remove", unborn))?;
        notes.push(format!("removed {unborn}: a segment that was never begun (crash in rotation)"));
    }
    // Also what the last run renamed is durable before anything is served.
    storage.sync_dir().map_err(io_error("sync", "the directory"))
}

/// Deletes what lies behind a torn frame, newest first, and zeroes its bytes. The zeros become
/// durable in [`make_durable`], of which this segment is now the last.
fn erase_tail<S: Storage>(
    storage: &S,
    segments: &[Segment<S::File>],
    torn: &Torn,
) -> Result<Verdict, OpenError> {
    for later in segments[torn.place + 1..].iter().rev() {
        storage.remove(&later.name).map_err(io_error("remove", &later.name))?;
        storage.sync_dir().map_err(io_error("sync", "the directory"))?;
    }
    let segment = &segments[torn.place];
    let zeros = vec![0; COPY_BYTES as usize];
    let mut at = torn.offset;
    while at < torn.dirty_end {
        let step = (torn.dirty_end - at).min(COPY_BYTES);
        let part = [IoSlice::new(&zeros[..step as usize])];
        segment.file.write_at(at, &part).map_err(io_error("write to", &segment.name))?;
        at += step;
    }
    let (file, reason) = (segment.name.clone(), torn.reason.clone());
    let bytes = torn.dirty_end - torn.offset;
    tracing::warn!(%file, offset = torn.offset, bytes, %reason, "cut a torn tail off the log");
    Ok(Verdict::TornTail { file, offset: torn.offset, bytes, reason })
}

/// Writes again what may be only in the page cache: after a failed fsync the kernel forgets that
/// such pages are dirty, and they would be served and then lost. Says whether there was any.
fn make_durable<S: Storage>(
    storage: &S,
    segments: &[Segment<S::File>],
    replay: &Replay,
    notes: &mut Vec<String>,
) -> Result<bool, OpenError> {
    let Some(last) = segments.last() else { return Ok(false) };
    let failed = |doing| io_error(doing, &last.name);
    if last.bytes < last.header.segment_bytes {
        let length = last.header.segment_bytes;
        match last.file.allocate(length) {
            Ok(()) => notes.push(format!("{} was short of its unwritten end; restored", last.name)),
            Err(e) if is_no_space(&e) => return Err(OpenError::NoSpace { need_bytes: length }),
            Err(e) => return Err(failed("allocate")(e)),
        }
    }
    let doubtful = replay.doubtful.front().map(|(_, offset)| *offset);
    if replay.durable < last.header.first_batch {
        rewrite(&last.file, 0, HEADER_BYTES).map_err(failed("rewrite"))?;
    }
    if let Some(from) = doubtful {
        rewrite(&last.file, from, replay.offset).map_err(failed("rewrite"))?;
    }
    last.file.sync_all().map_err(failed("sync"))?;
    storage.sync_dir().map_err(io_error("sync", "the directory"))?;
    Ok(doubtful.is_some())
}

fn rewrite<F: StorageFile>(file: &F, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let mut bytes = vec![0; (to - at).min(COPY_BYTES) as usize];
        if file.read_at(at, &mut bytes)? < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(at, &[IoSlice::new(&bytes)])?;
        at += bytes.len() as u64;
    }
    Ok(())
}

fn describe(replay: &Replay, verdict: Verdict, segments: usize, notes: Vec<String>) -> Recovered {
    let index = &replay.index;
    let last = index.last();
    // A committed position is written behind its entries, so only a caller's mistake or a cut
    // puts it beyond them; nobody gains from being told of entries that are not there.
    let committed = index.committed.map(|(at, term)| {
        if at > last { (last, index.term_at(last).unwrap_or(0)) } else { (at, term) }
    });
    Recovered {
        first: index.first(),
        last,
        purged: index.base(),
        vote: index.vote.clone(),
        committed,
        verdict,
        segments,
        notes,
    }
}

fn parts<S: Storage>(
    storage: S,
    identity: Identity,
    options: Options,
    segments: Vec<Segment<S::File>>,
    replay: Replay,
    sealed: bool,
) -> Parts<S> {
    let mut files = BTreeMap::new();
    let mut lengths = Vec::new();
    let mut newest = None;
    for segment in segments {
        let bytes = segment.bytes.max(segment.header.segment_bytes);
        lengths.push((segment.header.seq, bytes));
        let file = Arc::new(SegmentFile { name: segment.name, file: segment.file });
        files.insert(segment.header.seq, Arc::clone(&file));
        newest = Some((segment.header, bytes, file));
    }
    let (header, bytes, file) = newest.expect("the caller saw a last segment");
    let active = Active {
        seq: header.seq,
        file,
        bytes,
        offset: replay.offset,
        salt: header.salt,
        closed: replay.closed,
    };
    let shared = Shared { index: replay.index, files, room: Room::default(), mark: 0 };
    let (segments, next_batch) = (lengths.into(), replay.next_batch);
    Parts { storage, identity, options, shared, active, segments, next_batch, sealed }
}

/// Makes the first segment of a new log, in the same order as rotation makes the others.
fn make_fresh<S: Storage>(
    storage: S,
    identity: Identity,
    options: Options,
    notes: Vec<String>,
) -> Result<(Log<S>, Recovered), OpenError> {
    let file = storage.create(SPARE_NAME).map_err(io_error("make", SPARE_NAME))?;
    let wish = options.first_segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    let bytes = allocate_between(&file, wish, wish).map_err(io_error("allocate", SPARE_NAME))?;
    let bytes = bytes.ok_or(OpenError::NoSpace { need_bytes: wish })?;
    let header = SegmentHeader {
        identity,
        seq: 1,
        first_index: 1,
        previous_term: 0,
        segment_bytes: bytes,
        salt: storage.salt().map_err(io_error("get a salt for", SPARE_NAME))?,
        first_batch: 1,
        durable_seq: 0,
        cut_from: 0,
        committed: None,
        vote: None,
    };
    let name = segment_name(1, 1);
    let mut old = SPARE_NAME.to_owned();
    give_name(&storage, &mut old, &file, &name).map_err(io_error("name", &name))?;
    file.write_at(0, &[IoSlice::new(&header.encode())]).map_err(io_error("write to", &name))?;
    file.sync_data().map_err(io_error("sync", &name))?;
    let replay = Replay::fresh(HEADER_BYTES);
    let recovered = describe(&replay, Verdict::Fresh, 1, notes);
    let segments = vec![Segment { name, file, bytes, header }];
    Ok((Log::from_parts(parts(storage, identity, options, segments, replay, true)), recovered))
}
