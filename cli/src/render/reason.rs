//! Why a task ended, and why it has not: the words that tables, screens and messages share.

use super::View;
use super::escape;
use super::quantity as q;
use crate::parse::signal_name;
use proto::v1::{
    ArrayView, DependencyFailure, DependencyKind, DependencyView, ExitKind, Reason, StartFailure,
    Task,
};

/// Name of an exit reason, as design 3 writes it.
pub fn kind_name(kind: ExitKind) -> &'static str {
    match kind {
        ExitKind::Unspecified => "unspecified",
        ExitKind::ExitCode => "exit-code",
        ExitKind::Signal => "signal",
        ExitKind::TimeLimit => "time-limit",
        ExitKind::OutOfMemory => "out-of-memory",
        ExitKind::Cancelled => "cancelled",
        ExitKind::AgentDied => "agent-died",
        ExitKind::NodeRebooted => "node-rebooted",
        ExitKind::Lost => "lost",
        ExitKind::Vanished => "vanished",
        ExitKind::UnknownStatus => "unknown-status",
        ExitKind::StartFailed => "start-failed",
        ExitKind::DependencyFailed => "dependency-failed",
    }
}

/// A dependency's name, as the option that asks for it.
pub fn dependency_kind(kind: DependencyKind) -> &'static str {
    match kind {
        DependencyKind::Unspecified => "unspecified",
        DependencyKind::AfterOk => "after-ok",
        DependencyKind::AfterAny => "after-any",
        DependencyKind::AfterNotOk => "after-not-ok",
        DependencyKind::AfterStart => "after-start",
        DependencyKind::AfterEach => "after-each",
    }
}

/// What a dependency names: `12`, `12_3`, `12_[0-4,7]`.
pub fn dependency_id(dep: &DependencyView) -> String {
    let tasks = escape::line(&dep.tasks);
    match (tasks.is_empty(), tasks.contains([',', ':'])) {
        (true, _) => dep.job.to_string(),
        (false, false) => format!("{}_{tasks}", dep.job),
        (false, true) => format!("{}_[{tasks}]", dep.job),
    }
}

/// The job or task that made a dependency fail.
pub fn culprit(failure: &DependencyFailure) -> String {
    match failure.task {
        Some(task) => format!("{}_{task}", failure.job),
        None => failure.job.to_string(),
    }
}

/// `: after-ok 12_3, which is EXIT exit-code 3`.
fn dependency_failure(failure: &DependencyFailure) -> String {
    let (kind, id) = (dependency_kind(failure.kind()), culprit(failure));
    let state = match (failure.done, failure.end()) {
        (true, _) => "DONE".to_owned(),
        (false, ExitKind::Unspecified) => "EXIT, long ago".to_owned(),
        (false, end) => {
            let number = failure.code.or(failure.signal).map(|number| format!(" {number}"));
            format!("EXIT {}{}", kind_name(end), number.unwrap_or_default())
        }
    };
    format!(": {kind} {id}, which is {state}")
}

/// A reason in full: `exit-code 3`, `signal 11 (SEGV), core dumped`, `cancelled by mia (signal 15)`.
pub fn full(reason: &Reason) -> String {
    let status = status_words(reason, "exit-code ");
    let kind = reason.kind();
    let mut text = match kind {
        ExitKind::ExitCode | ExitKind::Signal if status.is_some() => status.unwrap_or_default(),
        ExitKind::StartFailed => {
            let failure = reason.start_failure.as_ref().map(start_failure);
            format!("start-failed{}", failure.unwrap_or_default())
        }
        ExitKind::DependencyFailed => {
            let failure = reason.dependency.as_ref().map(dependency_failure);
            format!("dependency-failed{}", failure.unwrap_or_default())
        }
        _ => {
            let by = reason.by.as_ref().map(|by| format!(" by {}", user(by)));
            let status = status.map(|words| format!(" ({words})"));
            format!("{}{}{}", kind_name(kind), by.unwrap_or_default(), status.unwrap_or_default())
        }
    };
    if reason.core_dumped {
        text.push_str(", core dumped");
    }
    if let Some(detail) = reason.detail.as_ref().filter(|detail| !detail.is_empty()) {
        text.push_str(&format!(": {}", escape::line(detail)));
    }
    text
}

/// A user in a sentence. The account `nobody` would read as if there had been none.
fn user(name: &str) -> String {
    if name == "nobody" { format!("user {name}") } else { escape::line(name) }
}

/// The wait status that stands in a reason, if there is one.
fn status_words(reason: &Reason, code_words: &str) -> Option<String> {
    match (reason.code, reason.signal) {
        (Some(code), _) => Some(format!("{code_words}{code}")),
        (None, Some(signal)) => Some(format!("signal {signal} ({})", signal_name(signal))),
        (None, None) => None,
    }
}

