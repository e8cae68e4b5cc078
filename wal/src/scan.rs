//! Reads a log's directory into facts, judges them, and changes nothing.
//!
//! `open.rs` acts on the result; `inspect.rs` only tells it.

use std::collections::VecDeque;
use std::io;

use crate::error::{Corruption, OpenError};
use crate::frame::{BadBody, FrameHeader, decode_body};
use crate::index::Index;
use crate::record::Identity;
use crate::recovery::{
    FILES, FileFacts, FileVerdict, LOG, LastHeader, LogFacts, LogVerdict, Tail, decide,
};
use crate::segment::{
    FORMAT_VERSION, HEADER_BYTES, HeaderFound, SEGMENT_BYTES_MIN, SegmentHeader, WalkEnd, Window,
    parse_segment_name, walk,
};
use crate::storage::{Storage, StorageFile};

/// A segment file and what stands where its header should be.
pub(crate) struct Found<F> {
    pub name: String,
    pub seq: u64,
    pub first_index: u64,
    pub file: F,
    pub bytes: u64,
    pub header: HeaderFound,
}

/// A segment with a whole header.
pub(crate) struct Segment<F> {
    pub name: String,
    pub file: F,
    pub bytes: u64,
    pub header: SegmentHeader,
}

/// A log that may be opened.
pub(crate) struct Scan<F> {
    /// Oldest first; empty for a new log.
    pub segments: Vec<Segment<F>>,
    /// A last segment that was never begun.
    pub unborn: Option<String>,
    pub replay: Replay,
    /// The damaged tail, if there is one.
    pub torn: Option<Torn>,
}

/// A damaged tail that was never acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Torn {
    /// Place of its segment among the segments.
    pub place: usize,
    pub offset: u64,
    /// End of the bytes there that are not zero.
    pub dirty_end: u64,
    pub reason: String,
}

/// The state of the log as its frames give it, and the marks of durability among them.
pub(crate) struct Replay {
    pub index: Index,
    /// The batch that comes next.
    pub next_batch: u64,
    /// The newest batch that is known to be on disk.
    pub durable: u64,
    /// Where the last segment ends, and whether with a closing seal.
    pub offset: u64,
    pub closed: bool,
    /// Frames of the last segment that are not known to be on disk: (batch, offset).
    pub doubtful: VecDeque<(u64, u64)>,
}

pub(crate) fn io_error<'a>(
    doing: &'static str,
    file: &'a str,
) -> impl FnOnce(io::Error) -> OpenError + use<'a> {
    move |source| OpenError::Io { doing, file: file.to_owned(), source }
}

/// How far the reading of a log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Bytes of the segments that were read.
    pub bytes: u64,
    /// Bytes in all segments; what was never written in the newest one included.
    pub of: u64,
}

/// Reads and judges a directory. Without an identity any owner is accepted.
pub(crate) fn scan<S: Storage>(
    storage: &S,
    identity: Option<&Identity>,
) -> Result<Scan<S::File>, OpenError> {
    scan_seen(storage, identity, &mut |_| ())
}

/// The same, telling `seen` after each frame how far it is.
pub(crate) fn scan_seen<S: Storage>(
    storage: &S,
    identity: Option<&Identity>,
    seen: &mut dyn FnMut(Seen),
) -> Result<Scan<S::File>, OpenError> {
    let mut found = find_segments(storage)?;
    let facts = file_facts(&found, identity)?;
    let row = decide(FILES, &facts);
    tracing::debug!(row = row.name, "judged the log's files");
    let unborn = match row.verdict {
        FileVerdict::Fresh | FileVerdict::Go => None,
        FileVerdict::RemoveLast => found.pop().map(|last| last.name),
        refusal => return Err(refuse_files(refusal, &found, identity)),
    };
    let segments: Vec<_> = found.into_iter().filter_map(with_header).collect();
    let (replay, stop) = replay_all(&segments, seen)?;
    let facts = LogFacts {
        tail: stop.as_ref().map_or(Tail::Clean, |stop| stop.tail),
        shortened: stop.as_ref().is_some_and(|stop| stop.shortened),
        acknowledged: replay.durable >= replay.next_batch,
    };
    let row = decide(LOG, &facts);
    tracing::debug!(row = row.name, "judged the log's frames");
    let torn = match (row.verdict, stop) {
        (LogVerdict::Clean, _) => None,
        (LogVerdict::TornTail, stop) => stop.map(|stop| stop.torn),
        (refusal, stop) => return Err(refuse_log(refusal, &segments, &replay, stop)),
    };
    Ok(Scan { segments, unborn, replay, torn })
}

