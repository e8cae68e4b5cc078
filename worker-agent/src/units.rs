//! Durations, sizes and shares as people write them in the `[agent]` section (design 7, Formats). A
//! bare number is refused, since its unit would be a guess.

use std::time::Duration;

const DURATIONS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

const SIZES: [(&str, u64); 13] = [
    ("TiB", 1 << 40),
    ("TB", 1 << 40),
    ("T", 1 << 40),
    ("GiB", 1 << 30),
    ("GB", 1 << 30),
    ("G", 1 << 30),
    ("MiB", 1 << 20),
    ("MB", 1 << 20),
    ("M", 1 << 20),
    ("KiB", 1 << 10),
    ("KB", 1 << 10),
    ("K", 1 << 10),
    ("B", 1),
];

/// Reads `250ms`, `90s`, `1h30m`, `2d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    sum_of_parts(text, &DURATIONS).map(Duration::from_millis).ok_or_else(|| {
        format!("`{text}` is no duration: write a number with its unit, as in 90s, 1h30m or 2d")
    })
}

/// Reads `512K`, `2G`, `10GiB`: powers of 1,024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    sum_of_parts(text, &SIZES).ok_or_else(|| {
        format!("`{text}` is no size: write a number with its unit, as in 512M or 2G")
    })
}

/// Writes a duration so that [`parse_duration`] reads it back.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, factor) in DURATIONS {
        if rest >= factor {
            text.push_str(&format!("{}{unit}", rest / factor));
            rest %= factor;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Writes a size so that [`parse_size`] reads it back.
pub fn format_size(bytes: u64) -> String {
    let fits = |factor: u64| bytes != 0 && bytes.is_multiple_of(factor);
    let unit = SIZES.iter().find(|(unit, factor)| unit.ends_with("iB") && fits(*factor));
    match unit {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

/// `1h30m` as the sum of its parts; none if a part is no number with a known unit, or on overflow.
fn sum_of_parts(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let mut rest = text;
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(number.parse::<u64>().ok()?.checked_mul(*factor)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for ms in [0, 1, 999, 1000, 5_400_000, 604_800_000, 90_061_001] {
            let duration = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for bytes in [0, 1, 1023, 1024, 1025, 256 << 20, 10 << 30] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(parse_size("2G"), Ok(2 << 30));
    }

    #[test]
    fn guesses_are_refused() {
        for text in ["", "90", "s", "1x", "1:30", "-1s", "1.5h", "99999999999999999999s", "é"] {
            assert!(parse_duration(text).is_err(), "{text}");
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
