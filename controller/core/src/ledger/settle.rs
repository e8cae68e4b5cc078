//! The ends: how a task becomes terminal, how an attempt is closed for another, how a job leaves.

use super::book::Ledger;
use super::cause::{Cause, What, Who};
use super::exit::ExitReason;
use super::job::Job;
use super::request::{REMEMBERED_MAX, REQUEST_WINDOW_MS};
use super::state::{Ended, Started, State};
use super::table::{Entry, Remembered, Slot};
use proto::mutants::Mutant;
use proto::{AttemptId, TaskId, v1};
use std::sync::Arc;

/// Attempts that may be closed through no fault of the job before it ends `start-failed`
/// (design 3, Fences and retries).
pub(super) const NODE_FAULTS_MAX: u32 = 5;

/// An array that ended is kept so long at least, in led ms, however many tasks it has.
const ARRAY_KEPT_MS: u64 = 60_000;

/// Most evictions beside one command, so that no entry takes long; a Tick does the rest.
const EVICTIONS_PER_COMMAND: u32 = 1000;

/// What its node told about an end, beside the reason.
#[derive(Clone, Default)]
pub(super) struct Told {
    pub status: Option<u32>,
    pub finish_wall_ms: Option<u64>,
    pub started: Option<Started>,
    pub rusage: Option<v1::Rusage>,
    pub stderr_tail: Vec<u8>,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub stdout_cut_bytes: u64,
    pub stderr_cut_bytes: u64,
    pub leftover: u32,
    /// Nothing of its tree lives: its node says so.
    pub gone: bool,
}

/// An end that is decided, before it is given to a task.
#[derive(Clone)]
pub(super) struct Ending {
    done: bool,
    reason: ExitReason,
    told: Told,
    cause: Cause,
    led_ms: u64,
    leader: u64,
}

impl Ending {
    /// Ends a live task.
    pub fn end(self, job: &mut Job) {
        let Ending { done, reason, told, mut cause, led_ms, leader } = self;
        // What was settled without the agent's word did not end by itself, as far as is known.
        let by_itself = !matches!(reason, ExitReason::Cancelled { .. }) && !reason.without_word();
        let too_late = job.cancel().is_some() && by_itself;
        let (kind, status, from) = (reason.kind(), told.status, job.kind());
        let heard = job.state.started().is_some();
        let fast_start = told.started.as_ref().filter(|_| !heard).map(|s| s.fact.pid);
        let ended = Box::new(Ended {
            reason,
            status,
            finish_wall_ms: told.finish_wall_ms.unwrap_or(cause.wall_ms),
            ended_led_ms: led_ms,
            position: cause.position,
            grant: job.state.grant().cloned(),
            started: told.started.or_else(|| job.state.started().cloned()),
            rusage: told.rusage,
            stderr_tail: told.stderr_tail.into(),
            stdout_bytes: told.stdout_bytes,
            stderr_bytes: told.stderr_bytes,
            stdout_cut_bytes: told.stdout_cut_bytes,
            stderr_cut_bytes: told.stderr_cut_bytes,
            leftover: told.leftover,
            late: None,
        });
        job.state = if done { State::Done(ended) } else { State::Exit(ended) };
        // A fast job's start comes with its end.
        if let Some(pid) = fast_start {
            job.note(Cause { what: What::Started { pid }, ..cause.clone() });
        }
        if too_late {
            job.note(cause.clone());
        }
        cause.what = What::Ended { from, to: job.kind(), kind, status, leader };
        job.note(cause);
    }
}

impl Ledger {
    /// Ends a live task.
    pub(super) fn end(&mut self, id: TaskId, done: bool, reason: ExitReason, told: Told, who: Who) {
        self.leave_behind(id, &reason, &told);
        let ending = self.ending(done, reason, told, who);
        self.update(id, |job| ending.end(job));
        if done {
            self.won(id);
        }
    }

    /// What an attempt holds that may outlive its end stays bound: the live one, if nobody knows that it is
    /// dead, and the closed one that a retry waits for, which no longer comes.
    fn leave_behind(&mut self, id: TaskId, reason: &ExitReason, told: &Told) {
        let Some(job) = self.job(id) else { return };
        let left = match job.state.fence() {
            Some(fence) => Some((fence.attempt, fence.grant.clone(), fence.kind, true)),
            None if self.dead(id, reason, told) => None,
            None => job
                .state
                .live_grant()
                .map(|grant| (job.attempt, grant.clone(), reason.kind(), job.started().is_some())),
        };
        if let Some((attempt, grant, kind, started)) = left {
            self.leave(AttemptId { task: id, attempt }, &grant, kind, started);
        }
    }

    /// An end that is decided now.
    pub(super) fn ending(&self, done: bool, reason: ExitReason, told: Told, who: Who) -> Ending {
        let cause = self.cause(who, What::CancelTooLate);
        Ending { done, reason, told, cause, led_ms: self.led_ms, leader: self.leader }
    }

