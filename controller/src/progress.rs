//! How far a start is: a line each 5 s, so that a long one is never taken for a hang. A start reads
//! the newest snapshot, then the log, then applies the entries behind the snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two lines, and before the first.
const EVERY: Duration = Duration::from_secs(5);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, told as MiB.
    Bytes,
    /// Entries of the log.
    Entries,
}

/// Time since the process began to start.
type Clock = Box<dyn Fn() -> Duration + Send>;

/// One start. Its lines come no oftener than each 5 s, over all of its stages.
pub struct Progress {
    clock: Clock,
    /// When the last line was told, or the start began.
    told: Duration,
    stage: Stage,
}

struct Stage {
    doing: &'static str,
    unit: Unit,
    began: Duration,
    total: u64,
}

impl Progress {
    /// A start that begins now.
    pub fn begin() -> Progress {
        let begin = Instant::now();
        Progress::on(Box::new(move || begin.elapsed()))
    }

    fn on(clock: Clock) -> Progress {
        let began = clock();
        let stage =
            Stage { doing: "opening the data directory", unit: Unit::Bytes, began, total: 0 };
        Progress { clock, told: began, stage }
    }

    /// Begins the next stage, of `total` units; 0 where that is not known.
    pub fn stage(&mut self, doing: &'static str, unit: Unit, total: u64) {
        self.stage = Stage { doing, unit, began: (self.clock)(), total };
    }

    /// Takes note that `done` units of the stage are done, and logs the line that is due, if one is.
    pub fn at(&mut self, done: u64) {
        if let Some(line) = self.line(done) {
            tracing::info!("{line}");
        }
    }

    fn line(&mut self, done: u64) -> Option<String> {
        let now = (self.clock)();
        if now.saturating_sub(self.told) < EVERY {
            return None;
        }
        self.told = now;
        Some(self.stage.line(done, now))
    }
}

/// The last stage: what lies behind the snapshot is applied. It ends with the newest entry that the
/// log knew to be committed when it was opened.
pub struct Replay {
    progress: Progress,
    /// Position of the ledger when the first entry came; none before that.
    from: Option<u64>,
    /// Position of the newest committed entry.
    to: u64,
    applied: Applied,
}

/// The position that was applied last, for who waits for the end of a start.
#[derive(Clone, Default)]
pub struct Applied(Arc<AtomicU64>);

