//! Keeps the run files within their limits (design 6): too old, too many, or too much of the disk,
//! the oldest finished attempts go first. Attempts that the keeper still holds are never touched.

use crate::config::RunSpace;
use proto::{AttemptId, JobId, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use units::{exact_duration, exact_size};

/// Files younger than this stay whatever the limits: their attempt may have begun after the keeper
/// was asked what it holds.
const YOUNG: Duration = Duration::from_secs(60);

/// Size at which the older half of the list of removals goes.
const REMOVALS_MAX_BYTES: u64 = 1 << 20;

/// Between reason and time in the list of removals.
const AT: &str = " (at unix time ";

/// Kinds of files of one attempt that are known by name; others are left alone.
const KINDS_MAX: usize = 32;

/// What may stay.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Age since the last write.
    pub keep: Duration,
    /// Of the disk.
    pub space: RunSpace,
    /// Files.
    pub files: u64,
}

/// What was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Files.
    pub files: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// Files of one attempt, task 0 standing for "no array" too.
#[derive(Debug)]
struct Run {
    written: SystemTime,
    bytes: u64,
    files: u64,
    /// Bit per kind.
    kinds: u32,
}

type Key = (u64, u32, u32);

/// Runs found, and the names of their kinds.
#[derive(Default)]
struct Scan {
    runs: BTreeMap<Key, Run>,
    kinds: Vec<String>,
}

/// Removes what is over the limits, `live` excepted. `give_up` is asked between files.
///
/// # Errors
/// The directory cannot be listed; single files that resist are left and counted as staying.
pub fn sweep(
    runs: &Path,
    limits: &Limits,
    live: &BTreeSet<AttemptId>,
    now: SystemTime,
    give_up: &dyn Fn() -> bool,
) -> io::Result<Swept> {
    let scan = scan(runs, give_up)?;
    let mut files: u64 = scan.runs.values().map(|run| run.files).sum();
    let mut bytes: u64 = scan.runs.values().map(|run| run.bytes).sum();
    let space = space_bytes(runs, limits.space)?;
    let live: BTreeSet<Key> = live.iter().map(key_of).collect();
    let mut oldest: Vec<(&Key, &Run)> = scan.runs.iter().collect();
    oldest.sort_by_key(|(key, run)| (run.written, **key));
    let mut swept = Swept::default();
    for (key, run) in oldest {
        let age = now.duration_since(run.written).unwrap_or_default();
        if give_up() || age < YOUNG {
            break;
        }
        let Some(why) = reason(limits, age, files, bytes, space) else { break };
        if live.contains(key) || !remove(runs, *key, run, &scan.kinds) {
            continue;
        }
        note_removal(runs, &files_of(*key, run, &scan.kinds), now, &why)?;
        files -= run.files;
        bytes -= run.bytes;
        swept.files += run.files;
        swept.bytes += run.bytes;
    }
    Ok(swept)
}

/// When and why a file (`out`, `err`) of an attempt was removed, as in `2h ago: older than
/// run_retention = 30d`; `None`: it was not, as far as is known.
pub fn removal_of(runs: &Path, attempt: AttemptId, kind: &str, now: SystemTime) -> Option<String> {
    let list = fs::read_to_string(removals(runs)).ok()?;
    let name = format!("{}.{kind}", name_of(key_of(&attempt)));
    list.lines().rev().find_map(|line| {
        let (run, why) = line.split_once(' ')?;
        (run == name).then(|| in_words(why, now))
    })
}

/// A line of the list without its attempt, for a reader: `WHY (at unix time SECONDS)`.
fn in_words(line: &str, now: SystemTime) -> String {
    let parts = line.rsplit_once(AT).and_then(|(why, at)| {
        let at = Duration::from_secs(at.strip_suffix(')')?.parse().ok()?);
        // A clock that was set back meanwhile: just now.
        Some((why, now.duration_since(SystemTime::UNIX_EPOCH + at).unwrap_or_default()))
    });
    match parts {
        Some((why, ago)) => {
            format!("{} ago: {why}", exact_duration(Duration::from_secs(ago.as_secs())))
        }
        None => format!("at a time that is not on record: {line}"),
    }
}

