//! The controller's part of the data directory: its lock, its identity, and where things lie.
//!
//! `DIR/controller/{lock, identity, wal/, archive/, snapshots/}`, and `damaged-N/` after a repair;
//! directories 0700, files 0600.
//! The identity is written as `identity.new` before the log exists and renamed once it does: so a
//! lost log under a known identity is noticed, and a crash in between is not mistaken for it.
//! It names the place that the directory had when it served: a copy, a restored backup for one, lies
//! in another place, and may be older than what was acknowledged.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
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
    /// 1 at bootstrap; a repair and a copy raise it, and the ledger opens a generation for each.
    pub generation: u64,
    /// Where the directory was when it served last; unknown to directories of before.
    pub place: Option<Place>,
}

/// What tells a directory from a copy of it: moving changes neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    inode: u64,
    /// Nanoseconds since 1970; not every file system tells it.
    born: Option<u64>,
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

    /// `DIR/controller`.
    pub fn path(&self) -> &Path {
        &self.root
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
        let place = Some(Place::of(&self.root)?);
        let identity = Identity { cluster_id, node_id: 1, generation: 1, place };
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

    /// Makes this the place of the directory, durably. If it served in another one it is a copy: in the
    /// same write its generation is raised, which is given then.
    pub fn settle(&self) -> Result<Option<u64>, DirectoryError> {
        let here = Place::of(&self.root)?;
        let (mut identity, known) = self.identity()?;
        if identity.place == Some(here) {
            return Ok(None);
        }
        let copied = known == Known::Served && identity.place.is_some_and(|p| p.differs(here));
        if copied {
            // The original, or another restore of the same backup, may have counted on: the clock is
            // beyond what those can have reached, so that no two tokens of them are the same.
            identity.generation = seconds().max(identity.generation + 1);
        }
        identity.place = Some(here);
        let name = if known == Known::Served { "identity" } else { "identity.new" };
        match self.write_identity(&identity, name) {
            Ok(()) => {}
            Err(error) if copied => return Err(error),
            // A full disk must not keep it from starting: the next start writes it.
            Err(error) => tracing::warn!("the place of the directory is not on record: {error}"),
        }
        Ok(copied.then_some(identity.generation))
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
        let place = self.place.map_or_else(String::new, |place| place.to_text());
        format!(
            "format = 1\ncluster = {cluster}\nnode = {node_id}\ngeneration = {generation}\n{place}"
        )
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
        let optional = |key| value(key).ok().map(|_| number(key)).transpose();
        let born = optional("born")?;
        let place = optional("inode")?.map(|inode| Place { inode, born });
        let (node_id, generation) = (number("node")?, number("generation")?);
        Ok(Identity { cluster_id, node_id, generation, place })
    }
}

impl Place {
    /// The number of the device is left out: it may change with every boot.
    fn of(path: &Path) -> Result<Place, DirectoryError> {
        let meta = std::fs::metadata(path).map_err(|e| failed("look at", path, e))?;
        let born = meta.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let born = born.and_then(|since| u64::try_from(since.as_nanos()).ok());
        Ok(Place { inode: meta.ino(), born })
    }

    /// A time of birth that only one of them knows tells nothing.
    fn differs(self, other: Place) -> bool {
        let born = self.born.zip(other.born);
        self.inode != other.inode || born.is_some_and(|(one, two)| one != two)
    }

    fn to_text(self) -> String {
        let born = self.born.map_or_else(String::new, |born| format!("born = {born}\n"));
        format!("inode = {}\n{born}", self.inode)
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
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

    /// A directory that has served, and a copy of what its identity says.
    fn served(data: &Path) -> String {
        let directory = Directory::open(data).unwrap();
        directory.identity().unwrap();
        directory.confirm().unwrap();
        assert_eq!(directory.settle().unwrap(), None, "it is where it was made");
        std::fs::read_to_string(data.join("controller/identity")).unwrap()
    }

    /// Another directory with that identity in it.
    fn put(identity: &str) -> (tempfile::TempDir, Directory) {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        std::fs::write(dir.path().join("controller/identity"), identity).unwrap();
        (dir, directory)
    }

    #[test]
    fn a_copy_raises_its_generation_once_and_a_moved_directory_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let identity = served(&dir.path().join("a"));
        let (_copy, directory) = put(&identity);
        let raised = directory.settle().unwrap().unwrap();
        assert!(raised > 1);
        let (now, known) = directory.identity().unwrap();
        assert_eq!((now.generation, known), (raised, Known::Served));
        assert_eq!(directory.settle().unwrap(), None, "once");
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        let moved = Directory::open(&dir.path().join("b")).unwrap();
        assert_eq!(moved.settle().unwrap(), None);
    }

    #[test]
    fn two_restores_of_one_backup_have_generations_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let identity = served(dir.path());
        let (_first, directory) = put(&identity);
        let first = directory.settle().unwrap().unwrap();
        assert_eq!(directory.raise_generation().unwrap(), first + 1);
        wait_a_second();
        let (_second, directory) = put(&identity);
        assert!(directory.settle().unwrap().unwrap() > first);
    }

    /// Until the clock shows another second.
    fn wait_a_second() {
        let begun = seconds();
        while seconds() == begun {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    #[test]
    fn an_identity_without_a_place_gets_one_and_so_does_one_that_never_served() {
        let dir = tempfile::tempdir().unwrap();
        let identity = served(dir.path());
        let old: String = identity.lines().take(4).map(|line| format!("{line}\n")).collect();
        let (_dir, directory) = put(&old);
        assert_eq!(directory.identity().unwrap().0.place, None);
        assert_eq!(directory.settle().unwrap(), None);
        let (now, _) = directory.identity().unwrap();
        assert_eq!((now.generation, now.place), (1, Some(Place::of(directory.path()).unwrap())));
        let (copy, directory) = put("");
        let path = |name: &str| copy.path().join("controller").join(name);
        std::fs::remove_file(path("identity")).unwrap();
        std::fs::write(path("identity.new"), &identity).unwrap();
        assert_eq!(directory.settle().unwrap(), None);
        let (now, known) = directory.identity().unwrap();
        assert_eq!((now.generation, known), (1, Known::New));
    }

    #[test]
    fn a_birth_that_only_one_side_tells_makes_no_copy() {
        let place = |inode, born| Place { inode, born };
        assert!(!place(1, None).differs(place(1, Some(7))));
        assert!(place(1, Some(8)).differs(place(1, Some(7))));
        assert!(place(2, Some(7)).differs(place(1, Some(7))));
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
