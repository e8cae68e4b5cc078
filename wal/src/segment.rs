//! One segment file: its name, its header page, and the walk over its frames.
//!
//! The walk reads and judges nothing but bytes; what its findings mean for the log is decided
//! in `recovery.rs`.

use std::io;

use crate::error::is_no_space;
use crate::frame::{
    ALIGN, BadBody, FRAME_HEADER_BYTES, FrameHeader, FrameKind, NotAFrame, may_begin_frame, u32_at,
    u64_at,
};
use crate::record::{Identity, VOTE_BYTES_MAX};
use crate::storage::StorageFile;

/// Length of the header page; frames begin after it.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// The smallest segment: header, a frame, room for the closing seal.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 2 * HEADER_BYTES;
/// The format version of this program.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Name of the file that becomes the next segment.
pub(crate) const SPARE_NAME: &str = "spare";

const MAGIC: [u8; 8] = *b"DOCKETWL";
const CRC_AT: usize = 12;
const VOTE_AT: usize = 128;
const HAS_COMMITTED: u32 = 1;
const HAS_VOTE: u32 = 2;

/// Name of a segment file.
pub(crate) fn segment_name(first_index: u64, seq: u64) -> String {
    format!("{first_index:020}-{seq:016x}.wal")
}

/// First index and sequence number of a segment's name.
pub(crate) fn parse_segment_name(name: &str) -> Option<(u64, u64)> {
    let (first, seq) = name.strip_suffix(".wal")?.split_once('-')?;
    let parsed = (first.parse().ok()?, u64::from_str_radix(seq, 16).ok()?);
    (segment_name(parsed.0, parsed.1) == name).then_some(parsed)
}

/// The header page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub identity: Identity,
    pub seq: u64,
    pub first_index: u64,
    /// Term of the entry before `first_index`; 0 if unknown.
    pub previous_term: u64,
    /// Length that the file was made with.
    pub segment_bytes: u64,
    pub salt: u64,
    /// Sequence number of the first batch in this file.
    pub first_batch: u64,
    /// The newest batch known to be on disk.
    pub durable_seq: u64,
    pub cut_from: u64,
    pub committed: Option<(u64, u64)>,
    pub vote: Option<Vec<u8>>,
}

/// What stands where a header should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HeaderFound {
    Whole(SegmentHeader),
    /// Not a header: empty, torn or rotten.
    Invalid(&'static str),
    UnknownVersion(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES as usize];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.identity.cluster_id);
        let (index, term) = self.committed.unwrap_or_default();
        let numbers = [
            self.identity.owner_id,
            self.seq,
            self.first_index,
            self.previous_term,
            self.segment_bytes,
            self.salt,
            self.first_batch,
            self.durable_seq,
            self.cut_from,
            index,
            term,
        ];
        for (number, place) in numbers.iter().zip(out[32..].chunks_exact_mut(8)) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let vote = self.vote.as_deref().unwrap_or_default();
        let flags = if self.committed.is_some() { HAS_COMMITTED } else { 0 }
            | if self.vote.is_some() { HAS_VOTE } else { 0 };
        out[120..124].copy_from_slice(&flags.to_le_bytes());
        out[124..128].copy_from_slice(&(vote.len() as u32).to_le_bytes());
        out[VOTE_AT..VOTE_AT + vote.len()].copy_from_slice(vote);
        let crc = crc32c::crc32c(&out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header page; a shorter slice is a file that ends inside it.
    pub(crate) fn decode(page: &[u8]) -> HeaderFound {
        if page.len() < HEADER_BYTES as usize {
            return HeaderFound::Invalid("the file ends inside its header");
        }
        if page[0..8] != MAGIC {
            return HeaderFound::Invalid("it does not begin with the magic number");
        }
        let version = u32_at(page, 8);
        if version != FORMAT_VERSION {
            return HeaderFound::UnknownVersion(version);
        }
        let crc = crc32c::crc32c(&page[..CRC_AT]);
        let crc = crc32c::crc32c_append(crc, &[0; 4]);
        let crc = crc32c::crc32c_append(crc, &page[CRC_AT + 4..HEADER_BYTES as usize]);
        let vote_bytes = u32_at(page, 124) as usize;
        if crc != u32_at(page, CRC_AT) || vote_bytes > VOTE_BYTES_MAX {
            return HeaderFound::Invalid("its checksum is wrong");
        }
        let mut cluster_id = [0; 16];
        cluster_id.copy_from_slice(&page[16..32]);
        let flags = u32_at(page, 120);
        HeaderFound::Whole(SegmentHeader {
            identity: Identity { cluster_id, owner_id: u64_at(page, 32) },
            seq: u64_at(page, 40),
            first_index: u64_at(page, 48),
            previous_term: u64_at(page, 56),
            segment_bytes: u64_at(page, 64),
            salt: u64_at(page, 72),
            first_batch: u64_at(page, 80),
            durable_seq: u64_at(page, 88),
            cut_from: u64_at(page, 96),
            committed: (flags & HAS_COMMITTED != 0).then(|| (u64_at(page, 104), u64_at(page, 112))),
            vote: (flags & HAS_VOTE != 0).then(|| page[VOTE_AT..VOTE_AT + vote_bytes].to_vec()),
        })
    }
}