/// Lists the segments, oldest first, with their headers read.
pub(crate) fn find_segments<S: Storage>(storage: &S) -> Result<Vec<Found<S::File>>, OpenError> {
    let names = storage.list().map_err(io_error("list", "the directory"))?;
    let mut found = Vec::new();
    for name in names.into_iter().filter(|name| name.ends_with(".wal")) {
        let Some((first_index, seq)) = parse_segment_name(&name) else {
            return Err(OpenError::StrangeFile { file: name });
        };
        let file = storage.open(&name).map_err(io_error("open", &name))?;
        let (bytes, header) = read_header(&file).map_err(io_error("read", &name))?;
        found.push(Found { name, seq, first_index, file, bytes, header });
    }
    found.sort_by_key(|segment| segment.seq);
    Ok(found)
}

fn read_header<F: StorageFile>(file: &F) -> io::Result<(u64, HeaderFound)> {
    let bytes = file.size()?;
    let mut page = vec![0; HEADER_BYTES.min(bytes) as usize];
    let read = file.read_at(0, &mut page)?;
    Ok((bytes, SegmentHeader::decode(&page[..read])))
}

fn with_header<F>(found: Found<F>) -> Option<Segment<F>> {
    match found.header {
        HeaderFound::Whole(header) => {
            Some(Segment { name: found.name, file: found.file, bytes: found.bytes, header })
        }
        _ => None,
    }
}

fn whole<F>(found: &Found<F>) -> Option<&SegmentHeader> {
    match &found.header {
        HeaderFound::Whole(header) => Some(header),
        _ => None,
    }
}

fn file_facts<F: StorageFile>(
    found: &[Found<F>],
    identity: Option<&Identity>,
) -> Result<FileFacts, OpenError> {
    let older = found.split_last().map_or(&[][..], |(_, older)| older);
    let last_header = match found.last() {
        Some(last) => judge_last(last, older.last()).map_err(io_error("read", &last.name))?,
        None => LastHeader::Whole,
    };
    Ok(FileFacts {
        any_segment: !found.is_empty(),
        versions_known: !found.iter().any(|f| matches!(f.header, HeaderFound::UnknownVersion(_))),
        owner_is_ours: found.iter().all(|f| belongs_to(f, identity)),
        complete: first_hole(found).is_none(),
        older_headers_whole: older.iter().all(|f| whole(f).is_some()),
        last_header,
    })
}

fn belongs_to<F>(found: &Found<F>, identity: Option<&Identity>) -> bool {
    match (whole(found), identity) {
        (Some(header), Some(identity)) => header.identity == *identity,
        _ => true,
    }
}

/// Place and description of the first thing that does not fit the segment before.
fn first_hole<F>(found: &[Found<F>]) -> Option<(usize, String)> {
    for (place, segment) in found.iter().enumerate() {
        if place > 0 && segment.seq != found[place - 1].seq + 1 {
            let before = &found[place - 1].name;
            return Some((place, format!("segment {:x} does not follow {before}", segment.seq)));
        }
        if let Some(header) = whole(segment)
            && (header.seq, header.first_index) != (segment.seq, segment.first_index)
        {
            let (index, seq) = (header.first_index, header.seq);
            return Some((place, format!("its header says segment {seq:x}, first index {index}")));
        }
    }
    None
}

/// Whether a last segment without a header may be a crash in rotation. A segment gets its name
/// only after its full length is durable, and its first frame only after its header is: so a
/// file of full length with nothing behind the header page never held a frame. A shorter file is
/// as innocent only if the segment before it was not closed.
fn judge_last<F: StorageFile>(
    last: &Found<F>,
    before: Option<&Found<F>>,
) -> io::Result<LastHeader> {
    if whole(last).is_some() {
        return Ok(LastHeader::Whole);
    }
    let first_ever = last.seq == 1;
    if before.is_none() && !first_ever {
        return Ok(LastHeader::Lost);
    }
    if Window::new(&last.file)?.last_nonzero(HEADER_BYTES)?.is_some() {
        return Ok(LastHeader::Lost);
    }
    if last.bytes >= SEGMENT_BYTES_MIN {
        return Ok(LastHeader::Unborn);
    }
    match before.and_then(|before| whole(before).map(|header| (before, header))) {
        Some((before, header)) => {
            let end = walk(&before.file, header, |_, _, _| Ok(()))?.end;
            Ok(if end == WalkEnd::Zeros { LastHeader::Unborn } else { LastHeader::Lost })
        }
        None => Ok(LastHeader::Lost),
    }
}

