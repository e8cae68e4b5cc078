//! The keeper's program replaced under its running jobs: a newer agent names the program, which is
//! first asked to check what it would take over, then executed in this very process, so that the
//! jobs stay its children. The lock, the guard's descriptors and the listener cross; the rest of the
//! state is the journal, and the fences on the board. What fails leaves this program serving.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proto::v1::{KeeperProblem, keeper_event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};

use super::run::{Health, Keeper};
use super::spawn::Errand;
use super::{KEEPER_COMMAND, journal, status, sys};

/// A program that was checked waits this long for the starts under way, and its client with it.
const WAIT_MS: u64 = 2_000;

/// A check reads the journal, of some MiB; one that takes longer is killed.
const CHECK_MS: u64 = 10_000;

/// Of what a check says.
const SAID_MAX_BYTES: u64 = 1024;

/// What stands before the version of a program that can take over.
const CAN_TAKE_OVER: &str = "can take over: ";

/// A newer program on its way.
pub(super) enum Upgrade {
    /// With the spawner: opening a file may hang.
    Checking,
    Ready {
        candidate: Candidate,
        until_ms: u64,
    },
}

/// A program that wants to be checked.
pub(crate) struct Candidacy {
    pub exe: PathBuf,
    pub dir: PathBuf,
}

/// One that passed: held by descriptor, so that what is executed is what was checked.
pub(crate) struct Candidate {
    program: OwnedFd,
    version: String,
    exe: PathBuf,
}

/// `docket keeper --check DIR`: whether this program understands the journal of a living keeper.
pub(super) fn check_main(dir: &Path, version: &str) -> i32 {
    match journal::check(dir) {
        Ok(_) => {
            let _ = writeln!(io::stdout(), "{CAN_TAKE_OVER}{version}");
            status::ENDED
        }
        Err(e) => {
            let _ = writeln!(io::stdout(), "{version} cannot take over: {e}");
            status::FAILED
        }
    }
}

impl Candidacy {
    /// Asks the program. Blocks, at most 10 s if its file system answers.
    pub(super) fn check(&self) -> Result<Candidate, String> {
        self.ask().map_err(|why| format!("{} cannot take over: {why}", self.exe.display()))
    }

    fn ask(&self) -> Result<Candidate, String> {
        if !self.exe.is_absolute() {
            return Err("not an absolute path".into());
        }
        // A FIFO under this name must not hold up the start of jobs.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let program =
            rustix::fs::open(&self.exe, flags, Mode::empty()).map_err(|e| e.to_string())?;
        let said = run_check(program.as_fd(), &self.dir).map_err(|e| e.to_string())?;
        match said.lines().find_map(|line| line.strip_prefix(CAN_TAKE_OVER)) {
            Some(version) => {
                Ok(Candidate { program, version: version.trim().into(), exe: self.exe.clone() })
            }
            None if said.trim().is_empty() => Err("its check says nothing".into()),
            None => Err(said.trim().into()),
        }
    }
}

/// What `PROGRAM keeper --check DIR` says on its standard output.
fn run_check(program: BorrowedFd<'_>, dir: &Path) -> io::Result<String> {
    let mut child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .arg0("docket")
        .args([OsStr::new(KEEPER_COMMAND), OsStr::new("--check")])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let said = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe.into());
    let said = said.and_then(|out| read_within(OwnedFd::from(out)));
    // It has said what it has to say, or its time is up.
    let _ = child.kill();
    child.wait()?;
    said
}