/// Reads a file through a buffer that never grows over what the file holds.
pub(crate) struct Window<'f, F> {
    file: &'f F,
    size: u64,
    start: u64,
    bytes: Vec<u8>,
}

/// One read of the scan.
const WINDOW_BYTES: u64 = 256 << 10;

impl<'f, F: StorageFile> Window<'f, F> {
    pub(crate) fn new(file: &'f F) -> io::Result<Window<'f, F>> {
        Ok(Window { file, size: file.size()?, start: 0, bytes: Vec::new() })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The bytes from `offset`, fewer than asked for only at the end of the file.
    pub(crate) fn slice(&mut self, offset: u64, bytes: u64) -> io::Result<&[u8]> {
        let bytes = bytes.min(self.size.saturating_sub(offset));
        let held = self.start..self.start + self.bytes.len() as u64;
        if !(held.start <= offset && offset + bytes <= held.end) {
            self.load(offset, bytes.max(WINDOW_BYTES).min(self.size - offset.min(self.size)))?;
        }
        let from = (offset - self.start) as usize;
        let to = (from + bytes as usize).min(self.bytes.len());
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }

    fn load(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.bytes.resize(bytes as usize, 0);
        let read = self.file.read_at(offset, &mut self.bytes)?;
        self.bytes.truncate(read);
        self.start = offset;
        Ok(())
    }

    /// Offset of the last byte from `offset` on that is not zero.
    pub(crate) fn last_nonzero(&mut self, offset: u64) -> io::Result<Option<u64>> {
        let (mut at, mut last) = (offset, None);
        while at < self.size {
            let some = self.slice(at, WINDOW_BYTES)?;
            if some.is_empty() {
                break;
            }
            let found = some.iter().rposition(|byte| *byte != 0);
            let length = some.len() as u64;
            last = found.map(|place| at + place as u64).or(last);
            at += length;
        }
        Ok(last)
    }
}

/// How the frames of a file end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WalkEnd {
    /// With a closing seal.
    Closed,
    /// With zeros to the end of the file.
    Zeros,
    /// The file is shorter than it was made, and a frame may have stood where it ends.
    RanOut,
    /// With bytes that are not the expected frame.
    Damaged(Damage),
    /// With a whole frame that means nothing to this program.
    Nonsense(BadBody),
}

/// What is wrong at the first bad frame, and what lies behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage {
    pub reason: String,
    /// The largest durable_seq of the whole frame headers from here on.
    pub durable_seq: u64,
    /// First index of the next whole frame behind the damage.
    pub resumes_at: Option<u64>,
    /// End of the bytes that are not zero.
    pub dirty_end: u64,
}

/// The result of a walk: where it stopped, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Offset behind the last good frame.
    pub offset: u64,
    pub end: WalkEnd,
}

