//! Cancel and signal: what waits ends at once; of the rest an intent is kept, which the leader
//! carries out when the node is there (B6).

use super::array::Array;
use super::book::Ledger;
use super::cause::{What, Who};
use super::exit::ExitReason;
use super::job::{CancelIntent, Job, SignalRequest};
use super::memory::{Edit, Verb};
use super::outcome::{CancelResult, CancelVerdict, Outcome, Rejection};
use super::request::RequestId;
use super::settle::Told;
use super::state::{Kind, StateName};
use super::submit::{request_id, requester};
use super::targets::{Named, Target};
use super::users::User;
use proto::mutants::Mutant;
use proto::{TaskId, v1};
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
        let named = self.targets(&command.jobs, &command.tasks);
        let results = named.into_iter().map(|Named { job, tasks, target }| {
            let verdict = target.and_then(|target| match (command.signal, target) {
                (None, Target::Task(id)) => self.cancel_one(id, &asker),
                (None, target) => self.cancel_members(&target, &asker),
                (Some(signal), target) => self.signal_target(&target, signal, &asker),
            });
            CancelResult { job, tasks, verdict: verdict.unwrap_or_else(CancelVerdict::Refused) }
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

    /// The task, if the asker may change it.
    pub(super) fn owned(
        &self,
        id: impl Into<TaskId>,
        asker: &Asker<'_>,
    ) -> Result<&Job, Rejection> {
        let job = self.find(id)?;
        self.may_change(job, asker)?;
        Ok(job)
    }

    pub(super) fn may_change(&self, job: &Job, asker: &Asker<'_>) -> Result<(), Rejection> {
        match job.by == asker.user || asker.by.admin {
            true => Ok(()),
            false => Err(Rejection::NotOwner { job: job.id, owner: job.by.name.clone() }),
        }
    }

    /// Cancels tasks of an array: those that share records in one step, whatever their number.
    fn cancel_members(
        &mut self,
        target: &Target,
        asker: &Asker<'_>,
    ) -> Result<CancelVerdict, Rejection> {
        if let Some(known) = self.recall(target, asker, Verb::Cancel)? {
            return Ok(answered(known));
        }
        let Some((id, which)) = target.members() else { return Ok(CancelVerdict::AlreadyEnded) };
        let own = self.own_of(target, |_| true);
        let mut verdict = CancelVerdict::AlreadyEnded;
        for task in own {
            verdict = match (verdict, self.cancel_one(task, asker)?) {
                (CancelVerdict::Requested, _) | (_, CancelVerdict::Requested) => {
                    CancelVerdict::Requested
                }
                (_, CancelVerdict::Cancelled) => CancelVerdict::Cancelled,
                (verdict, _) => verdict,
            };
        }
        let intent = self.cancel_intent(asker, true);
        let who = Who::User(Arc::clone(&asker.user));
        let cause = self.cause(who.clone(), What::CancelRequested);
        let reason = ExitReason::Cancelled { by: asker.user.name.clone() };
        let ending = self.ending(false, reason, Told::default(), who);
        let ended = self.update_shared(id, which, |job| {
            if job.terminal() {
                return false;
            }
            job.intents_mut().cancel = Some(intent.clone());
            job.note(cause.clone());
            ending.clone().end(job);
            true
        });
        if ended > 0 && verdict == CancelVerdict::AlreadyEnded {
            verdict = CancelVerdict::Cancelled;
        }
        let edit = Edit::new(asker, Verb::Cancel, answer_code(&verdict), self.led_ms);
        self.remember(target, edit);
        Ok(verdict)
    }

    /// A task is DONE: of an array that is a race the others are cancelled, as if its owner had asked.
    pub(super) fn won(&mut self, id: TaskId) {
        let array = self.array(id.job).filter(|array| array.races());
        let (Some(winner), Some(head)) = (id.index, array.map(Array::head)) else { return };
        let owner = Arc::clone(&head.by);
        let by = v1::Requester { user: owner.name.clone(), uid: owner.uid, admin: false };
        // The same for every winner: two that end at once cancel the rest once.
        let request = RequestId::parse(&format!("race/{}", id.job));
        let asker = Asker { by: &by, user: owner, request };
        let first = self.recall(&Target::All(id.job), &asker, Verb::Cancel);
        if first.is_ok_and(|known| known.is_none()) {
            let cause = self.cause(self.by_leader(), What::RaceWon { winner });
            self.update_array(id.job, |array| array.head.note(cause));
            // It can only be refused to somebody else.
            let _ = self.cancel_members(&Target::All(id.job), &asker);
        }
    }

    fn cancel_intent(&self, asker: &Asker<'_>, at_once: bool) -> CancelIntent {
        CancelIntent {
            order: self.order,
            by: Arc::clone(&asker.user),
            request: asker.request.clone(),
            wall_ms: self.wall_ms,
            at_once,
        }
    }

    fn cancel_one(&mut self, id: TaskId, asker: &Asker<'_>) -> Result<CancelVerdict, Rejection> {
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
        let at_once =
            matches!(job.kind(), Kind::Queued | Kind::Held | Kind::Blocked | Kind::Waiting);
        let intent = self.cancel_intent(asker, at_once);
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

    fn signal_target(
        &mut self,
        target: &Target,
        signal: u32,
        asker: &Asker<'_>,
    ) -> Result<CancelVerdict, Rejection> {
        if self.repeated(target, asker, Verb::Signal, i64::from(signal))? {
            return Ok(CancelVerdict::Signalled);
        }
        let verdict = match target {
            Target::Task(id) => self.signal_one(*id, signal, asker)?,
            Target::Members(..) | Target::All(_) => {
                let started: Vec<TaskId> = self.own_of(target, |job| job.started().is_some());
                for id in &started {
                    self.signal_one(*id, signal, asker)?;
                }
                match (started.is_empty(), self.owned_target(target, asker)?) {
                    (false, _) => CancelVerdict::Signalled,
                    (true, head) => {
                        let why = "none of these tasks runs, so there is nothing to signal";
                        let (job, state) = (head.id, StateName::Pend);
                        return Err(Rejection::WrongState { job, state, why });
                    }
                }
            }
        };
        if verdict == CancelVerdict::Signalled {
            let edit = Edit::new(asker, Verb::Signal, i64::from(signal), self.led_ms);
            self.remember(target, edit);
        }
        Ok(verdict)
    }

    /// Tasks of a target that have a record of their own, have not ended, and are so.
    pub(super) fn own_of(&self, target: &Target, so: impl Fn(&Job) -> bool) -> Vec<TaskId> {
        let Some((id, _)) = target.members() else { return Vec::new() };
        let own = self.array(id).into_iter().flat_map(|array| array.own_tasks());
        own.filter(|job| !job.terminal() && so(job))
            .map(Job::task_id)
            .filter(|task| task.index.is_some_and(|number| target.means(number)))
            .collect()
    }

    fn signal_one(
        &mut self,
        id: TaskId,
        signal: u32,
        asker: &Asker<'_>,
    ) -> Result<CancelVerdict, Rejection> {
        let job = self.owned(id, asker)?;
        if job.terminal() {
            return Ok(CancelVerdict::AlreadyEnded);
        }
        if job.started().is_none() {
            let why = "it has not started, so there is nothing to signal";
            return Err(Rejection::WrongState { job: job.id, state: job.state_name(), why });
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
        Ok(CancelVerdict::Signalled)
    }
}

/// Code of the answer that a repeated cancel of tasks gets.
fn answer_code(verdict: &CancelVerdict) -> i64 {
    match verdict {
        CancelVerdict::Requested => 1,
        CancelVerdict::Cancelled => 2,
        _ => 0,
    }
}

fn answered(code: i64) -> CancelVerdict {
    match code {
        1 => CancelVerdict::Requested,
        2 => CancelVerdict::Cancelled,
        _ => CancelVerdict::AlreadyEnded,
    }
}
