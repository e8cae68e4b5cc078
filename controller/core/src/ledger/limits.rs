//! Limits of users and queues: who may have how much on nodes at once, and how much in the ledger; and
//! what a queue says of its jobs. A refusal says which limit, whose it is, and what counts to it.

use super::blobs::QUEUE;
use super::book::Ledger;
use super::index::Bound;
use super::job::Job;
use super::outcome::Rejection;
use crate::words;
use proto::v1::{JobSpec, QueuePolicy, Requester};
use proto::{JobId, TaskId};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Jobs that a refusal names.
const NAMED_MAX: usize = 5;

/// Whose limit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Whose {
    /// Of the user of this number.
    User(u32),
    /// Of the queue of this name.
    Queue(Arc<str>),
}

/// What is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Tasks on nodes at once.
    Tasks,
    /// Cpus on nodes at once.
    Cpus,
    /// Tasks that have not ended.
    Live,
}

/// What somebody may have on nodes, and has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Room {
    pub max_tasks: Option<u64>,
    pub max_cpus: Option<u64>,
    pub tasks: u64,
    pub cpus: u64,
}

/// A limit that is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reached {
    /// What it counts.
    pub counted: Counted,
    /// `user mia` or `queue short`.
    pub whose: String,
    /// How much they have.
    pub used: u64,
    /// How much more is asked.
    pub asked: u64,
    /// How much they may have.
    pub allowed: u64,
    /// Its name, as it is set.
    pub key: String,
    /// Some of the jobs that count to it.
    pub jobs: Vec<TaskId>,
}

impl Room {
    fn of(max_tasks: Option<u64>, max_cpus: Option<u64>, bound: Bound) -> Room {
        Room { max_tasks, max_cpus, tasks: bound.tasks, cpus: bound.cpus }
    }

    /// What keeps a task that asks for so many cpus from a node.
    pub fn keeps(&self, cpus: u64) -> Option<Counted> {
        if self.max_tasks.is_some_and(|max| self.tasks >= max) {
            return Some(Counted::Tasks);
        }
        let over = self.max_cpus.is_some_and(|max| self.cpus.saturating_add(cpus) > max);
        over.then_some(Counted::Cpus)
    }

    /// Whether it keeps it for ever.
    pub fn never(&self, cpus: u64) -> bool {
        self.max_cpus.is_some_and(|max| cpus > max)
    }

    /// A task of so many cpus is placed.
    pub fn take(&mut self, cpus: u64) {
        self.tasks += 1;
        self.cpus += cpus;
    }
}

impl Ledger {
    /// What is set of a queue; `None`: nothing.
    pub fn queue(&self, name: &str) -> Option<&QueuePolicy> {
        self.policy.queues.iter().find(|queue| queue.name == name)
    }

    /// What a user or a queue may have on nodes, and has.
    pub(crate) fn room(&self, whose: &Whose) -> Room {
        match whose {
            Whose::User(user) => {
                let (tasks, cpus) = (self.policy.user_max_tasks, self.policy.user_max_cpus);
                Room::of(tasks, cpus, self.bound_by_user(*user))
            }
            Whose::Queue(name) => {
                let bound = self.bound_by_queue(name);
                let queue = self.queue(name);
                Room::of(queue.and_then(|q| q.max_tasks), queue.and_then(|q| q.max_cpus), bound)
            }
        }
    }

    /// The limit that keeps a queued task from every node now.
    pub(super) fn limit_reached(&self, job: &Job) -> Option<Reached> {
        let cpus = u64::from(job.ask().cpus);
        let both = [Whose::User(job.by.number), Whose::Queue(Arc::clone(job.queue()))];
        both.iter().find_map(|whose| {
            let room = self.room(whose);
            Some(self.reached(whose, room.keeps(cpus)?, &room, cpus))
        })
    }

    /// In words, with the jobs that count.
    pub(crate) fn reached(
        &self,
        whose: &Whose,
        counted: Counted,
        room: &Room,
        cpus: u64,
    ) -> Reached {
        let (used, asked, allowed) = match counted {
            Counted::Tasks | Counted::Live => (room.tasks, 1, room.max_tasks),
            Counted::Cpus => (room.cpus, cpus, room.max_cpus),
        };
        let jobs = self.jobs_on_nodes(whose);
        self.in_words(whose, counted, (used, asked, allowed.unwrap_or_default()), jobs)
    }

    fn in_words(
        &self,
        whose: &Whose,
        counted: Counted,
        (used, asked, allowed): (u64, u64, u64),
        jobs: Vec<TaskId>,
    ) -> Reached {
        let name = match counted {
            Counted::Tasks => "max_tasks",
            Counted::Cpus => "max_cpus",
            Counted::Live => "max_queue",
        };
        let (whose, key) = match whose {
            Whose::User(user) => {
                let name_of = self.users.number(*user).map(|user| user.name.clone());
                (format!("user {}", name_of.unwrap_or_default()), format!("user_{name}"))
            }
            Whose::Queue(queue) => (format!("queue {queue}"), format!("queues.{queue}.{name}")),
        };
        Reached { counted, whose, used, asked, allowed, key, jobs }
    }

    fn jobs_on_nodes(&self, whose: &Whose) -> Vec<TaskId> {
        let meant = |job: &&Job| whose.is_of(job);
        let held = self.agents().flat_map(|agent| self.held_by(agent.id()));
        held.filter(meant).take(NAMED_MAX).map(Job::task_id).collect()
    }

