//! The controller's part of the data directory: its lock, its identity, and where things lie.
//!
//! `DIR/controller/{lock, identity, wal/, archive/, snapshots/}`, and `damaged-N/` after a repair;
//! directories 0700, files 0600.
//! The identity is written as `identity.new` before the log exists and renamed once it does: so a
//! lost log under a known identity is noticed, and a crash in between is not mistaken for it.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a data directory cannot be used.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// Another controller runs on it.
    #[error("{dir} is in use by pid {pid}; stop that one first, or name another data directory")]
    InUse {
        /// The data directory.
        dir: String,
        /// As the holder wrote it; `unknown` in the moment before it did.
        pid: String,
    },
    /// The operating system refused.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// The identity file is not what docket writes.
    #[error("{path} is damaged: {why}; restore it from a backup of the data directory")]
    Identity {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
}

/// Where the log of a data directory is, for tools that read it.
pub fn wal_dir(data: &Path) -> PathBuf {
    data.join("controller").join("wal")
}

/// Who this node is, for ever: written once, at bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Random, of the whole cluster.
    pub cluster_id: [u8; 16],
    /// This voter.
    pub node_id: u64,
    /// Of the cluster at bootstrap; a restore opens the next one.
    pub generation: u64,
}

/// A locked directory; the lock ends with the value, or with the process.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    _lock: File,
}

/// Whether the identity was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// This directory has served before: its log must exist.
    Served,
    /// A first start, or one that was cut off before it served.
    New,
}

impl Directory {
    /// Makes and locks `data/controller`.
    pub fn open(data: &Path) -> Result<Directory, DirectoryError> {
        let root = data.join("controller");
        let io = |what, source| failed(what, &root, source);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&root)
            .map_err(|e| io("make the directory", e))?;
        let path = root.join("lock");
        let mut lock =
            private().read(true).truncate(false).open(&path).map_err(|e| io("open", e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(data, &mut lock)),
            Err(other) => return Err(io("lock", other.into())),
        }
        let holder = format!("{}\n", std::process::id());
        // In place: a full disk gives nothing anew.
        lock.write_all_at(holder.as_bytes(), 0)
            .and_then(|()| lock.set_len(holder.len() as u64))
            .map_err(|e| io("write the lock of", e))?;
        Ok(Directory { root, _lock: lock })
    }

    /// Where the log is.
    pub fn wal(&self) -> PathBuf {
        self.root.join("wal")
    }

    /// Where purged segments go.
    pub fn archive(&self) -> PathBuf {
        self.root.join("archive")
    }

    /// Where snapshots are.
    pub fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    /// The identity, made now if there is none. Call [`Directory::confirm`] once the log exists.
    pub fn identity(&self) -> Result<(Identity, Known), DirectoryError> {
        if let Some(identity) = self.read_identity("identity")? {
            return Ok((identity, Known::Served));
        }
        if let Some(identity) = self.read_identity("identity.new")? {
            return Ok((identity, Known::New));
        }
        let mut cluster_id = [0; 16];
        getrandom::fill(&mut cluster_id)
            .map_err(|e| failed("draw a random id for", &self.root, io::Error::other(e)))?;
        let identity = Identity { cluster_id, node_id: 1, generation: 1 };
        self.write_identity(&identity, "identity.new")?;
        Ok((identity, Known::New))
    }

    /// Marks the directory as one that has served.
    pub fn confirm(&self) -> Result<(), DirectoryError> {
        let (from, to) = (self.root.join("identity.new"), self.root.join("identity"));
        if from.exists() {
            std::fs::rename(&from, &to).map_err(|e| failed("rename", &from, e))?;
            sync_directory(&self.root)?;
        }
        Ok(())
    }

    /// Opens the next generation of the cluster, durably: what the log has lost must not be taken
    /// for what comes (design 4). Gives the new one.
    pub fn raise_generation(&self) -> Result<u64, DirectoryError> {
        let (mut identity, _) = self.identity()?;
        identity.generation += 1;
        self.write_identity(&identity, "identity")?;
        Ok(identity.generation)
    }

    /// Makes a room, durably, for files that were damaged.
    pub fn make_aside(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        let path = self.root.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("make the directory", &path, e));
            }
            _ => {}
        }
        sync_directory(&self.root)?;
        Ok(path)
    }

    fn write_identity(&self, identity: &Identity, name: &str) -> Result<(), DirectoryError> {
        // Under another name first: a half-written identity must not count as one.
        let (draft, path) = (self.root.join("identity.draft"), self.root.join(name));
        let write = || {
            let mut file = private().truncate(true).open(&draft)?;
            file.write_all(identity.to_text().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&draft, &path)
        };
        write().map_err(|e| failed("write", &path, e))?;
        sync_directory(&self.root)
    }

    fn read_identity(&self, name: &str) -> Result<Option<Identity>, DirectoryError> {
        let path = self.root.join(name);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed("read", &path, e)),
        };
        let identity = Identity::from_text(&text)
            .map_err(|why| DirectoryError::Identity { path: path.display().to_string(), why })?;
        Ok(Some(identity))
    }
}

