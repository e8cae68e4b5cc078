//! Single words with a fixed vocabulary: ids, states, signals, labels.

use crate::render::kind_name;
use controller::is_resource_name;
use proto::v1::ExitKind;
use proto::{TaskId, v1};
use std::time::Duration;

/// The states, as every output names them (design 3).
pub const STATES: [&str; 6] = ["PEND", "RUN", "SUSP", "UNKWN", "DONE", "EXIT"];

/// Signals by name, with the numbers of Linux.
pub const SIGNALS: [(&str, u32); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// The highest signal number: the last real-time one.
const SIGNAL_MAX: u32 = 64;

/// Why a word is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Not a state.
    #[error("no such state: PEND, RUN, SUSP, UNKWN, DONE or EXIT")]
    State,
    /// Not a signal.
    #[error("no such signal: a name such as TERM or USR1, or a number from 1 to 64")]
    Signal,
    /// Not `key=value`.
    #[error("a label is written key=value")]
    Label,
    /// Not `NAME=N`.
    #[error("a consumable is written NAME=N: a name of letters, digits, - _ . and 1 or more of it")]
    Amount,
    /// Not a job id.
    #[error("no job id: give a number such as 123, or a task of an array such as 123_7")]
    Id,
    /// No end that can be tried again.
    #[error(
        "no such end: exit-code, signal, time-limit, out-of-memory, agent-died, node-rebooted, lost, \
         vanished, unknown-status or start-failed"
    )]
    End,
    /// No task numbers.
    #[error("no task numbers: write them as 7, 0-99, 0-99:2 or 1,3,5-7, each range upwards")]
    Tasks,
    /// No limit of an array.
    #[error("no limit: how many tasks may run at once, from 1, or none")]
    ArrayLimit,
}

/// Reads a job or task id.
pub fn task_id(text: &str) -> Result<TaskId, ListError> {
    text.parse().map_err(|_| ListError::Id)
}

/// A job, or some tasks of an array.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// The job.
    pub job: u64,
    /// The tasks; none: the whole job.
    pub tasks: Vec<v1::TaskRange>,
}

/// Reads what a command is about: `123`, `123_7`, `123_0-9:2,12`.
pub fn named(text: &str) -> Result<Named, ListError> {
    let (job, tasks) = match text.split_once('_') {
        None => (text, Vec::new()),
        Some((job, tasks)) => {
            let inner = tasks.strip_prefix('[').and_then(|tasks| tasks.strip_suffix(']'));
            (job, ranges(inner.unwrap_or(tasks))?)
        }
    };
    match task_id(job)? {
        TaskId { job, index: None } => Ok(Named { job: job.0, tasks }),
        TaskId { .. } => Err(ListError::Id),
    }
}

/// Reads task numbers: `0-99`, `0-99:2`, `1,3,5-7`.
pub fn ranges(text: &str) -> Result<Vec<v1::TaskRange>, ListError> {
    text.split(',').map(range).collect()
}

fn range(text: &str) -> Result<v1::TaskRange, ListError> {
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u32>().map_err(|_| ListError::Tasks),
        false => Err(ListError::Tasks),
    };
    let (span, step) = match text.split_once(':') {
        Some((span, step)) => (span, number(step)?),
        None => (text, 1),
    };
    let (first, last) = match span.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None if step == 1 => (number(span)?, number(span)?),
        None => return Err(ListError::Tasks),
    };
    if first > last || step == 0 {
        return Err(ListError::Tasks);
    }
    Ok(v1::TaskRange { first, last, step })
}

/// Reads `--array`: task numbers, and how many may run at once, as `0-99%4`.
pub fn array(text: &str) -> Result<v1::ArraySpec, ListError> {
    let (tasks, limit) = match text.split_once('%') {
        Some((tasks, limit)) => (tasks, Some(array_limit(limit)?).filter(|limit| *limit > 0)),
        None => (text, None),
    };
    Ok(v1::ArraySpec { ranges: ranges(tasks)?, limit, race: false })
}

/// Reads how many tasks of an array may run at once; `none` is 0: any number.
pub fn array_limit(text: &str) -> Result<u32, ListError> {
    match text.parse::<u32>() {
        _ if text == "none" => Ok(0),
        Ok(limit) if limit > 0 => Ok(limit),
        _ => Err(ListError::ArrayLimit),
    }
}

