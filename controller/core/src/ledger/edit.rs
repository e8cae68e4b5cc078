//! Edits of a job by its owner: hold and release, priority, suspend and resume. What a node has to
//! carry out is an intent, recorded at once and shown until the node confirms it (B6).

use super::book::Ledger;
use super::cancel::Asker;
use super::cause::{What, Who};
use super::job::SuspendIntent;
use super::memory::{Edit, Verb};
use super::outcome::{EditResult, Outcome, Rejection};
use super::state::{Kind, State};
use super::submit::PRIORITY;
use proto::mutants::Mutant;
use proto::{JobId, v1};
use std::sync::Arc;

impl Ledger {
    pub(super) fn hold(&mut self, command: &v1::HoldCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        let verb = if command.release { Verb::Release } else { Verb::Hold };
        self.edit(&command.jobs, &asker, verb, 0)
    }

    pub(super) fn prioritise(
        &mut self,
        command: &v1::PriorityCommand,
    ) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        let to = command.priority;
        if !PRIORITY.contains(&to) {
            let why = format!("{to} given, allowed are -1000 to 1000");
            return Err(Rejection::malformed("priority", why));
        }
        self.edit(&command.jobs, &asker, Verb::Priority, i64::from(to))
    }

    pub(super) fn suspend(&mut self, command: &v1::SuspendCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        let verb = if command.resume { Verb::Resume } else { Verb::Suspend };
        self.edit(&command.jobs, &asker, verb, 0)
    }

    fn edit(
        &mut self,
        jobs: &[u64],
        asker: &Asker<'_>,
        verb: Verb,
        value: i64,
    ) -> Result<Outcome, Rejection> {
        let results = jobs.iter().map(|id| {
            let job = JobId(*id);
            EditResult { job, result: self.edit_once(job, asker, verb, value) }
        });
        Ok(Outcome::Edited(results.collect()))
    }

    /// An edit that a request already made is not made again: it gets the same answer, whatever
    /// came since (P8).
    fn edit_once(
        &mut self,
        id: JobId,
        asker: &Asker<'_>,
        verb: Verb,
        value: i64,
    ) -> Result<(), Rejection> {
        if self.repeated(id, asker, verb, value)? {
            return Ok(());
        }
        match verb {
            Verb::Hold | Verb::Release => self.hold_one(id, verb == Verb::Release, asker),
            Verb::Suspend | Verb::Resume => self.suspend_one(id, verb == Verb::Resume, asker),
            _ => self.prioritise_one(id, value, asker),
        }?;
        self.remember(id, Edit::new(asker, verb, value, self.led_ms));
        Ok(())
    }

    /// Whether this request has made that edit of a job already.
    pub(super) fn repeated(
        &self,
        id: JobId,
        asker: &Asker<'_>,
        verb: Verb,
        value: i64,
    ) -> Result<bool, Rejection> {
        let job = self.owned(id, asker)?;
        let Some(edits) = &job.edits else {
            return match asker.request.expired(self.wall_ms, 0) {
                true => Err(Rejection::RequestExpired),
                false => Ok(false),
            };
        };
        match edits.recall(asker).filter(|_| !Mutant::EditRepeated.active()) {
            Some(known) if (known.verb, known.value) == (verb, value) => Ok(true),
            Some(_) => Err(Rejection::KeyReused { first: id }),
            None => edits.judge_age(&asker.request, self.wall_ms).map(|()| false),
        }
    }

    /// Remembers the request of an edit; that alone is no change of the job.
    pub(super) fn remember(&mut self, id: JobId, edit: Edit) {
        if let Some(job) = self.jobs.job_mut(id) {
            job.edits.get_or_insert_default().remember(edit);
        }
    }

    fn hold_one(&mut self, id: JobId, release: bool, asker: &Asker<'_>) -> Result<(), Rejection> {
        let job = self.owned(id, asker)?;
        let kind = job.kind();
        // A retry that waits for a fence goes on waiting; held, it then does not start by itself.
        let held = job.fence().map_or(kind == Kind::Held, |fence| fence.held);
        if !matches!(kind, Kind::Queued | Kind::Held | Kind::Waiting) {
            let why = match release {
                false => "a node has it: `docket suspend` stops it",
                true => "a node has it: `docket resume` lets it go on",
            };
            return Err(wrong(id, kind, why));
        }
        if held != release {
            return Ok(());
        }
        let what = if release { What::Released } else { What::Held };
        let cause = self.cause(Who::User(Arc::clone(&asker.user)), what);
        self.update(id, |job| {
            match &mut job.state {
                State::Waiting(fence) => fence.held = !release,
                state => *state = if release { State::Queued } else { State::Held },
            }
            job.note(cause);
        });
        Ok(())
    }

    fn prioritise_one(&mut self, id: JobId, to: i64, asker: &Asker<'_>) -> Result<(), Rejection> {
        let job = self.owned(id, asker)?;
        if job.terminal() {
            return Err(Rejection::AlreadyTerminal { job: id });
        }
        let to = i32::try_from(to).unwrap_or_default();
        if job.priority == to {
            return Ok(());
        }
        let cause = self.cause(Who::User(Arc::clone(&asker.user)), What::Priority { to });
        self.update(id, |job| {
            job.priority = to;
            job.note(cause);
        });
        Ok(())
    }

    fn suspend_one(&mut self, id: JobId, resume: bool, asker: &Asker<'_>) -> Result<(), Rejection> {
        let job = self.owned(id, asker)?;
        if job.state.live_grant().is_none() {
            let why = match resume {
                false => "no node has it yet: `docket hold` keeps it from starting",
                true => "no node has it yet: `docket release` lets it start",
            };
            return Err(wrong(id, job.kind(), why));
        }
        if job.cancel().is_some() {
            return Err(wrong(id, job.kind(), "it is being cancelled"));
        }
        let stopped = job.suspend().map_or_else(|| job.stopped(), |known| !known.resume);
        if stopped != resume {
            return Ok(());
        }
        let intent = SuspendIntent { order: self.order, by: Arc::clone(&asker.user), resume };
        let what = if resume { What::ResumeRequested } else { What::SuspendRequested };
        let cause = self.cause(Who::User(Arc::clone(&asker.user)), what);
        self.update(id, |job| {
            job.intents_mut().suspend = Some(intent);
            job.note(cause);
        });
        Ok(())
    }
}

fn wrong(job: JobId, kind: Kind, why: &'static str) -> Rejection {
    if kind.terminal() {
        return Rejection::AlreadyTerminal { job };
    }
    Rejection::WrongState { job, state: kind.name(), why }
}
