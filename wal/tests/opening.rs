//! Every row of the opening table (design 4) with real files, as one table: what is in the directory,
//! the verdict, what the refusal names, and that a refusal changes no byte.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{entry, open};
use wal::inspect::verify;
use wal::{Disk, Log, OpenError, Options, SnapshotError, SnapshotStore, Verdict};

type Image = BTreeMap<String, Vec<u8>>;

/// Files of a log on the real disk: three segments, every byte acknowledged and sealed.
fn recorded() -> Image {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = open(Disk::open(dir.path()).unwrap()).unwrap();
    for index in 1..=24 {
        log.append(&[entry(index, 2, 700)]).unwrap();
        log.sync().unwrap();
    }
    log.seal().unwrap();
    drop(log);
    let image = files(dir.path());
    assert!(image.len() >= 3, "{} segments", image.len());
    image
}

fn files(dir: &Path) -> Image {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "wal"))
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap())
        })
        .collect()
}

fn write(dir: &Path, image: &Image) {
    for (name, bytes) in image {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
}

/// Name of the n-th segment, from 0.
fn nth(image: &Image, n: usize) -> String {
    image.keys().nth(n).unwrap().clone()
}

fn last(image: &Image) -> String {
    image.keys().next_back().unwrap().clone()
}

fn bytes_of<'i>(image: &'i mut Image, name: &str) -> &'i mut Vec<u8> {
    image.get_mut(name).unwrap()
}

/// Gives a header page its right checksum.
fn signed(page: &mut [u8]) {
    page[12..16].fill(0);
    let sum = crc32c::crc32c(&page[..4096]);
    page[12..16].copy_from_slice(&sum.to_le_bytes());
}

/// A row: its name, the damage, whether that is what opening says, and what its text names.
struct Row {
    name: &'static str,
    damage: fn(&mut Image),
    is: fn(&Result<Verdict, OpenError>) -> bool,
    names: &'static [&'static str],
}

const ROWS: &[Row] = &[
    Row {
        name: "no segment",
        damage: |image| image.clear(),
        is: |said| matches!(said, Ok(Verdict::Fresh)),
        names: &[],
    },
    Row {
        name: "whole",
        damage: |_| {},
        is: |said| matches!(said, Ok(Verdict::Clean)),
        names: &[],
    },
    Row {
        name: "unknown format version",
        damage: |image| {
            let page = bytes_of(image, &nth(&image.clone(), 1));
            page[8] = 9;
            signed(page);
        },
        is: |said| matches!(said, Err(OpenError::UnknownVersion { .. })),
        names: &["{1}", "version 9", "another release"],
    },
    Row {
        name: "another cluster or owner",
        damage: |image| {
            let page = bytes_of(image, &nth(&image.clone(), 2));
            page[16] ^= 1;
            signed(page);
        },
        is: |said| matches!(said, Err(OpenError::OtherOwner { .. })),
        names: &["{2}", "belongs to cluster", "wrong directory?"],
    },
    Row {
        name: "missing segment",
        damage: |image| drop(image.remove(&nth(image, 1))),
        is: |said| matches!(said, Err(OpenError::MissingSegment { .. })),
        names: &["{1}", "does not follow", "docket wal repair"],
    },
    Row {
        name: "header lost",
        damage: |image| bytes_of(image, &nth(&image.clone(), 1))[20] ^= 1,
        is: |said| matches!(said, Err(OpenError::HeaderLost { .. })),
        names: &["{1}", "docket wal repair"],
    },
    Row {
        name: "crash in rotation",
        damage: |image| {
            let (name, length) = (last(image), 8192);
            let (first, seq) = name.trim_end_matches(".wal").split_once('-').unwrap();
            let first: u64 = first.parse().unwrap();
            let seq = u64::from_str_radix(seq, 16).unwrap() + 1;
            image.insert(format!("{:020}-{seq:016x}.wal", first + 100), vec![0; length]);
        },
        is: |said| matches!(said, Ok(Verdict::Clean)),
        names: &[],
    },
    Row {
        name: "corruption of acknowledged data",
        damage: |image| bytes_of(image, &nth(&image.clone(), 1))[4096 + 900] ^= 1,
        is: |said| matches!(said, Err(OpenError::Corrupt(_))),
        names: &["{1}", "at offset 4", "checksum", "last good entry is", "docket wal verify"],
    },
    Row {
        name: "the last acknowledged batch of an idle log",
        damage: |image| {
            let name = last(image);
            let bytes = bytes_of(image, &name);
            let seal = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 8 * 8 - 56;
            let frame = bytes[..seal].windows(4).rposition(|four| four == b"DWF1").unwrap();
            bytes[frame + 64 + 24 + 3] ^= 1;
        },
        is: |said| matches!(said, Err(OpenError::Corrupt(_))),
        names: &["{last}", "last good entry is 23", "entries from 24"],
    },
    Row {
        name: "file cut short",
        damage: |image| {
            let name = last(image);
            let used = image[&name].iter().rposition(|byte| *byte != 0).unwrap();
            bytes_of(image, &name).truncate((used / 8 + 1) * 8);
        },
        is: |said| matches!(said, Err(OpenError::Shortened { .. } | OpenError::Corrupt(_))),
        names: &["{last}"],
    },
    Row {
        name: "torn tail",
        damage: |image| {
            let name = last(image);
            let bytes = bytes_of(image, &name);
            let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 8 * 8 + 8;
            let end = (end - 4096).next_multiple_of(8) + 4096;
            bytes[end + 64..end + 164].fill(0x5a);
        },
        is: |said| matches!(said, Ok(Verdict::TornTail { .. })),
        names: &[],
    },
    Row {
        name: "frames of another release",
        damage: |image| {
            let name = last(image);
            let bytes = bytes_of(image, &name);
            let frame = bytes.windows(4).rposition(|four| four == b"DWF1").unwrap();
            bytes[frame + 52] = 77;
            let sum = crc32c::crc32c(&bytes[frame + 8..frame + 64]);
            bytes[frame + 4..frame + 8].copy_from_slice(&sum.to_le_bytes());
        },
        is: |said| matches!(said, Err(OpenError::Nonsense { .. })),
        names: &["{last}", "unknown frame kind 77", "another release"],
    },
    Row {
        name: "a file that only looks like a segment",
        damage: |image| drop(image.insert("7.wal".to_owned(), vec![1])),
        is: |said| matches!(said, Err(OpenError::StrangeFile { .. })),
        names: &["7.wal", "move it out"],
    },
];

