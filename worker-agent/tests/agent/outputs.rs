//! Relays of output: pieces under a window, offsets, the last lines, followers.

use crate::Node;
use crate::leader::FakeRelay;
use proto::v1;
use proto::v1::bulk_down::Kind as Down;
use proto::v1::bulk_up::Kind as Up;
use proto::v1::leader_message::Kind as Order;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Bytes of a whole piece.
const PIECE: u64 = 256 << 10;

/// A node with a session, and the file of attempt 5/1.
struct Outputs {
    node: Node,
    session: crate::leader::FakeSession,
    requests: u64,
}

impl Outputs {
    async fn new() -> Self {
        let mut node = Node::start().await;
        node.keeper.welcome().await;
        let session = node.leader.joined().await;
        fs::create_dir(node.runs().join("5")).unwrap();
        Outputs { node, session, requests: 0 }
    }

    fn file(&self) -> File {
        let path = self.node.runs().join("5/0.1.out");
        OpenOptions::new().append(true).create(true).open(path).unwrap()
    }

    async fn reads(&mut self, read: v1::ReadOutput) -> FakeRelay {
        self.requests += 1;
        self.session.says(Order::OpenBulk(v1::OpenBulk { request: self.requests })).await;
        let (mut relay, request) = self.node.leader.relay().await;
        assert_eq!(request, self.requests);
        relay.says(Down::Read(read)).await;
        relay
    }
}

fn read() -> v1::ReadOutput {
    let attempt = Some(v1::AttemptRef { job: 5, task: None, attempt: 1 });
    v1::ReadOutput { attempt, ..v1::ReadOutput::default() }
}

/// All bytes to the end, each piece at its offset, credits given one by one; and the end's size.
async fn whole(relay: &mut FakeRelay, from: u64) -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    loop {
        match relay.hears().await {
            Up::Piece(piece) => {
                assert_eq!(piece.offset, from + bytes.len() as u64, "pieces join");
                assert!(piece.data.len() as u64 <= PIECE);
                bytes.extend_from_slice(&piece.data);
                relay.says(Down::Credit(v1::BulkCredit { pieces: 1 })).await;
            }
            Up::End(end) => return (bytes, end.size),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_arrives_once_from_any_offset() {
    let mut outputs = Outputs::new().await;
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    outputs.file().write_all(&content).unwrap();
    for offset in [0, 1, PIECE, 2_999_999, 3_000_000] {
        let mut relay = outputs.reads(v1::ReadOutput { offset, ..read() }).await;
        let (bytes, size) = whole(&mut relay, offset).await;
        assert_eq!(size, 3_000_000);
        assert!(bytes == content[usize::try_from(offset).unwrap()..], "from {offset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_a_window_of_pieces_comes_without_credit() {
    let mut outputs = Outputs::new().await;
    outputs.file().set_len(64 << 20).unwrap();
    let mut relay = outputs.reads(read()).await;
    for _ in 0..4 {
        assert!(matches!(relay.hears().await, Up::Piece(_)));
    }
    let more = tokio::time::timeout(Duration::from_millis(100), relay.up.message()).await;
    assert!(more.is_err(), "a fifth piece came without credit");
    relay.says(Down::Credit(v1::BulkCredit { pieces: 2 })).await;
    for n in 4..6 {
        assert!(matches!(relay.hears().await, Up::Piece(piece) if piece.offset == n * PIECE));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_gets_new_output_at_once_and_ends_with_the_last_byte() {
    let mut outputs = Outputs::new().await;
    let mut relay = outputs.reads(v1::ReadOutput { follow: true, ..read() }).await;
    // The job has not opened its file yet: a second relay, asked for later, finds none either.
    let mut late = outputs.reads(v1::ReadOutput { expected: 1, ..read() }).await;
    assert!(matches!(late.hears().await, Up::Error(error) if error.gone));
    let mut file = outputs.file();
    let mut slowest = Duration::ZERO;
    let mut offset = 0;
    for n in 0..20 {
        let line = format!("line {n}\n");
        file.write_all(line.as_bytes()).unwrap();
        let written = Instant::now();
        let Up::Piece(piece) = relay.hears().await else { panic!("a piece") };
        slowest = slowest.max(written.elapsed());
        assert_eq!((piece.offset, &piece.data[..]), (offset, line.as_bytes()));
        offset += line.len() as u64;
        relay.says(Down::Credit(v1::BulkCredit { pieces: 1 })).await;
    }
    assert!(slowest < Duration::from_millis(400), "no poll of half a second: {slowest:?}");
    file.write_all(b"the end").unwrap();
    relay.says(Down::Stop(v1::BulkStop { after_end: true })).await;
    let (rest, size) = whole(&mut relay, offset).await;
    assert_eq!((rest.as_slice(), size), (&b"the end"[..], offset + 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_of_a_job_that_never_wrote_ends_empty() {
    let mut outputs = Outputs::new().await;
    let mut relay = outputs.reads(v1::ReadOutput { follow: true, ..read() }).await;
    relay.says(Down::Stop(v1::BulkStop { after_end: true })).await;
    assert_eq!(whole(&mut relay, 0).await, (vec![], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_lines_come_alone() {
    let mut outputs = Outputs::new().await;
    outputs.file().write_all(b"one\ntwo\nthree\n").unwrap();
    let mut relay = outputs.reads(v1::ReadOutput { tail_lines: Some(2), ..read() }).await;
    assert_eq!(whole(&mut relay, 4).await, (b"two\nthree\n".to_vec(), 14));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_somebody_removed_is_gone_and_not_empty() {
    let mut outputs = Outputs::new().await;
    let mut relay = outputs.reads(v1::ReadOutput { expected: 12, ..read() }).await;
    let Up::Error(error) = relay.hears().await else { panic!("an error") };
    assert!(error.gone && error.message.contains("0.1.out"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_the_job_did_not_write_is_not_served() {
    let mut outputs = Outputs::new().await;
    let wanted = v1::ReadOutput { path: b"/etc/passwd".to_vec(), dev: 1, ino: 1, ..read() };
    let mut relay = outputs.reads(wanted).await;
    let Up::Error(error) = relay.hears().await else { panic!("an error") };
    assert!(error.message.contains("replaced"), "{error:?}");
}
