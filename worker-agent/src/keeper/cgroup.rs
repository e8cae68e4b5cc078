//! Slots: cgroups of the v2 tree that attempts are born in, one at a time, kept for reuse. Without
//! controllers they still hold a tree together (`cgroup.kill`, `cgroup.events`); where the memory
//! controller is there too, in v2 or v1, they carry the limit. No slots: see `session.rs`.

use super::{clone, leftover};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Empty slots kept for the next attempts; more are removed. Making one costs about 0.1 ms.
const FREE_MAX: usize = 64;

/// What enforces memory limits here.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Memory {
    V2,
    /// A directory of ours in the v1 memory hierarchy.
    V1(PathBuf),
    None,
}

/// The slots of one keeper.
pub(crate) struct Slots {
    base: PathBuf,
    memory: Memory,
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
    memory: Memory,
    /// Children may be born in it; else they join by themselves.
    birth: bool,
    /// `cgroup.kill` was written, or may have been by an earlier keeper. Since Linux 6.10 or so a
    /// child dies at birth if the kill counts of its parent's cgroup and of its own differ, so
    /// nothing may be born here any more.
    killed: AtomicBool,
    /// It was frozen once: not given to another attempt, which would be born frozen if the thaw
    /// had failed.
    frozen: AtomicBool,
    /// OOM kills that the cgroup had counted before this attempt.
    oom_before: AtomicU64,
}

impl Slots {
    /// Finds and makes the base directory, named after the journal. `None`: no v2 tree that this
    /// process may write, or one without `cgroup.kill` (before 5.14).
    pub(crate) fn open(name: &str) -> Option<Slots> {
        let own = own_cgroup("0", "")?;
        let base = mount_point("cgroup2", None)?.join(own).join(name);
        fs::create_dir(&base).or_else(exists_is_fine).ok()?;
        if !base.join("cgroup.kill").exists() || !writable(&base.join("cgroup.procs")) {
            let _ = fs::remove_dir(&base);
            return None;
        }
        let memory = find_memory(&base, name);
        let next = numbers_in(&base).into_iter().max().map_or(0, |number| number + 1);
        let mut slots = Slots { base, memory, birth: false, free: BTreeSet::new(), next };
        slots.birth = slots.children_live();
        Some(slots)
    }

    /// Whether a child that is born in a fresh slot lives: not so if the keeper's own cgroup was
    /// killed once, see [`Slot::killed`]. Found out with a child that ends at once.
    fn children_live(&mut self) -> bool {
        let Ok(slot) = self.take() else { return false };
        let live = clone::lives_when_born_in(slot.dir.as_fd());
        self.release(&slot);
        live
    }

