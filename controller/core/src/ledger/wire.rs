//! A job as people and programs see it. Pure field mapping, with the message in words.

use super::array::Array;
use super::book::Ledger;
use super::cause::What;
use super::deferred::Deferred;
use super::exit::{ExitReason, Finish, WaitEnd, judge};
use super::given::to_map;
use super::job::Job;
use super::state::{Grant, Kind, State, StateName};
use crate::scheduler::{self, Outlook, Why};
use crate::words;
use proto::v1::{self, fact};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Open dependencies that a message names; `explain` names more.
const OPEN_TOLD_MAX: usize = 3;

/// What a cancel, a limit, a fence or a return does to a tree (P7).
const KILLED: &str = "by docket with all its processes";

impl Job {
    /// The task with all fields of design 7; why it waits, by what the ledger alone knows.
    pub fn to_wire(&self, ledger: &Ledger) -> v1::Task {
        self.wire(ledger, || scheduler::why_by_ledger(ledger, self.task_id()))
    }

    /// The same; why it waits, as `explain` tells it: by what a pass would do now.
    pub fn to_wire_seen(&self, ledger: &Ledger, outlook: &Outlook<'_>) -> v1::Task {
        self.wire(ledger, || outlook.why(self.task_id()))
    }

    fn wire(&self, ledger: &Ledger, why: impl FnOnce() -> Option<Why>) -> v1::Task {
        let spec = self.spec();
        let mut task = v1::Task {
            job: self.id.0,
            task: self.task,
            name: self.name(),
            user: self.by.name.clone(),
            uid: self.by.uid,
            queue: self.queue().to_string(),
            state: self.state_name().as_str().to_owned(),
            substate: self.kind().substate().to_owned(),
            terminal: self.terminal(),
            attempt: self.attempt,
            priority: self.priority,
            submit_wall_ms: self.submit_wall_ms,
            command: spec.argv.clone(),
            dir: spec.dir.clone(),
            cpus: self.ask().cpus,
            mem_bytes: self.ask().mem_bytes,
            gpus: self.ask().gpus,
            resources: to_map(&self.ask().resources),
            gpu_ids: self.gpu_ids().to_vec(),
            time_limit_ms: self.time_limit_ms(),
            warn: spec.warn,
            retry_of: spec.retry_of,
            comment: spec.comment.clone(),
            script: spec.script.is_some(),
            position: self.changed_position,
            node: self.grant().map(|grant| node_name(ledger, grant)),
            cancelled_by: self.cancel().map(|cancel| cancel.by.name.clone()),
            cancel_requested: self.cancel().is_some() && !self.terminal(),
            message: self.message(ledger, why),
            suspend_requested: self.suspend_requested(),
            begin_wall_ms: spec.begin_wall_ms,
            dependencies: self.dependency_views(ledger),
            retries: self.retries(),
            retried: self.retried,
            ..v1::Task::default()
        };
        self.start_to_wire(&mut task);
        self.unknown_to_wire(ledger, &mut task);
        self.end_to_wire(&mut task);
        task
    }

    fn start_to_wire(&self, task: &mut v1::Task) {
        let Some(started) = self.started() else { return };
        task.pid = started.fact.pid;
        task.start_wall_ms = Some(started.fact.start_wall_ms);
        task.stdout_path.clone_from(&started.fact.stdout_path);
        task.stderr_path.clone_from(&started.fact.stderr_path);
    }

    fn unknown_to_wire(&self, ledger: &Ledger, task: &mut v1::Task) {
        let State::Unknown(unknown) = &self.state else { return };
        task.transient = true;
        task.transient_since_wall_ms = Some(unknown.since_wall_ms);
        let left = ledger.lost_at_led(unknown.since_led_ms).saturating_sub(ledger.led());
        task.decided_wall_ms = Some(ledger.wall().saturating_add(left));
    }

    fn end_to_wire(&self, task: &mut v1::Task) {
        let Some(ended) = self.state.ended() else { return };
        match ended.status.and_then(WaitEnd::decode) {
            Some(WaitEnd::Code(code)) => task.exit_code = Some(code),
            Some(WaitEnd::Signal { signal, .. }) => task.signal = Some(signal),
            None => {}
        }
        task.reason = Some(self.told(&ended.reason).to_wire(ended.status));
        task.finish_wall_ms = Some(ended.finish_wall_ms);
        task.rusage = ended.rusage;
        task.stderr_tail = ended.stderr_tail.to_vec();
        task.stdout_bytes = ended.stdout_bytes;
        task.stderr_bytes = ended.stderr_bytes;
        task.stdout_cut_bytes = ended.stdout_cut_bytes;
        task.stderr_cut_bytes = ended.stderr_cut_bytes;
        task.killed = self.killed().unwrap_or_default();
        task.late_outcome = ended.late.as_ref().map(|late| late.reason.to_wire(late.status));
    }

