//! Thin wrappers of the system calls that neither std nor rustix offer: waiting with usage, a signal
//! descriptor, locks of open file descriptions, fork for the guard. Nothing here decides anything.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use proto::v1::Rusage;

/// A child whose end was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reaped {
    pub pid: u32,
    /// Raw, as wait(2) gives it.
    pub status: u32,
    pub rusage: Rusage,
}

/// What a look at the children shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Waited {
    Ended(Reaped),
    /// There are children, none has ended.
    Running,
    /// There is no (such) child.
    NoChild,
}

/// Reaps this child if it has ended. Works for children of any thread of this process.
pub(crate) fn reap(pid: u32) -> io::Result<Waited> {
    wait4(pid as i32, libc::WNOHANG)
}

/// Shows one ended child that the calling thread itself forked or inherited. The spawner thread's
/// children (the jobs) are not seen here, but for those that the program before this one started.
pub(crate) fn peek_own() -> io::Result<Waited> {
    wait_id(libc::P_ALL, 0, libc::__WNOTHREAD)
}

/// Waits until this child has ended.
pub(crate) fn wait_for(pid: u32) -> io::Result<Waited> {
    wait4(pid as i32, 0)
}

fn wait4(pid: i32, flags: i32) -> io::Result<Waited> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both out-pointers are valid for the call.
        let got = unsafe { libc::wait4(pid, &mut status, flags, usage.as_mut_ptr()) };
        match got {
            0 => return Ok(Waited::Running),
            -1 => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::EINTR) => continue,
                e if e.raw_os_error() == Some(libc::ECHILD) => return Ok(Waited::NoChild),
                e => return Err(e),
            },
            pid => {
                // SAFETY: zeroed is a valid rusage, and the kernel filled it.
                let usage = unsafe { usage.assume_init() };
                return Ok(Waited::Ended(Reaped {
                    pid: pid as u32,
                    status: status as u32,
                    rusage: rusage(&usage),
                }));
            }
        }
    }
}

/// Shows one ended child without reaping it, so that its end can be written down first.
pub(crate) fn peek_any() -> io::Result<Waited> {
    wait_id(libc::P_ALL, 0, 0)
}

/// The same for this child, of whichever thread.
pub(crate) fn peek(pid: u32) -> io::Result<Waited> {
    wait_id(libc::P_PID, pid, 0)
}

fn wait_id(which: libc::idtype_t, id: u32, of: i32) -> io::Result<Waited> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | of;
    // SAFETY: raw waitid has a fifth argument, the usage; both out-pointers are valid for the call.
    let got = unsafe {
        libc::syscall(libc::SYS_waitid, which, id, info.as_mut_ptr(), flags, usage.as_mut_ptr())
    };
    if got == -1 {
        return match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ECHILD) => Ok(Waited::NoChild),
            e => Err(e),
        };
    }
    // SAFETY: zeroed is valid for both, the kernel filled them; the accessors read its SIGCHLD form.
    let (pid, code, value, usage) = unsafe {
        let info = info.assume_init();
        (info.si_pid(), info.si_code, info.si_status(), usage.assume_init())
    };
    if pid == 0 {
        return Ok(Waited::Running);
    }
    Ok(Waited::Ended(Reaped {
        pid: pid as u32,
        status: raw_status(code, value),
        rusage: rusage(&usage),
    }))
}

/// The raw wait status for what waitid splits in two.
fn raw_status(code: i32, value: i32) -> u32 {
    match code {
        libc::CLD_EXITED => ((value & 0xff) as u32) << 8,
        libc::CLD_DUMPED => (value & 0x7f) as u32 | 0x80,
        _ => (value & 0x7f) as u32,
    }
}

fn rusage(usage: &libc::rusage) -> Rusage {
    let micros = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    Rusage {
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss as u64 * 1024,
        ..Rusage::default()
    }
}

/// How a process ended that was no child of ours, from its pidfd: kernels from 6.15 on keep it as
/// long as the descriptor is open. `None`: this kernel does not say.
pub(crate) fn exit_status_of(pidfd: BorrowedFd<'_>) -> Option<u32> {
    /// `struct pidfd_info` of the kernel, its first version.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroupid: u64,
        pid: u32,
        tgid: u32,
        ppid: u32,
        ids: [u32; 8],
        exit_code: i32,
    }
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    // _IOWR(0xFF, 11, struct pidfd_info) with its first size, 64 bytes.
    const PIDFD_GET_INFO: libc::c_ulong = (3 << 30) | (64 << 16) | (0xff << 8) | 11;
    const { assert!(size_of::<Info>() == 64) };
    let mut info = Info { mask: PIDFD_INFO_EXIT, ..Info::default() };
    // SAFETY: the kernel writes at most the 64 bytes that the request number names.
    let got = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO as _, &mut info) };
    (got == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code as u32)
}

/// Sets every signal to its default and blocks them all: keeper and guard die of SIGKILL only, and
/// hear of their children through a descriptor. SIGPIPE needs no handler while it is blocked.
pub(crate) fn calm_signals() -> io::Result<()> {
    // SAFETY: plain calls on a local set; changing dispositions to the default races with nothing,
    // for this runs before the second thread exists.
    unsafe {
        // The kernel's own structure, all zero: the default. The C library would leave out two
        // signals that it keeps for itself, and whoever launched us may have ignored those.
        let default = [0u64; 4];
        for signal in 1..=libc::SIGRTMAX() {
            // Refused for SIGKILL and SIGSTOP, which have no other.
            let old = ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), old, 8usize);
        }
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigfillset(all.as_mut_ptr());
        check(libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut()))?;
    }
    Ok(())
}

