//! The log store on a real directory and on the enemy disk: what raft was promised survives.

use super::*;
use crate::progress::Progress;
use crate::raft::SnapshotMeta;
use openraft::EntryPayload;
use openraft::type_config::TypeConfigExt as _;
use std::path::Path;
use std::sync::Arc;
use wal::{Fault, FaultyDisk, Keep};

const OWNER: wal::Identity = wal::Identity { cluster_id: [7; 16], owner_id: 1 };

/// The store, with the directory for snapshots and archive that lies beside its log.
fn open_on<S: wal::Storage + Send + 'static>(
    storage: S,
    dir: &Path,
    options: wal::Options,
) -> (LogStore, Failure) {
    let disk = wal::Disk::open(&dir.join("snapshots")).unwrap();
    let (snapshots, _, _) = Snapshots::open(disk, &mut Progress::begin()).unwrap();
    let (log, recovered) = wal::Log::open(storage, OWNER, options).unwrap();
    let failure = Failure::default();
    let archive = Archive { dir: dir.join("archive"), retention: Default::default() };
    let store =
        LogStore::start(log, &recovered, Arc::new(snapshots), archive, failure.clone()).unwrap();
    (store, failure)
}

fn open(dir: &Path) -> LogStore {
    let disk = wal::Disk::open(&dir.join("wal")).unwrap();
    open_on(disk, dir, wal::Options::default()).0
}

fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let batch = super::super::types::Batch(vec![index as u8; bytes].into());
    Entry { log_id: LogId::new_term_index(term, index), payload: EntryPayload::Normal(batch) }
}

async fn append(store: &mut LogStore, entries: Vec<Entry>) -> io::Result<()> {
    let (done, flushed) = TypeConfig::oneshot();
    store.append(entries, IOFlushed::signal(done)).await?;
    flushed.await.unwrap()
}

async fn read(store: &mut LogStore, from: u64, end: u64) -> Vec<Entry> {
    store.try_get_log_entries(from..end).await.unwrap()
}

#[tokio::test]
async fn entries_vote_and_committed_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    assert_eq!(store.get_log_state().await.unwrap(), LogState::default());
    let vote = Vote::new_committed(3, 1);
    store.save_vote(&vote).await.unwrap();
    let entries: Vec<Entry> = (0..100).map(|index| entry(3, index, 10)).collect();
    append(&mut store, entries.clone()).await.unwrap();
    store.save_committed(Some(entries[98].log_id)).await.unwrap();
    assert_eq!(read(&mut store, 0, 1000).await, entries);
    store.stop().await.unwrap();
    assert!(append(&mut store, vec![entry(3, 100, 1)]).await.is_err(), "it is closed");
    drop(store);

    let mut store = open(dir.path());
    assert_eq!(store.read_vote().await.unwrap(), Some(vote));
    assert_eq!(store.read_committed().await.unwrap(), Some(entries[98].log_id));
    let state = store.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (None, Some(entries[99].log_id)));
    append(&mut store, vec![entry(4, 100, 10)]).await.unwrap();
    let all = read(&mut store, 0, 1000).await;
    assert_eq!(all[..100], entries[..], "older ones come from the disk, the newest from memory");
    assert_eq!(all[100].log_id, LogId::new_term_index(4, 100));
    assert_eq!(read(&mut store, 98, 101).await.len(), 3);
    assert_eq!(store.limited_get_log_entries(0, 1000).await.unwrap().len(), 64);
    store.stop().await.unwrap();
}

#[tokio::test]
async fn unsynced_entries_are_read_at_once_and_a_cut_removes_them_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    append(&mut store, (0..10).map(|index| entry(1, index, 1)).collect()).await.unwrap();
    // Not waited for.
    store.append(vec![entry(1, 10, 1)], IOFlushed::noop()).await.unwrap();
    assert_eq!(read(&mut store, 10, 11).await.len(), 1);
    store.truncate_after(Some(LogId::new_term_index(1, 4))).await.unwrap();
    append(&mut store, vec![entry(2, 5, 1)]).await.unwrap();
    let check = |entries: Vec<Entry>| {
        let terms: Vec<u64> = entries.iter().map(|e| e.log_id.leader_id.term).collect();
        assert_eq!(terms, [1, 1, 1, 1, 1, 2]);
    };
    check(read(&mut store, 0, 100).await);
    store.stop().await.unwrap();
    drop(store);
    let mut store = open(dir.path());
    check(read(&mut store, 0, 100).await);
    assert_eq!(store.get_log_state().await.unwrap().last_log_id, Some(LogId::new_term_index(2, 5)));
    store.stop().await.unwrap();
}

