//! The guard: parent and subreaper of the keeper. While the keeper lives it only waits. When the
//! keeper dies, the jobs become the guard's children: it writes down how each ends before it lets it
//! go, and starts the keeper again.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};

use super::board::{Board, Fence};
use super::exits::{Exit, ExitWriter};
use super::identity::{self, ProcessId};
use super::log::KeeperLog;
use super::session::Reapers;
use super::start::{DataDir, Place};
use super::sys::{self, Reaped, Waited};
use super::{fence, journal, leftover, lock, procfs, status};

/// How long the launcher waits for the keeper to listen; then it goes on, and the agent dials.
const READY_WAIT: Duration = Duration::from_secs(10);

/// A keeper that lived shorter than this failed to start.
const SHORT_LIFE_MS: u64 = 2_000;

/// After so many of them in a row, and without a job, the guard ends too.
const SHORT_LIVES_MAX: u32 = 5;

/// Pauses before a keeper that fails is started again, doubling.
const BACKOFF_FIRST_MS: u64 = 100;
const BACKOFF_LAST_MS: u64 = 10_000;

/// A leased tree that was killed is looked at again after this.
const FENCE_AGAIN_MS: u64 = 50;

/// Jobs of a directory that is gone are looked at again after this.
const GONE_AGAIN_MS: u64 = 1_000;

/// The guard looks at its directory this often while it has nothing else to do.
const LOOK_MS: u64 = 5_000;

/// `docket keeper-guard --data DIR`: takes the lock, detaches, and stays until the keeper ends in
/// order. Returns in the launched process once the keeper listens; there `0` also means that
/// somebody else has the lock.
pub(crate) fn main(dir: &Path, version: &str) -> i32 {
    match start(dir, version) {
        Ok(code) => code,
        Err(e) => {
            // The launcher reads this and passes it on.
            let _ = writeln!(io::stderr(), "guard of {}: {e}", dir.display());
            status::FAILED
        }
    }
}

fn start(dir: &Path, version: &str) -> io::Result<i32> {
    sys::close_others(&[]);
    let Some(lock) = lock::take(dir)? else { return Ok(status::ENDED) };
    let (ready, ready_end) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork()? {
        Some(_) => {
            drop((ready_end, lock));
            wait_ready(ready)
        }
        None => {
            drop(ready);
            let code = detached(dir, version, lock, ready_end);
            sys::exit_now(code)
        }
    }
}

/// In the launched process: passes on what the keeper says of its start.
fn wait_ready(ready: OwnedFd) -> io::Result<i32> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&ready, PollFlags::IN)];
    let wait = Timespec { tv_sec: READY_WAIT.as_secs() as i64, tv_nsec: 0 };
    if poll(&mut fds, Some(&wait))? == 0 {
        return Ok(status::ENDED);
    }
    let mut said = [0; 1024];
    match rustix::io::read(&ready, &mut said)? {
        0 => Err(io::Error::other("ended before the keeper listened; see keeper.log")),
        n if said.starts_with(READY) => {
            let _ = n;
            Ok(status::ENDED)
        }
        n => Err(io::Error::other(String::from_utf8_lossy(&said[..n]).into_owned())),
    }
}

/// What the keeper writes into the ready pipe when it listens; anything else is why it does not.
pub(crate) const READY: &[u8] = b"ready";

/// In the guard itself, away from the launcher's session, directory and terminal.
fn detached(dir: &Path, version: &str, lock: OwnedFd, ready: OwnedFd) -> i32 {
    let mut log = KeeperLog::open(dir, "guard");
    match Guard::new(dir, version, lock, ready) {
        Ok(guard) => guard.run(log),
        Err(e) => {
            log.say(format!("cannot start: {e}"));
            status::FAILED
        }
    }
}

struct Guard {
    home: DataDir,
    lock: OwnedFd,
    /// Handed to the first keeper only.
    ready: Option<OwnedFd>,
    /// The keeper polls the reading end: a byte after each written exit, end of file if we die.
    notice: OwnedFd,
    notice_end: OwnedFd,
    exits: ExitWriter,
    board: Board,
    /// Processes of leased trees that this guard killed.
    fenced: BTreeSet<ProcessId>,
    keeper: Option<u32>,
    /// The newer program that a keeper replaced itself by: the next keeper runs it too.
    program: Option<OwnedFd>,
    upgrades_seen: u64,
    started_ms: u64,
    restart_at_ms: u64,
    backoff_ms: u64,
    /// Keepers in a row that did not live long.
    short_lives: u32,
    /// The last one said itself that it cannot start.
    gave_up: bool,
}

