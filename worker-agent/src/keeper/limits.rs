//! What holds a job to its memory, cpus and processes, and counts what it used: the controllers of
//! cgroups in their two versions, each for what it can do here; rlimits where none can be written.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use proto::v1::{LimitsBy, SlotCounts};

use super::cgroup;
use super::hierarchies::{Hierarchies, exists_is_fine, writable};

/// Length of the window in which a job gets its cpus' worth of time.
const PERIOD_US: u64 = 100_000;

/// What an attempt may use; 0: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Asked {
    pub mem_bytes: u64,
    pub cpus: u64,
    pub pids: u64,
}

/// What can be limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    Memory,
    Cpus,
    Pids,
}

impl Resource {
    pub(super) const ALL: [Resource; 3] = [Resource::Memory, Resource::Cpus, Resource::Pids];

    /// The kernel's name of its controller.
    pub(super) fn controller(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::Cpus => "cpu",
            Resource::Pids => "pids",
        }
    }

    fn of(self, asked: Asked) -> u64 {
        match self {
            Resource::Memory => asked.mem_bytes,
            Resource::Cpus => asked.cpus,
            Resource::Pids => asked.pids,
        }
    }
}

/// One version of cgroups: the files of a cgroup's directory, and what is written and read there.
pub(super) trait Version: Sync {
    /// As nodes tell it.
    fn name(&self) -> &'static str;
    /// Present and writable where this resource can be limited.
    fn limit_file(&self, resource: Resource) -> &'static str;
    /// Sets the limit of a cgroup; 0: none.
    fn limit(&self, dir: &Path, resource: Resource, amount: u64) -> io::Result<()>;
    /// Processes of this cgroup that the kernel ever killed for memory.
    fn oom_kills(&self, dir: &Path) -> u64;
    /// Times that the memory limit of this cgroup, or of one below it, was reached. A kill without
    /// that came from above: all of the machine, or a cgroup around docket's, had no memory left.
    fn limit_hits(&self, dir: &Path) -> Option<u64>;
    /// Most memory that this cgroup ever used at once, page cache included.
    fn peak_bytes(&self, dir: &Path) -> Option<u64>;
}

/// The unified hierarchy.
pub(super) struct V2;

/// One hierarchy for each controller.
pub(super) struct V1;

impl Version for V2 {
    fn name(&self) -> &'static str {
        "v2"
    }

    fn limit_file(&self, resource: Resource) -> &'static str {
        match resource {
            Resource::Memory => "memory.max",
            Resource::Cpus => "cpu.max",
            Resource::Pids => "pids.max",
        }
    }

    fn limit(&self, dir: &Path, resource: Resource, amount: u64) -> io::Result<()> {
        let or_max = |amount: u64| if amount == 0 { "max".into() } else { amount.to_string() };
        let text = match resource {
            Resource::Memory | Resource::Pids => or_max(amount),
            Resource::Cpus => format!("{} {PERIOD_US}", or_max(amount.saturating_mul(PERIOD_US))),
        };
        write(&dir.join(self.limit_file(resource)), &text)?;
        let swap = dir.join("memory.swap.max");
        if resource == Resource::Memory && swap.exists() {
            // Memory that was asked for is memory, not as much swap as there is.
            write(&swap, if amount == 0 { "max" } else { "0" })?;
        }
        Ok(())
    }

    fn oom_kills(&self, dir: &Path) -> u64 {
        field(&dir.join("memory.events"), "oom_kill").unwrap_or(0)
    }

    /// Not `max`: at the limit pages are given back first, and that may be enough.
    fn limit_hits(&self, dir: &Path) -> Option<u64> {
        field(&dir.join("memory.events"), "oom")
    }

    fn peak_bytes(&self, dir: &Path) -> Option<u64> {
        number(&dir.join("memory.peak"))
    }
}

impl Version for V1 {
    fn name(&self) -> &'static str {
        "v1"
    }

    fn limit_file(&self, resource: Resource) -> &'static str {
        match resource {
            Resource::Memory => "memory.limit_in_bytes",
            Resource::Cpus => "cpu.cfs_quota_us",
            Resource::Pids => "pids.max",
        }
    }

    fn limit(&self, dir: &Path, resource: Resource, amount: u64) -> io::Result<()> {
        let file = dir.join(self.limit_file(resource));
        match resource {
            Resource::Memory => {
                // Memory and swap together may never be less than memory: none on both first.
                let both = Some(dir.join("memory.memsw.limit_in_bytes")).filter(|f| f.exists());
                both.iter().chain([&file]).try_for_each(|file| write(file, "-1"))?;
                if amount > 0 {
                    write(&file, &amount.to_string())?;
                    both.map_or(Ok(()), |both| write(&both, &amount.to_string()))?;
                }
                Ok(())
            }
            Resource::Cpus if amount > 0 => {
                write(&dir.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                match write(&file, &amount.saturating_mul(PERIOD_US).to_string()) {
                    // More than a group above it has: that one is the limit.
                    Err(e) if e.raw_os_error() == Some(libc::EINVAL) => write(&file, "-1"),
                    written => written,
                }
            }
            Resource::Cpus => write(&file, "-1"),
            Resource::Pids => V2.limit(dir, resource, amount),
        }
    }

    fn oom_kills(&self, dir: &Path) -> u64 {
        field(&dir.join("memory.oom_control"), "oom_kill").unwrap_or(0)
    }

    /// Counts as well what giving pages back was enough for: v1 has nothing nearer.
    fn limit_hits(&self, dir: &Path) -> Option<u64> {
        number(&dir.join("memory.failcnt"))
    }

    fn peak_bytes(&self, dir: &Path) -> Option<u64> {
        number(&dir.join("memory.max_usage_in_bytes"))
    }
}

