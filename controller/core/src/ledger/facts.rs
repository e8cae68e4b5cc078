//! Facts of a keeper's journal. Their seq orders and acknowledges; what they mean decides
//! (design 3, "Facts are idempotent by meaning").

use super::assign::stale;
use super::book::Ledger;
use super::cause::{What, Who};
use super::deferred::{About, Deferred, Key, Word, trimmed};
use super::exit::{ExitReason, Finish, judge, trim_failure};
use super::job::Job;
use super::node::{NodeFault, Session};
use super::outcome::{Outcome, Rejection};
use super::settle::Told;
use super::state::{Grant, Kind, Late, Run, Started, State, StateName, Was};
use proto::mutants::Mutant;
use proto::{AttemptId, OrderId, Seq, TaskId, v1, v1::fact};
use std::sync::Arc;

/// Longest end of stderr that is kept, in bytes (design 5, Logs).
pub(super) const STDERR_TAIL_MAX: usize = 4096;

/// A node that failed is tried again after this long at first, in led ms; each further failure in
/// a row doubles it up to the second value, so that it cannot swallow a queue.
const FAULT_BACKOFF_MS: (u64, u64) = (1_000, 300_000);

/// Who cancelled what this log never heard was to be cancelled.
const FORGOTTEN: &str = "somebody whom this log forgot";

/// Who reports, in which session, from which journal.
pub(super) struct Reporter {
    pub agent: Arc<str>,
    pub incarnation: u64,
    pub journal: Arc<[u8]>,
}

/// Whom a fact concerns.
enum Target {
    /// This job's present attempt, held by the reporter (or held last, if it has ended).
    Ours(TaskId),
    /// An older attempt of this job: counted, and closed for good.
    Closed(TaskId, u32),
    /// A waiting job of a ledger that was restored: its assignment was lost, and this is its proof.
    Adopt(TaskId),
    /// Nobody any more: counted.
    NoOp,
    /// A job or an assignment that the ledger does not have: it waits in the registry.
    Unknown,
}

impl Ledger {
    pub(super) fn take_facts(&mut self, command: &v1::FactsCommand) -> Result<Outcome, Rejection> {
        let facts = well_formed(command.facts.as_ref())?;
        let agent = self
            .agents
            .get(command.agent_id.as_str())
            .ok_or_else(|| Rejection::NoSuchAgent { agent_id: command.agent_id.clone() })?;
        if *agent.journal != *facts.journal_id {
            return Ok(stale("the agent has another journal now"));
        }
        if command.incarnation > agent.incarnation() {
            return Ok(stale("that session of the agent has not joined"));
        }
        let (agent_id, journal_id) = (Arc::clone(&agent.id), Arc::clone(&agent.journal));
        if facts.from > agent.high.0.saturating_add(1) {
            return Ok(Outcome::FactsGap { agent_id, from: Seq(agent.high.0 + 1) });
        }
        let reporter = Reporter {
            agent: Arc::clone(&agent_id),
            incarnation: command.incarnation,
            journal: Arc::clone(&journal_id),
        };
        let mut later = Vec::new();
        for fact in &facts.facts {
            if let Some(reason) = self.take_fact(&reporter, fact) {
                self.counters.refused += 1;
                later.push((Seq(fact.seq), reason));
            }
        }
        if let Some(agent) = self.agents.get_mut(&agent_id) {
            agent.high = agent.high.max(Seq(facts.to));
        }
        Ok(Outcome::FactsTaken { agent_id, journal_id, high: Seq(facts.to), later })
    }

