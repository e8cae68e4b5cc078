//! The ordered indexes: everything that is searched. All are derived from the job table, and
//! `check` compares them with ones built anew.

use super::array::Array;
use super::given::{Amounts, Given};
use super::job::Job;
use super::leftover::{Leftover, Leftovers};
use super::line::{Line, Place};
use super::number::Ranking;
use super::request::RequestId;
use super::state::{Kind, State, StateName};
use super::table::{Slot, Table};
use proto::mutants::Mutant;
use proto::v1::Policy;
use proto::{JobId, OrderId, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a user or a queue has: what their limits count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bound {
    /// Tasks that have not ended.
    pub live: u64,
    /// Attempts on nodes, and closed ones that may still live.
    pub tasks: u64,
    /// The cpus of those.
    pub cpus: u64,
}

/// What an agent's live attempts bind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// Cpus.
    pub cpus: u64,
    /// Memory in bytes.
    pub mem_bytes: u64,
    /// GPUs.
    pub gpus: u64,
    /// Attempts.
    pub jobs: u64,
    /// How many attempts have each gpu: one, but for what a restored ledger adopts for a moment.
    pub gpu_ids: BTreeMap<u32, u32>,
    /// GPUs of which nobody knows the indices.
    pub unnumbered_gpus: u64,
    /// Named consumables of the node.
    pub named: Amounts,
}

impl Used {
    /// Nothing.
    const NONE: Used = Used {
        cpus: 0,
        mem_bytes: 0,
        gpus: 0,
        jobs: 0,
        gpu_ids: BTreeMap::new(),
        unnumbered_gpus: 0,
        named: BTreeMap::new(),
    };

    fn take(&mut self, gpus: u32, given: Option<&Given>) {
        self.gpus += u64::from(gpus);
        let ids = given.map_or(&[][..], |given| &given.gpus);
        self.unnumbered_gpus += u64::from(gpus).saturating_sub(ids.len() as u64);
        for id in ids {
            *self.gpu_ids.entry(*id).or_default() += 1;
        }
        add(&mut self.named, given.map(|given| &given.node));
    }

    fn give_back(&mut self, gpus: u32, given: Option<&Given>) {
        self.gpus -= u64::from(gpus);
        let ids = given.map_or(&[][..], |given| &given.gpus);
        self.unnumbered_gpus -= u64::from(gpus).saturating_sub(ids.len() as u64);
        for id in ids {
            if let Some(count) = self.gpu_ids.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.gpu_ids.remove(id);
                }
            }
        }
        subtract(&mut self.named, given.map(|given| &given.node));
    }
}

/// Of an agent that has nothing.
pub(super) static UNUSED: Used = Used::NONE;

fn add(sums: &mut Amounts, more: Option<&Amounts>) {
    for (name, amount) in more.into_iter().flatten() {
        *sums.entry(Arc::clone(name)).or_default() += amount;
    }
}

fn subtract(sums: &mut Amounts, less: Option<&Amounts>) {
    for (name, amount) in less.into_iter().flatten() {
        if let Some(sum) = sums.get_mut(name) {
            *sum -= amount;
            if *sum == 0 {
                sums.remove(name);
            }
        }
    }
}

/// Indexes over the table.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Indexes {
    /// Queued tasks, in lines of those that fit and fail alike: a pass looks at one of each.
    pub lines: BTreeMap<Line, BTreeSet<Place>>,
    /// What the keys of their places are made of.
    pub ranking: Ranking,
    /// What each user has, by number; nobody who has nothing.
    pub users: BTreeMap<u32, Bound>,
    /// The same of each queue.
    pub queues: BTreeMap<Arc<str>, Bound>,
    /// Live attempts by agent, in order of their orders.
    pub held: BTreeMap<Arc<str>, BTreeSet<(OrderId, TaskId)>>,
    /// Retries by the agent of the closed attempt that they wait for: a proof finds them by this.
    pub waiting: BTreeMap<Arc<str>, BTreeSet<TaskId>>,
    /// What the live attempts and those closed ones bind.
    pub used: BTreeMap<Arc<str>, Used>,
    /// What they, and what is left over, bind of what the cluster offers.
    pub cluster: Amounts,
    /// Unknown tasks by `transient_since` in led ms.
    pub unknown: BTreeSet<(u64, TaskId)>,
    /// Runs with a limit, by when they are past it and their grace, led ms.
    pub overdue: BTreeSet<(u64, TaskId)>,
    /// Jobs that have ended, arrays with their last task, in order of their ends: led ms, position.
    pub ended: BTreeSet<(u64, u64, JobId)>,
    /// Jobs by request id of a user number.
    pub requests: BTreeMap<(u32, RequestId), JobId>,
    /// Evicted jobs whose request id is remembered. Led time grows with the id.
    pub remembered: BTreeSet<JobId>,
    /// Tasks by state name.
    pub counts: BTreeMap<StateName, u64>,
    /// Queued tasks, also those of arrays whose limit is reached.
    pub queued: u64,
    /// Records of the jobs that have ended: one of a plain job, of an array as many as its tasks need.
    pub completed: u64,
}

