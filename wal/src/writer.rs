//! A thread around a log: group commit, completions in order, a seal when idle.
//!
//! Whatever waits becomes one batch: one write, one fdatasync, then every completion in order.
//! An entry is readable from the moment it is queued: [`Writer::read`] looks at the queue too.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{ReadError, WriteError};
use crate::frame::batch_bytes;
use crate::log::Log;
use crate::reader::{Plan, Reader, Space};
use crate::record::{LogEntry, Record};
use crate::storage::{Storage, StorageFile};

/// Called once, on the writer's thread, when the outcome is known. It must not block: it holds
/// up the next batch, and calling [`Writer::append`] from it can wait for itself.
pub type Done = Box<dyn FnOnce(Result<(), WriteError>) + Send>;

/// Requests that may wait. The proposer has two proposals in flight and a follower a few
/// batches, so this is only reached when the disk stands still; then append blocks.
const QUEUE_MAX: usize = 1024;
/// Bytes that may wait; a longer single request is still taken when the queue is empty.
const QUEUE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one group commit: bounds the time of a single fdatasync.
const BATCH_BYTES_WISH: u64 = 16 << 20;
/// How long the queue is empty after an fdatasync before the seal is written.
const SEAL_AFTER: Duration = Duration::from_millis(5);
/// How often a full disk is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The handle of a log's thread. Dropping it is [`Writer::stop`].
pub struct Writer {
    shared: Arc<Shared>,
    reader: Box<dyn View>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("disk_full", &self.disk_full()).finish_non_exhaustive()
    }
}

struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes those who wait for room.
    room: Condvar,
    disk_full: AtomicBool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    bytes: u64,
    /// Taken by the thread and not in the index yet, oldest first.
    taken: Vec<Pending>,
    next_number: u64,
    stopping: bool,
    /// The thread is gone; nothing will be written.
    ended: bool,
}

struct Job {
    number: u64,
    work: Work,
    done: Done,
}

#[derive(Clone)]
enum Work {
    Append { records: Arc<Vec<Record>>, bytes: u64 },
    Skip { index: u64, term: u64 },
    Purge { up_to: u64, archive: Option<PathBuf> },
}

impl Work {
    fn bytes(&self) -> u64 {
        match self {
            Work::Append { bytes, .. } => *bytes,
            Work::Skip { .. } | Work::Purge { .. } => 0,
        }
    }
}

/// A request as readers see it.
#[derive(Clone)]
struct Pending {
    number: u64,
    work: Work,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start<S>(log: Log<S>) -> io::Result<Writer>
    where
        S: Storage + Send + 'static,
    {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { next_number: 1, ..Queue::default() }),
            work: Condvar::new(),
            room: Condvar::new(),
            disk_full: AtomicBool::new(false),
        });
        let reader = Box::new(log.reader());
        let runner = Runner { log, shared: Arc::clone(&shared), gave_up: None };
        let thread = std::thread::Builder::new().name("wal".to_owned()).spawn(|| runner.run())?;
        Ok(Writer { shared, reader, thread: Some(thread) })
    }

    /// Queues a batch. `done` is called when it is durable or has failed. Batches are written in
    /// the order of these calls. Blocks while the queue is full.
    pub fn append(&self, records: Vec<Record>, done: Done) {
        let bytes = batch_bytes(records.iter());
        self.push(Work::Append { records: Arc::new(records), bytes }, done);
    }

    /// Queues a purge behind all appends so far; see [`Log::purge`].
    pub fn purge(&self, up_to_inclusive: u64, archive: Option<PathBuf>, done: Done) {
        self.push(Work::Purge { up_to: up_to_inclusive, archive }, done);
    }

    /// Queues a jump behind all appends so far; see [`Log::skip_to`].
    pub fn skip_to(&self, index: u64, term: u64, done: Done) {
        self.push(Work::Skip { index, term }, done);
    }

    /// Reads live entries, queued ones too. Never waits for the disk to sync.
    ///
    /// # Errors
    /// [`ReadError`]: purged, never appended, damaged, or unreadable.
    pub fn read(&self, from: u64, to_inclusive: u64) -> Result<Vec<LogEntry>, ReadError> {
        self.reader.read_with(&self.shared.pending(), from, to_inclusive)
    }

    /// First live index, or the one that the first entry will have; queued work counts.
    pub fn first_index(&self) -> u64 {
        self.reader.end_with(&self.shared.pending()).0
    }

    /// Last live index; `first_index() - 1` if there is none; queued work counts.
    pub fn last_index(&self) -> u64 {
        self.reader.end_with(&self.shared.pending()).1
    }

    /// Term of a live entry, or of the last purged one if it is known; queued work counts.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.reader.term_with(&self.shared.pending(), index)
    }

    /// How much can still be written.
    ///
    /// # Errors
    /// What the file system answers when asked for its free space.
    pub fn free_space(&self) -> io::Result<Space> {
        self.reader.space()
    }

    /// Whether the queue is parked because the disk is full, the reserve included.
    pub fn disk_full(&self) -> bool {
        self.shared.disk_full.load(Ordering::Relaxed)
    }

    /// Writes what is queued, seals, and ends the thread. What cannot be written, because the
    /// disk is full or has failed, is told so.
    pub fn stop(mut self) {
        self.join();
    }

    fn join(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of a completion has already told the waiters by the guard's drop.
            let _ = thread.join();
        }
    }

    fn push(&self, work: Work, done: Done) {
        let mut queue = self.shared.lock();
        while !queue.ended && !queue.has_room(work.bytes()) {
            queue = self.shared.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.ended {
            drop(queue);
            done(Err(WriteError::Stopped));
            return;
        }
        let number = queue.next_number;
        queue.next_number += 1;
        queue.bytes += work.bytes();
        queue.jobs.push_back(Job { number, work, done });
        drop(queue);
        self.shared.work.notify_one();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.join();
    }
}