    /// Takes one fact; a text says why it has to be told again later.
    fn take_fact(&mut self, by: &Reporter, fact: &v1::Fact) -> Option<String> {
        let Some(about) = About::of(fact) else {
            self.counters.malformed += 1;
            return None;
        };
        let target = self.locate(&by.agent, &about);
        if about.word == Word::Finish && !matches!(target, Target::Ours(_)) {
            self.stray_ended(&by.agent, about.attempt);
        }
        let generation = about.token.generation;
        match about.word {
            Word::Start => self.told_alive(&by.agent, about.attempt, generation),
            Word::Finish => self.told_dead(&by.agent, about.attempt, generation, true),
            Word::Refused => self.told_dead(&by.agent, about.attempt, generation, false),
            Word::Stopped => {}
        }
        match target {
            Target::Unknown if self.is_bygone(&by.agent, fact.seq, &about) => {
                self.forgotten(&about)
            }
            Target::Unknown => return self.defer(by, &about, fact),
            target => self.take_located(by, &about, target, fact),
        }
        None
    }

    /// It is no stray any more: its id is free there.
    fn stray_ended(&mut self, agent: &str, attempt: AttemptId) {
        if let Some(agent) = self.agents.get_mut(agent) {
            agent.strays.retain(|stray| *stray != attempt);
        }
    }

    /// What an agent that is new here tells of jobs that it had from another log. It proves nothing
    /// about this one, so no generation tells its tokens from those of this log.
    fn is_bygone(&self, agent: &str, seq: u64, about: &About) -> bool {
        let bygone = self.agents.get(agent).and_then(|agent| agent.bygone);
        bygone.is_some_and(|bygone| seq < bygone.below.0)
            && about.token.generation >= self.generation
    }

    /// Its keeper remembers that attempt and would not run it again: no job of this log may use it.
    fn forgotten(&mut self, about: &About) {
        self.counters.unknown_attempt += 1;
        let AttemptId { task, attempt } = about.attempt;
        if !self.gave(task.job) {
            self.skip_ids(task.job);
            return;
        }
        let waits = |job: &Job| job.grant().is_none() && !job.terminal() && job.attempt == attempt;
        if self.jobs.task(task).is_some_and(waits) {
            self.update(task, |job| job.attempt = attempt.saturating_add(1));
        }
    }

    fn take_located(&mut self, by: &Reporter, about: &About, target: Target, fact: &v1::Fact) {
        let id = match target {
            Target::Ours(id) => id,
            Target::Closed(id, attempt) => {
                if let Some(fact::Kind::Finish(finish)) = &fact.kind {
                    self.closed_finish(&by.agent, id, attempt, finish);
                }
                return;
            }
            Target::Adopt(id) => {
                // Its manifest names its gpus.
                self.adopt(by, about.token, id, &[]);
                id
            }
            Target::NoOp | Target::Unknown => return,
        };
        match &fact.kind {
            Some(fact::Kind::Start(start)) => self.start(by, id, start),
            Some(fact::Kind::Finish(finish)) => self.finish(by, id, finish),
            Some(fact::Kind::Refused(refused)) => self.refused(by, id, refused),
            Some(fact::Kind::Suspended(_)) => self.stopped(by, id, fact.seq, true),
            Some(fact::Kind::Resumed(_)) => self.stopped(by, id, fact.seq, false),
            None => {}
        }
    }

    fn locate(&mut self, agent: &str, about: &About) -> Target {
        let About { attempt, token, .. } = *about;
        let id = attempt.task;
        if token.attempt != attempt.attempt {
            self.counters.other_attempt += 1;
            return Target::NoOp;
        }
        if !self.gave(id.job) {
            return Target::Unknown;
        }
        let lost = self.is_of_lost_part(id.job, token.generation);
        if lost && !self.granted(id, agent, token.generation) {
            self.counters.unknown_attempt += 1;
            return Target::NoOp;
        }
        let Some(job) = self.jobs.task(id) else {
            match self.jobs.entry(id.job) {
                None => self.counters.evicted += 1,
                Some(_) => self.counters.other_attempt += 1,
            }
            return Target::NoOp;
        };
        if attempt.attempt < job.attempt && !Mutant::AttemptNotCompared.active() {
            self.counters.other_attempt += 1;
            return Target::Closed(id, attempt.attempt);
        }
        let grant = match job.grant() {
            Some(grant) if attempt.attempt <= job.attempt => grant,
            // No attempt of it will come any more.
            _ if job.terminal() => {
                self.counters.after_end += 1;
                return Target::NoOp;
            }
            _ => return self.unassigned(about, id),
        };
        if *grant.agent != *agent {
            self.counters.wrong_agent += 1;
            return Target::NoOp;
        }
        if token.generation != grant.generation {
            self.counters.other_attempt += 1;
            return Target::NoOp;
        }
        Target::Ours(id)
    }