fn reason(limits: &Limits, age: Duration, files: u64, bytes: u64, space: u64) -> Option<String> {
    if age > limits.keep {
        return Some(format!("older than run_retention = {}", exact_duration(limits.keep)));
    }
    if files > limits.files {
        return Some(format!("more than run_files = {}", limits.files));
    }
    (bytes > space).then(|| format!("more than run_space allows ({})", exact_size(space)))
}

fn space_bytes(runs: &Path, space: RunSpace) -> io::Result<u64> {
    match space {
        RunSpace::Bytes(bytes) => Ok(bytes),
        RunSpace::Percent(percent) => {
            let disk = rustix::fs::statvfs(runs)?;
            let total = u128::from(disk.f_blocks) * u128::from(disk.f_frsize);
            Ok(u64::try_from(total * u128::from(percent) / 100).unwrap_or(u64::MAX))
        }
    }
}

fn scan(runs: &Path, give_up: &dyn Fn() -> bool) -> io::Result<Scan> {
    let mut scan = Scan::default();
    for dir in fs::read_dir(runs)? {
        let dir = dir?;
        let Some(job) = dir.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A job's directory may go while it is read; the others do not wait for it.
        let Ok(entries) = fs::read_dir(dir.path()) else { continue };
        for entry in entries.flatten() {
            if give_up() {
                return Ok(scan);
            }
            scan.add(job, &entry);
        }
    }
    Ok(scan)
}

impl Scan {
    fn add(&mut self, job: u64, entry: &DirEntry) {
        let name = entry.file_name();
        let Some((task, attempt, kind)) = name.to_str().and_then(parts_of) else { return };
        let Ok(about) = entry.metadata() else { return };
        let Some(bit) = self.kind_bit(kind) else { return };
        let written = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let run = self.runs.entry((job, task, attempt)).or_insert(Run {
            written,
            bytes: 0,
            files: 0,
            kinds: 0,
        });
        run.written = run.written.max(written);
        run.bytes += about.blocks() * 512;
        run.files += 1;
        run.kinds |= bit;
    }

    fn kind_bit(&mut self, kind: &str) -> Option<u32> {
        let at = match self.kinds.iter().position(|known| known == kind) {
            Some(at) => at,
            None if self.kinds.len() < KINDS_MAX => {
                self.kinds.push(kind.to_owned());
                self.kinds.len() - 1
            }
            None => return None,
        };
        Some(1 << at)
    }
}

/// `<task>.<attempt>.<kind>`
fn parts_of(name: &str) -> Option<(u32, u32, &str)> {
    let mut parts = name.splitn(3, '.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?))
}

fn key_of(attempt: &AttemptId) -> Key {
    let AttemptId { task: TaskId { job: JobId(job), index }, attempt } = attempt;
    (*job, index.unwrap_or(0), *attempt)
}

fn name_of((job, task, attempt): Key) -> String {
    format!("{job}/{task}.{attempt}")
}

/// Names of the files of an attempt, below the run directory.
fn files_of(key: Key, run: &Run, kinds: &[String]) -> Vec<String> {
    let there = kinds.iter().enumerate().filter(|(at, _)| run.kinds & (1 << at) != 0);
    there.map(|(_, kind)| format!("{}.{kind}", name_of(key))).collect()
}

fn remove(runs: &Path, key: Key, run: &Run, kinds: &[String]) -> bool {
    let mut all = true;
    for name in files_of(key, run, kinds) {
        let path = runs.join(name);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove an old run file");
            all = false;
        }
    }
    // Fails while other attempts of the job have files there, as it should.
    let _ = fs::remove_dir(runs.join(key.0.to_string()));
    all
}

fn removals(runs: &Path) -> PathBuf {
    runs.join("removed.log")
}

