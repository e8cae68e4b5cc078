//! The time line of a job: every cause with time, log position, who and what (P11).

use crate::ledger::{Cause, Job, Kind, Ledger, Proof, What, Who};
use crate::words;
use proto::{TaskId, v1};

/// The time line of a task, or of what was asked of an array as a whole, oldest first; `None` if the ledger does not have it. `truncated` says
/// that causes between the submit and the last 16 are not kept.
pub fn events(ledger: &Ledger, id: impl Into<TaskId>) -> Option<v1::EventsAnswer> {
    let id = id.into();
    let job = match id.index {
        Some(_) => ledger.job(id)?,
        None => ledger.entry(id.job)?.head(),
    };
    let submitted = v1::Event {
        position: job.submit_position(),
        wall_ms: job.submit_wall_ms(),
        who: user(&job.by().name, job.by().uid),
        what: format!("submitted, request {}", job.request_id()),
    };
    let mut events = vec![submitted];
    for cause in job.causes() {
        render(ledger, job, cause, &mut events);
    }
    Some(v1::EventsAnswer { events, truncated: job.causes_dropped() > 0 })
}

fn render(ledger: &Ledger, job: &Job, cause: &Cause, events: &mut Vec<v1::Event>) {
    let mut push = |who: String, what: String| {
        events.push(v1::Event { position: cause.position, wall_ms: cause.wall_ms, who, what });
    };
    let who = who(ledger, &cause.who);
    if let What::Ended { from, to, kind, status, leader } = &cause.what {
        // What its node told and what the ledger made of it are two lines.
        let told = matches!(cause.who, Who::Agent(_));
        if told {
            push(who.clone(), format!("ended: {}", real(*kind, *status, job)));
        }
        let by = if told { format!("controller {leader}") } else { who };
        let failed = job.state().ended().filter(|_| *kind == v1::ExitKind::DependencyFailed);
        let why = failed.map(|ended| words::end(&job.told(&ended.reason), None));
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let (from, to, how) = (from.name(), to.name(), ended_as(*kind, *status));
        push(by, format!("{from} -> {to} {how}{why}"));
        return;
    }
    if let What::Closed { from, to, kind, status, leader, detail, .. } = &cause.what {
        let told = matches!(cause.who, Who::Agent(_));
        if told {
            let words = detail.as_deref().map_or_else(|| ended_as(*kind, *status), str::to_owned);
            push(who.clone(), format!("ended: {}", with_status(words, *status)));
        }
        let by = if told { format!("controller {leader}") } else { who };
        push(by, format!("{} -> PEND {}: {}", from.name(), to.substate(), closed(&cause.what)));
        return;
    }
    if cause.what == What::Held && matches!(cause.who, Who::Controller(_)) {
        return push(who, "held it: the log has lost entries, it may have run".to_owned());
    }
    push(who, what(ledger, job, &cause.what));
}

/// What became of an attempt that is tried again.
fn closed(what: &What) -> String {
    let What::Closed { to, attempt, kind, status, .. } = what else { return String::new() };
    let (how, next) = (ended_as(*kind, *status), attempt.saturating_add(1));
    match to {
        Kind::Waiting => format!(
            "attempt {attempt} ended as {how}; attempt {next} waits for proof that it is dead"
        ),
        _ => format!("attempt {attempt} ended as {how}; attempt {next} is queued"),
    }
}

fn why_dead(proof: Proof) -> &'static str {
    match proof {
        Proof::Finish => "its end was told",
        Proof::Manifest => "its node does not have it",
        Proof::Reboot => "its node was booted anew",
        Proof::Operator => "confirmed by hand",
        Proof::Lease => "its lease ran out",
    }
}

fn freed(attempt: u32, proof: Proof) -> String {
    format!("what attempt {attempt} held is free again: {}", why_dead(proof))
}

fn proven(attempt: u32, proof: Proof, to: Kind) -> String {
    let why = why_dead(proof);
    let next = attempt.saturating_add(1);
    format!("attempt {attempt} is dead: {why}; -> PEND {}, attempt {next}", to.substate())
}

fn who(ledger: &Ledger, who: &Who) -> String {
    match who {
        Who::User(by) => user(&by.name, by.uid),
        Who::Agent(id) => format!("agent {}", name_of(ledger, id)),
        Who::Controller(id) => format!("controller {id}"),
    }
}

fn user(name: &str, uid: u32) -> String {
    format!("{name} (uid {uid})")
}

fn name_of(ledger: &Ledger, agent_id: &str) -> String {
    ledger.agent(agent_id).map_or_else(|| agent_id.to_owned(), |agent| agent.name().to_owned())
}

