//! The keeper: parent of every job of a node, a small synchronous process that outlives the agent.
//! It never touches the network and never reads a job's output; the journal is its only state.
//! Begin with `run.rs` (the loop), then `task.rs` (what an attempt goes through) and `guard.rs`.

mod birthplace;
mod board;
mod book;
mod cgroup;
mod child;
mod clients;
mod clone;
mod commit;
mod cutting;
mod exits;
mod fence;
mod growth;
mod guard;
mod hierarchies;
mod identity;
mod journal;
mod kill;
mod lease;
mod leftover;
mod life;
mod limits;
mod lock;
mod log;
mod orders;
mod outputs;
mod pace;
mod plan;
mod poll;
mod procfs;
mod recover;
mod run;
mod session;
mod spawn;
mod spawner;
mod start;
mod status;
mod sys;
mod task;
mod upgrade;
mod usage;
mod wire;

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use journal::JournalError;
pub use lock::{LockState, lock_state};
use proto::v1::LimitsBy;
pub use wire::{Client, Decoder, MESSAGE_MAX_BYTES, WireError, dial, encode};

/// Hidden subcommand of the keeper.
pub const KEEPER_COMMAND: &str = "keeper";

/// Hidden subcommand of the guard, which is what `launch` starts.
pub const GUARD_COMMAND: &str = "keeper-guard";

/// Environment variable: `off` makes the keeper tell trees apart without cgroups even where it
/// could use them.
pub const CGROUP_SWITCH: &str = "DOCKET_KEEPER_CGROUP";

/// Environment variable: how long an idle keeper stays, in ms; 10,000 if not set.
pub const IDLE_SWITCH: &str = "DOCKET_KEEPER_IDLE_MS";

/// Whether a first argument of the program belongs to [`main`].
pub fn is_command(argument: &OsStr) -> bool {
    argument == KEEPER_COMMAND || argument == GUARD_COMMAND
}

/// Entry of `docket keeper --data DIR`, `docket keeper-guard --data DIR` and `docket keeper --check
/// DIR`; gives the exit code. To be called before any thread exists: it forks. `args` with or without
/// the program's name; `version` is the program's own.
pub fn main(args: impl Iterator<Item = OsString>, version: &'static str) -> i32 {
    match Arguments::parse(args) {
        Ok(arguments) if arguments.check => upgrade::check_main(&arguments.dir, version),
        Ok(arguments) if arguments.guard => guard::main(&arguments.dir, version),
        Ok(arguments) => start::main(&arguments.dir, &arguments.handed, version),
        Err(what) => {
            let _ = writeln!(io::stderr(), "docket keeper: {what}; usage: keeper --data DIR");
            status::USAGE
        }
    }
}

/// What the command line of either process says.
struct Arguments {
    guard: bool,
    /// Only whether this program can take over from the keeper of the directory.
    check: bool,
    dir: PathBuf,
    handed: Handed,
}

/// What crosses into a keeper's program.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Handed {
    /// Descriptors of the guard: lock, notices, board, and at the first start ready.
    from_guard: Vec<RawFd>,
    /// Descriptor of the older program that ran in this very process until now.
    listener: Option<RawFd>,
    /// The guard that started this keeper; 0: none.
    guard: u32,
}

impl Handed {
    fn descriptors(&self) -> Vec<RawFd> {
        self.from_guard.iter().copied().chain(self.listener).collect()
    }
}

impl Arguments {
    fn parse(args: impl Iterator<Item = OsString>) -> Result<Arguments, String> {
        let mut args = args.skip_while(|arg| !is_command(arg));
        let guard = args.next().ok_or("no subcommand")? == GUARD_COMMAND;
        let (mut dir, mut check, mut handed) = (None, false, Handed::default());
        while let Some(arg) = args.next() {
            let value = args.next().ok_or_else(|| format!("{} without value", arg.display()))?;
            let text = value.to_str().unwrap_or_default();
            if arg == "--data" || arg == "--check" {
                check |= arg == "--check";
                dir = Some(std::path::absolute(value).map_err(|e| format!("a directory: {e}"))?);
            } else if arg == "--handed" {
                let numbers = text.split(',').map(str::parse).collect::<Result<_, _>>();
                handed.from_guard = numbers.map_err(|e| format!("--handed: {e}"))?;
            } else if arg == "--listener" {
                handed.listener = Some(text.parse().map_err(|e| format!("--listener: {e}"))?);
            } else if arg == "--guard" {
                handed.guard = text.parse().map_err(|e| format!("--guard: {e}"))?;
            } else {
                return Err(format!("unknown argument {}", arg.display()));
            }
        }
        Ok(Arguments { guard, check, dir: dir.ok_or("--data is missing")?, handed })
    }
}

/// What a keeper that this process started would hold its jobs with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holds {
    /// Each tree has a cgroup of its own; else it is told apart by session and mark.
    pub cgroups: bool,
    /// What enforces each limit.
    pub limits: LimitsBy,
}

/// Tries it, as the keeper does at its start; leaves nothing behind.
pub fn holds() -> Holds {
    let slots = cgroup::Slots::without_births(&format!("docket-probe-{}", std::process::id()));
    let limits = limits::told(slots.as_ref().map(cgroup::Slots::controllers));
    let holds = Holds { cgroups: slots.is_some(), limits };
    if let Some(slots) = slots {
        slots.remove();
    }
    holds
}

/// Starts guard and keeper of a data directory, detached from this process, unless they run. Returns
/// when the keeper listens (or after 10 s); blocking. A directory that is not there is not made: it may have been deleted under
/// its agent.
///
/// # Errors
/// What guard or keeper say of why they do not start, or a failed system call.
pub fn launch(dir: &Path) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    if lock_state(&dir)? != LockState::Free {
        return Ok(());
    }
    let mut child = Command::new("/proc/self/exe")
        .arg0("docket")
        .arg(GUARD_COMMAND)
        .arg("--data")
        .arg(&dir)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let stderr = child.stderr.take();
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(stderr) = stderr {
        // The launched process has ended; the detached one has let go of the pipe before it failed.
        stderr.take(4096).read_to_string(&mut said)?;
    }
    Err(io::Error::other(format!("the keeper did not start ({status}): {}", said.trim())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn the_command_line_is_read_with_or_without_the_program() {
        for words in [&["docket", "keeper", "--data", "/d"][..], &["keeper", "--data", "/d"]] {
            let arguments = parse(words).unwrap();
            assert!(!arguments.guard && arguments.dir == Path::new("/d"));
            assert!(arguments.handed.descriptors().is_empty() && !arguments.check);
        }
        let words = "keeper --data /d --handed 3,4 --guard 7 --listener 5";
        let arguments = parse(&words.split(' ').collect::<Vec<_>>()).unwrap();
        let handed = Handed { from_guard: vec![3, 4], listener: Some(5), guard: 7 };
        assert_eq!(arguments.handed, handed);
        assert!(parse(&["keeper", "--check", "/d"]).unwrap().check);
        assert!(parse(&["keeper-guard", "--data", "/d"]).unwrap().guard);
        for wrong in [&["keeper"][..], &["keeper", "--data"], &["up"], &["keeper", "-x", "1"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