impl Indexes {
    /// Built from first principles.
    pub fn of(table: &Table, leftovers: &Leftovers, policy: &Policy) -> Indexes {
        let mut indexes = Indexes { ranking: Ranking::of(policy), ..Indexes::default() };
        leftovers.all().for_each(|(_, leftover)| indexes.add_leftover(leftover));
        for (id, slot) in table.slots() {
            match slot {
                Slot::Job(job) => {
                    indexes.add(job);
                    indexes.requests.insert((job.by.number, job.request.clone()), id);
                }
                Slot::Array(array) => {
                    indexes.add_array(array);
                    array.own_tasks().for_each(|job| indexes.add_member(job));
                    let head = array.head();
                    indexes.requests.insert((head.by.number, head.request.clone()), id);
                }
                Slot::Request(old) => {
                    indexes.requests.insert((old.by.number, old.request.clone()), id);
                    indexes.remembered.insert(id);
                }
                Slot::Empty => {}
            }
        }
        indexes
    }

    /// Makes the places anew after a change of what their keys are made of.
    pub fn rank_again(&mut self, table: &Table, policy: &Policy) {
        if self.ranking == Ranking::of(policy) {
            return;
        }
        self.ranking = Ranking::of(policy);
        self.lines.clear();
        for (_, slot) in table.slots() {
            match slot {
                Slot::Job(job) if job.kind() == Kind::Queued => self.enqueue(job, job.task_id()),
                Slot::Array(array) => array.places().for_each(|(job, id)| self.enqueue(job, id)),
                Slot::Job(_) | Slot::Request(_) | Slot::Empty => {}
            }
        }
    }

    /// Enters a plain job under its present state.
    pub fn add(&mut self, job: &Job) {
        self.count(job.kind(), 1);
        self.live_of(job, u64::from(!job.terminal()), 0);
        self.add_member(job);
        match &job.state {
            State::Queued => self.enqueue(job, job.task_id()),
            State::Done(ended) | State::Exit(ended) => {
                self.ended.insert((ended.ended_led_ms, ended.position, job.id));
                self.completed += 1;
            }
            _ => {}
        }
    }

    /// Takes a plain job out again; its state must be the one it was entered under.
    pub fn remove(&mut self, job: &Job) {
        self.uncount(job.kind(), 1);
        self.live_of(job, 0, u64::from(!job.terminal()));
        self.remove_member(job);
        match &job.state {
            State::Queued => self.dequeue(job, job.task_id()),
            State::Done(ended) | State::Exit(ended) => {
                self.ended.remove(&(ended.ended_led_ms, ended.position, job.id));
                self.completed -= 1;
            }
            _ => {}
        }
    }

    /// Enters what an array is as a whole: counts, places in the queue, its end.
    pub fn add_array(&mut self, array: &Array) {
        for kind in Kind::ALL {
            self.count(kind, array.tally().of(kind));
        }
        self.live_of(array.head(), array.total() - array.tally().ended(), 0);
        array.places().for_each(|(job, id)| self.enqueue(job, id));
        if array.terminal() {
            let (led_ms, position) = array.last_end();
            self.ended.insert((led_ms, position, array.id()));
            self.completed += array.weight();
        }
    }

    /// Takes that out again.
    pub fn remove_array(&mut self, array: &Array) {
        for kind in Kind::ALL {
            self.uncount(kind, array.tally().of(kind));
        }
        self.live_of(array.head(), 0, array.total() - array.tally().ended());
        array.places().for_each(|(job, id)| self.dequeue(job, id));
        if array.terminal() {
            let (led_ms, position) = array.last_end();
            self.ended.remove(&(led_ms, position, array.id()));
            self.completed -= array.weight();
        }
    }

    fn count(&mut self, kind: Kind, tasks: u64) {
        if tasks > 0 {
            *self.counts.entry(kind.name()).or_default() += tasks;
            self.queued += if kind == Kind::Queued { tasks } else { 0 };
        }
    }

    fn uncount(&mut self, kind: Kind, tasks: u64) {
        let name = kind.name();
        if let Some(count) = self.counts.get_mut(&name).filter(|_| tasks > 0) {
            *count -= tasks;
            if *count == 0 {
                self.counts.remove(&name);
            }
            self.queued -= if kind == Kind::Queued { tasks } else { 0 };
        }
    }

    fn enqueue(&mut self, job: &Job, id: TaskId) {
        let place = (self.ranking.key(job), id);
        self.lines.entry(Line::of(job)).or_default().insert(place);
    }