/// Unblocks every signal, before another program is executed.
pub(crate) fn unblock_signals() {
    // SAFETY: plain calls on a local set.
    unsafe {
        let mut none = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// A set that holds SIGCHLD only.
fn sigchld() -> libc::sigset_t {
    // SAFETY: sigemptyset fills the whole set.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        set.assume_init()
    }
}

/// A descriptor that is readable while SIGCHLD is pending; the signal must be blocked.
pub(crate) fn sigchld_fd() -> io::Result<OwnedFd> {
    // SAFETY: the set is valid; the descriptor is new and ours.
    unsafe {
        let fd = check(libc::signalfd(-1, &sigchld(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Waits for a pending SIGCHLD, at most this long.
pub(crate) fn wait_sigchld(at_most: Duration) {
    let time = libc::timespec {
        tv_sec: at_most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(at_most.subsec_nanos() as i32),
    };
    // SAFETY: valid pointers; an error (time-out, EINTR) only ends the wait.
    unsafe { libc::sigtimedwait(&sigchld(), ptr::null_mut(), &time) };
}

/// Takes the write lock of this open file description: shared with every copy of the descriptor
/// across fork and exec, free when the last copy is closed. `false`: somebody else has it.
pub(crate) fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut lock = whole_file();
    // SAFETY: valid pointer for the call.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            e => Err(e),
        },
    }
}

/// Whether somebody else holds the lock, without taking it for a moment.
pub(crate) fn is_locked(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut lock = whole_file();
    // SAFETY: valid pointer for the call.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Forks this process, which must have one thread. `None` in the child.
pub(crate) fn fork() -> io::Result<Option<u32>> {
    // SAFETY: with one thread no lock can be held by a thread that the child lacks.
    match check(unsafe { libc::fork() })? {
        0 => Ok(None),
        pid => Ok(Some(pid as u32)),
    }
}

/// Executes this very program again with these arguments and the present environment, handing the
/// descriptors over; returns only an error, and then hands nothing over.
pub(crate) fn exec_self(args: &[CString], handed: &[RawFd]) -> io::Error {
    exec_path(c"/proc/self/exe", args, handed)
}

/// The same with the program that this descriptor is open on, whatever its path leads to by now.
pub(crate) fn exec(program: BorrowedFd<'_>, args: &[CString], handed: &[RawFd]) -> io::Error {
    match CString::new(format!("/proc/self/fd/{}", program.as_raw_fd())) {
        Ok(path) => exec_path(&path, args, handed),
        Err(e) => e.into(),
    }
}

fn exec_path(path: &CStr, args: &[CString], handed: &[RawFd]) -> io::Error {
    set_descriptor_flags(handed, 0);
    let mut argv: Vec<*const libc::c_char> = args.iter().map(|a| a.as_ptr()).collect();
    argv.push(ptr::null());
    // SAFETY: path and arguments are NUL-terminated, the list ends with a null pointer.
    unsafe { libc::execv(path.as_ptr(), argv.as_ptr()) };
    let error = io::Error::last_os_error();
    set_descriptor_flags(handed, libc::FD_CLOEXEC);
    error
}

fn set_descriptor_flags(fds: &[RawFd], flags: i32) {
    for &fd in fds {
        // SAFETY: a flag of a descriptor; fails harmlessly where there is none.
        unsafe { libc::fcntl(fd, libc::F_SETFD, flags) };
    }
}

/// Ends a forked child without running anything of the parent's.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: always sound.
    unsafe { libc::_exit(code) }
}

/// Takes over a descriptor that the guard handed down and makes it close-on-exec again.
pub(crate) fn adopt_fd(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD on any number is harmless; it fails if there is no such descriptor.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it exists, and the guard's arguments say that it is meant for this process alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes every descriptor from 3 up that is not in `keep`: what the launcher leaked.
pub(crate) fn close_others(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().map(|&fd| fd as u32).filter(|&fd| fd > 2).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if fd > from {
            // SAFETY: called before anything but `keep` was opened, so nothing owned is closed. An
            // old kernel refuses: then everything of ours is close-on-exec all the same.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd.saturating_add(1);
    }
}

/// Makes 0, 1 and 2 copies of this descriptor.
pub(crate) fn replace_stdio(fd: BorrowedFd<'_>) -> io::Result<()> {
    for number in 0..=2 {
        // SAFETY: the standard descriptors belong to no value; std only writes to their numbers.
        check(unsafe { libc::dup2(fd.as_raw_fd(), number) })?;
    }
    Ok(())
}

/// The effective uid and gid.
pub(crate) fn own_ids() -> (u32, u32) {
    // SAFETY: always succeed.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Clock ticks per second, the unit of process start times.
pub(crate) fn ticks_per_second() -> u64 {
    // SAFETY: always sound; 100 where it is unknown, as on every Linux of today.
    match unsafe { libc::sysconf(libc::_SC_CLK_TCK) } {
        n if n > 0 => n as u64,
        _ => 100,
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn waitid_codes_become_raw_statuses() {
        assert_eq!(raw_status(libc::CLD_EXITED, 7), 7 << 8);
        assert_eq!(raw_status(libc::CLD_KILLED, 9), 9);
        assert_eq!(raw_status(libc::CLD_DUMPED, 11), 11 | 0x80);
    }
}