/// One line a file: one that was empty, and so not there, was not removed.
fn note_removal(runs: &Path, files: &[String], now: SystemTime, why: &str) -> io::Result<()> {
    let path = removals(runs);
    if fs::metadata(&path).is_ok_and(|about| about.len() > REMOVALS_MAX_BYTES) {
        halve(&path)?;
    }
    let mut list = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    let at = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let lines: String = files.iter().map(|file| format!("{file} {why}{AT}{at})\n")).collect();
    list.write_all(lines.as_bytes())
}

fn halve(path: &Path) -> io::Result<()> {
    let list = fs::read_to_string(path)?;
    let lines: Vec<&str> = list.lines().collect();
    let rest = lines[lines.len() / 2..].join("\n");
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, rest + "\n")?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    struct World {
        dir: tempfile::TempDir,
        now: SystemTime,
    }

    impl World {
        fn new() -> Self {
            World { dir: tempfile::tempdir().unwrap(), now: SystemTime::now() }
        }

        fn run(&self, job: u64, task: u32, age_s: u64) {
            let dir = self.dir.path().join(job.to_string());
            fs::create_dir_all(&dir).unwrap();
            for kind in ["out", "err"] {
                let path = dir.join(format!("{task}.1.{kind}"));
                fs::write(&path, [b'x'; 5000]).unwrap();
                let file = File::options().write(true).open(&path).unwrap();
                file.set_modified(self.now - Duration::from_secs(age_s)).unwrap();
            }
        }

        fn sweep(&self, limits: Limits, live: &[AttemptId]) -> Swept {
            let live = live.iter().copied().collect();
            sweep(self.dir.path(), &limits, &live, self.now, &|| false).unwrap()
        }

        fn has(&self, job: u64, task: u32) -> bool {
            self.dir.path().join(format!("{job}/{task}.1.out")).exists()
        }
    }

    fn attempt(job: u64, index: Option<u32>) -> AttemptId {
        AttemptId { task: TaskId { job: JobId(job), index }, attempt: 1 }
    }

    fn limits() -> Limits {
        Limits {
            keep: Duration::from_secs(1_000_000),
            space: RunSpace::Bytes(1 << 30),
            files: 1_000,
        }
    }

    #[test]
    fn the_oldest_finished_attempts_go_first_and_say_why() {
        let world = World::new();
        (0..4).for_each(|n| world.run(10 + n, 0, 1000 - 100 * n));
        let swept = world.sweep(Limits { files: 4, ..limits() }, &[attempt(10, None)]);
        assert_eq!(swept.files, 4);
        let left: Vec<bool> = (10..14).map(|job| world.has(job, 0)).collect();
        assert_eq!(left, [true, false, false, true], "10 lives, 13 is the youngest");
        let later = world.now + Duration::from_secs(5400);
        let told = |job, kind| removal_of(world.dir.path(), attempt(job, None), kind, later);
        assert_eq!(told(11, "out").unwrap(), "1h30m ago: more than run_files = 4");
        assert_eq!((told(11, "log"), told(13, "out")), (None, None), "these were not removed");
        assert!(!world.dir.path().join("11").exists(), "an empty directory goes too");
    }

    #[test]
    fn age_and_space_bind_as_well_but_never_the_young() {
        let world = World::new();
        world.run(1, 0, 5000);
        world.run(1, 1, 500);
        world.run(1, 2, 5);
        world.sweep(Limits { keep: Duration::from_secs(1000), ..limits() }, &[]);
        assert!(!world.has(1, 0) && world.has(1, 1));
        world.sweep(Limits { space: RunSpace::Bytes(1), ..limits() }, &[]);
        assert!(!world.has(1, 1) && world.has(1, 2), "it may have begun just now");
    }

    #[test]
    fn foreign_names_and_members_that_live_are_left_alone() {
        let world = World::new();
        world.run(7, 3, 5000);
        fs::write(world.dir.path().join("7/notes.txt"), "mine").unwrap();
        fs::write(world.dir.path().join("README"), "mine").unwrap();
        let all = Limits { keep: Duration::ZERO, ..limits() };
        assert_eq!(world.sweep(all.clone(), &[attempt(7, Some(3))]), Swept::default());
        assert_eq!(world.sweep(all, &[]).files, 2);
        assert!(world.dir.path().join("7/notes.txt").exists());
    }
}
