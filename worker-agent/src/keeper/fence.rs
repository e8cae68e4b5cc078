//! Fences in the guard: a leased tree does not outlive its keeper, nor by much its fence when the
//! keeper stands still (design 3, "Fences and retries"). The keeper's own half is in `lease.rs`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::process::Signal;

use super::board::Fence;
use super::identity::{self, ProcessId};
use super::procfs;
use super::session::{Reapers, Snapshot, Tree};

/// A living keeper ends a tree at its fence by itself and tells why; the guard steps in this much
/// later. Within the 2 s that the leader waits longer than the lease.
pub(crate) const GUARD_AFTER_MS: u64 = 1_000;

/// SIGKILL to everything of these trees; gives the processes that lived. `keeper` 0: it is dead.
pub(crate) fn kill(fences: &[Fence], keeper: u32) -> Vec<ProcessId> {
    let guard = std::process::id();
    let reapers = Reapers { keeper: if keeper == 0 { guard } else { keeper }, guard };
    let mut look = None;
    let mut lived = Vec::new();
    for fence in fences {
        match &fence.slot {
            Some(slot) => lived.extend(kill_slot(slot)),
            None => {
                let look = look.get_or_insert_with(Snapshot::take);
                lived.extend(kill_members(look, fence, reapers));
            }
        }
    }
    lived
}

fn kill_slot(slot: &Path) -> Vec<ProcessId> {
    let text = fs::read_to_string(slot.join("cgroup.procs")).unwrap_or_default();
    let living = text.lines().filter_map(|line| procfs::stat(line.parse().ok()?));
    let living = living.filter(|stat| !stat.is_zombie());
    let living = living.map(|s| ProcessId { pid: s.pid, start_ticks: s.start_ticks }).collect();
    // Gone: then nothing lives in it.
    if let Ok(mut file) = OpenOptions::new().write(true).open(slot.join("cgroup.kill")) {
        let _ = file.write_all(b"1");
    }
    living
}

fn kill_members(look: &Snapshot, fence: &Fence, reapers: Reapers) -> Vec<ProcessId> {
    let sessions = fence.sessions.iter().copied().collect();
    let tree = Tree { main: fence.main, mark: &fence.mark, sessions: &sessions };
    let (members, _) = look.members(&tree, reapers, &Default::default());
    for member in &members {
        if let Ok(Some(fd)) = member.open() {
            // Not allowed to: it runs as somebody else; the next keeper says so.
            let _ = identity::send(fd.as_fd(), Signal::KILL);
        }
    }
    members
}