/// Where one resource of the slots is limited.
#[derive(Clone)]
struct Place {
    version: &'static dyn Version,
    /// Slots lie below it, or their twins of the same name.
    base: PathBuf,
}

/// Who limits what for the slots of one keeper.
#[derive(Clone, Default)]
pub(super) struct Controllers {
    places: [Option<Place>; 3],
}

impl Controllers {
    /// For slots below `base` of the v2 tree: its own controllers, else those of v1 in directories
    /// of the same name.
    pub(super) fn find(base: &Path, hierarchies: &Hierarchies) -> Controllers {
        let find =
            |resource| v2_place(base, resource).or_else(|| v1_place(base, hierarchies, resource));
        Controllers { places: Resource::ALL.map(find) }
    }

    fn place(&self, resource: Resource) -> Option<&Place> {
        self.places[resource as usize].as_ref()
    }

    /// Whether memory is limited here.
    pub(super) fn hold_memory(&self) -> bool {
        self.place(Resource::Memory).is_some()
    }

    /// Whether a slot's peak stays with it, so that it is of use only once.
    pub(super) fn peak_sticks(&self) -> bool {
        self.place(Resource::Memory).is_some_and(|place| place.version.name() == V2.name())
    }

    /// Sets the limits of a slot; gives what the child must still join by writing `0`.
    pub(super) fn limit(&self, slot: &Path, asked: Asked) -> io::Result<Vec<OwnedFd>> {
        let mut join = Vec::new();
        for resource in Resource::ALL {
            let Some(place) = self.place(resource) else { continue };
            let dir = place.dir(slot);
            if dir != slot {
                fs::create_dir(&dir).or_else(exists_is_fine)?;
                // Not `cgroup.procs`: one thread that moves itself stops nobody else for it.
                join.push(OpenOptions::new().write(true).open(dir.join("tasks"))?.into());
            }
            let within = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", dir.display()));
            place.version.limit(&dir, resource, resource.of(asked)).map_err(within)?;
        }
        Ok(join)
    }

    /// What the kernel counted of a slot so far, over all attempts that it had.
    pub(super) fn counts(&self, slot: &Path) -> SlotCounts {
        let cpu = slot.join("cpu.stat");
        let memory = self.place(Resource::Memory);
        SlotCounts {
            oom_kills: memory.map_or(0, |place| place.version.oom_kills(&place.dir(slot))),
            user_us: field(&cpu, "user_usec"),
            system_us: field(&cpu, "system_usec"),
            limit_hits: memory.and_then(|place| place.version.limit_hits(&place.dir(slot))),
        }
    }

    /// The most memory that the attempt of a slot used at once.
    pub(super) fn peak_bytes(&self, slot: &Path) -> Option<u64> {
        let memory = self.place(Resource::Memory)?;
        memory.version.peak_bytes(&memory.dir(slot))
    }

    /// Removes the twins of an empty slot.
    pub(super) fn release(&self, slot: &Path) {
        for dir in self.places.iter().flatten().map(|place| place.dir(slot)) {
            // A job of root may have made groups below its own.
            if dir != slot && fs::remove_dir(&dir).is_err() {
                cgroup::remove_children(&dir);
                let _ = fs::remove_dir(dir);
            }
        }
    }

    /// Removes the bases of the twins, with twins that an earlier keeper left.
    pub(super) fn remove(&self, base: &Path) {
        for place in self.places.iter().flatten().filter(|place| place.base != base) {
            for entry in fs::read_dir(&place.base).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(entry.path());
            }
            let _ = fs::remove_dir(&place.base);
        }
    }
}

impl Place {
    fn dir(&self, slot: &Path) -> PathBuf {
        self.base.join(slot.file_name().unwrap_or_default())
    }
}

/// Who limits what, as nodes tell it. Without a controller memory falls to rlimits, process by
/// process; cpus and processes are then counted, and limited by nobody.
pub(super) fn told(controllers: Option<&Controllers>) -> LimitsBy {
    let by = |resource, else_by: &str| {
        let place = controllers.and_then(|controllers| controllers.place(resource));
        place.map_or(else_by, |place| place.version.name()).to_owned()
    };
    LimitsBy {
        mem: by(Resource::Memory, "rlimits"),
        cpus: by(Resource::Cpus, "none"),
        pids: by(Resource::Pids, "none"),
    }
}

/// No job may take more than half of the machine's processes: then the node can still be helped.
pub(super) fn pids_of_one_job() -> u64 {
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    limits.iter().filter_map(|file| number(Path::new(file))).min().map_or(0, |most| most / 2)
}

fn v2_place(base: &Path, resource: Resource) -> Option<Place> {
    let there = fs::read_to_string(base.join("cgroup.controllers")).ok()?;
    let name = resource.controller();
    let has = there.split_ascii_whitespace().any(|word| word == name);
    let on = has && write(&base.join("cgroup.subtree_control"), &format!("+{name}")).is_ok();
    on.then(|| Place { version: &V2, base: base.to_owned() })
}

fn v1_place(base: &Path, hierarchies: &Hierarchies, resource: Resource) -> Option<Place> {
    let twin = hierarchies.v1_own(resource.controller())?.join(base.file_name()?);
    fs::create_dir(&twin).or_else(exists_is_fine).ok()?;
    if writable(&twin.join(V1.limit_file(resource))) {
        return Some(Place { version: &V1, base: twin });
    }
    let _ = fs::remove_dir(&twin);
    None
}

/// Into a file that is there: the kernel makes those of a cgroup, nobody else.
fn write(file: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number behind this word at the begin of a line.
fn field(file: &Path, word: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
