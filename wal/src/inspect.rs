//! Looking at a log without opening it: verify, dump, stat. Writes nothing and takes no lock, so
//! it may run beside the owner, and then sees the tail in motion.

use std::path::Path;

use crate::error::OpenError;
use crate::frame::{FrameKind, RecordView, decode_body};
use crate::open::Verdict;
use crate::record::{Identity, Record};
use crate::scan::{Scan, find_segments, io_error, scan};
use crate::segment::{HeaderFound, SegmentHeader, WalkEnd, walk};
use crate::storage::{Disk, Storage, StorageFile};

/// What [`verify`] found.
#[derive(Debug)]
pub struct Report {
    /// Every segment, oldest first, as far as it can be read.
    pub segments: Vec<SegmentStat>,
    /// First and last live index, if the log may be opened; `first > last` if it is empty.
    pub live: Option<(u64, u64)>,
    /// What opening would say.
    pub verdict: Result<Verdict, OpenError>,
}

/// One segment in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentStat {
    /// File name.
    pub file: String,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Bytes up to the end of the last good frame; 0 without a header.
    pub used_bytes: u64,
    /// Whose it is; `None` without a header.
    pub identity: Option<Identity>,
    /// Good batches, seals not counted.
    pub batches: u64,
    /// Entries in them, cut ones too.
    pub entries: u64,
    /// How its frames end.
    pub end: SegmentEnd,
}

/// How a segment ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentEnd {
    /// With a closing seal.
    Closed,
    /// With room for more.
    Open,
    /// There is no whole header.
    NoHeader(String),
    /// At something that is not a good frame.
    Bad {
        /// Where, in bytes.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
}

/// A record and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dumped {
    /// Segment file.
    pub file: String,
    /// Offset of the frame that holds it.
    pub offset: u64,
    /// Sequence number of its batch.
    pub batch: u64,
    /// The newest batch that was known to be on disk when this one was written.
    pub durable: u64,
    /// The record; `None` for a seal.
    pub record: Option<Record>,
}

/// A log in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Every segment, oldest first.
    pub segments: Vec<SegmentStat>,
    /// First live index, or the one that the first entry will have.
    pub first: u64,
    /// Last live index; `first - 1` if there is none.
    pub last: u64,
    /// The newest vote.
    pub vote: Option<Vec<u8>>,
    /// The newest committed position (index, term).
    pub committed: Option<(u64, u64)>,
    /// Sum of the file lengths, in bytes.
    pub bytes: u64,
}

/// Reads every byte of a log and says what opening it would say.
///
/// # Errors
/// [`OpenError::Io`] if the directory cannot be read. Damage is in the report.
pub fn verify(dir: &Path) -> Result<Report, OpenError> {
    verify_storage(&Disk::look(dir)?)
}

/// [`verify`] for any storage.
///
/// # Errors
/// As [`verify`].
pub fn verify_storage<S: Storage>(storage: &S) -> Result<Report, OpenError> {
    let segments = match stat_segments(storage) {
        Ok(segments) => segments,
        Err(e @ OpenError::StrangeFile { .. }) => {
            return Ok(Report { segments: Vec::new(), live: None, verdict: Err(e) });
        }
        Err(e) => return Err(e),
    };
    Ok(match scan(storage, None) {
        Ok(found) => {
            let live = Some((found.replay.index.first(), found.replay.index.last()));
            Report { segments, live, verdict: Ok(verdict(&found)) }
        }
        Err(e @ OpenError::Io { .. }) => return Err(e),
        Err(refusal) => Report { segments, live: None, verdict: Err(refusal) },
    })
}

fn verdict<F>(found: &Scan<F>) -> Verdict {
    match (&found.torn, found.segments.is_empty()) {
        (_, true) => Verdict::Fresh,
        (None, _) => Verdict::Clean,
        (Some(torn), _) => Verdict::TornTail {
            file: found.segments[torn.place].name.clone(),
            offset: torn.offset,
            bytes: torn.dirty_end - torn.offset,
            reason: torn.reason.clone(),
        },
    }
}

/// Every record of a log in file order, cut ones too, handed to `visit` one by one. Stops in
/// each segment at the first bad frame.
///
/// # Errors
/// [`OpenError::Io`] and [`OpenError::StrangeFile`].
pub fn dump(dir: &Path, visit: impl FnMut(Dumped)) -> Result<(), OpenError> {
    dump_storage(&Disk::look(dir)?, visit)
}

