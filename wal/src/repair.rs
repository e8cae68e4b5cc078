//! Repair: giving up what a refused log can no longer prove, because a person asked for it.
//!
//! Opening never does this: [`plan`] says what would be kept and what would be lost, and changes
//! nothing; [`carry_out`] does just that. Every file that it changes is first set aside whole. At
//! each moment of it the log is refused as before, or is the repaired one: the segment that is cut
//! is replaced by one rename while those behind it still stand, and these go newest first.

use std::io::{self, IoSlice};
use std::path::Path;

use crate::error::{OpenError, RepairError};
use crate::scan::{Found, Replay, find_segments, io_error, scan};
use crate::segment::{HEADER_BYTES, HeaderFound, SegmentHeader, WalkEnd, walk};
use crate::storage::{Storage, StorageFile};

/// What a repair would do.
#[derive(Debug)]
pub struct Repair {
    /// Why the log is refused.
    pub why: OpenError,
    /// First index that is kept, or the one that the next entry will have.
    pub first: u64,
    /// Last index that is kept; `first - 1` if none is.
    pub last: u64,
    /// Last index that the log is known to have held; what lies between is given up. Later ones
    /// may have been there too.
    pub known_last: u64,
    /// The segment that is cut, if one is.
    pub cut: Option<Cut>,
    /// Segments that are moved away whole, oldest first.
    pub moved: Vec<String>,
}

/// Where a segment is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Its file.
    pub file: String,
    /// Offset behind its last good frame, in bytes.
    pub offset: u64,
    /// Length that the repaired file has, in bytes.
    bytes: u64,
}

/// Name of the file that a cut segment is written to before it takes its place.
const DRAFT: &str = "repair";

/// One read and write.
const COPY_BYTES: u64 = 1 << 20;

/// Says what a repair would do; `None` if the log may be opened as it is.
///
/// # Errors
/// [`RepairError::Refused`] for what no repair can help, [`RepairError::NothingLeft`] if not even
/// the first segment can be kept.
pub fn plan<S: Storage>(storage: &S) -> Result<Option<Repair>, RepairError> {
    let why = match scan(storage, None) {
        Ok(_) => return Ok(None),
        Err(why) => why,
    };
    match why {
        OpenError::Corrupt(_)
        | OpenError::Shortened { .. }
        | OpenError::HeaderLost { .. }
        | OpenError::MissingSegment { .. } => salvage(&find_segments(storage)?, why).map(Some),
        other => Err(RepairError::Refused(other)),
    }
}

/// Does what a plan says, and durably. What is changed or moved lies in `aside` afterwards; the
/// caller made that directory on the same file system and durable.
///
/// # Errors
/// [`RepairError::Refused`] with the failed call. The log is then as it was, or still refused, and
/// can be repaired again.
pub fn carry_out<S: Storage>(
    storage: &S,
    repair: &Repair,
    aside: &Path,
) -> Result<(), RepairError> {
    if let Some(cut) = &repair.cut {
        keep_original(storage, cut, aside)?;
        replace(storage, cut)?;
    }
    for name in repair.moved.iter().rev() {
        storage.archive(name, aside).map_err(io_error("move", name))?;
        storage.sync_dir().map_err(io_error("sync", "the directory"))?;
    }
    Ok(())
}

/// Where the good part of a log ends.
enum End {
    /// Before the segment at that place.
    Before(usize),
    /// Inside that one, behind its last good frame.
    Inside(usize, Cut),
}

fn salvage<F: StorageFile>(found: &[Found<F>], why: OpenError) -> Result<Repair, RepairError> {
    let nothing = || {
        let file = found.first().map(|segment| segment.name.clone()).unwrap_or_default();
        RepairError::NothingLeft { file }
    };
    let first = found.first().and_then(whole).ok_or_else(nothing)?;
    let mut replay = Replay::new(Some(first));
    let end = good_end(found, &mut replay)?;
    // A whole frame that knows of batches behind the end would have the rest refused again.
    if replay.durable >= replay.next_batch {
        return Err(RepairError::Refused(why));
    }
    let (kept, cut) = match end {
        End::Before(0) => return Err(nothing()),
        End::Before(place) => (place, None),
        End::Inside(place, cut) => (place + 1, Some(cut)),
    };
    let (first, last) = (replay.index.first(), replay.index.last());
    let moved: Vec<String> = found[kept..].iter().map(|segment| segment.name.clone()).collect();
    let damaged = found.get(kept.saturating_sub(usize::from(cut.is_some()))..).unwrap_or_default();
    let known_last = known_last(damaged)?.max(last);
    Ok(Repair { why, first, last, known_last, cut, moved })
}

fn whole<F>(found: &Found<F>) -> Option<&SegmentHeader> {
    match &found.header {
        HeaderFound::Whole(header) => Some(header),
        _ => None,
    }
}

