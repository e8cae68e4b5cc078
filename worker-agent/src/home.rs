//! The data directory as this agent found it. A descriptor holds it: under another name it is still
//! the same, whatever takes the old one, and one that was deleted is known as that and never made
//! again, for a new one knows nothing of the node's jobs.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::wire::through;
use rustix::fs::{Mode, OFlags, fstat, open};

/// Name of the directory of run files.
pub const RUNS: &str = "runs";

/// A data directory that is held.
#[derive(Debug)]
pub struct Home {
    held: OwnedFd,
    name: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

/// Where a held directory is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// This path leads to it.
    At(PathBuf),
    /// It is nowhere any more, and never will be.
    Deleted,
    /// No path leads to it from here; it may be back.
    Away,
}

impl Home {
    /// Holds the directory that is at this path now.
    pub fn open(path: &Path) -> io::Result<Home> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held = open(path, flags, Mode::empty())?;
        let stat = fstat(&held)?;
        Ok(Home { held, name: path.to_owned(), identity: (stat.st_dev, stat.st_ino) })
    }

    /// Its name when it was opened, for people.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// A path to what is in it, for this process alone; short, and right under whatever name.
    pub fn inside(&self, name: &str) -> PathBuf {
        through(&self.held, Path::new(name))
    }

    /// The same for the directory of run files.
    pub fn runs(&self) -> PathBuf {
        self.inside(RUNS)
    }

    /// Looks where it is.
    pub fn place(&self) -> io::Result<Place> {
        // A directory that was removed has no links: even its own `.` is gone.
        if fstat(&self.held)?.st_nlink == 0 {
            return Ok(Place::Deleted);
        }
        if self.is_at(&self.name) {
            return Ok(Place::At(self.name.clone()));
        }
        let now = readlink(&self.held)?;
        Ok(if self.is_at(&now) { Place::At(now) } else { Place::Away })
    }

    /// Why nothing can start in it before somebody acts, for people; `None`: it is where it was, as
    /// far as can be seen.
    pub fn trouble(&self) -> Option<String> {
        let dir = self.name.display();
        match self.place() {
            Ok(Place::At(path)) if path == self.name => None,
            Ok(Place::At(path)) => {
                let now = path.display();
                Some(format!(
                    "the data directory {dir} was renamed to {now} under this agent: no new job starts \
                     here, what runs goes on; rename it back, or start the agent again on {now}"
                ))
            }
            Ok(Place::Deleted) => Some(format!(
                "the data directory {dir} was deleted under this agent: no new job starts here, and it \
                 is not made again; start the agent again to begin with a new directory"
            )),
            Ok(Place::Away) => Some(format!(
                "the data directory {dir} was moved out of reach: no new job starts here, and no keeper \
                 is started; move it back, or start the agent again where it is now"
            )),
            // What cannot be looked at is not known to be gone.
            Err(_) => None,
        }
    }

    fn is_at(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity)
    }
}

/// The path that the kernel knows.
fn readlink(held: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd()))
}

impl AsFd for Home {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_directory_is_found_under_its_new_name_and_known_as_deleted() {
        let room = tempfile::tempdir().unwrap();
        let (first, second) = (room.path().join("first"), room.path().join("second"));
        fs::create_dir(&first).unwrap();
        let home = Home::open(&first).unwrap();
        assert_eq!(home.place().unwrap(), Place::At(first.clone()));
        assert_eq!(home.trouble(), None);
        fs::rename(&first, &second).unwrap();
        // Another one in its old place is not it.
        fs::create_dir(&first).unwrap();
        assert_eq!(home.place().unwrap(), Place::At(second.clone()));
        let told = home.trouble().unwrap();
        assert!(told.contains(&second.display().to_string()), "{told}");
        fs::write(home.inside("file"), "x").unwrap();
        assert!(second.join("file").exists() && !first.join("file").exists());
        fs::remove_dir_all(&second).unwrap();
        assert_eq!(home.place().unwrap(), Place::Deleted);
        assert!(home.trouble().unwrap().contains("was deleted under this agent"));
        fs::create_dir(&second).unwrap();
        assert_eq!(home.place().unwrap(), Place::Deleted);
        assert!(fs::write(home.inside("file"), "x").is_err());
    }
}