fn refuse_files<F>(
    verdict: FileVerdict,
    found: &[Found<F>],
    identity: Option<&Identity>,
) -> OpenError {
    for (place, segment) in found.iter().enumerate() {
        let file = segment.name.clone();
        match (&segment.header, verdict, identity) {
            (HeaderFound::UnknownVersion(version), FileVerdict::RefuseVersion, _) => {
                return OpenError::UnknownVersion { file, found: *version, known: FORMAT_VERSION };
            }
            (HeaderFound::Whole(header), FileVerdict::RefuseOwner, Some(identity))
                if header.identity != *identity =>
            {
                let (found, expected) = (header.identity, *identity);
                return OpenError::OtherOwner { file, found, expected };
            }
            (HeaderFound::Invalid(what), FileVerdict::RefuseHeader, _) => {
                let what = format!("{what} ({} bytes, segment {})", segment.bytes, place + 1);
                return OpenError::HeaderLost { file, what };
            }
            _ => {}
        }
    }
    let (place, what) = first_hole(found).unwrap_or_default();
    let file = found.get(place).map(|segment| segment.name.clone()).unwrap_or_default();
    OpenError::MissingSegment { file, what }
}

/// Where and why the frames stop before their proper end.
struct Stop {
    tail: Tail,
    shortened: bool,
    torn: Torn,
    resumes_at: Option<u64>,
}

/// Replays every frame up to the first that is not good; behind it only looks for durable marks.
fn replay_all<F: StorageFile>(
    segments: &[Segment<F>],
    seen: &mut dyn FnMut(Seen),
) -> Result<(Replay, Option<Stop>), OpenError> {
    let mut replay = Replay::new(segments.first().map(|segment| &segment.header));
    let mut stop: Option<Stop> = None;
    let of = segments.iter().map(|segment| segment.bytes).sum();
    let mut before = 0;
    for (place, segment) in segments.iter().enumerate() {
        let begin = before;
        before += segment.bytes;
        replay.durable = replay.durable.max(segment.header.durable_seq);
        if let Some(stop) = &mut stop {
            stop.resumes_at = stop.resumes_at.or(Some(segment.header.first_index));
            look_for_marks(segment, &mut replay)?;
            continue;
        }
        let last = place + 1 == segments.len();
        let mut at = |offset| seen(Seen { bytes: begin + offset, of });
        stop = replay_one(segment, place, last, &mut replay, &mut at)?;
    }
    Ok((replay, stop))
}

fn replay_one<F: StorageFile>(
    segment: &Segment<F>,
    place: usize,
    last: bool,
    replay: &mut Replay,
    at: &mut dyn FnMut(u64),
) -> Result<Option<Stop>, OpenError> {
    let header = &segment.header;
    if let Some(what) = replay.begin(header) {
        let file = segment.name.clone();
        return Err(OpenError::Nonsense { file, offset: 0, what });
    }
    let walked = walk(&segment.file, header, |offset, frame, body| {
        at(offset + body.len() as u64);
        replay.take(header.seq, offset, frame, body)
    })
    .map_err(io_error("read", &segment.name))?;
    replay.offset = walked.offset;
    replay.closed = walked.end == WalkEnd::Closed;
    let short = segment.bytes < header.segment_bytes;
    let torn = |reason: String, dirty_end| Torn { place, offset: walked.offset, dirty_end, reason };
    let unclosed = || torn("the segment ends without its closing seal".to_owned(), walked.offset);
    let stop = |tail, shortened, torn| Some(Stop { tail, shortened, torn, resumes_at: None });
    Ok(match walked.end {
        WalkEnd::Closed => None,
        WalkEnd::Zeros if last => None,
        WalkEnd::Zeros => stop(Tail::Damaged, false, unclosed()),
        WalkEnd::RanOut => {
            let reason = format!("the file was cut to {} bytes", segment.bytes);
            stop(Tail::Damaged, true, torn(reason, walked.offset))
        }
        WalkEnd::Damaged(damage) => {
            replay.durable = replay.durable.max(damage.durable_seq);
            let torn = torn(damage.reason, damage.dirty_end);
            let resumes_at = damage.resumes_at;
            Some(Stop { tail: Tail::Damaged, shortened: short, torn, resumes_at })
        }
        WalkEnd::Nonsense(bad) => stop(Tail::Nonsense, false, torn(bad.to_string(), walked.offset)),
    })
}

