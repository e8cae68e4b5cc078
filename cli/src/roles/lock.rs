//! One embedded node, or one controller, a directory: a lock that ends with the process, and says
//! whose it is. Two lines: the pid, and what it runs.

use super::RoleError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fmt::{self, Display, Formatter};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the lock in the data directory.
const LOCK: &str = "up.lock";
/// The one of an agent, a node's own included.
const AGENT_LOCK: &str = "agent.lock";
/// The controller's own room in it, which somebody may take for a data directory.
const INSIDE: &str = "controller";
/// Between two looks at a lock that will be free soon.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How often a held lock is tried before it counts as held: somebody may only be looking.
const TRIES: u32 = 10;
/// A node stops within 5 s; twice that is wrong.
const STOP_MAX: Duration = Duration::from_secs(10);
/// With its jobs: their grace, and the keeper's own patience.
const KILL_MAX: Duration = Duration::from_secs(90);

/// What has a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `docket up`: controller and agent.
    Node,
    /// `docket controller`: a voter alone.
    Controller,
    /// `docket agent`: an agent alone.
    Agent,
}

impl Part {
    /// The command that runs it.
    pub fn command(self) -> &'static str {
        match self {
            Part::Node => "docket up",
            Part::Controller => "docket controller",
            Part::Agent => "docket agent",
        }
    }
}

/// Who wrote a lock last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its process; unknown in the moment before it writes it.
    pub pid: Option<u32>,
    /// What it runs; older versions did not say it.
    pub part: Option<Part>,
}

impl Display for Holder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let command = self.part.map_or("another docket", Part::command);
        match self.pid {
            Some(pid) => write!(f, "{command} (pid {pid})"),
            None => write!(f, "{command} (pid unknown)"),
        }
    }
}

/// A held lock.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a directory, or says who has it.
    pub fn take(dir: &Path, part: Part) -> Result<Lock, RoleError> {
        let path = dir.join(LOCK);
        let failed = |why| RoleError::Directory { path: path.clone(), why };
        let file = open(&path).map_err(failed)?;
        for attempt in 0.. {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if attempt < TRIES => std::thread::sleep(LOOK_AGAIN),
                Err(Errno::WOULDBLOCK) => {
                    return Err(RoleError::InUse { dir: dir.to_owned(), holder: holder(dir) });
                }
                Err(other) => return Err(failed(other.into())),
            }
        }
        // In place: a full disk gives nothing anew.
        let text = format!("{}\n{}\n", std::process::id(), part.command());
        file.write_all_at(text.as_bytes(), 0)
            .and_then(|()| file.set_len(text.len() as u64))
            .map_err(failed)?;
        Ok(Lock { _file: file })
    }
}

/// Who wrote the lock of a directory last; as much of it as can be read.
pub fn holder(dir: &Path) -> Holder {
    read(dir, LOCK)
}

fn read(dir: &Path, lock: &str) -> Holder {
    let mut text = String::new();
    if let Ok(file) = File::open(dir.join(lock)) {
        // What cannot be read is not known, and that is what the answer says.
        let _ = file.take(64).read_to_string(&mut text);
    }
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.trim().parse().ok());
    let command = lines.next().unwrap_or_default();
    let part = match lock {
        AGENT_LOCK => Some(Part::Agent),
        _ => [Part::Node, Part::Controller].into_iter().find(|part| part.command() == command),
    };
    Holder { pid, part }
}

/// Refuses a directory that lies inside of one in use, or whose own inside is in use: both would
/// write the same files one day, and neither lock would tell them.
pub fn stand_alone(dir: &Path) -> Result<(), RoleError> {
    let failed = |why| RoleError::Directory { path: dir.to_owned(), why };
    let real = std::fs::canonicalize(dir).map_err(failed)?;
    if let Some(outer) = real.ancestors().skip(1).find(|outer| !is_free(outer)) {
        let (dir, outer) = (dir.to_owned(), outer.to_owned());
        return Err(RoleError::Inside { holder: holder(&outer), dir, outer });
    }
    let inside = dir.join(INSIDE);
    if is_free(&inside) {
        return Ok(());
    }
    Err(RoleError::Around { dir: dir.to_owned(), holder: holder(&inside), inner: inside })
}

