//! An array job: many tasks of one specification. Tasks that differ in nothing but their number
//! share one record; a task gets one of its own when it is given to a node or changed alone.

use super::depend::Stage;
use super::job::Job;
use super::ranges::Ranges;
use super::state::{Kind, StateName};
use crate::words;
use proto::{JobId, TaskId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Tasks of a page: what is copied when one of them changes while a reader or a snapshot holds it.
const PAGE: u32 = 64;

/// Tasks that share one record.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Group {
    /// Their numbers; never none.
    pub members: Ranges,
    /// What each of them is, but for its number.
    pub job: Arc<Job>,
}

/// An array job.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    /// What was submitted, and what was asked of the array as a whole. Its state means nothing.
    pub(super) head: Job,
    total: u64,
    pub(super) limit: Option<u32>,
    groups: Vec<Group>,
    own: BTreeMap<u32, Arc<BTreeMap<u32, Arc<Job>>>>,
    tally: Tally,
    /// Tasks of which an attempt has started, or ended.
    begun: u64,
    /// Tasks with a record of their own that are queued, in scheduling order.
    queued: BTreeSet<Again>,
    last_end: (u64, u64),
}

/// Place among the tasks of an array that are queued again: priority, age, number.
type Again = (Reverse<i32>, u64, u32);

fn again(job: &Job, number: u32) -> Again {
    (Reverse(job.priority), job.eligible_led_ms, number)
}

/// Tasks by kind of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally([u64; Kind::ALL.len()]);

impl Tally {
    pub(super) fn enter(&mut self, kind: Kind, count: u64) {
        if let Some(n) = self.0.get_mut(kind as usize) {
            *n += count;
        }
    }

    pub(super) fn leave(&mut self, kind: Kind, count: u64) {
        if let Some(n) = self.0.get_mut(kind as usize) {
            *n -= count;
        }
    }

    /// How many tasks are of that kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.0.get(kind as usize).copied().unwrap_or(0)
    }

    /// Tasks by the names of their states; names without any are absent.
    pub fn by_name(&self) -> BTreeMap<StateName, u64> {
        let mut named = BTreeMap::new();
        for kind in Kind::ALL {
            if self.of(kind) > 0 {
                *named.entry(kind.name()).or_default() += self.of(kind);
            }
        }
        named
    }

    /// Tasks that have ended.
    pub fn ended(&self) -> u64 {
        self.of(Kind::Done) + self.of(Kind::Exit)
    }

    /// Tasks that are on a node, or may be: what a limit of an array counts.
    pub fn placed(&self) -> u64 {
        let kinds = Kind::ALL.into_iter().filter(|kind| kind.held_by() || *kind == Kind::Unknown);
        kinds.map(|kind| self.of(kind)).sum::<u64>() + self.of(Kind::Waiting)
    }
}

impl Array {
    /// A new one, all of whose tasks are as `head` is.
    pub(super) fn new(head: Job, all: Ranges, limit: Option<u32>) -> Array {
        let (mut tally, total) = (Tally::default(), all.len());
        tally.enter(head.kind(), total);
        Array {
            groups: vec![Group { members: all, job: Arc::new(head.clone()) }],
            head,
            total,
            limit,
            own: BTreeMap::new(),
            tally,
            begun: 0,
            queued: BTreeSet::new(),
            last_end: (0, 0),
        }
    }

    /// Its id.
    pub fn id(&self) -> JobId {
        self.head.id
    }

    /// What was submitted and asked of all its tasks: everything of a job but its state.
    pub fn head(&self) -> &Job {
        &self.head
    }

    /// How many tasks it has.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Records that its tasks need: what it counts for where the ended ones are limited.
    pub(super) fn weight(&self) -> u64 {
        let own: usize = self.own.values().map(|page| page.len()).sum();
        (self.groups.len() + own) as u64
    }

    /// Its task numbers, gathered from all records.
    pub fn numbers(&self) -> Ranges {
        let shared = self.groups.iter().flat_map(|group| group.members.stretches());
        let own = self.own.values().flat_map(|page| page.keys().map(|number| (*number, *number)));
        Ranges::of(shared.chain(own))
    }

    /// Its task numbers as they were asked for, such as `0-9:3,12`.
    pub fn asked(&self) -> String {
        let array = self.head.spec.spec.array.as_ref();
        words::ranges(array.map(|array| array.ranges.as_slice()).unwrap_or_default())
    }

    /// The first of these numbers that it does not have.
    pub(super) fn lacks(&self, numbers: &Ranges) -> Option<u32> {
        numbers.numbers().find(|number| self.task(*number).is_none())
    }

    /// Most tasks that may be on nodes at once.
    pub fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// Whether its first task that is DONE cancels the others: then it is DONE with any of them.
    pub fn races(&self) -> bool {
        self.head.spec().array.as_ref().is_some_and(|array| array.race)
    }

    /// Its tasks by state.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether all tasks have ended.
    pub fn terminal(&self) -> bool {
        self.tally.ended() == self.total
    }