    /// Whether this ledger gave the job's newest attempt to that agent, with such a token.
    pub(super) fn granted(&self, id: TaskId, agent: &str, generation: u64) -> bool {
        let grant = self.jobs.task(id).and_then(|job| job.grant());
        grant.is_some_and(|grant| *grant.agent == *agent && grant.generation == generation)
    }

    /// A known job, and an attempt of which the ledger has no assignment. One of an older
    /// generation was assigned in a log that a restore cut off: no Assign for it can come.
    fn unassigned(&mut self, about: &About, id: TaskId) -> Target {
        let kind = self.jobs.task(id).map(|job| job.kind());
        match about.word {
            _ if about.token.generation >= self.generation => Target::Unknown,
            // Nothing ran there: the job goes its way as if it had not been assigned.
            Word::Refused => {
                self.counters.other_attempt += 1;
                Target::NoOp
            }
            Word::Start | Word::Finish
                if kind.is_some_and(|kind| kind.name() == StateName::Pend && !kind.held_by()) =>
            {
                Target::Adopt(id)
            }
            Word::Start | Word::Finish | Word::Stopped => Target::Unknown,
        }
    }

    /// Makes the reporter's attempt the job's present one (design 4, restore). Order 0: older than
    /// any join, so that the next manifest judges it.
    pub(super) fn adopt(&mut self, by: &Reporter, token: v1::Token, id: TaskId, gpus: &[u32]) {
        let Some(ask) = self.jobs.task(id).map(|job| Arc::clone(job.ask())) else { return };
        let newest = self.agents.get(&by.agent).map(|agent| agent.incarnation());
        let mut grant = Grant {
            agent: Arc::clone(&by.agent),
            incarnation: newest.unwrap_or(by.incarnation),
            journal: Arc::clone(&by.journal),
            order: OrderId(0),
            generation: token.generation,
            cpus: ask.cpus,
            mem_bytes: ask.mem_bytes,
            gpus: ask.gpus,
            given: self.given_with(&ask, Vec::new()),
            wall_ms: self.wall_ms,
            boot: Arc::default(),
            // Its own lease, if it has one, is not known: only proof of its death counts.
            lease_ms: None,
        };
        grant.number_gpus(gpus);
        let attempt = token.attempt;
        let what = What::Adopted { agent: Arc::clone(&by.agent), attempt };
        let cause = self.cause(Who::Agent(Arc::clone(&by.agent)), what);
        self.update(id, |job| job.state = State::Queued);
        self.update(id, |job| {
            job.attempt = attempt;
            job.state = State::Dispatched(Box::new(grant));
            job.note(cause);
        });
    }

    /// Puts a fact into the registry; a text says which of its limits is reached.
    fn defer(&mut self, by: &Reporter, about: &About, fact: &v1::Fact) -> Option<String> {
        if about.word == Word::Stopped || Mutant::UnknownFinishDropped.active() {
            self.counters.unknown_attempt += 1;
            return None;
        }
        if self.deferred.contains(&Key::of(about, &by.agent)) {
            self.counters.repeated += 1;
            return None;
        }
        let new = Deferred {
            agent: Arc::clone(&by.agent),
            incarnation: by.incarnation,
            journal: Arc::clone(&by.journal),
            fact: trimmed(fact),
            since_led_ms: self.led_ms,
            since_wall_ms: self.wall_ms,
            position: self.applied,
            orphan: false,
        };
        if let Err(full) = self.deferred.admits(&new, self.policy.unknown_finish_max) {
            return Some(full.to_string());
        }
        self.counters.deferred += u64::from(self.deferred.insert(new));
        None
    }