    /// Some of the jobs of somebody that have not ended: those that wait come first.
    fn live_jobs(&self, whose: &Whose) -> Vec<TaskId> {
        let meant = |user: u32, queue: &Arc<str>| match whose {
            Whose::User(number) => *number == user,
            Whose::Queue(name) => name == queue,
        };
        let waiting = self.lines().filter(|(line, _)| meant(line.user, &line.queue));
        let waiting = waiting.flat_map(|(_, places)| places.iter().map(|(_, id)| id.job));
        let on_nodes = self.jobs_on_nodes(whose).into_iter().map(|id| id.job);
        let some: BTreeSet<JobId> = on_nodes.chain(waiting.take(NAMED_MAX)).collect();
        some.into_iter().take(NAMED_MAX).map(TaskId::plain).collect()
    }

    /// Refuses a submit that its queue does not take.
    pub(super) fn judge_queue(&self, spec: &JobSpec, by: &Requester) -> Result<(), Rejection> {
        let name = queue_of(spec);
        let Some(queue) = self.queue(name) else {
            return match name == QUEUE || !self.policy.closed_queues {
                true => Ok(()),
                false => Err(self.no_queue(name)),
            };
        };
        if !queue.users.is_empty() && !queue.users.contains(&by.user) && !by.admin {
            let (queue, users) = (name.to_owned(), queue.users.join(", "));
            return Err(Rejection::NotInQueue { queue, user: by.user.clone(), users });
        }
        self.judge_priority(name, spec.priority)
    }

    /// Refuses a priority that a queue does not allow.
    pub(super) fn judge_priority(&self, queue: &str, asked: i32) -> Result<(), Rejection> {
        match self.queue(queue).and_then(|queue| queue.max_priority) {
            Some(max) if asked > max => {
                Err(Rejection::OverPriority { asked, max, queue: queue.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Refuses so many cpus that no limit would ever let the job start.
    pub(super) fn judge_cpus(&self, job: &Job, cpus: u32) -> Result<(), Rejection> {
        let cpus = u64::from(cpus);
        for whose in [Whose::User(job.by.number), Whose::Queue(Arc::clone(job.queue()))] {
            let room = self.room(&whose);
            if room.never(cpus) {
                let numbers = (0, cpus, room.max_cpus.unwrap_or_default());
                let reached = self.in_words(&whose, Counted::Cpus, numbers, Vec::new());
                return Err(Rejection::NeverWithin(Box::new(reached)));
            }
        }
        Ok(())
    }

    /// Refuses more tasks than user and queue may have, and tasks that no limit would ever let start.
    pub(super) fn judge_limits(
        &self,
        spec: &JobSpec,
        by: &Requester,
        tasks: u64,
    ) -> Result<(), Rejection> {
        let user = self.users.find(&by.user, by.uid).map_or(u32::MAX, |user| user.number);
        let name: Arc<str> = queue_of(spec).into();
        let queue = self.queue(&name);
        let limits = [
            (Whose::User(user), self.policy.user_max_queue, self.bound_by_user(user).live),
            (
                Whose::Queue(Arc::clone(&name)),
                queue.and_then(|queue| queue.max_queue),
                self.bound_by_queue(&name).live,
            ),
        ];
        for (whose, allowed, used) in limits {
            let cpus = u64::from(spec.cpus);
            let room = self.room(&whose);
            if room.never(cpus) {
                let numbers = (0, cpus, room.max_cpus.unwrap_or_default());
                let reached = self.in_words_of(&whose, Counted::Cpus, numbers, Vec::new(), by);
                return Err(Rejection::NeverWithin(Box::new(reached)));
            }
            let Some(allowed) = allowed else { continue };
            if used.saturating_add(tasks) > allowed {
                let jobs = self.live_jobs(&whose);
                let numbers = (used, tasks, allowed);
                let reached = self.in_words_of(&whose, Counted::Live, numbers, jobs, by);
                return Err(Rejection::OverLimit(Box::new(reached)));
            }
        }
        Ok(())
    }

    /// Of a user who may be new.
    fn in_words_of(
        &self,
        whose: &Whose,
        counted: Counted,
        numbers: (u64, u64, u64),
        jobs: Vec<TaskId>,
        by: &Requester,
    ) -> Reached {
        let mut reached = self.in_words(whose, counted, numbers, jobs);
        if let Whose::User(_) = whose {
            reached.whose = format!("user {}", by.user);
        }
        reached
    }

    fn no_queue(&self, asked: &str) -> Rejection {
        let mut names: Vec<&str> = self.policy.queues.iter().map(|queue| &*queue.name).collect();
        if !names.contains(&QUEUE) {
            names.push(QUEUE);
        }
        names.sort_unstable();
        let nearest = words::nearest(asked, &names).map(str::to_owned);
        Rejection::NoSuchQueue { asked: asked.to_owned(), nearest, known: names.join(", ") }
    }
}

/// The queue that a specification names.
pub(super) fn queue_of(spec: &JobSpec) -> &str {
    if spec.queue.is_empty() { QUEUE } else { &spec.queue }
}

impl Whose {
    fn is_of(&self, job: &Job) -> bool {
        match self {
            Whose::User(user) => job.by.number == *user,
            Whose::Queue(name) => job.queue() == name,
        }
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reached { counted, whose, used, asked, allowed, key, jobs } = self;
        match counted {
            Counted::Tasks => write!(f, "{whose} has {used} of {allowed} tasks on nodes ({key})")?,
            Counted::Cpus if asked > allowed => {
                return write!(f, "cpus: {asked} asked, {whose} may have {allowed} ({key})");
            }
            Counted::Cpus => write!(
                f,
                "{whose} has {used} of {allowed} cpus on nodes, {asked} more are asked ({key})"
            )?,
            Counted::Live => write!(
                f,
                "{whose} has {used} of {allowed} tasks that have not ended, {asked} more are asked ({key})"
            )?,
        }
        let named: Vec<String> = jobs.iter().map(TaskId::to_string).collect();
        match named.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", named.join(", ")),
        }
    }
}
