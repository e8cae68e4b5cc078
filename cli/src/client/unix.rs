//! Sockets in a directory whose path may be longer than a socket address: through a descriptor.

use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
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

/// Binds a listening socket `DIR/NAME`; the caller holds the lock that makes a file left there stale.
pub fn bind_in(dir: &Path, name: &str) -> io::Result<std::os::unix::net::UnixListener> {
    let short = short_path(dir, OsStr::new(name))?;
    match std::fs::remove_file(&short.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(&short.path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
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
        let listener = bind_in(&dir, "docket.sock").unwrap();
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
        drop(bind_in(dir.path(), "docket.sock").unwrap());
        assert_eq!(dial_in(&path).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let _again = bind_in(dir.path(), "docket.sock").unwrap();
        assert!(dial_in(&path).await.is_ok());
    }
}
