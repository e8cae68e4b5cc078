//! Manifest: what an agent says it has, against what the ledger says it should have
//! (design 3, "Manifest at every join").

use super::assign::stale;
use super::book::Ledger;
use super::cause::{Proof, What, Who};
use super::exit::ExitReason;
use super::facts::Reporter;
use super::job::Job;
use super::node::{DownWhy, Judging, Session};
use super::outcome::{ManifestOutcome, Outcome, Rejection};
use super::settle::Told;
use super::state::{Grant, Kind, Run, Started, State};
use proto::mutants::Mutant;
use proto::{AttemptId, OrderId, Seq, TaskId, v1, v1::Phase};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Items of a page (design 3, Reconnect storm).
const PAGE_ITEMS_MAX: usize = 1000;

/// Strays kept per agent for the operator: a list to look at, not a log.
const STRAYS_MAX: usize = 1000;

/// What becomes of one item.
enum Verdict {
    Claim(TaskId),
    /// A job that waits here, given to this agent in a part of the log that is lost.
    Adopt(TaskId),
    Keep,
    Kill,
    Stray,
    Newer,
}

impl Ledger {
    pub(super) fn manifest(&mut self, page: &v1::ManifestCommand) -> Result<Outcome, Rejection> {
        let attempts = well_formed(page)?;
        if let Some(what) = self.not_current(&page.agent_id, page.incarnation)? {
            return Ok(stale(what));
        }
        if let Some(what) = self.open_page(page)? {
            return Ok(stale(what));
        }
        let mut outcome = ManifestOutcome::default();
        for (item, attempt) in page.items.iter().zip(&attempts) {
            self.judge_item(page, item, *attempt, &mut outcome);
        }
        let Some(agent) = self.agents.get_mut(page.agent_id.as_str()) else {
            return Err(Rejection::NoSuchAgent { agent_id: page.agent_id.clone() });
        };
        let room = STRAYS_MAX.saturating_sub(agent.strays.len());
        agent.strays.extend(outcome.strays.iter().take(room));
        if let Some(judging) = &mut agent.judging {
            // A stray is another job's: the one that has its id here was not seen by that.
            let strays: BTreeSet<&AttemptId> = outcome.strays.iter().collect();
            judging.seen.extend(attempts.iter().filter(|attempt| !strays.contains(attempt)));
            judging.next_page += 1;
        }
        if page.last {
            let seen = agent.judging.take().map(|judging| judging.seen).unwrap_or_default();
            self.prove_missing(page, &seen);
            self.leftovers_judged(page, &seen);
            self.judge_missing(page, &seen, &mut outcome);
            self.losses_judged(page);
            self.open_session(&page.agent_id);
            outcome.judged = true;
        }
        Ok(Outcome::Manifest(outcome))
    }

    /// Makes the page the next one of its manifest, or says why it cannot be.
    fn open_page(&mut self, page: &v1::ManifestCommand) -> Result<Option<String>, Rejection> {
        let Some(agent) = self.agents.get_mut(page.agent_id.as_str()) else {
            return Err(Rejection::NoSuchAgent { agent_id: page.agent_id.clone() });
        };
        if *agent.journal != *page.journal_id {
            return Ok(Some("the agent has another journal".to_owned()));
        }
        match agent.session {
            Session::Joining | Session::Up | Session::Down(DownWhy::Silent) => {}
            Session::Down(why) => return Ok(Some(format!("the agent is down: {}", why.as_str()))),
        }
        // Judged without its facts, an attempt that has ended would look as if it never came.
        if page.last_seq > agent.high.0 && !Mutant::FactsBeforeManifest.active() {
            return Err(Rejection::FactsNotApplied { high: agent.high, last: Seq(page.last_seq) });
        }
        if page.page == 0 {
            agent.strays.clear();
            agent.judging =
                Some(Judging { at_join: page.at_join, next_page: 0, seen: BTreeSet::new() });
        }
        let due = agent.judging.as_ref().map(|judging| (judging.next_page, judging.at_join));
        if due != Some((page.page, page.at_join)) {
            return Ok(Some(format!("page {} of the manifest is not the next one", page.page)));
        }
        Ok(None)
    }

