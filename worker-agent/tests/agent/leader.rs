//! A controller played by hand: a real gRPC server whose calls are handed to the test, on sockets
//! that remember whether the peer closed them.

use crate::within;
use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::agents_server::{Agents, AgentsServer};
use proto::v1::leader_message::Kind as Down;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

pub struct FakeLeader {
    address: String,
    sessions: mpsc::Receiver<FakeSession>,
    relays: mpsc::Receiver<FakeRelay>,
    _server: tokio_util::task::AbortOnDropHandle<()>,
}

/// A session as the controller sees it.
pub struct FakeSession {
    up: Streaming<v1::AgentMessage>,
    down: mpsc::Sender<Result<v1::LeaderMessage, Status>>,
    /// The agent's end of the socket was closed.
    pub closed: Arc<AtomicBool>,
    incarnation: u64,
}

/// A relay of output as the controller sees it.
pub struct FakeRelay {
    pub up: Streaming<v1::BulkUp>,
    down: mpsc::Sender<Result<v1::BulkDown, Status>>,
}

impl FakeLeader {
    pub async fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sessions_in, sessions) = mpsc::channel(16);
        let (relays_in, relays) = mpsc::channel(16);
        let service = AgentsServer::new(Service { sessions: sessions_in, relays: relays_in });
        let incoming = TcpListenerStream::new(listener).map(|stream| stream.map(Watched::new));
        let server = tokio::spawn(async move {
            Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        let _server = tokio_util::task::AbortOnDropHandle::new(server);
        FakeLeader { address, sessions, relays, _server }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// The next session with its join.
    pub async fn session(&mut self) -> (FakeSession, v1::Join) {
        let mut session = within(self.sessions.recv()).await.unwrap();
        let Up::Join(join) = session.hears().await else { panic!("a session begins with a join") };
        session.incarnation = join.incarnation;
        (session, join)
    }

    /// The next session, welcomed.
    pub async fn joined(&mut self) -> FakeSession {
        let (mut session, _) = self.session().await;
        session.welcomes().await;
        session
    }

    /// The first session that comes as far as its manifest: one that the agent gives up before that
    /// stays open until a newer one is welcomed.
    #[allow(dead_code, reason = "only one of the programs that share this file asks for it")]
    pub async fn lasting(&mut self) -> FakeSession {
        let mut session = self.joined().await;
        loop {
            tokio::select! {
                newer = within(self.sessions.recv()) => {
                    session = newer.unwrap();
                    let Up::Join(join) = session.hears().await else { panic!("no join") };
                    session.incarnation = join.incarnation;
                    session.welcomes().await;
                }
                kind = session.hears() => {
                    if matches!(kind, Up::Manifest(_)) {
                        return session;
                    }
                }
            }
        }
    }

    /// The next relay, its hello taken.
    pub async fn relay(&mut self) -> (FakeRelay, u64) {
        let mut relay = within(self.relays.recv()).await.unwrap();
        let hello = within(relay.up.message()).await.unwrap().unwrap();
        assert!(matches!(hello.kind, Some(v1::bulk_up::Kind::Hello(_))));
        (relay, hello.request)
    }
}

impl FakeSession {
    pub async fn welcomes(&mut self) {
        let cluster_id = "c1".into();
        let welcome = v1::Welcome { cluster_id, generation: 1, heartbeat_timeout_ms: 2_000 };
        self.says(Down::Welcome(welcome)).await;
    }

    pub async fn says(&mut self, kind: Down) {
        let (term, incarnation) = (1, self.incarnation);
        let message = v1::LeaderMessage { term, incarnation, kind: Some(kind) };
        self.down.send(Ok(message)).await.unwrap();
    }

    /// The next message of the agent.
    pub async fn hears(&mut self) -> Up {
        within(self.up.message()).await.unwrap().expect("the session goes on").kind.unwrap()
    }

    /// The next message that is no heartbeat; those are answered.
    pub async fn hears_besides_beats(&mut self) -> Up {
        loop {
            match self.hears().await {
                Up::Heartbeat(beat) => {
                    self.says(Down::Heartbeat(v1::HeartbeatAnswer { h_ms: beat.h_ms })).await;
                }
                other => return other,
            }
        }
    }

    /// The next message that is no heartbeat; `None`: a heartbeat told of this problem.
    pub async fn hears_besides_beats_with(&mut self, problem: &str) -> Option<Up> {
        loop {
            match self.hears().await {
                Up::Heartbeat(beat) if beat.problem.contains(problem) => return None,
                Up::Heartbeat(beat) => {
                    self.says(Down::Heartbeat(v1::HeartbeatAnswer { h_ms: beat.h_ms })).await;
                }
                other => return Some(other),
            }
        }
    }

    /// Ends the stream down; the socket is left alone.
    pub fn ends_stream(self) -> (Streaming<v1::AgentMessage>, Arc<AtomicBool>) {
        (self.up, self.closed)
    }
}

impl FakeRelay {
    pub async fn says(&mut self, kind: v1::bulk_down::Kind) {
        self.down.send(Ok(v1::BulkDown { kind: Some(kind) })).await.unwrap();
    }

    /// The next message of the agent.
    pub async fn hears(&mut self) -> v1::bulk_up::Kind {
        within(self.up.message()).await.unwrap().expect("the relay goes on").kind.unwrap()
    }
}

struct Service {
    sessions: mpsc::Sender<FakeSession>,
    relays: mpsc::Sender<FakeRelay>,
}

#[tonic::async_trait]
impl Agents for Service {
    type SessionStream = ReceiverStream<Result<v1::LeaderMessage, Status>>;
    type BulkStream = ReceiverStream<Result<v1::BulkDown, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let closed = request.extensions().get::<Arc<AtomicBool>>().unwrap().clone();
        let (down, answers) = mpsc::channel(64);
        let session = FakeSession { up: request.into_inner(), down, closed, incarnation: 0 };
        self.sessions.send(session).await.unwrap();
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn bulk(
        &self,
        request: Request<Streaming<v1::BulkUp>>,
    ) -> Result<Response<Self::BulkStream>, Status> {
        let (down, answers) = mpsc::channel(64);
        self.relays.send(FakeRelay { up: request.into_inner(), down }).await.unwrap();
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// A socket that remembers whether its peer closed it.
struct Watched {
    /// Taken when the server lets go of it.
    stream: Option<TcpStream>,
    closed: Arc<AtomicBool>,
}

impl Watched {
    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Watched { stream: Some(stream), closed: Arc::default() }
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.stream.as_mut().expect("taken at the end only"))
    }
}

/// The server lets go of a connection when the agent says that it will; the close comes after that.
impl Drop for Watched {
    fn drop(&mut self) {
        let (stream, closed) = (self.stream.take(), self.closed.clone());
        if let (Some(mut stream), Ok(runtime)) = (stream, tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move {
                while matches!(stream.read(&mut [0; 4096]).await, Ok(n) if n > 0) {}
                closed.store(true, Ordering::SeqCst);
            });
        }
    }
}

impl Connected for Watched {
    type ConnectInfo = Arc<AtomicBool>;

    fn connect_info(&self) -> Arc<AtomicBool> {
        self.closed.clone()
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = self.stream().poll_read(cx, buf);
        let ended = matches!(&result, Poll::Ready(Ok(()))) && buf.filled().len() == before;
        if ended || matches!(&result, Poll::Ready(Err(_))) {
            self.closed.store(true, Ordering::SeqCst);
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
