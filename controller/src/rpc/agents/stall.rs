//! Does this runtime run? A reader that stood still reads old words late, and takes them for young
//! ones: a close seen then proves nothing about an agent (design 3, RDHUP).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often the watch looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A longer pause between two looks is a stall.
const STALL: Duration = Duration::from_secs(1);

/// Remembers when the runtime last stood still. Cheap to clone.
#[derive(Clone)]
pub struct StallWatch {
    base: Instant,
    /// End of the last stall, in ms since `base`, plus one; 0: there was none.
    stalled: Arc<AtomicU64>,
}

impl StallWatch {
    /// Starts watching on `tasks`, until `stop`.
    pub fn start(tasks: &TaskTracker, stop: CancellationToken) -> Self {
        let watch = StallWatch { base: Instant::now(), stalled: Arc::default() };
        let watching = watch.clone();
        tasks.spawn(async move { stop.run_until_cancelled(watching.run()).await });
        watch
    }

    /// Did a stall end within the last `window`?
    pub fn stalled_within(&self, window: Duration) -> bool {
        match self.stalled.load(Ordering::Relaxed).checked_sub(1) {
            Some(at) => self.base.elapsed().saturating_sub(Duration::from_millis(at)) <= window,
            None => false,
        }
    }

    async fn run(self) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            looks.tick().await;
            if last.elapsed() > STALL {
                self.note();
            }
            last = Instant::now();
        }
    }

    fn note(&self) {
        let at = u64::try_from(self.base.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.stalled.store(at + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_that_stood_still_is_noticed() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let watch = StallWatch::start(&tasks, stop.clone());
        tokio::time::sleep(LOOK_EVERY).await;
        assert!(!watch.stalled_within(Duration::from_secs(60)));
        // The one thread of this runtime sleeps: exactly what is to be noticed.
        std::thread::sleep(STALL + LOOK_EVERY);
        tokio::time::sleep(LOOK_EVERY * 2).await;
        assert!(watch.stalled_within(Duration::from_secs(60)));
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }
}