impl Queue {
    fn has_room(&self, bytes: u64) -> bool {
        self.jobs.len() < QUEUE_MAX
            && (self.jobs.is_empty() || self.bytes + bytes <= QUEUE_BYTES_MAX)
    }

    /// Takes the next request that is not an append, or all appends up to it.
    fn take_group(&mut self) -> Vec<Job> {
        let mut group: Vec<Job> = Vec::new();
        let mut bytes = 0;
        while let Some(job) = self.jobs.front() {
            let append = matches!(job.work, Work::Append { .. });
            if !group.is_empty() && (!append || bytes + job.work.bytes() > BATCH_BYTES_WISH) {
                break;
            }
            let Some(job) = self.jobs.pop_front() else { break };
            bytes += job.work.bytes();
            self.taken.push(Pending { number: job.number, work: job.work.clone() });
            group.push(job);
            if !append {
                break;
            }
        }
        self.bytes -= bytes;
        group
    }
}

impl Shared {
    // Nothing panics while it holds this lock, so a poisoned one still guards whole data.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that may not be in the index yet, oldest first.
    fn pending(&self) -> Vec<Pending> {
        let queue = self.lock();
        let queued =
            queue.jobs.iter().map(|job| Pending { number: job.number, work: job.work.clone() });
        queue.taken.iter().cloned().chain(queued).collect()
    }
}

/// The thread's side.
struct Runner<S: Storage> {
    log: Log<S>,
    shared: Arc<Shared>,
    /// Stopped while the disk was full.
    gave_up: Option<WriteError>,
}

/// Whatever ends the thread, nobody waits for it any longer.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let jobs = {
            let mut queue = self.0.lock();
            queue.ended = true;
            queue.taken.clear();
            std::mem::take(&mut queue.jobs)
        };
        self.0.room.notify_all();
        for job in jobs {
            (job.done)(Err(WriteError::Stopped));
        }
    }
}

impl<S: Storage> Runner<S> {
    fn run(mut self) {
        let guard = EndGuard(Arc::clone(&self.shared));
        while let Some(group) = self.next_group() {
            self.write_in_parts(group);
        }
        if let Err(e) = self.log.seal() {
            tracing::warn!(error = %e, "cannot seal the log at its end");
        }
        drop(guard);
    }

