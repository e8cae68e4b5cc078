//! A restart after `kill -9` with a full queue: how long until it serves, and what a job costs.

use super::Ground;
use super::report::{Report, Row};
use crate::client;
use crate::world::vm_rss_bytes;
use std::time::Instant;

pub(super) fn run(ground: &Ground, quick: bool) -> Report {
    let count = if quick { 10_000 } else { 100_000 };
    let (mut node, _address) = ground.up(1);
    ground.block();
    node.kill9();
    let begin = Instant::now();
    let (mut node, address) = ground.up(1);
    let empty_start = begin.elapsed();
    let empty = vm_rss_bytes(node.pid());
    // Each job has its own argument: equal ones would share one specification.
    let specs = (0..count).map(|n| client::spec(&["true", &format!("job number {n}")])).collect();
    client::runtime().block_on(async {
        let mut client = client::connect(&address).await;
        client::submit_many(&mut client, specs).await;
    });
    node.kill9();
    let begin = Instant::now();
    let (node, address) = ground.up(1);
    let start = begin.elapsed();
    let full = vm_rss_bytes(node.pid());
    let counts = client::runtime().block_on(async {
        let mut client = client::connect(&address).await;
        client::counts(&mut client).await
    });
    assert_eq!(counts.get("PEND").copied(), Some(count as u64), "every queued job: {counts:?}");
    let ms = |span: std::time::Duration| span.as_secs_f64() * 1000.0;
    let per_job = full.saturating_sub(empty) as f64 / count as f64;
    let rows = vec![
        Row {
            what: format!("start with {count} queued jobs"),
            docket: ms(start),
            reference: Some(ms(empty_start)),
            unit: "ms",
        },
        Row { what: "memory for each job".into(), docket: per_job, reference: None, unit: "bytes" },
        Row {
            what: "memory of the node".into(),
            docket: full as f64 / 1e6,
            reference: Some(empty as f64 / 1e6),
            unit: "MB",
        },
    ];
    Report { name: "restart", reference: "the same with one job", rows }
}
