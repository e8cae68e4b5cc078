//! The least that docket must do, done without docket.

use super::report::Samples;
use super::spawn;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Size of a write: one small record of a log.
const RECORD: [u8; 512] = [0x5a; 512];

/// A log of 512-byte records in a file that has its space already, each one on disk before the next.
pub struct SyncLoop {
    file: File,
    at: u64,
}

impl SyncLoop {
    /// Makes the file, with room for `records`.
    pub fn new(path: &Path, records: usize) -> SyncLoop {
        let file = File::create(path).expect("the benchmark's disk is writable");
        let size = (records * RECORD.len()) as u64;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size).ok();
        file.sync_all().expect("the benchmark's disk can be synced");
        SyncLoop { file, at: 0 }
    }

    /// Writes one record and waits for the disk.
    pub fn write(&mut self) {
        self.file.write_all_at(&RECORD, self.at).expect("the benchmark's disk has room");
        self.file.sync_data().expect("the benchmark's disk can be synced");
        self.at += RECORD.len() as u64;
    }
}

/// Times `count` records.
pub fn fdatasync(path: &Path, count: usize) -> Samples {
    let mut log = SyncLoop::new(path, count);
    Samples::of(count, || log.write())
}

/// Spawns and waits for `count` processes on two threads; gives processes a second.
pub fn spawns_per_second(count: usize) -> f64 {
    const THREADS: usize = 2;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..count / THREADS).for_each(|_| spawn::spawn_and_wait()));
        }
    });
    (count / THREADS * THREADS) as f64 / begin.elapsed().as_secs_f64()
}
