//! DIR/keeper.lock: one lock of an open file description that guard and keeper share and jobs never
//! inherit, so it is free only when both are dead (design 2, Processes).

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::sys;

/// Who answers for the jobs of a data directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockState {
    /// Neither guard nor keeper lives: `launch` may start them.
    Free,
    /// At least one of them lives; what it wrote of itself (pid, start time, boot id, version).
    Held {
        /// The line in the file; empty if it was not written yet.
        by: String,
    },
}

/// Looks at the lock without taking it. A directory or file that is missing is free.
pub fn lock_state(dir: &Path) -> io::Result<LockState> {
    let mut file = match OpenOptions::new().read(true).write(true).open(dir.join("keeper.lock")) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(LockState::Free),
        Err(e) => return Err(e),
    };
    if !sys::is_locked(file.as_fd())? {
        return Ok(LockState::Free);
    }
    let mut by = String::new();
    Read::by_ref(&mut file).take(512).read_to_string(&mut by)?;
    Ok(LockState::Held { by: by.trim().to_owned() })
}

/// Takes the lock for this process and whom it hands the descriptor to. `None`: it is held.
pub(crate) fn take(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join("keeper.lock"))?;
    Ok(if sys::try_lock(file.as_fd())? { Some(file.into()) } else { None })
}

/// Writes who holds the lock, over what stood there: in place, for a full disk gives nothing anew.
pub(crate) fn sign(lock: &OwnedFd, line: &str) -> io::Result<()> {
    let file = File::from(lock.try_clone()?);
    file.write_all_at(line.as_bytes(), 0)?;
    file.set_len(line.len() as u64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_held_until_the_last_copy_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(lock_state(dir.path()).unwrap(), LockState::Free);
        let lock = take(dir.path()).unwrap().unwrap();
        sign(&lock, "pid 1").unwrap();
        let copy = lock.try_clone().unwrap();
        drop(lock);
        assert_eq!(lock_state(dir.path()).unwrap(), LockState::Held { by: "pid 1".into() });
        assert!(take(dir.path()).unwrap().is_none());
        drop(copy);
        assert_eq!(lock_state(dir.path()).unwrap(), LockState::Free);
        assert!(take(dir.path()).unwrap().is_some());
    }
}
