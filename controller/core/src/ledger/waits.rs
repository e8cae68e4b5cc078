//! Who waits for what, found by what is waited for. Derived from the job table; `check` compares it with
//! one that is built anew.

use super::array::Array;
use super::depend::{Progress, Stage, Verdict, Waits};
use super::ranges::Ranges;
use super::table::{Entry, Slot, Table};
use super::targets::ranges;
use proto::JobId;
use proto::v1::{Dependency, DependencyKind};
use std::collections::{BTreeMap, BTreeSet};

/// A job or array that waits, and the number of its dependency.
pub(super) type Waiter = (JobId, u32);

/// Tasks of an array that are waited for together. Before them the stretch of a power of two of numbers
/// that holds them all, as its size and its place: what a number is in is found by 33 look-ups.
type PartKey = (JobId, u32, u32, Ranges);

/// Who waits for some tasks, and how far those are.
#[derive(Clone, PartialEq, Debug, Default)]
struct Part {
    progress: Progress,
    waiters: BTreeSet<(DependencyKind, Waiter)>,
}

/// All that waits. A dependency of an array stands here once, whatever the number of its tasks.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Dependants {
    whole: BTreeSet<(JobId, DependencyKind, Waiter)>,
    parts: BTreeMap<PartKey, Part>,
    begins: BTreeSet<(u64, JobId)>,
}

const LAST: Waiter = (JobId(u64::MAX), u32::MAX);

/// Kinds that are decided for all tasks of the job that waits alike.
const ALIKE: [DependencyKind; 4] = [
    DependencyKind::AfterOk,
    DependencyKind::AfterAny,
    DependencyKind::AfterNotOk,
    DependencyKind::AfterStart,
];

/// The numbers of the stretch of 2^level numbers that a number is in share this.
fn prefix(number: u32, level: u32) -> u32 {
    number.checked_shr(level).unwrap_or(0)
}

fn part_key(job: JobId, numbers: Ranges) -> PartKey {
    let (first, last) = (numbers.first().unwrap_or(0), numbers.last().unwrap_or(0));
    let level = u32::BITS - (first ^ last).leading_zeros();
    (job, level, prefix(first, level), numbers)
}

fn named(dep: &Dependency) -> Ranges {
    ranges(&dep.tasks).unwrap_or_default()
}

impl Dependants {
    /// Built from first principles.
    pub fn of(table: &Table) -> Dependants {
        let mut dependants = Dependants::default();
        for (id, slot) in table.slots() {
            let head = match slot {
                Slot::Job(job) => &**job,
                Slot::Array(array) => array.head(),
                Slot::Request(_) | Slot::Empty => continue,
            };
            if let Some(waits) = &head.waits {
                dependants.enter(table, id, head.dependencies(), waits);
            }
        }
        dependants
    }

    /// Enters all that a job waits for.
    pub fn enter(&mut self, table: &Table, id: JobId, deps: &[Dependency], waits: &Waits) {
        self.begins.extend(waits.begin_wall_ms.map(|begin| (begin, id)));
        for index in waits.open() {
            let Some(dep) = deps.get(index as usize) else { continue };
            let (job, waiter) = (JobId(dep.job), (id, index));
            if dep.tasks.is_empty() {
                self.whole.insert((job, dep.kind(), waiter));
                continue;
            }
            let key = part_key(job, named(dep));
            let progress = || match table.entry(job) {
                Some(Entry::Array(array)) => array.progress_of(&key.3),
                _ => Progress::default(),
            };
            let progress = self.parts.get(&key).map_or_else(progress, |part| part.progress);
            let part = self.parts.entry(key).or_default();
            part.progress = progress;
            part.waiters.insert((dep.kind(), waiter));
        }
    }

    /// A job does not wait for one of its dependencies any more.
    pub fn close(&mut self, waiter: Waiter, dep: &Dependency) {
        let job = JobId(dep.job);
        if dep.tasks.is_empty() {
            self.whole.remove(&(job, dep.kind(), waiter));
            return;
        }
        let key = part_key(job, named(dep));
        if let Some(part) = self.parts.get_mut(&key) {
            part.waiters.remove(&(dep.kind(), waiter));
            if part.waiters.is_empty() {
                self.parts.remove(&key);
            }
        }
    }

    /// A job does not wait for its time any more.
    pub fn close_begin(&mut self, id: JobId, begin_wall_ms: u64) {
        self.begins.remove(&(begin_wall_ms, id));
    }

    /// A job waits for nothing any more.
    pub fn forget(&mut self, id: JobId, deps: &[Dependency], waits: &Waits) {
        if let Some(begin) = waits.begin_wall_ms {
            self.close_begin(id, begin);
        }
        for index in waits.open() {
            if let Some(dep) = deps.get(index as usize) {
                self.close((id, index), dep);
            }
        }
    }