/// Walks the frames of a segment in order, the first with sequence number `header.first_batch`.
/// `visit` gets the offset, the header and the checked body of each.
pub(crate) fn walk<F: StorageFile>(
    file: &F,
    header: &SegmentHeader,
    mut visit: impl FnMut(u64, &FrameHeader, &[u8]) -> Result<(), BadBody>,
) -> io::Result<Walk> {
    let mut window = Window::new(file)?;
    let (mut offset, mut seq) = (HEADER_BYTES, header.first_batch);
    loop {
        let reason = match next_frame(&mut window, header, offset, seq)? {
            Next::Frame(frame) => {
                let body_at = offset + FRAME_HEADER_BYTES as u64;
                let body = window.slice(body_at, u64::from(frame.body_bytes))?;
                let kind = frame.known_kind().ok_or(BadBody::FrameKind(frame.kind));
                let kind = match kind.and_then(|kind| visit(offset, &frame, body).map(|()| kind)) {
                    Ok(kind) => kind,
                    Err(bad) => return Ok(Walk { offset, end: WalkEnd::Nonsense(bad) }),
                };
                offset += frame.frame_bytes();
                seq += 1;
                if kind == FrameKind::Close {
                    return Ok(Walk { offset, end: WalkEnd::Closed });
                }
                continue;
            }
            Next::Zeros => return Ok(Walk { offset, end: WalkEnd::Zeros }),
            Next::RanOut => return Ok(Walk { offset, end: WalkEnd::RanOut }),
            Next::Bad(reason) => reason,
        };
        let damage = look_behind(&mut window, header, offset, seq, reason)?;
        return Ok(Walk { offset, end: WalkEnd::Damaged(damage) });
    }
}

enum Next {
    Frame(FrameHeader),
    Zeros,
    RanOut,
    Bad(String),
}

fn next_frame<F: StorageFile>(
    window: &mut Window<'_, F>,
    header: &SegmentHeader,
    offset: u64,
    seq: u64,
) -> io::Result<Next> {
    let left = window.size().saturating_sub(offset);
    if left < ALIGN as u64 && window.size() < header.segment_bytes {
        return Ok(Next::RanOut);
    }
    let head = window.slice(offset, FRAME_HEADER_BYTES as u64)?;
    if head.iter().all(|byte| *byte == 0) {
        // Zeros are the end only if nothing but zeros follows.
        return Ok(match window.last_nonzero(offset)? {
            None => Next::Zeros,
            Some(_) => Next::Bad("zeros where a frame should be, and more data behind".to_owned()),
        });
    }
    let Ok(head) = <&[u8; FRAME_HEADER_BYTES]>::try_from(head) else {
        return Ok(Next::Bad("the file ends inside a frame header".to_owned()));
    };
    let frame = match FrameHeader::decode(head) {
        Ok(frame) => frame,
        Err(NotAFrame::Magic) => return Ok(Next::Bad("no frame begins here".to_owned())),
        Err(NotAFrame::HeaderCrc { expected, found }) => {
            return Ok(Next::Bad(format!(
                "checksum of a frame header is {found:#010x}, recorded is {expected:#010x}"
            )));
        }
    };
    if frame.salt != header.salt {
        return Ok(Next::Bad("a frame of another segment".to_owned()));
    }
    if frame.seq != seq {
        return Ok(Next::Bad(format!("batch {} where batch {seq} should be", frame.seq)));
    }
    check_body(window, offset, frame)
}

fn check_body<F: StorageFile>(
    window: &mut Window<'_, F>,
    offset: u64,
    frame: FrameHeader,
) -> io::Result<Next> {
    if frame.frame_bytes() > window.size() - offset {
        return Ok(Next::Bad("a frame runs past the end of the file".to_owned()));
    }
    let body_at = offset + FRAME_HEADER_BYTES as u64;
    let body = window.slice(body_at, u64::from(frame.body_bytes))?;
    let found = crc32c::crc32c(body);
    if found != frame.body_crc {
        return Ok(Next::Bad(format!(
            "checksum of a batch is {found:#010x}, recorded is {:#010x}",
            frame.body_crc
        )));
    }
    Ok(Next::Frame(frame))
}

