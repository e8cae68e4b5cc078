//! The decision table of opening: facts in, one verdict out. Pure; nothing here reads a file.
//!
//! Judged in the order files, snapshot, log. Within a group exactly one row matches every
//! combination of facts, and the first refusal ends it.

/// A labelled row.
pub(crate) struct Row<Facts, Verdict> {
    pub name: &'static str,
    pub holds: fn(&Facts) -> bool,
    pub verdict: Verdict,
}

/// The one row that holds.
pub(crate) fn decide<'t, Facts, Verdict>(
    table: &'t [Row<Facts, Verdict>],
    facts: &Facts,
) -> &'t Row<Facts, Verdict> {
    let row = table.iter().find(|row| (row.holds)(facts));
    row.expect("a test walks every combination of facts and finds its row")
}

/// The last segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastHeader {
    Whole,
    /// No header, and the file provably never held a frame.
    Unborn,
    /// No header, and it may have held frames.
    Lost,
}

/// What the directory and the headers say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileFacts {
    pub any_segment: bool,
    pub versions_known: bool,
    pub owner_is_ours: bool,
    /// Sequence numbers without a gap, names that agree with their headers.
    pub complete: bool,
    /// Every header but the last is whole.
    pub older_headers_whole: bool,
    pub last_header: LastHeader,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileVerdict {
    Fresh,
    RefuseVersion,
    RefuseOwner,
    RefuseMissing,
    RefuseHeader,
    /// A crash in rotation: remove the last segment, go.
    RemoveLast,
    Go,
}

/// Group one: files.
pub(crate) const FILES: &[Row<FileFacts, FileVerdict>] = &[
    Row { name: "no segment", holds: |f| !f.any_segment, verdict: FileVerdict::Fresh },
    Row {
        name: "unknown format version",
        holds: |f| f.any_segment && !f.versions_known,
        verdict: FileVerdict::RefuseVersion,
    },
    Row {
        name: "another cluster or owner",
        holds: |f| f.any_segment && f.versions_known && !f.owner_is_ours,
        verdict: FileVerdict::RefuseOwner,
    },
    Row {
        name: "missing segment",
        holds: |f| f.any_segment && f.versions_known && f.owner_is_ours && !f.complete,
        verdict: FileVerdict::RefuseMissing,
    },
    Row {
        name: "header lost",
        holds: |f| ours(f) && (!f.older_headers_whole || f.last_header == LastHeader::Lost),
        verdict: FileVerdict::RefuseHeader,
    },
    Row {
        name: "crash in rotation",
        holds: |f| ours(f) && f.older_headers_whole && f.last_header == LastHeader::Unborn,
        verdict: FileVerdict::RemoveLast,
    },
    Row {
        name: "whole",
        holds: |f| ours(f) && f.older_headers_whole && f.last_header == LastHeader::Whole,
        verdict: FileVerdict::Go,
    },
];

fn ours(f: &FileFacts) -> bool {
    f.any_segment && f.versions_known && f.owner_is_ours && f.complete
}

/// What the two newest snapshots are worth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotFacts {
    pub any: bool,
    pub newest_whole: bool,
    pub older_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SnapshotVerdict {
    None,
    Newest,
    Older,
    Refuse,
}

/// Group two: snapshots.
pub(crate) const SNAPSHOTS: &[Row<SnapshotFacts, SnapshotVerdict>] = &[
    Row { name: "no snapshot", holds: |f| !f.any, verdict: SnapshotVerdict::None },
    Row {
        name: "newest whole",
        holds: |f| f.any && f.newest_whole,
        verdict: SnapshotVerdict::Newest,
    },
    Row {
        name: "newest damaged, older whole",
        holds: |f| f.any && !f.newest_whole && f.older_whole,
        verdict: SnapshotVerdict::Older,
    },
    Row {
        name: "all damaged",
        holds: |f| f.any && !f.newest_whole && !f.older_whole,
        verdict: SnapshotVerdict::Refuse,
    },
];

/// How the frames end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// A closing seal, or zeros to the end.
    Clean,
    Damaged,
    /// A whole frame that means nothing here.
    Nonsense,
}

/// What the frames say. d is the first damaged or missing batch, D the newest batch that any
/// whole frame, seal or header knows to be on disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogFacts {
    pub tail: Tail,
    /// The file was cut where a frame may have stood.
    pub shortened: bool,
    /// d <= D.
    pub acknowledged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogVerdict {
    Clean,
    TornTail,
    RefuseCorrupt,
    RefuseShortened,
    RefuseNonsense,
}

/// Group three: the log.
pub(crate) const LOG: &[Row<LogFacts, LogVerdict>] = &[
    Row {
        name: "frames of another release",
        holds: |f| f.tail == Tail::Nonsense,
        verdict: LogVerdict::RefuseNonsense,
    },
    Row {
        name: "corruption of acknowledged data",
        holds: |f| f.tail != Tail::Nonsense && f.acknowledged,
        verdict: LogVerdict::RefuseCorrupt,
    },
    Row {
        name: "file cut short",
        holds: |f| f.tail != Tail::Nonsense && !f.acknowledged && f.shortened,
        verdict: LogVerdict::RefuseShortened,
    },
    Row {
        name: "torn tail",
        holds: |f| f.tail == Tail::Damaged && !f.acknowledged && !f.shortened,
        verdict: LogVerdict::TornTail,
    },
    Row {
        name: "clean",
        holds: |f| f.tail == Tail::Clean && !f.acknowledged && !f.shortened,
        verdict: LogVerdict::Clean,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    const BOOLS: [bool; 2] = [false, true];

    fn exactly_one<F: std::fmt::Debug, V>(table: &[Row<F, V>], facts: &F) {
        let names: Vec<_> =
            table.iter().filter(|row| (row.holds)(facts)).map(|row| row.name).collect();
        assert_eq!(names.len(), 1, "{facts:?} is judged by {names:?}");
    }

    #[test]
    fn exactly_one_row_of_files_matches_each_combination() {
        for bits in 0..32u8 {
            let bit = |place: u8| bits & (1 << place) != 0;
            for last_header in [LastHeader::Whole, LastHeader::Unborn, LastHeader::Lost] {
                let facts = FileFacts {
                    any_segment: bit(0),
                    versions_known: bit(1),
                    owner_is_ours: bit(2),
                    complete: bit(3),
                    older_headers_whole: bit(4),
                    last_header,
                };
                exactly_one(FILES, &facts);
            }
        }
    }

    #[test]
    fn exactly_one_row_of_snapshots_matches_each_combination() {
        for any in BOOLS {
            for newest_whole in BOOLS {
                for older_whole in BOOLS {
                    exactly_one(SNAPSHOTS, &SnapshotFacts { any, newest_whole, older_whole });
                }
            }
        }
    }

    #[test]
    fn exactly_one_row_of_the_log_matches_each_combination() {
        for tail in [Tail::Clean, Tail::Damaged, Tail::Nonsense] {
            for shortened in BOOLS {
                for acknowledged in BOOLS {
                    let facts = LogFacts { tail, shortened, acknowledged };
                    exactly_one(LOG, &facts);
                    let go = matches!(
                        decide(LOG, &facts).verdict,
                        LogVerdict::Clean | LogVerdict::TornTail
                    );
                    assert!(!(go && (shortened || acknowledged)), "{facts:?} must be refused");
                }
            }
        }
    }
}