/// [`dump`] for any storage.
///
/// # Errors
/// As [`dump`].
pub fn dump_storage<S: Storage>(
    storage: &S,
    mut visit: impl FnMut(Dumped),
) -> Result<(), OpenError> {
    for segment in find_segments(storage)? {
        let HeaderFound::Whole(header) = &segment.header else { continue };
        walk(&segment.file, header, |offset, frame, body| {
            let mut next = frame.first_index;
            let mut tell = |record| {
                visit(Dumped {
                    file: segment.name.clone(),
                    offset,
                    batch: frame.seq,
                    durable: frame.durable_seq,
                    record,
                });
            };
            if frame.known_kind() != Some(FrameKind::Batch) {
                tell(None);
            }
            decode_body(frame, body, |view| tell(Some(owned(view, &mut next))))
        })
        .map_err(io_error("read", &segment.name))?;
    }
    Ok(())
}

fn owned(view: RecordView<'_>, next: &mut u64) -> Record {
    match view {
        RecordView::Entry { term, payload, .. } => {
            let index = *next;
            *next += 1;
            Record::Entry { index, term, payload: payload.to_vec() }
        }
        RecordView::Vote(vote) => Record::Vote(vote.to_vec()),
        RecordView::Committed { index, term } => Record::Committed { index, term },
        RecordView::Cut { from, .. } => {
            *next = from;
            Record::Cut { from }
        }
    }
}

/// A log in numbers.
///
/// # Errors
/// Every [`OpenError`] that opening would give, but for its owner.
pub fn stat(dir: &Path) -> Result<Stat, OpenError> {
    stat_storage(&Disk::look(dir)?)
}

/// [`stat`] for any storage.
///
/// # Errors
/// As [`stat`].
pub fn stat_storage<S: Storage>(storage: &S) -> Result<Stat, OpenError> {
    let segments = stat_segments(storage)?;
    let index = scan(storage, None)?.replay.index;
    Ok(Stat {
        first: index.first(),
        last: index.last(),
        vote: index.vote.clone(),
        committed: index.committed,
        bytes: segments.iter().map(|segment| segment.bytes).sum(),
        segments,
    })
}

fn stat_segments<S: Storage>(storage: &S) -> Result<Vec<SegmentStat>, OpenError> {
    let mut out = Vec::new();
    for segment in find_segments(storage)? {
        let mut stat = SegmentStat {
            file: segment.name.clone(),
            bytes: segment.bytes,
            used_bytes: 0,
            identity: None,
            batches: 0,
            entries: 0,
            end: SegmentEnd::Open,
        };
        match &segment.header {
            HeaderFound::Whole(header) => {
                count(&segment.file, header, &mut stat).map_err(io_error("read", &segment.name))?
            }
            HeaderFound::Invalid(what) => stat.end = SegmentEnd::NoHeader((*what).to_owned()),
            HeaderFound::UnknownVersion(version) => {
                stat.end = SegmentEnd::NoHeader(format!("format version {version} is unknown"));
            }
        }
        out.push(stat);
    }
    Ok(out)
}

fn count<F: StorageFile>(
    file: &F,
    header: &SegmentHeader,
    stat: &mut SegmentStat,
) -> std::io::Result<()> {
    stat.identity = Some(header.identity);
    let walked = walk(file, header, |_, frame, body| {
        stat.batches += u64::from(frame.known_kind() == Some(FrameKind::Batch));
        decode_body(frame, body, |record| {
            stat.entries += u64::from(matches!(record, RecordView::Entry { .. }));
        })
    })?;
    stat.used_bytes = walked.offset;
    let bad = |reason| SegmentEnd::Bad { offset: walked.offset, reason };
    stat.end = match walked.end {
        WalkEnd::Closed => SegmentEnd::Closed,
        WalkEnd::Zeros => SegmentEnd::Open,
        WalkEnd::RanOut => bad("the file was cut short here".to_owned()),
        WalkEnd::Damaged(damage) => bad(damage.reason),
        WalkEnd::Nonsense(what) => bad(what.to_string()),
    };
    Ok(())
}