/// Raises D by the frames of a segment behind the damage.
fn look_for_marks<F: StorageFile>(
    segment: &Segment<F>,
    replay: &mut Replay,
) -> Result<(), OpenError> {
    let mut durable = 0;
    let walked = walk(&segment.file, &segment.header, |_, frame, _| {
        durable = durable.max(frame.durable_seq);
        Ok(())
    })
    .map_err(io_error("read", &segment.name))?;
    if let WalkEnd::Damaged(damage) = walked.end {
        durable = durable.max(damage.durable_seq);
    }
    replay.durable = replay.durable.max(durable);
    Ok(())
}

fn refuse_log<F>(
    verdict: LogVerdict,
    segments: &[Segment<F>],
    replay: &Replay,
    stop: Option<Stop>,
) -> OpenError {
    let last_good = replay.index.last();
    let place = stop.as_ref().map_or(segments.len().saturating_sub(1), |stop| stop.torn.place);
    let file = segments.get(place).map(|segment| segment.name.clone()).unwrap_or_default();
    let offset = stop.as_ref().map_or(replay.offset, |stop| stop.torn.offset);
    let resumes_at = stop.as_ref().and_then(|stop| stop.resumes_at);
    let reason = stop.map_or("batches are missing at the end".to_owned(), |stop| stop.torn.reason);
    match verdict {
        LogVerdict::RefuseNonsense => OpenError::Nonsense { file, offset, what: reason },
        LogVerdict::RefuseShortened => {
            let (found_bytes, expected_bytes) = segments
                .get(place)
                .map_or((0, 0), |segment| (segment.bytes, segment.header.segment_bytes));
            OpenError::Shortened { file, found_bytes, expected_bytes, last_good }
        }
        _ => OpenError::Corrupt(Box::new(Corruption {
            file,
            offset,
            reason,
            last_good,
            first_lost: last_good + 1,
            last_lost: resumes_at.map(|next| next - 1).filter(|last| *last > last_good),
            batch: replay.next_batch,
            durable: replay.durable,
        })),
    }
}

impl Replay {
    /// The state of a new log whose first frame goes to `offset`.
    pub(crate) fn fresh(offset: u64) -> Replay {
        Replay { offset, ..Replay::new(None) }
    }

    /// The state before the first frame of a log that begins with this segment.
    pub(crate) fn new(first: Option<&SegmentHeader>) -> Replay {
        let mut replay = Replay {
            index: Index::default(),
            next_batch: 1,
            durable: 0,
            offset: 0,
            closed: false,
            doubtful: VecDeque::new(),
        };
        if let Some(header) = first {
            replay.next_batch = header.first_batch;
            replay.index = Index::after(header.first_index.saturating_sub(1), header.previous_term);
            replay.index.vote.clone_from(&header.vote);
            replay.index.committed = header.committed;
            replay.index.cut_from = header.cut_from;
        }
        replay
    }

    /// Begins a segment; says what does not fit the frames before, if anything.
    pub(crate) fn begin(&mut self, header: &SegmentHeader) -> Option<String> {
        self.doubtful.clear();
        if header.first_batch != self.next_batch {
            let (found, expected) = (header.first_batch, self.next_batch);
            return Some(format!("it begins with batch {found} where {expected} should be"));
        }
        let next = self.index.last() + 1;
        if header.first_index < next {
            let found = header.first_index;
            return Some(format!("it begins with entry {found} where {next} should be"));
        }
        if header.first_index > next {
            self.index.jump(header.first_index - 1, header.previous_term);
        }
        None
    }

    pub(crate) fn take(
        &mut self,
        segment: u64,
        offset: u64,
        frame: &FrameHeader,
        body: &[u8],
    ) -> Result<(), BadBody> {
        let expected = self.index.last() + 1;
        if frame.first_index != expected {
            return Err(BadBody::Index { expected, found: frame.first_index });
        }
        decode_body(frame, body, |record| self.index.apply(segment, offset, record))?;
        self.next_batch = frame.seq + 1;
        self.durable = self.durable.max(frame.durable_seq);
        self.doubtful.push_back((frame.seq, offset));
        while self.doubtful.front().is_some_and(|(seq, _)| *seq <= self.durable) {
            self.doubtful.pop_front();
        }
        Ok(())
    }
}
