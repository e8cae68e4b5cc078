//! Every way in which the log refuses or fails, as facts with fields.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Why an append, sync or purge did not happen.
///
/// Cloneable, since a group commit tells the same failure to every waiter.
#[derive(Debug, Clone, Error)]
pub enum WriteError {
    /// There is no room, the reserve included. Nothing of the batch was written and the log
    /// stays usable: free some space and append again.
    #[error(
        "disk full: {need_bytes} bytes are needed and no segment can be allocated; \
         free space on the file system of the log"
    )]
    NoSpace {
        /// Size of the batch on disk.
        need_bytes: u64,
    },
    /// A write or fsync failed. Whether the batch is on disk is unknown, and the log takes no
    /// more: a second fsync of the same file could report success for bytes that are gone.
    #[error(
        "{doing} {file} failed ({source}); whether the last batch is on disk is unknown, \
         and this log must be opened anew before it is written to"
    )]
    OutcomeUnknown {
        /// What was being done.
        doing: &'static str,
        /// Segment file.
        file: String,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// An earlier write or fsync failed; nothing was tried.
    #[error("the log failed earlier ({first}); open it anew")]
    Failed {
        /// The first failure.
        first: Arc<WriteError>,
    },
    /// An entry does not follow the one before it. Nothing was written.
    #[error("entry {found} does not follow: the next index of this log is {expected}")]
    NotNext {
        /// The index that would have been right.
        expected: u64,
        /// The index that came.
        found: u64,
    },
    /// A cut outside the log. Nothing was written.
    #[error("cannot cut from {from}: the log holds {first}..={last}")]
    CutOutside {
        /// The asked cut.
        from: u64,
        /// First index that is still there.
        first: u64,
        /// Last index.
        last: u64,
    },
    /// A vote that does not fit a segment header. Nothing was written.
    #[error("a vote of {bytes} bytes is over the limit of {max}")]
    VoteTooLong {
        /// Its length.
        bytes: usize,
        /// [`crate::VOTE_BYTES_MAX`].
        max: usize,
    },
    /// A batch over [`crate::BATCH_BYTES_MAX`]. Nothing was written.
    #[error("a batch of {bytes} bytes is over the limit of {max}")]
    BatchTooLong {
        /// Its size on disk.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A segment could not be moved or removed. The log is usable and the segment still there.
    #[error("cannot {doing} segment {file}: {source}")]
    Purge {
        /// What was being done.
        doing: &'static str,
        /// Segment file.
        file: String,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// The writer was stopped before this was written.
    #[error("the log's writer was stopped before this was written")]
    Stopped,
}

impl WriteError {
    /// Whether the batch itself was wrong: nothing was written, and writing it again is refused
    /// again.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            WriteError::NotNext { .. }
                | WriteError::CutOutside { .. }
                | WriteError::VoteTooLong { .. }
                | WriteError::BatchTooLong { .. }
        )
    }
}

