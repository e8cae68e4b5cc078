//! Who waits for which job. A watcher is registered before it looks, so no change is lost between
//! the look and the wait; changes that come while it is busy fold into one wake-up.

use proto::JobId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::Notify;

/// What one caller waits on: the jobs of its set that changed since it last asked. At most as many
/// as it watches.
#[derive(Default)]
pub struct Watcher {
    changed: Mutex<BTreeSet<JobId>>,
    wake: Notify,
}

/// Every watcher by job, owned by the pump. Weak: a caller that went away costs nothing to forget.
#[derive(Default)]
pub struct Watchers {
    by_job: BTreeMap<JobId, Vec<Weak<Watcher>>>,
    registered: usize,
    sweep_at: usize,
}

/// Registrations before the first sweep for callers that went away; then at twice what is left.
const SWEEP_FIRST: usize = 1024;

impl Watcher {
    /// Waits until a watched job changed, and takes the changed ones.
    pub async fn changed(&self) -> BTreeSet<JobId> {
        loop {
            let changed = std::mem::take(&mut *self.locked());
            if !changed.is_empty() {
                return changed;
            }
            // A note that comes before this await leaves a permit: it returns at once.
            self.wake.notified().await;
        }
    }

    fn note(&self, job: JobId) {
        self.locked().insert(job);
        self.wake.notify_one();
    }

    fn locked(&self) -> MutexGuard<'_, BTreeSet<JobId>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchers {
    /// From now on `watcher` hears of changes of `jobs`.
    pub fn register(&mut self, watcher: &Arc<Watcher>, jobs: &[JobId]) {
        for job in jobs {
            self.by_job.entry(*job).or_default().push(Arc::downgrade(watcher));
        }
        self.registered += jobs.len();
        if self.registered > self.sweep_at.max(SWEEP_FIRST) {
            self.sweep();
        }
    }

    /// Wakes those who watch `job`.
    pub fn notify(&self, job: JobId) {
        let waiting = self.by_job.get(&job).into_iter().flatten();
        waiting.filter_map(Weak::upgrade).for_each(|watcher| watcher.note(job));
    }

    /// Wakes everybody: the whole ledger was replaced.
    pub fn notify_all(&self) {
        self.by_job.keys().for_each(|job| self.notify(*job));
    }

    fn sweep(&mut self) {
        self.by_job.retain(|_, watchers| {
            watchers.retain(|watcher| watcher.strong_count() > 0);
            !watchers.is_empty()
        });
        self.registered = self.by_job.values().map(Vec::len).sum();
        self.sweep_at = self.registered * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn a_change_between_register_and_wait_is_not_lost() {
        let (mut watchers, watcher) = (Watchers::default(), Arc::new(Watcher::default()));
        watchers.register(&watcher, &[JobId(1), JobId(2)]);
        watchers.notify(JobId(1));
        watchers.notify(JobId(3));
        assert_eq!(watcher.changed().await, BTreeSet::from([JobId(1)]));
        assert!(watcher.changed().now_or_never().is_none(), "taken once");
        watchers.notify(JobId(2));
        watchers.notify(JobId(1));
        assert_eq!(watcher.changed().await, BTreeSet::from([JobId(1), JobId(2)]));
    }

    #[test]
    fn callers_that_went_away_are_forgotten() {
        let mut watchers = Watchers::default();
        for id in 0..=SWEEP_FIRST as u64 {
            watchers.register(&Arc::new(Watcher::default()), &[JobId(id)]);
        }
        // The last one was alive when its registration swept the others.
        assert_eq!(watchers.registered, 1);
        assert_eq!(
            watchers.by_job.keys().copied().collect::<Vec<_>>(),
            [JobId(SWEEP_FIRST as u64)]
        );
    }
}
