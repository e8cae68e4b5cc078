//! Single words with a fixed vocabulary: ids, states, signals, labels.

use proto::TaskId;

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
    /// Not a job id.
    #[error("no job id: give a number such as 123")]
    Id,
}

/// Reads a job or task id.
pub fn task_id(text: &str) -> Result<TaskId, ListError> {
    text.parse().map_err(|_| ListError::Id)
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
    fn labels_and_states_are_strict() {
        assert_eq!(label("disk=ssd=fast"), Ok(("disk".to_owned(), "ssd=fast".to_owned())));
        assert!(label("disk").is_err() && label("=x").is_err() && label("x=").is_err());
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
