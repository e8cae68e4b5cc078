//! Retries: what may be tried again, and how an attempt is closed for the next one in the step that
//! ends it, so that the job is never seen terminal (design 3, Fences and retries).

use super::book::Ledger;
use super::cause::{Cause, What, Who};
use super::exit::{ExitReason, trim_text};
use super::job::Job;
use super::outcome::Rejection;
use super::settle::Told;
use super::state::{Fence, Kind, State};
use crate::words;
use proto::TaskId;
use proto::mutants::Mutant;
use proto::v1::{self, ExitKind};
use std::sync::Arc;

/// Most retries that a job may ask for: each is a start, and they follow without a pause.
const RETRIES_MAX: u32 = 1_000;

/// Kinds that `retry_on` may name: every one there is, twice.
const RETRY_ON_MAX: usize = 24;

/// Longest words about a closed attempt in its cause, in bytes.
const DETAIL_MAX: usize = 256;

impl Job {
    /// Attempts beyond the first that its own ends may cost.
    pub fn retries(&self) -> u32 {
        self.spec.spec.retries
    }

    /// Attempts that its own ends have cost; those closed through no fault of its own are not
    /// among them.
    pub fn retried(&self) -> u32 {
        self.retried
    }

    /// How long after its last renewal its node ends it, in ms, if it has a lease: the live attempt,
    /// or the closed one that it waits for.
    pub fn leased(&self) -> Option<u64> {
        self.state.binding()?.lease_ms
    }

    /// What it waits for before its next attempt may start.
    pub fn fence(&self) -> Option<&Fence> {
        self.state.fence()
    }

    /// Whether an end of that kind opens another attempt. A cancel intent ends the policy.
    pub(crate) fn tries_again(&self, kind: ExitKind) -> bool {
        let left = self.retried < self.retries();
        let goes_on = self.cancel().is_none() || Mutant::CancelKeepsRetrying.active();
        left && goes_on && retries_on(self.spec(), kind)
    }
}

/// How long without a leader the node of an attempt of such a job waits before it ends it, in ms: only
/// what may be tried again without its node's word has a lease. `None`: it has none.
pub fn lease_asked(spec: &v1::JobSpec, policy: &v1::Policy) -> Option<u64> {
    let unseen = retries_on(spec, ExitKind::Lost) || retries_on(spec, ExitKind::AgentDied);
    let leased = spec.retries > 0 && unseen && !spec.fence_proof;
    leased.then(|| spec.fence_after_ms.unwrap_or(policy.fence_after_ms))
}

fn retries_on(spec: &v1::JobSpec, kind: ExitKind) -> bool {
    match kind {
        ExitKind::Unspecified | ExitKind::Cancelled | ExitKind::DependencyFailed => false,
        ExitKind::ExitCode | ExitKind::Signal | ExitKind::StartFailed
            if spec.retry_on.is_empty() =>
        {
            true
        }
        _ => spec.retry_on.contains(&(kind as i32)),
    }
}

/// The lease of the attempt that is about to be assigned: only what may be retried without its
/// node's word needs one. The last attempt has none, for nothing waits for its death.
pub(super) fn lease_of(job: &Job, policy: &v1::Policy) -> Option<u64> {
    let unseen = job.tries_again(ExitKind::Lost) || job.tries_again(ExitKind::AgentDied);
    let spec = job.spec();
    (unseen && !spec.fence_proof).then(|| spec.fence_after_ms.unwrap_or(policy.fence_after_ms))
}

/// What the state machine relies on in a retry policy.
pub(super) fn judge(spec: &v1::JobSpec, policy: &v1::Policy) -> Result<(), Rejection> {
    if spec.retries > RETRIES_MAX {
        let why = format!("{} given, at most {RETRIES_MAX} are allowed", spec.retries);
        return Err(Rejection::malformed("spec.retries", why));
    }
    let known = |kind: &i32| {
        ExitKind::try_from(*kind).is_ok_and(|kind| {
            !matches!(
                kind,
                ExitKind::Unspecified | ExitKind::Cancelled | ExitKind::DependencyFailed
            )
        })
    };
    if spec.retry_on.len() > RETRY_ON_MAX || !spec.retry_on.iter().all(known) {
        return Err(Rejection::malformed("spec.retry_on", "a kind of end that is never retried"));
    }
    match spec.fence_after_ms {
        Some(given) if given <= policy.heartbeat_timeout_ms => {
            let silence = policy.heartbeat_timeout_ms;
            let why = format!("{given} ms does not exceed heartbeat_timeout, {silence} ms");
            Err(Rejection::malformed("spec.fence_after_ms", why))
        }
        _ => Ok(()),
    }
}

impl Ledger {
    /// A live attempt is over: the task ends, or its next attempt is opened in the same step.
    pub(super) fn over(
        &mut self,
        id: TaskId,
        done: bool,
        reason: ExitReason,
        told: Told,
        who: Who,
    ) {
        let again = self.job(id).is_some_and(|job| !done && job.tries_again(reason.kind()));
        if !again {
            return self.end(id, done, reason, told, who);
        }
        let to = if self.dead(id, &reason, &told) { Kind::Queued } else { Kind::Waiting };
        self.close(id, to, &reason, &told, who);
    }

    /// Whether nothing of the attempt that ends now can still live.
    pub(super) fn dead(&self, id: TaskId, reason: &ExitReason, told: &Told) -> bool {
        let grant = self.job(id).and_then(|job| job.state.live_grant());
        let rebooted = grant.is_some_and(|grant| self.rebooted_since(grant));
        told.gone || Mutant::RetryWithoutProof.active() || !reason.without_word() || rebooted
    }

    fn close(&mut self, id: TaskId, to: Kind, reason: &ExitReason, told: &Told, who: Who) {
        let Some(job) = self.job(id) else { return };
        let Some(grant) = job.state.live_grant().cloned() else { return };
        let fence = Fence {
            attempt: job.attempt,
            since_led_ms: self.led_ms,
            since_wall_ms: self.wall_ms,
            kind: reason.kind(),
            held: false,
            grant,
        };
        let what = What::Closed {
            from: job.kind(),
            to,
            attempt: fence.attempt,
            agent: Arc::clone(&fence.grant.agent),
            kind: fence.kind,
            status: told.status,
            leader: self.leader,
            detail: detail(reason),
        };
        let heard = job.started().is_some();
        let fast_start = told.started.as_ref().filter(|_| !heard).map(|s| s.fact.pid);
        let cause = self.cause(who, what);
        self.update(id, |job| {
            // A fast job's start comes with its end.
            if let Some(pid) = fast_start {
                job.note(Cause { what: What::Started { pid }, ..cause.clone() });
            }
            job.state = match to {
                Kind::Waiting => State::Waiting(Box::new(fence)),
                _ => State::Queued,
            };
            job.attempt = job.attempt.saturating_add(1);
            job.retried += 1;
            // What was asked of the old attempt does not concern the next one.
            job.intents = None;
            job.note(cause);
        });
    }
}

/// What the kind and the wait status do not tell.
fn detail(reason: &ExitReason) -> Option<Arc<str>> {
    match reason {
        ExitReason::StartFailed(_) | ExitReason::LeaseOver => {
            Some(trim_text(&words::end(reason, None), DETAIL_MAX).into())
        }
        _ => None,
    }
}
