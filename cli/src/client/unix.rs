//! Sockets in a directory whose path may be longer than a socket address: through a descriptor.

use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// A short name for `DIR/NAME`, valid while the descriptor is held.
struct ShortPath {
    _dir: OwnedFd,
    path: PathBuf,
}

fn short_path(dir: &Path, name: &OsStr) -> io::Result<ShortPath> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    let path = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    Ok(ShortPath { _dir: dir, path })
}

/// A socket file, told from another one that took its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Of the file that has this name; a link is not followed.
    pub fn of(path: &Path) -> io::Result<FileId> {
        let meta = std::fs::symlink_metadata(path)?;
        Ok(FileId { device: meta.dev(), inode: meta.ino() })
    }
}

/// Binds a listening socket `DIR/NAME` with that mode; the caller holds the locks that make a file
/// left there stale. Bound under another name and renamed: who dials meets the old or the new one,
/// never none and never one that is open too wide.
pub fn bind_in(dir: &Path, name: &str, mode: u32) -> io::Result<(UnixListener, FileId)> {
    let short = short_path(dir, OsStr::new(name))?;
    let draft = short.path.with_file_name(format!("{name}.new"));
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&draft)?;
    let placed = listener.set_nonblocking(true).and_then(|()| place(&draft, &short.path, mode));
    if placed.is_err() {
        // The error is what the caller needs; a draft that stays is replaced by the next start.
        let _ = std::fs::remove_file(&draft);
    }
    Ok((listener, placed?))
}

fn place(draft: &Path, path: &Path, mode: u32) -> io::Result<FileId> {
    std::fs::set_permissions(draft, Permissions::from_mode(mode))?;
    let id = FileId::of(draft)?;
    std::fs::rename(draft, path)?;
    Ok(id)
}

/// Connects to the socket file `path`.
pub async fn dial_in(path: &Path) -> io::Result<tokio::net::UnixStream> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let short = short_path(dir, name)?;
    tokio::net::UnixStream::connect(&short.path).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[tokio::test]
    async fn a_socket_in_a_very_long_directory_is_bound_and_dialled() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("d".repeat(200)).join("e".repeat(200));
        std::fs::create_dir_all(&dir).unwrap();
        let (listener, id) = bind_in(&dir, "docket.sock", 0o600).unwrap();
        assert_eq!(id, FileId::of(&dir.join("docket.sock")).unwrap());
        let flags = rustix::io::fcntl_getfd(listener.as_fd()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        dial_in(&dir.join("docket.sock")).await.unwrap();
        assert!(listener.accept().is_ok());
    }

    #[tokio::test]
    async fn a_stale_socket_file_is_replaced_and_a_missing_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docket.sock");
        assert_eq!(dial_in(&path).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let (listener, first) = bind_in(dir.path(), "docket.sock", 0o600).unwrap();
        drop(listener);
        assert_eq!(dial_in(&path).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let (_again, second) = bind_in(dir.path(), "docket.sock", 0o600).unwrap();
        assert!(dial_in(&path).await.is_ok());
        assert_ne!(first, second);
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 1, "the name that it was bound under is gone");
    }
}