    fn dequeue(&mut self, job: &Job, id: TaskId) {
        let line = Line::of(job);
        if let Some(places) = self.lines.get_mut(&line) {
            places.remove(&(self.ranking.key(job), id));
            if places.is_empty() {
                self.lines.remove(&line);
            }
        }
    }

    fn live_of(&mut self, job: &Job, more: u64, less: u64) {
        self.bind(job, |bound| bound.live = bound.live + more - less);
    }

    /// Changes what the user and the queue of a job have.
    fn bind(&mut self, job: &Job, change: impl Fn(&mut Bound)) {
        let user = self.users.entry(job.by.number).or_default();
        change(user);
        if *user == Bound::default() {
            self.users.remove(&job.by.number);
        }
        if !self.queues.contains_key(job.queue()) {
            self.queues.insert(Arc::clone(job.queue()), Bound::default());
        }
        let Some(queue) = self.queues.get_mut(job.queue()) else { return };
        change(queue);
        if *queue == Bound::default() {
            self.queues.remove(job.queue());
        }
    }

    /// Enters what a task of its own record holds or waits for.
    pub fn add_member(&mut self, job: &Job) {
        let id = job.task_id();
        if let Some(grant) = job.state.live_grant() {
            let held = self.held.entry(Arc::clone(&grant.agent)).or_default();
            held.insert((grant.order, id));
        }
        if let Some(fence) = job.state.fence() {
            self.waiting.entry(Arc::clone(&fence.grant.agent)).or_default().insert(id);
        }
        if let Some(grant) = job.state.binding() {
            let used = self.used.entry(Arc::clone(&grant.agent)).or_default();
            used.cpus += u64::from(grant.cpus);
            used.mem_bytes += grant.mem_bytes;
            used.take(grant.gpus, grant.given.as_deref());
            used.jobs += 1;
            add(&mut self.cluster, grant.given.as_deref().map(|given| &given.cluster));
            let cpus = u64::from(grant.cpus);
            self.bind(job, |bound| {
                bound.tasks += 1;
                bound.cpus += cpus;
            });
        }
        if let State::Unknown(unknown) = &job.state {
            self.unknown.insert((unknown.since_led_ms, id));
        }
        if let Some(due) = job.overdue_led() {
            self.overdue.insert((due, id));
        }
    }

    /// Takes that out again.
    pub fn remove_member(&mut self, job: &Job) {
        if let Some(grant) = job.state.binding()
            && !Mutant::ResourcesKept.active()
        {
            self.release(grant, job.task_id());
            let cpus = u64::from(grant.cpus);
            self.bind(job, |bound| {
                bound.tasks -= 1;
                bound.cpus -= cpus;
            });
        }
        if let State::Unknown(unknown) = &job.state {
            self.unknown.remove(&(unknown.since_led_ms, job.task_id()));
        }
        if let Some(due) = job.overdue_led() {
            self.overdue.remove(&(due, job.task_id()));
        }
    }

    fn release(&mut self, grant: &super::state::Grant, id: TaskId) {
        if let Some(held) = self.held.get_mut(&grant.agent) {
            held.remove(&(grant.order, id));
            if held.is_empty() {
                self.held.remove(&grant.agent);
            }
        }
        if let Some(waiting) = self.waiting.get_mut(&grant.agent) {
            waiting.remove(&id);
            if waiting.is_empty() {
                self.waiting.remove(&grant.agent);
            }
        }
        if let Some(used) = self.used.get_mut(&grant.agent) {
            used.cpus -= u64::from(grant.cpus);
            used.mem_bytes -= grant.mem_bytes;
            used.give_back(grant.gpus, grant.given.as_deref());
            used.jobs -= 1;
            if *used == Used::NONE {
                self.used.remove(&grant.agent);
            }
        }
        subtract(&mut self.cluster, grant.given.as_deref().map(|given| &given.cluster));
    }

    /// Enters what an attempt that is over still binds.
    pub fn add_leftover(&mut self, leftover: &Leftover) {
        if let Some(given) = leftover.on_node() {
            let used = self.used.entry(Arc::clone(&leftover.grant.agent)).or_default();
            used.take(given.gpus.len() as u32, Some(given));
        }
        add(&mut self.cluster, leftover.of_cluster().map(|given| &given.cluster));
    }

    /// Takes that out again.
    pub fn remove_leftover(&mut self, leftover: &Leftover) {
        if let Some(given) = leftover.on_node()
            && let Some(used) = self.used.get_mut(&leftover.grant.agent)
        {
            used.give_back(given.gpus.len() as u32, Some(given));
            if *used == Used::NONE {
                self.used.remove(&leftover.grant.agent);
            }
        }
        subtract(&mut self.cluster, leftover.of_cluster().map(|given| &given.cluster));
    }

    /// Tasks that have not ended.
    pub fn live(&self) -> u64 {
        self.counts.iter().filter(|(name, _)| !name.terminal()).map(|(_, count)| count).sum()
    }
}
