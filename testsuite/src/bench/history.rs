//! A restart after `kill -9` behind ever more ended jobs: how long until it serves, and what its
//! files hold. Both must stop growing with the history (failure case F11).

use super::Ground;
use super::report::{Report, Row};
use crate::client;
use proto::v1::CancelRequest;
use std::path::Path;
use std::time::Instant;

/// Jobs that are submitted, then ended, at once: as many ids as one request may name.
const ROUND: usize = 10_000;

pub(super) fn run(ground: &Ground, quick: bool) -> Report {
    let sizes: &[usize] = if quick { &[10_000] } else { &[10_000, 100_000, 1_000_000] };
    let (mut node, _) = ground.up(1);
    // What is submitted stays in the queue until it is cancelled: no process is part of this.
    ground.block();
    node.kill9();
    let begin = Instant::now();
    let (mut node, mut address) = ground.up(1);
    let empty_start = begin.elapsed();
    let mut ended = 0;
    let mut rows = Vec::new();
    for &size in sizes {
        while ended < size {
            end_some(&address, ended);
            ended += ROUND;
        }
        node.kill9();
        let begin = Instant::now();
        (node, address) = ground.up(1);
        let start = begin.elapsed();
        let row = |what: String, docket: f64, unit| Row { what, docket, reference: None, unit };
        rows.push(Row {
            what: format!("start behind {size} ended jobs"),
            docket: start.as_secs_f64() * 1000.0,
            reference: Some(empty_start.as_secs_f64() * 1000.0),
            unit: "ms",
        });
        for room in ["wal", "snapshots", "archive"] {
            let bytes = bytes_in(&ground.world.data().join("controller").join(room));
            rows.push(row(format!("{room} behind {size} ended jobs"), bytes as f64 / 1e6, "MB"));
        }
    }
    drop(node);
    Report { name: "history", reference: "the same with one job", rows }
}

/// Submits [`ROUND`] jobs, each with an argument of its own, and cancels them.
fn end_some(address: &str, from: usize) {
    let numbers = from..from + ROUND;
    let specs = numbers.map(|n| client::spec(&["true", &format!("job number {n}")])).collect();
    client::runtime().block_on(async {
        let mut client = client::connect(address).await;
        let jobs = client::submit_many(&mut client, specs).await;
        let request_id = uuid::Uuid::now_v7().to_string();
        let request = CancelRequest { request_id, jobs, ..CancelRequest::default() };
        let results = client.cancel(request).await.expect("cancel answers").into_inner().results;
        let refused = results.iter().find(|result| result.outcome != "cancelled");
        assert_eq!(refused, None, "a queued job ends at once");
    });
}

/// Bytes that the files of a directory take on the disk; none for one that is not there.
fn bytes_in(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|data| data.blocks() * 512).sum()
}
