//! The log on a healthy disk: appending, reading, rotation, purge, reopening, refusals.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{ME, all, entry, logged, open, tiny};
use wal::{Disk, FaultyDisk, Identity, Keep, Log, OpenError, Options, ReadError};
use wal::{Record, Verdict, WriteError};

#[test]
fn a_new_log_is_empty_and_says_fresh() {
    let dir = tempfile::tempdir().unwrap();
    let (log, found) = open(Disk::open(dir.path()).unwrap()).unwrap();
    assert_eq!(found.verdict, Verdict::Fresh);
    assert_eq!((found.first, found.last, found.vote, found.committed), (1, 0, None, None));
    assert_eq!((log.first_index(), log.last_index()), (1, 0));
    assert_eq!(log.term_at(0), None);
}

#[test]
fn entries_votes_and_commits_come_back_from_the_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = open(Disk::open(dir.path()).unwrap()).unwrap();
    let sizes = [0, 1, 7, 8, 100, 4096, 4097, 20_000, 3];
    for (place, size) in sizes.iter().enumerate() {
        let index = place as u64 + 1;
        log.append(&[
            entry(index, 2, *size),
            Record::Vote(vec![index as u8; 9]),
            Record::Committed { index, term: 2 },
        ])
        .unwrap();
        assert_eq!(all(&log).last().unwrap(), &logged(index, 2, *size), "readable before the sync");
        log.sync().unwrap();
    }
    let before = all(&log);
    drop(log);
    let (log, found) = open(Disk::open(dir.path()).unwrap()).unwrap();
    assert_eq!(found.verdict, Verdict::Clean);
    assert!(found.segments > 2, "the log has rotated");
    assert_eq!((found.first, found.last), (1, 9));
    assert_eq!(found.vote, Some(vec![9; 9]));
    assert_eq!(found.committed, Some((9, 2)));
    assert_eq!(all(&log), before);
}

#[test]
fn files_are_private_and_a_second_process_is_refused_by_name() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("wal");
    let (log, _) = open(Disk::open(&dir).unwrap()).unwrap();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for file in std::fs::read_dir(&dir).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
    let refused = Disk::open(&dir).unwrap_err();
    let OpenError::Locked { holder, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*holder, Some(std::process::id()));
    drop(log);
    Disk::open(&dir).unwrap();
}

#[test]
fn segments_are_allocated_in_full_and_grow() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        first_segment_bytes: 64 << 10,
        max_segment_bytes: 512 << 10,
        ..Options::default()
    };
    let (mut log, _) = Log::open(Disk::open(dir.path()).unwrap(), ME, options).unwrap();
    for index in 1..=40 {
        log.append(&[entry(index, 1, 30_000)]).unwrap();
    }
    log.sync().unwrap();
    let mut lengths: Vec<_> = wal::inspect::stat(dir.path()).unwrap().segments;
    let lengths: Vec<_> = lengths.drain(..).map(|segment| segment.bytes >> 10).collect();
    // The spare is the reserve of 1 MiB, and is used as it is.
    assert_eq!(lengths, [64, 1024, 1024]);
}

#[test]
fn a_batch_longer_than_any_segment_gets_a_segment_of_its_own() {
    let disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[entry(1, 1, 10), entry(2, 1, 300_000), entry(3, 1, 10)]).unwrap();
    log.append(&[entry(4, 1, 10)]).unwrap();
    let before = all(&log);
    log.sync().unwrap();
    drop(log);
    assert_eq!(all(&open(disk).unwrap().0), before);
}