/// Refuses an agent a directory that lies inside of one in use: the keeper there would take the files of
/// this one for its own one day.
pub fn stand_apart(dir: &Path) -> Result<(), RoleError> {
    let failed = |why| RoleError::Directory { path: dir.to_owned(), why };
    let real = std::fs::canonicalize(dir).map_err(failed)?;
    match real.ancestors().skip(1).find_map(|outer| Some((outer, user_of(outer)?))) {
        None => Ok(()),
        Some((outer, holder)) => {
            let (dir, outer) = (dir.to_owned(), outer.to_owned());
            Err(RoleError::Inside { dir, outer, holder })
        }
    }
}

/// Who has a directory as a node, a controller or an agent.
fn user_of(dir: &Path) -> Option<Holder> {
    [LOCK, AGENT_LOCK].into_iter().find(|name| !is_free_of(dir, name)).map(|name| read(dir, name))
}

/// True if no node has the directory.
pub fn is_free(dir: &Path) -> bool {
    is_free_of(dir, LOCK)
}

fn is_free_of(dir: &Path, lock: &str) -> bool {
    let Ok(file) = OpenOptions::new().read(true).open(dir.join(lock)) else { return true };
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
        let first = Lock::take(dir.path(), Part::Node).unwrap();
        assert!(!is_free(dir.path()));
        let text = Lock::take(dir.path(), Part::Controller).unwrap_err().to_string();
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
        assert!(text.contains("docket up"), "{text}");
        drop(first);
        gone(dir.path(), false).await.unwrap();
        assert!(Lock::take(dir.path(), Part::Controller).is_ok());
    }

    #[test]
    fn a_lock_tells_its_pid_and_part_and_an_older_one_its_pid() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(holder(dir.path()), Holder::default());
        let told = |text: &str| {
            std::fs::write(dir.path().join(LOCK), text).unwrap();
            holder(dir.path()).to_string()
        };
        assert_eq!(told("7\n"), "another docket (pid 7)");
        assert_eq!(told("7\ndocket up\n"), "docket up (pid 7)");
        assert_eq!(told("7\ndocket controller\n"), "docket controller (pid 7)");
        assert_eq!(told(""), "another docket (pid unknown)");
    }

    #[test]
    fn an_agent_inside_of_a_directory_in_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("a/b");
        std::fs::create_dir_all(&inside).unwrap();
        stand_apart(&inside).unwrap();
        let node = Lock::take(dir.path(), Part::Node).unwrap();
        let text = stand_apart(&inside).unwrap_err().to_string();
        assert!(text.contains("docket up (pid") && text.contains("lies inside"), "{text}");
        // Its own directory is judged by its own lock.
        stand_apart(dir.path()).unwrap();
        drop(node);
        let agent = worker_agent::claim(dir.path()).unwrap();
        let text = stand_apart(&inside).unwrap_err().to_string();
        let pid = std::process::id();
        assert!(text.contains(&format!("docket agent (pid {pid})")), "{text}");
        drop(agent);
        stand_apart(&inside).unwrap();
    }

    #[test]
    fn a_directory_inside_of_one_in_use_is_refused_and_so_is_the_outer_one() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join(INSIDE);
        std::fs::create_dir(&inside).unwrap();
        stand_alone(&inside).unwrap();
        stand_alone(dir.path()).unwrap();
        let outer = Lock::take(dir.path(), Part::Node).unwrap();
        assert!(matches!(stand_alone(&inside), Err(RoleError::Inside { .. })));
        drop(outer);
        let _inner = Lock::take(&inside, Part::Controller).unwrap();
        assert!(matches!(stand_alone(dir.path()), Err(RoleError::Around { .. })));
    }
}
