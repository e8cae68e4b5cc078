//! Trees that no journal of this directory knows any more: its files were removed by hand. For the
//! controller their jobs are over, so they are killed, and proven empty before the first manifest
//! (design 1, P7). Only what surely belongs to this very directory is touched: what hangs below its
//! guard, and cgroups that are named after its device and inode, which no copy of it shares.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::cgroup;
use super::identity::{self, ProcessId};
use super::procfs;
use super::run::Keeper;
use super::session::{self, Reapers, Snapshot};
use super::task::Task;

/// What was killed is given this long to go, and looked at with this pause.
const EMPTY_WITHIN_MS: u64 = 5_000;
const EMPTY_PAUSE: Duration = Duration::from_millis(2);

/// Cgroups are looked for this deep: systemd nests a handful.
const DEPTH_MAX: u32 = 12;

impl Keeper {
    /// Ends what earlier journals of this directory left, after the living attempts were taken up.
    pub(super) fn clear_leftovers(&mut self) -> io::Result<()> {
        self.clear_below_guard()?;
        let Some(slots) = &self.slots else { return Ok(()) };
        for base in slots.elders() {
            let name = base.display().to_string();
            self.log.say(format!("{name} is of an older journal of this directory: killed"));
            empty_base(&base)?;
        }
        Ok(())
    }

    /// A journal that is new knows nobody, so all that hangs below the guard is over. Otherwise only
    /// what the guard's board knows as an attempt: others may be of a job that lives.
    fn clear_below_guard(&mut self) -> io::Result<()> {
        if self.reapers.guard == 0 {
            return Ok(());
        }
        let until_ms = identity::boottime_ms() + EMPTY_WITHIN_MS;
        let mut said = false;
        loop {
            let tops = self.leftovers_below_guard();
            let Some(first) = tops.first().copied() else { return Ok(()) };
            let killed = kill_trees(&tops);
            if !std::mem::replace(&mut said, true) {
                self.log.say(format!(
                    "killed {killed} processes of attempts that the journal does not know"
                ));
            }
            // One that cannot die must not keep a keeper from the jobs that its journal knows.
            if !self.journal.is_new() {
                return Ok(());
            }
            if identity::boottime_ms() >= until_ms {
                return Err(still_alive(first.pid));
            }
            std::thread::sleep(EMPTY_PAUSE);
        }
    }

    /// At the end of a keeper that nobody can reach any more: what its jobs left and nobody can
    /// attribute would live on for ever.
    pub(super) fn clear_strangers(&mut self) {
        let until_ms = identity::boottime_ms() + EMPTY_WITHIN_MS;
        while kill_below(self.reapers) > 0 && identity::boottime_ms() < until_ms {
            std::thread::sleep(EMPTY_PAUSE);
        }
    }

    fn leftovers_below_guard(&self) -> Vec<ProcessId> {
        let trees: Vec<_> = self.tasks.values().map(Task::tree).collect();
        let mut tops = session::strangers(&trees, self.reapers, &self.mains);
        let known = |pid| procfs::mark(pid).is_some_and(|mark| self.board.knows(&mark));
        tops.retain(|top| self.tasks.is_empty() || known(top.pid));
        tops
    }
}

/// SIGKILL to everything below a guard whose directory is gone: nobody will ever hear of it. Gives
/// how many lived.
pub(super) fn kill_below(reapers: Reapers) -> usize {
    kill_trees(&session::strangers(&[], reapers, &Default::default()))
}

/// How the names of a data directory's bases end: by its device and inode, which no copy of it has,
/// and which stay its own as long as anybody holds it open.
pub(super) fn ending((device, inode): (u64, u64)) -> String {
    format!("-{device:x}.{inode:x}")
}

/// Removes the bases of a directory that was deleted, with what still lives in them.
pub(super) fn remove_bases(directory: (u64, u64)) {
    for base in cgroup::bases(&ending(directory), "") {
        // Gone meanwhile, or not removable: then an empty cgroup stays.
        let _ = empty_base(&base);
    }
}

/// SIGKILL to these processes and all below them; gives their number.
fn kill_trees(tops: &[ProcessId]) -> usize {
    let members = Snapshot::take().below(tops);
    for member in &members {
        if let Ok(Some(fd)) = member.open() {
            // Not allowed to: it runs as somebody else, and the next look finds it alive.
            let _ = identity::send(fd.as_fd(), Signal::KILL);
        }
    }
    members.len()
}

/// Kills all in a base of slots, waits until it is empty and removes it.
fn empty_base(base: &Path) -> io::Result<()> {
    let until_ms = identity::boottime_ms() + EMPTY_WITHIN_MS;
    loop {
        let doing = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", base.display()));
        fs::write(base.join("cgroup.kill"), "1").map_err(doing)?;
        let events = fs::read_to_string(base.join("cgroup.events")).map_err(doing)?;
        if !events.lines().any(|line| line == "populated 1") {
            break;
        }
        if identity::boottime_ms() >= until_ms {
            return Err(io::Error::other(format!("{} cannot be emptied", base.display())));
        }
        std::thread::sleep(EMPTY_PAUSE);
    }
    for dir in cgroup::twins(base) {
        cgroup::remove_children(&dir);
        let _ = fs::remove_dir(dir);
    }
    Ok(())
}

fn still_alive(pid: u32) -> io::Error {
    io::Error::other(format!("a process of an older journal cannot be killed (pid {pid})"))
}

/// Cgroups below `root` whose names end so, but not in `own`.
pub(super) fn named(root: &Path, ending: &str, own: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(root, DEPTH_MAX, &mut |path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("docket-") && name.ends_with(ending) && name != own {
            found.push(path.to_owned());
        }
    });
    found
}

fn walk(dir: &Path, depth: u32, see: &mut impl FnMut(&Path)) {
    // Not readable, or gone meanwhile: nothing of ours is below.
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            see(&entry.path());
            walk(&entry.path(), depth - 1, see);
        }
    }
}
