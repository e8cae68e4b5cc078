//! Sessions over real HTTP/2 on a stream in memory: what is handed over, and what ended it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

use super::*;
use crate::rpc::transport::{self, Sources};
use hyper_util::rt::TokioIo;
use proto::v1::agents_client::AgentsClient;
use proto::v1::agents_server::AgentsServer;
use proto::v1::{BulkHello, Goodbye, OpenBulk, Pong, ReadOutput, Welcome, bulk_down, bulk_up};
use std::sync::{Arc, Mutex};
use tokio::io::DuplexStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::InterceptorLayer;
use tonic::transport::{Channel, Endpoint, Server};

/// A pump that writes down what it is told. Dropping its sender closes the session.
#[derive(Clone)]
struct Host {
    seen: mpsc::Sender<String>,
    orders: Arc<Mutex<Option<mpsc::Sender<LeaderMessage>>>>,
}

impl SessionHost for Host {
    async fn open_session(
        &self,
        join: Join,
        peer_addr: String,
    ) -> Option<(SessionId, mpsc::Receiver<LeaderMessage>)> {
        let (sender, receiver) = mpsc::channel(16);
        *self.orders.lock().unwrap() = Some(sender);
        self.seen.send(format!("join {} from {peer_addr}", join.agent_id)).await.unwrap();
        Some((SessionId(1), receiver))
    }

    async fn session_event(&self, event: Event<'static>) {
        let text = match event {
            Event::Message { message, .. } => match message.kind {
                Some(agent_message::Kind::Pong(pong)) => format!("pong {}", pong.nonce),
                other => format!("{other:?}"),
            },
            Event::Closed { end, .. } => format!("closed {end:?}"),
            other => format!("{other:?}"),
        };
        self.seen.send(text).await.unwrap();
    }

    async fn send_to_agent(&self, _: String, kind: leader_message::Kind) -> bool {
        let message = LeaderMessage { term: 1, incarnation: 1, kind: Some(kind) };
        let orders = self.orders.lock().unwrap().clone();
        orders.is_some_and(|orders| orders.try_send(message).is_ok())
    }
}

struct World {
    host: Host,
    seen: mpsc::Receiver<String>,
    memory: mpsc::Sender<DuplexStream>,
    broker: BulkBroker,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl World {
    fn new() -> World {
        let (seen_in, seen) = mpsc::channel(4_096);
        let host = Host { seen: seen_in, orders: Arc::default() };
        let (memory, memory_out) = mpsc::channel(4);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let gate = Gate::of_this_process([]);
        let broker = BulkBroker::start(&tasks, stop.clone());
        let service = AgentsService::new(
            host.clone(),
            gate.clone(),
            broker.clone(),
            tasks.clone(),
            stop.clone(),
        );
        let sources = Sources { tcp: None, http: None, unix: None, memory: memory_out };
        let incoming = transport::incoming(sources, gate).unwrap();
        let served = Server::builder()
            .layer(InterceptorLayer::new(identity::authenticate))
            .add_service(AgentsServer::new(service))
            .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
        tasks.spawn(async move { served.await.unwrap() });
        World { host, seen, memory, broker, tasks, stop }
    }

    async fn connect(&self) -> Channel {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        self.memory.send(theirs).await.unwrap();
        let mut ours = Some(TokioIo::new(ours));
        let connector = tower::service_fn(move |_| {
            let io = ours.take().ok_or_else(|| std::io::Error::other("only once"));
            std::future::ready(io)
        });
        Endpoint::from_static("http://memory").connect_with_connector(connector).await.unwrap()
    }

    async fn heard(&mut self) -> String {
        timeout(Duration::from_secs(5), self.seen.recv()).await.unwrap().unwrap()
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        timeout(Duration::from_secs(5), self.tasks.wait()).await.expect("every task ends");
    }
}

/// A client's session.
struct Line {
    channel: Channel,
    up: mpsc::Sender<AgentMessage>,
    down: Streaming<LeaderMessage>,
}

impl Line {
    async fn open(world: &World) -> Line {
        let channel = world.connect().await;
        let (up, messages) = mpsc::channel(256);
        let response = AgentsClient::new(channel.clone())
            .session(ReceiverStream::new(messages))
            .await
            .unwrap();
        Line { channel, up, down: response.into_inner() }
    }

    async fn joined(world: &mut World) -> Line {
        let line = Line::open(world).await;
        line.say(agent_message::Kind::Join(Join {
            agent_id: "a1".into(),
            heartbeat_interval_ms: 1_000,
            ..Default::default()
        }))
        .await;
        assert_eq!(world.heard().await, "join a1 from memory");
        line
    }

    async fn say(&self, kind: agent_message::Kind) {
        self.up.send(AgentMessage { kind: Some(kind) }).await.unwrap();
    }

