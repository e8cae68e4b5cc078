//! From the command line to the loop: what the guard handed down, the directory, the journal, what
//! lives on from before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::board::Board;
use super::cgroup::Slots;
use super::exits::ExitReader;
use super::growth::Growth;
use super::guard::READY;
use super::identity;
use super::journal::{Journal, hex};
use super::log::KeeperLog;
use super::poll::Poll;
use super::run::{Health, Keeper};
use super::session::Reapers;
use super::spawn::Nofile;
use super::spawner::Spawner;
use super::{
    CGROUP_SWITCH, Handed, IDLE_SWITCH, birthplace, leftover, lock, recover, status, sys, wire,
};

/// An idle keeper ends after this (design 6).
const IDLE_MS: u64 = 10_000;

/// Why a keeper does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("{doing}: {source}")]
    Io { doing: &'static str, source: io::Error },
    #[error("{0}; nothing is lost: no job is started or ended while this lasts")]
    Journal(String),
    #[error("another keeper has the lock of this directory")]
    Locked,
}

fn doing(doing: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::Io { doing, source }
}

/// The data directory, told apart from another one that takes its place.
pub(super) struct DataDir {
    pub path: PathBuf,
    pub fd: OwnedFd,
    /// Device and inode.
    pub identity: (u64, u64),
    /// What lies in it while a keeper of it lives.
    kept: Vec<(&'static str, (u64, u64))>,
}

/// Where a data directory is now, seen from its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Here,
    /// Somewhere that no path leads to from here: it may be back.
    Away,
    /// Deleted, or emptied: nobody will find what lives here again.
    Gone,
}

impl DataDir {
    /// What is at this path now.
    pub(super) fn open(path: &Path) -> io::Result<DataDir> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        let identity = (meta.dev(), meta.ino());
        Ok(DataDir { path: path.to_owned(), fd: file.into(), identity, kept: Vec::new() })
    }

    /// Remembers what belongs under this name: while any such thing is in its place, a directory that is
    /// there was not emptied.
    pub(super) fn keep(&mut self, name: &'static str, meta: &fs::Metadata) {
        self.kept.push((name, (meta.dev(), meta.ino())));
    }

    /// Takes the path that leads to it now; gives the old one if that is another. A directory that
    /// was renamed is the same, and whoever serves it is found there: its socket and its lock lie in
    /// it.
    pub(super) fn follow(&mut self) -> Option<PathBuf> {
        match fs::metadata(&self.path) {
            Ok(meta) if self.is(&meta) => return None,
            Err(e) if e.kind() != io::ErrorKind::NotFound => return None,
            _ => {}
        }
        let now = fs::read_link(self.via()).ok()?;
        // Deleted, or mounted elsewhere: then this is no path to it.
        let leads_here = fs::metadata(&now).is_ok_and(|meta| self.is(&meta));
        leads_here.then(|| std::mem::replace(&mut self.path, now))
    }

    /// A path that leads to it whatever its name is.
    pub(super) fn via(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Whether this path leads to it.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| self.is(&meta))
    }

    fn is(&self, meta: &fs::Metadata) -> bool {
        (meta.dev(), meta.ino()) == self.identity
    }

    pub(super) fn place(&self) -> Place {
        match fs::metadata(&self.path) {
            Ok(meta) if self.is(&meta) => {
                let lost = !self.kept.is_empty() && !self.kept.iter().any(|it| self.has(it));
                if lost { Place::Gone } else { Place::Here }
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                // A hung mount or a lack of permission does not say that it is gone.
                Place::Here
            }
            _ if self.is_unlinked() => Place::Gone,
            _ => Place::Away,
        }
    }

    /// Whether under this name is something else than this.
    pub(super) fn has_other(&self, name: &'static str, own: &OwnedFd) -> io::Result<bool> {
        let own = File::from(own.try_clone()?).metadata()?;
        let there = fs::metadata(self.path.join(name));
        Ok(there.is_ok_and(|there| (there.dev(), there.ino()) != (own.dev(), own.ino())))
    }

    fn has(&self, (name, identity): &(&str, (u64, u64))) -> bool {
        match fs::metadata(self.path.join(name)) {
            Ok(meta) => (meta.dev(), meta.ino()) == *identity,
            Err(e) => e.kind() != io::ErrorKind::NotFound,
        }
    }

    /// The kernel marks the path of what has no name any more.
    fn is_unlinked(&self) -> bool {
        let link = fs::read_link(self.via());
        link.is_ok_and(|path| {
            path.as_os_str().as_bytes().ends_with(b" (deleted)") && !path.exists()
        })
    }
}

