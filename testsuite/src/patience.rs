//! Waiting for conditions, with deadlines. The only place of the test suite that sleeps.

use std::time::{Duration, Instant};

/// How often a condition is looked at: often enough for short tests, seldom enough for two cores.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The same for looks that cost a process: more would starve what is waited for.
pub const LOOK_BY_COMMAND: Duration = Duration::from_millis(60);

/// Longest wait for anything that should happen soon, on a busy machine with a debug build.
pub const SOON: Duration = Duration::from_secs(30);

/// Longest wait for something that needs many processes or many seconds of docket's own time-outs.
pub const LATER: Duration = Duration::from_secs(120);

/// Looks until `look` gives a value; panics with `what` when `limit` has passed.
#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> T {
    let found = poll(limit, LOOK_EVERY, look);
    found.unwrap_or_else(|| panic!("waited {limit:?} in vain until {what}"))
}

/// Looks every `pause` until `look` gives a value; `None` when `limit` has passed.
pub fn poll<T>(limit: Duration, pause: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        if let Some(value) = look() {
            return Some(value);
        }
        if begin.elapsed() > limit {
            return None;
        }
        std::thread::sleep(pause);
    }
}

/// Looks until `look` is true; panics with `what` when `limit` has passed.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut look: impl FnMut() -> bool) {
    wait_for(what, limit, || look().then_some(()));
}

/// The same where each look costs a process.
#[track_caller]
pub fn wait_by_command(what: &str, mut look: impl FnMut() -> bool) {
    let found = poll(SOON, LOOK_BY_COMMAND, || look().then_some(()));
    found.unwrap_or_else(|| panic!("waited {SOON:?} in vain until {what}"));
}

/// Lets time pass where the time itself is the scenario ("back after 15 s"), not a synchronisation.
/// `still` must hold all along: it says what the scenario is about.
#[track_caller]
pub fn let_pass(span: Duration, what: &str, mut still: impl FnMut() -> bool) {
    let begin = Instant::now();
    while begin.elapsed() < span {
        assert!(still(), "within {span:?} it stopped being true that {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The same for a task of a runtime, e.g. a relay that delays what passes.
pub async fn pass_time(span: Duration) {
    tokio::time::sleep(span).await;
}
