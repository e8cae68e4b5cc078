//! The ordered indexes: everything that is searched. All are derived from the job table, and
//! `check` compares them with ones built anew.

use super::blobs::Ask;
use super::job::Job;
use super::request::RequestId;
use super::state::{State, StateName};
use super::table::{Slot, Table};
use proto::mutants::Mutant;
use proto::{JobId, OrderId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Place in the queue: higher priority first, then the order of submits.
pub(crate) type Place = (Reverse<i32>, JobId);

/// What an agent's live attempts bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// Cpus.
    pub cpus: u64,
    /// Memory in bytes.
    pub mem_bytes: u64,
    /// GPUs.
    pub gpus: u64,
    /// Attempts.
    pub jobs: u64,
}

/// Indexes over the table.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Indexes {
    /// Queued tasks in scheduling order.
    pub queue: BTreeSet<Place>,
    /// The same, by what they ask: equal asks fail alike, so a pass looks at one of each.
    pub classes: BTreeMap<Arc<Ask>, BTreeSet<Place>>,
    /// Live attempts by agent, in order of their orders.
    pub held: BTreeMap<Arc<str>, BTreeSet<(OrderId, JobId)>>,
    /// Retries by the agent of the closed attempt that they wait for: a proof finds them by this.
    pub waiting: BTreeMap<Arc<str>, BTreeSet<JobId>>,
    /// What the live attempts and those closed ones bind.
    pub used: BTreeMap<Arc<str>, Used>,
    /// Unknown tasks by `transient_since` in led ms.
    pub unknown: BTreeSet<(u64, JobId)>,
    /// Ended tasks in order of their ends: led ms, position.
    pub ended: BTreeSet<(u64, u64, JobId)>,
    /// Jobs by request id of a user number.
    pub requests: BTreeMap<(u32, RequestId), JobId>,
    /// Evicted jobs whose request id is remembered. Led time grows with the id.
    pub remembered: BTreeSet<JobId>,
    /// Tasks by state name.
    pub counts: BTreeMap<StateName, u64>,
}

impl Indexes {
    /// Built from first principles.
    pub fn of(table: &Table) -> Indexes {
        let mut indexes = Indexes::default();
        for (id, slot) in table.slots() {
            match slot {
                Slot::Job(job) => {
                    indexes.add(job);
                    indexes.requests.insert((job.by.number, job.request.clone()), id);
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

    /// Enters a job under its present state.
    pub fn add(&mut self, job: &Job) {
        *self.counts.entry(job.state_name()).or_default() += 1;
        if let Some(grant) = job.state.live_grant() {
            let held = self.held.entry(Arc::clone(&grant.agent)).or_default();
            held.insert((grant.order, job.id));
        }
        if let Some(fence) = job.state.fence() {
            self.waiting.entry(Arc::clone(&fence.grant.agent)).or_default().insert(job.id);
        }
        if let Some(grant) = job.state.binding() {
            let used = self.used.entry(Arc::clone(&grant.agent)).or_default();
            used.cpus += u64::from(grant.cpus);
            used.mem_bytes += grant.mem_bytes;
            used.gpus += u64::from(grant.gpus);
            used.jobs += 1;
        }
        match &job.state {
            State::Queued => {
                self.queue.insert(place(job));
                let class = self.classes.entry(Arc::clone(&job.spec.ask)).or_default();
                class.insert(place(job));
            }
            State::Unknown(unknown) => {
                self.unknown.insert((unknown.since_led_ms, job.id));
            }
            State::Done(ended) | State::Exit(ended) => {
                self.ended.insert((ended.ended_led_ms, ended.position, job.id));
            }
            _ => {}
        }
    }

    /// Takes a job out again; its state must be the one it was entered under.
    pub fn remove(&mut self, job: &Job) {
        let name = job.state_name();
        let count = self.counts.entry(name).or_default();
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&name);
        }
        if let Some(grant) = job.state.binding()
            && !Mutant::ResourcesKept.active()
        {
            self.release(grant, job.id);
        }
        match &job.state {
            State::Queued => {
                self.queue.remove(&place(job));
                if let Some(class) = self.classes.get_mut(&job.spec.ask) {
                    class.remove(&place(job));
                    if class.is_empty() {
                        self.classes.remove(&job.spec.ask);
                    }
                }
            }
            State::Unknown(unknown) => {
                self.unknown.remove(&(unknown.since_led_ms, job.id));
            }
            State::Done(ended) | State::Exit(ended) => {
                self.ended.remove(&(ended.ended_led_ms, ended.position, job.id));
            }
            _ => {}
        }
    }

    fn release(&mut self, grant: &super::state::Grant, id: JobId) {
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
            used.gpus -= u64::from(grant.gpus);
            used.jobs -= 1;
            if used.jobs == 0 {
                self.used.remove(&grant.agent);
            }
        }
    }

    /// Tasks that have not ended.
    pub fn live(&self) -> u64 {
        self.counts.iter().filter(|(name, _)| !name.terminal()).map(|(_, count)| count).sum()
    }
}

fn place(job: &Job) -> Place {
    (Reverse(job.priority), job.id)
}
