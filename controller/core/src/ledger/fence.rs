//! Fences: a retry waits while its closed attempt may still live, and each proof that it is dead
//! opens the way (design 3, Fences and retries).

use super::book::Ledger;
use super::cause::{Proof, What, Who};
use super::exit::{Finish, judge};
use super::job::Job;
use super::memory::{Edit, Verb};
use super::outcome::{Outcome, Rejection};
use super::state::{Grant, Kind, State};
use proto::{AttemptId, TaskId, v1};
use std::sync::Arc;

/// The leader's clock and the node's may differ by this much: a hundredth, and 2 s (design 3).
const CLOCK_SLACK_MS: u64 = 2_000;

/// Attempts of one command: as many as the entry of a plan has.
const FENCED_MAX: usize = 1_024;

impl Ledger {
    /// The closed attempt is dead for certain: the task may go on.
    pub(super) fn prove(&mut self, id: TaskId, proof: Proof, who: Who) {
        let Some(fence) = self.job(id).and_then(|job| job.state.fence()) else { return };
        let to = if fence.held { Kind::Held } else { Kind::Queued };
        let cause = self.cause(who, What::Proven { attempt: fence.attempt, proof, to });
        self.update(id, |job| {
            job.state = if to == Kind::Held { State::Held } else { State::Queued };
            job.note(cause);
        });
    }

    /// A finish of an older attempt changes nothing, but that it proves a death that was waited
    /// for. What was settled without it is told once.
    pub(super) fn closed_finish(
        &mut self,
        agent: &Arc<str>,
        id: TaskId,
        attempt: u32,
        fact: &v1::FinishFact,
    ) {
        let Some(job) = self.job(id) else { return };
        let proves = waits_for(job, agent, attempt, fact.token.as_ref());
        let named = fact.token.is_some_and(|token| token.attempt == attempt);
        let awaited = job.fence().is_some_and(|fence| fence.attempt == attempt);
        let late = named && untold(job, agent, attempt) && (proves || !awaited);
        let who = Who::Agent(Arc::clone(agent));
        if late {
            let (kind, status) = match judge(fact, &job.spec().success_codes, None) {
                Finish::Over { reason, status, .. } => (reason.kind(), status),
                Finish::NodeFault(_) => (v1::ExitKind::StartFailed, None),
            };
            self.counters.late_outcomes += 1;
            let cause = self.cause(who.clone(), What::LateAttempt { attempt, kind, status });
            self.update(id, |job| job.note(cause));
        }
        self.note_orphan_gone(id, agent, attempt, fact.leftover);
        if proves {
            self.prove(id, Proof::Finish, who);
        }
    }

    /// Its node was told to kill that attempt; now nothing of it lives there.
    pub(super) fn note_orphan_gone(
        &mut self,
        id: TaskId,
        agent: &Arc<str>,
        attempt: u32,
        leftover: u32,
    ) {
        let gone = self.job(id).and_then(|job| job.orphan_is_gone(attempt, leftover));
        if let Some(what) = gone {
            let cause = self.cause(Who::Agent(Arc::clone(agent)), what);
            self.update(id, |job| job.note(cause));
        }
    }

    /// A join: what ran before its node was booted anew is dead.
    pub(super) fn prove_rebooted(&mut self, agent_id: &str) {
        for id in self.ids_waiting_on(agent_id) {
            let fence = self.job(id).and_then(|job| job.state.fence());
            if fence.is_some_and(|fence| self.rebooted_since(&fence.grant)) {
                self.prove(id, Proof::Reboot, Who::Agent(agent_id.into()));
            }
        }
    }

    /// Whether the node joined with another boot id since that grant.
    pub(super) fn rebooted_since(&self, grant: &Grant) -> bool {
        let now = self.agents.get(&grant.agent).map(|agent| &agent.boot);
        now.is_some_and(|now| !now.is_empty() && !grant.boot.is_empty() && *now != grant.boot)
    }