#[test]
fn a_cut_voids_the_suffix_across_segments_and_reopening() {
    let mut disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    for index in 1..=20 {
        log.append(&[entry(index, 1, 1000)]).unwrap();
    }
    log.append(&[Record::Cut { from: 5 }, entry(5, 2, 10), entry(6, 2, 10)]).unwrap();
    assert_eq!((log.last_index(), log.term_at(4), log.term_at(5)), (6, Some(1), Some(2)));
    assert!(matches!(log.read(6, 7), Err(ReadError::Beyond { asked: 7, last: 6 })));
    log.sync().unwrap();
    let before = all(&log);
    disk.kill();
    let (mut log, _) = open(disk).unwrap();
    assert_eq!(all(&log), before);
    log.append(&[Record::Cut { from: 1 }]).unwrap();
    assert_eq!((log.first_index(), log.last_index()), (1, 0));
}

#[test]
fn purge_drops_whole_segments_only_and_keeps_vote_and_term() {
    let mut disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[Record::Vote(b"for me".to_vec()), Record::Committed { index: 1, term: 1 }])
        .unwrap();
    for index in 1..=40 {
        log.append(&[entry(index, 1 + index / 10, 1000)]).unwrap();
    }
    log.sync().unwrap();
    let files = disk.image().len();
    log.purge(0, None).unwrap();
    assert_eq!(disk.image().len(), files);
    log.purge(25, None).unwrap();
    let first = log.first_index();
    assert!(first > 1 && first <= 26, "{first}");
    assert!(disk.image().len() < files);
    assert_eq!(log.term_at(first - 1), Some(1 + (first - 1) / 10));
    assert!(matches!(log.read(first - 1, 30), Err(ReadError::Purged { .. })));
    let before = all(&log);
    disk.crash(Keep::Nothing);
    let (log, found) = open(disk).unwrap();
    assert_eq!(all(&log), before);
    assert_eq!(found.purged, (first - 1, 1 + (first - 1) / 10));
    assert_eq!(found.vote, Some(b"for me".to_vec()));
    assert_eq!(found.committed, Some((1, 1)));
}

#[test]
fn purge_moves_segments_into_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive");
    let (mut log, _) = open(Disk::open(&dir.path().join("wal")).unwrap()).unwrap();
    for index in 1..=40 {
        log.append(&[entry(index, 1, 1000)]).unwrap();
    }
    log.purge(30, Some(&archive)).unwrap();
    let stat = wal::inspect::stat(&archive).unwrap();
    assert_eq!(stat.first, 1);
    assert_eq!(stat.last + 1, log.first_index());
    // A purged segment is still readable where it went.
    let mut seen = 0;
    wal::inspect::dump(&archive, |dumped| {
        seen += u64::from(matches!(dumped.record, Some(Record::Entry { .. })));
    })
    .unwrap();
    assert_eq!(seen, stat.last);
}

#[test]
fn a_cut_before_the_first_segment_survives_its_purge() {
    let mut disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    for index in 1..=30 {
        log.append(&[entry(index, 4, 1000)]).unwrap();
    }
    // Cut into an old segment, rewrite in the newest, purge the old ones.
    log.append(&[Record::Cut { from: 10 }]).unwrap();
    for index in 10..=30 {
        log.append(&[entry(index, 5, 1000)]).unwrap();
    }
    log.sync().unwrap();
    log.purge(9, None).unwrap();
    assert_eq!(log.first_index(), 10);
    assert_eq!(log.term_at(9), Some(4));
    let before = all(&log);
    disk.crash(Keep::Nothing);
    let (log, found) = open(disk).unwrap();
    assert_eq!((found.first, found.last, found.purged), (10, 30, (9, 4)));
    assert_eq!(all(&log), before);
}

#[test]
fn skipping_beyond_the_end_is_durable_and_empties_the_log() {
    let mut disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[entry(1, 1, 10), Record::Vote(vec![1])]).unwrap();
    log.skip_to(100, 6).unwrap();
    assert_eq!((log.first_index(), log.last_index(), log.term_at(100)), (101, 100, Some(6)));
    assert!(matches!(
        log.append(&[entry(2, 1, 1)]),
        Err(WriteError::NotNext { expected: 101, .. })
    ));
    disk.crash(Keep::Nothing);
    let (mut log, found) = open(disk.clone()).unwrap();
    assert_eq!((found.first, found.last, found.purged), (101, 100, (100, 6)));
    assert_eq!(found.vote, Some(vec![1]));
    log.append(&[entry(101, 6, 10)]).unwrap();
    log.purge(200, None).unwrap();
    disk.crash(Keep::Nothing);
    assert_eq!(open(disk).unwrap().1.purged, (200, 0));
}

