//! Raft's log over the wal: votes, entries, cuts and the committed position go through the one
//! ordered queue of `wal::Writer`, so that nothing is durable ahead of what it depends on.
//!
//! Reads see unsynced entries at once; flush callbacks fire only after the real fdatasync.

use super::archive::Archive;
use super::codec::{
    CodecError, decode_entry, decode_vote, encode_payload, encode_vote, index_of, position_of,
};
use super::snapshots::Snapshots;
use super::tail::Tail;
use super::types::{Entry, LogId, TypeConfig, Vote};
use crate::failure::Failure;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::oneshot;
use wal::{Record, Recovered, Writer};

/// Entries that one read returns at most: with 256 KiB an entry, 16 MiB.
const READ_MAX_ENTRIES: u64 = 64;

/// Raft's log. Clones share it: openraft reads from other tasks than the one that appends.
#[derive(Clone)]
pub struct LogStore(Arc<Shared>);

struct Shared {
    /// Gone once stopped. Completions never hold it: the last handle joins the thread they run on.
    writer: RwLock<Option<Arc<Writer>>>,
    view: Arc<Mutex<View>>,
    snapshots: Arc<Snapshots>,
    archive: Archive,
    failure: Failure,
}

/// What raft must be told of the log without a disk read. Locked for moments, never across I/O.
struct View {
    purged: Option<LogId>,
    last: Option<LogId>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    /// Committed positions ride in front of the next append instead of costing an fdatasync each:
    /// they only shorten the election of a restart.
    committed_unwritten: bool,
    tail: Tail,
}

/// What is left of the log's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRoom {
    /// More than the reserve.
    Enough,
    /// The reserve, for what is there already.
    Reserve,
    /// Nothing: what was asked for waits, and is tried again each second.
    Used,
}

