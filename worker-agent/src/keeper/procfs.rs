//! What /proc says about processes: the few fields that tell trees apart. Reading only.

use std::fs::{self, File};
use std::io::Read;

/// The variable that marks every process of an attempt.
pub(crate) const MARK_NAME: &str = "DOCKET_TOKEN";

/// An environment longer than this is not searched for the mark (the kernel's own limit of
/// arguments and environment together is 6 MiB with the usual stack).
const ENVIRON_MAX: u64 = 8 << 20;

/// Fields of /proc/PID/stat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub pid: u32,
    pub state: u8,
    pub parent: u32,
    pub session: u32,
    pub start_ticks: u64,
    /// The kernel's flags of the task, as of <linux/sched.h>.
    pub flags: u64,
}

/// It exits, or has.
const PF_EXITING: u64 = 0x4;
/// Forked, but no exec yet. The parent that waits for an exec is woken a moment before this is cleared.
const PF_FORKNOEXEC: u64 = 0x40;

impl Stat {
    /// It ended before it executed anything: not even the first instruction of a program ran.
    pub(crate) fn ended_before_exec(&self) -> bool {
        let ends = self.flags & PF_EXITING != 0 || self.is_zombie();
        ends && self.flags & PF_FORKNOEXEC != 0
    }

    /// By a signal, or by a debugger.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Sleeps in the kernel where signals wait.
    pub(crate) fn is_uninterruptible(&self) -> bool {
        self.state == b'D'
    }

    /// Ended: only its entry is left.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// `None`: no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The name may hold anything, blanks and brackets too: fields count from the last bracket.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|b| *b == b'(')?;
    let close = text.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(text.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
        flags: fields.get(6)?.parse().ok()?,
    })
}

/// Every process of this pid namespace.
pub(crate) fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(stat)
        .collect()
}

/// The children that the main thread of this process has; `None` where the kernel does not list
/// them.
pub(crate) fn children(pid: u32) -> Option<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Some(text.split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect())
}

/// The mark in the environment that this process was started with, if it may be read and has one.
pub(crate) fn mark(pid: u32) -> Option<Vec<u8>> {
    let mut environ = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRON_MAX).read_to_end(&mut environ).ok()?;
    find_mark(&environ).map(<[u8]>::to_vec)
}

fn find_mark(environ: &[u8]) -> Option<&[u8]> {
    environ
        .split(|b| *b == 0)
        .find_map(|var| var.strip_prefix(MARK_NAME.as_bytes())?.strip_prefix(b"="))
}

/// The name that a process gave its main thread.
pub(crate) fn name(pid: u32) -> Vec<u8> {
    let text = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    text.trim_ascii_end().to_vec()
}

/// The arguments of a process, NUL-separated as the kernel gives them.
pub(crate) fn cmdline(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"42 (a) S 9 (b) T 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 1 2\n";

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_move_the_fields() {
        let stat = parse_stat(LINE).unwrap();
        assert_eq!((stat.pid, stat.state, stat.parent, stat.session), (42, b'T', 7, 41));
        assert_eq!((stat.start_ticks, stat.flags), (777, 4_194_560));
    }

    #[test]
    fn a_task_that_exits_without_an_exec_is_told_from_one_that_is_on_its_way_or_had_its_exec() {
        let stat = |state, flags| Stat { state, flags, ..parse_stat(LINE).unwrap() };
        let cases = [
            (stat(b'R', PF_FORKNOEXEC), false),
            (stat(b'R', PF_FORKNOEXEC | PF_EXITING), true),
            (stat(b'Z', PF_FORKNOEXEC), true),
            (stat(b'Z', PF_EXITING), false),
            (stat(b'R', 0), false),
        ];
        for (stat, never) in cases {
            assert_eq!(stat.ended_before_exec(), never, "{stat:?}");
        }
    }

    #[test]
    fn rubbish_is_no_process() {
        for text in [&b""[..], b"1 (x", b"x (y) S 1", b"1 (y) S"] {
            assert_eq!(parse_stat(text), None);
        }
    }

    #[test]
    fn the_mark_is_found_only_under_its_whole_name() {
        assert_eq!(find_mark(b"A=1\0DOCKET_TOKEN=abc\0B=2\0"), Some(&b"abc"[..]));
        assert_eq!(find_mark(b"XDOCKET_TOKEN=abc\0DOCKET_TOKENS=x\0"), None);
    }

    #[test]
    fn this_process_is_listed() {
        let pid = std::process::id();
        assert!(all().iter().any(|stat| stat.pid == pid && !stat.is_zombie()));
    }
}
