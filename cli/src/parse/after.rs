//! What a job waits for: lists of ids as `--after-ok` and its like take them, and Slurm's grammar of
//! `--dependency`. What Slurm has and docket does not is refused by name.

use super::words::{ListError, Named, named, nearest};
use proto::v1::{Dependency, DependencyKind};

/// The dependencies that one option names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct After(pub Vec<Dependency>);

/// Why a list is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AfterError {
    /// One of its ids is none.
    #[error("`{0}` is no id: give jobs and tasks as 12,13_4,14_0-9 or 14_[0-9,20]")]
    Id(String),
    /// A kind without ids.
    #[error("{0} names no job: write {0}:ID, with as many ids as you like: {0}:12:13")]
    NoIds(String),
    /// Ids without a kind.
    #[error("`{0}` has no kind: write afterok:{0}, or afterok:1:2 for several ids of one kind")]
    NoKind(String),
    /// A kind that does not exist.
    #[error("no kind of dependency {0}{hint}; there are after, afterok, afterany, afternotok and aftercorr", hint = near(.0))]
    Kind(String),
    /// Slurm's alternatives.
    #[error(
        "`?` is not in docket: a job waits for all that it names; submit one job for each alternative, \
         or let the jobs be tasks of an array that is a race"
    )]
    Alternatives,
    /// Slurm's `singleton`.
    #[error(
        "singleton is not in docket: make the jobs tasks of one array with %1, or name the job before: \
         afterany:ID"
    )]
    Singleton,
    /// Slurm's `afterburstbuffer`.
    #[error(
        "afterburstbuffer is not in docket, which has no burst buffers: afterany:ID waits for the job"
    )]
    BurstBuffer,
    /// Slurm's minutes.
    #[error(
        "`+{0}` (minutes after the start) is not in docket: write after:ID and let the job sleep first, or \
         give it a time: --begin now+{0}m"
    )]
    Minutes(String),
}

/// The kinds of Slurm that docket has.
const SLURM: [(&str, DependencyKind); 5] = [
    ("after", DependencyKind::AfterStart),
    ("afterok", DependencyKind::AfterOk),
    ("afterany", DependencyKind::AfterAny),
    ("afternotok", DependencyKind::AfterNotOk),
    ("aftercorr", DependencyKind::AfterEach),
];

fn near(kind: &str) -> String {
    let known = SLURM.iter().map(|(name, _)| *name);
    nearest(kind, known).map_or_else(String::new, |near| format!(": did you mean {near}?"))
}

/// Reads the ids of `--after-ok`.
pub fn after_ok(text: &str) -> Result<After, AfterError> {
    after(DependencyKind::AfterOk, text)
}

/// Reads the ids of `--after-any`.
pub fn after_any(text: &str) -> Result<After, AfterError> {
    after(DependencyKind::AfterAny, text)
}

/// Reads the ids of `--after-not-ok`.
pub fn after_not_ok(text: &str) -> Result<After, AfterError> {
    after(DependencyKind::AfterNotOk, text)
}

/// Reads the ids of `--after-start`.
pub fn after_start(text: &str) -> Result<After, AfterError> {
    after(DependencyKind::AfterStart, text)
}

/// Reads the ids of `--after-each`.
pub fn after_each(text: &str) -> Result<After, AfterError> {
    after(DependencyKind::AfterEach, text)
}

fn after(kind: DependencyKind, text: &str) -> Result<After, AfterError> {
    let ids = outside_brackets(text, ',').into_iter().map(|id| dependency(kind, id));
    ids.collect::<Result<_, _>>().map(After)
}

/// One id of a dependency: `12`, `12_3`, `12_0-4`, `12_[0-4,7]`.
pub fn dependency(kind: DependencyKind, id: &str) -> Result<Dependency, AfterError> {
    let Named { job, tasks } = named(id).map_err(|_: ListError| AfterError::Id(id.to_owned()))?;
    Ok(Dependency { kind: kind.into(), job, tasks })
}

