//! `docket wal`: looks at a log on disk without opening it; changes nothing, takes no lock. Only
//! `repair` does (`repair.rs`).

use crate::args::WalCommand;
use crate::exit;
use crate::failure::Failure;
use crate::render::escape;
use crate::render::quantity::{count, size};
use crate::say::{note, print};
use prost::Message;
use proto::v1::{Proposal, command};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use wal::inspect::{self, Dumped, SegmentEnd, SegmentStat};
use wal::{OpenError, Record};

/// Why a log cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// There is none.
    #[error("{}: no log there: give the directory that holds *.wal files, or the data directory", .0.display())]
    NoLog(PathBuf),
    /// It belongs to somebody else.
    #[error("{}: permission denied; ask as the user that docket runs as, or as root", .0.display())]
    Denied(PathBuf),
    /// It is refused.
    #[error("{}: {error}", dir.display())]
    Refused {
        /// Where.
        dir: PathBuf,
        /// Why.
        error: OpenError,
    },
    /// It was not repaired.
    #[error("{}: {error}", dir.display())]
    Repair {
        /// The data directory.
        dir: PathBuf,
        /// Why.
        error: controller::RepairError,
    },
}

/// Payload of a raft entry that holds a proposal; the first byte says so.
const NORMAL: u8 = 1;

/// Verifies, dumps, or counts.
pub fn wal(command: &WalCommand) -> Result<u8, Failure> {
    match command {
        WalCommand::Verify { dir } => verify(&log_dir(dir)?),
        WalCommand::Dump { dir, json } => dump(&log_dir(dir)?, *json),
        WalCommand::Stat { dir } => stat(&log_dir(dir)?),
        WalCommand::Repair { dir, yes } => super::repair::repair(dir, *yes),
    }
}

/// The directory itself, or the controller's log in a data directory or in its `controller`.
fn log_dir(dir: &Path) -> Result<PathBuf, WalError> {
    for dir in [dir.to_owned(), dir.join("wal"), controller::wal_dir(dir)] {
        match holds_segments(&dir) {
            Ok(true) => return Ok(dir),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(WalError::Denied(dir));
            }
            // Not there, or no directory: it may be one of the others.
            Ok(false) | Err(_) => {}
        }
    }
    Err(WalError::NoLog(dir.to_owned()))
}

/// Whether there are segments, all of which can be read.
fn holds_segments(dir: &Path) -> std::io::Result<bool> {
    let mut found = false;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "wal") {
            std::fs::File::open(path)?;
            found = true;
        }
    }
    Ok(found)
}

fn refused(dir: &Path) -> impl Fn(OpenError) -> WalError {
    move |error| WalError::Refused { dir: dir.to_owned(), error }
}

fn verify(dir: &Path) -> Result<u8, Failure> {
    let report = inspect::verify(dir).map_err(refused(dir))?;
    let mut out = segments(&report.segments);
    match report.verdict {
        Ok(verdict) => {
            let range = match report.live {
                Some((first, last)) if first <= last => format!("entries {first} to {last}"),
                _ => "no entries".to_owned(),
            };
            let _ = writeln!(out, "whole: {}, {range}", verdict_words(&verdict));
            print(&out)?;
            Ok(exit::DONE)
        }
        Err(error) => {
            print(&out)?;
            note(&format!("{}: {error}", dir.display()));
            Ok(exit::FAILED)
        }
    }
}

fn verdict_words(verdict: &wal::Verdict) -> String {
    match verdict {
        wal::Verdict::TornTail { file, offset, bytes, .. } => format!(
            "a write that was never acknowledged is torn ({bytes} bytes of {file} at {offset}), \
             the next start removes it"
        ),
        wal::Verdict::Fresh => "an empty log".to_owned(),
        _ => "no damage".to_owned(),
    }
}

fn stat(dir: &Path) -> Result<u8, Failure> {
    let stat = inspect::stat(dir).map_err(refused(dir))?;
    let mut out = segments(&stat.segments);
    let entries = (stat.last + 1).saturating_sub(stat.first);
    let _ = writeln!(out, "{} in {} files", size(stat.bytes), stat.segments.len());
    let _ = writeln!(out, "{} live entries, {} to {}", count(entries), stat.first, stat.last);
    if let Some((index, term)) = stat.committed {
        let _ = writeln!(out, "committed up to {index} of term {term}");
    }
    print(&out)?;
    Ok(exit::DONE)
}

fn segments(segments: &[SegmentStat]) -> String {
    let mut out = String::new();
    for segment in segments {
        let end = match &segment.end {
            SegmentEnd::Closed => "closed".to_owned(),
            SegmentEnd::Open => "open".to_owned(),
            SegmentEnd::NoHeader(why) => format!("no header: {}", escape::line(why)),
            SegmentEnd::Bad { offset, reason } => {
                format!("BAD at {offset}: {}", escape::line(reason))
            }
        };
        let _ = writeln!(
            out,
            "{}  {:>6} of {:>6}  {:>8} batches  {:>8} entries  {end}",
            segment.file,
            size(segment.used_bytes),
            size(segment.bytes),
            count(segment.batches),
            count(segment.entries)
        );
    }
    out
}

