//! The broker and a reader, with an agent that answers by hand.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

use super::*;
use docket_core::leader::{Event, SessionId};
use proto::v1::{BulkEnd, BulkError as AgentError, Join, LeaderMessage};

/// A pump whose agents can be asked, or not.
#[derive(Clone)]
struct Host {
    asked: mpsc::Sender<u64>,
    there: bool,
}

impl SessionHost for Host {
    async fn open_session(
        &self,
        _: Join,
        _: String,
    ) -> Option<(SessionId, mpsc::Receiver<LeaderMessage>)> {
        None
    }

    async fn session_event(&self, _: Event<'static>) {}

    async fn send_to_agent(&self, _: String, kind: leader_message::Kind) -> bool {
        if let leader_message::Kind::OpenBulk(open) = kind {
            self.asked.send(open.request).await.unwrap();
        }
        self.there
    }
}

struct World {
    broker: BulkBroker,
    host: Host,
    asked: mpsc::Receiver<u64>,
    _stop: tokio_util::sync::DropGuard,
}

impl World {
    /// A broker that knows a session of agent `a1`.
    async fn new() -> World {
        let (asked_in, asked) = mpsc::channel(2 * RELAYS_MAX);
        let stop = CancellationToken::new();
        let broker = BulkBroker::start(&TaskTracker::new(), stop.clone());
        broker.session_began("a1", 1).await;
        let host = Host { asked: asked_in, there: true };
        World { broker, host, asked, _stop: stop.drop_guard() }
    }

    async fn open(&self, follow: bool) -> Result<BulkReader, BulkError> {
        let read = ReadOutput { follow, ..Default::default() };
        self.broker.open(&self.host, "a1", read).await
    }

