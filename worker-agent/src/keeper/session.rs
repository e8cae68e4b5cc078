//! Trees without cgroups: who belongs to an attempt is read off /proc, from parents, sessions and
//! the mark in the environment. One look at all processes serves every attempt of a turn. What
//! cannot be attributed is listed, never killed (design 6).

use std::collections::{BTreeMap, BTreeSet};

use super::identity::ProcessId;
use super::procfs::{self, Stat};

/// All processes at one moment.
pub(crate) struct Snapshot {
    processes: BTreeMap<u32, Stat>,
    children: BTreeMap<u32, Vec<u32>>,
}

/// Where to look for processes whose parent died: below these, for both are subreapers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reapers {
    pub keeper: u32,
    /// 0: there is none, or it died; then every process is looked at.
    pub guard: u32,
}

impl Reapers {
    /// Without a guard that is dead. Whoever takes orphans in its place, init as a rule, is the parent
    /// of half the machine: what is below it is nobody's leftover.
    pub(crate) fn that_live(self) -> Reapers {
        let own = std::process::id();
        let lives = self.guard == own || self.guard == std::os::unix::process::parent_id();
        Reapers { guard: if lives { self.guard } else { 0 }, ..self }
    }
}

/// What is known of one attempt's tree.
pub(crate) struct Tree<'a> {
    pub main: Option<ProcessId>,
    pub mark: &'a [u8],
    /// Sessions that members were seen in.
    pub sessions: &'a BTreeSet<u32>,
}

impl Snapshot {
    /// Looks at every process of this pid namespace: some 10 µs each.
    pub(crate) fn take() -> Snapshot {
        let mut processes = BTreeMap::new();
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for stat in procfs::all().into_iter().filter(|stat| !stat.is_zombie()) {
            children.entry(stat.parent).or_default().push(stat.pid);
            processes.insert(stat.pid, stat);
        }
        Snapshot { processes, children }
    }

    /// The living members of a tree, main process included, and the sessions they are in.
    pub(crate) fn members(
        &self,
        tree: &Tree<'_>,
        reapers: Reapers,
        mains: &BTreeMap<u32, u64>,
    ) -> (Vec<ProcessId>, BTreeSet<u32>) {
        let main = tree.main.filter(|main| {
            self.processes.get(&main.pid).is_some_and(|s| s.start_ticks == main.start_ticks)
        });
        let mut open: Vec<u32> = main.iter().map(|main| main.pid).collect();
        let own = main.map(|main| main.pid);
        open.extend(self.orphans(reapers, mains).filter(|pid| {
            self.processes.get(pid).is_some_and(|stat| match stat.parent {
                parent if reapers.guard != 0 || parent == reapers.keeper => is_of(stat, tree),
                _ => is_of_afar(stat, tree, own),
            })
        }));
        let mut found: BTreeMap<u32, Stat> = BTreeMap::new();
        while let Some(pid) = open.pop() {
            let Some(stat) = self.processes.get(&pid) else { continue };
            if found.insert(pid, *stat).is_none() {
                open.extend(self.children.get(&pid).into_iter().flatten());
            }
        }
        let sessions = found.values().map(|stat| stat.session).collect();
        let members = found
            .values()
            .map(|stat| ProcessId { pid: stat.pid, start_ticks: stat.start_ticks })
            .collect();
        (members, sessions)
    }

    /// These processes and all below them.
    pub(crate) fn below(&self, tops: &[ProcessId]) -> Vec<ProcessId> {
        let is_there = |top: &&ProcessId| {
            self.processes.get(&top.pid).is_some_and(|s| s.start_ticks == top.start_ticks)
        };
        let mut open: Vec<u32> = tops.iter().filter(is_there).map(|top| top.pid).collect();
        let mut found = BTreeMap::new();
        while let Some(pid) = open.pop() {
            let Some(stat) = self.processes.get(&pid) else { continue };
            let id = ProcessId { pid, start_ticks: stat.start_ticks };
            if found.insert(pid, id).is_none() {
                open.extend(self.children.get(&pid).into_iter().flatten());
            }
        }
        found.into_values().collect()
    }

    /// Processes that could be the top of a tree that lost its main process: children of a reaper
    /// that are no main process, or all when the line of reapers is broken.
    fn orphans<'a>(
        &'a self,
        reapers: Reapers,
        mains: &'a BTreeMap<u32, u64>,
    ) -> Box<dyn Iterator<Item = u32> + 'a> {
        let own = [reapers.keeper, reapers.guard];
        let free = move |pid: &u32| !mains.contains_key(pid) && !own.contains(pid);
        if reapers.guard == 0 {
            return Box::new(self.processes.keys().copied().filter(free));
        }
        let children = own.into_iter().filter_map(|pid| self.children.get(&pid)).flatten();
        Box::new(children.copied().filter(free))
    }
}

/// The mark decides; without one that can be read, the session it was last seen in. A session number
/// alone could be a reused one: it counts only below our reapers, where nobody else's processes are.
fn is_of(stat: &Stat, tree: &Tree<'_>) -> bool {
    match procfs::mark(stat.pid) {
        Some(mark) => mark == tree.mark,
        None => tree.sessions.contains(&stat.session),
    }
}

/// The same for a process that is below no reaper: it is anybody's. A session's number cannot be
/// another's only as long as its leader lives, here the main process.
fn is_of_afar(stat: &Stat, tree: &Tree<'_>, main: Option<u32>) -> bool {
    match procfs::mark(stat.pid) {
        Some(mark) => mark == tree.mark,
        None => main == Some(stat.session),
    }
}

