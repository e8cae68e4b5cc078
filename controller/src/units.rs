//! Durations and sizes as people write them in a configuration (design 7, Formats): `90s`, `1h30m`,
//! `2d`, `10GiB`. A bare number is refused, since its unit would be a guess.

use std::time::Duration;
use thiserror::Error;

/// A text that is no duration or size.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UnitError {
    /// No unit: seconds and minutes, bytes and megabytes are both plausible.
    #[error("`{text}` has no unit: write {hint}")]
    NoUnit {
        /// What was given.
        text: String,
        /// Two readings of it.
        hint: String,
    },
    /// Not of the form number, unit, number, unit, …
    #[error("`{text}` is no {what}: write for example {example}")]
    Malformed {
        /// What was given.
        text: String,
        /// `duration` or `size`.
        what: &'static str,
        /// One that is right.
        example: &'static str,
    },
}

/// Reads `250ms`, `90s`, `1h30m`, `2d`.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(controller::parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
/// assert!(controller::parse_duration("90").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let units: [(&str, u64); 5] =
        [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    if is_bare(text) {
        let hint = format!("`{text}s` or `{text}m`");
        return Err(UnitError::NoUnit { text: text.to_owned(), hint });
    }
    let malformed = || UnitError::Malformed {
        text: text.to_owned(),
        what: "duration",
        example: "90s, 1h30m or 2d",
    };
    sum_of_parts(text, &units).map(Duration::from_millis).ok_or_else(malformed)
}

/// Reads `512K`, `2G`, `10GiB`: powers of 1,024.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let units: [(&str, u64); 5] =
        [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40), ("", 1)];
    if is_bare(text) {
        let hint = format!("`{text}M` or `{text}G`");
        return Err(UnitError::NoUnit { text: text.to_owned(), hint });
    }
    let malformed =
        || UnitError::Malformed { text: text.to_owned(), what: "size", example: "512M or 2G" };
    // `B` alone is bytes, `KB` and `KiB` are both 1,024: people mean that in a job system.
    let short = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    sum_of_parts(short, &units).ok_or_else(malformed)
}

/// Writes a duration so that [`parse_duration`] reads it back: `1h30m`, `250ms`.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (unit, factor) in
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)]
    {
        if rest >= factor {
            text.push_str(&format!("{}{unit}", rest / factor));
            rest %= factor;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Writes a size so that [`parse_size`] reads it back exactly, in the largest unit that divides it.
pub fn format_size(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

fn is_bare(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// `1h30m` as the sum of its parts; none if a part is no number with a known unit, or on overflow.
fn sum_of_parts(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let mut rest = text;
    let mut sum: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (_, factor) = units.iter().find(|(name, _)| *name == &rest[..letters])?;
        rest = &rest[letters..];
        sum = sum.checked_add(number.checked_mul(*factor)?)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_sums_of_their_parts() {
        let ms = |text: &str| parse_duration(text).unwrap().as_millis();
        assert_eq!(ms("100ms"), 100);
        assert_eq!(ms("30s"), 30_000);
        assert_eq!(ms("1h30m"), 5_400_000);
        assert_eq!(ms("7d"), 604_800_000);
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("512KB"), Ok(512 << 10));
        assert_eq!(parse_size("17B"), Ok(17));
    }

    #[test]
    fn what_is_written_reads_back() {
        for ms in [0, 1, 999, 1000, 5_400_000, 604_800_000, 90_061_001] {
            let duration = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for bytes in [0, 1, 1023, 1024, 1025, 256 << 20, 10 << 30] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn what_could_be_read_two_ways_is_refused_with_both_readings() {
        let error = parse_duration("90").unwrap_err().to_string();
        assert_eq!(error, "`90` has no unit: write `90s` or `90m`");
        for text in ["", "s", "1x", "1:30", "-1s", "1.5h", "99999999999999999999s", "é"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_size("12").is_err());
        assert!(parse_size("B").is_err());
    }
}