/// Ends that `--retry-on` may name, as every output names them.
const RETRIED: [ExitKind; 10] = [
    ExitKind::ExitCode,
    ExitKind::Signal,
    ExitKind::TimeLimit,
    ExitKind::OutOfMemory,
    ExitKind::AgentDied,
    ExitKind::NodeRebooted,
    ExitKind::Lost,
    ExitKind::Vanished,
    ExitKind::UnknownStatus,
    ExitKind::StartFailed,
];

/// Reads an end after which a job may be tried again.
pub fn exit_kind(text: &str) -> Result<ExitKind, ListError> {
    let named = |kind: &ExitKind| kind_name(*kind) == text;
    RETRIED.into_iter().find(named).ok_or(ListError::End)
}

/// When a lost attempt counts as ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Its node ends it after so long without a controller.
    After(Duration),
    /// Only proof of its end counts.
    Proof,
}

/// Reads `--fence-after`.
pub fn fence(text: &str) -> Result<Fence, String> {
    if text == "proof" {
        return Ok(Fence::Proof);
    }
    units::positive_duration(text)
        .map(Fence::After)
        .map_err(|error| format!("{error}; or proof, to wait for proof of its end"))
}

/// Reads `set --time`: a limit, a change of the one there is, or `none`.
pub fn time_change(text: &str) -> Result<v1::TimeChange, String> {
    use v1::time_change::To;
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let read = |text| units::positive_duration(text).map_err(|error| error.to_string());
    let to = match (text, text.strip_prefix('+'), text.strip_prefix('-')) {
        ("none", ..) => To::None(true),
        (_, Some(more), _) => To::ByMs(ms(read(more)?)),
        (_, _, Some(less)) => To::ByMs(-ms(read(less)?)),
        _ => To::LimitMs(ms(read(text)?).unsigned_abs()),
    };
    Ok(v1::TimeChange { to: Some(to) })
}

/// Time before the limit at which a warning is sent that names none, as Slurm has it.
const WARN_BEFORE: Duration = Duration::from_secs(60);

/// Reads `--signal`: `[B:]SIG[@DUR]`.
pub fn warn_signal(text: &str) -> Result<v1::WarnSignal, String> {
    let (main_only, rest) = match text.strip_prefix("B:") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (name, before) = match rest.split_once('@') {
        Some((name, time)) => (name, units::duration(time).map_err(|error| error.to_string())?),
        None => (rest, WARN_BEFORE),
    };
    let before_ms = u64::try_from(before.as_millis()).unwrap_or(u64::MAX);
    let signal = signal(name).map_err(|error| error.to_string())?;
    Ok(v1::WarnSignal { signal, before_ms, main_only })
}

/// Writes a warning so that [`warn_signal`] reads the same back.
pub fn warn_text(warn: &v1::WarnSignal) -> String {
    let main = if warn.main_only { "B:" } else { "" };
    let name = signal_name(warn.signal.cast_signed());
    let name = if name.contains('+') { warn.signal.to_string() } else { name };
    format!("{main}{name}@{}", units::exact_duration(Duration::from_millis(warn.before_ms)))
}

/// Reads a state name, in any case.
pub fn state(text: &str) -> Result<String, ListError> {
    let upper = text.trim().to_ascii_uppercase();
    if STATES.contains(&upper.as_str()) { Ok(upper) } else { Err(ListError::State) }
}

/// Reads a signal by name, with or without SIG, or by number.
pub fn signal(text: &str) -> Result<u32, ListError> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some((_, number)) = SIGNALS.iter().find(|(known, _)| *known == name) {
        return Ok(*number);
    }
    match text.parse() {
        Ok(number) if (1..=SIGNAL_MAX).contains(&number) => Ok(number),
        _ => Err(ListError::Signal),
    }
}

/// Name of a signal without SIG; real-time ones as `RTMIN+n`.
pub fn signal_name(number: i32) -> String {
    const RTMIN: i32 = 34;
    match SIGNALS.iter().find(|(_, known)| i64::from(*known) == i64::from(number)) {
        Some((name, _)) => (*name).to_owned(),
        None if (RTMIN..=64).contains(&number) => format!("RTMIN+{}", number - RTMIN),
        None => number.to_string(),
    }
}

/// Reads `key=value`; neither part may be empty.
pub fn label(text: &str) -> Result<(String, String), ListError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err(ListError::Label),
    }
}