    fn judge_item(
        &mut self,
        page: &v1::ManifestCommand,
        item: &v1::ManifestItem,
        attempt: AttemptId,
        outcome: &mut ManifestOutcome,
    ) {
        // Ended attempts travel as facts; a manifest never settles them.
        if item.phase() == Phase::Ended {
            return;
        }
        match self.verdict(&page.agent_id, item, attempt) {
            Verdict::Claim(id) => {
                self.claim(page, item, id);
                outcome.claimed += 1;
            }
            Verdict::Adopt(id) => {
                self.adopt_item(page, item, id);
                self.claim(page, item, id);
                outcome.claimed += 1;
            }
            Verdict::Keep => {}
            Verdict::Kill => {
                self.note_orphan(&page.agent_id, attempt);
                outcome.kill.push(attempt);
            }
            Verdict::Stray => {
                let generation = item.token.map_or(0, |token| token.generation);
                if self.is_of_lost_part(attempt.task.job, generation) {
                    self.step_aside(attempt);
                }
                self.note_stray(&page.agent_id, attempt);
                outcome.strays.push(attempt);
            }
            Verdict::Newer => outcome.newer.push(attempt),
        }
    }

    fn verdict(&self, agent_id: &str, item: &v1::ManifestItem, attempt: AttemptId) -> Verdict {
        let id = attempt.task;
        let generation = item.token.map_or(0, |token| token.generation);
        let lost =
            self.is_of_lost_part(id.job, generation) && !self.granted(id, agent_id, generation);
        if !self.gave(id.job) || lost {
            return Verdict::Stray;
        }
        let Some(job) = self.job(id) else {
            return if self.entry(id.job).is_some() { Verdict::Stray } else { Verdict::Kill };
        };
        if Mutant::OrphanKept.active() && job.terminal()
            || Mutant::OlderAttemptKept.active() && attempt.attempt < job.attempt()
        {
            return Verdict::Keep;
        }
        if attempt.attempt >= job.attempt() && self.adoptable(job, item, attempt) {
            return Verdict::Adopt(id);
        }
        if attempt.attempt > job.attempt() {
            return Verdict::Newer;
        }
        if attempt.attempt < job.attempt() || job.terminal() {
            return Verdict::Kill;
        }
        match job.grant() {
            // Never assigned by this ledger, though the id is known: after a restore only.
            None => Verdict::Stray,
            Some(grant) if *grant.agent != *agent_id => Verdict::Kill,
            Some(grant) if !same_token(grant, item, attempt) => Verdict::Kill,
            Some(_) if item.phase() == Phase::Unspecified => Verdict::Keep,
            Some(_) => Verdict::Claim(id),
        }
    }

    /// Whether an attempt was given away in a part of the log that is lost, and its job waits here.
    fn adoptable(&self, job: &Job, item: &v1::ManifestItem, attempt: AttemptId) -> bool {
        let token = item.token.filter(|token| token.attempt == attempt.attempt);
        let waits = job.grant().is_none() && !job.terminal();
        waits
            && item.phase() != Phase::Unspecified
            && token.is_some_and(|token| token.generation < self.generation)
    }

    fn adopt_item(&mut self, page: &v1::ManifestCommand, item: &v1::ManifestItem, id: TaskId) {
        let Some(agent) = self.agents.get(page.agent_id.as_str()) else { return };
        let by = Reporter {
            agent: Arc::clone(&agent.id),
            incarnation: page.incarnation,
            journal: Arc::clone(&agent.journal),
        };
        if let Some(token) = item.token {
            self.adopt(&by, token, id, &item.gpus);
        }
    }

    /// The job that waits under the id of a stray goes on as another attempt: the node's keeper knows
    /// this one, and its output has that file.
    fn step_aside(&mut self, stray: AttemptId) {
        let id = stray.task;
        let clashes = |job: &Job| {
            let waits = matches!(job.kind(), Kind::Queued | Kind::Held | Kind::Blocked);
            waits && job.attempt <= stray.attempt
        };
        if self.job(id).is_some_and(clashes) {
            self.update(id, |job| job.attempt = stray.attempt.saturating_add(1));
        }
    }