#[tokio::test]
async fn a_purge_keeps_what_the_older_snapshot_needs_and_archives_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let options = || wal::Options {
        first_segment_bytes: 64 * 1024,
        max_segment_bytes: 64 * 1024,
        ..wal::Options::default()
    };
    let wal_disk = || wal::Disk::open(&dir.path().join("wal")).unwrap();
    let (mut store, _) = open_on(wal_disk(), dir.path(), options());
    for index in 0..200 {
        append(&mut store, vec![entry(1, index, 2000)]).await.unwrap();
    }
    let snapshot = |index: u64| {
        let meta = SnapshotMeta {
            last_log_id: Some(LogId::new_term_index(1, index)),
            ..SnapshotMeta::default()
        };
        let bytes = super::super::codec::encode_meta(&meta);
        let frozen = docket_core::ledger::Ledger::new().freeze();
        store.0.snapshots.save(position_of(index), &bytes, &meta, frozen).unwrap();
    };
    snapshot(100);
    store.clone().purge(LogId::new_term_index(1, 100)).await.unwrap();
    let archived = || std::fs::read_dir(dir.path().join("archive")).map_or(0, Iterator::count);
    assert_eq!(archived(), 0, "with one snapshot the whole log stays");
    snapshot(150);
    store.purge(LogId::new_term_index(1, 150)).await.unwrap();
    assert!(archived() > 0);
    assert_eq!(read(&mut store, 151, 300).await.len(), 49);
    store.stop().await.unwrap();
    drop(store);

    let (mut store, _) = open_on(wal_disk(), dir.path(), options());
    let state = store.get_log_state().await.unwrap();
    let purged = state.last_purged_log_id.unwrap();
    assert!((1..=100).contains(&purged.index), "{purged}: the older snapshot is at 100");
    assert_eq!(state.last_log_id, Some(LogId::new_term_index(1, 199)));
    assert_eq!(read(&mut store, 101, 200).await.len(), 99);
    store.stop().await.unwrap();
}

#[tokio::test]
async fn a_failed_fsync_throws_the_switch_and_tells_raft() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(1);
    let (mut store, failure) = open_on(disk.clone(), dir.path(), wal::Options::default());
    append(&mut store, vec![entry(1, 0, 1)]).await.unwrap();
    disk.arm(Fault::FailSync(1));
    let error = append(&mut store, vec![entry(1, 1, 1)]).await.unwrap_err();
    assert!(failure.failed().await.contains("writing the log failed"), "{error}");
    assert!(store.save_vote(&Vote::new(2, 1)).await.is_err());
}

#[tokio::test]
async fn a_power_loss_keeps_all_that_was_flushed_and_committed_is_never_ahead() {
    for seed in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = FaultyDisk::new(seed);
        let (mut store, _) = open_on(disk.clone(), dir.path(), wal::Options::default());
        append(&mut store, (0..5).map(|index| entry(1, index, 100)).collect()).await.unwrap();
        store.save_committed(Some(LogId::new_term_index(1, 4))).await.unwrap();
        store.append(vec![entry(1, 5, 100)], IOFlushed::noop()).await.unwrap();
        disk.crash(Keep::Random);
        drop(store);
        let (mut store, _) = open_on(disk, dir.path(), wal::Options::default());
        let last = store.get_log_state().await.unwrap().last_log_id.unwrap();
        assert!(last.index >= 4, "seed {seed}: flushed entries are gone");
        assert!(store.read_committed().await.unwrap() <= Some(last), "seed {seed}");
        assert_eq!(read(&mut store, 0, 9).await.len() as u64, last.index + 1, "seed {seed}");
    }
}

#[tokio::test]
async fn a_panic_of_the_writers_thread_ends_the_process_instead_of_hanging_raft() {
    let dir = tempfile::tempdir().unwrap();
    let disk = wal::Disk::open(&dir.path().join("wal")).unwrap();
    let (mut store, failure) = open_on(disk, dir.path(), wal::Options::default());
    append(&mut store, vec![entry(1, 0, 10)]).await.unwrap();
    let records = vec![Record::Vote(b"v".to_vec())];
    // What is gathered behind a completion that panics is never told anything.
    store.writer().unwrap().append(records, Box::new(|_| panic!("a completion")));
    store.append(vec![entry(1, 1, 10)], IOFlushed::noop()).await.unwrap();
    let told = tokio::time::timeout(std::time::Duration::from_secs(20), failure.failed()).await;
    let why = told.expect("nobody else would ever end the process");
    assert!(why.contains("log"), "{why}");
    // Who still asks hears of it, and the switch stays thrown.
    assert!(store.save_vote(&Vote::new_committed(2, 1)).await.is_err());
    assert_eq!(failure.reason(), Some(why));
}