/// A log that opened, but whose records are not ours.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A record of raft does not decode: written by a newer program, or by none of ours.
    #[error("cannot read the raft state in the log: {0}")]
    Codec(#[from] CodecError),
    /// The thread that writes did not start.
    #[error("cannot start the log's writer: {0}")]
    Writer(#[from] io::Error),
}

impl LogStore {
    /// Takes over an opened log. Purged segments move to `archive`; a write error throws `failure`.
    pub fn start<S: wal::Storage + Send + 'static>(
        log: wal::Log<S>,
        recovered: &Recovered,
        snapshots: Arc<Snapshots>,
        archive: Archive,
        failure: Failure,
    ) -> Result<LogStore, StoreError> {
        let view = Arc::new(Mutex::new(View::recover(&log, recovered)?));
        let writer = RwLock::new(Some(Arc::new(Writer::start(log)?)));
        let shared = Shared { writer, view, snapshots, archive, failure };
        Ok(LogStore(Arc::new(shared)))
    }

    /// How much room the log has; new submits must be refused unless that is enough: the rest is
    /// for what runs already (design 4, Writing).
    pub fn room(&self) -> LogRoom {
        let Ok(writer) = self.writer() else { return LogRoom::Enough };
        // A file system that does not tell its free space is not called full.
        match writer.free_space() {
            _ if writer.disk_full() => LogRoom::Used,
            Ok(space) if !space.above_reserve => LogRoom::Reserve,
            _ => LogRoom::Enough,
        }
    }

    /// Position of the newest entry that is known to be committed; 0 for none.
    pub fn committed(&self) -> u64 {
        self.view().committed.map_or(0, |id| position_of(id.index))
    }

    /// Writes what waits, seals the log, and ends its thread. Later calls fail.
    pub async fn stop(&self) -> io::Result<()> {
        let rest = self.view().take_committed();
        let written = if rest.is_empty() { Ok(()) } else { self.write(rest).await };
        let writer = self.0.writer.write().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle joins the thread.
        tokio::task::spawn_blocking(move || drop(writer)).await.map_err(io::Error::other)?;
        written
    }

    fn writer(&self) -> io::Result<Arc<Writer>> {
        let writer = self.0.writer.read().unwrap_or_else(PoisonError::into_inner);
        writer.clone().ok_or_else(|| io::Error::other("the log is closed"))
    }

    fn view(&self) -> MutexGuard<'_, View> {
        locked(&self.0.view)
    }

    /// Writes records through the queue and waits for their fdatasync.
    async fn write(&self, records: Vec<Record>) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.writer()?.append(records, self.report(done));
        written.await.unwrap_or_else(|_| Err(io::Error::other("the log's writer has ended")))
    }

    fn report(&self, done: oneshot::Sender<io::Result<()>>) -> wal::Done {
        let watch = self.watch();
        Box::new(move |result| {
            // The receiver is gone only when raft was dropped meanwhile.
            let _ = done.send(watch.told(result));
        })
    }

    fn watch(&self) -> Watch {
        Watch { failure: self.0.failure.clone(), told: false }
    }

    fn read(&self, from: u64, end: u64) -> io::Result<Vec<Entry>> {
        let (disk_end, mut newest) = {
            let view = self.view();
            let end = end.min(view.last.map_or(0, |id| id.index + 1));
            let disk_end = view.tail.first().unwrap_or(end).clamp(from.min(end), end);
            (disk_end, view.tail.range(from.max(disk_end), end).collect())
        };
        let mut entries = Vec::new();
        let mut next = from;
        while next < disk_end {
            let upto = disk_end.min(next + READ_MAX_ENTRIES);
            entries.extend(self.read_disk(next, upto)?);
            next = upto;
        }
        entries.append(&mut newest);
        Ok(entries)
    }

    /// A snapshot of somebody else ends beyond the log: entries go on behind it.
    async fn skip_to_if_beyond(&self, upto: LogId) -> io::Result<()> {
        let writer = self.writer()?;
        let position = position_of(upto.index);
        if position <= writer.last_index() {
            return Ok(());
        }
        let (done, skipped) = oneshot::channel();
        writer.skip_to(position, upto.leader_id.term, self.report(done));
        skipped.await.unwrap_or_else(|_| Err(io::Error::other("the log's writer has ended")))
    }

    async fn prune_archive(&self) -> io::Result<()> {
        let archive = self.0.archive.clone();
        let pruned = tokio::task::spawn_blocking(move || archive.prune()).await;
        if let Err(e) = pruned.map_err(io::Error::other)? {
            // Tried again with the next snapshot.
            tracing::warn!("old segments of the archive stay: {e}");
        }
        Ok(())
    }

    fn read_disk(&self, from: u64, end: u64) -> io::Result<Vec<Entry>> {
        let read = self.writer()?.read(position_of(from), position_of(end - 1));
        let found = read.map_err(io::Error::other)?;
        let decode = |e: &wal::LogEntry| decode_entry(e.index, e.term, &e.payload);
        found.iter().map(decode).collect::<Result<_, _>>().map_err(io::Error::other)
    }
}

fn locked(view: &Mutex<View>) -> MutexGuard<'_, View> {
    // A panic while locked leaves the view consistent: each change is one assignment.
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for what the log's writer tells. A writer that dies in a panic drops its completions: raft
/// would wait for ever, and the process would be half alive.
struct Watch {
    failure: Failure,
    told: bool,
}

impl Watch {
    /// The writer lives, and told something that the caller judges.
    fn heard(mut self) {
        self.told = true;
    }

    fn told(self, result: Result<(), wal::WriteError>) -> io::Result<()> {
        let result = result.map_err(|e| fail(&self.failure, &e));
        self.heard();
        result
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.told {
            self.failure.fail("the thread that writes the log ended in a panic; it is told above");
        }
    }
}

/// A write error ends the process: retrying an fsync on the same file proves nothing. What was
/// given up because the writer is being stopped on a full disk is no such error. A writer that ended
/// while somebody could still ask it has died: an orderly end takes the last handle first.
fn fail(failure: &Failure, error: &wal::WriteError) -> io::Error {
    if !matches!(error, wal::WriteError::NoSpace { .. }) {
        failure.fail(format!("writing the log failed: {error}"));
    }
    io::Error::other(error.to_string())
}