#[test]
fn wrong_batches_are_refused_and_leave_the_log_as_it_was() {
    let disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[entry(1, 1, 10)]).unwrap();
    let image = disk.image();
    let refused = |log: &mut Log<FaultyDisk>, records: &[Record]| {
        let error = log.append(records).unwrap_err();
        assert!(error.is_refusal(), "{error}");
        error
    };
    refused(&mut log, &[entry(3, 1, 10)]);
    refused(&mut log, &[entry(2, 1, 10), entry(2, 1, 10)]);
    refused(&mut log, &[Record::Cut { from: 0 }]);
    refused(&mut log, &[Record::Cut { from: 3 }]);
    refused(&mut log, &[Record::Vote(vec![0; 1025])]);
    assert_eq!(disk.image(), image);
    log.append(&[Record::Cut { from: 2 }, entry(2, 1, 1), Record::Cut { from: 2 }]).unwrap();
    assert_eq!(log.last_index(), 1);
}

#[test]
fn another_owner_and_another_version_are_refused_by_name() {
    let mut disk = FaultyDisk::new(1);
    open(disk.clone()).unwrap();
    disk.kill();
    let other = Identity { owner_id: 4, ..ME };
    let refused = Log::open(disk.clone(), other, tiny()).unwrap_err();
    assert!(matches!(refused, OpenError::OtherOwner { .. }), "{refused}");
    let mut image = disk.image();
    let (_, bytes) = image.iter_mut().find(|(name, _)| name.ends_with(".wal")).unwrap();
    bytes[8] = 9;
    let refused = open(FaultyDisk::from_image(&image, 1)).unwrap_err();
    assert!(matches!(refused, OpenError::UnknownVersion { found: 9, known: 1, .. }), "{refused}");
}

#[test]
fn a_missing_segment_and_a_strange_name_are_refused() {
    let disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    for index in 1..=40 {
        log.append(&[entry(index, 1, 1000)]).unwrap();
    }
    log.sync().unwrap();
    let mut image = disk.image();
    image.retain(|name, _| !name.contains("-0000000000000002"));
    let refused = open(FaultyDisk::from_image(&image, 1)).unwrap_err();
    assert!(matches!(refused, OpenError::MissingSegment { .. }), "{refused}");
    let mut image = disk.image();
    image.insert("1-2.wal".to_owned(), Vec::new());
    let refused = open(FaultyDisk::from_image(&image, 1)).unwrap_err();
    assert!(matches!(refused, OpenError::StrangeFile { .. }), "{refused}");
}

#[test]
fn a_zero_byte_segment_behind_an_open_one_and_other_sizes_do_not_hinder_opening() {
    let disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[entry(1, 1, 1000)]).unwrap();
    log.seal().unwrap();
    let before = all(&log);
    let mut image = disk.image();
    image.insert(format!("{:020}-{:016x}.wal", 2, 2), Vec::new());
    let options = Options { first_segment_bytes: 16384, max_segment_bytes: 20480, ..tiny() };
    let (mut log, found) = Log::open(FaultyDisk::from_image(&image, 1), ME, options).unwrap();
    assert_eq!(found.verdict, Verdict::Clean);
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
    assert_eq!(all(&log), before);
    for index in 2..=20 {
        log.append(&[entry(index, 1, 1000)]).unwrap();
    }
}

