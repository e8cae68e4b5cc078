//! Words for people: names, durations, sizes, times of day, ends.

use crate::ledger::{ExitReason, WaitEnd, culprit};
use proto::v1;

/// Task numbers as they are asked for: `0-9:3,12`.
pub fn ranges(ranges: &[v1::TaskRange]) -> String {
    let told = ranges.iter().map(|range| match (range.first == range.last, range.step) {
        (true, _) => range.first.to_string(),
        (false, 0 | 1) => format!("{}-{}", range.first, range.last),
        (false, step) => format!("{}-{}:{step}", range.first, range.last),
    });
    told.collect::<Vec<_>>().join(",")
}

/// A job's name: as given, or the base name of its command.
pub(crate) fn job_name(spec: &v1::JobSpec) -> String {
    if !spec.name.is_empty() {
        return spec.name.clone();
    }
    let first = spec.argv.first().map(Vec::as_slice).unwrap_or_default();
    let base = first.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if base.is_empty() { "script".to_owned() } else { String::from_utf8_lossy(base).into_owned() }
}

/// A duration: `0.4s`, `1m09s`, `2h05m`, `3d04h`.
pub fn duration(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 if ms % 1000 >= 100 => format!("{s}.{}s", ms % 1000 / 100),
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{:02}h", s / 86400, s % 86400 / 3600),
    }
}

/// A size in binary units: `88B`, `1.2K`, `2G`.
pub(crate) fn size(bytes: u64) -> String {
    let mut unit = 1u64;
    for name in ["B", "K", "M", "G", "T"] {
        if bytes < unit.saturating_mul(1024) || name == "T" {
            let tenths = bytes % unit * 10 / unit;
            let whole = bytes / unit;
            return if tenths == 0 {
                format!("{whole}{name}")
            } else {
                format!("{whole}.{tenths}{name}")
            };
        }
        unit *= 1024;
    }
    String::new()
}

/// The time of day of a wall time, in UTC: the core knows no time zone.
pub(crate) fn time_of_day(wall_ms: u64) -> String {
    let s = wall_ms / 1000 % 86400;
    format!("{:02}:{:02}:{:02} UTC", s / 3600, s % 3600 / 60, s % 60)
}

/// A wall time with its date, in UTC.
pub(crate) fn date_and_time(wall_ms: u64) -> String {
    // Days since 0000-03-01, so that the leap day is the last of its year (proleptic Gregorian).
    let days = wall_ms / 86_400_000 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let in_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * in_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let day = in_year - (153 * shifted + 2) / 5 + 1;
    format!("{year:04}-{month:02}-{day:02} {}", time_of_day(wall_ms))
}

/// A user in a sentence. The account `nobody` would read as if there had been none.
pub(crate) fn user(name: &str) -> String {
    if name == "nobody" { format!("user {name}") } else { name.to_owned() }
}

/// The name that is closest to what was written, if it could be a typing error.
pub(crate) fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let far = |name: &&'a str| distance(written, name);
    let best = known.iter().copied().min_by_key(far)?;
    (far(&best) <= 1 + best.len() / 4).then_some(best)
}

