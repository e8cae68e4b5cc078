//! Slots: cgroups of the v2 tree that attempts are born in, one at a time, kept for reuse. Without
//! controllers they still hold a tree together (`cgroup.kill`, `cgroup.events`); what limits it is in
//! `limits.rs`. No slots: see `session.rs`.

use super::{clone, leftover};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use proto::v1::SlotCounts;

use super::hierarchies::{Hierarchies, exists_is_fine, writable};
use super::limits::{Asked, Controllers, Resource};

/// Empty slots kept for the next attempts; more are removed. Making one costs about 0.1 ms.
const FREE_MAX: usize = 64;

/// The slots of one keeper.
pub(crate) struct Slots {
    base: PathBuf,
    controllers: Controllers,
    /// Children live when they are born in a slot.
    birth: bool,
    free: BTreeSet<u32>,
    next: u32,
}

/// One cgroup. Shared with the spawner while a start is under way.
pub(crate) struct Slot {
    path: PathBuf,
    dir: OwnedFd,
    events: File,
    /// Of its keeper's base; nobody's for a slot of an earlier keeper elsewhere.
    controllers: Controllers,
    /// Children may be born in it; else they join by themselves.
    birth: bool,
    /// `cgroup.kill` was written, or may have been by an earlier keeper. Since Linux 6.10 or so a
    /// child dies at birth if the kill counts of its parent's cgroup and of its own differ, so
    /// nothing may be born here any more.
    killed: AtomicBool,
    /// It was frozen once: not given to another attempt, which would be born frozen if the thaw
    /// had failed.
    frozen: AtomicBool,
}

impl Slots {
    /// Finds and makes the base directory, named after the journal. `None`: no v2 tree that this
    /// process may write, or one without `cgroup.kill` (before 5.14).
    pub(crate) fn open(name: &str) -> Option<Slots> {
        let mut slots = Slots::without_births(name)?;
        slots.birth = slots.children_live();
        Some(slots)
    }

    /// The same, but that nobody is tried to be born in one.
    pub(super) fn without_births(name: &str) -> Option<Slots> {
        let hierarchies = Hierarchies::here();
        let base = hierarchies.v2_own()?.join(name);
        fs::create_dir(&base).or_else(exists_is_fine).ok()?;
        if !base.join("cgroup.kill").exists() || !writable(&base.join("cgroup.procs")) {
            let _ = fs::remove_dir(&base);
            return None;
        }
        let controllers = Controllers::find(&base, &hierarchies);
        let next = numbers_in(&base).into_iter().max().map_or(0, |number| number + 1);
        Some(Slots { base, controllers, birth: false, free: BTreeSet::new(), next })
    }

    /// Whether a child that is born in a fresh slot lives: not so if the keeper's own cgroup was
    /// killed once, see [`Slot::killed`]. Found out with a child that ends at once.
    fn children_live(&mut self) -> bool {
        let Ok(slot) = self.take() else { return false };
        let live = clone::lives_when_born_in(slot.dir.as_fd());
        self.release(&slot);
        live
    }

    /// Who limits what in these slots.
    pub(crate) fn controllers(&self) -> &Controllers {
        &self.controllers
    }

    /// The slots that an earlier keeper left.
    pub(crate) fn on_disk(&self) -> Vec<PathBuf> {
        numbers_in(&self.base).iter().map(|n| self.base.join(format!("s{n}"))).collect()
    }

    /// Bases of other journals of the same data directory, wherever their keepers made them.
    pub(crate) fn elders(&self) -> Vec<PathBuf> {
        let own = self.base.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((_, directory)) = own.rsplit_once('-') else { return Vec::new() };
        bases(&format!("-{directory}"), own)
    }

    /// An empty slot for a new attempt.
    pub(crate) fn take(&mut self) -> io::Result<Arc<Slot>> {
        while let Some(number) = self.free.pop_first() {
            let slot = self.make(number)?;
            if !slot.populated()? {
                return Ok(slot);
            }
            // Somebody moved into it by hand: not ours to kill.
        }
        let number = self.next;
        self.next += 1;
        self.make(number)
    }

