//! Truncation and a flip at every byte of a recorded log, and the damage that people met
//! elsewhere: never a changed entry; every durable entry, or a refusal by name.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;

use common::{all, entry, logged, open};
use wal::inspect::{dump_storage, verify_storage};
use wal::{FaultyDisk, LogEntry, OpenError, Record, Verdict};

type Image = BTreeMap<String, Vec<u8>>;

/// Two segments, a cut, a vote, and at the end a seal: everything in it is known to be durable.
struct Recording {
    image: Image,
    entries: Vec<LogEntry>,
    vote: Vec<u8>,
}

fn record(sealed: bool) -> Recording {
    let disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    let vote = b"term 3, node 2".to_vec();
    for index in 1..=6 {
        log.append(&[entry(index, 1, 40 * index as usize)]).unwrap();
    }
    log.append(&[Record::Vote(vec![1]), entry(7, 1, 0), entry(8, 2, 2500)]).unwrap();
    log.append(&[Record::Cut { from: 5 }, entry(5, 3, 33), Record::Vote(vote.clone())]).unwrap();
    log.sync().unwrap();
    log.append(&[entry(6, 3, 900), Record::Committed { index: 5, term: 3 }]).unwrap();
    log.append(&[entry(7, 3, 77)]).unwrap();
    log.sync().unwrap();
    log.append(&[entry(8, 3, 120)]).unwrap();
    if sealed {
        log.seal().unwrap();
    } else {
        log.sync().unwrap();
    }
    let entries = all(&log);
    let mut image = disk.image();
    image.remove("spare");
    assert_eq!(image.len(), 2, "two segments");
    Recording { image, entries, vote }
}

type Reopened = (Vec<LogEntry>, Option<Vec<u8>>, Verdict);

/// Opens a damaged image and looks at all that must hold; `Ok` carries what was recovered.
fn reopen(image: &Image) -> Result<Reopened, OpenError> {
    let disk = FaultyDisk::from_image(image, 9);
    let judged = verify_storage(&disk).unwrap().verdict.is_ok();
    assert_eq!(disk.changes(), 0, "looking changes nothing");
    let reopened = just_reopen(&disk, image);
    assert_eq!(reopened.is_ok(), judged, "verify says what opening says");
    if let Ok((entries, ..)) = &reopened {
        // What was opened takes writes, and opens again as clean.
        let (mut log, found) = open(disk.clone()).unwrap();
        assert_eq!(found.verdict, Verdict::Clean);
        log.append(&[entry(found.last + 1, 9, 50)]).unwrap();
        log.seal().unwrap();
        drop(log);
        let (log, again) = open(disk).unwrap();
        assert_eq!((again.verdict, again.last), (Verdict::Clean, found.last + 1));
        assert_eq!(&log.read(found.first, found.last).unwrap(), entries);
    }
    reopened
}

fn just_reopen(disk: &FaultyDisk, image: &Image) -> Result<Reopened, OpenError> {
    match open(disk.clone()) {
        Ok((log, found)) => Ok((all(&log), found.vote, found.verdict)),
        Err(e) => {
            assert_eq!(&disk.image(), image, "a refusal changes nothing");
            Err(e)
        }
    }
}

/// The same for one of very many places: the full look only at some.
fn reopen_at(image: &Image, at: usize) -> Result<Reopened, OpenError> {
    if at.is_multiple_of(7) {
        reopen(image)
    } else {
        just_reopen(&FaultyDisk::from_image(image, 9), image)
    }
}

fn is_named(refusal: &OpenError) -> bool {
    !matches!(refusal, OpenError::Io { .. } | OpenError::NoSpace { .. })
}

/// Damage that hits a sealed log is either harmless or refused.
fn check_sealed(recording: &Recording, image: &Image, at: usize, what: &str) {
    match reopen_at(image, at) {
        Ok((entries, vote, _)) => {
            assert_eq!(entries, recording.entries, "{what}");
            assert_eq!(vote.as_ref(), Some(&recording.vote), "{what}");
        }
        Err(e) => assert!(is_named(&e), "{what}: {e}"),
    }
}

fn flipped(image: &Image, name: &str, at: usize) -> Image {
    let mut image = image.clone();
    image.get_mut(name).unwrap()[at] ^= 1 << (at % 8);
    image
}