impl Applied {
    /// Where it stands; 0 before the first entry.
    pub fn position(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Replay {
    /// A replay up to position `to`.
    pub fn of(progress: Progress, to: u64) -> Replay {
        Replay { progress, from: None, to, applied: Applied::default() }
    }

    /// Follows this replay and what comes behind it.
    pub fn position(&self) -> Applied {
        self.applied.clone()
    }

    /// The entry at `position` is applied.
    pub fn applied(&mut self, position: u64) {
        self.applied.0.store(position, Ordering::Relaxed);
        if position > self.to {
            return;
        }
        let from = match self.from {
            Some(from) => from,
            None => {
                let from = position.saturating_sub(1);
                let total = self.to.saturating_sub(from);
                self.progress.stage("applying the log", Unit::Entries, total);
                *self.from.insert(from)
            }
        };
        self.progress.at(position.saturating_sub(from));
    }
}

impl Stage {
    /// `starting: reading the log: 42% (420 of 1000 MiB), 83 MiB/s, about 7 s left`.
    fn line(&self, done: u64, now: Duration) -> String {
        let name = |number: u64| match self.unit {
            Unit::Bytes => format!("{} MiB", number >> 20),
            Unit::Entries => format!("{number} entries"),
        };
        let ms = u64::try_from(now.saturating_sub(self.began).as_millis()).unwrap_or(u64::MAX);
        let rate = done.saturating_mul(1000) / ms.max(1);
        let doing = self.doing;
        if self.total == 0 {
            return format!("starting: {doing}: {}, {}/s", name(done), name(rate));
        }
        let percent = done.min(self.total).saturating_mul(100) / self.total;
        let of = match self.unit {
            Unit::Bytes => (done >> 20).to_string(),
            Unit::Entries => done.to_string(),
        };
        let left = match self.total.saturating_sub(done).checked_div(rate) {
            Some(seconds) => format!("about {seconds} s left"),
            None => "no end in sight".to_owned(),
        };
        format!(
            "starting: {doing}: {percent}% ({of} of {}), {}/s, {left}",
            name(self.total),
            name(rate)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A start whose clock, in milliseconds, is set by hand.
    fn by_hand() -> (Progress, Arc<AtomicU64>) {
        let ms = Arc::new(AtomicU64::new(700));
        let clock = Arc::clone(&ms);
        let now = move || Duration::from_millis(clock.load(Ordering::Relaxed));
        (Progress::on(Box::new(now)), ms)
    }

    #[test]
    fn a_short_start_says_nothing() {
        let (mut progress, ms) = by_hand();
        for (stage, at) in [("reading the log", 1000), ("applying the log", 5600)] {
            progress.stage(stage, Unit::Entries, 10);
            ms.store(at, Ordering::Relaxed);
            assert_eq!(progress.line(5), None);
        }
    }

    #[test]
    fn a_long_start_tells_every_5_s_how_far_it_is_how_fast_and_how_long_it_lasts() {
        let (mut progress, ms) = by_hand();
        let mut told = Vec::new();
        progress.stage("reading the log", Unit::Bytes, 1000 << 20);
        for second in 1..=12 {
            ms.store(700 + second * 1000, Ordering::Relaxed);
            told.extend(progress.line((second * 50) << 20));
        }
        // The next stage begins at second 12; its first line comes 5 s behind the last one.
        progress.stage("applying the log", Unit::Entries, 9000);
        for second in 13..=15 {
            ms.store(700 + second * 1000, Ordering::Relaxed);
            told.extend(progress.line((second - 12) * 1500));
        }
        assert_eq!(
            told,
            [
                "starting: reading the log: 25% (250 of 1000 MiB), 50 MiB/s, about 15 s left",
                "starting: reading the log: 50% (500 of 1000 MiB), 50 MiB/s, about 10 s left",
                "starting: applying the log: 50% (4500 of 9000 entries), 1500 entries/s, about 3 s left",
            ]
        );
    }

    #[test]
    fn a_replay_is_counted_from_the_snapshot_to_the_newest_committed_entry_and_then_is_over() {
        let (progress, ms) = by_hand();
        let mut replay = Replay::of(progress, 3000);
        let line = |replay: &mut Replay, position, at| {
            replay.applied(position);
            ms.store(at, Ordering::Relaxed);
            replay.progress.line(position - 1000)
        };
        assert_eq!(line(&mut replay, 1001, 800), None);
        let half = line(&mut replay, 2000, 5700).unwrap();
        assert_eq!(
            half,
            "starting: applying the log: 50% (1000 of 2000 entries), 200 entries/s, about 5 s left"
        );
        assert_eq!(replay.position().position(), 2000);
        let told = replay.progress.told;
        ms.store(60_000, Ordering::Relaxed);
        replay.applied(3001);
        assert_eq!(replay.progress.told, told, "what comes behind it is no start any more");
        replay.applied(3000);
        assert_eq!(replay.progress.told, Duration::from_secs(60));
    }

    #[test]
    fn what_has_no_known_length_or_stands_still_is_told_as_that() {
        let (mut progress, ms) = by_hand();
        ms.store(10_700, Ordering::Relaxed);
        let unknown = progress.line(50 << 20).unwrap();
        assert_eq!(unknown, "starting: opening the data directory: 50 MiB, 5 MiB/s");
        progress.stage("reading the snapshot", Unit::Bytes, 9 << 20);
        ms.store(20_700, Ordering::Relaxed);
        let still = progress.line(0).unwrap();
        assert_eq!(
            still,
            "starting: reading the snapshot: 0% (0 of 9 MiB), 0 MiB/s, no end in sight"
        );
    }
}