impl Identity {
    /// The cluster id as people and agents see it: 32 hexadecimal digits.
    pub fn cluster_name(&self) -> String {
        self.cluster_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn to_text(&self) -> String {
        let Identity { node_id, generation, .. } = self;
        let cluster = self.cluster_name();
        format!("format = 1\ncluster = {cluster}\nnode = {node_id}\ngeneration = {generation}\n")
    }

    fn from_text(text: &str) -> Result<Identity, String> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.ok_or_else(|| format!("it has no `{key}`"))
        };
        let number = |key: &str| {
            value(key)?.parse::<u64>().map_err(|e| format!("`{key}` is no number: {e}"))
        };
        match number("format")? {
            1 => {}
            newer => return Err(format!("format {newer} needs a newer docket")),
        }
        let cluster_id = parse_hex(value("cluster")?)
            .ok_or_else(|| "`cluster` is not 32 hexadecimal digits".to_owned())?;
        Ok(Identity { cluster_id, node_id: number("node")?, generation: number("generation")? })
    }
}

fn in_use(data: &Path, lock: &mut File) -> DirectoryError {
    let mut pid = String::new();
    // The pid only helps the reader of the message: without it the refusal stands all the same.
    let read = lock.read_to_string(&mut pid);
    let known = read.is_ok() && !pid.trim().is_empty();
    let pid = if known { pid.trim().to_owned() } else { "unknown".to_owned() };
    DirectoryError::InUse { dir: data.display().to_string(), pid }
}

fn parse_hex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut id = [0; 16];
    for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(id)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

fn sync_directory(path: &Path) -> Result<(), DirectoryError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(|e| failed("sync", path, e))
}

fn failed(what: &'static str, path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io { what, path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_second_instance_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let first = Directory::open(dir.path()).unwrap();
        let error = Directory::open(dir.path()).unwrap_err().to_string();
        let expected = format!("{} is in use by pid {}", dir.path().display(), std::process::id());
        assert!(error.starts_with(&expected), "{error}");
        drop(first);
        Directory::open(dir.path()).unwrap();
    }

    #[test]
    fn the_identity_stays_and_counts_as_served_only_once_confirmed() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let (first, known) = directory.identity().unwrap();
        assert_eq!((first.node_id, first.generation, known), (1, 1, Known::New));
        assert_eq!(directory.identity().unwrap(), (first.clone(), Known::New));
        directory.confirm().unwrap();
        directory.confirm().unwrap();
        assert_eq!(directory.identity().unwrap(), (first, Known::Served));
    }

    #[test]
    fn a_raised_generation_stays_and_changes_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let (first, _) = directory.identity().unwrap();
        directory.confirm().unwrap();
        assert_eq!(directory.raise_generation().unwrap(), 2);
        let (second, known) = directory.identity().unwrap();
        assert_eq!((second, known), (Identity { generation: 2, ..first }, Known::Served));
    }

    #[test]
    fn files_are_private_and_a_damaged_identity_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        directory.identity().unwrap();
        let mode = |name: &str| {
            let meta = std::fs::metadata(dir.path().join("controller").join(name)).unwrap();
            meta.permissions().mode() & 0o777
        };
        assert_eq!((mode(""), mode("lock"), mode("identity.new")), (0o700, 0o600, 0o600));
        let path = dir.path().join("controller/identity.new");
        std::fs::write(&path, "format = 1\ncluster = 12\nnode = 1\ngeneration = 1\n").unwrap();
        let error = directory.identity().unwrap_err().to_string();
        assert!(error.contains("`cluster` is not 32 hexadecimal digits"), "{error}");
        std::fs::write(&path, "format = 9\n").unwrap();
        assert!(directory.identity().unwrap_err().to_string().contains("format 9"));
    }
}
