//! What happens between clone and exec, in the child, which shares the keeper's memory: it only
//! reads its plan, makes system calls and writes its report. No allocation, no lock, no panic; raw
//! calls for the ids, since those of the C library would change every thread of the keeper.
#![allow(unsafe_code)]

use super::board::Birth;
use std::ffi::{CString, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

/// The steps of a start, as facts name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Step {
    None = 0,
    RunDirectory = 1,
    Cgroup = 2,
    Fork = 3,
    Setuid = 4,
    Chdir = 5,
    Stdin = 6,
    Stdout = 7,
    Stderr = 8,
    Exec = 9,
    /// Not of a start: whether a newer program can take over.
    Check = 10,
    /// Nor this: how large the outputs are.
    Measure = 11,
    /// Nor this: an output that is too large is cut.
    Hold = 12,
}

impl Step {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Step::None => "nothing",
            Step::RunDirectory => "run-directory",
            Step::Cgroup => "cgroup",
            Step::Fork => "fork",
            Step::Setuid => "setuid",
            Step::Chdir => "chdir",
            Step::Stdin => "stdin",
            Step::Stdout => "stdout",
            Step::Stderr => "stderr",
            Step::Exec => "exec",
            Step::Check => "program-check",
            Step::Measure => "measure",
            Step::Hold => "cut",
        }
    }

    pub(crate) fn is_of_a_start(self) -> bool {
        !matches!(self, Step::Check | Step::Measure | Step::Hold)
    }

    pub(crate) fn from_raw(raw: u32) -> Step {
        const ALL: [Step; 12] = [
            Step::RunDirectory,
            Step::Cgroup,
            Step::Fork,
            Step::Setuid,
            Step::Chdir,
            Step::Stdin,
            Step::Stdout,
            Step::Stderr,
            Step::Exec,
            Step::Check,
            Step::Measure,
            Step::Hold,
        ];
        ALL.into_iter().find(|step| *step as u32 == raw).unwrap_or(Step::None)
    }
}

/// What the child says while it works; the main loop reads the step of one that does not come back.
#[derive(Default)]
pub(crate) struct Report {
    pub step: AtomicU32,
    /// Of the step that failed; 0: none has.
    pub errno: AtomicI32,
    /// Which of the candidates exec failed on.
    pub candidate: AtomicU32,
    /// 1: the file was neither a regular one nor /dev/null.
    pub odd_file: AtomicU32,
    pub stdout_dev: AtomicU64,
    pub stdout_ino: AtomicU64,
    pub stderr_dev: AtomicU64,
    pub stderr_ino: AtomicU64,
}