    /// Who killed the tree of a job that is over, and why. `None`: it ended by itself, or never ran.
    fn killed(&self) -> Option<String> {
        let ended = self.state.ended()?;
        ended.started.as_ref()?;
        match &ended.reason {
            ExitReason::Cancelled { by } => {
                Some(format!("{KILLED}: {} asked to cancel it", words::user(by)))
            }
            ExitReason::TimeLimit => {
                let limit = self.time_limit_ms().map(words::duration);
                let limit = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
                Some(format!("{KILLED}: its time limit{limit} was reached"))
            }
            ExitReason::LeaseOver => {
                Some(format!("{KILLED}: its node was cut off until its lease ran out"))
            }
            _ => self.killed_at_the_return(ended.late.is_some()),
        }
    }

    /// The same of an attempt that was over already when its node came back with it.
    fn killed_at_the_return(&self, told: bool) -> Option<String> {
        let n = self.attempt;
        let whats = || self.causes.iter().map(|cause| &cause.what);
        whats().find(|what| **what == What::OrphanFound { attempt: n })?;
        let is_left = |what: &What| matches!(what, What::OrphanGone { attempt, leftover: 1.. } if *attempt == n);
        let gone = whats().any(|what| *what == What::OrphanGone { attempt: n, leftover: 0 });
        let back = "its node came back with it after this was decided";
        Some(match (gone, told) {
            (true, _) => format!("{KILLED}: {back}"),
            (false, _) if whats().any(is_left) => {
                format!("by docket: {back}; some of its processes could not be killed yet")
            }
            (false, true) => format!("{KILLED}: {back}"),
            (false, false) => format!("not yet: {back}, and is told to kill it"),
        })
    }

    /// A reason as it concerns this task: of one that waited for the task of its number in another array
    /// that is the number.
    pub(crate) fn told<'a>(&self, reason: &'a ExitReason) -> Cow<'a, ExitReason> {
        match reason {
            ExitReason::DependencyFailed(failure)
                if failure.kind() == v1::DependencyKind::AfterEach && failure.task.is_none() =>
            {
                let failure = v1::DependencyFailure { task: self.task, ..*failure };
                Cow::Owned(ExitReason::DependencyFailed(failure))
            }
            reason => Cow::Borrowed(reason),
        }
    }

    fn dependency_views(&self, ledger: &Ledger) -> Vec<v1::DependencyView> {
        let waits = ledger.waits_of(self).filter(|_| self.kind() == Kind::Blocked);
        let view = |(index, dep): (u32, &v1::Dependency)| v1::DependencyView {
            kind: dep.kind,
            job: dep.job,
            tasks: words::ranges(&dep.tasks),
            open: waits.is_some_and(|waits| waits.is_open(index)),
        };
        (0..).zip(self.dependencies()).map(view).collect()
    }

    /// What it waits for: `waits for 119`.
    fn waits_in_words(&self, ledger: &Ledger, held: bool) -> String {
        let Some(waits) = ledger.waits_of(self) else { return String::new() };
        let deps = self.dependencies();
        let open: Vec<u32> = waits.open().collect();
        let told = open.iter().take(OPEN_TOLD_MAX).filter_map(|index| deps.get(*index as usize));
        let told: Vec<String> = told.map(words::dependency).collect();
        let mut parts = Vec::new();
        match open.len().saturating_sub(OPEN_TOLD_MAX) {
            _ if told.is_empty() => {}
            0 => parts.push(format!("waits for {}", told.join(", "))),
            more => parts.push(format!("waits for {} and {more} more", told.join(", "))),
        }
        if let Some(begin) = waits.begin_wall_ms() {
            parts.push(format!("begins at {}", words::date_and_time(begin)));
        }
        if held {
            parts.push("held as well".to_owned());
        }
        parts.join("; ")
    }

    /// Why it is pending or unknown, or how it ended, in words.
    fn message(&self, ledger: &Ledger, why: impl FnOnce() -> Option<Why>) -> String {
        let asked_to_end = match self.cancel() {
            Some(cancel) => format!("; {} asked to cancel it", cancel.by.name),
            None => String::new(),
        };
        match &self.state {
            State::Blocked { held } => self.waits_in_words(ledger, *held),
            State::Queued => why().map(|why| why.summary).unwrap_or_default(),
            State::Waiting(fence) => {
                let node = node_name(ledger, &fence.grant);
                let held = if fence.held { "; held as well" } else { "" };
                let attempt = fence.attempt;
                format!("waits for proof that attempt {attempt} on {node} is dead{held}")
            }
            State::Held if self.may_have_run() => format!(
                "held: the log has lost entries, it may have run; docket release {}",
                self.task_id()
            ),
            State::Held => format!("held; release it with: docket release {}", self.task_id()),
            State::Dispatched(grant) => {
                let node = node_name(ledger, grant);
                format!("given to {node}, its start is not heard yet{asked_to_end}")
            }
            State::Running(_) | State::Suspended(_) => {
                asked_to_end.trim_start_matches("; ").to_owned()
            }
            State::Unknown(unknown) => {
                let node = node_name(ledger, &unknown.grant);
                format!("{node}: {}{asked_to_end}", unknown.why)
            }
            State::Done(ended) | State::Exit(ended) => {
                words::end(&self.told(&ended.reason), ended.status)
            }
        }
    }
}

