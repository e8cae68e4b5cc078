//! Processes as `/proc` shows them: found by the world's directory in arguments or environment.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};

/// What a docket process is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// `docket up`
    Up,
    /// `docket controller`
    Controller,
    /// `docket agent`
    Agent,
    /// `docket keeper`
    Keeper,
    /// `docket keeper-guard`
    Guard,
    /// Any other subcommand: a client, or a child between fork and exec.
    Client,
}

/// A live process.
#[derive(Clone, Debug)]
pub struct Proc {
    /// Process id.
    pub pid: i32,
    /// Boot ticks at its start: with the pid, its identity.
    pub start_ticks: u64,
    /// Its arguments.
    pub argv: Vec<String>,
    /// One letter, as in `/proc/PID/stat`.
    pub state: char,
}

impl Proc {
    /// Its role if it runs the binary `exe`.
    pub fn role(&self, exe: &Path) -> Option<Role> {
        let runs = fs::read_link(format!("/proc/{}/exe", self.pid)).ok()?;
        if runs != exe && !self.same_file(exe) {
            return None;
        }
        Some(match self.argv.get(1).map(String::as_str) {
            Some("up") => Role::Up,
            Some("controller") => Role::Controller,
            Some("agent") => Role::Agent,
            Some("keeper") => Role::Keeper,
            Some("keeper-guard") => Role::Guard,
            _ => Role::Client,
        })
    }

    /// A hard link to the same binary shows as another path.
    fn same_file(&self, exe: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let id = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let mine = id(&PathBuf::from(format!("/proc/{}/exe", self.pid)));
        mine.is_some() && mine == id(exe)
    }

    /// Does this very process still live (a zombie does not)?
    pub fn lives(&self) -> bool {
        alive(self.pid) && start_ticks(self.pid) == Some(self.start_ticks)
    }
}

/// Is there a process with this id that is not a zombie?
pub fn alive(pid: i32) -> bool {
    !matches!(state_of(pid), None | Some('Z' | 'X'))
}

/// State letter of a process; `None` if there is none.
pub fn state_of(pid: i32) -> Option<char> {
    stat_field(pid, 3)?.chars().next()
}

/// Process group and session of a process; `None` if there is none.
pub fn group_and_session(pid: i32) -> Option<(i32, i32)> {
    Some((stat_field(pid, 5)?.parse().ok()?, stat_field(pid, 6)?.parse().ok()?))
}

/// Boot ticks at the start of a process.
pub fn start_ticks(pid: i32) -> Option<u64> {
    stat_field(pid, 22)?.parse().ok()
}

/// A field of `/proc/PID/stat`, counted from 1 as in proc(5), from the third on.
fn stat_field(pid: i32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field may hold spaces and parentheses: count from its last parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - 3).map(str::to_owned)
}

/// Lines of `/proc/PID/cgroup`.
pub fn cgroups_of(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default()
}

/// Highest resident size of a process so far, in bytes; 0 if it is gone.
pub fn vm_hwm_bytes(pid: i32) -> u64 {
    status_kib(pid, "VmHWM:") * 1024
}

/// Resident size of a process now, in bytes; 0 if it is gone.
pub fn vm_rss_bytes(pid: i32) -> u64 {
    status_kib(pid, "VmRSS:") * 1024
}

fn status_kib(pid: i32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Every live process whose arguments or environment hold the directory, but this one.
pub(super) fn of_world(dir: &Path) -> Vec<Proc> {
    let needle = dir.as_os_str().as_encoded_bytes();
    let holds = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|b| b.is_ascii_digit()) && *name != own)
        .filter_map(|name| {
            let pid = name.parse().ok()?;
            let cmdline = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let ours = holds(&cmdline)
                || fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| holds(&environ));
            (ours && alive(pid)).then_some(())?;
            let argv = cmdline.split(|&b| b == 0).map(|arg| String::from_utf8_lossy(arg).into());
            Some(Proc {
                pid,
                start_ticks: start_ticks(pid)?,
                argv: argv.collect(),
                state: state_of(pid)?,
            })
        })
        .collect()
}

pub(super) fn kill9(pid: i32) {
    signal(pid, Signal::KILL);
}

/// Sends a signal; a process that is gone already is fine.
pub(super) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, signal).ok();
    }
}
