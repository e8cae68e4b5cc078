//! The writer's thread: order, group commit, failures that reach every waiter, a full disk,
//! reading what is still queued.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::{ME, all, entry, logged, open, tiny};
use wal::{
    Done, Fault, FaultyDisk, FaultyFile, Keep, Log, ReadError, Record, Storage, StorageFile,
    WriteError, Writer,
};

/// The enemy disk with a gate before each sync, and a count of syncs and writes.
#[derive(Clone)]
struct Gated {
    disk: FaultyDisk,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    moved: Condvar,
}

#[derive(Default)]
struct GateState {
    shut: bool,
    waiting: u32,
    syncs: u32,
    writes: u32,
}

struct GatedFile {
    file: FaultyFile,
    gate: Arc<Gate>,
}

impl Gate {
    fn set(&self, shut: bool) {
        self.state.lock().unwrap().shut = shut;
        self.moved.notify_all();
    }

    /// Until a sync waits at the gate.
    fn until_waiting(&self) {
        let state = self.state.lock().unwrap();
        drop(self.moved.wait_while(state, |state| state.waiting == 0).unwrap());
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.syncs += 1;
        state.waiting += 1;
        self.moved.notify_all();
        let mut state = self.moved.wait_while(state, |state| state.shut).unwrap();
        state.waiting -= 1;
    }

    fn counts(&self) -> (u32, u32) {
        let state = self.state.lock().unwrap();
        (state.writes, state.syncs)
    }
}

impl Storage for Gated {
    type File = GatedFile;

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn create(&self, name: &str) -> io::Result<GatedFile> {
        Ok(GatedFile { file: self.disk.create(name)?, gate: Arc::clone(&self.gate) })
    }
    fn open(&self, name: &str) -> io::Result<GatedFile> {
        Ok(GatedFile { file: self.disk.open(name)?, gate: Arc::clone(&self.gate) })
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn archive(&self, name: &str, to: &Path) -> io::Result<()> {
        self.disk.archive(name, to)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn salt(&self) -> io::Result<u64> {
        self.disk.salt()
    }
}

impl StorageFile for GatedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.gate.state.lock().unwrap().writes += 1;
        self.file.write_at(offset, parts)
    }
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.file.free_bytes()
    }
}

fn gated() -> (Gated, Writer) {
    let gated = Gated { disk: FaultyDisk::new(1), gate: Arc::default() };
    let options = wal::Options { first_segment_bytes: 1 << 20, ..tiny() };
    let (log, _) = Log::open(gated.clone(), ME, options).unwrap();
    let writer = Writer::start(log).unwrap();
    (gated, writer)
}

type Told = (u64, Result<(), WriteError>);

fn tell(to: &Sender<Told>, number: u64) -> Done {
    let to = to.clone();
    Box::new(move |outcome| to.send((number, outcome)).unwrap())
}

fn next(told: &Receiver<Told>) -> Told {
    told.recv_timeout(Duration::from_secs(20)).expect("a waiter was forgotten")
}

/// Waits for a condition, not for a time.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn what_waits_becomes_one_write_and_one_sync_and_is_told_in_order() {
    let (gated, writer) = gated();
    let (to, told) = channel();
    gated.gate.set(true);
    writer.append(vec![entry(1, 1, 10)], tell(&to, 1));
    gated.gate.until_waiting();
    let before = gated.gate.counts();
    for index in 2..=500 {
        writer.append(vec![entry(index, 1, 10)], tell(&to, index));
    }
    assert!(told.try_recv().is_err(), "nobody is told before the sync");
    gated.gate.set(false);
    for number in 1..=500 {
        let (who, outcome) = next(&told);
        outcome.unwrap();
        assert_eq!(who, number);
    }
    let after = gated.gate.counts();
    // One batch for 499 requests; the seal of the idle moment may already be there.
    assert!(after.0 - before.0 <= 2 && after.1 - before.1 <= 2, "{before:?} {after:?}");
    writer.stop();
    let mut disk = gated.disk;
    disk.crash(Keep::Nothing);
    assert_eq!(open(disk).unwrap().1.last, 500);
}