/// The ids to take on; `None` in [`Plan`] where the keeper's own are right.
pub(crate) struct Ids {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Where stdin comes from.
pub(crate) enum Input {
    /// Open already, close-on-exec: /dev/null or the blob.
    Open(RawFd),
    /// Opened as the job's user, relative to its directory.
    Path(CString),
}

/// An output file, opened as the job's user.
pub(crate) struct Output {
    /// The run directory, or AT_FDCWD.
    pub dir: RawFd,
    pub path: CString,
    pub truncate: bool,
    /// In the run directory: never through a link, mode 0600.
    pub private: bool,
}

/// Everything the child needs, built before it exists.
pub(crate) struct Plan {
    /// `tasks` and `cgroup.procs` files to join by writing, memory first.
    pub join: Vec<RawFd>,
    /// Memory of each process, where no cgroup holds the tree.
    pub data_max: Option<u64>,
    pub nofile: (u64, u64),
    pub ids: Option<Ids>,
    pub umask: u32,
    pub dir: CString,
    pub input: Input,
    pub stdout: Output,
    /// `None`: the same file as stdout.
    pub stderr: Option<Output>,
    /// Paths to execute, in order, as a search through PATH gives them.
    pub candidates: Vec<CString>,
    /// Ends with a null pointer; into strings that live as long as the plan.
    pub argv: Vec<*const libc::c_char>,
    pub envp: Vec<*const libc::c_char>,
    /// The script, left open under its number because the user cannot reach it by path.
    pub keep_open: Option<RawFd>,
    pub report: *const Report,
    /// Where the child notes itself for whoever comes after its keeper.
    pub birth: *const Birth,
    /// Set to 0 once this child has its own copy of the descriptors.
    pub gate: *const AtomicU32,
}

/// Entry of the child: `arg` is a [`Plan`].
///
/// # Safety
/// `arg` must point to a plan whose pointers and descriptors are valid.
pub(crate) unsafe extern "C" fn child_main(arg: *mut c_void) -> ! {
    // SAFETY: the caller's promise; the parent thread sleeps, so the plan does not change.
    unsafe {
        let plan = &*arg.cast::<Plan>();
        let report = &*plan.report;
        let birth = &*plan.birth;
        (*plan.gate).store(0, Release);
        birth.pid.store(libc::getpid() as u32, Relaxed);
        let errno = run(plan, report);
        // Before anybody can see it gone.
        birth.errno.store(errno, Relaxed);
        birth.failed_step.store(report.step.load(Relaxed), Relaxed);
        report.errno.store(errno, Relaxed);
        libc::syscall(libc::SYS_exit_group, 127);
        libc::_exit(127)
    }
}

/// Returns only with the errno of the step that failed.
unsafe fn run(plan: &Plan, report: &Report) -> i32 {
    let at = |step: Step| report.step.store(step as u32, Relaxed);
    // SAFETY: system calls on the plan's valid strings and descriptors.
    unsafe {
        libc::setsid();
        default_signals();
        at(Step::Cgroup);
        for &fd in &plan.join {
            if libc::write(fd, c"0".as_ptr().cast(), 1) != 1 {
                return errno();
            }
        }
        if let Some(bytes) = plan.data_max
            && !limit_data(bytes)
        {
            return errno();
        }
        at(Step::Setuid);
        if let Some(ids) = &plan.ids
            && !take_ids(ids)
        {
            return errno();
        }
        libc::umask(plan.umask);
        at(Step::Chdir);
        if libc::chdir(plan.dir.as_ptr()) != 0 {
            return errno();
        }
        if let Err(errno) = open_files(plan, report) {
            return errno;
        }
        at(Step::Exec);
        close_the_rest(plan);
        // Only now: until the exec this process holds what its keeper holds, three descriptors for
        // each running job, and could open nothing above its limit.
        let nofile = libc::rlimit { rlim_cur: plan.nofile.0, rlim_max: plan.nofile.1 };
        libc::setrlimit(libc::RLIMIT_NOFILE, &nofile);
        unblock();
        exec(plan, report)
    }
}

/// Holds this process and each that comes from it to so much memory of its own. Not its address
/// space: what is only reserved there uses nothing.
unsafe fn limit_data(bytes: u64) -> bool {
    // SAFETY: zeroed is a valid limit, filled by the call.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_DATA, &mut limit) != 0 {
            return false;
        }
        // What is there already may be tighter, and cannot be raised by everybody.
        limit.rlim_max = limit.rlim_max.min(bytes);
        limit.rlim_cur = limit.rlim_cur.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_DATA, &limit) == 0
    }
}