#[test]
fn a_full_disk_refuses_whole_batches_and_the_log_goes_on_when_there_is_room() {
    let mut disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    assert!(log.free_space().unwrap().above_reserve);
    disk.set_capacity(Some(disk.used()));
    assert!(!log.free_space().unwrap().above_reserve);
    let mut index = 1;
    let refused = loop {
        match log.append(&[entry(index, 1, 500)]) {
            Ok(_) => index += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, WriteError::NoSpace { .. }), "{refused}");
    // The open segment and the reserve were both used up.
    assert_eq!(index - 1, 2 * ((4096 - 64) / (64 + 24 + 504)));
    for _ in 0..3 {
        assert!(matches!(log.append(&[entry(index, 1, 500)]), Err(WriteError::NoSpace { .. })));
    }
    assert_eq!(log.last_index(), index - 1);
    log.sync().unwrap();
    log.seal().unwrap();
    disk.set_capacity(None);
    log.append(&[entry(index, 1, 500)]).unwrap();
    log.seal().unwrap();
    assert!(log.free_space().unwrap().above_reserve);
    let before = all(&log);
    disk.crash(Keep::Nothing);
    assert_eq!(all(&open(disk).unwrap().0), before);
}

#[test]
fn space_that_runs_out_inside_a_write_leaves_no_trace_of_the_batch() {
    for nth in 1..=6 {
        let mut disk = FaultyDisk::new(nth);
        let (mut log, _) = open(disk.clone()).unwrap();
        let mut index = 1;
        disk.arm(wal::Fault::NoSpaceInWrite(nth));
        for _ in 0..12 {
            match log.append(&[entry(index, 1, 3000)]) {
                Ok(_) => index += 1,
                Err(e) => assert!(matches!(e, WriteError::NoSpace { .. }), "{e}"),
            }
        }
        assert_eq!(index, 12, "one append of twelve was refused");
        log.sync().unwrap();
        let before = all(&log);
        disk.crash(Keep::Nothing);
        assert_eq!(all(&open(disk).unwrap().0), before);
    }
}

#[test]
fn a_batch_that_was_refused_does_not_come_back_even_if_it_got_through() {
    let mut disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[entry(1, 1, 10)]).unwrap();
    log.sync().unwrap();
    disk.arm(wal::Fault::NoSpaceInWrite(1));
    // Its last byte is padding, so all of the batch is in the file when the write fails.
    assert!(matches!(log.append(&[entry(2, 1, 9)]), Err(WriteError::NoSpace { .. })));
    disk.crash(Keep::Everything);
    let (mut log, found) = open(disk.clone()).unwrap();
    assert_eq!(found.last, 1);
    log.append(&[entry(2, 2, 50)]).unwrap();
    assert_eq!(log.read(2, 2).unwrap(), [logged(2, 2, 50)]);
}

#[test]
fn old_segments_that_a_skip_could_not_remove_stay_void() {
    let mut disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[Record::Vote(vec![3])]).unwrap();
    for index in 1..=9 {
        log.append(&[entry(index, 1, 1000)]).unwrap();
    }
    disk.arm(wal::Fault::FailRemove(1));
    assert!(matches!(log.skip_to(40, 5), Err(WriteError::Purge { doing: "remove", .. })));
    log.append(&[entry(41, 5, 100)]).unwrap();
    log.sync().unwrap();
    disk.crash(Keep::Nothing);
    let (mut log, found) = open(disk.clone()).unwrap();
    assert!(found.segments > 1);
    assert_eq!((found.first, found.last, found.purged), (41, 41, (40, 5)));
    assert_eq!(found.vote, Some(vec![3]));
    assert_eq!(all(&log), [logged(41, 5, 100)]);
    // The next purge takes them along.
    log.purge(40, None).unwrap();
    assert_eq!(disk.image().keys().filter(|name| name.ends_with(".wal")).count(), 1);
}

