//! `wal`: an append-only log on disk that survives crashes and says so when it cannot.
//!
//! It never knows what its bytes mean, and never repairs data that was once acknowledged: it
//! refuses by name, with file, offset and index. Begin reading at `log.rs` (writing) and
//! `recovery.rs` (the decision table of opening).
//!
//! # Format, version 1
//!
//! All numbers are little-endian; checksums are CRC32C; frames and records begin at multiples of
//! 8 bytes; what is not named is zero. Numbers of kinds and fields are never reused. A program
//! refuses a version it does not know.
//!
//! A log is a flat directory of segments `{first_index:020}-{seq:016x}.wal`, a `spare` that
//! becomes the next one and is the reserve for a full disk, and a `lock` file. A segment is
//! allocated in full and synced before it gets its name, its name is durable before its header is
//! written, and its header before its first frame.
//!
//! Segment header, one page of 4096 bytes:
//! ```text
//!   0  8  magic "DOCKETWL"          72  8  salt, random, of this segment
//!   8  4  format version (1)        80  8  first batch of this segment
//!  12  4  checksum of the page      88  8  D: newest batch known to be on disk
//!         with this field zero      96  8  `from` of the newest cut before, or 0
//!  16 16  cluster id               104  8  committed index
//!  32  8  owner id                 112  8  committed term
//!  40  8  segment sequence number  120  4  1: has committed, 2: has vote
//!  48  8  first index              124  4  length of the vote
//!  56  8  term of the entry before 128     the vote, at most 1024 bytes
//!  64  8  length of the file
//! ```
//! A first index beyond the end of the segment before means that all earlier entries are void.
//!
//! Frame, one per batch (header of 64 bytes, then the body):
//! ```text
//!   0  4  magic "DWF1"              32  8  salt of the segment
//!   4  4  checksum of bytes 8..64   40  4  length of the body
//!   8  8  batch sequence number     44  4  number of records
//!  16  8  newest batch known to be  48  4  checksum of the body
//!         on disk when written      52  4  kind: 1 batch, 2 seal, 3 closing seal
//!  24  8  next index before it      56  8  zero
//! ```
//! A seal is a frame without a body; it takes a sequence number like every other. The closing
//! seal is the last frame of its segment.
//!
//! Record (header of 24 bytes, payload, padding to 8):
//! ```text
//!   0  8  term                      12  4  kind: 1 entry, 2 vote, 3 committed, 4 cut
//!   8  4  length of the payload     16  4  checksum of the payload
//! ```
//! An entry's index follows by counting from the frame's. Committed holds its index as payload;
//! a cut holds its `from`, and as term that of the entry before it.
//!
//! The frame's checksum covers the whole body and decides at opening; the record's own lets a
//! later read check one entry alone.

// In reading order; the comments keep the formatter from sorting them.
mod record;
// The bytes.
mod frame;
mod segment;
// Writing and reading.
mod log;
// What is where.
mod index;
mod reader;
// Opening.
mod recovery;
// Facts for it.
mod scan;
// Acting on it.
mod open;
// Giving up what is lost, when a person asks.
pub mod repair;
// Around it.
mod writer;
// Beside it.
pub mod inspect;
mod snapshot;
// Beneath it.
mod storage;
// The other one.
mod faulty;
// What can go wrong.
mod error;

pub use error::{Corruption, OpenError, ReadError, RepairError, SnapshotError, WriteError};
pub use faulty::{Fault, FaultyDisk, FaultyFile, Keep};
pub use log::{Log, Options};
pub use open::{Recovered, Verdict};
pub use reader::{Reader, Space};
pub use record::{BATCH_BYTES_MAX, Identity, LogEntry, Record, VOTE_BYTES_MAX};
pub use scan::Seen;
pub use snapshot::{SnapshotChunks, SnapshotInfo, SnapshotStore};
pub use storage::{Disk, DiskFile, Storage, StorageFile};
pub use writer::{Done, Writer};