    /// Looks again at what waits about the jobs that the command changed, start before finish: what
    /// they are now may be what it waited for, or make sure that this never comes.
    pub(super) fn drain(&mut self) {
        while let Some(id) = self.drainable.pop_first() {
            if Mutant::RegistryNotDrained.active() {
                continue;
            }
            for key in self.deferred.of_job(id) {
                let Some(entry) = self.deferred.get(&key).cloned() else { continue };
                let Some(about) = About::of(&entry.fact) else { continue };
                match self.locate(&entry.agent, &about) {
                    Target::Unknown => {}
                    target => self.drain_one(&key, &about, target),
                }
            }
        }
    }

    fn drain_one(&mut self, key: &Key, about: &About, target: Target) {
        let taken = match Mutant::RegistryDrainedTwice.active() {
            true => self.deferred.get(key).cloned(),
            false => self.deferred.remove(key),
        };
        let Some(entry) = taken else { return };
        if matches!(target, Target::Ours(_) | Target::Adopt(_)) {
            self.counters.drained += 1;
            self.counters.orphans_drained += u64::from(entry.orphan);
        }
        let by = Reporter {
            agent: Arc::clone(&entry.agent),
            incarnation: entry.incarnation,
            journal: Arc::clone(&entry.journal),
        };
        self.take_located(&by, about, target, &entry.fact);
        self.lose_if_away(about.attempt.task, &entry.agent);
    }

    /// A start that waited makes a task run whose agent may have been given up meanwhile: nobody
    /// is left to be silent.
    fn lose_if_away(&mut self, id: TaskId, agent: &str) {
        let away = match self.agents.get(agent).map(|agent| agent.session) {
            Some(Session::Down(why)) => why.as_str().into(),
            _ => return,
        };
        if self.jobs.task(id).is_some_and(|job| job.kind().held_by()) {
            self.lose(id, &away);
        }
    }

    /// Whether a fact in the registry still waits for something that can come.
    pub(super) fn still_waits(&self, about: &About) -> bool {
        let id = about.attempt.task;
        let Some(job) = self.jobs.task(id) else { return !self.gave(id.job) };
        let assigned = job.grant().is_some() && about.attempt.attempt == job.attempt;
        about.attempt.attempt >= job.attempt && !job.terminal() && !assigned
    }

    fn start(&mut self, by: &Reporter, id: TaskId, fact: &v1::StartFact) {
        let Some(job) = self.jobs.task(id) else { return };
        match (job.kind(), job.started()) {
            (Kind::Done | Kind::Exit, _) => self.counters.after_end += 1,
            // A second start is no news, not even of a task that is unknown: the manifest tells.
            (_, Some(known)) if !known.from_manifest => self.counters.repeated += 1,
            (Kind::Unknown, Some(_)) | (Kind::Running | Kind::Suspended, _) => {
                self.complete_start(id, fact);
            }
            _ => self.begin_running(by, id, fact),
        }
    }

    /// The start was known from a manifest: now its output files are known too.
    fn complete_start(&mut self, id: TaskId, fact: &v1::StartFact) {
        let started = Started::from_fact(fact);
        self.update(id, |job| match &mut job.state {
            State::Running(run) | State::Suspended(run) => run.started = started,
            State::Unknown(unknown) => match &mut unknown.was {
                Was::Running(old) | Was::Suspended(old) => *old = started,
                Was::Dispatched => {}
            },
            _ => {}
        });
    }

    fn begin_running(&mut self, by: &Reporter, id: TaskId, fact: &v1::StartFact) {
        let started = Started::from_fact(fact);
        let who = Who::Agent(Arc::clone(&by.agent));
        let cause = self.cause(who, What::Started { pid: fact.pid });
        let since_led_ms = self.led_ms;
        self.update(id, |job| {
            if let Some(mut grant) = job.state.live_grant().cloned() {
                grant.incarnation = grant.incarnation.max(by.incarnation);
                job.state = State::Running(Box::new(Run { grant, started, since_led_ms }));
                job.note(cause);
            }
        });
        self.clear_fault(&by.agent);
    }