#[test]
fn after_a_failed_fsync_the_log_takes_no_more_and_opening_makes_it_durable_anew() {
    let mut disk = FaultyDisk::new(5);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[entry(1, 1, 600)]).unwrap();
    log.sync().unwrap();
    log.append(&[entry(2, 1, 600)]).unwrap();
    disk.arm(wal::Fault::FailSync(1));
    assert!(matches!(log.sync(), Err(WriteError::OutcomeUnknown { .. })));
    assert!(log.is_failed());
    assert!(matches!(log.sync(), Err(WriteError::Failed { .. })));
    assert!(matches!(log.append(&[entry(3, 1, 1)]), Err(WriteError::Failed { .. })));
    // The process dies; the page cache still holds entry 2, the disk does not.
    disk.kill();
    let (log, found) = open(disk.clone()).unwrap();
    assert_eq!((found.verdict, found.last), (Verdict::Clean, 2));
    drop(log);
    disk.crash(Keep::Nothing);
    assert_eq!(open(disk).unwrap().1.last, 2, "what was served must not be lost");
}

#[test]
fn an_idle_seal_is_written_once() {
    let disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[entry(1, 1, 10)]).unwrap();
    log.seal().unwrap();
    let changes = disk.changes();
    log.seal().unwrap();
    log.sync().unwrap();
    assert_eq!(disk.changes(), changes);
}

#[test]
fn a_purge_does_not_outrun_the_cut_that_voids_what_it_drops() {
    let mut disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    for index in 1..=10 {
        log.append(&[entry(index, 1, 1000)]).unwrap();
    }
    log.sync().unwrap();
    log.append(&[Record::Cut { from: 1 }]).unwrap();
    log.purge(0, None).unwrap();
    disk.crash(Keep::Nothing);
    let (log, found) = open(disk).unwrap();
    let whole = (found.first, found.last) == (1, 10) && all(&log).len() == 10;
    assert!(whole || (found.first, found.last) == (1, 0), "{found:?}");
}

#[test]
fn rot_under_an_open_log_is_an_error_of_the_read_and_never_a_changed_entry() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = open(Disk::open(dir.path()).unwrap()).unwrap();
    log.append(&[entry(1, 1, 100), entry(2, 1, 100), entry(3, 1, 100)]).unwrap();
    log.sync().unwrap();
    let name = wal::inspect::stat(dir.path()).unwrap().segments[0].file.clone();
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(&name)).unwrap();
    // In the payload of entry 2: behind the frame's header, record 1, and record 2's header.
    file.write_at(b"rot", 4096 + 64 + 24 + 104 + 24 + 50).unwrap();
    assert_eq!(log.read(1, 1).unwrap(), [logged(1, 1, 100)]);
    assert_eq!(log.read(3, 3).unwrap(), [logged(3, 1, 100)]);
    let refused = log.read(1, 3).unwrap_err();
    let ReadError::Damaged { file, index, .. } = &refused else { panic!("{refused}") };
    assert_eq!((file, *index), (&name, 2));
}

#[test]
fn looking_at_a_log_in_use_tells_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = open(Disk::open(dir.path()).unwrap()).unwrap();
    log.append(&[entry(1, 1, 100), entry(2, 1, 100), Record::Vote(vec![4])]).unwrap();
    log.append(&[Record::Cut { from: 2 }, Record::Committed { index: 1, term: 1 }]).unwrap();
    let report = wal::inspect::verify(dir.path()).unwrap();
    assert_eq!((report.live, report.verdict.unwrap()), (Some((1, 1)), Verdict::Clean));
    let stat = wal::inspect::stat(dir.path()).unwrap();
    assert_eq!((stat.first, stat.last, stat.committed), (1, 1, Some((1, 1))));
    assert_eq!(stat.vote, Some(vec![4]));
    assert_eq!((stat.segments.len(), stat.bytes), (1, 8192));
    let segment = &stat.segments[0];
    assert_eq!((segment.batches, segment.entries, segment.identity), (2, 2, Some(ME)));
}
