//! A job as the ledger keeps it: what was asked, where it stands, and why.

use super::blobs::{Ask, Blob, Spec};
use super::cause::{CAUSES_MAX, Cause, What};
use super::depend::Waits;
use super::memory::Edits;
use super::request::RequestId;
use super::state::{Grant, Kind, Started, State, StateName};
use super::users::User;
use crate::words;
use proto::{AttemptId, JobId, OrderId, TaskId, v1};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Grace of a job that asks for none, ms: the default of the nodes (design 7, `kill_grace`).
const KILL_GRACE_MS: u64 = 10_000;

/// One job. Everything large in it is shared with its equals.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    pub(super) id: JobId,
    /// Its number in its array, of a task that has a record of its own there.
    pub(super) task: Option<u32>,
    pub(super) by: Arc<User>,
    pub(super) spec: Arc<Spec>,
    pub(super) env: Arc<Blob>,
    pub(super) stdin: Option<Arc<Blob>>,
    pub(super) request: RequestId,
    pub(super) submit_wall_ms: u64,
    pub(super) submit_led_ms: u64,
    pub(super) eligible_led_ms: u64,
    pub(super) submit_position: u64,
    pub(super) changed_position: u64,
    pub(super) state: State,
    /// What it, or the whole array of which this is the head, still waits for.
    pub(super) waits: Option<Box<Waits>>,
    pub(super) attempt: u32,
    pub(super) priority: i32,
    /// Its time limit in force, ms.
    pub(super) limit_ms: Option<NonZeroU64>,
    pub(super) changes: Option<Box<Changes>>,
    pub(super) node_faults: u32,
    pub(super) retried: u32,
    pub(super) user_key: bool,
    pub(super) intents: Option<Box<Intents>>,
    pub(super) edits: Option<Box<Edits>>,
    pub(super) causes: Vec<Cause>,
    pub(super) causes_dropped: u64,
}

/// What `docket set` changed of what was asked at the submit.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Changes {
    pub name: Option<Arc<str>>,
    pub ask: Option<Arc<Ask>>,
}

/// What people asked for that its node has to carry out.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Intents {
    pub cancel: Option<CancelIntent>,
    pub signal: Option<SignalRequest>,
    pub suspend: Option<SuspendIntent>,
    pub limit: Option<LimitIntent>,
    /// Its node let it run past its limit: the order to end it.
    pub overdue: Option<OrderId>,
}

/// A cancel that was asked for. It ends the retry policy.
#[derive(Clone, PartialEq, Debug)]
pub struct CancelIntent {
    /// Order id of the kill order.
    pub order: OrderId,
    /// Who asked.
    pub by: Arc<User>,
    /// By which request.
    pub request: RequestId,
    /// When, wall ms.
    pub wall_ms: u64,
    /// The job was pending and ended at once.
    pub at_once: bool,
}

/// A single signal that was asked for; the newest one counts.
#[derive(Clone, PartialEq, Debug)]
pub struct SignalRequest {
    /// Order id of the order that carries it: it is sent once.
    pub order: OrderId,
    /// Who asked.
    pub by: Arc<User>,
    /// By which request.
    pub request: RequestId,
    /// Signal number, 1 to 64.
    pub signal: u32,
}

/// A change of the time limit of an attempt that a node has.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LimitIntent {
    /// Order id of the order that tells it.
    pub order: OrderId,
    /// Who asked.
    pub by: Arc<User>,
}

/// A suspend or resume that was asked for.
#[derive(Clone, PartialEq, Debug)]
pub struct SuspendIntent {
    /// Order id of the order.
    pub order: OrderId,
    /// Who asked.
    pub by: Arc<User>,
    /// Resume instead of suspend.
    pub resume: bool,
}

impl Job {
    /// Its id.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// The task. Of one that shares its record with others of its array the number is missing.
    pub fn task_id(&self) -> TaskId {
        TaskId { job: self.id, index: self.task }
    }

    /// The present or last attempt.
    pub fn attempt_id(&self) -> AttemptId {
        AttemptId { task: self.task_id(), attempt: self.attempt }
    }

    /// Number of the present or last attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Fencing token of the present or last attempt, if it was assigned.
    pub fn token(&self) -> Option<v1::Token> {
        let grant = self.state.grant()?;
        Some(v1::Token { generation: grant.generation, attempt: self.attempt })
    }

    /// Who submitted it.
    pub fn by(&self) -> &Arc<User> {
        &self.by
    }

    /// What to run.
    pub fn spec(&self) -> &v1::JobSpec {
        &self.spec.spec
    }

    /// Its name, as `docket set` changed it, or as it was submitted.
    pub fn name(&self) -> String {
        match self.changes.as_ref().and_then(|changes| changes.name.as_ref()) {
            Some(name) => name.to_string(),
            None => words::job_name(self.spec()),
        }
    }

    /// What it asks of a node, as `docket set` changed it, or as it was submitted.
    pub fn ask(&self) -> &Arc<Ask> {
        let changed = self.changes.as_ref().and_then(|changes| changes.ask.as_ref());
        changed.unwrap_or(&self.spec.ask)
    }

    /// Its time limit in force, in ms of wall time without suspensions; `None`: it has none.
    pub fn time_limit_ms(&self) -> Option<u64> {
        self.limit_ms.map(NonZeroU64::get)
    }