    fn finish(&mut self, by: &Reporter, id: TaskId, fact: &v1::FinishFact) {
        let Some(job) = self.jobs.task(id) else { return };
        // Who asked may be known to the part of the log alone that is lost since it was assigned.
        let older = job.grant().is_some_and(|grant| grant.generation < self.generation);
        let forgotten = || older.then(|| FORGOTTEN.to_owned());
        let cancelled_by = job.cancel().map(|cancel| cancel.by.name.clone()).or_else(forgotten);
        let verdict = judge(fact, &job.spec().success_codes, cancelled_by.as_deref());
        let overwrites = Mutant::TerminalOverwritten.active();
        if let Some(ended) = job.state.ended().filter(|_| !overwrites) {
            let attempt = job.attempt;
            let keeps = !Mutant::LateForgotten.active();
            if ended.reason.without_word() && ended.late.is_none() && keeps {
                self.note_late(by, id, fact, verdict);
            } else {
                self.counters.after_end += 1;
            }
            self.note_orphan_gone(id, &by.agent, attempt, fact.leftover);
            return;
        }
        let who = Who::Agent(Arc::clone(&by.agent));
        match verdict {
            Finish::Over { done, reason, status } => {
                let order = self.jobs.task(id).and_then(|job| job.grant()).map(|grant| grant.order);
                let told = self.told(id, fact, done, status);
                self.over(id, done, reason, told, who);
                self.clear_older_fault(&by.agent, order);
            }
            Finish::NodeFault(failure) => {
                self.note_fault(&by.agent, &failure);
                self.node_fault(id, failure, who);
            }
        }
    }

    /// A settled task stays as it is; its real outcome is kept beside it (P3, P5).
    fn note_late(&mut self, by: &Reporter, id: TaskId, fact: &v1::FinishFact, verdict: Finish) {
        self.counters.late_outcomes += 1;
        let (reason, status) = match verdict {
            Finish::Over { reason, status, .. } => (reason, status),
            Finish::NodeFault(failure) => (ExitReason::StartFailed(failure), None),
        };
        let what = What::Late { kind: reason.kind(), status };
        let cause = self.cause(Who::Agent(Arc::clone(&by.agent)), what);
        let late = Late {
            reason,
            status,
            finish_wall_ms: wall_or(fact.finish_wall_ms, self.wall_ms),
            position: self.applied,
        };
        self.update(id, |job| {
            if let State::Done(ended) | State::Exit(ended) = &mut job.state {
                ended.late = Some(Box::new(late));
            }
            job.note(cause);
        });
    }

    fn refused(&mut self, by: &Reporter, id: TaskId, fact: &v1::RefusedFact) {
        let Some(job) = self.jobs.task(id) else { return };
        if job.terminal() {
            self.counters.after_end += 1;
            return;
        }
        // The order was taken before: only a repetition of it was refused.
        if job.started().is_some() {
            self.counters.repeated += 1;
            return;
        }
        let failure = fact.failure.as_ref().map(trim_failure).unwrap_or_else(|| v1::StartFailure {
            step: "order".to_owned(),
            node_fault: true,
            ..Default::default()
        });
        self.note_fault(&by.agent, &failure);
        self.node_fault(id, failure, Who::Agent(Arc::clone(&by.agent)));
    }

