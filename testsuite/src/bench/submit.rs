//! Acknowledged submits: each is on disk when it is answered.

use super::Ground;
use super::reference;
use super::report::{Report, Row, Samples};
use crate::client;
use std::time::Instant;

/// Clients of the unary call that ask at the same time.
const CLIENTS: usize = 64;

pub(super) fn run(ground: &Ground, quick: bool) -> Report {
    let (single, many) = if quick { (300, 10_000) } else { (3_000, 200_000) };
    let sync = reference::fdatasync(&ground.file("sync"), single);
    let (_node, address) = ground.up(1);
    ground.block();
    let (alone, together, streamed) = client::runtime().block_on(async {
        let alone = one_by_one(&address, single).await;
        let together = side_by_side(&address, single / CLIENTS + 1).await;
        (alone, together, stream(&address, many).await)
    });
    let row = |what: &str, docket, reference, unit| Row {
        what: what.to_owned(),
        docket,
        reference: Some(reference),
        unit,
    };
    Report {
        name: "submit",
        reference: "a loop of 512-byte writes with fdatasync",
        rows: vec![
            row("one client, p50", alone.micros(0.5), sync.micros(0.5), "µs"),
            row("one client, p99", alone.micros(0.99), sync.micros(0.99), "µs"),
            row("one client", alone.rate(), sync.rate(), "a second"),
            row("64 clients", together, sync.rate(), "a second"),
            row("one stream", streamed, sync.rate(), "a second"),
        ],
    }
}

async fn one_by_one(address: &str, count: usize) -> Samples {
    let mut client = client::connect(address).await;
    let mut samples = Samples::empty();
    for _ in 0..count {
        let request = client::request(client::spec(&["true"]));
        let begin = Instant::now();
        client.submit(request).await.expect("a submit is taken");
        samples.add(begin.elapsed());
    }
    samples
}

/// Submits a second of many clients, each with its own connection.
async fn side_by_side(address: &str, each: usize) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client::connect(address).await);
    }
    let begin = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::spawn(async move {
                for _ in 0..each {
                    let request = client::request(client::spec(&["true"]));
                    client.submit(request).await.expect("a submit is taken");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a client ends");
    }
    (CLIENTS * each) as f64 / begin.elapsed().as_secs_f64()
}

/// Submits a second on one stream.
async fn stream(address: &str, count: usize) -> f64 {
    let mut client = client::connect(address).await;
    let specs = vec![client::spec(&["true"]); count];
    let begin = Instant::now();
    client::submit_many(&mut client, specs).await;
    count as f64 / begin.elapsed().as_secs_f64()
}