fn what(ledger: &Ledger, job: &Job, what: &What) -> String {
    match what {
        What::Assigned { agent, attempt } => {
            format!("assigned to {}, attempt {attempt}", name_of(ledger, agent))
        }
        What::Adopted { agent, attempt } => format!(
            "{} has it, attempt {attempt}: its assignment was lost, taken over",
            name_of(ledger, agent)
        ),
        What::Started { pid } => format!("started, pid {pid}"),
        What::NodeFault { step, errno, attempt } => {
            let next = attempt.saturating_add(1);
            format!(
                "attempt {attempt} could not be started: {step}, errno {errno}: a fault of the \
                 node, attempt {next} is queued"
            )
        }
        What::CancelRequested => "asked to cancel it".to_owned(),
        What::CancelTooLate => "the cancel came too late: it ended by itself".to_owned(),
        What::SignalRequested { signal } => format!("asked to send signal {signal}"),
        What::Unknown { why } => format!("-> UNKWN: {why}"),
        What::Claimed { to } => match to {
            Kind::Dispatched => "has it, not started yet: -> PEND dispatched".to_owned(),
            kind => format!("has it: -> {}", kind.name()),
        },
        What::OrderLost => "the order never arrived at its node; it goes again".to_owned(),
        What::DependencyMet { index } => met(ledger, job, *index),
        What::BeginReached => "its time to begin has come".to_owned(),
        What::Held
        | What::Released
        | What::Priority { .. }
        | What::RaceWon { .. }
        | What::Overdue { .. }
        | What::Named { .. }
        | What::TimeLimit { .. }
        | What::Cpus { .. }
        | What::Mem { .. }
        | What::ArrayLimit { .. }
        | What::SuspendRequested
        | What::ResumeRequested => asked(what),
        What::OrphanFound { attempt } => {
            format!("still held attempt {attempt}, which is over: told to kill its tree")
        }
        What::OrphanGone { attempt, leftover: 0 } => {
            format!("nothing of attempt {attempt} lives there any more")
        }
        What::OrphanGone { attempt, leftover } => {
            format!(
                "attempt {attempt} ended there, {leftover} of its processes could not be killed yet"
            )
        }
        What::Suspended => "stopped it: RUN -> SUSP".to_owned(),
        What::Resumed => "let it go on: SUSP -> RUN".to_owned(),
        What::Closed { .. } => closed(what),
        What::Proven { attempt, proof, to } => proven(*attempt, *proof, *to),
        What::Freed { attempt, proof } => freed(*attempt, *proof),
        What::LateAttempt { attempt, kind, status } => format!(
            "told the real end of attempt {attempt}, too late to count: {}",
            ended_as(*kind, *status)
        ),
        What::Late { kind, status } => {
            format!("told the real end, too late to count: {}", ended_as(*kind, *status))
        }
        What::Ended { from, to, kind, status, .. } => {
            format!("{} -> {} {}", from.name(), to.name(), ended_as(*kind, *status))
        }
    }
}

/// What people asked for or set, and what followed from that.
fn asked(what: &What) -> String {
    match what {
        What::Held => "held it".to_owned(),
        What::Released => "released it".to_owned(),
        What::Priority { to } => format!("set its priority to {to}"),
        What::RaceWon { winner } => {
            format!("task {winner} is the first that is DONE: the others are cancelled")
        }
        What::Overdue { limit_ms } => format!(
            "ordered to end it: its node let it run past its limit of {}",
            words::duration(*limit_ms)
        ),
        What::Named { to } => format!("gave it the name {to}"),
        What::TimeLimit { to_ms: None } => "lifted its time limit".to_owned(),
        What::TimeLimit { to_ms: Some(ms) } => {
            format!("set its time limit to {}", words::duration(*ms))
        }
        What::Cpus { to } => format!("set what it asks to {to} cpus"),
        What::Mem { to_bytes } => {
            format!("set what it asks to {} of memory", words::size(*to_bytes))
        }
        What::ArrayLimit { to: 0 } => "lets any number of its tasks run at once".to_owned(),
        What::ArrayLimit { to } => format!("lets {to} of its tasks run at once"),
        What::SuspendRequested => "asked to suspend it".to_owned(),
        What::ResumeRequested => "asked to resume it".to_owned(),
        _ => String::new(),
    }
}

/// A dependency that is met, with the state of what was waited for now.
fn met(ledger: &Ledger, job: &Job, index: u32) -> String {
    let Some(dep) = job.dependencies().get(index as usize) else { return String::new() };
    let (kind, id) = (words::dependency_kind(dep.kind()), words::dependency(dep));
    format!("{kind} {id} is met: {id} is now {}", ledger.standing(dep))
}

/// What the node told, with the real wait status where there is one.
fn real(kind: v1::ExitKind, status: Option<u32>, job: &Job) -> String {
    let words = match job.state().ended() {
        Some(ended) => words::end(&ended.reason, ended.status),
        None => words::kind_name(kind).to_owned(),
    };
    with_status(words, status)
}

fn with_status(words: String, status: Option<u32>) -> String {
    match status {
        Some(status) => format!("{words} (real wait status {status:#x})"),
        None => words,
    }
}

/// The reason's name with its number: `exit-code 3`, `signal 9`, `lost`.
fn ended_as(kind: v1::ExitKind, status: Option<u32>) -> String {
    use crate::ledger::WaitEnd;
    let name = words::kind_name(kind);
    match (kind, status.and_then(WaitEnd::decode)) {
        (v1::ExitKind::ExitCode | v1::ExitKind::Signal, Some(WaitEnd::Code(n))) => {
            format!("{name} {n}")
        }
        (_, Some(WaitEnd::Signal { signal, .. })) if kind == v1::ExitKind::Signal => {
            format!("{name} {signal}")
        }
        _ => name.to_owned(),
    }
}