    /// How many more tasks its limit lets start now; `None`: it has no limit.
    pub fn room(&self) -> Option<u64> {
        self.limit.map(|limit| u64::from(limit).saturating_sub(self.tally.placed()))
    }

    /// Whether its limit keeps every further task from starting.
    pub(super) fn full(&self) -> bool {
        self.room() == Some(0)
    }

    /// Led time and position of the last end of a task; it counts once all have ended.
    pub(super) fn last_end(&self) -> (u64, u64) {
        self.last_end
    }

    /// A task as it is. One that shares its record with others has no number there: callers know it.
    pub fn task(&self, number: u32) -> Option<&Job> {
        self.own_task(number).or_else(|| Some(&*self.group(number)?.job))
    }

    /// A task that has a record of its own.
    pub fn own_task(&self, number: u32) -> Option<&Job> {
        self.own.get(&(number / PAGE))?.get(&number).map(|job| &**job)
    }

    /// The same, to be changed.
    fn own_mut(&mut self, number: u32) -> Option<&mut Job> {
        let page = Arc::make_mut(self.own.get_mut(&(number / PAGE))?);
        page.get_mut(&number).map(Arc::make_mut)
    }

    /// Tasks of which an attempt has started, or ended.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// The records of these tasks; each with those of the numbers that have it, as stretches.
    pub(super) fn records_in<'a>(
        &'a self,
        numbers: &'a Ranges,
    ) -> impl Iterator<Item = (Vec<(u32, u32)>, &'a Job)> {
        let shared = self.groups.iter().filter_map(|group| {
            let common: Vec<_> = numbers.common(&group.members).stretches().collect();
            (!common.is_empty()).then_some((common, &*group.job))
        });
        let own = numbers.stretches().flat_map(|(first, last)| {
            let pages = self.own.range(first / PAGE..=last / PAGE);
            pages.flat_map(move |(_, page)| page.range(first..=last))
        });
        shared.chain(own.map(|(number, job)| (vec![(*number, *number)], &**job)))
    }

    /// Tasks that have a record of their own, by number.
    pub fn own_tasks(&self) -> impl Iterator<Item = &Job> {
        self.own.values().flat_map(|page| page.values()).map(|job| &**job)
    }

    /// Tasks that share a record, and that record.
    pub fn shared(&self) -> impl Iterator<Item = (&Ranges, &Job)> {
        self.groups.iter().map(|group| (&group.members, &*group.job))
    }

    /// Every record of it: those that tasks share, then those of one task.
    pub fn records(&self) -> impl Iterator<Item = &Job> {
        self.groups.iter().map(|group| &*group.job).chain(self.own_tasks())
    }

    fn group(&self, number: u32) -> Option<&Group> {
        self.groups.iter().find(|group| group.members.contains(number))
    }

    /// The numbers of those that share a record with this one.
    pub(crate) fn shared_with(&self, number: u32) -> Option<&Ranges> {
        self.group(number).map(|group| &group.members)
    }

    /// Tasks of this array that have a place in the queue: the first of each record that tasks share, and
    /// of all that are queued again. None while its limit is reached.
    pub(super) fn places(&self) -> impl Iterator<Item = (&Job, TaskId)> {
        let shared = self.groups.iter().filter(|group| group.job.kind() == Kind::Queued);
        let shared = shared.filter_map(|g| Some((&*g.job, self.task_id(g.members.first()?))));
        let first = self.queued.first();
        let own = first.and_then(|(_, _, n)| Some((self.own_task(*n)?, self.task_id(*n))));
        shared.chain(own).filter(|_| !self.full())
    }

    /// The queued task behind that one, among those that have one place together.
    pub(crate) fn behind(&self, number: u32) -> Option<(&Job, TaskId)> {
        if let Some(job) = self.own_task(number) {
            let rest = (Bound::Excluded(again(job, number)), Bound::Unbounded);
            let (_, _, next) = self.queued.range(rest).next()?;
            return Some((self.own_task(*next)?, self.task_id(*next)));
        }
        let group = self.group(number)?;
        Some((&*group.job, self.task_id(group.members.after(number)?)))
    }

    /// Whether two tasks have one place in the queue together.
    pub(crate) fn together(&self, a: u32, b: u32) -> bool {
        match (self.own_task(a), self.own_task(b)) {
            (Some(_), Some(_)) => true,
            (None, None) => self.shared_with(a).is_some_and(|members| members.contains(b)),
            _ => false,
        }
    }

    /// How many queued tasks stand where that one has its place, and how many of them before it.
    pub(crate) fn rank(&self, number: u32) -> (u64, u64) {
        match self.own_task(number) {
            Some(job) => {
                let before = self.queued.range(..again(job, number)).count();
                (self.queued.len() as u64, before as u64)
            }
            None => self
                .shared_with(number)
                .map_or((0, 0), |members| (members.len(), members.below(number))),
        }
    }

    /// Gives a task a record of its own, if it has none. Its group changes its place in the queue.
    pub(super) fn part(&mut self, number: u32) {
        let Some(at) = self.groups.iter().position(|group| group.members.contains(number)) else {
            return;
        };
        let Some(group) = self.groups.get_mut(at) else { return };
        group.members.remove(number);
        let job = Job { task: Some(number), ..(*group.job).clone() };
        if group.members.is_empty() {
            self.groups.remove(at);
        }
        self.put(number, job);
    }

    /// Enters a task with a record of its own. The tally is the caller's.
    fn put(&mut self, number: u32, job: Job) {
        if job.kind() == Kind::Queued {
            self.queued.insert(again(&job, number));
        }
        let page = self.own.entry(number / PAGE).or_default();
        Arc::make_mut(page).insert(number, Arc::new(job));
    }

    /// Changes those of `which` that share records, which may then share one with fewer; gives how many.
    pub(super) fn change_shared(
        &mut self,
        which: Option<&Ranges>,
        mut edit: impl FnMut(&mut Job) -> bool,
    ) -> u64 {
        let mut changed = 0;
        for group in std::mem::take(&mut self.groups) {
            let chosen = which.map_or_else(|| group.members.clone(), |w| group.members.common(w));
            let mut job = (*group.job).clone();
            let before = job.kind();
            if chosen.is_empty() || !edit(&mut job) {
                self.groups.push(group);
                continue;
            }
            changed += chosen.len();
            self.tally.leave(before, chosen.len());
            self.tally.enter(job.kind(), chosen.len());
            self.begun -= if Stage::of(&group.job).begun() { chosen.len() } else { 0 };
            self.begun += if Stage::of(&job).begun() { chosen.len() } else { 0 };
            self.note_end(&job);
            let rest = group.members.without(&chosen);
            if !rest.is_empty() {
                self.groups.push(Group { members: rest, job: group.job });
            }
            self.groups.push(Group { members: chosen, job: Arc::new(job) });
        }
        changed
    }

    /// Changes a task that has a record of its own.
    pub(super) fn change_own<R>(
        &mut self,
        number: u32,
        edit: impl FnOnce(&mut Job) -> R,
    ) -> Option<R> {
        let job = self.own_mut(number)?;
        let before = (job.kind(), again(job, number), Stage::of(job).begun());
        let result = edit(job);
        let after = (job.kind(), again(job, number), Stage::of(job).begun());
        let end = end_of(job);
        self.begun -= u64::from(before.2);
        self.begun += u64::from(after.2);
        self.tally.leave(before.0, 1);
        self.tally.enter(after.0, 1);
        self.last_end = self.last_end.max(end);
        if before.0 == Kind::Queued {
            self.queued.remove(&before.1);
        }
        if after.0 == Kind::Queued {
            self.queued.insert(after.1);
        }
        Some(result)
    }

    fn note_end(&mut self, job: &Job) {
        self.last_end = self.last_end.max(end_of(job));
    }

    /// One that is read from an image: its records are what they are.
    pub(super) fn thawed(
        head: Job,
        limit: Option<u32>,
        groups: Vec<(Ranges, Job)>,
        own: Vec<(u32, Job)>,
    ) -> Option<Array> {
        let mut array = Array::new(head, Ranges::default(), limit);
        array.groups.clear();
        let mut all = Vec::new();
        for (members, job) in groups {
            array.tally.enter(job.kind(), members.len());
            array.begun += if Stage::of(&job).begun() { members.len() } else { 0 };
            array.note_end(&job);
            all.extend(members.stretches());
            array.groups.push(Group { members, job: Arc::new(job) });
        }
        for (number, job) in own {
            array.tally.enter(job.kind(), 1);
            array.begun += u64::from(Stage::of(&job).begun());
            array.note_end(&job);
            all.push((number, number));
            array.put(number, job);
        }
        array.total = all.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
        let each_once = Ranges::of(all).len() == array.total;
        (each_once && array.total > 0).then_some(array)
    }

    /// A task's id.
    pub fn task_id(&self, number: u32) -> TaskId {
        TaskId { job: self.head.id, index: Some(number) }
    }

    /// Checks that what is derived is right.
    ///
    /// # Panics
    /// If it is not.
    pub(super) fn check(&self) {
        let id = self.id();
        let groups: Vec<(Ranges, Job)> =
            self.groups.iter().map(|g| (g.members.clone(), (*g.job).clone())).collect();
        assert!(groups.iter().all(|(members, _)| !members.is_empty()), "array {id}: empty group");
        let own = self.own_tasks().map(|job| (job.task.unwrap_or_default(), job.clone())).collect();
        let again = Array::thawed(self.head.clone(), self.limit, groups, own);
        assert_eq!(again.as_ref(), Some(self), "array {id}: each task has one record");
    }
}

fn end_of(job: &Job) -> (u64, u64) {
    job.state.ended().map_or((0, 0), |ended| (ended.ended_led_ms, ended.position))
}
