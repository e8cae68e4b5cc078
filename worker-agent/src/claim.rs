//! The right to be the agent of a data directory: a lock that ends with the process and says whose it
//! is. Somebody may remove its file under the agent; then only the system knows of two.

use crate::agent::AgentError;
use crate::home::RUNS;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the lock in the data directory.
const LOCK: &str = "agent.lock";

/// A data directory that this process alone is the agent of, while it keeps this.
#[derive(Debug)]
pub struct Claim {
    /// Absolute.
    data: PathBuf,
    /// Absolute.
    runs: PathBuf,
    _lock: File,
}

/// Makes the directory (0700) if it is missing, and takes it. Whoever is refused has touched nothing.
///
/// # Errors
/// The directory cannot be used, or another agent has it.
pub fn claim(data: &Path) -> Result<Claim, AgentError> {
    let data = directory(data)?;
    let lock = lock(&data)?;
    let runs = directory(&data.join(RUNS))?;
    Ok(Claim { data, runs, _lock: lock })
}

impl Claim {
    /// The directory, absolute.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Its directory of run files, absolute.
    pub(crate) fn runs(&self) -> &Path {
        &self.runs
    }

    /// Another process that holds the lock's file of this directory open, under its name or removed: an
    /// agent that came when the file was gone, or was there before that. Of another user's processes
    /// only root sees it.
    pub(crate) fn shared_with(&self) -> Option<u32> {
        let name = self.data.join(LOCK);
        let mut removed = OsString::from(&name);
        removed.push(" (deleted)");
        let ours = [name.into_os_string(), removed];
        let all = fs::read_dir("/proc").ok()?.flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != std::process::id()).find(|pid| holds_one_of(*pid, &ours))
    }
}

fn holds_one_of(pid: u32, names: &[OsString]) -> bool {
    // A process that ended meanwhile, or is not ours to look at.
    let Ok(held) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    held.flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| names.iter().any(|name| target.as_os_str().as_bytes() == name.as_bytes()))
}

/// Makes the directory (0700) if it is missing; its absolute path.
fn directory(path: &Path) -> Result<PathBuf, AgentError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.and_then(|()| fs::canonicalize(path))
        .map_err(|source| AgentError::Directory { path: path.to_owned(), source })
}

/// Held while the agent lives; the kernel gives it back however it ends.
fn lock(data: &Path) -> Result<File, AgentError> {
    let unusable = |source| AgentError::Directory { path: data.to_owned(), source };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(data.join(LOCK))
        .map_err(unusable)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(AgentError::InUse { path: data.to_owned(), holder: holder(&file) });
        }
        Err(errno) => return Err(unusable(errno.into())),
    }
    // For people alone: where a full disk takes no word of it, the lock is as good.
    let text = format!("{}\n", std::process::id());
    if let Err(error) =
        file.write_all_at(text.as_bytes(), 0).and_then(|()| file.set_len(text.len() as u64))
    {
        tracing::warn!(%error, "{} does not say whose it is", data.join(LOCK).display());
    }
    Ok(file)
}

/// Who wrote the lock last, in words.
fn holder(file: &File) -> String {
    let mut text = String::new();
    // What cannot be read is not known, and that is what the answer says.
    let _ = file.take(16).read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(pid) => format!("pid {pid}"),
        Err(_) => "pid unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_claim_is_refused_with_the_pid_of_the_first() {
        let room = tempfile::tempdir().unwrap();
        let data = room.path().join("node");
        let first = claim(&data).unwrap();
        let text = claim(&data).unwrap_err().to_string();
        assert!(text.contains(&format!("(pid {})", std::process::id())), "{text}");
        drop(first);
        // An older version wrote nothing.
        fs::write(data.join(LOCK), "").unwrap();
        let _older = {
            let file = File::open(data.join(LOCK)).unwrap();
            // A child that another test forks holds the first one's descriptor until it runs its program.
            flock(&file, FlockOperation::LockExclusive).unwrap();
            file
        };
        let text = claim(&data).unwrap_err().to_string();
        assert!(text.contains("(pid unknown)"), "{text}");
    }

    #[test]
    fn another_process_with_the_lock_open_is_found_whether_its_file_was_removed_or_not() {
        let room = tempfile::tempdir().unwrap();
        let mine = claim(room.path()).unwrap();
        assert_eq!(mine.shared_with(), None);
        for remove in [false, true] {
            let lock = room.path().join(LOCK);
            let mut other = std::process::Command::new("sleep")
                .arg("60")
                .stdin(File::open(&lock).unwrap())
                .spawn()
                .unwrap();
            if remove {
                fs::remove_file(&lock).unwrap();
            }
            let found = mine.shared_with();
            other.kill().unwrap();
            other.wait().unwrap();
            assert_eq!(found, Some(other.id()), "removed: {remove}");
        }
    }
}
