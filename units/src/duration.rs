//! Durations: `90s 1h30m 2d`, `HH:MM:SS`, `D-HH[:MM[:SS]]`; nothing that others read differently.

use std::time::Duration;

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// A number without a unit: seconds for some, minutes for Slurm.
    #[error("a bare number has two readings, seconds or (Slurm) minutes: write {0}s or {0}m")]
    Bare(String),
    /// `A:B`.
    #[error(
        "{a}:{b} has two readings: Slurm reads {a} min {b} s, LSF {a} h {b} min; write {a}m{b}s or {a}h{b}m"
    )]
    TwoReadings {
        /// What stands before the colon.
        a: String,
        /// What stands behind it.
        b: String,
    },
    /// Not one of the forms.
    #[error("not a duration: write it as 90s, 1h30m, 2d, 01:30:00 or 1-12:00")]
    Form,
    /// A minute, second or hour field that is too large.
    #[error(
        "{field} is {value}, at most {most} is allowed in this form; or write it with units, as 1h30m"
    )]
    Field {
        /// Which field.
        field: &'static str,
        /// What it was.
        value: u64,
        /// Its largest value.
        most: u64,
    },
    /// Longer than 292 years.
    #[error("too long: at most 106751 days")]
    TooLong,
    /// Nothing, where time is needed.
    #[error("no time at all: leave the option out for no limit")]
    Zero,
}

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// The largest duration: its milliseconds fit an i64 of nanoseconds, as calendars need.
const LONGEST_MS: u64 = 106_751 * DAY_MS;

/// Reads a duration; zero is one.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let ms = milliseconds(text.trim())?;
    if ms > LONGEST_MS { Err(DurationError::TooLong) } else { Ok(Duration::from_millis(ms)) }
}

/// Reads a duration that must not be zero.
pub fn positive_duration(text: &str) -> Result<Duration, DurationError> {
    match duration(text)? {
        Duration::ZERO => Err(DurationError::Zero),
        some => Ok(some),
    }
}

/// Writes a duration so that [`duration`] reads the same back, to the millisecond: `1h30m`.
pub fn exact_duration(time: Duration) -> String {
    let mut rest = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, ms) in [("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS), ("ms", 1)]
    {
        if rest >= ms {
            text.push_str(&format!("{}{unit}", rest / ms));
            rest %= ms;
        }
    }
    text
}

fn milliseconds(text: &str) -> Result<u64, DurationError> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(DurationError::Bare(text.to_owned()));
    }
    if let Some((days, clock)) = text.split_once('-') {
        let days = number(days)?.checked_mul(DAY_MS).ok_or(DurationError::TooLong)?;
        return days.checked_add(day_clock(clock)?).ok_or(DurationError::TooLong);
    }
    if text.contains(':') { clock(text) } else { units(text) }
}

/// `HH:MM:SS`; two fields are refused.
fn clock(text: &str) -> Result<u64, DurationError> {
    let fields: Vec<&str> = text.split(':').collect();
    match fields[..] {
        [a, b] if number(a).is_ok() && number(b).is_ok() => {
            Err(DurationError::TwoReadings { a: a.to_owned(), b: b.to_owned() })
        }
        [hours, minutes, seconds] => {
            let hours = number(hours)?.checked_mul(HOUR_MS).ok_or(DurationError::TooLong)?;
            let rest = field("the minutes field", minutes, 59)? * MINUTE_MS
                + field("the seconds field", seconds, 59)? * SECOND_MS;
            hours.checked_add(rest).ok_or(DurationError::TooLong)
        }
        _ => Err(DurationError::Form),
    }
}

/// `HH[:MM[:SS]]` behind `D-`.
fn day_clock(text: &str) -> Result<u64, DurationError> {
    let fields: Vec<&str> = text.split(':').collect();
    if fields.len() > 3 {
        return Err(DurationError::Form);
    }
    let scales = [
        ("the hours field", 23, HOUR_MS),
        ("the minutes field", 59, MINUTE_MS),
        ("the seconds field", 59, SECOND_MS),
    ];
    let mut total = 0;
    for (text, (name, most, ms)) in fields.into_iter().zip(scales) {
        total += field(name, text, most)? * ms;
    }
    Ok(total)
}

fn field(name: &'static str, text: &str, most: u64) -> Result<u64, DurationError> {
    if text.len() > 2 {
        return Err(DurationError::Form);
    }
    match number(text)? {
        value if value > most => Err(DurationError::Field { field: name, value, most }),
        value => Ok(value),
    }
}

