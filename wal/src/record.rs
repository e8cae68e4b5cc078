//! What the log holds: records, and the entries that are read back.

/// One thing to write. A batch is a slice of these; it is on disk whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A log entry. `index` must be the one after the last entry (after a cut: the cut's `from`).
    Entry {
        /// Position in the log, from 1.
        index: u64,
        /// Term of the entry; the log stores it and compares nothing.
        term: u64,
        /// The bytes, unknown to the log.
        payload: Vec<u8>,
    },
    /// The caller's vote, replacing the one before; at most [`VOTE_BYTES_MAX`] bytes.
    Vote(Vec<u8>),
    /// Everything up to this position is committed.
    Committed {
        /// Index of the committed entry.
        index: u64,
        /// Its term.
        term: u64,
    },
    /// Entries from this index on are void. Their bytes stay where they are.
    Cut {
        /// First index that is void.
        from: u64,
    },
}

/// An entry as [`crate::Log::read`] gives it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Position in the log, from 1.
    pub index: u64,
    /// Term it was written with.
    pub term: u64,
    /// The bytes that were appended.
    pub payload: Vec<u8>,
}

/// Whose log this is. A log of another owner is refused at open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The member of the cluster that writes this log.
    pub owner_id: u64,
}

/// The longest vote: it is copied into each segment header, which is one page.
pub const VOTE_BYTES_MAX: usize = 1024;

/// The longest batch, in bytes on disk. One raft entry is at most a few MiB; this bound only
/// keeps a mistaken caller from asking for a segment that fills the disk.
pub const BATCH_BYTES_MAX: u64 = 256 << 20;