/// `docket keeper --data DIR`, normally started by the guard.
pub(super) fn main(dir: &Path, handed: &Handed, version: &'static str) -> i32 {
    // Before anything is opened.
    sys::close_others(&handed.descriptors());
    let mut log = KeeperLog::open(dir, "keeper");
    let mut ready = None;
    match start(dir, handed, version, &mut ready) {
        Ok((keeper, ready)) => {
            if let Some(ready) = ready {
                // Nobody waits any more: then nobody needs to know.
                let _ = rustix::io::write(&ready, READY);
            }
            keeper.run()
        }
        Err(e) => {
            log.say(format!("does not start: {e}"));
            if let Some(ready) = ready {
                let _ = rustix::io::write(&ready, e.to_string().as_bytes());
            }
            status::FAILED
        }
    }
}

/// `failed` receives the ready pipe if the start fails after it was taken over.
fn start(
    dir: &Path,
    handed: &Handed,
    version: &'static str,
    failed: &mut Option<OwnedFd>,
) -> Result<(Keeper, Option<OwnedFd>), StartError> {
    let mut fds = Vec::new();
    for &fd in &handed.from_guard {
        fds.push(sys::adopt_fd(fd).map_err(doing("descriptors handed down"))?);
    }
    let mut fds = fds.into_iter();
    let (lock, notice, board, ready) = (fds.next(), fds.next(), fds.next(), fds.next());
    let listener = handed.listener.map(sys::adopt_fd).transpose();
    let listener = listener.map_err(doing("descriptors handed down"))?;
    let ready_copy = ready.as_ref().and_then(|fd| fd.try_clone().ok());
    *failed = ready_copy;
    let lock = match lock {
        Some(lock) => lock,
        None => lock::take(dir).map_err(doing("keeper.lock"))?.ok_or(StartError::Locked)?,
    };
    let nofile = settle_process(notice.is_some()).map_err(doing("process set-up"))?;
    let board = match board {
        Some(fd) => Board::handed(fd),
        None => Board::new(),
    };
    let board = Arc::new(board.map_err(doing("board"))?);
    let reapers = Reapers { keeper: std::process::id(), guard: handed.guard }.that_live();
    let from = Inherited { lock, notice, board, listener, nofile, reapers, version };
    let keeper = Keeper::new(dir, from)?;
    *failed = None;
    Ok((keeper, ready))
}

/// What a keeper has before it looks at its directory.
struct Inherited {
    lock: OwnedFd,
    notice: Option<OwnedFd>,
    board: Arc<Board>,
    listener: Option<OwnedFd>,
    nofile: Nofile,
    reapers: Reapers,
    version: &'static str,
}

/// Own session, no terminal, no signals, orphans come here, many descriptors.
fn settle_process(under_guard: bool) -> io::Result<Nofile> {
    sys::calm_signals()?;
    if under_guard {
        // Fails only where it leads a session already.
        let _ = rustix::process::setsid();
        status::null_stdio()?;
    }
    rustix::process::chdir("/")?;
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))?;
    let _ = rustix::thread::set_name(recover::KEEPER_NAME);
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(libc::RLIM_INFINITY);
    let nofile = Nofile { soft: limit.current.unwrap_or(hard), hard };
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(nofile)
}