    fn make(&self, number: u32) -> io::Result<Arc<Slot>> {
        let path = self.base.join(format!("s{number}"));
        fs::create_dir(&path).or_else(exists_is_fine)?;
        self.slot_at(&path, false)
    }

    /// The slot of an attempt that lives on: perhaps below the base of a keeper that was started
    /// from another cgroup. An error: it is gone, so nothing lives in it. Nobody knows what that
    /// keeper or the guard did to it, so it is never given to another attempt.
    pub(crate) fn open_slot(&self, path: &Path) -> io::Result<Arc<Slot>> {
        self.slot_at(path, true)
    }

    fn slot_at(&self, path: &Path, killed: bool) -> io::Result<Arc<Slot>> {
        let own = path.parent() == Some(&self.base);
        Ok(Arc::new(Slot {
            dir: File::open(path)?.into(),
            events: File::open(path.join("cgroup.events"))?,
            controllers: if own { self.controllers.clone() } else { Controllers::default() },
            birth: self.birth,
            killed: AtomicBool::new(killed),
            frozen: AtomicBool::new(false),
            path: path.to_owned(),
        }))
    }

    /// Gives an empty slot back.
    pub(crate) fn release(&mut self, slot: &Slot) {
        slot.controllers.release(&slot.path);
        let plain = remove_children(&slot.path) && !slot.controllers.peak_sticks();
        let reusable = plain && !slot.killed.load(Relaxed) && !slot.frozen.load(Relaxed);
        match self.number_of(slot) {
            Some(number) if reusable && self.free.len() < FREE_MAX => {
                self.free.insert(number);
            }
            // Not removable yet: then it stays and the next keeper finds it.
            Some(_) => drop(fs::remove_dir(&slot.path)),
            None => {
                let _ = fs::remove_dir(&slot.path);
                // The last one takes its base along.
                let _ = slot.path.parent().map(fs::remove_dir);
            }
        }
    }

    /// Of a slot below our own base.
    fn number_of(&self, slot: &Slot) -> Option<u32> {
        let name = slot.path.strip_prefix(&self.base).ok()?;
        name.to_str()?.strip_prefix('s')?.parse().ok()
    }

    /// Removes every slot, at the keeper's orderly end.
    pub(crate) fn remove(self) {
        for path in self.on_disk() {
            let _ = fs::remove_dir(path);
        }
        let _ = fs::remove_dir(&self.base);
        self.controllers.remove(&self.base);
    }
}

impl Slot {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// For a child that is to be born in it; `None`: it has to join by [`Slot::procs_file`].
    pub(crate) fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        self.birth.then(|| self.dir.as_fd())
    }

    /// Whether a process lives in it or below it.
    pub(crate) fn populated(&self) -> io::Result<bool> {
        self.says(b"populated 1")
    }

    /// Whether `cgroup.events` has this line now.
    fn says(&self, wanted: &[u8]) -> io::Result<bool> {
        let mut text = [0; 256];
        let read = self.events.read_at(&mut text, 0)?;
        Ok(text[..read].split(|b| *b == b'\n').any(|line| line == wanted))
    }

    /// The processes in it (not below it).
    pub(crate) fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        // 0 stands for a process of another pid namespace.
        text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()
    }

    /// SIGKILL to everything in it and below it, forks included.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.killed.store(true, Relaxed);
        OpenOptions::new().write(true).open(self.path.join("cgroup.kill"))?.write_all(b"1")
    }

    /// Asks the kernel to stop everything in it and below it, forks included; see
    /// [`Slot::is_frozen`].
    pub(crate) fn freeze(&self) -> io::Result<()> {
        self.frozen.store(true, Relaxed);
        self.write_freeze(b"1")
    }

    /// Lets everything go on. One that was not frozen goes on as it was.
    pub(crate) fn thaw(&self) {
        // No such file, or gone: then nothing is frozen in it.
        let _ = self.write_freeze(b"0");
    }

    fn write_freeze(&self, value: &[u8]) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.freeze"))?.write_all(value)
    }

    /// Whether everything in it and below it is stopped.
    pub(crate) fn is_frozen(&self) -> bool {
        self.says(b"frozen 1").unwrap_or(false)
    }

    /// For a child that joins by writing `0`.
    pub(crate) fn procs_file(&self) -> io::Result<OwnedFd> {
        Ok(OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?.into())
    }

    /// Sets the limits; gives what the child must still join by writing `0`.
    pub(crate) fn limit(&self, asked: Asked) -> io::Result<Vec<OwnedFd>> {
        self.controllers.limit(&self.path, asked)
    }

    /// Whether its cgroup holds it to its memory.
    pub(crate) fn holds_memory(&self) -> bool {
        self.controllers.hold_memory()
    }

    /// What the kernel counted of it so far, over all attempts that it had.
    pub(crate) fn counts(&self) -> SlotCounts {
        self.controllers.counts(&self.path)
    }

    /// The most memory that its attempt used at once, where that is counted.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        self.controllers.peak_bytes(&self.path)
    }
}