unsafe fn take_ids(ids: &Ids) -> bool {
    let (uid, gid) = (ids.uid as libc::c_long, ids.gid as libc::c_long);
    // SAFETY: raw calls change this thread only, which is the whole child; the list is valid.
    unsafe {
        libc::syscall(libc::SYS_setgroups, ids.groups.len(), ids.groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
    }
}

unsafe fn open_files(plan: &Plan, report: &Report) -> Result<(), i32> {
    // SAFETY: as in `run`.
    unsafe {
        report.step.store(Step::Stdin as u32, Relaxed);
        let input = match &plan.input {
            Input::Open(fd) => *fd,
            Input::Path(path) => {
                let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
                let fd = opened(libc::open(path.as_ptr(), flags))?;
                plain_file(fd, report)?;
                libc::fcntl(fd, libc::F_SETFL, 0);
                fd
            }
        };
        report.step.store(Step::Stdout as u32, Relaxed);
        let (out, dev, ino) = open_output(&plan.stdout, report)?;
        report.stdout_dev.store(dev, Relaxed);
        report.stdout_ino.store(ino, Relaxed);
        report.step.store(Step::Stderr as u32, Relaxed);
        let (err, dev, ino) = match &plan.stderr {
            Some(output) => open_output(output, report)?,
            None => (out, dev, ino),
        };
        report.stderr_dev.store(dev, Relaxed);
        report.stderr_ino.store(ino, Relaxed);
        // All three are above 2: the keeper holds 0, 1 and 2 itself.
        for (fd, number) in [(input, 0), (out, 1), (err, 2)] {
            opened(libc::dup2(fd, number))?;
        }
        Ok(())
    }
}

unsafe fn open_output(output: &Output, report: &Report) -> Result<(RawFd, u64, u64), i32> {
    let mut flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    // Without blocking: a FIFO without reader must not hold up the start.
    flags |= libc::O_NONBLOCK | libc::O_NOCTTY;
    if output.truncate {
        flags |= libc::O_TRUNC;
    }
    let mut mode: libc::c_uint = 0o666;
    if output.private {
        flags |= libc::O_NOFOLLOW;
        mode = 0o600;
    }
    // SAFETY: a valid path; the descriptor is new.
    unsafe {
        let fd = opened(libc::openat(output.dir, output.path.as_ptr(), flags, mode))?;
        let (dev, ino) = plain_file(fd, report)?;
        libc::fcntl(fd, libc::F_SETFL, libc::O_APPEND);
        Ok((fd, dev, ino))
    }
}

/// Only regular files and /dev/null: anything else could block the job or be a way into a device.
unsafe fn plain_file(fd: RawFd, report: &Report) -> Result<(u64, u64), i32> {
    // SAFETY: zeroed is a valid stat, filled by the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut stat) != 0 {
            return Err(errno());
        }
        let kind = stat.st_mode & libc::S_IFMT;
        let null = kind == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3);
        if kind != libc::S_IFREG && !null {
            report.odd_file.store(1, Relaxed);
            return Err(libc::EINVAL);
        }
        Ok((stat.st_dev, stat.st_ino))
    }
}

/// Everything from 3 up closes at exec, but for the script where it must stay open.
unsafe fn close_the_rest(plan: &Plan) {
    // SAFETY: flags of descriptors of this process only, whose table is its own copy. A kernel
    // without the call has them close-on-exec anyway.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, CLOSE_RANGE_CLOEXEC);
        if let Some(fd) = plan.keep_open {
            libc::fcntl(fd, libc::F_SETFD, 0);
        }
    }
}

const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// As execvp searches, but never through a shell.
unsafe fn exec(plan: &Plan, report: &Report) -> i32 {
    let mut refused = 0;
    let mut last = libc::ENOENT;
    for (number, path) in plan.candidates.iter().enumerate() {
        // SAFETY: NUL-terminated strings, lists that end with a null pointer.
        unsafe { libc::execve(path.as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr()) };
        last = errno();
        match last {
            libc::EACCES => {
                refused = last;
                report.candidate.store(number as u32, Relaxed);
            }
            libc::ENOENT | libc::ENOTDIR => {}
            _ => {
                report.candidate.store(number as u32, Relaxed);
                return last;
            }
        }
    }
    if refused != 0 { refused } else { last }
}

/// The Rust runtime ignores SIGPIPE and its handlers would vanish at exec anyway; an ignored signal
/// would not. Everything else is at its default in the keeper.
unsafe fn default_signals() {
    // SAFETY: the child's table of dispositions is a copy.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

unsafe fn unblock() {
    // SAFETY: a local set; changes this child only.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

fn opened(fd: i32) -> Result<RawFd, i32> {
    if fd < 0 { Err(errno()) } else { Ok(fd) }
}

fn errno() -> i32 {
    // SAFETY: the child uses the thread-local of the thread that sleeps for it.
    unsafe { *libc::__errno_location() }
}