impl Keeper {
    fn new(dir: &Path, from: Inherited) -> Result<Keeper, StartError> {
        let Inherited { lock, notice, board, listener, nofile, reapers, version } = from;
        let mut log = KeeperLog::open(dir, "keeper");
        let mut dir = DataDir::open(dir).map_err(doing("data directory"))?;
        let (journal, stragglers) = open_journal(&mut dir, &lock, &mut log)?;
        board.note_journal(journal.id());
        let boot_id = identity::boot_id().map_err(doing("boot id"))?;
        let took_over = listener.is_some();
        let listener = listener.map_or_else(|| wire::listen(dir.fd.as_fd()), wire::inherited);
        let listener = listener.map_err(doing("keeper.sock"))?;
        let mut keeper = Keeper {
            slots: open_slots(&journal, dir.identity),
            exits: ExitReader::open(&dir.path).map_err(doing("guard.exits"))?,
            spawner: Spawner::start(nofile, Arc::clone(&board)).map_err(doing("spawner"))?,
            poll: Poll::new().map_err(doing("epoll"))?,
            children: sys::sigchld_fd().map_err(doing("signal descriptor"))?,
            reapers,
            listener: Some(listener),
            health: Health::Good,
            connections: BTreeMap::new(),
            tasks: BTreeMap::new(),
            by_key: BTreeMap::new(),
            mains: BTreeMap::new(),
            adopted: BTreeSet::new(),
            timers: BTreeSet::new(),
            next_id: 1,
            batch: Vec::new(),
            quiet: Vec::new(),
            after: Vec::new(),
            to_reap: Vec::new(),
            // Its own children may have ended before there was a descriptor to tell of it.
            orphans_wait: took_over,
            forget_exits: false,
            version,
            took_over,
            upgrade: None,
            nofile,
            stragglers,
            fences_stale: true,
            fences_failed: false,
            board,
            volatile: BTreeMap::new(),
            snapshot: None,
            stopping: false,
            deleted: false,
            abandoned: false,
            idle_ms: idle_ms(),
            idle_since_ms: None,
            look_ms: 0,
            has_room: true,
            room_look_ms: 0,
            spawner_look_ms: 0,
            slow_spawn: None,
            growth: Growth::default(),
            strangers: BTreeSet::new(),
            lock,
            dir,
            log,
            journal,
            boot_id,
            notice,
        };
        keeper.watch_children().map_err(doing("epoll"))?;
        let trees = if keeper.slots.is_some() { "cgroup slots" } else { "sessions and marks" };
        keeper.log.say(format!("{version} listens; trees by {trees}"));
        keeper.recover();
        keeper.clear_leftovers().map_err(doing("trees of an older journal"))?;
        keeper.tell_guard_of_upgrade();
        Ok(keeper)
    }
}

/// The journal, once nobody else can be at it; and starts of the last keeper that hung.
fn open_journal(
    dir: &mut DataDir,
    lock: &OwnedFd,
    log: &mut KeeperLog,
) -> Result<(Journal, Vec<u32>), StartError> {
    if dir.has_other("keeper.lock", lock).map_err(doing("keeper.lock"))? {
        return Err(StartError::Locked);
    }
    // Before the journal: a half-started child holds its lock.
    let stragglers =
        recover::settle_stragglers(dir).map_err(doing("children of the last keeper"))?;
    if let Some(note) = birthplace::settle(dir).map_err(doing("journal.place"))? {
        log.say(note);
    }
    // Its files are made by path over its life, and the directory may get another name.
    let via = dir.via();
    let by_name = |text: String| text.replace(&*via.to_string_lossy(), &dir.path.to_string_lossy());
    let (journal, notes) =
        Journal::open(&via).map_err(|e| StartError::Journal(by_name(e.to_string())))?;
    for note in notes {
        log.say(by_name(format!("journal: {note}")));
    }
    keep_anchors(dir, lock).map_err(doing("data directory"))?;
    Ok((journal, stragglers))
}

fn keep_anchors(dir: &mut DataDir, lock: &OwnedFd) -> io::Result<()> {
    dir.keep("keeper.lock", &File::from(lock.try_clone()?).metadata()?);
    let journal = fs::metadata(dir.path.join("journal"))?;
    dir.keep("journal", &journal);
    Ok(())
}

/// Named by the journal and by the directory it lies in: a copy of the directory, with the same
/// journal, must never take another keeper's living trees for leftovers of its own.
fn open_slots(journal: &Journal, directory: (u64, u64)) -> Option<Slots> {
    if std::env::var_os(CGROUP_SWITCH).is_some_and(|value| value == "off") {
        return None;
    }
    let id = hex(&journal.id());
    Slots::open(&format!("docket-{}{}", id.get(..16)?, leftover::ending(directory)))
}

fn idle_ms() -> u64 {
    let asked = std::env::var(IDLE_SWITCH).ok();
    asked.and_then(|value| value.parse().ok()).unwrap_or(IDLE_MS)
}
