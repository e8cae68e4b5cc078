//! The one-way switch that says that the process must end: an fsync failed, or the program cannot
//! read its own log, or a part of it panicked. Nothing is retried then (design 4, Writing).

use futures::FutureExt as _;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::watch;

/// A shared switch; the first reason stays.
#[derive(Clone)]
pub struct Failure(watch::Sender<Option<String>>);

impl Default for Failure {
    fn default() -> Self {
        Failure(watch::Sender::new(None))
    }
}

impl Failure {
    /// Throws the switch. `why` is a sentence for the operator.
    pub fn fail(&self, why: impl Into<String>) {
        let why = why.into();
        self.0.send_if_modified(|reason| {
            let first = reason.is_none();
            if first {
                tracing::error!("docket cannot go on: {why}");
                *reason = Some(why);
            }
            first
        });
    }

    /// Runs a part of the process; a panic in it throws the switch, with the panic's own words, before
    /// anything that the caller holds is dropped: nobody hears a consequence first. None: it panicked.
    ///
    /// What `part` changes must not be used after that.
    pub fn guard<T>(&self, doing: impl FnOnce() -> String, part: impl FnOnce() -> T) -> Option<T> {
        let caught = catch_unwind(AssertUnwindSafe(part));
        caught.map_err(|panic| self.panicked(&doing(), &*panic)).ok()
    }

    /// The same for a task, whose panic the runtime would keep to itself.
    pub async fn guard_task<T>(
        self,
        name: &'static str,
        task: impl Future<Output = T>,
    ) -> Option<T> {
        let caught = AssertUnwindSafe(task).catch_unwind().await;
        caught.map_err(|panic| self.panicked(name, &*panic)).ok()
    }

    fn panicked(&self, doing: &str, panic: &(dyn Any + Send)) {
        let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
        let words = words.unwrap_or_else(|| "a panic without words".to_owned());
        self.fail(format!(
            "{doing}: {words} (an error of docket itself); what was acknowledged is on disk: start it \
             again, and if it ends so again, keep a copy of its data directory and report it"
        ));
    }

    /// The reason, once the switch is thrown.
    pub fn reason(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// Resolves with the reason once the switch is thrown.
    pub async fn failed(&self) -> String {
        let mut watched = self.0.subscribe();
        let reason = watched.wait_for(Option::is_some).await.map(|r| r.clone());
        reason.ok().flatten().unwrap_or_else(|| "the switch was dropped".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_reason_stays() {
        let failure = Failure::default();
        let waiting = tokio::spawn({
            let failure = failure.clone();
            async move { failure.failed().await }
        });
        failure.fail("fsync failed");
        failure.fail("and then this");
        assert_eq!(waiting.await.unwrap(), "fsync failed");
        assert_eq!(failure.failed().await, "fsync failed");
    }

    #[tokio::test]
    async fn a_panic_throws_the_switch_before_what_the_caller_holds_is_dropped() {
        struct Held(Failure);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.fail("a consequence");
            }
        }
        let failure = Failure::default();
        let held = Held(failure.clone());
        let ran = failure.guard(|| "counting".to_owned(), || panic!("at {}", 3));
        drop(held);
        assert_eq!(ran, None::<()>);
        assert!(failure.reason().unwrap().starts_with("counting: at 3 "), "{:?}", failure.reason());
        assert_eq!(failure.guard(|| "no matter".to_owned(), || 7), Some(7));
    }

    #[tokio::test]
    async fn the_panic_of_a_task_is_not_kept_by_the_runtime() {
        let failure = Failure::default();
        let task = failure.clone().guard_task("the pulse", async { panic!("stopped") });
        assert_eq!(tokio::spawn(task).await.unwrap(), None::<()>);
        assert!(failure.failed().await.starts_with("the pulse: stopped "));
        assert_eq!(Failure::default().guard_task("the pulse", async { 7 }).await, Some(7));
    }
}
