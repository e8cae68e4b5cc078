//! The few verbs that the log needs of a file system, and the real one.
//!
//! The other implementation is the enemy disk in `faulty.rs`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::error::{OpenError, is_no_space};

/// A flat directory of files with explicit durability.
pub trait Storage {
    /// An open file.
    type File: StorageFile + Send + Sync + 'static;

    /// Names of all files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a new, empty file; fails if the name exists.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Renames within the directory, replacing `to` if it exists.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Open handles keep its bytes readable.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Moves a file into another directory of the same file system, durably.
    fn archive(&self, name: &str, to: &Path) -> io::Result<()>;
    /// Makes creates, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// A number that no other segment was given, to tell its frames from all others.
    fn salt(&self) -> io::Result<u64>;
}

/// An open file of a [`Storage`]. Offsets are in bytes.
pub trait StorageFile {
    /// Length of the file.
    fn size(&self) -> io::Result<u64>;
    /// Reads up to `out.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize>;
    /// Writes all parts one after the other.
    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()>;
    /// Makes the file at least `bytes` long with its space on disk taken; new bytes are zero.
    fn allocate(&self, bytes: u64) -> io::Result<()>;
    /// Makes the bytes durable, and the length as far as reading them needs it.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes bytes and metadata durable.
    fn sync_all(&self) -> io::Result<()>;
    /// Bytes that the file system still has for this user.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// Name of the lock file of a directory.
const LOCK_NAME: &str = "lock";

/// A directory of the real file system.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    handle: File,
    read_only: bool,
    /// Holds the lock for as long as this value lives; `None` when only looking.
    _lock: Option<File>,
}

impl Disk {
    /// Takes a directory for writing, making it (mode 0700) if only its last part is missing.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if another process has it; [`OpenError::Io`] otherwise.
    pub fn open(dir: &Path) -> Result<Disk, OpenError> {
        let failed = |doing, source| OpenError::Io { doing, file: shown(dir), source };
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => sync_parent(dir).map_err(|e| failed("sync the parent of", e))?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed("make directory", e)),
        }
        let handle = File::open(dir).map_err(|e| failed("open directory", e))?;
        let lock = take_lock(&dir.join(LOCK_NAME))?;
        Ok(Disk { dir: dir.to_owned(), handle, read_only: false, _lock: Some(lock) })
    }

    /// Looks at a directory without taking it; nothing can be written through this.
    ///
    /// # Errors
    /// [`OpenError::Io`] if it cannot be opened.
    pub fn look(dir: &Path) -> Result<Disk, OpenError> {
        let handle = File::open(dir).map_err(|source| OpenError::Io {
            doing: "open directory",
            file: shown(dir),
            source,
        })?;
        Ok(Disk { dir: dir.to_owned(), handle, read_only: true, _lock: None })
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(!self.read_only).mode(0o600);
        options
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn sync_parent(dir: &Path) -> io::Result<()> {
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

fn take_lock(path: &Path) -> Result<File, OpenError> {
    let failed = |doing, source| OpenError::Io { doing, file: shown(path), source };
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut lock = options.open(path).map_err(|e| failed("open", e))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let holder = lock.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(OpenError::Locked { path: path.to_owned(), holder });
        }
        Err(TryLockError::Error(e)) => return Err(failed("lock", e)),
    }
    // The number only makes the refusal helpful; on a full disk the lock holds without it.
    let line = format!("{}\n", std::process::id());
    let noted =
        lock.write_all_at(line.as_bytes(), 0).and_then(|()| lock.set_len(line.len() as u64));
    match noted {
        Err(e) if !is_no_space(&e) => Err(failed("write", e)),
        _ => Ok(lock),
    }
}

impl Storage for Disk {
    type File = DiskFile;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<DiskFile> {
        let file = self.options().create_new(true).open(self.dir.join(name))?;
        Ok(DiskFile { file })
    }

