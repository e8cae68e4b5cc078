//! The ledger itself: its fields, what can be asked of it, and the one way to change a job.

use super::array::Array;
use super::blobs::{Blob, Interned, Spec};
use super::cause::{Cause, What, Who};
use super::deferred::{Deferred, Registry};
use super::depend::Stage;
use super::given::Amounts;
use super::gone::Gone;
use super::ids::{Opening, Range};
use super::index::{Bound, Indexes, UNUSED, Used};
use super::job::Job;
use super::leftover::Leftovers;
use super::line::{Line, Place};
use super::memory::Edits;
use super::moves;
use super::news::News;
use super::node::{Agent, DownWhy, Session};
use super::outcome::Rejection;
use super::policy::default_policy;
use super::ranges::Ranges;
use super::state::{Kind, StateName};
use super::table::{Entry, Table};
use super::users::Users;
use super::waits::Dependants;
use proto::{JobId, OrderId, TaskId, v1};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The replicated state. Every replica that applied the same log has the same bytes.
#[derive(Debug)]
pub struct Ledger {
    pub(super) applied: u64,
    pub(super) wall_ms: u64,
    pub(super) led_ms: u64,
    pub(super) term: u64,
    pub(super) leader: u64,
    pub(super) term_led_ms: u64,
    pub(super) cluster_id: String,
    pub(super) generation: u64,
    pub(super) raised: u64,
    /// When a part of the log was found to be lost, in order.
    pub(super) openings: Vec<Opening>,
    pub(super) next_job_id: JobId,
    /// Ids below it that no job of this log got, in order.
    pub(super) skipped: Vec<Range>,
    pub(super) policy: v1::Policy,
    /// Requests that changed it.
    pub(super) settings: Edits,
    pub(super) request_floor_wall_ms: u64,
    pub(super) counters: Counters,
    pub(super) jobs: Table,
    pub(super) users: Users,
    pub(super) specs: Interned<Spec>,
    pub(super) blobs: Interned<Blob>,
    pub(super) agents: BTreeMap<Arc<str>, Agent>,
    pub(super) index: Indexes,
    /// What attempts hold that are over and not proven dead.
    pub(super) leftovers: Leftovers,
    /// Named consumables of the cluster, as the policy has them.
    pub(super) offers: Arc<Amounts>,
    pub(super) deferred: Registry,
    /// How evicted jobs ended.
    pub(super) gone: Gone,
    /// Starts and ends that not all were told who wait for them, in log order.
    pub(super) news: VecDeque<News>,
    pub(super) waits: Dependants,
    /// Jobs changed by the command that is being applied about which a fact waits.
    pub(super) drainable: BTreeSet<JobId>,
    /// Order id of the command that is being applied.
    pub(super) order: OrderId,
    /// Tasks changed by the entry that is being applied.
    pub(super) changed: BTreeSet<TaskId>,
}

/// What was counted instead of done, since the ledger began (P5: later facts are counted no-ops).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Facts about a task that had ended.
    pub after_end: u64,
    /// Facts that were known already.
    pub repeated: u64,
    /// Facts of an older attempt or with another token.
    pub other_attempt: u64,
    /// Facts of an agent to which the attempt was not assigned.
    pub wrong_agent: u64,
    /// Facts about jobs that left the ledger.
    pub evicted: u64,
    /// Facts that name nothing.
    pub malformed: u64,
    /// Facts other than start, finish and refusal about attempts that the ledger does not know.
    pub unknown_attempt: u64,
    /// Facts that were put into the unknown-finish registry.
    pub deferred: u64,
    /// Facts out of it that took effect.
    pub drained: u64,
    /// Facts that waited there longer than `unknown_finish_ttl`.
    pub expired: u64,
    /// Facts that have to be told again, for it was full.
    pub refused: u64,
    /// Of the drained ones, those that had expired.
    pub orphans_drained: u64,
    /// Real outcomes that came after a task was settled without them.
    pub late_outcomes: u64,
    /// Attempts closed through no fault of the job.
    pub node_faults: u64,
    /// Jobs that left the ledger.
    pub evictions: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            applied: 0,
            wall_ms: 0,
            led_ms: 0,
            term: 0,
            leader: 0,
            term_led_ms: 0,
            cluster_id: String::new(),
            generation: 1,
            raised: 1,
            openings: Vec::new(),
            next_job_id: JobId(1),
            skipped: Vec::new(),
            policy: default_policy(),
            settings: Edits::default(),
            request_floor_wall_ms: 0,
            counters: Counters::default(),
            jobs: Table::default(),
            users: Users::default(),
            specs: Interned::default(),
            blobs: Interned::default(),
            agents: BTreeMap::new(),
            index: Indexes::default(),
            leftovers: Leftovers::default(),
            offers: Arc::default(),
            deferred: Registry::default(),
            gone: Gone::default(),
            news: VecDeque::new(),
            waits: Dependants::default(),
            drainable: BTreeSet::new(),
            order: OrderId(0),
            changed: BTreeSet::new(),
        }
    }
}

