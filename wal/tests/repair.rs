//! Repair: keeps every entry before the damage, gives up the rest, sets the originals aside, and
//! can be cut off by a crash at any moment.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{all, entry, open};
use wal::inspect::verify_storage;
use wal::{Disk, Fault, FaultyDisk, Keep, LogEntry, OpenError, RepairError, Verdict, repair};

type Image = BTreeMap<String, Vec<u8>>;

/// Three segments and more, all of it acknowledged and sealed.
fn record() -> (Image, Vec<LogEntry>) {
    let disk = FaultyDisk::new(1);
    let (mut log, _) = open(disk.clone()).unwrap();
    for index in 1..=24 {
        log.append(&[entry(index, 1 + index / 9, 700)]).unwrap();
        log.sync().unwrap();
    }
    log.seal().unwrap();
    let entries = all(&log);
    let mut image = disk.image();
    image.remove("spare");
    assert!(image.len() >= 3, "{} segments", image.len());
    (image, entries)
}

/// Repairs an image and opens it: what is kept is a prefix, and the log goes on behind it.
fn repaired(image: &Image, entries: &[LogEntry]) -> repair::Repair {
    let disk = FaultyDisk::from_image(image, 2);
    let plan = repair::plan(&disk).unwrap().unwrap();
    assert_eq!(disk.image(), *image, "a plan changes nothing");
    repair::carry_out(&disk, &plan, Path::new("aside")).unwrap();
    assert!(verify_storage(&disk).unwrap().verdict.is_ok());
    let (mut log, found) = open(disk.clone()).unwrap();
    assert_eq!((found.first, found.last), (plan.first, plan.last));
    assert_eq!(found.verdict, Verdict::Clean);
    assert_eq!(all(&log), entries[..plan.last as usize], "a prefix");
    log.append(&[entry(plan.last + 1, 9, 10)]).unwrap();
    log.seal().unwrap();
    drop(log);
    assert_eq!(open(disk).unwrap().1.last, plan.last + 1);
    plan
}

fn names(image: &Image) -> Vec<String> {
    image.keys().cloned().collect()
}

#[test]
fn a_log_that_may_be_opened_needs_no_repair() {
    let (image, _) = record();
    assert!(repair::plan(&FaultyDisk::from_image(&image, 2)).unwrap().is_none());
}

#[test]
fn a_flip_at_any_place_costs_what_lies_behind_it_and_nothing_before() {
    let (image, entries) = record();
    let mut refused = 0;
    for (name, bytes) in &image {
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        for at in (4096..used).step_by(53) {
            let mut bad = image.clone();
            bad.get_mut(name).unwrap()[at] ^= 4;
            if verify_storage(&FaultyDisk::from_image(&bad, 2)).unwrap().verdict.is_ok() {
                continue;
            }
            refused += 1;
            let plan = repaired(&bad, &entries);
            let cut = plan.cut.as_ref().unwrap();
            assert_eq!(&cut.file, name, "the damaged segment is the one that is cut");
            assert!(cut.offset <= at as u64, "nothing behind the damage is kept");
            assert!(plan.known_last <= 24 && plan.known_last >= plan.last);
        }
    }
    assert!(refused > 100, "{refused} places");
}

#[test]
fn a_lost_header_or_a_missing_segment_costs_that_segment_and_the_later_ones() {
    let (image, entries) = record();
    let all_names = names(&image);
    for (place, name) in all_names.iter().enumerate().skip(1) {
        let mut bad = image.clone();
        bad.get_mut(name).unwrap()[20] ^= 1;
        let plan = repaired(&bad, &entries);
        assert_eq!((plan.cut.is_none(), plan.moved.as_slice()), (true, &all_names[place..]));
        if place + 1 < all_names.len() {
            assert_eq!(plan.known_last, 24, "the later segments tell how far it went");
            let mut bad = image.clone();
            bad.remove(name);
            assert_eq!(repaired(&bad, &entries).moved, all_names[place + 1..]);
        }
    }
}

#[test]
fn a_file_that_was_cut_short_gets_its_length_back() {
    let (image, entries) = record();
    let name = names(&image).pop().unwrap();
    let mut bad = image;
    bad.get_mut(&name).unwrap().truncate(5000);
    let plan = repaired(&bad, &entries);
    assert!(
        matches!(plan.why, OpenError::Shortened { .. } | OpenError::Corrupt(_)),
        "{}",
        plan.why
    );
}

#[test]
fn what_no_repair_can_help_is_refused_and_nothing_is_changed() {
    let (image, _) = record();
    let first = names(&image).remove(0);
    let mut bad = image.clone();
    bad.get_mut(&first).unwrap()[20] ^= 1;
    let disk = FaultyDisk::from_image(&bad, 2);
    let error = repair::plan(&disk).unwrap_err();
    assert!(matches!(&error, RepairError::NothingLeft { file } if *file == first), "{error}");
    assert_eq!(disk.image(), bad);
    let mut strange = image;
    strange.insert("7.wal".to_owned(), vec![1]);
    let error = repair::plan(&FaultyDisk::from_image(&strange, 2)).unwrap_err();
    assert!(matches!(error, RepairError::Refused(OpenError::StrangeFile { .. })), "{error}");
}

/// The power goes at each change of a repair in turn: the log is still refused, or is the repaired
/// one; never one that opens with less than the plan keeps.
#[test]
fn power_loss_at_every_change_of_a_repair_is_harmless() {
    let (image, entries) = record();
    let middle = names(&image).remove(1);
    let mut bad = image;
    bad.get_mut(&middle).unwrap()[4096 + 900] ^= 4;
    let mut finished = false;
    for change in 1.. {
        for keep in [Keep::Nothing, Keep::Everything, Keep::Random] {
            let mut disk = FaultyDisk::from_image(&bad, change);
            let plan = repair::plan(&disk).unwrap().unwrap();
            disk.arm(Fault::PowerLossAt(change));
            finished = repair::carry_out(&disk, &plan, Path::new("aside")).is_ok();
            disk.crash(keep);
            match repair::plan(&disk).unwrap() {
                Some(again) => {
                    assert_eq!((again.first, again.last), (plan.first, plan.last));
                    repair::carry_out(&disk, &again, Path::new("aside")).unwrap();
                }
                None => assert!(!disk.archived().is_empty(), "what is gone was set aside"),
            }
            let (log, found) = open(disk).unwrap();
            assert_eq!(found.last, plan.last, "power lost at change {change}, {keep:?} kept");
            assert_eq!(all(&log), entries[..plan.last as usize]);
        }
        if finished {
            assert!(change > 8, "{change} changes");
            break;
        }
    }
}

#[test]
fn on_a_real_disk_the_original_files_lie_aside() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("wal");
    let aside = dir.path().join("aside");
    let (image, _) = record();
    std::fs::create_dir(&log).unwrap();
    let mut bad = image;
    let damaged = names(&bad).remove(0);
    bad.get_mut(&damaged).unwrap()[4096 + 900] ^= 4;
    for (name, bytes) in &bad {
        std::fs::write(log.join(name), bytes).unwrap();
    }
    let disk = Disk::open(&log).unwrap();
    let plan = repair::plan(&disk).unwrap().unwrap();
    repair::carry_out(&disk, &plan, &aside).unwrap();
    for (name, bytes) in &bad {
        let kept = if *name == damaged { format!("{name}.damaged") } else { name.clone() };
        assert_eq!(&std::fs::read(aside.join(kept)).unwrap(), bytes, "{name}");
    }
    drop(disk);
    assert_eq!(open(Disk::open(&log).unwrap()).unwrap().1.last, plan.last);
}