#[test]
fn what_is_queued_or_unsynced_is_readable_and_cuts_and_skips_count() {
    let (gated, writer) = gated();
    let (to, told) = channel();
    gated.gate.set(true);
    writer.append((1..=3).map(|index| entry(index, 1, 10)).collect(), tell(&to, 1));
    gated.gate.until_waiting();
    writer.append(vec![entry(4, 1, 20)], tell(&to, 2));
    writer.append(vec![entry(5, 1, 20)], tell(&to, 3));
    let expected: Vec<_> = [(1, 10), (2, 10), (3, 10), (4, 20), (5, 20)]
        .map(|(index, bytes)| logged(index, 1, bytes))
        .to_vec();
    assert_eq!(writer.read(1, 5).unwrap(), expected);
    assert_eq!(writer.read(4, 4).unwrap(), expected[3..4]);
    assert!(matches!(writer.read(4, 6), Err(ReadError::Beyond { asked: 6, last: 5 })));
    // Cut into what is written, from what is queued.
    writer.append(vec![Record::Cut { from: 3 }, entry(3, 2, 30)], tell(&to, 4));
    assert_eq!((writer.first_index(), writer.last_index()), (1, 3));
    assert_eq!(writer.read(2, 3).unwrap(), [logged(2, 1, 10), logged(3, 2, 30)]);
    let terms: Vec<_> = (0..5).map(|index| writer.term_at(index)).collect();
    assert_eq!(terms, [None, Some(1), Some(1), Some(2), None]);
    writer.skip_to(50, 7, tell(&to, 5));
    writer.append(vec![entry(51, 7, 5)], tell(&to, 6));
    assert_eq!((writer.first_index(), writer.last_index()), (51, 51));
    assert_eq!((writer.term_at(50), writer.term_at(3)), (Some(7), None));
    assert_eq!(writer.read(51, 51).unwrap(), [logged(51, 7, 5)]);
    assert!(matches!(writer.read(3, 51), Err(ReadError::Purged { .. })));
    gated.gate.set(false);
    for number in 1..=6 {
        let (who, outcome) = next(&told);
        assert_eq!((who, outcome.is_ok()), (number, true));
    }
    assert_eq!(writer.read(51, 51).unwrap(), [logged(51, 7, 5)]);
    assert_eq!((writer.first_index(), writer.last_index()), (51, 51));
}

#[test]
fn a_failed_fsync_is_told_to_every_waiter_and_ends_writing() {
    let (gated, writer) = gated();
    let (to, told) = channel();
    gated.gate.set(true);
    writer.append(vec![entry(1, 1, 10)], tell(&to, 1));
    gated.gate.until_waiting();
    for index in 2..=20 {
        writer.append(vec![entry(index, 1, 10)], tell(&to, index));
    }
    gated.disk.arm(Fault::FailSync(2));
    gated.gate.set(false);
    next(&told).1.unwrap();
    for number in 2..=20 {
        let (who, outcome) = next(&told);
        assert_eq!(who, number);
        assert!(matches!(outcome, Err(WriteError::OutcomeUnknown { .. })), "{outcome:?}");
    }
    writer.append(vec![entry(21, 1, 10)], tell(&to, 21));
    assert!(matches!(next(&told).1, Err(WriteError::Failed { .. })));
    writer.stop();
}

#[test]
fn a_wrong_request_does_not_fail_those_that_were_gathered_with_it() {
    let (gated, writer) = gated();
    let (to, told) = channel();
    gated.gate.set(true);
    writer.append(vec![entry(1, 1, 10)], tell(&to, 1));
    gated.gate.until_waiting();
    writer.append(vec![entry(2, 1, 10)], tell(&to, 2));
    writer.append(vec![entry(9, 1, 10)], tell(&to, 3));
    writer.append(vec![entry(3, 1, 10)], tell(&to, 4));
    assert_eq!(writer.last_index(), 3);
    gated.gate.set(false);
    let outcomes: Vec<_> = (0..4).map(|_| next(&told).1.is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, true]);
    assert_eq!(writer.last_index(), 3);
}