/// `1h30m`: units from large to small, each at most once.
fn units(text: &str) -> Result<u64, DurationError> {
    let scales = [("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS), ("ms", 1)];
    let mut rest = text;
    let mut next_scale = 0;
    let mut total: u64 = 0;
    if text.is_empty() {
        return Err(DurationError::Form);
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (count, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, behind) = behind.split_at(letters);
        let at = scales.iter().position(|(name, _)| *name == unit).ok_or(DurationError::Form)?;
        if at < next_scale {
            return Err(DurationError::Form);
        }
        let ms = number(count)?.checked_mul(scales[at].1).ok_or(DurationError::TooLong)?;
        total = total.checked_add(ms).ok_or(DurationError::TooLong)?;
        next_scale = at + 1;
        rest = behind;
    }
    Ok(total)
}

fn number(text: &str) -> Result<u64, DurationError> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(DurationError::Form);
    }
    text.parse().map_err(|_| DurationError::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The table of times in `docs/units.md`: what is written, and what that is said to mean.
    fn documented() -> Vec<(String, String)> {
        let text = include_str!("../../docs/units.md");
        let table = text.split_once("| text | means |\n|---|---|\n").expect("the table").1;
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let cells = |row: &str| {
            let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
            let text = cells.next().unwrap();
            (text.trim_matches('`').replace("(nothing)", ""), cells.next().unwrap())
        };
        rows.map(cells).collect()
    }

    #[test]
    fn the_documented_table_is_what_is_read() {
        let rows = documented();
        for (text, means) in &rows {
            match means.split_once(" s") {
                Some((seconds, rest)) if seconds.bytes().all(|b| b.is_ascii_digit()) => {
                    let time = Duration::from_secs(seconds.parse().unwrap());
                    assert_eq!(duration(text), Ok(time), "{text}");
                    let limit = positive_duration(text);
                    assert_eq!(limit.is_err(), rest.contains("no limit of a job"), "{text}");
                }
                _ => {
                    let said = duration(text).unwrap_err().to_string();
                    assert!(means.starts_with("refused"), "{text}: {means}");
                    for hint in means.split('`').skip(1).step_by(2) {
                        assert!(said.contains(hint), "{text}: `{hint}` is missing in: {said}");
                    }
                }
            }
        }
        for text in
            ["90", "4:00", "1:2:3", "2-12", "0", "0s", "-1", "1e9", "INFINITE", "UNLIMITED", ""]
        {
            assert!(rows.iter().any(|(row, _)| row == text), "{text:?} is not in the table");
        }
    }

    fn seconds(text: &str) -> Result<u64, DurationError> {
        duration(text).map(|d| d.as_secs())
    }

    #[test]
    fn every_form_of_the_contract_is_read() {
        for (text, expected) in [
            ("90s", 90),
            ("1h30m", 5_400),
            ("2d", 172_800),
            ("1d2h3m4s", 93_784),
            ("0s", 0),
            ("01:30:00", 5_400),
            ("100:00:01", 360_001),
            ("1-12", 129_600),
            ("1-12:30", 131_400),
            ("1-12:30:05", 131_405),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn what_others_read_differently_is_refused_with_both_readings() {
        let bare = duration("90").map_err(|e| e.to_string());
        assert!(bare.as_ref().is_err_and(|e| e.contains("90s") && e.contains("90m")), "{bare:?}");
        let two = duration("1:30").map_err(|e| e.to_string());
        assert!(two.as_ref().is_err_and(|e| e.contains("1m30s") && e.contains("1h30m")), "{two:?}");
    }

    #[test]
    fn everything_else_is_refused_never_misread() {
        for text in [
            "",
            "-1",
            "1e9",
            "INFINITE",
            "1.5h",
            "30m1h",
            "1h1h",
            "1h30",
            "1:2:3:4",
            "1:60:00",
            "1:00:60",
            "1-24",
            "1-",
            "-12",
            "1-1:1:1:1",
            " ",
            "1 h",
            "+1h",
            "1:001:00",
            "s",
            "٣s",
            "99999999999999999999s",
            "9999999d",
            "106752d",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(positive_duration("0s"), Err(DurationError::Zero));
    }

    proptest! {
        #[test]
        fn a_written_duration_reads_back(ms in 0..=LONGEST_MS) {
            let time = Duration::from_millis(ms);
            prop_assert_eq!(duration(&exact_duration(time)), Ok(time));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}|[0-9:hmsd-]{0,12}") {
            if let Ok(time) = duration(&text) {
                prop_assert_eq!(duration(&exact_duration(time)), Ok(time));
            }
        }
    }
}