/// Reads `--dependency` as Slurm does: `afterok:1:2,afterany:3_4`.
pub fn slurm_dependency(text: &str) -> Result<After, AfterError> {
    if text.contains('?') {
        return Err(AfterError::Alternatives);
    }
    let mut all = Vec::new();
    for part in outside_brackets(text, ',') {
        let (name, ids) = part.split_once(':').unwrap_or((part, ""));
        let lower = name.to_ascii_lowercase();
        match lower.as_str() {
            "singleton" => return Err(AfterError::Singleton),
            "afterburstbuffer" => return Err(AfterError::BurstBuffer),
            _ => {}
        }
        let Some((_, kind)) = SLURM.iter().find(|(known, _)| *known == lower) else {
            return Err(match name.starts_with(|c: char| c.is_ascii_digit()) {
                true => AfterError::NoKind(part.to_owned()),
                false => AfterError::Kind(name.to_owned()),
            });
        };
        if ids.is_empty() {
            return Err(AfterError::NoIds(lower));
        }
        // A step of task numbers is behind a colon as well, but only in brackets.
        for id in outside_brackets(ids, ':') {
            if let Some((_, minutes)) = id.split_once('+') {
                return Err(AfterError::Minutes(minutes.to_owned()));
            }
            all.push(dependency(*kind, id)?);
        }
    }
    Ok(After(all))
}

/// The parts between the marks that stand outside of brackets.
fn outside_brackets(text: &str, mark: char) -> Vec<&str> {
    let mut inside = false;
    let outside = |c: char| {
        inside = (inside || c == '[') && c != ']';
        c == mark && !inside
    };
    text.split(outside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::TaskRange;

    fn dep(kind: DependencyKind, job: u64, tasks: &[(u32, u32)]) -> Dependency {
        let tasks =
            tasks.iter().map(|(first, last)| TaskRange { first: *first, last: *last, step: 1 });
        Dependency { kind: kind.into(), job, tasks: tasks.collect() }
    }

    #[test]
    fn ids_are_jobs_and_tasks() {
        use DependencyKind::AfterOk;
        let read = after_ok("12,13_4,14_0-9,15_[0-2,7]").unwrap();
        let expected = [
            dep(AfterOk, 12, &[]),
            dep(AfterOk, 13, &[(4, 4)]),
            dep(AfterOk, 14, &[(0, 9)]),
            dep(AfterOk, 15, &[(0, 2), (7, 7)]),
        ];
        assert_eq!(read.0, expected);
        for wrong in ["", "12,", ",", "x", "0", "12_", "12 13", "12:13", "12_[0-2", "-1", "1.5"] {
            assert!(after_ok(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn slurms_grammar_is_read_as_slurm_reads_it() {
        use DependencyKind::{AfterAny, AfterEach, AfterNotOk, AfterOk, AfterStart};
        let read = slurm_dependency("afterok:1:2_3,afterany:4,afternotok:5,after:6,aftercorr:7");
        let expected = vec![
            dep(AfterOk, 1, &[]),
            dep(AfterOk, 2, &[(3, 3)]),
            dep(AfterAny, 4, &[]),
            dep(AfterNotOk, 5, &[]),
            dep(AfterStart, 6, &[]),
            dep(AfterEach, 7, &[]),
        ];
        assert_eq!(read, Ok(After(expected)));
        assert_eq!(slurm_dependency("AfterOK:1"), Ok(After(vec![dep(AfterOk, 1, &[])])));
    }

    #[test]
    fn what_docket_does_not_have_is_refused_by_name() {
        for (text, part) in [
            ("aftrok:1", "no kind of dependency aftrok: did you mean afterok?"),
            ("expand:1", "no kind of dependency expand; there are after, afterok"),
            ("afterok:1?afterany:2", "one job for each alternative"),
            ("singleton", "tasks of one array with %1"),
            ("afterok:1,singleton", "tasks of one array with %1"),
            ("afterburstbuffer:1", "no burst buffers"),
            ("after:1+5", "--begin now+5m"),
            ("afterok", "afterok names no job: write afterok:ID"),
            ("afterok:", "afterok names no job: write afterok:ID"),
            ("afterok:1,2", "`2` has no kind: write afterok:2"),
            ("afterok:1:", "`` is no id"),
            ("afterok:x", "`x` is no id"),
            ("", "no kind of dependency ;"),
        ] {
            let why = slurm_dependency(text).unwrap_err().to_string();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
