//! Rounds of real processes that are broken at random from one seed: [`kills`] kills daemons under
//! jobs whose ends are known, [`cuts`] cuts the line between controller and agent.
//! A round that fails prints the one command that repeats it; its plan is the same then, the
//! interleaving as near as a real machine gives it.

pub mod cuts;
pub mod kills;

mod chance;
mod job;
mod judge;

pub use chance::Chance;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs the rounds `first..first + count`, so many at a time; gives what each returned, `None` for
/// those that failed, in no order. Calls `done` after each.
pub fn side_by_side<T: Send>(
    first: u64,
    count: u64,
    at_a_time: usize,
    done: &(dyn Fn() + Sync),
    round: impl Fn(u64) -> T + Sync,
) -> Vec<(u64, Option<T>)> {
    let next = AtomicU64::new(first);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= first + count {
                        return;
                    }
                    // Its panic was printed by the hook; the others go on.
                    let result = catch_unwind(AssertUnwindSafe(|| round(number))).ok();
                    let mut results = results.lock().unwrap_or_else(|e| e.into_inner());
                    results.push((number, result));
                    done();
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}