    /// Its keeper stopped its tree, or let it go on. What a manifest told already is no news, and
    /// neither is a fact that was taken before: of two that undo each other the meaning cannot tell
    /// which came last, only the journal can.
    fn stopped(&mut self, by: &Reporter, id: TaskId, seq: u64, stopped: bool) {
        let Some(job) = self.jobs.task(id) else { return };
        if job.terminal() {
            return self.counters.after_end += 1;
        }
        let taken = self.agents.get(&by.agent).is_some_and(|agent| Seq(seq) <= agent.high);
        if taken || job.started().is_none() || job.stopped() == stopped {
            return self.counters.repeated += 1;
        }
        let what = if stopped { What::Suspended } else { What::Resumed };
        let cause = self.cause(Who::Agent(Arc::clone(&by.agent)), what);
        let led_ms = self.led_ms;
        self.update(id, |job| {
            job.state.stop(stopped, led_ms);
            job.note(cause);
        });
    }

    fn told(&self, id: TaskId, fact: &v1::FinishFact, done: bool, status: Option<u32>) -> Told {
        let known = self.jobs.task(id).and_then(|job| job.started());
        let started = match (&fact.start, known) {
            // A fact that was taken already is not replaced by what rides along.
            (_, Some(known)) if !known.from_manifest => None,
            (Some(start), _) => Some(Started::from_fact(start)),
            (None, _) => None,
        };
        let tail = fact.stderr_tail.len().saturating_sub(STDERR_TAIL_MAX);
        Told {
            status,
            finish_wall_ms: Some(wall_or(fact.finish_wall_ms, self.wall_ms)),
            started,
            rusage: fact.rusage,
            stderr_tail: if done {
                Vec::new()
            } else {
                fact.stderr_tail.get(tail..).unwrap_or_default().to_vec()
            },
            stdout_bytes: fact.stdout_bytes,
            stderr_bytes: fact.stderr_bytes,
            stdout_cut_bytes: fact.stdout_cut_bytes,
            stderr_cut_bytes: fact.stderr_cut_bytes,
            leftover: fact.leftover,
            gone: true,
        }
    }

    fn note_fault(&mut self, agent: &str, failure: &v1::StartFailure) {
        let (led_ms, wall_ms, order) = (self.led_ms, self.wall_ms, self.order);
        let Some(agent) = self.agents.get_mut(agent) else { return };
        // Of several that were under way at once the first counts: nothing was tried since.
        if agent.kept_out(led_ms).is_some() {
            return;
        }
        let count = agent.fault.as_ref().map_or(0, |fault| fault.count).saturating_add(1);
        let (first, most) = FAULT_BACKOFF_MS;
        let wait = (first << (count - 1).min(16)).min(most);
        agent.fault = Some(NodeFault {
            failure: failure.clone(),
            count,
            until_led_ms: led_ms.saturating_add(wait),
            wall_ms,
            order,
        });
    }

    /// An end proves that its attempt was started once: that the node works again only if it was
    /// assigned after the fault. One that ran before says nothing about what starts now.
    fn clear_older_fault(&mut self, agent: &str, order: Option<OrderId>) {
        let fault = self.agents.get(agent).and_then(|agent| agent.fault.as_ref());
        if fault.is_some_and(|fault| order > Some(fault.order)) {
            self.clear_fault(agent);
        }
    }

    /// Something got as far as the user's own steps there: the node works again.
    fn clear_fault(&mut self, agent: &str) {
        if let Some(agent) = self.agents.get_mut(agent) {
            agent.fault = None;
        }
    }
}

fn wall_or(told: u64, own: u64) -> u64 {
    if told == 0 { own } else { told }
}

fn well_formed(facts: Option<&v1::Facts>) -> Result<&v1::Facts, Rejection> {
    let facts = facts.ok_or_else(|| Rejection::malformed("facts", "absent"))?;
    if facts.from == 0 || facts.to < facts.from || facts.to == u64::MAX {
        let why = format!("{}..={} is no range of a journal", facts.from, facts.to);
        return Err(Rejection::malformed("facts", why));
    }
    let mut least = facts.from;
    for fact in &facts.facts {
        if fact.seq < least || fact.seq > facts.to {
            let why = format!("fact {} is out of order or range", fact.seq);
            return Err(Rejection::malformed("facts", why));
        }
        least = fact.seq + 1;
    }
    Ok(facts)
}
