//! Which process is meant: boot id, pid and start time, and signals only through a pidfd that was
//! checked against them, so that a reused pid is never touched. Also the two clocks of the keeper.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::procfs;
use super::sys;

/// A process of this boot: its pid and field 22 of /proc/PID/stat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ProcessId {
    pub pid: u32,
    pub start_ticks: u64,
}

impl ProcessId {
    /// A descriptor of exactly this process; `None` if it is gone. A zombie still counts.
    pub(crate) fn open(self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        // The pid may have been reused before the open: only now does the descriptor pin it.
        match procfs::stat(self.pid) {
            Some(stat) if stat.start_ticks == self.start_ticks => Ok(Some(fd)),
            _ => Ok(None),
        }
    }
}

/// Sends a signal through a pidfd; `false` if the process is gone.
pub(crate) fn send(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<bool> {
    match pidfd_send_signal(pidfd, signal) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Whether the process behind a pidfd has ended (it may not be reaped yet).
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
}

/// The life of the machine that pids belong to: boot id and pid namespace. Another value means that
/// every process of before is gone.
pub(crate) fn boot_id() -> io::Result<Vec<u8>> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let mut id: Vec<u8> = text.trim().bytes().filter(|b| *b != b'-').collect();
    let namespace = fs::metadata("/proc/self/ns/pid").map(|m| m.ino())?;
    id.extend_from_slice(format!(".{namespace}").as_bytes());
    Ok(id)
}

/// CLOCK_BOOTTIME in ms: the clock of every deadline here; it counts while the machine sleeps.
pub(crate) fn boottime_ms() -> u64 {
    millis(clock_gettime(ClockId::Boottime))
}

/// UTC in ms, for people.
pub(crate) fn wall_ms() -> u64 {
    millis(clock_gettime(ClockId::Realtime))
}

/// The CLOCK_BOOTTIME in ms at which a process with this start time began.
pub(crate) fn ticks_to_ms(ticks: u64) -> u64 {
    ticks.saturating_mul(1000) / sys::ticks_per_second()
}

fn millis(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn myself() -> ProcessId {
        let pid = std::process::id();
        ProcessId { pid, start_ticks: procfs::stat(pid).unwrap().start_ticks }
    }

    #[test]
    fn a_reused_pid_is_not_the_process_that_was_meant() {
        assert!(myself().open().unwrap().is_some());
        let other = ProcessId { start_ticks: myself().start_ticks + 1, ..myself() };
        assert!(other.open().unwrap().is_none());
    }

    #[test]
    fn a_living_process_has_not_ended_and_started_before_now() {
        assert!(!has_ended(myself().open().unwrap().unwrap().as_fd()));
        assert!(ticks_to_ms(myself().start_ticks) <= boottime_ms());
    }
}
