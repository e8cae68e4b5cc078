//! Edits of a job by its owner: hold and release, priority, suspend and resume. What a node has to
//! carry out is an intent, recorded at once and shown until the node confirms it (B6).

use super::book::Ledger;
use super::cancel::Asker;
use super::cause::{Cause, What, Who};
use super::job::Job;
use super::job::SuspendIntent;
use super::memory::{Edit, Verb};
use super::outcome::{EditResult, Outcome, Rejection};
use super::state::{Kind, State};
use super::submit::PRIORITY;
use super::targets::{Named, Target};
use proto::mutants::Mutant;
use proto::{JobId, TaskId, v1};
use std::sync::Arc;

impl Ledger {
    pub(super) fn hold(&mut self, command: &v1::HoldCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        let verb = if command.release { Verb::Release } else { Verb::Hold };
        self.edit(&command.jobs, &command.tasks, &asker, verb, 0)
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
        self.edit(&command.jobs, &command.tasks, &asker, Verb::Priority, i64::from(to))
    }

    pub(super) fn suspend(&mut self, command: &v1::SuspendCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        let verb = if command.resume { Verb::Resume } else { Verb::Suspend };
        self.edit(&command.jobs, &command.tasks, &asker, verb, 0)
    }

    /// How many tasks of arrays may be on nodes at once.
    pub(super) fn limit_arrays(
        &mut self,
        command: &v1::ArrayLimitCommand,
    ) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        self.edit(&command.jobs, &[], &asker, Verb::ArrayLimit, i64::from(command.limit))
    }

    fn edit(
        &mut self,
        jobs: &[u64],
        tasks: &[v1::TaskSet],
        asker: &Asker<'_>,
        verb: Verb,
        value: i64,
    ) -> Result<Outcome, Rejection> {
        let named = self.targets(jobs, tasks);
        let results = named.into_iter().map(|Named { job, tasks, target }| {
            let result = target.and_then(|target| self.edit_once(&target, asker, verb, value));
            EditResult { job, tasks, result }
        });
        Ok(Outcome::Edited(results.collect()))
    }

    /// An edit that a request already made is not made again: it gets the same answer, whatever
    /// came since (P8).
    fn edit_once(
        &mut self,
        target: &Target,
        asker: &Asker<'_>,
        verb: Verb,
        value: i64,
    ) -> Result<(), Rejection> {
        if self.repeated(target, asker, verb, value)? {
            return Ok(());
        }
        match (target, verb) {
            (Target::Task(id), _) => self.edit_one(*id, asker, verb, value)?,
            (Target::All(id), Verb::ArrayLimit) => self.limit_one(*id, asker, value),
            (Target::Members(..) | Target::All(_), _) => {
                self.edit_members(target, asker, verb, value)?
            }
        }
        self.remember(target, Edit::new(asker, verb, value, self.led_ms));
        Ok(())
    }

    fn edit_one(
        &mut self,
        id: TaskId,
        asker: &Asker<'_>,
        verb: Verb,
        value: i64,
    ) -> Result<(), Rejection> {
        match verb {
            Verb::Hold | Verb::Release => self.hold_one(id, verb == Verb::Release, asker),
            Verb::Suspend | Verb::Resume => self.suspend_one(id, verb == Verb::Resume, asker),
            Verb::ArrayLimit => Err(Rejection::NotAnArray { job: id.job }),
            _ => self.prioritise_one(id, value, asker),
        }
    }

    /// Edits tasks of an array: those that share records in one step, the others one by one. What
    /// does not fit a task leaves that one alone; it is refused if it fits none.
    fn edit_members(
        &mut self,
        target: &Target,
        asker: &Asker<'_>,
        verb: Verb,
        value: i64,
    ) -> Result<(), Rejection> {
        let Some((id, which)) = target.members() else { return Ok(()) };
        let mut refused = Err(Rejection::AlreadyTerminal { job: id });
        for task in self.own_of(target, |_| true) {
            match self.edit_one(task, asker, verb, value) {
                Ok(()) => refused = Ok(()),
                Err(why) => refused = refused.or(Err(why)),
            }
        }
        let shared = self.array(id).into_iter().flat_map(|array| array.shared());
        let waits = shared
            .filter(|(members, _)| which.is_none_or(|which| !members.common(which).is_empty()))
            .find_map(|(_, job)| (!job.terminal()).then_some(job.kind()));
        let Some(kind) = waits else { return refused };
        let who = Who::User(Arc::clone(&asker.user));
        match verb {
            Verb::Hold | Verb::Release => {
                let release = verb == Verb::Release;
                let what = if release { What::Released } else { What::Held };
                let cause = self.cause(who, what);
                self.update_shared(id, which, |job| hold_waiting(job, release, &cause));
            }
            Verb::Priority => {
                let to = i32::try_from(value).unwrap_or_default();
                if let Some(array) = self.array(id) {
                    self.judge_priority(array.head().queue(), to)?;
                }
                let cause = self.cause(who, What::Priority { to });
                self.update_shared(id, which, |job| prioritise_waiting(job, to, &cause));
            }
            _ => {
                let hint = match verb {
                    Verb::Suspend => {
                        "no node has any of them: `docket hold` keeps them from starting"
                    }
                    _ => "no node has any of them: `docket release` lets them start",
                };
                return refused.map_err(|_| wrong(id, kind, hint));
            }
        }
        Ok(())
    }

    fn limit_one(&mut self, id: JobId, asker: &Asker<'_>, limit: i64) {
        let limit = u32::try_from(limit).ok().filter(|limit| *limit > 0);
        let what = What::ArrayLimit { to: limit.unwrap_or(0) };
        let cause = self.cause(Who::User(Arc::clone(&asker.user)), what);
        self.update_array(id, |array| {
            if array.limit != limit {
                array.limit = limit;
                array.head.note(cause);
            }
        });
    }

    /// Whether this request has made that edit of a target already.
    pub(super) fn repeated(
        &self,
        target: &Target,
        asker: &Asker<'_>,
        verb: Verb,
        value: i64,
    ) -> Result<bool, Rejection> {
        match self.recall(target, asker, verb)? {
            Some(known) if known != value => {
                let first = self.owned_target(target, asker)?.id;
                Err(Rejection::KeyReused { first })
            }
            known => Ok(known.is_some()),
        }
    }

    /// What this request did to a target the first time.
    pub(super) fn recall(
        &self,
        target: &Target,
        asker: &Asker<'_>,
        verb: Verb,
    ) -> Result<Option<i64>, Rejection> {
        let job = self.owned_target(target, asker)?;
        let Some(edits) = &job.edits else {
            return match asker.request.expired(self.wall_ms, 0) {
                true => Err(Rejection::RequestExpired),
                false => Ok(None),
            };
        };
        match edits.recall(asker).filter(|_| !Mutant::EditRepeated.active()) {
            Some(known) if known.verb == verb => Ok(Some(known.value)),
            Some(_) => Err(Rejection::KeyReused { first: job.id }),
            None => edits.judge_age(&asker.request, self.wall_ms).map(|()| None),
        }
    }

    fn hold_one(&mut self, id: TaskId, release: bool, asker: &Asker<'_>) -> Result<(), Rejection> {
        let job = self.owned(id, asker)?;
        let kind = job.kind();
        // A retry that waits for a fence goes on waiting; held, it then does not start by itself.
        let held = match &job.state {
            State::Waiting(fence) => fence.held,
            State::Blocked { held } => *held,
            _ => kind == Kind::Held,
        };
        if !matches!(kind, Kind::Queued | Kind::Held | Kind::Blocked | Kind::Waiting) {
            let why = match release {
                false => "a node has it: `docket suspend` stops it",
                true => "a node has it: `docket resume` lets it go on",
            };
            return Err(wrong(id.job, kind, why));
        }
        if held != release {
            return Ok(());
        }
        let what = if release { What::Released } else { What::Held };
        let cause = self.cause(Who::User(Arc::clone(&asker.user)), what);
        self.update(id, |job| {
            match &mut job.state {
                State::Waiting(fence) => fence.held = !release,
                State::Blocked { held } => *held = !release,
                state => *state = if release { State::Queued } else { State::Held },
            }
            job.note(cause);
        });
        Ok(())
    }

    fn prioritise_one(&mut self, id: TaskId, to: i64, asker: &Asker<'_>) -> Result<(), Rejection> {
        let job = self.owned(id, asker)?;
        if job.terminal() {
            return Err(Rejection::AlreadyTerminal { job: id.job });
        }
        let to = i32::try_from(to).unwrap_or_default();
        self.judge_priority(job.queue(), to)?;
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

    fn suspend_one(
        &mut self,
        id: TaskId,
        resume: bool,
        asker: &Asker<'_>,
    ) -> Result<(), Rejection> {
        let job = self.owned(id, asker)?;
        if job.state.live_grant().is_none() {
            let why = match resume {
                false => "no node has it yet: `docket hold` keeps it from starting",
                true => "no node has it yet: `docket release` lets it start",
            };
            return Err(wrong(id.job, job.kind(), why));
        }
        if job.cancel().is_some() {
            return Err(wrong(id.job, job.kind(), "it is being cancelled"));
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

/// Holds or releases what waits in the queue; false if it is so already.
fn hold_waiting(job: &mut Job, release: bool, cause: &Cause) -> bool {
    let to = match (&job.state, release) {
        (State::Queued, false) => State::Held,
        (State::Held, true) => State::Queued,
        (State::Blocked { held }, release) if *held == release => State::Blocked { held: !release },
        _ => return false,
    };
    job.state = to;
    job.note(cause.clone());
    true
}

fn prioritise_waiting(job: &mut Job, to: i32, cause: &Cause) -> bool {
    let changes = !job.terminal() && job.priority != to;
    if changes {
        job.priority = to;
        job.note(cause.clone());
    }
    changes
}

pub(super) fn wrong(job: JobId, kind: Kind, why: &'static str) -> Rejection {
    if kind.terminal() {
        return Rejection::AlreadyTerminal { job };
    }
    Rejection::WrongState { job, state: kind.name(), why }
}