    /// A job that this older log forgot still runs there: its id is not given again.
    fn note_stray(&mut self, agent_id: &str, attempt: AttemptId) {
        if self.agents.get(agent_id).is_some_and(|agent| agent.bygone.is_some()) {
            self.skip_ids(attempt.task.job);
        }
    }

    /// What is over and still lives somewhere is told once in the time line of its job.
    fn note_orphan(&mut self, agent_id: &str, attempt: AttemptId) {
        let what = What::OrphanFound { attempt: attempt.attempt };
        let Some(job) = self.job(attempt.task) else { return };
        let over = job.terminal() || attempt.attempt < job.attempt();
        if !over || job.causes().iter().any(|cause| cause.what == what) {
            return;
        }
        let cause = self.cause(Who::Agent(agent_id.into()), what);
        self.update(attempt.task, |job| job.note(cause));
    }

    fn claim(&mut self, page: &v1::ManifestCommand, item: &v1::ManifestItem, id: TaskId) {
        let Some(job) = self.job(id) else { return };
        let Some(mut grant) = job.grant().cloned() else { return };
        let before = job.kind();
        if !Mutant::ClaimKeepsSession.active() {
            grant.incarnation = page.incarnation;
        }
        if let Some(agent) = self.agents.get(page.agent_id.as_str()) {
            grant.journal = Arc::clone(&agent.journal);
            grant.boot = Arc::clone(&agent.boot);
        }
        // Of an attempt that a fact alone made this ledger adopt: nobody knew which it has.
        grant.number_gpus(&item.gpus);
        let after = claimed(grant, job, item, self.led_ms);
        let to = after.kind();
        let who = Who::Agent(page.agent_id.as_str().into());
        let cause = self.cause(who, What::Claimed { to });
        self.update(id, |job| {
            job.state = after;
            if before != to {
                job.note(cause);
            }
        });
    }

    /// Judges what the ledger has on this agent and the manifest lacks.
    fn judge_missing(
        &mut self,
        page: &v1::ManifestCommand,
        seen: &BTreeSet<AttemptId>,
        outcome: &mut ManifestOutcome,
    ) {
        let Some(agent) = self.agents.get(page.agent_id.as_str()) else { return };
        let (up_order, journal) = (agent.up_order, Arc::clone(&agent.journal));
        let facts_lost = agent.facts_lost.is_some_and(|lost| lost.unjudged);
        for id in self.ids_held_by(&page.agent_id) {
            let Some(job) = self.job(id) else { continue };
            let Some(grant) = job.grant() else { continue };
            let attempt = AttemptId { task: id, attempt: job.attempt };
            if !judges(page, up_order, grant) || seen.contains(&attempt) {
                continue;
            }
            let same = grant.journal == journal;
            // An order that the same journal never saw was lost on the way. If it was heard to
            // run, or the journal is another, the node has lost it: it must not run again (P6). So too
            // if facts are gone: it may have run, and its finish may be one of them.
            let never_came = same && !facts_lost;
            let resends = never_came || Mutant::LostJournalResent.active();
            if let (true, None, Some(cancel)) = (never_came, job.started(), job.cancel()) {
                // It never ran and can no more: nothing is to be started in order to be ended.
                let by = cancel.by.name.clone();
                let told = Told { gone: true, ..Told::default() };
                self.over(id, false, ExitReason::Cancelled { by }, told, self.by_leader());
            } else if resends && job.started().is_none() {
                self.send_again(id, page.incarnation);
                outcome.resend.push(attempt);
            } else {
                let who = self.by_leader();
                let told = Told { gone: same, ..Told::default() };
                self.over(id, false, ExitReason::Vanished, told, who);
                outcome.vanished += 1;
            }
        }
    }

    /// All that was assigned before the facts went missing is judged; what comes is whole again.
    fn losses_judged(&mut self, page: &v1::ManifestCommand) {
        let agent = self.agents.get_mut(page.agent_id.as_str()).filter(|_| page.at_join);
        if let Some(lost) = agent.and_then(|agent| agent.facts_lost.as_mut()) {
            lost.unjudged = false;
        }
    }