impl View {
    fn recover<S: wal::Storage>(
        log: &wal::Log<S>,
        recovered: &Recovered,
    ) -> Result<View, StoreError> {
        let id_at = |position| {
            let term = log.term_at(position)?;
            Some(LogId::new_term_index(term, index_of(position)))
        };
        let (first, last) = (log.first_index(), log.last_index());
        // Where the term before the first entry is unknown, raft is told that the first one is
        // purged as well: nothing needs that entry, and its id is known.
        let purged = match log.purged() {
            (0, _) => None,
            (_, 0) => id_at(first),
            (position, term) => Some(LogId::new_term_index(term, index_of(position))),
        };
        let last = if last < first { purged } else { id_at(last) };
        let vote = recovered.vote.as_deref().map(decode_vote).transpose()?;
        let committed = recovered
            .committed
            .map(|(position, term)| LogId::new_term_index(term, index_of(position)));
        Ok(View {
            purged,
            last,
            vote,
            committed: committed.min(last),
            committed_unwritten: false,
            tail: Tail::new(last.map_or(0, |id| id.index + 1)),
        })
    }

    /// The committed position as a record, if a newer one was not written yet.
    fn take_committed(&mut self) -> Vec<Record> {
        if !std::mem::take(&mut self.committed_unwritten) {
            return Vec::new();
        }
        let record =
            |id: LogId| Record::Committed { index: position_of(id.index), term: id.leader_id.term };
        self.committed.map(record).into_iter().collect()
    }

    /// Takes over entries, and gives the records that write them.
    fn append(&mut self, entries: impl IntoIterator<Item = Entry>) -> Vec<Record> {
        let mut records = self.take_committed();
        for entry in entries {
            let payload = encode_payload(&entry);
            let LogId { leader_id, index } = entry.log_id;
            self.last = Some(entry.log_id);
            self.tail.push(entry, payload.len());
            records.push(Record::Entry {
                index: position_of(index),
                term: leader_id.term,
                payload,
            });
        }
        records
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index + 1,
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        self.read(from, end)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.view().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end.min(start + READ_MAX_ENTRIES))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let view = self.view();
        Ok(LogState { last_purged_log_id: view.purged, last_log_id: view.last })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write(vec![Record::Vote(encode_vote(vote))]).await?;
        self.view().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let mut view = self.view();
        view.committed_unwritten |= committed.is_some() && view.committed != committed;
        view.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.view().committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let (records, end, generation) = {
            let mut view = self.view();
            let records = view.append(entries);
            (records, view.last.map_or(0, |id| id.index + 1), view.tail.generation())
        };
        let writer = self.writer()?;
        let (view, watch) = (Arc::clone(&self.0.view), self.watch());
        let done = move |result: Result<(), wal::WriteError>| match watch.told(result) {
            Ok(()) => {
                locked(&view).tail.written(end, generation);
                flushed.io_completed(Ok(()));
            }
            Err(e) => flushed.io_completed(Err(e)),
        };
        writer.append(records, Box::new(done));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |id| id.index + 1);
        {
            let mut view = self.view();
            view.last = last;
            view.tail.cut(from);
        }
        self.write(vec![Record::Cut { from: position_of(from) }]).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        {
            let mut view = self.view();
            view.purged = Some(upto);
            view.last = view.last.max(Some(upto));
            view.tail.purge(upto.index);
        }
        self.skip_to_if_beyond(upto).await?;
        // The older snapshot must find the log that follows it, should the newest one be damaged.
        let older = self.0.snapshots.older_position().map_err(io::Error::other)?;
        let Some(older) = older else { return Ok(()) };
        let position = older.min(position_of(upto.index));
        let writer = self.writer()?;
        let (done, purged) = oneshot::channel();
        let watch = self.watch();
        let report = move |result| {
            watch.heard();
            // The receiver is gone only when raft was dropped meanwhile.
            let _ = done.send(result);
        };
        writer.purge(position, Some(self.0.archive.dir.clone()), Box::new(report));
        match purged.await {
            Ok(Ok(())) => self.prune_archive().await,
            // The log stays usable and the segment is tried again with the next snapshot.
            Ok(Err(e @ wal::WriteError::Purge { .. })) => {
                tracing::warn!("old log segments stay: {e}");
                Ok(())
            }
            Ok(Err(e)) => Err(fail(&self.0.failure, &e)),
            Err(_) => Err(io::Error::other("the log's writer has ended")),
        }
    }
}

#[cfg(test)]
mod tests;