#[test]
fn a_full_disk_parks_the_whole_queue_in_order_and_goes_on_by_itself() {
    let disk = FaultyDisk::new(1);
    let (log, _) = open(disk.clone()).unwrap();
    let writer = Writer::start(log).unwrap();
    let (to, told) = channel();
    disk.set_capacity(Some(disk.used()));
    for index in 1..=30 {
        writer.append(vec![entry(index, 1, 500)], tell(&to, index));
    }
    writer.append(vec![Record::Vote(vec![8])], tell(&to, 31));
    until("the queue is parked", || writer.disk_full());
    // What fits was written, from the reserve too; the rest waits, the vote behind it.
    let written: Vec<_> = told.try_iter().map(|(who, outcome)| (who, outcome.is_ok())).collect();
    let fitted = written.len() as u64;
    // How many that is depends on how they were gathered; a segment holds six or seven.
    assert!((7..=15).contains(&fitted), "{fitted}");
    assert_eq!(writer.free_space().unwrap().spare_bytes, 0, "the reserve is used up");
    assert_eq!(written, (1..=fitted).map(|who| (who, true)).collect::<Vec<_>>());
    assert!(!writer.free_space().unwrap().above_reserve);
    assert_eq!(writer.read(1, 30).unwrap().len(), 30, "parked entries are readable");
    disk.set_capacity(None);
    for number in fitted + 1..=31 {
        let (who, outcome) = next(&told);
        assert_eq!((who, outcome.is_ok()), (number, true));
    }
    assert!(!writer.disk_full());
    writer.stop();
    let mut disk = disk;
    disk.crash(Keep::Nothing);
    let (log, found) = open(disk).unwrap();
    assert_eq!((all(&log).len(), found.vote), (30, Some(vec![8])));
}

#[test]
fn stopping_on_a_full_disk_tells_the_waiters_and_returns() {
    let disk = FaultyDisk::new(1);
    let (log, _) = open(disk.clone()).unwrap();
    let writer = Writer::start(log).unwrap();
    let (to, told) = channel();
    disk.set_capacity(Some(disk.used()));
    for index in 1..=30 {
        writer.append(vec![entry(index, 1, 500)], tell(&to, index));
    }
    until("the queue is parked", || writer.disk_full());
    writer.stop();
    let outcomes: Vec<_> = told.try_iter().collect();
    assert_eq!(outcomes.len(), 30);
    let fitted = outcomes.iter().take_while(|(_, outcome)| outcome.is_ok()).count();
    assert!((7..=15).contains(&fitted), "{fitted}");
    for (_, outcome) in &outcomes[fitted..] {
        assert!(matches!(outcome, Err(WriteError::NoSpace { .. })), "{outcome:?}");
    }
}

#[test]
fn a_purge_waits_for_what_was_queued_before_it() {
    let (gated, writer) = gated();
    let (to, told) = channel();
    for index in 1..=3 {
        writer.append(vec![entry(index, 1, 600_000)], tell(&to, index));
    }
    writer.purge(2, Some("archive".into()), tell(&to, 4));
    for number in 1..=4 {
        let (who, outcome) = next(&told);
        assert_eq!((who, outcome.is_ok()), (number, true));
    }
    assert!(writer.first_index() > 1);
    assert!(!gated.disk.archived().is_empty());
}

#[test]
fn an_idle_writer_seals_so_that_a_rotten_last_batch_is_refused() {
    let disk = FaultyDisk::new(1);
    let (log, _) = open(disk.clone()).unwrap();
    let writer = Writer::start(log).unwrap();
    let (to, told) = channel();
    writer.append(vec![entry(1, 1, 100)], tell(&to, 1));
    next(&told).1.unwrap();
    let sealed = || {
        let mut seals = 0;
        wal::inspect::dump_storage(&disk, |dumped| seals += u32::from(dumped.record.is_none()))
            .unwrap();
        seals == 1
    };
    until("the seal is written", sealed);
    drop(writer);
    let mut image = disk.image();
    let (_, bytes) = image.iter_mut().find(|(name, _)| name.ends_with(".wal")).unwrap();
    bytes[4096 + 64 + 30] ^= 1;
    let refused = open(FaultyDisk::from_image(&image, 1)).unwrap_err();
    assert!(matches!(refused, wal::OpenError::Corrupt(_)), "{refused}");
}

#[test]
fn many_threads_append_in_their_own_order_and_the_queue_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(wal::Disk::open(dir.path()).unwrap(), ME, tiny()).unwrap();
    let writer = Writer::start(log).unwrap();
    let (to, told) = channel();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (to, writer) = (to.clone(), &writer);
            scope.spawn(move || {
                for number in 0..600 {
                    let vote = [thread, number].map(u64::to_le_bytes).concat();
                    writer.append(vec![Record::Vote(vote)], tell(&to, thread * 1000 + number));
                }
            });
        }
    });
    let mut last = [None; 4];
    for _ in 0..2400 {
        let (who, outcome) = next(&told);
        outcome.unwrap();
        let (thread, number) = ((who / 1000) as usize, who % 1000);
        assert!(last[thread].is_none_or(|last| last + 1 == number) && number < 600);
        last[thread] = Some(number);
    }
    writer.stop();
}