    /// Waits for work, sealing when none comes; `None` when stopped and the queue is empty.
    fn next_group(&mut self) -> Option<Vec<Job>> {
        let mut sealed = false;
        let mut queue = self.shared.lock();
        loop {
            if !queue.jobs.is_empty() {
                let group = queue.take_group();
                drop(queue);
                self.shared.room.notify_all();
                return Some(group);
            }
            if queue.stopping {
                return None;
            }
            queue = if sealed {
                self.shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner)
            } else {
                let (queue, waited) = self
                    .shared
                    .work
                    .wait_timeout(queue, SEAL_AFTER)
                    .unwrap_or_else(PoisonError::into_inner);
                if waited.timed_out() && queue.jobs.is_empty() && !queue.stopping {
                    drop(queue);
                    sealed = true;
                    // Nobody waits for a seal; a failure meets the next append.
                    if let Err(e) = self.log.seal() {
                        tracing::warn!(error = %e, "cannot seal the log");
                    }
                    self.shared.lock()
                } else {
                    queue
                }
            };
        }
    }

    /// Writes a group; while the disk is too full for all of it, its first half, and so on.
    fn write_in_parts(&mut self, group: Vec<Job>) {
        let mut rest = VecDeque::from(group);
        while !rest.is_empty() {
            let (count, outcome) = self.write_first(&rest);
            let last = rest.get(count - 1).map_or(0, |job| job.number);
            self.shared.lock().taken.retain(|pending| pending.number > last);
            for job in rest.drain(..count) {
                (job.done)(outcome.clone());
            }
        }
    }

    /// Writes as many of the first requests as can be written together; how many, and how that
    /// ended. Stays in here while the disk is full.
    fn write_first(&mut self, jobs: &VecDeque<Job>) -> (usize, Result<(), WriteError>) {
        let mut count = jobs.len();
        if let Some(full) = &self.gave_up {
            return (count, Err(full.clone()));
        }
        loop {
            let first = jobs.iter().take(count).map(|job| (job.number, &job.work));
            match self.write(first) {
                Err(WriteError::NoSpace { .. }) if count > 1 => count /= 2,
                // One wrong request must not fail those that were gathered with it.
                Err(e) if e.is_refusal() && count > 1 => count = 1,
                Err(full @ WriteError::NoSpace { need_bytes }) => {
                    count = jobs.len();
                    if self.park(need_bytes) {
                        // Nothing behind it may be written either: the order is a promise.
                        self.gave_up = Some(full.clone());
                        return (count, Err(full));
                    }
                }
                outcome => {
                    self.resume();
                    return (count, outcome);
                }
            }
        }
    }

    /// Writes and syncs consecutive requests: many appends as one batch, or one other request.
    fn write<'a>(
        &mut self,
        work: impl Iterator<Item = (u64, &'a Work)> + Clone,
    ) -> Result<(), WriteError> {
        let Some((number, _)) = work.clone().last() else { return Ok(()) };
        self.log.set_mark(number);
        match work.clone().next() {
            Some((_, Work::Purge { up_to, archive })) => self.log.purge(*up_to, archive.as_deref()),
            Some((_, Work::Skip { index, term })) => self.log.skip_to(*index, *term),
            _ => {
                let records = work.filter_map(|(_, work)| match work {
                    Work::Append { records, .. } => Some(records.iter()),
                    _ => None,
                });
                self.log.append_all(records.flatten())?;
                self.log.sync().map(|_| ())
            }
        }
    }

    /// Waits before a full disk is tried again; whether the writer is to stop.
    fn park(&self, need_bytes: u64) -> bool {
        if !self.shared.disk_full.swap(true, Ordering::Relaxed) {
            tracing::error!(
                need_bytes,
                "disk full: the log waits for space, nothing is acknowledged"
            );
        }
        let queue = self.shared.lock();
        let (queue, _) = self
            .shared
            .work
            .wait_timeout_while(queue, RETRY_EVERY, |queue| !queue.stopping)
            .unwrap_or_else(PoisonError::into_inner);
        queue.stopping
    }

    fn resume(&self) {
        if self.shared.disk_full.swap(false, Ordering::Relaxed) {
            tracing::info!("the log writes again");
        }
    }
}

/// Reading a log of any storage together with what is queued for it.
trait View: Send + Sync {
    fn read_with(
        &self,
        pending: &[Pending],
        from: u64,
        to: u64,
    ) -> Result<Vec<LogEntry>, ReadError>;
    fn end_with(&self, pending: &[Pending]) -> (u64, u64);
    fn term_with(&self, pending: &[Pending], index: u64) -> Option<u64>;
    fn space(&self) -> io::Result<Space>;
}

/// What queued requests make of the index: the first live index, the last one that still comes
/// from the index, and the entries behind it.
struct Overlay<'a> {
    first: u64,
    indexed_last: u64,
    before_first: Option<(u64, u64)>,
    queued: Vec<(u64, &'a [u8])>,
}

