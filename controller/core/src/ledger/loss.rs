//! Loss of a worker: two kinds, two answers; and what a new term makes of every worker
//! (design 3, "Loss of a worker").

use super::assign::stale;
use super::book::Ledger;
use super::cause::What;
use super::exit::{ExitReason, trim_text};
use super::node::{Agent, DownWhy, Session};
use super::outcome::{Outcome, Rejection};
use super::settle::Told;
use super::state::{Kind, State, Unknown, Was};
use proto::TaskId;
use proto::mutants::Mutant;
use proto::v1::{self, DownCause, OnDisconnect};
use std::sync::Arc;

/// Longest reason kept for an unknown state, in bytes.
const WHY_MAX: usize = 200;

impl Ledger {
    /// One agent's tasks become unknown; with an empty agent id, everybody's.
    pub(super) fn unknown(&mut self, command: &v1::UnknownCommand) -> Result<Outcome, Rejection> {
        let why = match command.why.as_str() {
            "" => "its node is silent".into(),
            why => trim_text(why, WHY_MAX).into(),
        };
        if command.agent_id.is_empty() {
            return Ok(Outcome::Unknown { count: self.lose_everybody(&why, DownWhy::Silent) });
        }
        if let Some(what) = self.not_current(&command.agent_id, command.incarnation)? {
            return Ok(stale(what));
        }
        let count = self.lose_all(&command.agent_id, &why);
        self.close_session(&command.agent_id, DownWhy::Silent);
        Ok(Outcome::Unknown { count })
    }

    /// The first entry of a term: nobody is heard yet. One event for the whole set.
    pub(super) fn begin_term(&mut self, command: &v1::TermCommand) -> Outcome {
        if command.term <= self.term {
            return stale(format!("term {} has begun already", self.term));
        }
        self.term = command.term;
        self.leader = command.leader;
        self.term_led_ms = self.led_ms;
        let next = self.next_job_id;
        self.agents.values_mut().for_each(|agent| {
            agent.ids_then.get_or_insert(next);
        });
        let why: Arc<str> = "the leader changed; its node has not been heard since".into();
        if Mutant::TermKeepsRunning.active() {
            return Outcome::TermStarted { count: 0 };
        }
        Outcome::TermStarted { count: self.lose_everybody(&why, DownWhy::NewTerm) }
    }

    pub(super) fn agent_down(
        &mut self,
        command: &v1::AgentDownCommand,
    ) -> Result<Outcome, Rejection> {
        let (down, why): (_, Arc<str>) = match command.cause() {
            DownCause::Rdhup => (DownWhy::Died, "its agent's process died".into()),
            DownCause::Silence => (DownWhy::Silent, "its node is silent".into()),
            DownCause::Goodbye => (DownWhy::Goodbye, "its agent restarts or reconnects".into()),
            DownCause::Leave => (DownWhy::Left, "its node has left".into()),
            DownCause::Unspecified => return Err(Rejection::malformed("cause", "unspecified")),
        };
        if let Some(what) = self.not_current(&command.agent_id, command.incarnation)? {
            return Ok(stale(what));
        }
        let ended = match down {
            DownWhy::Died => self.end_as_agent_died(&command.agent_id, command.incarnation),
            _ => 0,
        };
        let unknown = self.lose_all(&command.agent_id, &why);
        self.close_session(&command.agent_id, down);
        Ok(Outcome::AgentDown { ended, unknown })
    }

    /// What was heard to run in the session of the dead process ends at once. What was only
    /// dispatched may never have run, and what an older session had was never claimed by this
    /// process: both become unknown afterwards.
    fn end_as_agent_died(&mut self, agent_id: &str, incarnation: u64) -> u64 {
        let mut count = 0;
        for id in self.ids_held_by(agent_id) {
            let Some(job) = self.job(id) else { continue };
            let ran = (matches!(job.kind(), Kind::Running | Kind::Suspended)
                || Mutant::DispatchedDied.active() && job.kind() == Kind::Dispatched)
                && job.grant().is_some_and(|grant| grant.incarnation == incarnation);
            if ran && self.ends_on_disconnect(job.spec()) {
                let who = self.by_leader();
                self.over(id, false, ExitReason::AgentDied, Told::default(), who);
                count += 1;
            }
        }
        count
    }

    fn ends_on_disconnect(&self, spec: &v1::JobSpec) -> bool {
        match spec.on_disconnect() {
            _ if Mutant::DisconnectIgnored.active() => true,
            OnDisconnect::Unspecified => self.policy.on_disconnect() != OnDisconnect::Unknown,
            given => given == OnDisconnect::Exit,
        }
    }

    fn lose_everybody(&mut self, why: &Arc<str>, down: DownWhy) -> u64 {
        let agents: Vec<Arc<str>> = self.agents.keys().cloned().collect();
        let mut count = 0;
        for agent in agents {
            count += self.lose_all(&agent, why);
            // What has left is not waited for by a new leader either.
            let left = |agent: &Agent| agent.session == Session::Down(DownWhy::Left);
            if !self.agents.get(&agent).is_some_and(left) {
                self.close_session(&agent, down);
            }
        }
        count
    }

    fn lose_all(&mut self, agent_id: &str, why: &Arc<str>) -> u64 {
        let mut count = 0;
        for id in self.ids_held_by(agent_id) {
            // A task that is unknown already keeps its older `transient_since` (B2).
            if self.job(id).is_some_and(|job| loses(job.kind())) {
                self.lose(id, why);
                count += 1;
            }
        }
        count
    }

    pub(super) fn lose(&mut self, id: TaskId, why: &Arc<str>) {
        let cause = self.cause(self.by_leader(), What::Unknown { why: Arc::clone(why) });
        let (since_led_ms, since_wall_ms) = (self.led_ms, self.wall_ms);
        self.update(id, |job| {
            let (grant, was) = match &job.state {
                State::Dispatched(grant) => ((**grant).clone(), Was::Dispatched),
                State::Running(run) => (run.grant.clone(), Was::Running(run.started.clone())),
                State::Suspended(run) => (run.grant.clone(), Was::Suspended(run.started.clone())),
                State::Unknown(unknown) => (unknown.grant.clone(), unknown.was.clone()),
                _ => return,
            };
            let why = Arc::clone(why);
            let unknown = Unknown { grant, was, since_led_ms, since_wall_ms, why };
            job.state = State::Unknown(Box::new(unknown));
            job.note(cause);
        });
    }

    fn close_session(&mut self, agent_id: &str, why: DownWhy) {
        let wall_ms = self.wall_ms;
        if let Some(agent) = self.agents.get_mut(agent_id) {
            agent.session = Session::Down(why);
            agent.since_wall_ms = wall_ms;
            agent.judging = None;
        }
    }

    /// Why a command about that session is stale, if it is.
    pub(super) fn not_current(
        &self,
        agent_id: &str,
        incarnation: u64,
    ) -> Result<Option<String>, Rejection> {
        let agent = self
            .agents
            .get(agent_id)
            .ok_or_else(|| Rejection::NoSuchAgent { agent_id: agent_id.to_owned() })?;
        let now = agent.incarnation();
        let counts = now != incarnation && !Mutant::OldSessionEnds.active();
        Ok(counts.then(|| format!("the agent's session is {now}, not {incarnation}")))
    }
}

/// Whether the loss of its node makes a task of this kind unknown.
fn loses(kind: Kind) -> bool {
    match kind {
        Kind::Unknown => Mutant::SinceResetByTerm.active(),
        Kind::Dispatched => !Mutant::DispatchedForgotten.active(),
        kind => kind.held_by(),
    }
}
