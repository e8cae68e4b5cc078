//! Shared by the tests: small logs and records.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::panic)]

use wal::{Identity, Log, LogEntry, OpenError, Options, Record, Recovered, Storage};

pub const ME: Identity = Identity { cluster_id: [7; 16], owner_id: 3 };

/// Segments so small that a few records rotate.
pub fn tiny() -> Options {
    Options { first_segment_bytes: 8192, max_segment_bytes: 12288, reserve_min_bytes: 8192 }
}

pub fn open<S: Storage>(storage: S) -> Result<(Log<S>, Recovered), OpenError> {
    Log::open(storage, ME, tiny())
}

pub fn entry(index: u64, term: u64, bytes: usize) -> Record {
    Record::Entry { index, term, payload: payload(index, term, bytes) }
}

pub fn payload(index: u64, term: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (index * 31 + term * 7 + at as u64) as u8).collect()
}

pub fn logged(index: u64, term: u64, bytes: usize) -> LogEntry {
    LogEntry { index, term, payload: payload(index, term, bytes) }
}

pub fn all<S: Storage>(log: &Log<S>) -> Vec<LogEntry> {
    log.read(log.first_index(), log.last_index()).unwrap()
}