/// Reads `NAME=N`: some of a named consumable.
pub fn amount(text: &str) -> Result<(String, u64), ListError> {
    let (name, amount) = text.split_once('=').ok_or(ListError::Amount)?;
    let amount = amount.parse().ok().filter(|amount| *amount > 0).ok_or(ListError::Amount)?;
    match is_resource_name(name) {
        true => Ok((name.to_owned(), amount)),
        false => Err(ListError::Amount),
    }
}

/// The known word nearest to `word`, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_and_their_tasks_are_read_strictly() {
        let range = |first, last, step| v1::TaskRange { first, last, step };
        let read = |text: &str| array(text).map(|array| (array.ranges, array.limit));
        assert_eq!(read("0-99"), Ok((vec![range(0, 99, 1)], None)));
        assert_eq!(read("1,5-9:2%4"), Ok((vec![range(1, 1, 1), range(5, 9, 2)], Some(4))));
        assert_eq!(read("7%none"), Ok((vec![range(7, 7, 1)], None)));
        for wrong in
            ["", "a", "5-1", "1-5:0", "1:2", "-3", "1-", "0-9%0", "0-9%", "1,,2", "4294967296"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let all = Named { job: 12, tasks: Vec::new() };
        assert_eq!(named("12"), Ok(all));
        assert_eq!(named("12_7"), Ok(Named { job: 12, tasks: vec![range(7, 7, 1)] }));
        let some = Named { job: 12, tasks: vec![range(0, 9, 1), range(20, 20, 1)] };
        assert_eq!(named("12_[0-9,20]"), Ok(some.clone()));
        assert_eq!(named("12_0-9,20"), Ok(some));
        for wrong in ["0", "x", "12_", "_3", "12_3_4", "12_9-1", "-1"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn signals_are_read_by_name_and_number() {
        assert_eq!(signal("term"), Ok(15));
        assert_eq!(signal("SIGUSR1"), Ok(10));
        assert_eq!(signal("9"), Ok(9));
        assert_eq!(signal("64"), Ok(64));
        for text in ["0", "65", "-9", "NOPE", ""] {
            assert_eq!(signal(text), Err(ListError::Signal), "{text}");
        }
        assert_eq!(signal_name(9), "KILL");
        assert_eq!(signal_name(34), "RTMIN+0");
        assert_eq!(signal_name(99), "99");
    }

    #[test]
    fn changes_of_a_limit_and_warnings_of_it_are_read_strictly() {
        use v1::time_change::To;
        let to = |text: &str| time_change(text).map(|change| change.to.unwrap());
        assert_eq!(to("2h"), Ok(To::LimitMs(7_200_000)));
        assert_eq!(to("+1h"), Ok(To::ByMs(3_600_000)));
        assert_eq!(to("-90s"), Ok(To::ByMs(-90_000)));
        assert_eq!(to("none"), Ok(To::None(true)));
        for wrong in ["", "0s", "+", "-", "+0s", "60", "unlimited", "1:30", "+-5s"] {
            assert!(to(wrong).is_err(), "{wrong}");
        }
        let warn = |signal, before_ms, main_only| v1::WarnSignal { signal, before_ms, main_only };
        assert_eq!(warn_signal("USR1"), Ok(warn(10, 60_000, false)));
        assert_eq!(warn_signal("B:TERM@90s"), Ok(warn(15, 90_000, true)));
        for text in ["B:USR1@2m", "TERM@0s", "40@1ms"] {
            assert_eq!(warn_text(&warn_signal(text).unwrap()), text);
        }
        for wrong in ["", "B:", "USR1@", "USR1@60", "R:USR1@60s", "NOPE@60s", "B:B:USR1"] {
            assert!(warn_signal(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_and_states_are_strict() {
        assert_eq!(label("disk=ssd=fast"), Ok(("disk".to_owned(), "ssd=fast".to_owned())));
        assert!(label("disk").is_err() && label("=x").is_err() && label("x=").is_err());
        assert_eq!(amount("matlab.v2=3"), Ok(("matlab.v2".to_owned(), 3)));
        for bad in ["matlab", "matlab=0", "=1", "a b=1", "matlab=-1", "matlab=2G"] {
            assert!(amount(bad).is_err(), "{bad}");
        }
        assert_eq!(state("pend"), Ok("PEND".to_owned()));
        assert!(state("pending").is_err());
    }

    #[test]
    fn the_nearest_word_is_found_only_when_it_is_near() {
        let known = ["heartbeat_timeout", "max_queue"];
        assert_eq!(nearest("heartbeat_time_out", known), Some("heartbeat_timeout"));
        assert_eq!(nearest("xyz", known), None);
    }
}