    fn open(&self, name: &str) -> io::Result<DiskFile> {
        Ok(DiskFile { file: self.options().open(self.dir.join(name))? })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.dir.join(name))
    }

    fn archive(&self, name: &str, to: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(to) {
            Ok(()) => sync_parent(to)?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        fs::rename(self.dir.join(name), to.join(name))?;
        File::open(to)?.sync_all()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn salt(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// A file of a [`Disk`].
#[derive(Debug)]
pub struct DiskFile {
    file: File,
}

/// The most parts that one system call takes (IOV_MAX of Linux).
const PARTS_MAX: usize = 1024;
/// Step of zero-filling where fallocate is refused.
const FILL_BYTES: usize = 1 << 20;

impl StorageFile for DiskFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, mut offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        for some in parts.chunks(PARTS_MAX) {
            let total: usize = some.iter().map(|part| part.len()).sum();
            let written = loop {
                match rustix::io::pwritev(&self.file, some, offset) {
                    Ok(written) => break written,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            };
            self.write_rest(offset, some, written)?;
            offset += total as u64;
        }
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let old = self.size()?;
        if bytes <= old {
            return Ok(());
        }
        let done = match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.fill(old, bytes),
            Err(e) => Err(e.into()),
        };
        if done.is_err() {
            // Give back what a refused request took; the first error is the one to tell.
            let _ = self.file.set_len(old);
        }
        done
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.file)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl DiskFile {
    /// Writes what a short vectored write left over; rare, so part by part.
    fn write_rest(&self, offset: u64, parts: &[IoSlice<'_>], mut done: usize) -> io::Result<()> {
        let mut at = offset;
        for part in parts {
            let skip = done.min(part.len());
            self.file.write_all_at(&part[skip..], at + skip as u64)?;
            done -= skip;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn fill(&self, from: u64, to: u64) -> io::Result<()> {
        let zeros = vec![0; FILL_BYTES];
        let mut at = from;
        while at < to {
            let step = (to - at).min(FILL_BYTES as u64);
            self.file.write_all_at(&zeros[..step as usize], at)?;
            at += step;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn some_file() -> (tempfile::TempDir, Disk, DiskFile) {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::open(dir.path()).unwrap();
        let file = disk.create("some").unwrap();
        (dir, disk, file)
    }

    #[test]
    fn where_fallocate_is_refused_zeros_are_written() {
        let (_dir, _disk, file) = some_file();
        file.write_at(0, &[IoSlice::new(b"kept")]).unwrap();
        let size = FILL_BYTES as u64 * 2 + 123;
        file.fill(4, size).unwrap();
        assert_eq!(file.size().unwrap(), size);
        let mut bytes = vec![1; size as usize];
        assert_eq!(file.read_at(0, &mut bytes).unwrap() as u64, size);
        assert!(bytes.starts_with(b"kept") && bytes[4..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn more_parts_than_one_system_call_takes_are_all_written() {
        let (_dir, _disk, file) = some_file();
        let bytes: Vec<u8> = (0..3000u32).map(|at| at as u8).collect();
        let parts: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
        file.write_at(5, &parts).unwrap();
        let mut read = vec![0; 3005];
        assert_eq!(file.read_at(0, &mut read).unwrap(), 3005);
        assert_eq!(read[5..], bytes);
        file.write_rest(100, &[IoSlice::new(b"abc"), IoSlice::new(b"def")], 4).unwrap();
        file.read_at(0, &mut read).unwrap();
        assert_eq!(&read[104..106], b"ef");
        assert_eq!(read[103], bytes[98]);
    }

    #[test]
    fn looking_takes_no_lock_and_cannot_write() {
        let (dir, _disk, _file) = some_file();
        let looking = Disk::look(dir.path()).unwrap();
        assert!(looking.list().unwrap().contains(&"some".to_owned()));
        let file = looking.open("some").unwrap();
        assert!(file.write_at(0, &[IoSlice::new(b"x")]).is_err());
        assert!(Disk::look(&dir.path().join("none")).is_err());
    }
}