impl Ledger {
    /// An empty ledger with the default policy.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// The values of the cluster that the ledger uses.
    pub fn policy(&self) -> &v1::Policy {
        &self.policy
    }

    /// Led time of the newest entry, ms: what deadlines are measured by (design 2).
    pub fn led(&self) -> u64 {
        self.led_ms
    }

    /// Wall time of the newest entry, UTC ms: for people.
    pub fn wall(&self) -> u64 {
        self.wall_ms
    }

    /// Log index of the newest applied entry.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The newest term whose first entry was applied.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Voter id of that term's leader.
    pub fn leader(&self) -> u64 {
        self.leader
    }

    /// The cluster's id; empty before the bootstrap.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The cluster's generation: grows whenever a part of its log is found to be lost.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The highest generation that the identity files of the controllers asked for: what they raise
    /// it to counts repairs and copies, and knows nothing of generations that a join opened.
    pub fn raised(&self) -> u64 {
        self.raised
    }

    /// The id the next submit gets.
    pub fn next_job_id(&self) -> JobId {
        self.next_job_id
    }

    /// What was counted instead of done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The task of that id, if the ledger still has it: a plain job by its job id, or one of an array.
    /// One that shares its record with others of its array has no number there.
    pub fn job(&self, id: impl Into<TaskId>) -> Option<&Job> {
        self.jobs.task(id.into())
    }

    /// The same with its number, as a copy.
    pub fn numbered(&self, id: impl Into<TaskId>) -> Option<Job> {
        let id = id.into();
        Some(Job { task: id.index, ..self.job(id)?.clone() })
    }

