//! Jobs that do nothing, from the first submit to the last recorded end.

use super::Ground;
use super::reference;
use super::report::{Report, Row};
use crate::client;
use std::time::{Duration, Instant};

/// Cpus the node offers: enough that the number of jobs at a time is not the limit.
const CPUS: u32 = 64;

/// How often the end is looked for: small against the whole, large against a look.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(super) fn run(ground: &Ground, quick: bool) -> Report {
    let count = if quick { 1_000 } else { 10_000 };
    let bare = reference::spawns_per_second(count);
    let (_node, address) = ground.up(CPUS);
    let docket = client::runtime().block_on(jobs_per_second(&address, count));
    let row = Row {
        what: format!("{count} jobs of /bin/true"),
        docket,
        reference: Some(bare),
        unit: "a second",
    };
    Report {
        name: "noop",
        reference: "posix_spawn and waitpid of /bin/true on two threads",
        rows: vec![row],
    }
}

async fn jobs_per_second(address: &str, count: usize) -> f64 {
    let mut client = client::connect(address).await;
    let begin = Instant::now();
    client::submit_many(&mut client, vec![client::spec(&["/bin/true"]); count]).await;
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        look.tick().await;
        let counts = client::counts(&mut client).await;
        assert_eq!(counts.get("EXIT").copied().unwrap_or(0), 0, "a job failed: {counts:?}");
        if counts.get("DONE").copied() == Some(count as u64) {
            return count as f64 / begin.elapsed().as_secs_f64();
        }
        assert!(begin.elapsed() < Duration::from_secs(600), "the jobs do not end: {counts:?}");
    }
}
