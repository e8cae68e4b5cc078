//! The codec of a batch frame: bytes to value and back, no I/O.
//!
//! Layout: see the crate root. Reading trusts no field before the header's own checksum was
//! seen to be right, and no record before the body's was.

use std::io::IoSlice;

use crate::record::Record;

/// Length of a frame header; a seal is a frame of nothing else.
pub(crate) const FRAME_HEADER_BYTES: usize = 64;
/// Length of a record header inside the body.
pub(crate) const RECORD_HEADER_BYTES: usize = 24;
/// Frames and records begin at multiples of this.
pub(crate) const ALIGN: usize = 8;

const MAGIC: u32 = u32::from_le_bytes(*b"DWF1");
/// Payloads up to this length are copied next to their header: cheaper than one more iovec.
const COPY_MAX: usize = 4096;
const ZEROS: [u8; FRAME_HEADER_BYTES] = [0; FRAME_HEADER_BYTES];

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A batch of records.
    Batch,
    /// No records: says that the batch before it is on disk.
    Seal,
    /// A seal that ends its segment: nothing of this file follows it.
    Close,
}

impl FrameKind {
    fn number(self) -> u32 {
        match self {
            FrameKind::Batch => 1,
            FrameKind::Seal => 2,
            FrameKind::Close => 3,
        }
    }

    fn from_number(number: u32) -> Option<FrameKind> {
        [FrameKind::Batch, FrameKind::Seal, FrameKind::Close]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// The fixed part of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub seq: u64,
    pub durable_seq: u64,
    pub first_index: u64,
    pub salt: u64,
    pub body_bytes: u32,
    pub records: u32,
    pub body_crc: u32,
    pub kind: u32,
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotAFrame {
    Magic,
    HeaderCrc { expected: u32, found: u32 },
}

impl FrameHeader {
    /// A frame of this kind before its records are known; whole as it is for a seal.
    pub(crate) fn empty(kind: FrameKind, seq: u64, durable_seq: u64) -> FrameHeader {
        FrameHeader {
            seq,
            durable_seq,
            first_index: 0,
            salt: 0,
            body_bytes: 0,
            records: 0,
            body_crc: 0,
            kind: kind.number(),
        }
    }

    /// The kind, if this program knows it.
    pub(crate) fn known_kind(&self) -> Option<FrameKind> {
        FrameKind::from_number(self.kind)
    }

    /// Length of header and body.
    pub(crate) fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + u64::from(self.body_bytes)
    }

    pub(crate) fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.durable_seq.to_le_bytes());
        out[24..32].copy_from_slice(&self.first_index.to_le_bytes());
        out[32..40].copy_from_slice(&self.salt.to_le_bytes());
        out[40..44].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[44..48].copy_from_slice(&self.records.to_le_bytes());
        out[48..52].copy_from_slice(&self.body_crc.to_le_bytes());
        out[52..56].copy_from_slice(&self.kind.to_le_bytes());
        let crc = crc32c::crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<FrameHeader, NotAFrame> {
        if u32_at(bytes, 0) != MAGIC {
            return Err(NotAFrame::Magic);
        }
        let (expected, found) = (u32_at(bytes, 4), crc32c::crc32c(&bytes[8..]));
        if expected != found {
            return Err(NotAFrame::HeaderCrc { expected, found });
        }
        Ok(FrameHeader {
            seq: u64_at(bytes, 8),
            durable_seq: u64_at(bytes, 16),
            first_index: u64_at(bytes, 24),
            salt: u64_at(bytes, 32),
            body_bytes: u32_at(bytes, 40),
            records: u32_at(bytes, 44),
            body_crc: u32_at(bytes, 48),
            kind: u32_at(bytes, 52),
        })
    }
}