/// `{1}` is the second segment of the damaged directory, `{last}` its last.
fn named(part: &str, image: &Image) -> String {
    match part {
        "{1}" => nth(image, 1),
        "{2}" => nth(image, 2),
        "{last}" => last(image),
        other => other.to_owned(),
    }
}

#[test]
fn every_row_of_the_opening_table_is_met_with_real_files() {
    let whole = recorded();
    for row in ROWS {
        let mut image = whole.clone();
        (row.damage)(&mut image);
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &image);
        let verified = verify(dir.path()).unwrap().verdict;
        assert_eq!(files(dir.path()), image, "{}: looking changes nothing", row.name);
        let opened = open(Disk::open(dir.path()).unwrap());
        let said = opened.map(|(log, found)| {
            assert_eq!(log.last_index(), if image.is_empty() { 0 } else { 24 }, "{}", row.name);
            found.verdict
        });
        assert!((row.is)(&said), "{}: {said:?}", row.name);
        match said {
            Ok(_) => assert!(verified.is_ok(), "{}: {verified:?}", row.name),
            Err(refusal) => {
                let text = refusal.to_string();
                for part in row.names {
                    let part = named(part, &image);
                    assert!(text.contains(&part), "{}: {part} in {text}", row.name);
                }
                // An owner is only known to who opens.
                let other = matches!(refusal, OpenError::OtherOwner { .. });
                assert!(other || verified.is_err(), "{}: verify agrees", row.name);
                assert_eq!(files(dir.path()), image, "{}: a refusal changes nothing", row.name);
            }
        }
    }
}

/// A directory with two snapshots of which some are damaged.
fn snapshots(damaged: &[usize]) -> Result<Option<u64>, SnapshotError> {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(Disk::open(dir.path()).unwrap()).unwrap();
    for index in [5, 9] {
        store.save(index, 2, b"who", vec![vec![index as u8; 3000]]).unwrap();
    }
    drop(store);
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.metadata().unwrap().len() > 1000)
        .collect();
    names.sort();
    assert_eq!(names.len(), 2);
    for place in damaged {
        let mut bytes = std::fs::read(&names[*place]).unwrap();
        bytes[2000] ^= 1;
        std::fs::write(&names[*place], bytes).unwrap();
    }
    let store = SnapshotStore::open(Disk::open(dir.path()).unwrap())?;
    let newest = store.newest()?.map(|(info, _)| info.index);
    Ok(newest)
}

#[test]
fn the_rows_of_snapshots_are_met_with_real_files() {
    assert_eq!(snapshots(&[]).unwrap(), Some(9));
    assert_eq!(snapshots(&[1]).unwrap(), Some(5), "the newest is damaged");
    assert_eq!(snapshots(&[0]).unwrap(), Some(9), "the older is damaged");
    let refused = snapshots(&[0, 1]).unwrap_err();
    assert!(matches!(&refused, SnapshotError::Damaged { .. }), "{refused}");
}

#[test]
fn a_second_process_is_told_who_has_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, _) =
        Log::open(Disk::open(dir.path()).unwrap(), common::ME, Options::default()).unwrap();
    let refused = Disk::open(dir.path()).unwrap_err();
    let pid = std::process::id();
    assert!(matches!(refused, OpenError::Locked { holder: Some(holder), .. } if holder == pid));
}

#[test]
fn opening_tells_how_far_it_is_up_to_the_last_frame() {
    let dir = tempfile::tempdir().unwrap();
    let image = recorded();
    write(dir.path(), &image);
    let of: u64 = image.values().map(|bytes| bytes.len() as u64).sum();
    let mut told = Vec::new();
    let disk = Disk::open(dir.path()).unwrap();
    let opened = Log::open_seen(disk, common::ME, common::tiny(), &mut |seen| told.push(seen));
    assert_eq!(opened.unwrap().1.last, 24);
    assert!(told.len() >= 24 && told.iter().all(|seen| seen.of == of), "{told:?}");
    assert!(told.is_sorted_by_key(|seen| seen.bytes), "{told:?}");
    let (first, last) = (told[0].bytes, told[told.len() - 1].bytes);
    assert!(first < of / 4 && last > of / 2 && last <= of, "{first} to {last} of {of}");
}
