//! From an order to a plan for the child: ids, directory, files, program, environment, all made
//! before the child exists; and from the step that it stopped at to the fact that names it.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString, c_void};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use proto::v1::{JobSpec, KeeperRun, StartFailure};
use rustix::fs::{AtFlags, Mode, OFlags};

use super::child::{Ids, Input, Output, Plan, Report, Step};
use super::limits::{Asked, pids_of_one_job};
use super::procfs::MARK_NAME;
use super::spawn::{Nofile, SpawnOrder};
use super::sys;

/// Searched when the job's environment has no PATH, as execvp does.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// A plan with everything that it points to.
pub(super) struct Prepared {
    pub plan: Plan,
    _strings: Vec<CString>,
    _descriptors: Vec<OwnedFd>,
    /// As given, for a failure to name.
    program: Vec<u8>,
    stdin: Vec<u8>,
    private_out: PathBuf,
    private_err: PathBuf,
}

impl Prepared {
    /// Makes files and directories as the keeper; `report` says the step meanwhile.
    pub(super) fn new(
        order: &SpawnOrder,
        null: &OwnedFd,
        nofile: Nofile,
        report: &Report,
    ) -> Result<Prepared, StartFailure> {
        report.step.store(Step::RunDirectory as u32, Relaxed);
        let run_file = Path::new(OsStr::from_bytes(&order.run.run_file));
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
            data_max: data_max(order),
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
            birth: ptr::null(),
            gate: ptr::null(),
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
    pub(super) fn failure(&self, order: &SpawnOrder, report: &Report) -> StartFailure {
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
    // DIR/runs/JOB/TASK.ATTEMPT
    let data = run_file.ancestors().nth(3).unwrap_or(Path::new("/"));
    let fail = |e: &io::Error| match e.kind() {
        io::ErrorKind::NotFound if !data.exists() => directory_gone(data),
        _ => fault(Step::RunDirectory, e, dir.as_os_str().as_bytes()),
    };
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

/// Sets the limits and opens what the child must write itself into.
fn joins(order: &SpawnOrder, descriptors: &mut Vec<OwnedFd>) -> Result<Vec<RawFd>, StartFailure> {
    let Some(slot) = &order.slot else { return Ok(Vec::new()) };
    let asked = Asked {
        mem_bytes: order.run.mem_bytes,
        cpus: order.spec.cpus.into(),
        pids: pids_of_one_job(),
    };
    let files = slot
        .limit(asked)
        .map_err(|e| fault(Step::Cgroup, &e, slot.path().as_os_str().as_bytes()))?;
    let mut join: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    descriptors.extend(files);
    if slot.birthplace().is_none() || !clone_joins_cgroup() {
        let file = slot.procs_file().map_err(|e| fault(Step::Cgroup, &e, b""))?;
        join.push(file.as_raw_fd());
        descriptors.push(file);
    }
    Ok(join)
}

/// Memory of each process of a job whose tree no cgroup holds to it.
fn data_max(order: &SpawnOrder) -> Option<u64> {
    let held = order.slot.as_ref().is_some_and(|slot| slot.holds_memory());
    Some(order.run.mem_bytes).filter(|bytes| !held && *bytes > 0)
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
    PathBuf::from(OsString::from_vec(name))
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
        node_out: false,
    }
}

/// A failure of docket's own step or of the machine.
pub(crate) fn fault(step: Step, error: &io::Error, path: &[u8]) -> StartFailure {
    StartFailure { node_fault: true, ..failed(step, error, path) }
}

/// The child was killed at the step where it stood: by somebody, or by the kernel for want of memory. That
/// is not the job's fault, of which nothing ran.
pub(super) fn killed(report: &Report, signal: u32) -> StartFailure {
    let step = Step::from_raw(report.step.load(Relaxed)).name();
    let by = if signal == 0 { "killed".to_owned() } else { format!("killed by signal {signal}") };
    StartFailure {
        step: step.into(),
        errno: libc::EINTR,
        message: format!("{step}: {by} before the job's program was executed"),
        node_fault: true,
        ..StartFailure::default()
    }
}

/// Nothing starts in a data directory that is not in its place.
pub(super) fn directory_gone(data: &Path) -> StartFailure {
    let step = "data-directory";
    let name = data.display();
    StartFailure {
        step: step.into(),
        errno: libc::ENOENT,
        path: data.as_os_str().as_bytes().to_vec(),
        message: format!(
            "{step}: {name} was deleted or moved away under its agent: start the agent again"
        ),
        node_fault: true,
        node_out: true,
    }
}

fn describe(step: Step, path: &[u8]) -> String {
    match path {
        [] => step.name().into(),
        path => format!("{} {}", step.name(), String::from_utf8_lossy(path)),
    }
}