/// Whether these eight bytes could begin a frame: a cheap test before the checksum.
pub(crate) fn may_begin_frame(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// A record as it lies in a frame's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordView<'a> {
    /// `at` is the offset of the payload from the start of the frame.
    Entry {
        term: u64,
        payload: &'a [u8],
        at: u64,
    },
    Vote(&'a [u8]),
    Committed {
        index: u64,
        term: u64,
    },
    /// `previous_term` is the term of the entry before `from`.
    Cut {
        from: u64,
        previous_term: u64,
    },
}

/// The fixed part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub term: u64,
    pub bytes: u32,
    pub kind: u32,
    pub crc: u32,
}

const ENTRY: u32 = 1;
const VOTE: u32 = 2;
const COMMITTED: u32 = 3;
const CUT: u32 = 4;

impl RecordHeader {
    fn encode(self) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        out[0..8].copy_from_slice(&self.term.to_le_bytes());
        out[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        out[12..16].copy_from_slice(&self.kind.to_le_bytes());
        out[16..20].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> RecordHeader {
        RecordHeader {
            term: u64_at(bytes, 0),
            bytes: u32_at(bytes, 8),
            kind: u32_at(bytes, 12),
            crc: u32_at(bytes, 16),
        }
    }
}

/// Why a body with a right checksum cannot be read: another release wrote it, or a bug.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadBody {
    #[error("unknown frame kind {0}")]
    FrameKind(u32),
    #[error("unknown record kind {0}")]
    RecordKind(u32),
    #[error("a record runs past the end of its frame")]
    Overrun,
    #[error("the frame holds {found} records and claims {claimed}")]
    Count { claimed: u32, found: u32 },
    #[error("entry {found} where {expected} should be")]
    Index { expected: u64, found: u64 },
}

/// Walks the records of a body whose checksum is right.
pub(crate) fn decode_body<'a>(
    header: &FrameHeader,
    body: &'a [u8],
    mut visit: impl FnMut(RecordView<'a>),
) -> Result<(), BadBody> {
    let mut at = 0;
    let mut found = 0;
    while at < body.len() {
        let head = body.get(at..at + RECORD_HEADER_BYTES).ok_or(BadBody::Overrun)?;
        let head = RecordHeader::decode(head);
        let start = at + RECORD_HEADER_BYTES;
        let end = start.checked_add(head.bytes as usize).ok_or(BadBody::Overrun)?;
        let payload = body.get(start..end).ok_or(BadBody::Overrun)?;
        visit(view(head, payload, (FRAME_HEADER_BYTES + start) as u64)?);
        at = end.next_multiple_of(ALIGN);
        found += 1;
    }
    if found == header.records {
        Ok(())
    } else {
        Err(BadBody::Count { claimed: header.records, found })
    }
}

fn view(head: RecordHeader, payload: &[u8], at: u64) -> Result<RecordView<'_>, BadBody> {
    let number = || -> Result<u64, BadBody> {
        Ok(u64::from_le_bytes(payload.try_into().map_err(|_| BadBody::Overrun)?))
    };
    match head.kind {
        ENTRY => Ok(RecordView::Entry { term: head.term, payload, at }),
        VOTE => Ok(RecordView::Vote(payload)),
        COMMITTED => Ok(RecordView::Committed { index: number()?, term: head.term }),
        CUT => Ok(RecordView::Cut { from: number()?, previous_term: head.term }),
        other => Err(BadBody::RecordKind(other)),
    }
}

/// Bytes that a batch takes on disk.
pub(crate) fn batch_bytes<'a>(records: impl Iterator<Item = &'a Record>) -> u64 {
    let body: usize = records
        .map(|record| {
            let payload = match record {
                Record::Entry { payload, .. } | Record::Vote(payload) => payload.len(),
                Record::Committed { .. } | Record::Cut { .. } => 8,
            };
            (RECORD_HEADER_BYTES + payload).next_multiple_of(ALIGN)
        })
        .sum();
    (FRAME_HEADER_BYTES + body) as u64
}

/// A batch being encoded. Long payloads are borrowed, never copied; the buffer for the rest is
/// kept from batch to batch.
pub(crate) struct Encoder {
    scratch: Vec<u8>,
}