    /// The job of that id, plain or array, if the ledger still has it.
    pub fn entry(&self, id: JobId) -> Option<Entry<'_>> {
        self.jobs.entry(id)
    }

    /// The array of that id, if it is one.
    pub fn array(&self, id: JobId) -> Option<&Array> {
        self.jobs.array(id)
    }

    /// Whether the id was given and its job has left the ledger.
    pub fn evicted(&self, id: JobId) -> bool {
        self.gave(id) && self.entry(id).is_none()
    }

    /// Name of a node that runs an attempt of that id, of which this log knows nothing.
    fn node_of_stray(&self, id: JobId) -> Option<&str> {
        let runs = |agent: &&Agent| agent.strays().iter().any(|stray| stray.task.job == id);
        self.agents().find(runs).map(|agent| agent.name())
    }

    /// The task of that id, or why there is none.
    pub fn find(&self, id: impl Into<TaskId>) -> Result<&Job, Rejection> {
        let id = id.into();
        let entry = self.find_entry(id.job)?;
        self.job(id).ok_or_else(|| match entry {
            Entry::Job(_) => Rejection::NotAnArray { job: id.job },
            Entry::Array(array) => {
                let tasks = array.asked();
                Rejection::NoSuchTask { job: id.job, task: id.index, tasks }
            }
        })
    }

    /// The job of that id, plain or array, or why there is none.
    pub fn find_entry(&self, id: JobId) -> Result<Entry<'_>, Rejection> {
        match self.entry(id) {
            Some(entry) => Ok(entry),
            None if self.evicted(id) => Err(Rejection::Evicted { job: id }),
            None => Err(match self.node_of_stray(id) {
                Some(node) => Rejection::Stray { job: id, node: node.to_owned() },
                None => Rejection::NoSuchJob { job: id, newest: JobId(self.next_job_id.0 - 1) },
            }),
        }
    }

    /// Every record of jobs with an id below the given one, or of all, newest job first: what tasks of an
    /// array share comes once.
    pub fn jobs_newest_first(&self, below: Option<JobId>) -> impl Iterator<Item = &Job> {
        self.newest_first(below).flat_map(|entry| {
            let (job, array) = match entry {
                Entry::Job(job) => (Some(job), None),
                Entry::Array(array) => (None, Some(array)),
            };
            job.into_iter().chain(array.into_iter().flat_map(|array| array.records()))
        })
    }

    /// Jobs with an id below the given one, or all, newest first.
    pub fn newest_first(&self, below: Option<JobId>) -> impl Iterator<Item = Entry<'_>> {
        self.jobs.entries_below(below.unwrap_or(self.next_job_id))
    }

    /// Tasks by state; states without any are absent.
    pub fn counts(&self) -> BTreeMap<StateName, u64> {
        self.index.counts.clone()
    }

    /// Tasks that have not ended: what `max_queue` limits.
    pub fn live(&self) -> u64 {
        self.index.live()
    }

    /// Agents by id.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// The agent of that id.
    pub fn agent(&self, id: &str) -> Option<&Agent> {
        self.agents.get(id)
    }

    /// Ids of the agents whose session is joined and judged.
    pub fn agents_up(&self) -> BTreeSet<String> {
        self.agents
            .values()
            .filter(|agent| agent.session == Session::Up)
            .map(|agent| agent.id.to_string())
            .collect()
    }

    /// Facts whose job or assignment is not in the ledger, in order of their log positions.
    pub fn deferred(&self) -> impl Iterator<Item = &Deferred> {
        self.deferred.iter().map(|entry| &**entry)
    }

    /// How many of these wait, and how many are orphans.
    pub fn deferred_counts(&self) -> (u64, u64) {
        (self.deferred.waiting(), self.deferred.orphans())
    }

    /// What an agent's live attempts bind, and those that are over and not proven dead.
    pub fn used(&self, agent_id: &str) -> &Used {
        self.index.used.get(agent_id).unwrap_or(&UNUSED)
    }

    /// Jobs that an agent holds, or of which it was the last holder, by order id.
    pub fn held_by(&self, agent_id: &str) -> impl Iterator<Item = &Job> {
        self.index.held.get(agent_id).into_iter().flatten().filter_map(|(_, id)| self.job(*id))
    }

    /// Retries that wait for proof that their closed attempt on this agent is dead, by id.
    pub fn waiting_on(&self, agent_id: &str) -> impl Iterator<Item = &Job> {
        self.index.waiting.get(agent_id).into_iter().flatten().filter_map(|id| self.job(*id))
    }

    /// All retries that wait for such a proof, by agent.
    pub fn waiting(&self) -> impl Iterator<Item = &Job> {
        self.index.waiting.values().flatten().filter_map(|id| self.job(*id))
    }

    /// How many jobs wait in the queue.
    pub fn pending_count(&self) -> u64 {
        self.index.queued
    }

    /// The lines of the queue, each in its order.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&Line, &BTreeSet<Place>)> {
        self.index.lines.iter()
    }

    /// The place of a queued task.
    pub(crate) fn place(&self, job: &Job, id: TaskId) -> Place {
        (self.index.ranking.key(job), id)
    }

    /// What the user of that number has.
    pub fn bound_by_user(&self, user: u32) -> Bound {
        self.index.users.get(&user).copied().unwrap_or_default()
    }

    /// What the queue of that name has.
    pub fn bound_by_queue(&self, queue: &str) -> Bound {
        self.index.queues.get(queue).copied().unwrap_or_default()
    }

    /// Cpus of all nodes that have not left: what a user's share is a part of.
    pub fn cpus(&self) -> u64 {
        let here = |agent: &&Agent| {
            !matches!(agent.session(), Session::Down(DownWhy::Left | DownWhy::Goodbye))
        };
        self.agents().filter(here).map(|agent| u64::from(agent.cpus())).sum()
    }

    pub(super) fn ids_held_by(&self, agent_id: &str) -> Vec<TaskId> {
        self.index.held.get(agent_id).into_iter().flatten().map(|(_, id)| *id).collect()
    }

    pub(super) fn ids_waiting_on(&self, agent_id: &str) -> Vec<TaskId> {
        self.index.waiting.get(agent_id).into_iter().flatten().copied().collect()
    }

    /// Changes a task and keeps every index right. The caller looked it up just before.
    pub(super) fn update<R>(
        &mut self,
        id: impl Into<TaskId>,
        edit: impl FnOnce(&mut Job) -> R,
    ) -> R {
        let id = id.into();
        let found = "callers only change tasks they have just found";
        let mut stages = (Stage::default(), Stage::default());
        let edit = |job: &mut Job| {
            stages.0 = Stage::of(job);
            let result = edit(job);
            stages.1 = Stage::of(job);
            result
        };
        let result = match id.index {
            None => {
                let job = self.jobs.job_mut(id.job).expect(found);
                self.index.remove(job);
                let result = moving(self.led_ms, job, edit);
                self.index.add(job);
                result
            }
            Some(number) => {
                let array = self.jobs.array_mut(id.job).expect(found);
                self.index.remove_array(array);
                array.part(number);
                let (index, led_ms) = (&mut self.index, self.led_ms);
                let result = array.change_own(number, |job| {
                    index.remove_member(job);
                    let result = moving(led_ms, job, edit);
                    index.add_member(job);
                    result
                });
                self.index.add_array(array);
                result.expect(found)
            }
        };
        self.note_stage(id, stages.0, stages.1);
        self.stop_waiting(id.job);
        self.touched(id);
        result
    }

    /// Changes what an array is as a whole.
    pub(super) fn update_array(&mut self, id: JobId, edit: impl FnOnce(&mut Array)) {
        let Some(array) = self.jobs.array_mut(id) else { return };
        self.index.remove_array(array);
        edit(array);
        self.index.add_array(array);
        self.touched(id);
    }

    /// Changes those tasks of an array that share records; `edit` says whether it changed anything.
    /// Gives how many were changed. Those with a record of their own are left alone.
    pub(super) fn update_shared(
        &mut self,
        id: JobId,
        which: Option<&Ranges>,
        mut edit: impl FnMut(&mut Job) -> bool,
    ) -> u64 {
        let Some(array) = self.jobs.array_mut(id) else { return 0 };
        self.index.remove_array(array);
        let led_ms = self.led_ms;
        let mut further = false;
        let changed = array.change_shared(which, |job| {
            let before = Stage::of(job);
            let changed = moving(led_ms, job, &mut edit);
            further |= before != Stage::of(job);
            changed
        });
        self.index.add_array(array);
        if further {
            self.note_stages(id, which);
        }
        self.stop_waiting(id);
        self.touched(TaskId::plain(id));
        changed
    }

    /// A task is new or changed: readers are told, and facts that wait for it are looked at again.
    pub(super) fn touched(&mut self, id: impl Into<TaskId>) {
        let id = id.into();
        self.changed.insert(id);
        if self.deferred.concerns(id.job) {
            self.drainable.insert(id.job);
        }
    }

    /// A cause at the position that is being applied.
    pub(super) fn cause(&self, who: Who, what: What) -> Cause {
        Cause { position: self.applied, wall_ms: self.wall_ms, who, what }
    }

    /// The leader as a cause.
    pub(super) fn by_leader(&self) -> Who {
        Who::Controller(self.leader)
    }
}

/// Edits a job; its state may only move as the table of moves says. Who was kept from the queue and enters
/// it begins to age there.
fn moving<R>(led_ms: u64, job: &mut Job, edit: impl FnOnce(&mut Job) -> R) -> R {
    let before = job.kind();
    let result = edit(job);
    if matches!(before, Kind::Held | Kind::Blocked) && job.kind() == Kind::Queued {
        job.eligible_led_ms = led_ms;
    }
    debug_assert!(moves::legal(before, job.kind()), "{before:?} -> {:?}", job.kind());
    result
}
