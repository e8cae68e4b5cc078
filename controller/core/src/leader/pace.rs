//! Did the leader itself stall? A leader that slept proves nothing about its agents (design 3).

use proto::mutants::Mutant;

/// A pause of the loop longer than this makes every close of that time a silence, in ms.
pub(super) const STALL_MS: u64 = 1_000;

/// What one pass of the sweep adds to a silence at most, in ms: a stall of the leader counts as
/// little, and still the count never stops.
pub(super) const PASS_MAX_MS: u64 = 2_000;

/// When the loop ran.
#[derive(Debug)]
pub(super) struct Pace {
    last_event_ms: u64,
    last_pass_ms: u64,
    stalled_ms: Option<u64>,
}

impl Pace {
    pub fn new(now: u64) -> Self {
        Pace { last_event_ms: now, last_pass_ms: now, stalled_ms: None }
    }

    /// Every event shows that the loop runs, and how long it did not.
    pub fn observe(&mut self, now: u64) {
        if now.saturating_sub(self.last_event_ms) > STALL_MS {
            self.stalled_ms = Some(now);
        }
        self.last_event_ms = now;
    }

    /// A pass of the sweep: what it may add to each silence.
    pub fn pass(&mut self, now: u64) -> u64 {
        let most = if Mutant::StallCounted.active() { u64::MAX } else { PASS_MAX_MS };
        let passed = now.saturating_sub(self.last_pass_ms).min(most);
        self.last_pass_ms = now;
        passed
    }

    /// Was there a stall that reaches into the last `window_ms`?
    pub fn stalled_within(&self, window_ms: u64, now: u64) -> bool {
        self.stalled_ms.is_some_and(|stalled| stalled.saturating_add(window_ms) >= now)
    }
}