/// Looks for whole frame headers from a damaged frame on: they say what was on disk when they
/// were written.
fn look_behind<F: StorageFile>(
    window: &mut Window<'_, F>,
    header: &SegmentHeader,
    offset: u64,
    seq: u64,
    reason: String,
) -> io::Result<Damage> {
    let dirty_end = window.last_nonzero(offset)?.map_or(offset, |last| last + 1);
    let mut damage = Damage { reason, durable_seq: 0, resumes_at: None, dirty_end };
    let mut at = offset;
    while at < dirty_end {
        let head = window.slice(at, FRAME_HEADER_BYTES as u64)?;
        if may_begin_frame(head)
            && let Ok(head) = <&[u8; FRAME_HEADER_BYTES]>::try_from(head)
            && let Ok(frame) = FrameHeader::decode(head)
            && frame.salt == header.salt
        {
            damage.durable_seq = damage.durable_seq.max(frame.durable_seq);
            if frame.seq > seq && damage.resumes_at.is_none() {
                damage.resumes_at = Some(frame.first_index);
            }
        }
        at += ALIGN as u64;
    }
    Ok(damage)
}

/// Makes room of at least `least` and if possible `wish` bytes, halving the wish while the disk
/// refuses. Gives the length reached, or `None` if not even `least` is there.
pub(crate) fn allocate_between<F: StorageFile>(
    file: &F,
    least: u64,
    wish: u64,
) -> io::Result<Option<u64>> {
    let have = file.size()?;
    let mut wish = wish.max(least);
    while wish > have {
        match file.allocate(wish) {
            Ok(()) => return Ok(Some(wish)),
            Err(e) if !is_no_space(&e) => return Err(e),
            Err(_) if wish == least => break,
            Err(_) => wish = (wish / 2).max(least),
        }
    }
    Ok((have >= least).then_some(have))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn header(vote: Option<Vec<u8>>, committed: Option<(u64, u64)>) -> SegmentHeader {
        SegmentHeader {
            identity: Identity { cluster_id: [9; 16], owner_id: 2 },
            seq: 3,
            first_index: 100,
            previous_term: 7,
            segment_bytes: 1 << 20,
            salt: u64::MAX,
            first_batch: 50,
            durable_seq: 49,
            cut_from: 90,
            committed,
            vote,
        }
    }

    #[test]
    fn a_header_comes_back_with_and_without_its_optional_parts() {
        for vote in [None, Some(Vec::new()), Some(vec![5; VOTE_BYTES_MAX])] {
            for committed in [None, Some((0, 0)), Some((99, 7))] {
                let header = header(vote.clone(), committed);
                assert_eq!(SegmentHeader::decode(&header.encode()), HeaderFound::Whole(header));
            }
        }
    }

    #[test]
    fn a_flip_of_any_byte_of_a_header_is_seen() {
        let page = header(Some(vec![1, 2, 3]), Some((99, 7))).encode();
        for at in 0..page.len() {
            let mut bad = page.clone();
            bad[at] ^= 0x10;
            assert!(!matches!(SegmentHeader::decode(&bad), HeaderFound::Whole(_)), "byte {at}");
        }
        assert!(matches!(SegmentHeader::decode(&page[..4095]), HeaderFound::Invalid(_)));
        assert!(matches!(SegmentHeader::decode(&[]), HeaderFound::Invalid(_)));
    }

    #[test]
    fn names_are_read_back_and_nothing_else_is_a_name() {
        let name = segment_name(42, 0xabc);
        assert_eq!(name, "00000000000000000042-0000000000000abc.wal");
        assert_eq!(parse_segment_name(&name), Some((42, 0xabc)));
        for bad in ["spare", "42-abc.wal", "00000000000000000042-0000000000000ABC.wal", ".wal"] {
            assert_eq!(parse_segment_name(bad), None, "{bad}");
        }
    }
}