    /// A closed attempt that the same journal does not know is dead: its keeper has no tree of it,
    /// and no order of before can still reach it.
    fn prove_missing(&mut self, page: &v1::ManifestCommand, seen: &BTreeSet<AttemptId>) {
        let Some(agent) = self.agents.get(page.agent_id.as_str()) else { return };
        let (up_order, journal) = (agent.up_order, Arc::clone(&agent.journal));
        let who = Who::Agent(Arc::clone(&agent.id));
        for id in self.ids_waiting_on(&page.agent_id) {
            let Some(job) = self.job(id) else { continue };
            let Some(fence) = job.state.fence() else { continue };
            let closed = AttemptId { task: id, attempt: fence.attempt };
            let same = fence.grant.journal == journal;
            if same && judges(page, up_order, &fence.grant) && !seen.contains(&closed) {
                self.prove(id, Proof::Manifest, who.clone());
            }
        }
    }

    /// What is over and the manifest lacks holds nothing there any more.
    fn leftovers_judged(&mut self, page: &v1::ManifestCommand, seen: &BTreeSet<AttemptId>) {
        let Some(agent) = self.agents.get(page.agent_id.as_str()) else { return };
        let (id, up_order) = (Arc::clone(&agent.id), agent.up_order);
        self.leftovers_missing(&id, |grant| judges(page, up_order, grant), seen);
    }

    fn send_again(&mut self, id: TaskId, incarnation: u64) {
        let cause = self.cause(self.by_leader(), What::OrderLost);
        self.update(id, |job| {
            if let Some(mut grant) = job.state.live_grant().cloned() {
                grant.incarnation = incarnation;
                job.state = State::Dispatched(Box::new(grant));
                job.note(cause);
            }
        });
    }

    fn open_session(&mut self, agent_id: &str) {
        let wall_ms = self.wall_ms;
        if let Some(agent) = self.agents.get_mut(agent_id)
            && agent.session != Session::Up
        {
            agent.session = Session::Up;
            agent.since_wall_ms = wall_ms;
        }
    }
}

/// Whether a manifest judges what was given by that order: none of before its join can still be
/// taken, and within a session it speaks of the orders up to O.
fn judges(page: &v1::ManifestCommand, up_order: OrderId, grant: &Grant) -> bool {
    match page.at_join {
        true => grant.order < up_order,
        false => grant.order <= OrderId(page.last_order),
    }
}

fn same_token(grant: &Grant, item: &v1::ManifestItem, attempt: AttemptId) -> bool {
    item.token.is_some_and(|token| {
        (token.generation, token.attempt) == (grant.generation, attempt.attempt)
    })
}

/// The state after a claim. A start that was heard is never unheard: a manifest that still says
/// accepted leaves such a task what it was.
fn claimed(grant: Grant, job: &Job, item: &v1::ManifestItem, led_ms: u64) -> State {
    let started = match (item.phase(), job.started()) {
        (Phase::Accepted, None) => return State::Dispatched(Box::new(grant)),
        (_, Some(known)) => known.clone(),
        (_, None) => Started::from_item(item),
    };
    let suspended = match (item.phase(), job.state()) {
        (Phase::Accepted, State::Unknown(unknown)) => unknown.was.kind() == Kind::Suspended,
        (Phase::Accepted, state) => state.kind() == Kind::Suspended,
        (phase, _) => phase == Phase::Suspended && !Mutant::StoppedClaimedRunning.active(),
    };
    let since_led_ms = match job.state() {
        State::Running(run) | State::Suspended(run) => run.since_led_ms,
        _ => led_ms,
    };
    let run = Box::new(Run { grant, started, since_led_ms });
    if suspended { State::Suspended(run) } else { State::Running(run) }
}

fn well_formed(page: &v1::ManifestCommand) -> Result<Vec<AttemptId>, Rejection> {
    if page.items.len() > PAGE_ITEMS_MAX {
        let why = format!("{} items, a page has at most {PAGE_ITEMS_MAX}", page.items.len());
        return Err(Rejection::malformed("items", why));
    }
    page.items
        .iter()
        .map(|item| {
            AttemptId::from_wire(item.attempt.as_ref())
                .map_err(|error| Rejection::malformed("items", error.to_string()))
        })
        .collect()
}
