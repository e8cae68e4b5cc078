//! Edits of a job by its owner: hold and release, priority, suspend and resume.

use super::book::Ledger;
use super::cancel::Asker;
use super::cause::{What, Who};
use super::job::SuspendIntent;
use super::outcome::{EditResult, Outcome, Rejection};
use super::state::{Kind, State};
use super::submit::PRIORITY;
use proto::{JobId, v1};
use std::sync::Arc;

impl Ledger {
    pub(super) fn hold(&mut self, command: &v1::HoldCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        let release = command.release;
        self.edit(&command.jobs, |ledger, id| ledger.hold_one(id, release, &asker))
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
        self.edit(&command.jobs, |ledger, id| ledger.prioritise_one(id, to, &asker))
    }

    pub(super) fn suspend(&mut self, command: &v1::SuspendCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        let resume = command.resume;
        self.edit(&command.jobs, |ledger, id| ledger.suspend_one(id, resume, &asker))
    }

    fn edit(
        &mut self,
        jobs: &[u64],
        mut one: impl FnMut(&mut Ledger, JobId) -> Result<(), Rejection>,
    ) -> Result<Outcome, Rejection> {
        let results = jobs.iter().map(|id| {
            let job = JobId(*id);
            EditResult { job, result: one(self, job) }
        });
        Ok(Outcome::Edited(results.collect()))
    }

    fn hold_one(&mut self, id: JobId, release: bool, asker: &Asker<'_>) -> Result<(), Rejection> {
        let kind = self.owned(id, asker)?.kind();
        let (state, what) = match (kind, release) {
            (Kind::Held, false) | (Kind::Queued, true) => return Ok(()),
            (Kind::Queued, false) => (State::Held, What::Held),
            (Kind::Held, true) => (State::Queued, What::Released),
            _ => {
                return Err(wrong(
                    id,
                    kind,
                    "only a job that has not been given to a node can be held or released",
                ));
            }
        };
        let cause = self.cause(Who::User(Arc::clone(&asker.user)), what);
        self.update(id, |job| {
            job.state = state;
            job.note(cause);
        });
        Ok(())
    }

    fn prioritise_one(&mut self, id: JobId, to: i32, asker: &Asker<'_>) -> Result<(), Rejection> {
        let job = self.owned(id, asker)?;
        if !matches!(job.kind(), Kind::Queued | Kind::Held) {
            return Err(wrong(id, job.kind(), "priority only orders jobs that wait in the queue"));
        }
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
        if job.started().is_none() || job.terminal() {
            return Err(wrong(id, job.kind(), "only a started job can be suspended or resumed"));
        }
        if job.suspend().is_some_and(|known| known.resume == resume) {
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