fn read_within(out: OwnedFd) -> io::Result<String> {
    let until = super::identity::boottime_ms() + CHECK_MS;
    let mut out = File::from(out);
    let mut said = Vec::new();
    loop {
        let left = until.saturating_sub(super::identity::boottime_ms());
        let wait =
            Timespec { tv_sec: (left / 1000) as i64, tv_nsec: (left % 1000) as i64 * 1_000_000 };
        if poll(&mut [PollFd::new(&out, PollFlags::IN)], Some(&wait))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its check takes too long"));
        }
        let mut some = [0; SAID_MAX_BYTES as usize];
        match out.read(&mut some)? {
            0 => break,
            n => said.extend_from_slice(&some[..n]),
        }
        if said.len() as u64 >= SAID_MAX_BYTES {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

impl Keeper {
    /// A newer agent names its program.
    pub(super) fn order_upgrade(&mut self, exe: Vec<u8>) {
        if self.upgrade.is_some() {
            return;
        }
        if let Some(why) = self.keeps_its_program() {
            return self.not_replaced(why);
        }
        let exe = PathBuf::from(OsStr::from_bytes(&exe));
        let candidacy = Candidacy { exe, dir: self.dir.path.clone() };
        match self.spawner.ask(Errand::Check(Box::new(candidacy))) {
            Ok(()) => self.upgrade = Some(Upgrade::Checking),
            Err(_) => self.not_replaced("too many starts wait"),
        }
    }

    /// What would be lost with this program, or is ending anyway.
    fn keeps_its_program(&self) -> Option<&'static str> {
        if self.deleted || self.stopping || self.listener.is_none() {
            return Some("it is about to end");
        }
        if !matches!(self.health, Health::Good) || !self.volatile.is_empty() {
            return Some("its journal takes nothing, so the next program would not know all ends");
        }
        if self.notice.is_none() {
            return Some("its guard died, so nobody would catch a program that does not start");
        }
        let lingering = self.tasks.values().any(super::task::Task::is_told);
        lingering.then_some("processes of an attempt that is over are still being killed")
    }

    pub(super) fn program_checked(&mut self, checked: Result<Candidate, String>) {
        match checked {
            Ok(candidate) => {
                let until_ms = super::identity::boottime_ms() + WAIT_MS;
                self.look_ms = self.look_ms.min(until_ms);
                self.upgrade = Some(Upgrade::Ready { candidate, until_ms });
            }
            Err(why) => self.not_replaced(&why),
        }
    }

    pub(super) fn is_about_to_be_replaced(&self) -> bool {
        matches!(self.upgrade, Some(Upgrade::Ready { .. }))
    }

    fn not_replaced(&mut self, why: &str) {
        self.upgrade = None;
        let message = format!("this keeper ({}) goes on with its program: {why}", self.version);
        self.log.say(&message);
        self.tell_client(keeper_event::Kind::Problem(KeeperProblem { message }));
    }

    /// At the top of the loop, when nothing is under way that the journal does not know. Returns
    /// only if this program goes on.
    pub(super) fn upgrade_if_ready(&mut self, now: u64) {
        let Some(Upgrade::Ready { until_ms, .. }) = &self.upgrade else { return };
        let late = now >= *until_ms;
        if let Some(why) = self.keeps_its_program() {
            return self.not_replaced(why);
        }
        let busy = self.spawner.waiting() > 0
            || !self.batch.is_empty()
            || !self.after.is_empty()
            || !self.to_reap.is_empty();
        match busy {
            true if late => self.not_replaced("a start under way does not come back"),
            true => {}
            false => self.replace_program(),
        }
    }

    fn replace_program(&mut self) {
        let Some(Upgrade::Ready { candidate, .. }) = self.upgrade.take() else { return };
        if let Err(e) = self.journal.append(&std::mem::take(&mut self.quiet)) {
            // Acknowledgements: facts are told again.
            self.log.say(format!("acknowledgements were not journalled: {e}"));
        }
        if let Err(e) = self.journal.seal() {
            self.break_journal(&e);
            return self.not_replaced("its journal cannot be sealed");
        }
        self.log.say(format!(
            "{} is replaced by {} ({})",
            self.version,
            candidate.version,
            candidate.exe.display()
        ));
        let error = self.execute(&candidate);
        self.not_replaced(&format!("{} cannot be executed: {error}", candidate.exe.display()));
    }

    fn execute(&self, candidate: &Candidate) -> io::Error {
        let (Some(notice), Some(listener)) = (&self.notice, &self.listener) else {
            return io::ErrorKind::NotConnected.into();
        };
        let handed =
            [self.lock.as_raw_fd(), notice.as_raw_fd(), self.board.raw_fd(), listener.as_raw_fd()];
        let numbers = handed[..3].iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let listener = handed[3].to_string();
        let guard = self.reapers.guard.to_string();
        let words: [&[u8]; 10] = [
            b"docket",
            KEEPER_COMMAND.as_bytes(),
            b"--data",
            self.dir.path.as_os_str().as_bytes(),
            b"--handed",
            numbers.as_bytes(),
            b"--listener",
            listener.as_bytes(),
            b"--guard",
            guard.as_bytes(),
        ];
        let args: Result<Vec<CString>, _> = words.into_iter().map(CString::new).collect();
        let args = match args {
            Ok(args) => args,
            Err(e) => return e.into(),
        };
        // Jobs begin with the limit that this process began with, not with what it raised it to.
        let hard = Some(self.nofile.hard);
        let limit = |soft| Rlimit { current: soft, maximum: hard };
        if let Err(e) = setrlimit(Resource::Nofile, limit(Some(self.nofile.soft))) {
            return e.into();
        }
        // Signals stay blocked: a child that ends meanwhile is told of.
        let error = sys::exec(candidate.program.as_fd(), &args, &handed);
        match setrlimit(Resource::Nofile, limit(hard)) {
            Ok(()) => error,
            Err(e) => e.into(),
        }
    }

    /// It remembers the program, should this keeper die.
    pub(super) fn tell_guard_of_upgrade(&self) {
        if !self.took_over {
            return;
        }
        self.board.note_upgrade();
        if let Some(guard) = Pid::from_raw(self.reapers.guard as i32) {
            // What the guard waits for anyway; an extra one only makes it look.
            let _ = kill_process(guard, Signal::CHILD);
        }
    }
}