impl Guard {
    fn new(dir: &Path, version: &str, lock: OwnedFd, ready: OwnedFd) -> io::Result<Guard> {
        let _ = rustix::process::setsid();
        rustix::process::chdir("/")?;
        status::null_stdio()?;
        sys::calm_signals()?;
        rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))?;
        let _ = rustix::thread::set_name(c"docket-guard");
        let pid = std::process::id();
        let start = procfs::stat(pid).map_or(0, |stat| stat.start_ticks);
        let boot_id = identity::boot_id()?;
        let boot = String::from_utf8_lossy(&boot_id).into_owned();
        lock::sign(&lock, &format!("{pid} {start} {boot} {version}\n"))?;
        let (notice, notice_end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Guard {
            exits: ExitWriter::open(dir, &boot_id)?,
            home: DataDir::open(dir)?,
            board: Board::new()?,
            fenced: BTreeSet::new(),
            lock,
            ready: Some(ready),
            notice,
            notice_end,
            keeper: None,
            program: None,
            upgrades_seen: 0,
            started_ms: 0,
            restart_at_ms: 0,
            backoff_ms: BACKOFF_FIRST_MS,
            short_lives: 0,
            gave_up: false,
        })
    }

    fn run(mut self, mut log: KeeperLog) -> i32 {
        loop {
            self.look_at_program();
            let children = match self.reap_all(&mut log) {
                Ok(Ended::No { children }) => children,
                Ok(Ended::InOrder) => return status::ENDED,
                Err(e) => {
                    log.say(format!("waiting for children failed: {e}"));
                    true
                }
            };
            let now = identity::boottime_ms();
            let fence_in = self.fence(now, &mut log);
            self.follow(now, &mut log);
            let place = self.place();
            if self.keeper.is_none() {
                // A keeper started now would serve whatever took the directory's place.
                if !children && (self.is_pointless() || place != Place::Here) {
                    log.say("no keeper and no job: ends");
                    // Not where another keeper has the same directory.
                    if self.home.place() == Place::Gone {
                        leftover::remove_bases(self.home.identity);
                    }
                    return status::FAILED;
                }
                match place {
                    Place::Here if now >= self.restart_at_ms => self.start_keeper(&mut log, now),
                    Place::Here => {}
                    Place::Away => self.restart_at_ms = now + LOOK_MS,
                    Place::Gone => self.restart_at_ms = now + self.end_all(&mut log),
                }
            }
            let wait = match self.keeper {
                Some(_) => LOOK_MS,
                None => self.restart_at_ms.saturating_sub(now).clamp(1, LOOK_MS),
            };
            sys::wait_sigchld(Duration::from_millis(wait.min(fence_in)));
        }
    }

    /// Kills the leased trees of a dead keeper, and those that a living one left past their fence;
    /// gives the ms until the next look.
    fn fence(&mut self, now_ms: u64, log: &mut KeeperLog) -> u64 {
        let due_ms = |fence: &Fence| fence.at_ms.saturating_add(fence::GUARD_AFTER_MS);
        let (due, later): (Vec<_>, Vec<_>) = self
            .board
            .fences()
            .into_iter()
            .partition(|fence| self.keeper.is_none() || now_ms >= due_ms(fence));
        let lived = fence::kill(&due, self.keeper.unwrap_or(0));
        if !lived.is_empty() {
            log.say(format!("killed {} processes of leased attempts", lived.len()));
        }
        let next = later.iter().map(due_ms).min().unwrap_or(u64::MAX);
        let soon = if lived.is_empty() { u64::MAX } else { FENCE_AGAIN_MS };
        self.fenced.extend(lived);
        next.saturating_sub(now_ms).max(1).min(soon)
    }

    /// A keeper that replaced itself says so on the board: held by descriptor, its program outlives
    /// its file, and what replaces the file later was never checked.
    fn look_at_program(&mut self) {
        let upgrades = self.board.upgrades();
        let Some(keeper) = self.keeper.filter(|_| upgrades != self.upgrades_seen) else { return };
        self.upgrades_seen = upgrades;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        if let Ok(program) = open(format!("/proc/{keeper}/exe"), flags, Mode::empty()) {
            self.program = Some(program);
        }
    }

    /// The next keeper is started where the directory is now.
    fn follow(&mut self, now_ms: u64, log: &mut KeeperLog) {
        if self.home.follow().is_none() {
            return;
        }
        log.follow(&self.home.path);
        // A living keeper sees it itself, and whether an agent came there.
        if self.keeper.is_none() {
            log.say(format!(
                "the data directory was moved away: it is now {}",
                self.home.path.display()
            ));
            self.board.note_renamed(Some(now_ms));
        }
    }

    fn place(&self) -> Place {
        let place = self.home.place();
        if place == Place::Here && self.is_succeeded() { Place::Gone } else { place }
    }

    /// The directory was emptied, and another guard with a journal of its own took it since. Where
    /// only the lock was removed the journal is the same, and its next keeper takes these jobs up.
    fn is_succeeded(&self) -> bool {
        let id = journal::stored_id(&self.home.path);
        let other = self.home.has_other("keeper.lock", &self.lock).unwrap_or(false);
        other && id.is_some() && id != self.board.journal()
    }

    /// No keeper will ever tell of these jobs; gives the ms until the next look.
    fn end_all(&self, log: &mut KeeperLog) -> u64 {
        let own = std::process::id();
        let killed = leftover::kill_below(Reapers { keeper: own, guard: own });
        log.say(format!("the data directory is gone: killed {killed} processes of its jobs"));
        GONE_AGAIN_MS
    }

    /// Without a job there is nothing to guard: whoever wants a keeper launches another, and is
    /// told why it does not start.
    fn is_pointless(&self) -> bool {
        self.gave_up || self.short_lives >= SHORT_LIVES_MAX
    }

    fn start_keeper(&mut self, log: &mut KeeperLog, now_ms: u64) {
        self.started_ms = now_ms;
        match self.fork_keeper() {
            Ok(pid) => self.keeper = Some(pid),
            Err(e) => {
                log.say(format!("cannot start the keeper: {e}"));
                self.back_off(now_ms);
            }
        }
        // The first keeper has its copy; without ours, its end shows as end of file.
        self.ready = None;
    }

    fn fork_keeper(&self) -> io::Result<u32> {
        let mut handed = vec![self.lock.as_raw_fd(), self.notice.as_raw_fd(), self.board.raw_fd()];
        handed.extend(self.ready.as_ref().map(AsRawFd::as_raw_fd));
        let numbers: Vec<String> = handed.iter().map(ToString::to_string).collect();
        let numbers = numbers.join(",");
        let own = std::process::id().to_string();
        let words: [&[u8]; 8] = [
            b"docket",
            b"keeper",
            b"--data",
            self.home.path.as_os_str().as_bytes(),
            b"--handed",
            numbers.as_bytes(),
            b"--guard",
            own.as_bytes(),
        ];
        let args: Result<Vec<CString>, _> = words.into_iter().map(CString::new).collect();
        let args = args?;
        match sys::fork()? {
            Some(pid) => Ok(pid),
            None => {
                sys::unblock_signals();
                if let Some(program) = &self.program {
                    sys::exec(program.as_fd(), &args, &handed);
                }
                sys::exec_self(&args, &handed);
                sys::exit_now(status::FAILED)
            }
        }
    }

    fn reap_all(&mut self, log: &mut KeeperLog) -> io::Result<Ended> {
        loop {
            let reaped = match sys::peek_any()? {
                Waited::Ended(reaped) => reaped,
                Waited::Running => return Ok(Ended::No { children: true }),
                Waited::NoChild => return Ok(Ended::No { children: false }),
            };
            if Some(reaped.pid) == self.keeper {
                sys::wait_for(reaped.pid)?;
                self.keeper = None;
                if reaped.status == status::raw(status::ENDED) {
                    return Ok(Ended::InOrder);
                }
                self.keeper_died(&reaped, log);
            } else {
                self.write_down(&reaped, log);
                sys::wait_for(reaped.pid)?;
                // Full or without reader: the keeper reads the file itself when it starts.
                let _ = rustix::io::write(&self.notice_end, b"x");
            }
        }
    }

    /// Before it is reaped, so that a process that is gone always has its line.
    fn write_down(&mut self, reaped: &Reaped, log: &mut KeeperLog) {
        let Some(stat) = procfs::stat(reaped.pid) else { return };
        let process = ProcessId { pid: reaped.pid, start_ticks: stat.start_ticks };
        let exit = Exit {
            process,
            status: reaped.status,
            rusage: reaped.rusage,
            wall_ms: identity::wall_ms(),
            attempt: self.board.attempt_of(reaped.pid).unwrap_or(0),
            fenced: self.fenced.remove(&process),
        };
        if let Err(e) = self.exits.write(&exit) {
            log.say(format!("the end of pid {} could not be written down: {e}", reaped.pid));
        }
    }

    fn keeper_died(&mut self, reaped: &Reaped, log: &mut KeeperLog) {
        let now = identity::boottime_ms();
        log.say(format!(
            "the keeper (pid {}) died with wait status {:#x}",
            reaped.pid, reaped.status
        ));
        if now.saturating_sub(self.started_ms) > SHORT_LIFE_MS {
            (self.backoff_ms, self.short_lives) = (BACKOFF_FIRST_MS, 0);
            self.restart_at_ms = now;
        } else {
            self.short_lives += 1;
            self.back_off(now);
        }
        self.gave_up = reaped.status == status::raw(status::FAILED);
    }

    fn back_off(&mut self, now_ms: u64) {
        self.restart_at_ms = now_ms + self.backoff_ms;
        self.backoff_ms = (self.backoff_ms * 2).min(BACKOFF_LAST_MS);
    }
}

enum Ended {
    /// The keeper ended by itself: nothing is left to guard.
    InOrder,
    No {
        children: bool,
    },
}
