//! Snapshots: round trip, two kept, fallback on damage, interrupted saves, a full disk.
#![allow(clippy::unwrap_used, clippy::panic)]

use wal::{Disk, Fault, FaultyDisk, Keep, SnapshotError, SnapshotStore};

fn chunks(index: u64) -> Vec<Vec<u8>> {
    vec![vec![index as u8; 1000], Vec::new(), vec![1, 2, 3], vec![index as u8; 70_000]]
}

fn save(store: &SnapshotStore<FaultyDisk>, index: u64) -> Result<(), SnapshotError> {
    store.save(index, 2, format!("meta {index}").as_bytes(), chunks(index)).map(|_| ())
}

fn newest(store: &SnapshotStore<FaultyDisk>) -> Option<u64> {
    let (info, read) = store.newest().unwrap()?;
    let read: Vec<_> = read.map(Result::unwrap).collect();
    assert_eq!(read, chunks(info.index));
    assert_eq!(info.meta, format!("meta {}", info.index).into_bytes());
    assert_eq!((info.term, info.chunks, info.bytes), (2, 4, 71_003));
    Some(info.index)
}

#[test]
fn a_snapshot_comes_back_from_the_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(Disk::open(dir.path()).unwrap()).unwrap();
    assert!(store.newest().unwrap().is_none());
    let saved = store.save(7, 2, b"who", chunks(7)).unwrap();
    let (info, read) = store.newest().unwrap().unwrap();
    assert_eq!(info, saved);
    assert_eq!(read.map(Result::unwrap).collect::<Vec<_>>(), chunks(7));
    // None at all is a snapshot too.
    store.save(8, 2, b"", Vec::new()).unwrap();
    assert_eq!(store.newest().unwrap().unwrap().1.count(), 0);
}

#[test]
fn the_two_newest_are_kept() {
    let disk = FaultyDisk::new(1);
    let store = SnapshotStore::open(disk.clone()).unwrap();
    for index in [5, 9, 100, 20] {
        save(&store, index).unwrap();
    }
    assert_eq!(store.positions().unwrap(), [(100, 2), (20, 2)]);
    assert_eq!(newest(&store), Some(100));
    assert_eq!(disk.image().len(), 2);
}

#[test]
fn damage_at_any_place_of_the_newest_falls_back_to_the_older_one() {
    let disk = FaultyDisk::new(1);
    let store = SnapshotStore::open(disk.clone()).unwrap();
    save(&store, 5).unwrap();
    save(&store, 9).unwrap();
    let image = disk.image();
    let name = image.keys().next_back().unwrap();
    let length = image[name].len();
    for at in (0..1200).chain((1200..length).step_by(1009)).chain(length - 30..length) {
        let mut flipped = image.clone();
        flipped.get_mut(name).unwrap()[at] ^= 4;
        let store = SnapshotStore::open(FaultyDisk::from_image(&flipped, 1)).unwrap();
        assert_eq!(newest(&store), Some(5), "flip at {at}");
        let mut cut = image.clone();
        cut.get_mut(name).unwrap().truncate(at);
        let store = SnapshotStore::open(FaultyDisk::from_image(&cut, 1)).unwrap();
        assert_eq!(newest(&store), Some(5), "cut to {at}");
    }
    let mut longer = image.clone();
    longer.get_mut(name).unwrap().push(0);
    let store = SnapshotStore::open(FaultyDisk::from_image(&longer, 1)).unwrap();
    assert_eq!(newest(&store), Some(5));
}

#[test]
fn all_damaged_and_a_newer_release_are_refused_by_name() {
    let disk = FaultyDisk::new(1);
    let store = SnapshotStore::open(disk.clone()).unwrap();
    save(&store, 5).unwrap();
    let mut image = disk.image();
    let bytes = image.values_mut().next().unwrap();
    bytes[100] ^= 1;
    let store = SnapshotStore::open(FaultyDisk::from_image(&image, 1)).unwrap();
    assert!(matches!(store.newest(), Err(SnapshotError::Damaged { .. })));
    let bytes = image.values_mut().next().unwrap();
    // Another release has another version and so another checksum.
    bytes[8] = 2;
    bytes[12] ^= 0xff;
    let store = SnapshotStore::open(FaultyDisk::from_image(&image, 1)).unwrap();
    let refused = store.newest().unwrap_err();
    assert!(matches!(refused, SnapshotError::UnknownVersion { found: 2, known: 1, .. }));
}

#[test]
fn power_loss_at_every_change_of_a_save_leaves_the_old_or_the_new_one() {
    for change in 1.. {
        let mut saved = false;
        for seed in 0..6 {
            let keep = [Keep::Nothing, Keep::Everything, Keep::Random][seed as usize % 3];
            let mut disk = FaultyDisk::new(seed);
            let store = SnapshotStore::open(disk.clone()).unwrap();
            save(&store, 5).unwrap();
            save(&store, 6).unwrap();
            disk.arm(Fault::PowerLossAt(change));
            saved = save(&store, 9).is_ok();
            drop(store);
            disk.crash(keep);
            let store = SnapshotStore::open(disk.clone()).unwrap();
            let found = newest(&store);
            assert!(found == Some(9) || (!saved && found == Some(6)), "{change} {found:?}");
            assert!(disk.image().keys().all(|name| name.ends_with(".snap")));
            save(&store, 10).unwrap();
            assert_eq!(newest(&store), Some(10));
        }
        if saved {
            break;
        }
    }
}

#[test]
fn a_full_disk_leaves_what_was_there_and_no_rest() {
    let disk = FaultyDisk::new(1);
    let store = SnapshotStore::open(disk.clone()).unwrap();
    save(&store, 5).unwrap();
    let before = disk.image();
    disk.set_capacity(Some(disk.used() + 30_000));
    assert!(matches!(save(&store, 9), Err(SnapshotError::NoSpace { .. })));
    assert_eq!(disk.image(), before);
    assert_eq!(newest(&store), Some(5));
    disk.set_capacity(None);
    save(&store, 9).unwrap();
}

#[test]
fn a_chunk_that_changes_while_it_is_read_is_an_error_and_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(Disk::open(dir.path()).unwrap()).unwrap();
    let saved = store.save(7, 2, b"who", chunks(7)).unwrap();
    let (_, mut read) = store.newest().unwrap().unwrap();
    assert!(read.next().unwrap().is_ok());
    let path = dir.path().join(saved.file);
    let mut bytes = std::fs::read(&path).unwrap();
    let place = bytes.len() - 5000;
    bytes[place] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let rest: Vec<_> = read.collect();
    assert!(matches!(rest.last(), Some(Err(SnapshotError::Damaged { .. }))), "{rest:?}");
}
