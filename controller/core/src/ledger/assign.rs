//! Assign: a placement becomes durable before its run order leaves the leader.
//! The plan was made on an older state, so everything it relied on is checked again here.

use super::book::Ledger;
use super::cause::What;
use super::node::{Agent, Session};
use super::outcome::{Outcome, Rejection};
use super::retry::lease_of;
use super::state::{Grant, Kind, State};
use crate::scheduler::{Free, Pool, feasible, id_taken};
use proto::{AttemptId, v1};
use std::sync::Arc;

impl Ledger {
    pub(super) fn assign(&mut self, command: &v1::AssignCommand) -> Result<Outcome, Rejection> {
        let attempt = AttemptId::from_wire(command.attempt.as_ref())
            .map_err(|error| Rejection::malformed("attempt", error.to_string()))?;
        let id = attempt.task;
        let job = self.find(id)?;
        if attempt.attempt != job.attempt {
            let now = AttemptId { attempt: job.attempt, ..attempt };
            return Ok(stale(format!("the task is at attempt {now}")));
        }
        if job.kind() != Kind::Queued {
            return Ok(stale(format!("the task is {}, not queued", job.state_name())));
        }
        if let Some(array) = self.array(id.job).filter(|array| array.full()) {
            let limit = array.limit().unwrap_or_default();
            return Ok(stale(format!("{limit} tasks of the array are on nodes, its limit")));
        }
        if let Some(reached) = self.limit_reached(job) {
            return Ok(stale(reached.to_string()));
        }
        let agent = self
            .agents
            .get(command.agent_id.as_str())
            .ok_or_else(|| Rejection::NoSuchAgent { agent_id: command.agent_id.clone() })?;
        if let Some(what) = session_changed(agent, command) {
            return Ok(stale(what));
        }
        let ask = job.ask();
        let free = Free::of(agent, self);
        let refusal =
            feasible(ask, agent, &free, self.led_ms).or_else(|| id_taken(agent, attempt.task.job));
        let missing = Pool::of(self).missing(ask).map(|short| short.to_string());
        let why: Vec<String> = refusal.map(|r| r.to_string()).into_iter().chain(missing).collect();
        if !why.is_empty() {
            return Ok(stale(why.join("; ")));
        }
        let grant = Grant {
            agent: agent.id.clone(),
            incarnation: agent.incarnation(),
            journal: agent.journal.clone(),
            order: self.order,
            generation: self.generation,
            cpus: ask.cpus,
            mem_bytes: ask.mem_bytes,
            gpus: ask.gpus,
            given: self.given(ask, agent),
            wall_ms: self.wall_ms,
            boot: Arc::clone(&agent.boot),
            lease_ms: lease_of(job, &self.policy),
        };
        let what = What::Assigned { agent: grant.agent.clone(), attempt: attempt.attempt };
        let cause = self.cause(self.by_leader(), what);
        self.update(id, |job| {
            job.state = State::Dispatched(Box::new(grant));
            job.note(cause);
        });
        Ok(Outcome::Assigned)
    }
}

fn session_changed(agent: &Agent, command: &v1::AssignCommand) -> Option<String> {
    if agent.incarnation() != command.incarnation {
        let now = agent.incarnation();
        return Some(format!("the agent's session is {now}, not {}", command.incarnation));
    }
    if *agent.journal != *command.journal_id {
        return Some("the agent has another journal".to_owned());
    }
    match agent.session {
        Session::Up => None,
        Session::Joining => Some("the agent's manifest is not judged yet".to_owned()),
        Session::Down(why) => Some(format!("the agent is down: {}", why.as_str())),
    }
}

pub(super) fn stale(what: impl Into<String>) -> Outcome {
    Outcome::Stale { what: what.into() }
}