/// Why entries cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// They were purged.
    #[error("entry {asked} was purged: the log begins at {first}")]
    Purged {
        /// First index asked for.
        asked: u64,
        /// First index that is there.
        first: u64,
    },
    /// They do not exist yet.
    #[error("entry {asked} does not exist: the log ends at {last}")]
    Beyond {
        /// Last index asked for.
        asked: u64,
        /// Last index that is there.
        last: u64,
    },
    /// The bytes on disk are not those that were written.
    #[error(
        "entry {index} in {file} at offset {offset} is damaged: its checksum is {found:#010x}, \
         recorded is {expected:#010x}; do not restart before a copy of the directory is made"
    )]
    Damaged {
        /// Segment file.
        file: String,
        /// Offset of the record.
        offset: u64,
        /// The entry.
        index: u64,
        /// Checksum on disk.
        expected: u32,
        /// Checksum of what was read.
        found: u32,
    },
    /// The system refused to read.
    #[error("cannot read {file} at offset {offset}: {source}")]
    Io {
        /// Segment file.
        file: String,
        /// Where.
        offset: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Why a log was not opened. Each is a row of the decision table or a failed system call.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has the directory.
    #[error("{path} is in use by another process{}", holder_text(*.holder))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Process id written in it, if it could be read.
        holder: Option<u32>,
    },
    /// A file that this program does not know how to read.
    #[error(
        "{file} has format version {found}; this program reads version {known}: \
         it was written by another release, use that one"
    )]
    UnknownVersion {
        /// Segment file.
        file: String,
        /// Version in the file.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The log belongs to somebody else.
    #[error(
        "{file} belongs to cluster {}, owner {}, not to cluster {}, owner {}: wrong directory?",
        hex(&.found.cluster_id), .found.owner_id, hex(&.expected.cluster_id), .expected.owner_id
    )]
    OtherOwner {
        /// Segment file.
        file: String,
        /// Identity in the file.
        found: crate::Identity,
        /// Identity given to open.
        expected: crate::Identity,
    },
    /// A segment is not there.
    #[error(
        "a segment is missing before {file}: {what}; restore it or a backup, or give up what is lost \
         with `docket wal repair`"
    )]
    MissingSegment {
        /// The first segment after the hole.
        file: String,
        /// What does not fit.
        what: String,
    },
    /// A segment that held data has no valid header.
    #[error(
        "the header of {file} is damaged and the file cannot be shown to be empty: \
         {what}; make a copy of the directory, then restore a backup, or give up what is lost with \
         `docket wal repair`"
    )]
    HeaderLost {
        /// Segment file.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// Acknowledged data is damaged. Nothing was changed on disk.
    #[error("{0}")]
    Corrupt(Box<Corruption>),
    /// The newest segment file is shorter than it was made, and its end may have held
    /// acknowledged data.
    #[error(
        "{file} was cut to {found_bytes} of {expected_bytes} bytes after entry {last_good}: \
         acknowledged entries may be gone; nothing was changed; restore a backup, or give up what is \
         lost with `docket wal repair`"
    )]
    Shortened {
        /// Segment file.
        file: String,
        /// Length of the file.
        found_bytes: u64,
        /// Length it was made with.
        expected_bytes: u64,
        /// Last entry before the cut.
        last_good: u64,
    },
    /// A whole frame with a right checksum that means nothing to this program.
    #[error("{file} at offset {offset}: {what}; it was written by another release or a bug")]
    Nonsense {
        /// Segment file.
        file: String,
        /// Offset of the frame.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// A file in the directory that looks like a segment and is none.
    #[error("{file} is not the name of a segment; move it out of the log's directory")]
    StrangeFile {
        /// Its name.
        file: String,
    },
    /// There is no room for the first segment.
    #[error("disk full: the log needs {need_bytes} bytes for its first segment")]
    NoSpace {
        /// Bytes needed.
        need_bytes: u64,
    },
    /// A system call failed.
    #[error("cannot {doing} {file}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        file: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Where acknowledged data is damaged and what is known around it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "acknowledged data is damaged: {file} at offset {offset}: {reason}; entries from {first_lost}{} \
     cannot be trusted, the last good entry is {last_good} (batch {batch} is damaged, batch \
     {durable} was acknowledged); nothing was changed; make a copy of the directory, see \
     `docket wal verify`, restore a backup, or give up what is lost with `docket wal repair`",
    up_to(*.last_lost)
)]
pub struct Corruption {
    /// Segment file.
    pub file: String,
    /// Offset of the first damaged frame.
    pub offset: u64,
    /// What is wrong there, with expected and found checksum where there is one.
    pub reason: String,
    /// Last entry before the damage; 0 if there is none.
    pub last_good: u64,
    /// First entry that is lost or doubtful.
    pub first_lost: u64,
    /// Last entry before the next whole frame, if one was found.
    pub last_lost: Option<u64>,
    /// Sequence number of the damaged batch.
    pub batch: u64,
    /// The newest batch that is known to have been on disk.
    pub durable: u64,
}

/// Why a log cannot be repaired, or was not.
#[derive(Debug, Error)]
pub enum RepairError {
    /// A refusal that is not damage, or a call that failed.
    #[error("{0}")]
    Refused(#[from] OpenError),
    /// Nothing of the log can be trusted.
    #[error(
        "the first segment, {file}, has no whole header: nothing of this log can be kept; \
         restore a backup of the data directory"
    )]
    NothingLeft {
        /// The first segment file.
        file: String,
    },
}

/// Why a snapshot was not saved or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// No room; the unfinished file was removed.
    #[error("disk full while writing snapshot {file}; it was removed")]
    NoSpace {
        /// Snapshot file.
        file: String,
    },
    /// The bytes on disk are not those that were written.
    #[error("snapshot {file} is damaged at offset {offset}: {what}")]
    Damaged {
        /// Snapshot file.
        file: String,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Written by another release.
    #[error("snapshot {file} has format version {found}; this program reads version {known}")]
    UnknownVersion {
        /// Snapshot file.
        file: String,
        /// Version in the file.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// A chunk or the meta bytes over their limit.
    #[error("a snapshot {part} of {bytes} bytes is over the limit of {max}")]
    TooLong {
        /// Which part.
        part: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A system call failed.
    #[error("cannot {doing} snapshot {file}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Snapshot file.
        file: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

fn holder_text(holder: Option<u32>) -> String {
    holder.map_or(String::new(), |pid| format!(" (process {pid})"))
}

fn up_to(last: Option<u64>) -> String {
    last.map_or(" on".to_owned(), |last| format!(" to {last}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether an I/O error says that the file system or the quota is full.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
