//! One embedded node a directory: a lock that ends with the process, and says whose it is.

use super::RoleError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the lock in the data directory.
const LOCK: &str = "up.lock";
/// Between two looks at a lock that will be free soon.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How often a held lock is tried before it counts as held: somebody may only be looking.
const TRIES: u32 = 10;
/// A node stops within 5 s; twice that is wrong.
const STOP_MAX: Duration = Duration::from_secs(10);
/// With its jobs: their grace, and the keeper's own patience.
const KILL_MAX: Duration = Duration::from_secs(90);

/// A held lock.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a directory, or says who has it.
    pub fn take(dir: &Path) -> Result<Lock, RoleError> {
        let path = dir.join(LOCK);
        let failed = |why| RoleError::Directory { path: path.clone(), why };
        let file = open(&path).map_err(failed)?;
        for attempt in 0.. {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if attempt < TRIES => std::thread::sleep(LOOK_AGAIN),
                Err(Errno::WOULDBLOCK) => {
                    let pid = holder(dir).map_or_else(|| "unknown".to_owned(), |p| p.to_string());
                    return Err(RoleError::InUse { dir: dir.to_owned(), pid });
                }
                Err(other) => return Err(failed(other.into())),
            }
        }
        // In place: a full disk gives nothing anew.
        let line = format!("{}\n", std::process::id());
        file.write_all_at(line.as_bytes(), 0)
            .and_then(|()| file.set_len(line.len() as u64))
            .map_err(failed)?;
        Ok(Lock { _file: file })
    }
}

/// Who wrote the lock last.
pub fn holder(dir: &Path) -> Option<u32> {
    let mut text = String::new();
    File::open(dir.join(LOCK)).ok()?.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// True if no node has the directory.
pub fn is_free(dir: &Path) -> bool {
    let Ok(file) = OpenOptions::new().read(true).open(dir.join(LOCK)) else { return true };
    flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Waits until the node of a directory has ended.
pub async fn gone(dir: &Path, kill: bool) -> Result<(), RoleError> {
    let most = if kill { KILL_MAX } else { STOP_MAX };
    let free = async {
        while !is_free(dir) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let silent = |_| RoleError::Silent { dir: PathBuf::from(dir), what: "has not stopped yet" };
    tokio::time::timeout(most, free).await.map_err(silent)
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_on_a_directory_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_free(dir.path()));
        let first = Lock::take(dir.path()).unwrap();
        assert!(!is_free(dir.path()));
        let text = Lock::take(dir.path()).unwrap_err().to_string();
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
        drop(first);
        gone(dir.path(), false).await.unwrap();
        assert!(Lock::take(dir.path()).is_ok());
    }
}