    /// Who enforces memory limits: `v2`, `v1` or `none`.
    pub(crate) fn limits(&self) -> &'static str {
        match self.memory {
            Memory::V2 => "v2",
            Memory::V1(_) => "v1",
            Memory::None => "none",
        }
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
        let slot = self.slot_at(&path, false)?;
        slot.oom_before.store(slot.oom_kills_ever(), Relaxed);
        Ok(slot)
    }

    /// The slot of an attempt that lives on: perhaps below the base of a keeper that was started
    /// from another cgroup. An error: it is gone, so nothing lives in it. Nobody knows what that
    /// keeper or the guard did to it, so it is never given to another attempt.
    pub(crate) fn open_slot(&self, path: &Path) -> io::Result<Arc<Slot>> {
        self.slot_at(path, true)
    }

    fn slot_at(&self, path: &Path, killed: bool) -> io::Result<Arc<Slot>> {
        Ok(Arc::new(Slot {
            dir: File::open(path)?.into(),
            events: File::open(path.join("cgroup.events"))?,
            memory: self.memory.clone(),
            birth: self.birth,
            killed: AtomicBool::new(killed),
            frozen: AtomicBool::new(false),
            oom_before: AtomicU64::new(0),
            path: path.to_owned(),
        }))
    }

    /// Gives an empty slot back.
    pub(crate) fn release(&mut self, slot: &Slot) {
        if let Memory::V1(base) = &slot.memory {
            let _ = fs::remove_dir(base.join(slot.name()));
        }
        let plain = remove_children(&slot.path);
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
        if let Memory::V1(base) = &self.memory {
            for number in numbers_in(base) {
                let _ = fs::remove_dir(base.join(format!("s{number}")));
            }
            let _ = fs::remove_dir(base);
        }
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

    /// Whether it was asked to freeze, perhaps by an earlier keeper.
    pub(crate) fn is_to_freeze(&self) -> bool {
        fs::read(self.path.join("cgroup.freeze")).is_ok_and(|text| text.starts_with(b"1"))
    }

    /// Whether everything in it and below it is stopped.
    pub(crate) fn is_frozen(&self) -> bool {
        self.says(b"frozen 1").unwrap_or(false)
    }

    /// For a child that joins by writing `0`.
    pub(crate) fn procs_file(&self) -> io::Result<OwnedFd> {
        Ok(OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?.into())
    }

    /// Sets the limit (0: none); gives what the child must still join by writing `0`.
    pub(crate) fn limit_memory(&self, bytes: u64) -> io::Result<Vec<OwnedFd>> {
        match &self.memory {
            Memory::V2 => {
                let limit = if bytes == 0 { "max".into() } else { bytes.to_string() };
                fs::write(self.path.join("memory.max"), limit)?;
                Ok(Vec::new())
            }
            Memory::V1(base) if bytes > 0 => {
                let dir = base.join(self.name());
                fs::create_dir(&dir).or_else(exists_is_fine)?;
                self.oom_before.store(self.oom_kills_ever(), Relaxed);
                fs::write(dir.join("memory.limit_in_bytes"), bytes.to_string())?;
                let procs = OpenOptions::new().write(true).open(dir.join("cgroup.procs"))?;
                Ok(vec![procs.into()])
            }
            Memory::V1(_) | Memory::None => Ok(Vec::new()),
        }
    }

    /// Whether the kernel killed a process of this attempt for its memory limit.
    pub(crate) fn out_of_memory(&self) -> bool {
        self.oom_kills_ever() > self.oom_before.load(Relaxed)
    }

    fn oom_kills_ever(&self) -> u64 {
        let file = match &self.memory {
            Memory::V2 => self.path.join("memory.events"),
            Memory::V1(base) => base.join(self.name()).join("memory.oom_control"),
            Memory::None => return 0,
        };
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    fn name(&self) -> &std::ffi::OsStr {
        self.path.file_name().unwrap_or_default()
    }
}

/// Bases of slots whose names end so, but for `own`.
pub(super) fn bases(ending: &str, own: &str) -> Vec<PathBuf> {
    let root = mount_point("cgroup2", None);
    root.map_or_else(Vec::new, |root| leftover::named(&root, ending, own))
}

/// This base and those of the same name in the v1 memory hierarchy.
pub(super) fn twins(base: &Path) -> Vec<PathBuf> {
    let name = base.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let memory = mount_point("cgroup", Some("memory"));
    let others = memory.map_or_else(Vec::new, |root| leftover::named(&root, name, ""));
    std::iter::once(base.to_owned()).chain(others).collect()
}

/// The memory controller under `base`, else the one of v1, else none.
fn find_memory(base: &Path, name: &str) -> Memory {
    let has = |file| {
        let text = fs::read_to_string(base.join(file)).unwrap_or_default();
        text.split_ascii_whitespace().any(|word| word == "memory")
    };
    if has("cgroup.controllers")
        && fs::write(base.join("cgroup.subtree_control"), "+memory").is_ok()
        && has("cgroup.subtree_control")
    {
        return Memory::V2;
    }
    v1_memory(name).map_or(Memory::None, Memory::V1)
}

fn v1_memory(name: &str) -> Option<PathBuf> {
    let own = own_cgroup("", "memory")?;
    let base = mount_point("cgroup", Some("memory"))?.join(own).join(name);
    fs::create_dir(&base).or_else(exists_is_fine).ok()?;
    if writable(&base.join("memory.limit_in_bytes")) {
        return Some(base);
    }
    let _ = fs::remove_dir(&base);
    None
}

/// This process's cgroup in the hierarchy of this number or controller, relative to its mount.
fn own_cgroup(hierarchy: &str, controller: &str) -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    parse_own_cgroup(&text, hierarchy, controller)
}

fn parse_own_cgroup(text: &str, hierarchy: &str, controller: &str) -> Option<PathBuf> {
    let line = text.lines().find_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let wanted = number == hierarchy
            || !controller.is_empty() && controllers.split(',').any(|c| c == controller);
        wanted.then_some(path)
    })?;
    // Outside of what is mounted here (a cgroup namespace): not reachable.
    (!line.starts_with("/..")).then(|| PathBuf::from(line.trim_start_matches('/')))
}

/// Where a file system of this type (and with this super option) is mounted.
fn mount_point(kind: &str, option: Option<&str>) -> Option<PathBuf> {
    parse_mount_point(&fs::read_to_string("/proc/self/mountinfo").ok()?, kind, option)
}

fn parse_mount_point(mountinfo: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let is_kind = right.next() == Some(kind);
        let options = right.nth(1).unwrap_or_default();
        let fits = option.is_none_or(|wanted| options.split(',').any(|o| o == wanted));
        // Field 4 is the root within the file system: only a whole one fits /proc/self/cgroup.
        let mut left = left.split(' ').skip(3);
        let whole = left.next() == Some("/");
        (is_kind && fits && whole).then(|| PathBuf::from(left.next().unwrap_or_default()))
    })
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

fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

fn exists_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
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

    #[test]
    fn the_own_cgroup_is_read_by_number_or_controller() {
        let text = "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/user.slice\n";
        assert_eq!(parse_own_cgroup(text, "0", ""), Some("user.slice".into()));
        assert_eq!(parse_own_cgroup(text, "", "memory"), Some("a/b".into()));
        assert_eq!(parse_own_cgroup(text, "", "cpuacct"), Some("c".into()));
        assert_eq!(parse_own_cgroup("0::/../x\n", "0", ""), None);
        assert_eq!(parse_own_cgroup("1:cpu:/\n", "0", ""), None);
    }

    #[test]
    fn the_mount_point_is_the_one_of_the_whole_tree() {
        let text = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n\
                    31 24 0:27 /x /bound rw shared:1 - cgroup none rw,memory\n\
                    32 24 0:27 / /sys/fs/cgroup/memory rw shared:1 - cgroup none rw,memory\n";
        assert_eq!(parse_mount_point(text, "cgroup2", None), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            parse_mount_point(text, "cgroup", Some("memory")),
            Some("/sys/fs/cgroup/memory".into())
        );
        assert_eq!(parse_mount_point(text, "cgroup", Some("cpu")), None);
    }
}
