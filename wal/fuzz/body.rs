//! What the decoder must never do, whatever bytes it is given: shared by the fuzz target and by the
//! test that replays its corpus.

use std::collections::BTreeMap;
use std::path::Path;
use wal::inspect::{dump_storage, stat_storage, verify_storage};
use wal::{FaultyDisk, Identity, Log, Options, repair};

/// The page at the begin of a segment, in bytes.
const PAGE: usize = 4096;

/// Judges one input: a byte that says how to prepare it, then a segment file.
pub fn judge(input: &[u8]) {
    let Some((how, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if how & 1 != 0 {
        make_plausible(&mut bytes);
    }
    let mut image = BTreeMap::from([(name(1), bytes)]);
    if how & 2 != 0 {
        // Cut at its middle into two files: the second begins with what cannot be a header.
        let half = image[&name(1)].len() / 2;
        let rest = image.get_mut(&name(1)).map(|bytes| bytes.split_off(half)).unwrap_or_default();
        image.insert(name(2), rest);
    }
    judge_image(&image);
}

fn name(seq: u64) -> String {
    format!("{seq:020}-{seq:016x}.wal")
}

/// Gives the file its length and right checksums, so that what is inside is looked at, too.
fn make_plausible(bytes: &mut [u8]) {
    if bytes.len() < PAGE {
        return;
    }
    let length = bytes.len() as u64;
    bytes[64..72].copy_from_slice(&length.to_le_bytes());
    bytes[12..16].fill(0);
    let sum = crc32c::crc32c(&bytes[..PAGE]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    let mut at = PAGE;
    while at + 64 <= bytes.len() && bytes[at..at + 4] == *b"DWF1" {
        let mut four = [0; 4];
        four.copy_from_slice(&bytes[at + 40..at + 44]);
        let end = at + 64 + u32::from_le_bytes(four) as usize;
        if let Some(body) = bytes.get(at + 64..end) {
            let sum = crc32c::crc32c(body);
            bytes[at + 48..at + 52].copy_from_slice(&sum.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[at + 8..at + 64]);
        bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        at = end.next_multiple_of(8);
    }
}

fn judge_image(image: &BTreeMap<String, Vec<u8>>) {
    let disk = FaultyDisk::from_image(image, 1);
    let report = verify_storage(&disk).expect("this disk does not fail");
    let mut dumped = 0u64;
    dump_storage(&disk, |_| dumped += 1).expect("this disk does not fail");
    assert_eq!(stat_storage(&disk).is_ok(), report.verdict.is_ok(), "stat and verify agree");
    assert_eq!(disk.changes(), 0, "looking changes nothing");
    match Log::open(disk.clone(), owner(&report), Options::default()) {
        Ok((log, found)) => {
            assert!(report.verdict.is_ok(), "verify says what opening says");
            let read = log.read(found.first, found.last).map(|entries| entries.len());
            drop(log);
            reopen(&disk, &report, found.first, found.last, read.ok());
        }
        Err(refusal) => {
            assert!(report.verdict.is_err(), "{refusal}, but verify finds nothing");
            assert_eq!(disk.image(), *image, "a refusal changes nothing");
            repair_it(&disk, &report);
        }
    }
}

/// The owner that the files name, so that the frames are judged and not the identity.
fn owner(report: &wal::inspect::Report) -> Identity {
    let named = report.segments.iter().find_map(|segment| segment.identity);
    named.unwrap_or(Identity { cluster_id: [0; 16], owner_id: 0 })
}

/// What was opened once opens again, and as the same.
fn reopen(
    disk: &FaultyDisk,
    report: &wal::inspect::Report,
    first: u64,
    last: u64,
    read: Option<usize>,
) {
    let again = Log::open(disk.clone(), owner(report), Options::default());
    let (log, found) = again.expect("what was opened once opens again");
    assert_eq!((found.first, found.last), (first, last));
    if let Some(entries) = read {
        assert_eq!(entries as u64, (last + 1).saturating_sub(first), "every entry can be read");
        assert!(log.read(first, last).is_ok());
    }
}

/// A repair that is offered leads to a log that opens with just what it promised.
fn repair_it(disk: &FaultyDisk, report: &wal::inspect::Report) {
    let Ok(plan) = repair::plan(disk) else { return };
    let plan = plan.expect("a log that is refused needs a repair");
    repair::carry_out(disk, &plan, Path::new("aside")).expect("this disk does not fail");
    let opened = Log::open(disk.clone(), owner(report), Options::default());
    let (_, found) = opened.expect("a repaired log opens");
    assert_eq!((found.first, found.last), (plan.first, plan.last));
}
