//! Whether anybody uses this server: what `--idle-exit` of the embedded node asks.

use crate::clock::ms_since;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Requests of people and programs; those of agents do not count. Clones share it.
#[derive(Clone)]
pub struct Activity(Arc<Seen>);

struct Seen {
    start: Instant,
    last_ms: AtomicU64,
    open: AtomicUsize,
}

/// A stream that is being answered.
pub struct OpenStream(Activity);

impl Default for Activity {
    fn default() -> Self {
        Activity(Arc::new(Seen {
            start: Instant::now(),
            last_ms: AtomicU64::new(0),
            open: AtomicUsize::new(0),
        }))
    }
}

impl Activity {
    /// A request came.
    pub fn touch(&self) {
        self.0.last_ms.fetch_max(ms_since(self.0.start), Ordering::Relaxed);
    }

    /// A stream begins; its client is there as long as the value lives.
    pub fn open(&self) -> OpenStream {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }

    /// Time since the last request; zero while a stream is open.
    pub fn quiet(&self) -> Duration {
        if self.0.open.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        let last = self.0.last_ms.load(Ordering::Relaxed);
        Duration::from_millis(ms_since(self.0.start).saturating_sub(last))
    }
}

impl OpenStream {
    /// Something went over the stream.
    pub fn touch(&self) {
        self.0.touch();
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.touch();
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_stream_is_activity() {
        let activity = Activity::default();
        std::thread::sleep(Duration::from_millis(5));
        assert!(activity.quiet() >= Duration::from_millis(4));
        let stream = activity.open();
        assert_eq!(activity.quiet(), Duration::ZERO);
        drop(stream);
        assert!(activity.quiet() < Duration::from_secs(5));
    }
}