impl Array {
    /// The array as a whole: its state is the least advanced of its tasks, DONE only if all are.
    pub fn to_wire(&self, ledger: &Ledger) -> v1::Task {
        let counts = self.tally().by_name();
        let named = |count: (&StateName, &u64)| (count.0.as_str().to_owned(), *count.1);
        let failed = counts.contains_key(&StateName::Exit);
        let won = self.races() && counts.contains_key(&StateName::Done);
        let state = match (self.terminal(), failed) {
            (true, _) if won => StateName::Done,
            (true, true) => StateName::Exit,
            _ => counts.keys().next().copied().unwrap_or(StateName::Pend),
        };
        let mut task = self.head().to_wire(ledger);
        task.state = state.as_str().to_owned();
        task.terminal = self.terminal();
        task.substate = String::new();
        task.message = self.message(&counts);
        if self.head().waits.is_some() {
            let waits = self.head().waits_in_words(ledger, false);
            task.message = format!("{}; {waits}", task.message);
        }
        task.position = self.records().map(Job::changed_position).max().unwrap_or(task.position);
        task.attempt = 0;
        task.array = Some(v1::ArrayView {
            race: self.races(),
            tasks: self.asked(),
            total: self.total(),
            counts: counts.iter().map(named).collect(),
            limit: self.limit(),
        });
        task
    }

    fn message(&self, counts: &BTreeMap<StateName, u64>) -> String {
        let told: Vec<String> =
            counts.iter().map(|(name, count)| format!("{count} {}", name.as_str())).collect();
        format!("{} tasks: {}", self.total(), told.join(", "))
    }
}

impl Deferred {
    /// As `list --orphans` shows it. What an end means is judged as that of a job which asked for
    /// nothing special: its specification is not known.
    pub fn to_wire(&self, ledger: &Ledger) -> v1::Orphan {
        let (fact, attempt, reason) = match &self.fact.kind {
            Some(fact::Kind::Start(start)) => ("start", start.attempt, None),
            Some(fact::Kind::Finish(finish)) => {
                let reason = match judge(finish, &[], None) {
                    Finish::Over { reason, status, .. } => reason.to_wire(status),
                    Finish::NodeFault(failure) => ExitReason::StartFailed(failure).to_wire(None),
                };
                ("finish", finish.attempt, Some(reason))
            }
            Some(fact::Kind::Refused(refused)) => {
                let failure = refused.failure.clone().unwrap_or_default();
                let reason = ExitReason::StartFailed(failure).to_wire(None);
                ("refused", refused.attempt, Some(reason))
            }
            // These are never deferred.
            Some(fact::Kind::Suspended(_) | fact::Kind::Resumed(_)) | None => ("", None, None),
        };
        let attempt = attempt.unwrap_or_default();
        let agent = ledger.agent(&self.agent);
        v1::Orphan {
            job: attempt.job,
            task: attempt.task,
            attempt: attempt.attempt,
            node: agent.map_or_else(|| self.agent.to_string(), |agent| agent.name().to_owned()),
            expired: self.orphan,
            wall_ms: self.since_wall_ms,
            position: self.position,
            fact: fact.to_owned(),
            reason,
        }
    }
}

pub(crate) fn node_name(ledger: &Ledger, grant: &Grant) -> String {
    ledger.agent(&grant.agent).map_or_else(|| grant.agent.to_string(), |a| a.name().to_owned())
}
