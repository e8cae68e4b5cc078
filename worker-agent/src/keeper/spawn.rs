//! The spawner: one thread that starts jobs one after the other, so that a hung file system suspends
//! it and never the loop. It also measures outputs that lie outside the data directory, for the same
//! reason. Results come back over a channel, with a descriptor to wake the loop.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use proto::v1::{JobSpec, KeeperRun, StartFact, StartFailure};
use rustix::fs::{AtFlags, Mode, OFlags};

use super::cgroup::Slot;
use super::child::{self, Ids, Input, Output, Plan, Report, Step};
use super::clone::{self, ChildStack};
use super::identity;
use super::outputs::{self, Measure, Measured};
use super::procfs::{self, MARK_NAME};
use super::sys;

/// Starts that may wait for the spawner; beyond it a run is refused for now, since what waits is
/// held in memory (a specification may have 1 MiB).
pub(crate) const QUEUE_MAX: usize = 1024;

/// Searched when the job's environment has no PATH, as execvp does.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// One start.
pub(crate) struct SpawnOrder {
    pub id: u64,
    pub run: KeeperRun,
    pub spec: JobSpec,
    pub mark: Vec<u8>,
    pub slot: Option<Arc<Slot>>,
}

/// A child that has executed its program.
pub(crate) struct Started {
    pub fact: StartFact,
    pub pidfd: OwnedFd,
}

/// What the loop asks for.
pub(crate) enum Errand {
    Spawn(Box<SpawnOrder>),
    Measure(u64, Box<Measure>),
}

/// What comes back, in the order asked.
pub(crate) enum Result_ {
    Spawned(u64, Result<Started, StartFailure>),
    Measured(u64, Measured),
}

/// What the loop may see of a spawner that does not come back.
#[derive(Default)]
pub(crate) struct Progress {
    /// CLOCK_BOOTTIME in ms at which the present start began; 0: none.
    since_ms: AtomicU64,
    task: AtomicU64,
    report: Report,
}

/// The loop's end of the spawner. Dropping it ends the thread after the errand it is at.
pub(crate) struct Spawner {
    errands: SyncSender<Errand>,
    results: Receiver<Result_>,
    wake: OwnedFd,
    progress: Arc<Progress>,
    waiting: usize,
}

/// Limits on open files that jobs start with, remembered before the keeper raised its own.
#[derive(Clone, Copy)]
pub(crate) struct Nofile {
    pub soft: u64,
    pub hard: u64,
}

