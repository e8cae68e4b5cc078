//! Cancel and signal: what waits ends at once; of the rest an intent is kept, which the leader
//! carries out when the node is there (B6).

use super::book::Ledger;
use super::cause::{What, Who};
use super::exit::ExitReason;
use super::job::{CancelIntent, Job, SignalRequest};
use super::memory::{Edit, Verb};
use super::outcome::{CancelResult, CancelVerdict, Outcome, Rejection};
use super::request::RequestId;
use super::settle::Told;
use super::state::Kind;
use super::submit::{request_id, requester};
use super::users::User;
use proto::mutants::Mutant;
use proto::{JobId, v1};
use std::sync::Arc;

/// Who asks for an edit, by which request.
pub(super) struct Asker<'a> {
    pub by: &'a v1::Requester,
    pub user: Arc<User>,
    pub request: RequestId,
}

impl Ledger {
    pub(super) fn cancel(&mut self, command: &v1::CancelCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        if let Some(signal) = command.signal
            && !(1..=64).contains(&signal)
        {
            let why = format!("{signal} given, allowed are 1 to 64");
            return Err(Rejection::malformed("signal", why));
        }
        let results = command.jobs.iter().map(|id| {
            let job = JobId(*id);
            let verdict = match command.signal {
                None => self.cancel_one(job, &asker),
                Some(signal) => self.signal_one(job, signal, &asker),
            };
            CancelResult { job, verdict: verdict.unwrap_or_else(CancelVerdict::Refused) }
        });
        Ok(Outcome::Cancelled(results.collect()))
    }

    pub(super) fn asker<'a>(
        &mut self,
        by: Option<&'a v1::Requester>,
        request: &str,
    ) -> Result<Asker<'a>, Rejection> {
        let by = requester(by)?;
        let request = request_id(request)?;
        Ok(Asker { by, user: self.users.intern(&by.user, by.uid), request })
    }

    /// The job, if the asker may change it.
    pub(super) fn owned(&self, id: JobId, asker: &Asker<'_>) -> Result<&Job, Rejection> {
        let job = self.find(id)?;
        if job.by != asker.user && !asker.by.admin {
            return Err(Rejection::NotOwner { job: id, owner: job.by.name.clone() });
        }
        Ok(job)
    }

    fn cancel_one(&mut self, id: JobId, asker: &Asker<'_>) -> Result<CancelVerdict, Rejection> {
        let job = self.owned(id, asker)?;
        let replaces = Mutant::CancelRestarts.active() && !job.terminal();
        if let Some(known) = job.cancel().filter(|_| !replaces) {
            // The same request again gets the first answer, whatever came since (P8).
            let repeated = known.request == asker.request && known.by == asker.user;
            return Ok(match (repeated, known.at_once, job.terminal()) {
                (true, true, _) => CancelVerdict::Cancelled,
                (true, false, _) | (false, _, false) => CancelVerdict::Requested,
                (false, _, true) => CancelVerdict::AlreadyEnded,
            });
        }
        if job.terminal() {
            return Ok(CancelVerdict::AlreadyEnded);
        }
        let at_once = matches!(job.kind(), Kind::Queued | Kind::Held | Kind::Waiting);
        let intent = CancelIntent {
            order: self.order,
            by: Arc::clone(&asker.user),
            request: asker.request.clone(),
            wall_ms: self.wall_ms,
            at_once,
        };
        let who = Who::User(Arc::clone(&asker.user));
        let cause = self.cause(who.clone(), What::CancelRequested);
        self.update(id, |job| {
            job.intents_mut().cancel = Some(intent);
            job.note(cause);
        });
        if !at_once {
            return Ok(CancelVerdict::Requested);
        }
        let reason = ExitReason::Cancelled { by: asker.user.name.clone() };
        self.end(id, false, reason, Told::default(), who);
        Ok(CancelVerdict::Cancelled)
    }

    fn signal_one(
        &mut self,
        id: JobId,
        signal: u32,
        asker: &Asker<'_>,
    ) -> Result<CancelVerdict, Rejection> {
        if self.repeated(id, asker, Verb::Signal, i64::from(signal))? {
            return Ok(CancelVerdict::Signalled);
        }
        let job = self.owned(id, asker)?;
        if job.terminal() {
            return Ok(CancelVerdict::AlreadyEnded);
        }
        if job.started().is_none() {
            let why = "it has not started, so there is nothing to signal";
            return Err(Rejection::WrongState { job: id, state: job.state_name(), why });
        }
        let wanted = SignalRequest {
            order: self.order,
            by: Arc::clone(&asker.user),
            request: asker.request.clone(),
            signal,
        };
        let who = Who::User(Arc::clone(&asker.user));
        let cause = self.cause(who, What::SignalRequested { signal });
        self.update(id, |job| {
            job.intents_mut().signal = Some(wanted);
            job.note(cause);
        });
        self.remember(id, Edit::new(asker, Verb::Signal, i64::from(signal), self.led_ms));
        Ok(CancelVerdict::Signalled)
    }
}