/// Every offset where something was written, and some of the zeros behind.
fn places(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let written = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 70;
    // The header page is mostly zeros under one checksum: each 16th byte of those will do.
    let thin = |at: &usize| (200..4096).contains(at) && !at.is_multiple_of(16);
    let far = (written..bytes.len()).step_by(97);
    (0..written.min(bytes.len())).filter(move |at| !thin(at)).chain(far)
}

#[test]
fn a_flip_at_any_byte_of_a_sealed_log_changes_no_entry() {
    let recording = record(true);
    for (name, bytes) in &recording.image {
        for at in places(bytes) {
            let image = flipped(&recording.image, name, at);
            check_sealed(&recording, &image, at, &format!("flip of {name} at {at}"));
        }
    }
}

#[test]
fn a_truncation_at_any_byte_of_a_sealed_log_changes_no_entry() {
    let recording = record(true);
    for (name, bytes) in &recording.image {
        for at in places(bytes) {
            let mut image = recording.image.clone();
            image.get_mut(name).unwrap().truncate(at);
            check_sealed(&recording, &image, at, &format!("{name} cut to {at}"));
        }
    }
}

#[test]
fn a_flip_in_an_unsealed_log_costs_at_most_the_last_batch() {
    let recording = record(false);
    for (name, bytes) in &recording.image {
        for at in places(bytes) {
            match reopen_at(&flipped(&recording.image, name, at), at) {
                Ok((entries, vote, _)) => {
                    let all = &recording.entries;
                    assert!(entries == all[..] || entries == all[..all.len() - 1], "{at}");
                    assert_eq!(vote.as_ref(), Some(&recording.vote));
                }
                Err(e) => assert!(is_named(&e), "{e}"),
            }
        }
    }
}

