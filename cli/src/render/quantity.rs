//! Times, spans and sizes as people read them.

use super::escape::line;
use jiff::Timestamp;
use jiff::tz::TimeZone;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// `0:00:41`, `2:14:09`, `3-02:14:09`.
pub fn clock(ms: u64) -> String {
    let (hours, minutes, seconds) = (ms / HOUR_MS % 24, ms / MINUTE_MS % 60, ms / SECOND_MS % 60);
    match ms / DAY_MS {
        0 => format!("{hours}:{minutes:02}:{seconds:02}"),
        days => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// The two largest units: `41s`, `3m10s`, `2h5m`, `3d4h`.
pub fn span(ms: u64) -> String {
    let units = [("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS)];
    let Some(first) = units.iter().position(|(_, unit)| ms >= *unit) else {
        return format!("{}s", ms / SECOND_MS);
    };
    let mut text = format!("{}{}", ms / units[first].1, units[first].0);
    if let Some((name, unit)) = units.get(first + 1) {
        let rest = ms % units[first].1 / unit;
        if rest > 0 {
            text.push_str(&format!("{rest}{name}"));
        }
    }
    text
}

/// The largest unit alone: `41s`, `12m`, `3h`, `2d`.
pub fn rough(ms: u64) -> String {
    let units = [("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS)];
    match units.iter().find(|(_, unit)| ms >= *unit) {
        Some((name, unit)) => format!("{}{name}", ms / unit),
        None => format!("{}s", ms / SECOND_MS),
    }
}

/// `0.4 s`, `12 s`, `1:02:03`.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{} s", ms / SECOND_MS, ms % SECOND_MS / 100),
        10_000..60_000 => format!("{} s", ms / SECOND_MS),
        _ => clock(ms),
    }
}

/// `0.4s`, `12s`, `1m09s`: how long ago a node spoke.
pub fn last_word(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{}s", ms / SECOND_MS, ms % SECOND_MS / 100),
        10_000..60_000 => format!("{}s", ms / SECOND_MS),
        60_000..3_600_000 => format!("{}m{:02}s", ms / MINUTE_MS, ms / SECOND_MS % 60),
        _ => span(ms),
    }
}

/// `88B`, `1.2K`, `212M`, `512G`: powers of 1024.
pub fn size(bytes: u64) -> String {
    let (unit, letter) = size_unit(bytes);
    let tenths = u128::from(bytes) * 10 / u128::from(unit);
    if unit == 1 || tenths >= 100 || tenths % 10 == 0 {
        format!("{}{letter}", bytes / unit)
    } else {
        format!("{}.{}{letter}", tenths / 10, tenths % 10)
    }
}

/// `118/512G`: both in the unit of the second.
pub fn share(used: u64, total: u64) -> String {
    let (unit, letter) = size_unit(total);
    format!("{}/{}{letter}", used.div_ceil(unit), total / unit)
}

fn size_unit(bytes: u64) -> (u64, char) {
    [(1 << 50, 'P'), (1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .unwrap_or((1, 'B'))
}

/// `matlab=1,scratch=2`; nothing: `-`.
pub fn amounts(amounts: &std::collections::BTreeMap<String, u64>) -> String {
    let all: Vec<String> = amounts.iter().map(|(name, n)| format!("{}={n}", line(name))).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(",") }
}

/// The gpus of a job: their indices once it has some, `0,2`; else how many it asks for, `2?`.
pub fn gpus(task: &proto::v1::Task) -> String {
    let ids: Vec<String> = task.gpu_ids.iter().map(u32::to_string).collect();
    match (task.gpus, ids.is_empty()) {
        (0, true) => "-".to_owned(),
        (asked, true) => format!("{asked}?"),
        (_, false) => ids.join(","),
    }
}

/// `1,204`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `2026-11-30 09:51:02` where the reader is.
pub fn date_time(wall_ms: u64, zone: &TimeZone) -> String {
    local(wall_ms, zone, "%Y-%m-%d %H:%M:%S")
}

/// `2026-11-30 09:51:02 UTC`, as messages of the server have it.
pub fn date_time_utc(wall_ms: u64) -> String {
    timestamp(wall_ms).strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// `09:51:02` on the day of `now_ms`, with the date on any other.
pub fn time(wall_ms: u64, now_ms: u64, zone: &TimeZone) -> String {
    let same = local(wall_ms, zone, "%Y-%m-%d") == local(now_ms, zone, "%Y-%m-%d");
    local(wall_ms, zone, if same { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" })
}

/// `09:51:02.118` on the day of `now_ms`, with the date on any other.
pub fn exact_time(wall_ms: u64, now_ms: u64, zone: &TimeZone) -> String {
    format!("{}.{:03}", time(wall_ms, now_ms, zone), wall_ms % SECOND_MS)
}

/// `2026-11-30T09:51:02.118Z`, as JSON has it.
pub fn utc(wall_ms: u64) -> String {
    timestamp(wall_ms).strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

fn local(wall_ms: u64, zone: &TimeZone, form: &str) -> String {
    timestamp(wall_ms).to_zoned_datetime(zone.clone()).strftime(form).to_string()
}

/// A time beyond what calendars hold is shown as their last.
fn timestamp(wall_ms: u64) -> Timestamp {
    i64::try_from(wall_ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short_and_exact_enough() {
        assert_eq!(clock(41_000), "0:00:41");
        assert_eq!(clock(8_049_000), "2:14:09");
        assert_eq!(clock(DAY_MS * 3 + 8_049_000), "3-02:14:09");
        assert_eq!(span(190_000), "3m10s");
        assert_eq!(span(120_000), "2m");
        assert_eq!(span(400), "0s");
        assert_eq!(rough(720_000), "12m");
        assert_eq!(seconds(430), "0.4 s");
        assert_eq!(seconds(12_900), "12 s");
        assert_eq!(seconds(60_000), "0:01:00");
        assert_eq!(last_word(69_000), "1m09s");
        assert_eq!(last_word(2_100), "2.1s");
    }

    #[test]
    fn sizes_and_counts_are_short() {
        assert_eq!(size(88), "88B");
        assert_eq!(size(1_230), "1.2K");
        assert_eq!(size(212 << 20), "212M");
        assert_eq!(size(1 << 30), "1G");
        assert_eq!(share(118 << 30, 512 << 30), "118/512G");
        assert_eq!(share(0, 0), "0/0B");
        assert_eq!(count(1_204), "1,204");
        assert_eq!(count(1_000_000), "1,000,000");
        assert_eq!(count(7), "7");
    }

    #[test]
    fn times_are_local_for_people_and_utc_for_programs() {
        let wall = 1_796_032_262_118;
        assert_eq!(utc(wall), "2026-11-30T09:51:02.118Z");
        assert_eq!(utc(u64::MAX).len(), utc(wall).len());
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(date_time(wall, &zone), "2026-11-30 10:51:02");
        assert_eq!(exact_time(wall, wall, &zone), "10:51:02.118");
        assert_eq!(exact_time(wall, wall + DAY_MS, &zone), "2026-11-30 10:51:02.118");
    }
}