fn dump(dir: &Path, json: bool) -> Result<u8, Failure> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    inspect::dump(dir, |dumped| {
        if written.is_ok() {
            let line = if json { json_line(&dumped) } else { text_line(&dumped) };
            written = writeln!(out, "{line}");
        }
    })
    .map_err(refused(dir))?;
    written?;
    out.flush()?;
    Ok(exit::DONE)
}

/// Kind, position, and what it says, without the contents of jobs.
fn described(record: Option<&Record>) -> (&'static str, Option<u64>, Option<u64>, String) {
    match record {
        None => ("seal", None, None, String::new()),
        Some(Record::Entry { index, term, payload }) => {
            ("entry", Some(*index), Some(*term), payload_words(payload))
        }
        Some(Record::Vote(vote)) => ("vote", None, None, format!("{} bytes", vote.len())),
        Some(Record::Committed { index, term }) => {
            ("committed", Some(*index), Some(*term), String::new())
        }
        Some(Record::Cut { from }) => ("cut", Some(*from), None, String::new()),
    }
}

fn text_line(dumped: &Dumped) -> String {
    let (kind, index, term, words) = described(dumped.record.as_ref());
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    format!(
        "{}+{:<9} batch {:<8} {kind:<9} index {:<8} term {:<4} {words}",
        dumped.file,
        dumped.offset,
        dumped.batch,
        number(index),
        number(term)
    )
    .trim_end()
    .to_owned()
}

fn json_line(dumped: &Dumped) -> String {
    let (kind, index, term, words) = described(dumped.record.as_ref());
    serde_json::json!({
        "file": dumped.file,
        "offset": dumped.offset,
        "batch": dumped.batch,
        "durable": dumped.durable,
        "kind": kind,
        "index": index,
        "term": term,
        "what": words,
    })
    .to_string()
}

/// `2 commands: submit 1, assign 1`: of a controller's log; of another, its size.
fn payload_words(payload: &[u8]) -> String {
    let proposal = match payload.split_first() {
        Some((&NORMAL, rest)) => Proposal::decode(rest).ok(),
        _ => None,
    };
    let Some(proposal) = proposal.filter(|proposal| !proposal.commands.is_empty()) else {
        return format!("{} bytes", payload.len());
    };
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for command in &proposal.commands {
        *kinds.entry(command.kind.as_ref().map_or("unknown", kind_name)).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
    format!("{} bytes, wall {}: {}", payload.len(), proposal.wall_ms, kinds.join(", "))
}

fn kind_name(kind: &command::Kind) -> &'static str {
    match kind {
        command::Kind::Submit(_) => "submit",
        command::Kind::Assign(_) => "assign",
        command::Kind::Facts(_) => "facts",
        command::Kind::Cancel(_) => "cancel",
        command::Kind::Unknown(_) => "unknown",
        command::Kind::Manifest(_) => "manifest",
        command::Kind::AgentUp(_) => "agent-up",
        command::Kind::AgentDown(_) => "agent-down",
        command::Kind::Configure(_) => "configure",
        command::Kind::Tick(_) => "tick",
        command::Kind::Term(_) => "term",
        command::Kind::Suspend(_) => "suspend",
        command::Kind::Hold(_) => "hold",
        command::Kind::Priority(_) => "priority",
        command::Kind::ConfirmDead(_) => "confirm-dead",
        command::Kind::Fenced(_) => "fenced",
        command::Kind::ArrayLimit(_) => "array-limit",
        command::Kind::Set(_) => "set",
        command::Kind::Drain(_) => "drain",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_log_is_found_from_each_directory_above_it() {
        let data = tempfile::tempdir().unwrap();
        let log = controller::wal_dir(data.path());
        std::fs::create_dir_all(&log).unwrap();
        assert!(matches!(log_dir(data.path()), Err(WalError::NoLog(_))));
        std::fs::write(log.join("1.wal"), "").unwrap();
        for dir in [data.path(), &data.path().join("controller"), &log] {
            assert_eq!(log_dir(dir).unwrap(), log, "{}", dir.display());
        }
    }

    #[test]
    fn a_directory_that_may_not_be_read_is_not_taken_for_an_empty_one() {
        let data = tempfile::tempdir().unwrap();
        std::fs::set_permissions(data.path(), PermissionsExt::from_mode(0o000)).unwrap();
        let found = log_dir(data.path());
        match std::fs::read_dir(data.path()) {
            // Root reads everything.
            Ok(_) => assert!(matches!(found, Err(WalError::NoLog(_)))),
            Err(_) => assert!(matches!(found, Err(WalError::Denied(_)))),
        }
        let denied = Failure::from(WalError::Denied("/x".into()));
        assert_eq!(denied.exit_code(), exit::DENIED);
        assert!(denied.to_string().contains("permission denied"), "{denied}");
    }
}