    /// Closes an attempt that failed through no fault of the job: the next one is queued, at most
    /// [`NODE_FAULTS_MAX`] times. A cancel that was asked for ends it instead.
    pub(super) fn node_fault(&mut self, id: TaskId, failure: v1::StartFailure, who: Who) {
        self.counters.node_faults += 1;
        let cause_who = who.clone();
        let Some(job) = self.job(id) else { return };
        if let Some(cancel) = job.cancel() {
            let reason = ExitReason::Cancelled { by: cancel.by.name.clone() };
            return self.end(id, false, reason, Told::default(), who);
        }
        // A task that was heard to start may have had effects: it is not started again here.
        if job.started().is_some() {
            let told = Told { gone: true, ..Told::default() };
            return self.over(id, false, ExitReason::StartFailed(failure), told, who);
        }
        // Where nothing at all can start it is no hint that the job is at fault: it costs no try. The
        // node is kept out with back-off, and by its own word.
        let costs = !failure.node_out;
        if costs && job.node_faults >= NODE_FAULTS_MAX {
            return self.end(id, false, ExitReason::StartFailed(failure), Told::default(), who);
        }
        let what = What::NodeFault {
            step: failure.step.as_str().into(),
            errno: failure.errno,
            attempt: job.attempt,
        };
        let cause = self.cause(cause_who, what);
        self.update(id, |job| {
            job.state = State::Queued;
            if !Mutant::RetrySameAttempt.active() {
                job.attempt = job.attempt.saturating_add(1);
            }
            job.node_faults += u32::from(costs);
            job.intents = None;
            job.note(cause);
        });
    }

    /// Lets the least recently finished jobs go while there are more than `max_completed`.
    pub(super) fn evict_beyond_limit(&mut self) {
        for _ in 0..EVICTIONS_PER_COMMAND {
            // What somebody has yet to be told stays.
            if !self.news.is_empty() {
                return;
            }
            let due = self.limit_evicts_at().is_some_and(|due| due <= self.led_ms);
            if !due || !self.evict_oldest() {
                return;
            }
        }
    }

    /// When the job that ended first has to make room, in led ms; `None`: there is room. A large array
    /// may be more than the limit alone: it stays for whoever waits for it, and until another job ends.
    pub(super) fn limit_evicts_at(&self) -> Option<u64> {
        let (ended_led_ms, _, id) = *self.index.ended.first()?;
        if self.completed() <= self.policy.max_completed {
            return None;
        }
        match self.array(id) {
            Some(_) if self.index.ended.len() == 1 => None,
            Some(_) => Some(ended_led_ms.saturating_add(ARRAY_KEPT_MS)),
            None => Some(self.led_ms),
        }
    }

    /// Records of jobs that have ended and are kept.
    pub(super) fn completed(&self) -> u64 {
        self.index.completed
    }

    /// Evicts the job that ended first; false if none has ended.
    pub(super) fn evict_oldest(&mut self) -> bool {
        let Some((_, _, id)) = self.index.ended.first().copied() else { return false };
        if self.progress(id).exit > 0 {
            self.gone.note_failed(id);
        }
        let head = match self.entry(id) {
            Some(Entry::Job(job)) => {
                let job = job.clone();
                self.index.remove(&job);
                job
            }
            // None of its tasks holds anything any more.
            Some(Entry::Array(array)) => {
                let head = array.head().clone();
                if let Some(array) = self.jobs.array(id) {
                    self.index.remove_array(array);
                }
                head
            }
            None => return false,
        };
        self.evict(&head);
        true
    }

    fn evict(&mut self, job: &Job) {
        self.counters.evictions += 1;
        Ledger::release_content(&mut self.specs, &mut self.blobs, job);
        if job.submit_led_ms.saturating_add(REQUEST_WINDOW_MS) <= self.led_ms {
            self.index.requests.remove(&(job.by.number, job.request.clone()));
            self.jobs.put(job.id, Slot::Empty);
            return;
        }
        self.index.remembered.insert(job.id);
        let remembered = Remembered {
            by: Arc::clone(&job.by),
            request: job.request.clone(),
            user_key: job.user_key,
            submit_wall_ms: job.submit_wall_ms,
            submit_led_ms: job.submit_led_ms,
            spec: job.spec.hash,
            env: job.env.hash,
            stdin: job.stdin.as_ref().map(|blob| blob.hash),
        };
        self.jobs.put(job.id, Slot::Request(Arc::new(remembered)));
        if self.index.remembered.len() > REMEMBERED_MAX {
            self.forget_early();
        }
    }

    /// Forgets the oldest remembered request; false if there is none.
    pub(super) fn forget_oldest(&mut self) -> bool {
        let Some(id) = self.index.remembered.pop_first() else { return false };
        if let Some(old) = self.jobs.remembered(id) {
            self.index.requests.remove(&(old.by.number, old.request.clone()));
        }
        self.jobs.put(id, Slot::Empty);
        true
    }

    /// Forgets before the window is over, for want of room. Ids that were generated before that
    /// submit are refused from now on, so nothing is done twice.
    fn forget_early(&mut self) {
        let oldest = self.index.remembered.first().and_then(|id| self.jobs.remembered(*id));
        if let Some(old) = oldest {
            let made = old.request.made_at_wall_ms().unwrap_or(0).min(old.submit_wall_ms);
            self.request_floor_wall_ms =
                self.request_floor_wall_ms.max(made.saturating_add(1)).min(self.wall_ms);
        }
        self.forget_oldest();
    }
}