    /// The same, encoded as submitted.
    pub fn spec_bytes(&self) -> &[u8] {
        &self.spec.bytes
    }

    /// The interned specification with what it asks of a node.
    pub fn interned_spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// The encoded environment.
    pub fn env_bytes(&self) -> &[u8] {
        &self.env.data
    }

    /// The input given with the submit.
    pub fn stdin_bytes(&self) -> Option<&[u8]> {
        self.stdin.as_ref().map(|blob| &*blob.data)
    }

    /// The request that submitted it.
    pub fn request_id(&self) -> &RequestId {
        &self.request
    }

    /// When it was submitted, wall ms.
    pub fn submit_wall_ms(&self) -> u64 {
        self.submit_wall_ms
    }

    /// When it was submitted, led ms.
    pub fn submit_led_ms(&self) -> u64 {
        self.submit_led_ms
    }

    /// Since when it may start, led ms: its submit, or when it was released last. Its age counts from
    /// here, through all attempts.
    pub fn eligible_led_ms(&self) -> u64 {
        self.eligible_led_ms
    }

    /// The name of its queue.
    pub fn queue(&self) -> &Arc<str> {
        &self.spec.queue
    }

    /// Log position of its submit.
    pub fn submit_position(&self) -> u64 {
        self.submit_position
    }

    /// Log position of its last change.
    pub fn changed_position(&self) -> u64 {
        self.changed_position
    }

    /// Its state with the data that belongs to it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state's discriminant.
    pub fn kind(&self) -> Kind {
        self.state.kind()
    }

    /// The state's name.
    pub fn state_name(&self) -> StateName {
        self.kind().name()
    }

    /// Whether it has ended.
    pub fn terminal(&self) -> bool {
        self.kind().terminal()
    }

    /// The grant of the present or last attempt.
    pub fn grant(&self) -> Option<&Grant> {
        self.state.grant()
    }

    /// The start of the present or last attempt, if it was heard.
    pub fn started(&self) -> Option<&Started> {
        self.state.started()
    }

    /// Its priority: higher goes first.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Attempts closed through no fault of the job.
    pub fn node_faults(&self) -> u32 {
        self.node_faults
    }

    /// The cancel that was asked for.
    pub fn cancel(&self) -> Option<&CancelIntent> {
        self.intents.as_ref()?.cancel.as_ref()
    }

    /// The signal that was asked for.
    pub fn signal(&self) -> Option<&SignalRequest> {
        self.intents.as_ref()?.signal.as_ref()
    }

    /// The suspend or resume that was asked for.
    pub fn suspend(&self) -> Option<&SuspendIntent> {
        self.intents.as_ref()?.suspend.as_ref()
    }

    /// The order that tells its node of the time limit in force, if that was changed since it has it.
    pub(crate) fn limit_order(&self) -> Option<OrderId> {
        self.intents.as_ref()?.limit.as_ref().map(|limit| limit.order)
    }

    /// The order to end it, if its node let it run past its time limit.
    pub(crate) fn overdue_order(&self) -> Option<OrderId> {
        self.intents.as_ref()?.overdue
    }

    /// When a run is past its limit and the grace of its end, in led ms without `heartbeat_timeout`:
    /// from then on the controller does not rely on its node alone. `None`: it has no limit, does not
    /// run, or its node was told already.
    pub(super) fn overdue_led(&self) -> Option<u64> {
        let State::Running(run) = &self.state else { return None };
        let limit = self.time_limit_ms().filter(|_| self.overdue_order().is_none())?;
        let grace = self.spec().kill_grace_ms.unwrap_or(KILL_GRACE_MS);
        Some(run.since_led_ms.saturating_add(limit).saturating_add(grace))
    }

    /// What was asked for and its node has not confirmed: `true` to suspend, `false` to resume.
    pub fn suspend_requested(&self) -> Option<bool> {
        let intent = self.suspend().filter(|_| !self.terminal())?;
        (intent.resume == self.stopped()).then_some(!intent.resume)
    }

    /// Whether its tree is stopped, as far as its node told.
    pub(crate) fn stopped(&self) -> bool {
        match &self.state {
            State::Suspended(_) => true,
            State::Unknown(unknown) => unknown.was.kind() == Kind::Suspended,
            _ => false,
        }
    }

    /// Its last causes, oldest first.
    pub fn causes(&self) -> &[Cause] {
        &self.causes
    }

    /// How many older causes are not kept.
    pub fn causes_dropped(&self) -> u64 {
        self.causes_dropped
    }

    /// The cause to note when an attempt's end is told after its node was found to hold it though
    /// it was over; `None` if it was not, or that was told already.
    pub(super) fn orphan_is_gone(&self, attempt: u32, leftover: u32) -> Option<What> {
        let found = What::OrphanFound { attempt };
        let gone = What::OrphanGone { attempt, leftover };
        let noted = |what: &What| self.causes.iter().any(|cause| cause.what == *what);
        (noted(&found) && !noted(&gone)).then_some(gone)
    }

    pub(super) fn intents_mut(&mut self) -> &mut Intents {
        self.intents.get_or_insert_default()
    }

    pub(super) fn note(&mut self, cause: Cause) {
        if self.causes.len() >= CAUSES_MAX {
            self.causes.remove(0);
            self.causes_dropped += 1;
        }
        self.changed_position = cause.position;
        self.causes.push(cause);
    }
}