/// Replays every frame up to the first that cannot be kept.
fn good_end<F: StorageFile>(found: &[Found<F>], replay: &mut Replay) -> Result<End, RepairError> {
    for (place, segment) in found.iter().enumerate() {
        let follows = place == 0 || segment.seq == found[place - 1].seq + 1;
        let header = whole(segment).filter(|header| {
            follows && (header.seq, header.first_index) == (segment.seq, segment.first_index)
        });
        let Some(header) = header else { return Ok(End::Before(place)) };
        if replay.begin(header).is_some() {
            return Ok(End::Before(place));
        }
        replay.durable = replay.durable.max(header.durable_seq);
        let walked = walk(&segment.file, header, |offset, frame, body| {
            replay.take(header.seq, offset, frame, body)
        })
        .map_err(io_error("read", &segment.name))?;
        match walked.end {
            WalkEnd::Closed => {}
            WalkEnd::Nonsense(what) => {
                let (file, what) = (segment.name.clone(), what.to_string());
                let offset = walked.offset;
                return Err(RepairError::Refused(OpenError::Nonsense { file, offset, what }));
            }
            WalkEnd::Zeros | WalkEnd::RanOut | WalkEnd::Damaged(_) => {
                let (file, bytes) = (segment.name.clone(), header.segment_bytes.max(segment.bytes));
                return Ok(End::Inside(place, Cut { file, offset: walked.offset, bytes }));
            }
        }
    }
    // Closed to its end, and refused all the same: batches are missing behind it.
    Ok(End::Before(found.len()))
}

/// The last index that the segments from the damage on are known to hold.
fn known_last<F: StorageFile>(damaged: &[Found<F>]) -> Result<u64, RepairError> {
    let mut last = 0;
    for segment in damaged {
        let Some(header) = whole(segment) else { continue };
        last = last.max(header.first_index.saturating_sub(1));
        let mut next = header.first_index;
        let walked = walk(&segment.file, header, |_, frame, body| {
            next = frame.first_index;
            crate::frame::decode_body(frame, body, |record| match record {
                crate::frame::RecordView::Entry { .. } => next += 1,
                crate::frame::RecordView::Cut { from, .. } => next = from,
                _ => {}
            })
        })
        .map_err(io_error("read", &segment.name))?;
        last = last.max(next.saturating_sub(1));
        if let WalkEnd::Damaged(damage) = walked.end {
            last = last.max(damage.resumes_at.map_or(0, |next| next.saturating_sub(1)));
        }
    }
    Ok(last)
}

/// Sets a whole copy of a segment aside, durably.
fn keep_original<S: Storage>(storage: &S, cut: &Cut, aside: &Path) -> Result<(), RepairError> {
    let copy = format!("{}.damaged", cut.file);
    let failed = |doing| io_error(doing, &copy);
    let original = storage.open(&cut.file).map_err(io_error("open", &cut.file))?;
    let bytes = original.size().map_err(io_error("read", &cut.file))?;
    let file = fresh(storage, &copy).map_err(failed("make"))?;
    copy_bytes(&original, &file, bytes).map_err(failed("write to"))?;
    file.sync_all().map_err(failed("sync"))?;
    storage.archive(&copy, aside).map_err(failed("move"))?;
    storage.sync_dir().map_err(io_error("sync", "the directory"))?;
    Ok(())
}

/// Puts a segment that ends at the cut in the place of the damaged one, by one rename.
fn replace<S: Storage>(storage: &S, cut: &Cut) -> Result<(), RepairError> {
    let failed = |doing| io_error(doing, DRAFT);
    let original = storage.open(&cut.file).map_err(io_error("open", &cut.file))?;
    let draft = fresh(storage, DRAFT).map_err(failed("make"))?;
    draft.allocate(cut.bytes).map_err(failed("allocate"))?;
    copy_bytes(&original, &draft, cut.offset.max(HEADER_BYTES)).map_err(failed("write to"))?;
    draft.sync_all().map_err(failed("sync"))?;
    storage.rename(DRAFT, &cut.file).map_err(failed("rename"))?;
    storage.sync_dir().map_err(io_error("sync", "the directory"))?;
    Ok(())
}

/// A new file, in the place of what an interrupted repair left.
fn fresh<S: Storage>(storage: &S, name: &str) -> io::Result<S::File> {
    match storage.remove(name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    storage.create(name)
}

fn copy_bytes<F: StorageFile>(from: &F, to: &F, bytes: u64) -> io::Result<()> {
    let mut at = 0;
    while at < bytes {
        let mut part = vec![0; (bytes - at).min(COPY_BYTES) as usize];
        let read = from.read_at(at, &mut part)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_at(at, &[IoSlice::new(&part[..read])])?;
        at += read as u64;
    }
    Ok(())
}