impl<'a> Overlay<'a> {
    /// `mark` is the newest request that the index contains already.
    fn new(pending: &'a [Pending], mark: u64, first: u64, last: u64) -> Overlay<'a> {
        let mut overlay =
            Overlay { first, indexed_last: last, before_first: None, queued: Vec::new() };
        for work in pending.iter().filter(|pending| pending.number > mark) {
            match &work.work {
                Work::Append { records, .. } => {
                    records.iter().for_each(|record| overlay.take(record));
                }
                Work::Skip { index, term } => overlay.skip(*index, *term),
                Work::Purge { up_to, .. } if *up_to > overlay.last() => overlay.skip(*up_to, 0),
                Work::Purge { .. } => {}
            }
        }
        overlay
    }

    fn last(&self) -> u64 {
        self.indexed_last + self.queued.len() as u64
    }

    fn skip(&mut self, index: u64, term: u64) {
        self.queued.clear();
        self.first = index + 1;
        self.indexed_last = index;
        self.before_first = Some((index, term));
    }

    fn take(&mut self, record: &'a Record) {
        match record {
            // An entry that does not follow will be refused by the log; it is not shown.
            Record::Entry { index, term, payload } if *index == self.last() + 1 => {
                self.queued.push((*term, payload));
            }
            Record::Cut { from } if (self.first..=self.last()).contains(from) => {
                let keep = from.saturating_sub(self.indexed_last + 1);
                self.queued.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
                self.indexed_last = self.indexed_last.min(from - 1);
            }
            _ => {}
        }
    }

    /// A queued entry.
    fn queued(&self, index: u64) -> Option<&(u64, &'a [u8])> {
        let place = index.checked_sub(self.indexed_last + 1)?;
        self.queued.get(usize::try_from(place).ok()?)
    }
}

impl<F: StorageFile + Send + Sync> View for Reader<F> {
    fn read_with(
        &self,
        pending: &[Pending],
        from: u64,
        to: u64,
    ) -> Result<Vec<LogEntry>, ReadError> {
        if from > to {
            return Ok(Vec::new());
        }
        let (overlay, plan) = {
            let shared = self.lock();
            let (first, last) = (shared.index.first(), shared.index.last());
            let overlay = Overlay::new(pending, shared.mark, first, last);
            if from < overlay.first {
                return Err(ReadError::Purged { asked: from, first: overlay.first });
            }
            if to > overlay.last() {
                return Err(ReadError::Beyond { asked: to, last: overlay.last() });
            }
            let plan = Plan::new(&shared, from, to.min(overlay.indexed_last))?;
            (overlay, plan)
        };
        let mut out = plan.run()?;
        for index in from.max(overlay.indexed_last + 1)..=to {
            if let Some((term, payload)) = overlay.queued(index) {
                out.push(LogEntry { index, term: *term, payload: payload.to_vec() });
            }
        }
        Ok(out)
    }

    fn end_with(&self, pending: &[Pending]) -> (u64, u64) {
        let shared = self.lock();
        let (first, last) = (shared.index.first(), shared.index.last());
        let overlay = Overlay::new(pending, shared.mark, first, last);
        (overlay.first, overlay.last())
    }

    fn term_with(&self, pending: &[Pending], index: u64) -> Option<u64> {
        let shared = self.lock();
        let (first, last) = (shared.index.first(), shared.index.last());
        let overlay = Overlay::new(pending, shared.mark, first, last);
        match overlay.before_first {
            Some((before, term)) if before == index => return (term > 0).then_some(term),
            Some((before, _)) if index < before => return None,
            _ => {}
        }
        match overlay.queued(index) {
            Some((term, _)) => Some(*term),
            None if index <= overlay.indexed_last => shared.index.term_at(index),
            None => None,
        }
    }

    fn space(&self) -> io::Result<Space> {
        self.free_space()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::faulty::FaultyDisk;
    use crate::log::Options;
    use crate::record::Identity;

    fn entry(index: u64, term: u64) -> Record {
        Record::Entry { index, term, payload: vec![term as u8] }
    }

    fn pending(number: u64, records: Vec<Record>) -> Pending {
        Pending { number, work: Work::Append { records: Arc::new(records), bytes: 0 } }
    }

    /// A reader may look at the queue, then be slow, and meet an index that went on: requests 1 and
    /// 2 were in its queue, and 3, which the index has, cut deeper. Doing 1 and 2 again on top would
    /// show a log that never was.
    #[test]
    fn what_the_index_has_is_not_laid_over_it_again() {
        let identity = Identity { cluster_id: [1; 16], owner_id: 1 };
        let mut log = Log::open(FaultyDisk::new(1), identity, Options::default()).unwrap().0;
        let requests = [
            pending(1, (1..=8).map(|index| entry(index, 1)).collect()),
            pending(2, vec![Record::Cut { from: 8 }, entry(8, 2)]),
            pending(3, vec![Record::Cut { from: 7 }, entry(7, 3), entry(8, 3), entry(9, 3)]),
        ];
        for request in &requests {
            let Work::Append { records, .. } = &request.work else { continue };
            log.set_mark(request.number);
            log.append(records).unwrap();
        }
        let reader = log.reader();
        let read = reader.read_with(&requests[..2], 7, 9).unwrap();
        assert_eq!(read.iter().map(|entry| entry.term).collect::<Vec<_>>(), [3, 3, 3]);
        assert_eq!(reader.end_with(&requests[..2]), (1, 9));
        // A request that the index lacks does count.
        let newer = [requests[2].clone(), pending(4, vec![Record::Cut { from: 9 }])];
        assert_eq!(reader.end_with(&newer), (1, 8));
        assert_eq!(reader.term_with(&newer, 9), None);
    }
}