    /// The earliest time that is waited for, UTC ms, and by whom.
    pub fn next_begin(&self) -> Option<(u64, JobId)> {
        self.begins.first().copied()
    }

    /// Whether anybody waits for that job or any of its tasks.
    pub fn watches(&self, job: JobId) -> bool {
        let first = (job, DependencyKind::Unspecified, (JobId(0), 0));
        let last = (job, DependencyKind::AfterEach, LAST);
        self.whole.range(first..=last).next().is_some() || self.watches_part(job)
    }

    fn watches_part(&self, job: JobId) -> bool {
        let mut from = self.parts.range((job, 0, 0, Ranges::default())..);
        from.next().is_some_and(|(key, _)| key.0 == job)
    }

    /// A task got further.
    pub fn moved(&mut self, job: JobId, number: u32, before: Stage, after: Stage) {
        if !self.watches_part(job) {
            return;
        }
        for level in 0..=u32::BITS {
            let place = prefix(number, level);
            let from = (job, level, place, Ranges::default());
            for (key, part) in self.parts.range_mut(from..) {
                if (key.0, key.1, key.2) != (job, level, place) {
                    break;
                }
                if key.3.contains(number) {
                    part.progress.leave(before, 1);
                    part.progress.enter(after, 1);
                }
            }
        }
    }

    /// Many tasks of an array got further.
    pub fn recount(&mut self, array: &Array) {
        let job = array.id();
        for (key, part) in self.parts.range_mut((job, 0, 0, Ranges::default())..) {
            if key.0 != job {
                break;
            }
            part.progress = array.progress_of(&key.3);
        }
    }

    /// The first that waits for a job, or for some of these tasks of it, for which that is decided.
    pub fn decided(
        &self,
        job: JobId,
        progress: &Progress,
        tasks: &Ranges,
    ) -> Option<(Waiter, Verdict)> {
        for kind in ALIKE {
            let verdict = progress.verdict(kind);
            let range = (job, kind, (JobId(0), 0))..=(job, kind, LAST);
            if verdict != Verdict::Open
                && let Some((_, _, waiter)) = self.whole.range(range).next()
            {
                return Some((*waiter, verdict));
            }
        }
        if !self.watches_part(job) {
            return None;
        }
        match (tasks.first(), tasks.len()) {
            (Some(number), 1) => (0..=u32::BITS).find_map(|level| {
                let place = prefix(number, level);
                let from = self.parts.range((job, level, place, Ranges::default())..);
                let mut parts =
                    from.take_while(|(key, _)| (key.0, key.1, key.2) == (job, level, place));
                parts.find_map(|(_, part)| part.decided())
            }),
            _ => {
                let from = self.parts.range((job, 0, 0, Ranges::default())..);
                from.take_while(|(key, _)| key.0 == job).find_map(|(_, part)| part.decided())
            }
        }
    }

    /// The next array behind that one that waits task by task for that one.
    pub fn next_each(&self, job: JobId, told: Waiter) -> Option<Waiter> {
        let behind = (told.0, told.1.saturating_add(1));
        let kind = DependencyKind::AfterEach;
        let mut waiters = self.whole.range((job, kind, behind)..=(job, kind, LAST));
        waiters.next().map(|(_, _, waiter)| *waiter)
    }

    /// Jobs that are waited for.
    pub fn targets(&self) -> BTreeSet<JobId> {
        let whole = self.whole.iter().map(|(job, _, _)| *job);
        whole.chain(self.parts.keys().map(|key| key.0)).collect()
    }
}

impl Part {
    fn decided(&self) -> Option<(Waiter, Verdict)> {
        ALIKE.into_iter().find_map(|kind| {
            let verdict = self.progress.verdict(kind);
            let first = self.waiters.range((kind, (JobId(0), 0))..=(kind, LAST)).next();
            first.filter(|_| verdict != Verdict::Open).map(|(_, waiter)| (*waiter, verdict))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_number_is_in_is_found_under_one_of_its_stretches() {
        let sets =
            [(0, 0), (7, 7), (0, 9), (10, 19), (0, u32::MAX), (255, 256), (u32::MAX, u32::MAX)];
        for (first, last) in sets {
            let key = part_key(JobId(1), Ranges::of([(first, last)]));
            for number in [first, first + (last - first) / 2, last] {
                let found =
                    (0..=u32::BITS).any(|level| (level, prefix(number, level)) == (key.1, key.2));
                assert!(found, "{number} of {first}-{last}");
            }
        }
    }
}