/// A batch ready for one vectored write.
pub(crate) struct Encoded<'a> {
    pub parts: Vec<IoSlice<'a>>,
}

/// A payload that stays where it is: written after `scratch[..at]`.
struct Borrowed<'a> {
    at: usize,
    payload: &'a [u8],
}

impl Encoder {
    pub(crate) fn new() -> Encoder {
        Encoder { scratch: Vec::new() }
    }

    /// Encodes one frame. `header` gives everything but the three fields that follow from the
    /// records; `cut_terms` gives, for each cut in order, the term of the entry before it.
    pub(crate) fn encode<'s, 'a: 's>(
        &'s mut self,
        mut header: FrameHeader,
        records: impl Iterator<Item = &'a Record>,
        cut_terms: &[u64],
    ) -> Encoded<'s> {
        self.scratch.clear();
        self.scratch.extend_from_slice(&ZEROS);
        let mut borrowed = Vec::new();
        let mut cut_terms = cut_terms.iter();
        for record in records {
            match record {
                Record::Entry { term, payload, .. } => {
                    self.push(ENTRY, *term, payload, &mut borrowed);
                }
                Record::Vote(vote) => self.push(VOTE, 0, vote, &mut borrowed),
                Record::Committed { index, term } => {
                    self.push_number(COMMITTED, *term, *index);
                }
                Record::Cut { from } => {
                    let previous = cut_terms.next().copied().unwrap_or(0);
                    self.push_number(CUT, previous, *from);
                }
            }
            header.records += 1;
        }
        self.finish(header, borrowed)
    }

    fn push<'a>(
        &mut self,
        kind: u32,
        term: u64,
        payload: &'a [u8],
        borrowed: &mut Vec<Borrowed<'a>>,
    ) {
        // Lengths are bounded by BATCH_BYTES_MAX, checked before encoding.
        let bytes = payload.len() as u32;
        let crc = crc32c::crc32c(payload);
        self.scratch.extend_from_slice(&RecordHeader { term, bytes, kind, crc }.encode());
        if payload.len() <= COPY_MAX {
            self.scratch.extend_from_slice(payload);
        } else {
            borrowed.push(Borrowed { at: self.scratch.len(), payload });
        }
        let padding = payload.len().next_multiple_of(ALIGN) - payload.len();
        self.scratch.extend_from_slice(&ZEROS[..padding]);
    }

    fn push_number(&mut self, kind: u32, term: u64, number: u64) {
        let payload = number.to_le_bytes();
        let crc = crc32c::crc32c(&payload);
        self.scratch.extend_from_slice(&RecordHeader { term, bytes: 8, kind, crc }.encode());
        self.scratch.extend_from_slice(&payload);
    }

    fn finish<'s>(
        &'s mut self,
        mut header: FrameHeader,
        borrowed: Vec<Borrowed<'s>>,
    ) -> Encoded<'s> {
        let (mut crc, mut body, mut from) = (0, 0, FRAME_HEADER_BYTES);
        for part in &borrowed {
            crc = crc32c::crc32c_append(crc, &self.scratch[from..part.at]);
            crc = crc32c::crc32c_append(crc, part.payload);
            body += part.at - from + part.payload.len();
            from = part.at;
        }
        header.body_crc = crc32c::crc32c_append(crc, &self.scratch[from..]);
        header.body_bytes = (body + self.scratch.len() - from) as u32;
        self.scratch[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode());
        let mut parts = Vec::with_capacity(2 * borrowed.len() + 1);
        let mut from = 0;
        for part in &borrowed {
            parts.push(IoSlice::new(&self.scratch[from..part.at]));
            parts.push(IoSlice::new(part.payload));
            from = part.at;
        }
        parts.push(IoSlice::new(&self.scratch[from..]));
        Encoded { parts }
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

#[cfg(test)]
#[path = "frame/tests.rs"]
mod tests;