fn start_failure(failure: &StartFailure) -> String {
    let why = match (failure.message.as_str(), failure.errno) {
        ("", 0) => String::new(),
        ("", errno) => format!(": {}", errno_words(errno)),
        (message, _) => format!(": {}", escape::line(&without_errno(message))),
    };
    let path = escape::bytes_line(&failure.path);
    let named = path.is_empty() || why.contains(&path);
    let path = if named { String::new() } else { format!(": {path}") };
    let step = escape::line(&failure.step);
    // The node's words may begin with the step already.
    if why.strip_prefix(": ").is_some_and(|words| words.starts_with(&step)) {
        return format!("{why}{path}");
    }
    format!(" at {step}{why}{path}")
}

/// `No such file or directory`.
fn errno_words(errno: i32) -> String {
    without_errno(&std::io::Error::from_raw_os_error(errno).to_string())
}

/// Words without the ` (os error 2)` that the standard library appends: it tells people nothing.
pub fn without_errno(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let behind = &rest[at + MARK.len()..];
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 && behind[digits..].starts_with(')') {
            out.push_str(&rest[..at]);
            rest = &behind[digits + 1..];
        } else {
            out.push_str(&rest[..at + MARK.len()]);
            rest = behind;
        }
    }
    out + rest
}

/// How far an array is: `37 of 100 ended: 4 RUN, 59 PEND, 36 DONE, 1 EXIT`.
pub fn array(array: &ArrayView) -> String {
    let of = |state: &str| array.counts.get(state).copied().unwrap_or(0);
    let ended = of("DONE") + of("EXIT");
    let states = ["RUN", "SUSP", "UNKWN", "PEND", "DONE", "EXIT"];
    let states = states.into_iter().filter(|state| of(state) > 0);
    let told: Vec<String> =
        states.map(|state| format!("{} {state}", q::count(of(state)))).collect();
    format!("{} of {} ended: {}", q::count(ended), q::count(array.total), told.join(", "))
}

/// The REASON column of `list`.
pub fn cell(task: &Task, view: &View) -> String {
    if let Some(whole) = &task.array {
        return array(whole);
    }
    let message = with_local_begin(task, escape::line(&task.message), view);
    let text = match task.state.as_str() {
        "DONE" | "EXIT" => ended(task, view),
        "UNKWN" => {
            let silent = task.node.as_ref().map(|node| format!("{} silent", escape::line(node)));
            let known = if message.is_empty() { silent.unwrap_or_default() } else { message };
            match task.decided_wall_ms {
                Some(at) => format!("{known}, decided {}", q::time(at, view.now_ms, &view.zone)),
                None => known,
            }
        }
        "PEND" if message.is_empty() => task.substate.clone(),
        _ => message,
    };
    let asked = asked_for(task).into_iter().map(str::to_owned);
    let words: Vec<String> = asked.chain(Some(text).filter(|text| !text.is_empty())).collect();
    words.join("; ")
}

/// The server tells a begin time in UTC; people read it by their own clock.
fn with_local_begin(task: &Task, message: String, view: &View) -> String {
    let Some(begin) = task.begin_wall_ms.filter(|_| message.contains("begins at ")) else {
        return message;
    };
    message.replace(&q::date_time_utc(begin), &q::time(begin, view.now_ms, &view.zone))
}

/// What people asked for and its node has not carried out yet.
fn asked_for(task: &Task) -> Vec<&'static str> {
    if task.terminal {
        return Vec::new();
    }
    let cancel = task.cancel_requested.then_some("cancel requested");
    let suspend = task.suspend_requested.map(|suspend| match suspend {
        true => "suspend requested",
        false => "resume requested",
    });
    cancel.into_iter().chain(suspend).collect()
}

/// Who asked to cancel a job that did not end as cancelled: its reason does not say it.
pub fn cancel_beside(task: &Task) -> Option<String> {
    let reason = task.reason.as_ref().map_or(ExitKind::Unspecified, Reason::kind);
    let by = task.cancelled_by.as_ref().filter(|_| task.terminal)?;
    (reason != ExitKind::Cancelled).then(|| user(by))
}

fn ended(task: &Task, view: &View) -> String {
    let how = match &task.reason {
        Some(reason) if reason.kind() == ExitKind::ExitCode => {
            status_words(reason, "exit ").unwrap_or_default()
        }
        // Short enough for a column: which it was is what people look for.
        Some(Reason { dependency: Some(failure), .. }) => {
            let state = if failure.done { "DONE" } else { "EXIT" };
            format!("{} {state}: {}", culprit(failure), dependency_kind(failure.kind()))
        }
        Some(reason) => full(reason),
        None => format!("exit {}", task.exit_code.unwrap_or(0)),
    };
    let cancel = cancel_beside(task).map(|by| format!(" (cancel asked by {by})"));
    let how = format!("{how}{}", cancel.unwrap_or_default());
    let ago = task.finish_wall_ms.map(|at| q::rough(view.now_ms.saturating_sub(at)));
    let late = task.late_outcome.as_ref().map(|late| format!(" (late: {})", full(late)));
    let ago = ago.map_or(String::new(), |ago| format!(", {ago} ago"));
    format!("{how}{ago}{}", late.unwrap_or_default())
}