    async fn pong(&self, nonce: u64) {
        self.say(agent_message::Kind::Pong(Pong { nonce })).await;
    }
}

#[tokio::test]
async fn everything_that_was_said_is_handed_over_before_the_end_is_told() {
    let mut world = World::new();
    let line = Line::joined(&mut world).await;
    for nonce in 0..200 {
        line.pong(nonce).await;
    }
    // What the client has buffered goes out before the runtime is polled for the close.
    while line.up.capacity() < line.up.max_capacity() {
        tokio::task::yield_now().await;
    }
    for nonce in 0..100 {
        assert_eq!(world.heard().await, format!("pong {nonce}"));
    }
    drop(line);
    for nonce in 100..200 {
        assert_eq!(world.heard().await, format!("pong {nonce}"));
    }
    assert_eq!(world.heard().await, "closed Fin");
    world.end().await;
}

#[tokio::test]
async fn a_stream_that_ends_while_its_connection_lives_proves_nothing() {
    let mut world = World::new();
    let Line { channel, up, down } = Line::joined(&mut world).await;
    drop(up);
    assert_eq!(world.heard().await, "closed Other");
    drop((channel, down));
    world.end().await;
}

#[tokio::test]
async fn orders_go_down_in_order_and_a_close_by_the_leader_is_local() {
    let mut world = World::new();
    let mut line = Line::joined(&mut world).await;
    let welcome = leader_message::Kind::Welcome(Welcome::default());
    assert!(world.host.send_to_agent("a1".into(), welcome.clone()).await);
    let open = leader_message::Kind::OpenBulk(OpenBulk { request: 3 });
    assert!(world.host.send_to_agent("a1".into(), open.clone()).await);
    world.host.orders.lock().unwrap().take();
    for expected in [welcome, open] {
        assert_eq!(line.down.message().await.unwrap().unwrap().kind, Some(expected));
    }
    assert_eq!(line.down.message().await.unwrap(), None);
    assert_eq!(world.heard().await, "closed Local");
    world.end().await;
}

#[tokio::test]
async fn the_stop_of_the_controller_is_no_death_of_an_agent() {
    let mut world = World::new();
    let line = Line::joined(&mut world).await;
    world.stop.cancel();
    assert_eq!(world.heard().await, "closed Local");
    drop(line);
    world.end().await;
}

#[tokio::test]
async fn a_stream_that_does_not_begin_with_a_join_is_no_session() {
    let mut world = World::new();
    let mut line = Line::open(&world).await;
    line.say(agent_message::Kind::Goodbye(Goodbye::default())).await;
    assert_eq!(line.down.message().await.unwrap(), None);
    assert!(world.seen.try_recv().is_err());
    drop(line);
    world.end().await;
}

#[tokio::test]
async fn an_agent_answers_a_read_through_a_call_of_its_own() {
    let mut world = World::new();
    let mut line = Line::joined(&mut world).await;
    line.pong(0).await;
    assert_eq!(world.heard().await, "pong 0");
    let read = ReadOutput { offset: 5, ..Default::default() };
    let mut reader = world.broker.open(&world.host, "a1", read.clone()).await.unwrap();
    let order = line.down.message().await.unwrap().unwrap().kind;
    let Some(leader_message::Kind::OpenBulk(OpenBulk { request })) = order else {
        panic!("{order:?}")
    };
    let (up, messages) = mpsc::channel(16);
    let say = |kind| BulkUp { request, kind: Some(kind) };
    up.send(say(bulk_up::Kind::Hello(BulkHello { agent_id: "a1".into() }))).await.unwrap();
    let mut agent = AgentsClient::new(line.channel.clone());
    let mut down = agent.bulk(ReceiverStream::new(messages)).await.unwrap().into_inner();
    let asked = down.message().await.unwrap().unwrap().kind;
    assert_eq!(asked, Some(bulk_down::Kind::Read(read)));
    let piece = proto::v1::BulkPiece { offset: 5, data: vec![7; 1_000].into(), cut: 0 };
    up.send(say(bulk_up::Kind::Piece(piece.clone()))).await.unwrap();
    assert_eq!(reader.next().await.unwrap(), Some(piece));
    up.send(say(bulk_up::Kind::End(proto::v1::BulkEnd { size: 1_005 }))).await.unwrap();
    assert_eq!(reader.next().await.unwrap(), None);
    drop(reader);
    let credit = down.message().await.unwrap().unwrap().kind;
    assert!(matches!(credit, Some(bulk_down::Kind::Credit(_))));
    assert_eq!(down.message().await.unwrap(), None, "a reader that goes ends the call");
    drop((up, down, agent, line));
    world.end().await;
}