    /// An operator vouches for all closed attempts of an agent (`nodes confirm-dead`).
    pub(super) fn confirm_dead(
        &mut self,
        command: &v1::ConfirmDeadCommand,
    ) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        if !asker.by.admin {
            return Err(Rejection::NotAdmin);
        }
        let agent_id = command.agent_id.as_str();
        let agent = self
            .agents
            .get(agent_id)
            .ok_or_else(|| Rejection::NoSuchAgent { agent_id: agent_id.to_owned() })?;
        // Done twice, it would vouch for attempts that were closed since.
        if let Some(known) = agent.confirms.recall(&asker) {
            return Ok(Outcome::Proven { count: u64::try_from(known.value).unwrap_or(0) });
        }
        agent.confirms.judge_age(&asker.request, self.wall_ms)?;
        let ids = self.ids_waiting_on(agent_id);
        for id in &ids {
            self.prove(*id, Proof::Operator, Who::User(Arc::clone(&asker.user)));
        }
        let who = Who::User(Arc::clone(&asker.user));
        let count = ids.len() as u64 + self.leftovers_confirmed(agent_id, &who);
        let value = i64::try_from(count).unwrap_or(i64::MAX);
        let edit = Edit::new(&asker, Verb::ConfirmDead, value, self.led_ms);
        if let Some(agent) = self.agents.get_mut(agent_id) {
            agent.confirms.remember(edit);
        }
        Ok(Outcome::Proven { count })
    }

    /// The leader counted these leases to their ends.
    pub(super) fn fenced(&mut self, command: &v1::FencedCommand) -> Result<Outcome, Rejection> {
        if command.attempts.len() > FENCED_MAX {
            let why = format!("{} given, at most {FENCED_MAX}", command.attempts.len());
            return Err(Rejection::malformed("attempts", why));
        }
        let mut count = 0;
        for wire in &command.attempts {
            let attempt = AttemptId::from_wire(Some(wire))
                .map_err(|error| Rejection::malformed("attempts", error.to_string()))?;
            count += u64::from(self.leftover_fenced(attempt));
            let Some(job) = self.job(attempt.task) else { continue };
            // Without a lease its node ends nothing: only proof opens that fence.
            let waits = job.fence().is_some_and(|fence| {
                fence.attempt == attempt.attempt && fence.grant.lease_ms.is_some()
            });
            if waits {
                self.prove(attempt.task, Proof::Lease, self.by_leader());
                count += 1;
            }
        }
        Ok(Outcome::Proven { count })
    }

    /// When the lease of the closed attempt that this task waits for is over by any leader's clock,
    /// in led ms, if its node stays cut off. `None`: it waits for no lease.
    pub fn fence_over_led(&self, job: &Job) -> Option<u64> {
        let fence = job.fence()?;
        let lease = fence.grant.lease_ms?;
        let slack = (lease / 100).saturating_add(CLOCK_SLACK_MS);
        let from = fence.since_led_ms.max(self.term_led_ms);
        Some(from.saturating_add(lease).saturating_add(slack))
    }
}

/// Whether the task waits for the death of exactly this attempt.
fn waits_for(job: &Job, agent: &Arc<str>, attempt: u32, token: Option<&v1::Token>) -> bool {
    job.fence().is_some_and(|fence| {
        let given = (fence.grant.generation, fence.attempt);
        fence.attempt == attempt
            && fence.grant.agent == *agent
            && token.is_some_and(|token| (token.generation, token.attempt) == given)
    })
}

/// Whether that attempt of that agent was closed without its word, and nobody has told its end
/// since.
fn untold(job: &Job, agent: &Arc<str>, attempt: u32) -> bool {
    use v1::ExitKind::{AgentDied, Lost, Vanished};
    let closed = job.causes.iter().any(|cause| match &cause.what {
        What::Closed { attempt: n, agent: of, kind, status, detail, .. } => {
            let unseen = matches!(kind, AgentDied | Lost | Vanished);
            *n == attempt && of == agent && unseen && status.is_none() && detail.is_none()
        }
        _ => false,
    });
    let told = |cause: &super::Cause| matches!(cause.what, What::LateAttempt { attempt: n, .. } if n == attempt);
    closed && !job.causes.iter().any(told)
}