impl Spawner {
    /// Starts the thread. The signals of the calling thread must be blocked already.
    pub(crate) fn start(nofile: Nofile) -> io::Result<Spawner> {
        let (errands, inbox) = sync_channel(2 * QUEUE_MAX);
        let (outbox, results) = sync_channel(2 * QUEUE_MAX);
        let wake = rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
        )?;
        let progress = Arc::new(Progress::default());
        let thread = Thread {
            stack: ChildStack::new()?,
            null: File::options().read(true).open("/dev/null")?.into(),
            wake: wake.try_clone()?,
            progress: Arc::clone(&progress),
            nofile,
        };
        std::thread::Builder::new()
            .name("spawner".into())
            .stack_size(512 << 10)
            .spawn(move || thread.run(&inbox, &outbox))?;
        Ok(Spawner { errands, results, wake, progress, waiting: 0 })
    }

    /// Readable when results wait.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Errands whose results did not come back yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Hands an errand over; gives it back if the queue is full or the thread is gone.
    pub(crate) fn ask(&mut self, errand: Errand) -> Result<(), Errand> {
        match self.errands.try_send(errand) {
            Ok(()) => {
                self.waiting += 1;
                Ok(())
            }
            Err(TrySendError::Full(errand) | TrySendError::Disconnected(errand)) => Err(errand),
        }
    }

    /// The next result, if one waits.
    pub(crate) fn take(&mut self) -> Option<Result_> {
        match self.results.try_recv() {
            Ok(result) => {
                self.waiting -= 1;
                Some(result)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Clears the wake-up before results are taken.
    pub(crate) fn awake(&self) {
        let mut count = [0; 8];
        // EAGAIN: it was not set.
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    /// The start that has been under way for this long: task, step, ms.
    pub(crate) fn blocked(&self, now_ms: u64, longer_than_ms: u64) -> Option<(u64, Step, u64)> {
        let since = self.progress.since_ms.load(Relaxed);
        let elapsed = now_ms.saturating_sub(since);
        (since != 0 && elapsed > longer_than_ms).then(|| {
            let step = Step::from_raw(self.progress.report.step.load(Relaxed));
            (self.progress.task.load(Relaxed), step, elapsed)
        })
    }
}

struct Thread {
    stack: ChildStack,
    null: OwnedFd,
    wake: OwnedFd,
    progress: Arc<Progress>,
    nofile: Nofile,
}

impl Thread {
    fn run(mut self, inbox: &Receiver<Errand>, outbox: &SyncSender<Result_>) {
        while let Ok(errand) = inbox.recv() {
            let result = match errand {
                Errand::Spawn(order) => {
                    self.progress.task.store(order.id, Relaxed);
                    self.progress.since_ms.store(identity::boottime_ms(), Relaxed);
                    let result = self.spawn(&order);
                    self.progress.since_ms.store(0, Relaxed);
                    Result_::Spawned(order.id, result)
                }
                Errand::Measure(id, measure) => Result_::Measured(id, outputs::measure(&measure)),
            };
            if outbox.send(result).is_err() {
                return;
            }
            // EAGAIN: the counter is full, so the loop is woken already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    fn spawn(&mut self, order: &SpawnOrder) -> Result<Started, StartFailure> {
        self.reset_report();
        let prepared = Prepared::new(order, &self.null, self.nofile, &self.progress.report)?;
        let start_wall_ms = identity::wall_ms();
        let slot = order.slot.as_deref();
        self.progress.report.step.store(Step::Fork as u32, Relaxed);
        let arg = (&raw const prepared.plan).cast_mut().cast::<c_void>();
        // SAFETY: `child_main` keeps to the rules; the plan and all it points to live until here
        // again, which is after the child has left our memory.
        let child =
            unsafe { clone::spawn(&mut self.stack, slot.map(Slot::dir), child::child_main, arg) }
                .map_err(|e| fault(Step::Fork, &e, b""))?;
        if self.progress.report.errno.load(Relaxed) != 0 {
            // It has ended, or is about to: reaped here, so that the loop never hears of it.
            let _ = sys::wait_for(child.pid);
            return Err(prepared.failure(order, &self.progress.report));
        }
        debug_assert!(child.in_cgroup || slot.is_none() || !prepared.plan.join.is_empty());
        Ok(self.started(order, child, start_wall_ms))
    }

    fn reset_report(&self) {
        let report = &self.progress.report;
        for field in [&report.step, &report.candidate, &report.odd_file] {
            field.store(0, Relaxed);
        }
        report.errno.store(0, Relaxed);
        for field in
            [&report.stdout_dev, &report.stdout_ino, &report.stderr_dev, &report.stderr_ino]
        {
            field.store(0, Relaxed);
        }
    }

    fn started(&self, order: &SpawnOrder, child: clone::Child, start_wall_ms: u64) -> Started {
        let report = &self.progress.report;
        let fact = StartFact {
            attempt: order.run.attempt,
            token: order.run.token,
            pid: child.pid,
            // Not reaped yet (only the loop does that, after this), so it has its entry.
            pid_start_ticks: procfs::stat(child.pid).map_or(0, |stat| stat.start_ticks),
            start_wall_ms,
            stdout_path: order.run.stdout_path.clone(),
            stderr_path: order.run.stderr_path.clone(),
            stdout_dev: report.stdout_dev.load(Relaxed),
            stdout_ino: report.stdout_ino.load(Relaxed),
            stderr_dev: report.stderr_dev.load(Relaxed),
            stderr_ino: report.stderr_ino.load(Relaxed),
        };
        Started { fact, pidfd: child.pidfd }
    }
}

/// A plan with everything that it points to.
struct Prepared {
    plan: Plan,
    _strings: Vec<CString>,
    _descriptors: Vec<OwnedFd>,
    /// As given, for a failure to name.
    program: Vec<u8>,
    stdin: Vec<u8>,
    private_out: PathBuf,
    private_err: PathBuf,
}

impl Prepared {
    fn new(
        order: &SpawnOrder,
        null: &OwnedFd,
        nofile: Nofile,
        report: &Report,
    ) -> Result<Prepared, StartFailure> {
        report.step.store(Step::RunDirectory as u32, Relaxed);
        let run_file = Path::new(std::ffi::OsStr::from_bytes(&order.run.run_file));
        let ids = ids_of(&order.run);
        let dir = run_directory(run_file, ids.as_ref())?;
        let mut descriptors = Vec::new();
        let input = input(order, null, &mut descriptors)?;
        let (stdout, stderr) = outputs_of(order, run_file, &dir)?;
        let join = joins(order, &mut descriptors)?;
        let program = program(order, run_file, &dir, ids.as_ref(), &mut descriptors)?;
        descriptors.push(dir);
        let env = environment(order)?;
        let plan = Plan {
            join,
            nofile: (order.spec.nofile.unwrap_or(nofile.soft).min(nofile.hard), nofile.hard),
            ids,
            umask: order.spec.umask.unwrap_or(0o022) & 0o777,
            dir: c_string(Step::Chdir, dir_of(&order.spec))?,
            input,
            stdout,
            stderr,
            candidates: program.candidates,
            argv: pointers(&program.argv),
            envp: pointers(&env),
            keep_open: program.keep_open,
            report,
        };
        Ok(Prepared {
            plan,
            _strings: program.argv.into_iter().chain(env).collect(),
            _descriptors: descriptors,
            program: program.name,
            stdin: order.spec.stdin_path.clone().unwrap_or_default(),
            private_out: suffixed(run_file, ".out"),
            private_err: suffixed(run_file, ".err"),
        })
    }

    /// The fact for the step that the child stopped at.
    fn failure(&self, order: &SpawnOrder, report: &Report) -> StartFailure {
        let step = Step::from_raw(report.step.load(Relaxed));
        let errno = report.errno.load(Relaxed);
        let error = io::Error::from_raw_os_error(errno);
        let output = |given: &[u8], private: &Path| match given {
            [] => (private.as_os_str().as_bytes().to_vec(), true),
            path => (path.to_vec(), false),
        };
        let (path, own) = match step {
            Step::Chdir => (dir_of(&order.spec).to_vec(), false),
            Step::Stdin => (self.stdin.clone(), false),
            Step::Stdout => output(&order.run.stdout_path, &self.private_out),
            Step::Stderr => output(&order.run.stderr_path, &self.private_err),
            Step::Exec => (self.exec_path(errno, report), false),
            _ => (Vec::new(), false),
        };
        let mut failure =
            if own { fault(step, &error, &path) } else { failed(step, &error, &path) };
        // A link or directory that stands in the way in the run directory is the user's own doing.
        if matches!(errno, libc::ELOOP | libc::EISDIR) {
            failure.node_fault = false;
        }
        if report.odd_file.load(Relaxed) != 0 {
            failure.message =
                format!("{}: neither a regular file nor /dev/null", describe(step, &path));
        }
        failure
    }

    /// The file that refused to run, or the name that was found nowhere.
    fn exec_path(&self, errno: i32, report: &Report) -> Vec<u8> {
        let number = report.candidate.load(Relaxed) as usize;
        match self.plan.candidates.get(number) {
            Some(path) if errno != libc::ENOENT => path.as_bytes().to_vec(),
            _ => self.program.clone(),
        }
    }
}

/// `None` where the keeper's own ids are right: it is not root, or root runs its own job.
fn ids_of(run: &KeeperRun) -> Option<Ids> {
    let (own_uid, _) = sys::own_ids();
    (own_uid == 0 && run.uid != 0).then(|| Ids {
        uid: run.uid,
        gid: run.gid,
        groups: run.groups.clone(),
    })
}

fn dir_of(spec: &JobSpec) -> &[u8] {
    if spec.dir.is_empty() { b"/" } else { &spec.dir }
}

/// Opens the directory of the run file, made when first needed; the job's user owns it. Never makes
/// the data directory itself: one that was deleted must not come back.
fn run_directory(run_file: &Path, ids: Option<&Ids>) -> Result<OwnedFd, StartFailure> {
    let dir = run_file.parent().unwrap_or(Path::new("/"));
    let fail = |e: &io::Error| fault(Step::RunDirectory, e, dir.as_os_str().as_bytes());
    if make_dir(dir).map_err(|e| fail(&e))?
        && let Some(ids) = ids
    {
        let path = c_string(Step::RunDirectory, dir.as_os_str().as_bytes())?;
        // SAFETY: a valid path; does not follow a link.
        if unsafe { libc::lchown(path.as_ptr(), ids.uid, ids.gid) } != 0 {
            return Err(fail(&io::Error::last_os_error()));
        }
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).map_err(|e| fail(&e.into()))
}

/// `true` if it was made; also makes its parent (`runs`).
fn make_dir(dir: &Path) -> io::Result<bool> {
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700);
    match builder.create(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = dir.parent() {
                match builder.create(parent) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                    _ => {}
                }
            }
            builder.create(dir).map(|()| true)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true),
    }
}

fn input(
    order: &SpawnOrder,
    null: &OwnedFd,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Input, StartFailure> {
    if order.spec.has_stdin {
        let fd = blob(&order.run.stdin).map_err(|e| fault(Step::Stdin, &e, b""))?;
        let input = Input::Open(fd.as_raw_fd());
        descriptors.push(fd);
        return Ok(input);
    }
    match &order.spec.stdin_path {
        Some(path) => Ok(Input::Path(c_string(Step::Stdin, path)?)),
        None => Ok(Input::Open(null.as_raw_fd())),
    }
}

/// An unlinked memory file with these contents, at its beginning.
fn blob(contents: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("docket-stdin", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(contents)?;
    let fd = OwnedFd::from(file);
    // A fresh description: read-only, at offset 0, and nobody can change what is read.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty())?)
}

fn outputs_of(
    order: &SpawnOrder,
    run_file: &Path,
    dir: &OwnedFd,
) -> Result<(Output, Option<Output>), StartFailure> {
    let run = &order.run;
    let first = run.attempt.is_none_or(|a| a.attempt <= 1);
    let truncate = first && !order.spec.append_output;
    let make = |step, given: &[u8], suffix| {
        let name = suffixed(run_file, suffix);
        let private = given.is_empty();
        let path = if private { name.file_name().unwrap_or_default().as_bytes() } else { given };
        Ok(Output {
            dir: if private { dir.as_raw_fd() } else { libc::AT_FDCWD },
            path: c_string(step, path)?,
            truncate,
            private,
        })
    };
    let stdout = make(Step::Stdout, &run.stdout_path, ".out")?;
    // One file for both: opened once, so that neither overwrites the other.
    let same = !run.stdout_path.is_empty() && run.stdout_path == run.stderr_path;
    let stderr = if same { None } else { Some(make(Step::Stderr, &run.stderr_path, ".err")?) };
    Ok((stdout, stderr))
}

/// Sets the memory limit and opens what the child must write itself into.
fn joins(order: &SpawnOrder, descriptors: &mut Vec<OwnedFd>) -> Result<Vec<RawFd>, StartFailure> {
    let Some(slot) = &order.slot else { return Ok(Vec::new()) };
    let files = slot
        .limit_memory(order.run.mem_bytes)
        .map_err(|e| fault(Step::Cgroup, &e, slot.path().as_os_str().as_bytes()))?;
    let mut join: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    descriptors.extend(files);
    if !clone_joins_cgroup() {
        let file = slot.procs_file().map_err(|e| fault(Step::Cgroup, &e, b""))?;
        join.push(file.as_raw_fd());
        descriptors.push(file);
    }
    Ok(join)
}

/// Whether clone3 puts the child into its cgroup here: found out once, by asking for nothing.
fn clone_joins_cgroup() -> bool {
    static KNOWN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *KNOWN.get_or_init(|| {
        if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return false;
        }
        // SAFETY: with size 0 the kernel refuses before it reads anything: EINVAL if it knows the
        // call, ENOSYS or EPERM if it or a filter does not.
        let _ = unsafe { libc::syscall(libc::SYS_clone3, ptr::null_mut::<c_void>(), 0) };
        io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    })
}

struct Program {
    name: Vec<u8>,
    candidates: Vec<CString>,
    argv: Vec<CString>,
    keep_open: Option<RawFd>,
}

fn program(
    order: &SpawnOrder,
    run_file: &Path,
    dir: &OwnedFd,
    ids: Option<&Ids>,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Program, StartFailure> {
    let arguments = order.spec.argv.iter().map(|a| c_string(Step::Exec, a));
    let arguments: Vec<CString> = arguments.collect::<Result<_, _>>()?;
    if let Some(script) = &order.spec.script {
        return script_program(script, arguments, run_file, dir, ids, descriptors);
    }
    let Some(name) = arguments.first().filter(|name| !name.is_empty()) else {
        return Err(failed(Step::Exec, &io::Error::from_raw_os_error(libc::ENOENT), b""));
    };
    let name = name.as_bytes().to_vec();
    let path = order.run.env.iter().rev().find_map(|var| var.strip_prefix(b"PATH="));
    let candidates = search(&name, path.unwrap_or(DEFAULT_PATH))?;
    Ok(Program { name, candidates, argv: arguments, keep_open: None })
}

/// Where execvp would look for this name.
fn search(name: &[u8], path: &[u8]) -> Result<Vec<CString>, StartFailure> {
    if name.contains(&b'/') {
        return Ok(vec![c_string(Step::Exec, name)?]);
    }
    path.split(|b| *b == b':')
        .map(|dir| if dir.is_empty() { &b"."[..] } else { dir })
        .map(|dir| c_string(Step::Exec, &[dir, b"/", name].concat()))
        .collect()
}

fn script_program(
    script: &[u8],
    arguments: Vec<CString>,
    run_file: &Path,
    dir: &OwnedFd,
    ids: Option<&Ids>,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Program, StartFailure> {
    let path = suffixed(run_file, ".script");
    let name = path.as_os_str().as_bytes().to_vec();
    let fd =
        write_script(dir, &path, script, ids).map_err(|e| fault(Step::RunDirectory, &e, &name))?;
    // The data directory is closed to other users: they reach their script by descriptor.
    let (run_as, keep_open) = match ids {
        Some(_) => (format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes(), Some(fd.as_raw_fd())),
        None => (name.clone(), None),
    };
    descriptors.push(fd);
    let run_as = c_string(Step::Exec, &run_as)?;
    let mut argv = vec![run_as.clone()];
    let mut candidates = vec![run_as];
    if !script.starts_with(b"#!") {
        argv.insert(0, c"/bin/sh".to_owned());
        candidates = vec![c"/bin/sh".to_owned()];
    }
    argv.extend(arguments);
    Ok(Program { name, candidates, argv, keep_open })
}

/// Writes the script for its user alone and gives a descriptor to read it by.
fn write_script(
    dir: &OwnedFd,
    path: &Path,
    script: &[u8],
    ids: Option<&Ids>,
) -> io::Result<OwnedFd> {
    let name = path.file_name().unwrap_or_default();
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::XUSR;
    let mut file = File::from(rustix::fs::openat(dir, name, flags, mode)?);
    file.write_all(script)?;
    if let Some(ids) = ids {
        std::os::unix::fs::fchown(&file, Some(ids.uid), Some(ids.gid))?;
    }
    rustix::fs::fchmod(&file, mode)?;
    drop(file);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// The job's environment with this attempt's mark in front, so that it is found early.
fn environment(order: &SpawnOrder) -> Result<Vec<CString>, StartFailure> {
    let mark = [MARK_NAME.as_bytes(), b"=", &order.mark].concat();
    let name = &mark[..=MARK_NAME.len()];
    let given = order.run.env.iter().map(Vec::as_slice).filter(|var| !var.starts_with(name));
    [mark.as_slice()].into_iter().chain(given).map(|var| c_string(Step::Exec, var)).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

fn suffixed(run_file: &Path, suffix: &str) -> PathBuf {
    let mut name = run_file.as_os_str().to_owned().into_vec();
    name.extend_from_slice(suffix.as_bytes());
    PathBuf::from(std::ffi::OsString::from_vec(name))
}

fn c_string(step: Step, bytes: &[u8]) -> Result<CString, StartFailure> {
    CString::new(bytes)
        .map_err(|_| failed(step, &io::Error::from_raw_os_error(libc::EINVAL), bytes))
}

/// A failure of the job's own step: its path, directory or program.
pub(crate) fn failed(step: Step, error: &io::Error, path: &[u8]) -> StartFailure {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    StartFailure {
        step: step.name().into(),
        errno,
        path: path.to_vec(),
        message: format!("{}: {error}", describe(step, path)),
        node_fault: matches!(errno, libc::EIO | libc::EAGAIN | libc::ENOMEM | libc::ENFILE),
    }
}

/// A failure of docket's own step or of the machine.
pub(crate) fn fault(step: Step, error: &io::Error, path: &[u8]) -> StartFailure {
    StartFailure { node_fault: true, ..failed(step, error, path) }
}

fn describe(step: Step, path: &[u8]) -> String {
    match path {
        [] => step.name().into(),
        path => format!("{} {}", step.name(), String::from_utf8_lossy(path)),
    }
}
