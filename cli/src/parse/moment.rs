//! Moments as people write them: `--begin`. A time of day and a date are local; durations never are. What
//! the change to summer time leaves out or has twice is one moment all the same (`docs/units.md`).

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan, ZonedDateTime};

/// Why a text is no moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MomentError {
    /// None of the forms.
    #[error(
        "no time: give 2026-12-01T10:00:00Z, 2026-12-01T10:00, 10:00 (the next such local time), now+1h, \
         tomorrow or tomorrow 10:00"
    )]
    Form,
    /// What follows `now+` is no duration.
    #[error("now+{0}: {1}")]
    Duration(String, String),
    /// Beyond what a calendar has.
    #[error("it is too far from now")]
    Range,
}

/// Reads `--begin`, as UTC milliseconds.
pub fn begin(text: &str) -> Result<u64, MomentError> {
    let moment = moment(text, &ZonedDateTime::now())?;
    Ok(u64::try_from(moment.as_millisecond()).unwrap_or(0))
}

/// Reads a moment; `now` has the local time zone.
pub fn moment(text: &str, now: &ZonedDateTime) -> Result<Timestamp, MomentError> {
    if let Some(rest) = text.strip_prefix("now") {
        return later(rest, now);
    }
    if let Some(rest) = text.strip_prefix("tomorrow") {
        let time = match rest.strip_prefix(' ') {
            Some(time) => time_of_day(time)?,
            None if rest.is_empty() => Time::midnight(),
            None => return Err(MomentError::Form),
        };
        let date = now.date().tomorrow().map_err(|_| MomentError::Range)?;
        return local(date.to_datetime(time), now.time_zone());
    }
    if let Ok(time) = time_of_day(text) {
        return next(time, now);
    }
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Ok(moment);
    }
    let written = DateTime::strptime("%Y-%m-%dT%H:%M:%S", text)
        .or_else(|_| DateTime::strptime("%Y-%m-%dT%H:%M", text))
        .or_else(|_| {
            Date::strptime("%Y-%m-%d", text).map(|date| date.to_datetime(Time::midnight()))
        });
    local(written.map_err(|_| MomentError::Form)?, now.time_zone())
}

/// `now`, or `now+1h`: so much time, whatever clocks do meanwhile.
fn later(rest: &str, now: &ZonedDateTime) -> Result<Timestamp, MomentError> {
    let Some(text) = rest.strip_prefix('+') else {
        return if rest.is_empty() { Ok(now.timestamp()) } else { Err(MomentError::Form) };
    };
    let time = units::duration(text)
        .map_err(|why| MomentError::Duration(text.to_owned(), why.to_string()))?;
    let time = SignedDuration::try_from(time).map_err(|_| MomentError::Range)?;
    now.timestamp().checked_add(time).map_err(|_| MomentError::Range)
}

/// The next moment at which local clocks show that time, or would if they did not leave it out.
fn next(time: Time, now: &ZonedDateTime) -> Result<Timestamp, MomentError> {
    for days in 0..=1 {
        let date = now.date().checked_add(days.days()).map_err(|_| MomentError::Range)?;
        let moment = local(date.to_datetime(time), now.time_zone())?;
        if moment > now.timestamp() {
            return Ok(moment);
        }
    }
    Err(MomentError::Range)
}

/// One moment for each local time: the first of two; of one that clocks leave out, as much later as they
/// are put forward.
fn local(at: DateTime, zone: &TimeZone) -> Result<Timestamp, MomentError> {
    zone.to_ambiguous_zoned_datetime(at)
        .compatible()
        .map(|zoned| zoned.timestamp())
        .map_err(|_| MomentError::Range)
}

/// `10:00` or `10:00:00`.
fn time_of_day(text: &str) -> Result<Time, MomentError> {
    let strict =
        matches!(text.len(), 5 | 8) && text.bytes().all(|b| b.is_ascii_digit() || b == b':');
    let read = Time::strptime("%H:%M", text).or_else(|_| Time::strptime("%H:%M:%S", text));
    read.ok().filter(|_| strict).ok_or(MomentError::Form)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Central Europe's, whatever this machine knows of zones.
    const ZONE: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

    fn at(now: &str, text: &str) -> Result<String, MomentError> {
        let now: Timestamp = now.parse().unwrap();
        let now = now.to_zoned_datetime(TimeZone::posix(ZONE).unwrap());
        moment(text, &now).map(|moment| moment.to_string())
    }

    const NOON: &str = "2026-11-30T12:00:00+01:00";

    #[test]
    fn each_form_is_one_moment() {
        for (text, moment) in [
            ("2026-12-01T10:00:00Z", "2026-12-01T10:00:00Z"),
            ("2026-12-01T10:00:00.250Z", "2026-12-01T10:00:00.25Z"),
            ("2026-12-01T10:00:00+01:00", "2026-12-01T09:00:00Z"),
            ("2026-12-01T10:00:00", "2026-12-01T09:00:00Z"),
            ("2026-12-01T10:00", "2026-12-01T09:00:00Z"),
            ("2026-12-01", "2026-11-30T23:00:00Z"),
            ("12:01", "2026-11-30T11:01:00Z"),
            ("12:00", "2026-12-01T11:00:00Z"),
            ("11:59:59", "2026-12-01T10:59:59Z"),
            ("now", "2026-11-30T11:00:00Z"),
            ("now+1h30m", "2026-11-30T12:30:00Z"),
            ("now+2d", "2026-12-02T11:00:00Z"),
            ("tomorrow", "2026-11-30T23:00:00Z"),
            ("tomorrow 08:00", "2026-12-01T07:00:00Z"),
        ] {
            assert_eq!(at(NOON, text), Ok(moment.to_owned()), "{text}");
        }
        for wrong in [
            "",
            "10",
            "10:0",
            "24:00",
            "10:60",
            "now-1h",
            "now+",
            "now+60",
            "nowish",
            "tomorrow10:00",
            "+1h",
            "1h",
            "2026-13-01",
            "2026-02-30T10:00",
            "yesterday",
            "10:00 PM",
            "noon",
        ] {
            assert!(at(NOON, wrong).is_err(), "{wrong}: {:?}", at(NOON, wrong));
        }
        let why = at(NOON, "now+60").unwrap_err().to_string();
        assert!(why.starts_with("now+60: ") && why.contains("60s"), "{why}");
    }

    #[test]
    fn a_time_that_clocks_leave_out_or_have_twice_is_one_moment() {
        // Clocks are put forward from 02:00 to 03:00: 02:30 is as late as if they were not.
        let spring = "2026-03-28T20:00:00+01:00";
        assert_eq!(at(spring, "02:30"), Ok("2026-03-29T01:30:00Z".to_owned()));
        assert_eq!(at(spring, "2026-03-29T02:30"), at(spring, "2026-03-29T03:30"));
        // Put back from 03:00 to 02:00: 02:30 comes twice, and the first counts.
        let autumn = "2026-10-24T20:00:00+02:00";
        assert_eq!(at(autumn, "02:30"), Ok("2026-10-25T00:30:00Z".to_owned()));
        // Between the two it is over, and does not come again that day.
        let between = "2026-10-25T02:15:00+01:00";
        assert_eq!(at(between, "02:30"), Ok("2026-10-26T01:30:00Z".to_owned()));
        // Durations are not local: a day has 24 hours.
        assert_eq!(at(spring, "now+1d"), Ok("2026-03-29T19:00:00Z".to_owned()));
        assert_eq!(at(autumn, "now+1d"), Ok("2026-10-25T18:00:00Z".to_owned()));
    }
}