#[test]
fn a_refusal_names_file_offset_and_index_range() {
    let recording = record(true);
    let (name, bytes) = recording.image.first_key_value().unwrap();
    // The payload of entry 3, in the third frame.
    let third = payload_offset(bytes, &logged(3, 1, 120).payload);
    let refused = reopen(&flipped(&recording.image, name, third + 5)).unwrap_err();
    let OpenError::Corrupt(corruption) = &refused else { panic!("{refused}") };
    assert_eq!(&corruption.file, name);
    assert_eq!(corruption.offset, third as u64 - 64 - 24);
    assert_eq!((corruption.last_good, corruption.first_lost), (2, 3));
    assert_eq!(corruption.last_lost, Some(3));
    assert_eq!(corruption.batch, 3);
    let text = refused.to_string();
    for part in [&name[..], "0x", "last good entry is 2", "entries from 3 to 3"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

fn payload_offset(bytes: &[u8], payload: &[u8]) -> usize {
    bytes.windows(payload.len()).position(|some| some == payload).unwrap()
}

#[test]
fn zeros_or_garbage_behind_the_end_and_a_doubled_record_are_cut_off() {
    let recording = record(true);
    let (name, bytes) = recording.image.last_key_value().unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 8 * 8 + 8;
    let end = end.next_multiple_of(64);
    type Damage = Box<dyn Fn(&mut Vec<u8>)>;
    let cases: [(&str, Damage); 4] = [
        ("64 KiB of zeros", Box::new(|bytes| bytes.extend(vec![0; 65536]))),
        ("garbage behind the file", Box::new(|bytes| bytes.extend(vec![0xa5; 3000]))),
        ("garbage after a gap", Box::new(move |bytes| bytes[end + 1000..end + 1100].fill(0x5a))),
        (
            "the first frame again",
            Box::new(move |bytes| bytes.copy_within(4096..4096 + 64 + 24 + 904, end + 64)),
        ),
    ];
    for (what, damage) in cases {
        let mut image = recording.image.clone();
        damage(image.get_mut(name).unwrap());
        let (entries, _, _) = reopen(&image).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(entries, recording.entries, "{what}");
    }
}

#[test]
fn a_hole_of_zeros_in_the_middle_is_refused_and_at_the_header_too() {
    let recording = record(true);
    for (name, bytes) in &recording.image {
        for start in (0..5000).step_by(512) {
            let mut image = recording.image.clone();
            let end = (start + 512).min(bytes.len());
            image.get_mut(name).unwrap()[start..end].fill(0);
            check_sealed(&recording, &image, 0, &format!("hole in {name} at {start}"));
        }
    }
}

#[test]
fn a_frame_that_was_never_acknowledged_may_be_torn_even_with_whole_frames_behind_it() {
    let disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    log.append(&[entry(1, 1, 100)]).unwrap();
    log.sync().unwrap();
    for index in 2..=4 {
        log.append(&[entry(index, 1, 100)]).unwrap();
    }
    let mut image = disk.image();
    image.remove("spare");
    let name = image.keys().next().unwrap().clone();
    let at = payload_offset(&image[&name], &logged(2, 1, 100).payload);
    let (entries, _, verdict) = reopen(&flipped(&image, &name, at)).unwrap();
    assert_eq!(entries, [logged(1, 1, 100)]);
    let Verdict::TornTail { bytes, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(bytes.div_ceil(8) * 8, 3 * (64 + 24 + 104));
}

#[test]
fn a_payload_that_looks_like_the_log_itself_is_only_a_payload() {
    let inner = record(true);
    let disk = FaultyDisk::new(2);
    let (mut log, _) = open(disk.clone()).unwrap();
    let stolen: Vec<u8> = inner.image.values().flatten().copied().collect();
    log.append(&[Record::Entry { index: 1, term: 1, payload: stolen.clone() }]).unwrap();
    let mut image = disk.image();
    image.remove("spare");
    // Torn in front of the stolen frames, whose durable marks must count for nothing.
    let name = image.keys().next_back().unwrap().clone();
    let (entries, _, verdict) = reopen(&flipped(&image, &name, 4096 + 64 + 30)).unwrap();
    assert_eq!(entries, []);
    assert!(matches!(verdict, Verdict::TornTail { .. }));
}

#[test]
fn a_frame_or_record_of_a_newer_release_is_refused_by_name() {
    // A whole frame of an unknown kind, made by hand as a newer release would.
    let recording = record(true);
    let (name, bytes) = recording.image.last_key_value().unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 64 * 64;
    let mut image = recording.image.clone();
    let seal = &mut image.get_mut(name).unwrap()[end / 8 * 8..];
    let start = seal.windows(4).position(|some| some == b"DWF1").unwrap_or(0);
    let seal = &mut seal[start..start + 64];
    seal[52] = 77;
    let crc = crc32c::crc32c(&seal[8..64]);
    seal[4..8].copy_from_slice(&crc.to_le_bytes());
    let refused = reopen(&image).unwrap_err();
    assert!(matches!(refused, OpenError::Nonsense { .. }), "{refused}");
    assert!(refused.to_string().contains("unknown frame kind 77"), "{refused}");
}

#[test]
fn dump_tells_every_record_with_its_place() {
    let recording = record(true);
    let mut seen = Vec::new();
    dump_storage(&FaultyDisk::from_image(&recording.image, 1), |dumped| seen.push(dumped)).unwrap();
    let records: Vec<_> = seen.iter().filter_map(|dumped| dumped.record.clone()).collect();
    assert_eq!(records.len(), 6 + 3 + 3 + 2 + 1 + 1);
    assert_eq!(records[6], Record::Vote(vec![1]));
    assert_eq!(records[9], Record::Cut { from: 5 });
    assert_eq!(records[10], entry(5, 3, 33));
    assert!(seen.windows(2).all(|two| two[0].batch <= two[1].batch));
    assert_eq!(seen.last().unwrap().record, None, "the seal");
}

/// A disk that answers with old blocks, or a file put together from two: every frame in it is whole.
#[test]
fn frames_of_another_log_at_the_same_place_are_not_taken_for_its_own() {
    let log_of = |seed, term| {
        let disk = FaultyDisk::new(seed);
        let (mut log, _) = open(disk.clone()).unwrap();
        for index in 1..=6 {
            log.append(&[entry(index, term, 40)]).unwrap();
        }
        log.seal().unwrap();
        let mut image = disk.image();
        image.remove("spare");
        (image, all(&log))
    };
    let ((mut mine, entries), (other, others)) = (log_of(1, 1), log_of(2, 2));
    assert_ne!(entries, others);
    let name = mine.keys().next_back().unwrap().clone();
    // Behind the header, which names the log.
    let (own, foreign) = (mine.get_mut(&name).unwrap(), &other[&name]);
    own[4096..].copy_from_slice(&foreign[4096..]);
    if let Ok((found, ..)) = reopen(&mine) {
        assert!(found.is_empty(), "no entry of another log: {found:?}");
    }
}
