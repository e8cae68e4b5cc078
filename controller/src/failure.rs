//! The one-way switch that says that the process must end: an fsync failed, or the program cannot
//! read its own log. Nothing is retried then (design 4, Writing).

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
}