/// Bases of slots whose names end so, but for `own`.
pub(super) fn bases(ending: &str, own: &str) -> Vec<PathBuf> {
    let root = Hierarchies::here().v2_root();
    root.map_or_else(Vec::new, |root| leftover::named(&root, ending, own))
}

/// This base and those of the same name in the v1 hierarchies.
pub(super) fn twins(base: &Path) -> Vec<PathBuf> {
    let name = base.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let hierarchies = Hierarchies::here();
    let roots = Resource::ALL.iter().filter_map(|it| hierarchies.v1_root(it.controller()));
    let others = roots.flat_map(|root| leftover::named(&root, name, ""));
    std::iter::once(base.to_owned()).chain(others).collect()
}

fn numbers_in(base: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.strip_prefix('s')?.parse().ok())
        .collect()
}

/// Removes cgroups that a job made below its own; `true` if there was none.
pub(super) fn remove_children(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    let mut none = true;
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        none = false;
        remove_children(&entry.path());
        let _ = fs::remove_dir(entry.path());
    }
    none
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    /// Needs the right to make cgroups; elsewhere there are no slots, so nothing to get wrong.
    #[test]
    fn nothing_is_born_in_a_slot_that_was_killed() {
        let name = format!("keeper-unit-{}", std::process::id());
        let Some(mut slots) = Slots::open(&name) else {
            return eprintln!("SKIPPED: no cgroup v2 that this user may write");
        };
        assert!(slots.birth, "children live in fresh slots");
        let slot = slots.take().unwrap();
        assert!(clone::lives_when_born_in(slot.birthplace().unwrap()));
        slot.kill().unwrap();
        // What the kernel does to the next child differs between versions; that a killed slot is
        // never used again does not.
        slots.release(&slot);
        assert!(!slot.path().exists());
        let next = slots.take().unwrap();
        assert_ne!(next.path(), slot.path());
        assert!(clone::lives_when_born_in(next.birthplace().unwrap()));
        slots.release(&next);
        slots.remove();
    }

    #[test]
    fn nothing_is_born_in_a_slot_that_an_earlier_keeper_left() {
        let name = format!("keeper-unit-left-{}", std::process::id());
        let Some(mut slots) = Slots::open(&name) else {
            return eprintln!("SKIPPED: no cgroup v2 that this user may write");
        };
        // Killed, and its keeper died before it could remove it.
        let slot = slots.take().unwrap();
        slot.kill().unwrap();
        let mut next_keeper = Slots::open(&name).unwrap();
        assert!(next_keeper.on_disk().contains(&slot.path().to_owned()));
        let left = next_keeper.open_slot(slot.path()).unwrap();
        next_keeper.release(&left);
        assert!(!slot.path().exists(), "it is removed, not given to the next attempt");
        let fresh = next_keeper.take().unwrap();
        assert!(clone::lives_when_born_in(fresh.birthplace().unwrap()));
        next_keeper.release(&fresh);
        next_keeper.remove();
    }
}