/// Whether anything is left of a tree whose main process is reaped, without looking at every
/// process: what is left hangs below an orphan of one of the reapers. `None`: the kernel does not
/// list children, so only a snapshot can tell.
pub(crate) fn anything_left(
    tree: &Tree<'_>,
    reapers: Reapers,
    mains: &BTreeMap<u32, u64>,
) -> Option<bool> {
    Some(orphans_of(reapers, mains)?.iter().any(|stat| is_of(stat, tree)))
}

/// Orphans that belong to none of these trees: listed for the operator, never killed.
pub(crate) fn strangers(
    trees: &[Tree<'_>],
    reapers: Reapers,
    mains: &BTreeMap<u32, u64>,
) -> Vec<ProcessId> {
    orphans_of(reapers, mains)
        .into_iter()
        .flatten()
        .filter(|stat| !trees.iter().any(|tree| is_of(stat, tree)))
        .map(|stat| ProcessId { pid: stat.pid, start_ticks: stat.start_ticks })
        .collect()
}

/// Living children of the reapers that are no main processes.
fn orphans_of(reapers: Reapers, mains: &BTreeMap<u32, u64>) -> Option<Vec<Stat>> {
    if reapers.guard == 0 {
        return None;
    }
    let mut orphans = procfs::children(reapers.keeper)?;
    orphans.extend(procfs::children(reapers.guard)?);
    // If it lives now, it did when its children were read: its pid was nobody else's.
    if reapers.that_live().guard == 0 {
        return None;
    }
    orphans.retain(|pid| !mains.contains_key(pid) && *pid != reapers.keeper);
    Some(orphans.into_iter().filter_map(procfs::stat).filter(|stat| !stat.is_zombie()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn stat(pid: u32, parent: u32, session: u32) -> Stat {
        Stat { pid, state: b'S', parent, session, start_ticks: u64::from(pid), flags: 0 }
    }

    fn snapshot(stats: &[Stat]) -> Snapshot {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for stat in stats {
            children.entry(stat.parent).or_default().push(stat.pid);
        }
        Snapshot { processes: stats.iter().map(|s| (s.pid, *s)).collect(), children }
    }

    fn pids(members: &[ProcessId]) -> Vec<u32> {
        members.iter().map(|m| m.pid).collect()
    }

    // Pids beyond the kernel's maximum: none of them has an environment that could be read.
    const BASE: u32 = 5_000_000;
    const REAPERS: Reapers = Reapers { keeper: BASE + 2, guard: BASE + 1 };

    #[test]
    fn a_tree_is_the_main_process_its_children_and_orphans_of_its_sessions() {
        let b = BASE;
        let look = snapshot(&[
            stat(b + 1, 1, b + 1),
            stat(b + 2, b + 1, b + 2),
            stat(b + 10, b + 2, b + 10),
            stat(b + 11, b + 10, b + 10),
            stat(b + 12, b + 11, b + 12),
            stat(b + 20, b + 2, b + 10),
            stat(b + 21, b + 20, b + 21),
            stat(b + 30, b + 2, b + 30),
            stat(b + 40, 1, b + 10),
        ]);
        let mains = BTreeMap::from([(b + 10, 0), (b + 30, 0)]);
        let sessions = BTreeSet::from([b + 10]);
        let main = Some(ProcessId { pid: b + 10, start_ticks: u64::from(b + 10) });
        let tree = Tree { main, mark: b"m", sessions: &sessions };
        let (members, sessions) = look.members(&tree, REAPERS, &mains);
        // Not 40: it is below neither reaper, so its session number proves nothing.
        assert_eq!(pids(&members), [b + 10, b + 11, b + 12, b + 20, b + 21]);
        assert_eq!(sessions, BTreeSet::from([b + 10, b + 12, b + 21]));
    }

    #[test]
    fn without_a_guard_a_session_proves_something_only_while_the_main_process_leads_it() {
        let b = BASE;
        let look = snapshot(&[
            stat(b + 2, 1, b + 2),
            stat(b + 10, 1, b + 10),
            stat(b + 20, 1, b + 10),
            stat(b + 30, 1, b + 11),
            stat(b + 40, b + 2, b + 11),
        ]);
        let sessions = BTreeSet::from([b + 10, b + 11]);
        let alone = Reapers { keeper: b + 2, guard: 0 };
        let main = Some(ProcessId { pid: b + 10, start_ticks: u64::from(b + 10) });
        let mut tree = Tree { main, mark: b"m", sessions: &sessions };
        let mains = BTreeMap::from([(b + 10, 0)]);
        let (members, _) = look.members(&tree, alone, &mains);
        assert_eq!(pids(&members), [b + 10, b + 20, b + 40], "40 is the keeper's own orphan");
        // Whoever has its number now, and the session, is somebody else.
        tree.main = None;
        let (members, _) = look.members(&tree, alone, &BTreeMap::new());
        assert_eq!(pids(&members), [b + 40]);
    }

    #[test]
    fn a_guard_that_is_not_the_parent_is_dead() {
        let own = std::process::id();
        let guard = |guard| Reapers { keeper: own, guard }.that_live().guard;
        let parent = std::os::unix::process::parent_id();
        assert_eq!((guard(parent), guard(own), guard(0)), (parent, own, 0));
        assert_eq!(guard(BASE), 0);
    }

    #[test]
    fn a_main_process_with_another_start_time_is_somebody_else() {
        let look = snapshot(&[stat(BASE + 10, 1, BASE + 10)]);
        let main = Some(ProcessId { pid: BASE + 10, start_ticks: 1 });
        let tree = Tree { main, mark: b"m", sessions: &BTreeSet::new() };
        assert!(look.members(&tree, REAPERS, &BTreeMap::new()).0.is_empty());
    }
}
