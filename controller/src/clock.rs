//! The shell's clocks; the cores are handed their values (design 2, Two times).

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// UTC in milliseconds, for people.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since `start` on the monotonic clock.
pub fn ms_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}