/// Letters to change, add or leave out to make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at = |row: &[usize], k: usize| row.get(k).copied().unwrap_or(usize::MAX - 1);
            let changed = at(&row, j) + usize::from(x != *y);
            next.push(changed.min(at(&row, j + 1) + 1).min(at(&next, j) + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// How it ended, in words.
pub(crate) fn end(reason: &ExitReason, status: Option<u32>) -> String {
    let beside = match status.and_then(WaitEnd::decode) {
        Some(WaitEnd::Code(code)) => format!("exit code {code}"),
        Some(WaitEnd::Signal { signal, core_dumped: true }) => {
            format!("signal {signal}, core dumped")
        }
        Some(WaitEnd::Signal { signal, .. }) => format!("signal {signal}"),
        None => String::new(),
    };
    let with = |text: String| {
        if beside.is_empty() { text } else { format!("{text} ({beside})") }
    };
    match reason {
        ExitReason::ExitCode | ExitReason::Signal => beside,
        ExitReason::TimeLimit => with("its time limit was reached".to_owned()),
        ExitReason::OutOfMemory => with("out of memory".to_owned()),
        ExitReason::Cancelled { by } => with(format!("cancelled by {}", user(by))),
        ExitReason::AgentDied => "the agent of its node died".to_owned(),
        ExitReason::NodeRebooted => "its node was rebooted".to_owned(),
        ExitReason::Lost => "nobody knew of it until its time was over".to_owned(),
        ExitReason::LeaseOver => {
            with("its node was cut off until its lease ran out and ended it".to_owned())
        }
        ExitReason::Vanished => "its node came back without it".to_owned(),
        ExitReason::UnknownStatus { started_unknown: true } => {
            "nobody could read how it ended, or whether it started".to_owned()
        }
        ExitReason::UnknownStatus { .. } => "it ended, nobody could read how".to_owned(),
        ExitReason::StartFailed(failure) => start_failure(failure),
        ExitReason::DependencyFailed(failure) => dependency_failure(failure),
    }
}

/// A dependency's name on screens, as the option that asks for it.
pub fn dependency_kind(kind: v1::DependencyKind) -> &'static str {
    match kind {
        v1::DependencyKind::Unspecified => "unspecified",
        v1::DependencyKind::AfterOk => "after-ok",
        v1::DependencyKind::AfterAny => "after-any",
        v1::DependencyKind::AfterNotOk => "after-not-ok",
        v1::DependencyKind::AfterStart => "after-start",
        v1::DependencyKind::AfterEach => "after-each",
    }
}

/// What a dependency names: `12`, `12_0-4`.
pub(crate) fn dependency(dep: &v1::Dependency) -> String {
    match dep.tasks.is_empty() {
        true => dep.job.to_string(),
        false => format!("{}_{}", dep.job, ranges(&dep.tasks)),
    }
}

/// Which job, or task, made a dependency fail, and what became of it.
fn dependency_failure(failure: &v1::DependencyFailure) -> String {
    let id = culprit(failure);
    let kind = dependency_kind(failure.kind());
    let number = match (failure.code, failure.signal) {
        (Some(code), _) => format!(" {code}"),
        (None, Some(signal)) => format!(" {signal}"),
        (None, None) => String::new(),
    };
    match (failure.done, failure.end()) {
        (true, _) => format!("it waited for {id} to fail ({kind}), and that is DONE"),
        (false, v1::ExitKind::Unspecified) => {
            format!(
                "it waited for {id} ({kind}), which was not DONE and is no longer in the ledger"
            )
        }
        (false, end) => {
            let end = kind_name(end);
            format!("it waited for {id} ({kind}), which is EXIT {end}{number}")
        }
    }
}

/// A start failure: step, path and what the system said.
pub(crate) fn start_failure(failure: &v1::StartFailure) -> String {
    let path = match failure.path.is_empty() {
        true => String::new(),
        false => format!(" {}", String::from_utf8_lossy(&failure.path)),
    };
    let message = match failure.message.is_empty() {
        true => format!("errno {}", failure.errno),
        false => failure.message.clone(),
    };
    // A keeper's message begins with the same words and ends with the number that stands in JSON.
    let place = format!("{}{path}: ", failure.step);
    let message = message.strip_prefix(&place).unwrap_or(&message);
    let message = message.split(" (os error ").next().unwrap_or(message);
    format!("could not be started: {place}{message}")
}

/// The kind's name in JSON and on screens.
pub(crate) fn kind_name(kind: v1::ExitKind) -> &'static str {
    match kind {
        v1::ExitKind::Unspecified => "unspecified",
        v1::ExitKind::ExitCode => "exit-code",
        v1::ExitKind::Signal => "signal",
        v1::ExitKind::TimeLimit => "time-limit",
        v1::ExitKind::OutOfMemory => "out-of-memory",
        v1::ExitKind::Cancelled => "cancelled",
        v1::ExitKind::AgentDied => "agent-died",
        v1::ExitKind::NodeRebooted => "node-rebooted",
        v1::ExitKind::Lost => "lost",
        v1::ExitKind::Vanished => "vanished",
        v1::ExitKind::UnknownStatus => "unknown-status",
        v1::ExitKind::StartFailed => "start-failed",
        v1::ExitKind::DependencyFailed => "dependency-failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_failure_says_step_and_path_once_and_no_number() {
        let mut failure = v1::StartFailure {
            step: "exec".into(),
            errno: 2,
            path: b"./nightly".to_vec(),
            message: "exec ./nightly: No such file or directory (os error 2)".into(),
            ..Default::default()
        };
        let text = "could not be started: exec ./nightly: No such file or directory";
        assert_eq!(start_failure(&failure), text);
        failure.message = "No such file or directory".into();
        assert_eq!(start_failure(&failure), text);
        failure.message.clear();
        assert_eq!(start_failure(&failure), "could not be started: exec ./nightly: errno 2");
    }

    #[test]
    fn a_typing_error_finds_the_name_that_was_meant() {
        let known = ["default", "gpu", "short"];
        for (written, meant) in
            [("defualt", Some("default")), ("gpus", Some("gpu")), ("shor", Some("short"))]
        {
            assert_eq!(nearest(written, &known), meant);
        }
        assert_eq!(nearest("overnight", &known), None);
        assert_eq!(nearest("", &[]), None);
    }

    #[test]
    fn a_date_is_that_of_the_calendar() {
        assert_eq!(date_and_time(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date_and_time(951_826_500_000), "2000-02-29 12:15:00 UTC");
        assert_eq!(date_and_time(1_798_761_599_000), "2026-12-31 23:59:59 UTC");
        assert_eq!(date_and_time(4_107_542_400_000), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn durations_and_sizes_read_as_on_the_screens() {
        let durations = [(400, "0.4s"), (2000, "2s"), (69_000, "1m09s"), (7_500_000, "2h05m")];
        for (ms, text) in durations {
            assert_eq!(duration(ms), text);
        }
        assert_eq!(duration(273_600_000), "3d04h");
        for (bytes, text) in [(88, "88B"), (1229, "1.2K"), (2 << 30, "2G"), (212 << 20, "212M")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_name_left_out_is_the_base_name_of_the_command() {
        let mut spec = v1::JobSpec { argv: vec![b"/bin/echo".to_vec()], ..Default::default() };
        assert_eq!(job_name(&spec), "echo");
        spec.name = "greet".to_owned();
        assert_eq!(job_name(&spec), "greet");
        assert_eq!(job_name(&v1::JobSpec::default()), "script");
    }
}