/// What `wait` and `run` say about a job that did not end as DONE.
pub fn verdict(task: &Task) -> String {
    if let Some(whole) = &task.array {
        let id = task.job;
        return format!("array {id} {}: {}; see docket list --failed", task.state, array(whole));
    }
    let id = super::task_id(task);
    let why = task.reason.as_ref().map_or_else(|| "no reason".to_owned(), full);
    let cancel = cancel_beside(task).map(|by| format!(", cancel asked by {by}"));
    let why = format!("{why}{}", cancel.unwrap_or_default());
    let kind = task.reason.as_ref().map_or(ExitKind::Unspecified, Reason::kind);
    let next = match kind {
        ExitKind::ExitCode | ExitKind::Signal | ExitKind::OutOfMemory | ExitKind::TimeLimit => {
            match (task.stderr_bytes, task.stdout_bytes) {
                (0, 0) => format!("it wrote nothing; see docket show {id}"),
                (0, _) => format!("see docket logs {id}"),
                _ => format!("see docket logs {id} --stderr"),
            }
        }
        _ => format!("see docket explain {id}"),
    };
    format!("job {id} {} {why}: {next}", task.state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(kind: ExitKind) -> Reason {
        Reason { kind: kind.into(), ..Default::default() }
    }

    #[test]
    fn no_reason_is_shown_as_another() {
        let code = Reason { code: Some(3), ..reason(ExitKind::ExitCode) };
        assert_eq!(full(&code), "exit-code 3");
        let signal = Reason { signal: Some(11), core_dumped: true, ..reason(ExitKind::Signal) };
        assert_eq!(full(&signal), "signal 11 (SEGV), core dumped");
        let cancelled =
            Reason { by: Some("mia".into()), signal: Some(15), ..reason(ExitKind::Cancelled) };
        assert_eq!(full(&cancelled), "cancelled by mia (signal 15 (TERM))");
        let nobody = Reason { by: Some("nobody".into()), ..reason(ExitKind::Cancelled) };
        assert_eq!(full(&nobody), "cancelled by user nobody");
        let limit = Reason { code: Some(0), ..reason(ExitKind::TimeLimit) };
        assert_eq!(full(&limit), "time-limit (exit-code 0)");
        assert_eq!(full(&reason(ExitKind::Lost)), "lost");
        let failure = StartFailure {
            step: "chdir".into(),
            errno: 2,
            path: b"/no\nwhere".to_vec(),
            ..Default::default()
        };
        let failed = Reason { start_failure: Some(failure), ..reason(ExitKind::StartFailed) };
        assert_eq!(full(&failed), "start-failed at chdir: No such file or directory: /no\\nwhere");
    }

    #[test]
    fn the_words_of_a_node_are_not_said_twice() {
        let failure = StartFailure {
            step: "exec".into(),
            errno: 2,
            path: b"/no/such".to_vec(),
            message: "exec /no/such: No such file or directory (os error 2)".into(),
            ..Default::default()
        };
        let failed = Reason { start_failure: Some(failure), ..reason(ExitKind::StartFailed) };
        assert_eq!(full(&failed), "start-failed: exec /no/such: No such file or directory");
        assert_eq!(without_errno("a (os error 13); b (os error x)"), "a; b (os error x)");
    }

    #[test]
    fn a_verdict_points_only_to_output_that_is_there() {
        let code = Reason { code: Some(3), ..reason(ExitKind::ExitCode) };
        let mut task = Task { job: 7, state: "EXIT".into(), reason: Some(code), ..Task::default() };
        assert_eq!(verdict(&task), "job 7 EXIT exit-code 3: it wrote nothing; see docket show 7");
        task.stdout_bytes = 5;
        assert_eq!(verdict(&task), "job 7 EXIT exit-code 3: see docket logs 7");
        task.stderr_bytes = 1;
        assert_eq!(verdict(&task), "job 7 EXIT exit-code 3: see docket logs 7 --stderr");
    }

    #[test]
    fn every_kind_has_its_own_name() {
        let kinds: Vec<&str> =
            (0..=12).filter_map(|n| ExitKind::try_from(n).ok()).map(kind_name).collect();
        let distinct: std::collections::BTreeSet<&str> = kinds.iter().copied().collect();
        assert_eq!((kinds.len(), distinct.len()), (13, 13));
    }
}