    /// A reader and its agent's end, which has said hello.
    async fn pair(&mut self, follow: bool) -> (BulkReader, Relay) {
        let reader = self.open(follow).await.unwrap();
        let request = self.asked.recv().await.unwrap();
        let mut relay = self.broker.attach(request, "a1".into()).await.unwrap();
        assert!(matches!(relay.down.recv().await, Some(bulk_down::Kind::Read(_))));
        relay.pieces.send(bulk_up::Kind::Hello(BulkHello::default())).await.unwrap();
        (reader, relay)
    }
}

fn piece(offset: u64) -> bulk_up::Kind {
    bulk_up::Kind::Piece(BulkPiece { offset, data: vec![0; 10].into(), cut: 0 })
}

fn away() -> BulkError {
    BulkError::Away { agent_id: "a1".into() }
}

#[tokio::test]
async fn each_piece_that_is_taken_gives_one_credit() {
    let mut world = World::new().await;
    let (mut reader, mut relay) = world.pair(false).await;
    for number in 0..20 {
        relay.pieces.send(piece(number * 10)).await.unwrap();
        assert_eq!(reader.next().await.unwrap().unwrap().offset, number * 10);
        let credit = bulk_down::Kind::Credit(BulkCredit { pieces: 1 });
        assert_eq!(relay.down.recv().await, Some(credit));
    }
    relay.pieces.send(bulk_up::Kind::End(BulkEnd { size: 200 })).await.unwrap();
    assert_eq!(reader.next().await.unwrap(), None);
    assert_eq!(reader.next().await.unwrap(), None);
}

#[tokio::test]
async fn an_agent_cannot_run_past_its_window() {
    let mut world = World::new().await;
    let (mut reader, relay) = world.pair(false).await;
    for number in 0..WINDOW_PIECES as u64 {
        relay.pieces.try_send(piece(number)).unwrap();
    }
    assert!(relay.pieces.try_send(piece(99)).is_err());
    for number in 0..WINDOW_PIECES as u64 {
        assert_eq!(reader.next().await.unwrap().unwrap().offset, number);
    }
}

#[tokio::test]
async fn an_agent_without_a_session_is_away() {
    let world = World::new().await;
    let unknown = world.broker.open(&world.host, "a2", ReadOutput::default()).await;
    assert_eq!(unknown.err(), Some(BulkError::Away { agent_id: "a2".into() }));
    let gone = Host { there: false, ..world.host.clone() };
    let gone = world.broker.open(&gone, "a1", ReadOutput::default()).await;
    assert_eq!(gone.err(), Some(away()));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_come_is_away_after_a_while() {
    let world = World::new().await;
    let mut reader = world.open(true).await.unwrap();
    assert_eq!(reader.next().await, Err(away()));
}

#[tokio::test(start_paused = true)]
async fn one_that_follows_may_wait_for_ever_and_one_that_does_not_may_not() {
    let mut world = World::new().await;
    let (mut follows, _relay) = world.pair(true).await;
    let day = Duration::from_secs(86_400);
    assert!(timeout(day, follows.next()).await.is_err(), "it is still waiting");
    let (mut reads, _relay) = world.pair(false).await;
    assert_eq!(timeout(day, reads.next()).await, Ok(Err(away())));
}

#[tokio::test]
async fn the_end_of_a_session_and_a_newer_session_end_the_readers_of_the_older() {
    let mut world = World::new().await;
    let (mut first, _relay) = world.pair(true).await;
    world.broker.session_away("a1", 1).await;
    assert_eq!(first.next().await, Err(away()));
    assert_eq!(world.open(true).await.err(), Some(away()));
    world.broker.session_began("a1", 2).await;
    let (mut second, _relay) = world.pair(true).await;
    // The end of the older session comes late: it concerns nobody any more.
    world.broker.session_away("a1", 1).await;
    world.broker.session_began("a1", 3).await;
    assert_eq!(second.next().await, Err(away()));
}

#[tokio::test]
async fn what_arrived_before_the_agent_went_away_is_delivered() {
    let mut world = World::new().await;
    let (mut reader, relay) = world.pair(true).await;
    relay.pieces.send(piece(0)).await.unwrap();
    relay.pieces.send(piece(10)).await.unwrap();
    world.broker.session_away("a1", 1).await;
    assert_eq!(reader.next().await.unwrap().unwrap().offset, 0);
    assert_eq!(reader.next().await.unwrap().unwrap().offset, 10);
    assert_eq!(reader.next().await, Err(away()));
}

#[tokio::test]
async fn a_call_that_breaks_off_is_no_end_of_the_output() {
    let mut world = World::new().await;
    let (mut reader, relay) = world.pair(false).await;
    relay.pieces.send(piece(0)).await.unwrap();
    drop(relay);
    assert_eq!(reader.next().await.unwrap().unwrap().offset, 0);
    assert_eq!(reader.next().await, Err(away()));
}

#[tokio::test]
async fn an_agent_says_why_it_cannot_read() {
    let mut world = World::new().await;
    let (mut reader, relay) = world.pair(false).await;
    let error = AgentError { message: "removed after 30d".into(), gone: true };
    relay.pieces.send(bulk_up::Kind::Error(error)).await.unwrap();
    let expected = BulkError::Failed { message: "removed after 30d".into(), gone: true };
    assert_eq!(reader.next().await, Err(expected));
}

#[tokio::test]
async fn a_request_is_answered_once_and_by_the_agent_that_was_asked() {
    let mut world = World::new().await;
    let _reader = world.open(false).await.unwrap();
    let request = world.asked.recv().await.unwrap();
    assert!(world.broker.attach(request, "a2".into()).await.is_none());
    assert!(world.broker.attach(request, "a1".into()).await.is_some());
    assert!(world.broker.attach(request, "a1".into()).await.is_none());
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_its_agents_call_and_frees_its_place() {
    let mut world = World::new().await;
    let (reader, mut relay) = world.pair(true).await;
    drop(reader);
    assert_eq!(relay.down.recv().await, None);
    let mut readers = Vec::new();
    for _ in 0..RELAYS_MAX {
        readers.push(world.open(false).await.unwrap());
    }
    assert_eq!(world.open(false).await.err(), Some(BulkError::Busy));
    readers.pop();
    assert!(world.open(false).await.is_ok());
}

#[tokio::test]
async fn a_stop_is_passed_on_with_its_meaning() {
    let mut world = World::new().await;
    let (mut reader, mut relay) = world.pair(true).await;
    reader.stop(true).await;
    let stop = bulk_down::Kind::Stop(BulkStop { after_end: true });
    assert_eq!(relay.down.recv().await, Some(stop));
}
