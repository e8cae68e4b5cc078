//! The gRPC side of sessions: dialling, the one that is read, and those given up whose sockets must
//! stay open until a newer join is answered (design 5, "Who ended the connection").

use crate::wire::{Connector, DialError, StaysOpen, Wire};
use futures::future::BoxFuture;
use futures::stream::StreamExt as _;
use hyper_util::rt::TokioIo;
use proto::v1;
use proto::v1::agents_client::AgentsClient;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Response, Status, Streaming};
use tower::service_fn;
use worker_agent_core::{Event, SessionNo, Target};

/// Messages that may wait to be sent. The core sends at most a window of facts, one manifest of
/// 1,000-item pages and beats; past it the controller does not read, and the session is given up.
const UP_MAX: usize = 4_096;

/// Given-up sessions kept open. A dial that never led to a welcome within so many others is long
/// silent for the controller, so that its end proves nothing any more.
const KEPT_MAX: usize = 64;

/// Largest message taken: a run order carries a specification, an environment and stdin. What the
/// keeper cannot take is refused with a reason, which needs the message to be read.
const DOWN_MAX_BYTES: usize = 64 << 20;

/// A relay of output is not a session: a peer that vanished is noticed by keep-alive.
const RELAY_KEEP_ALIVE: Duration = Duration::from_secs(30);

/// What a connection is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A session: no keep-alive, silence is the core's to judge.
    Session,
    /// One relay of output.
    Relay,
}

/// A connection that could not be made.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Below HTTP/2.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// HTTP/2 itself.
    #[error("the controller does not speak gRPC here: {0}")]
    Http(#[from] tonic::transport::Error),
    /// No descriptors left, mostly.
    #[error("cannot duplicate the session's socket: {0}")]
    Hold(io::Error),
}

/// All sessions of this process.
pub struct Sessions {
    connector: Connector,
    dialling: Option<(SessionNo, BoxFuture<'static, Result<Session, OpenError>>)>,
    current: Option<Session>,
    kept: VecDeque<Session>,
}

/// One connection with its session stream. Dropping it closes the socket.
struct Session {
    no: SessionNo,
    target: Target,
    address: String,
    up: mpsc::Sender<v1::AgentMessage>,
    down: Down,
    /// Keeps the HTTP/2 connection, and with it the stream, while nothing else is asked of it.
    _client: AgentsClient<Channel>,
    /// Keeps the socket open even if HTTP/2 has given the connection up.
    _held: Option<OwnedFd>,
}

enum Down {
    /// The call is made; a server may answer it only after it has read the join.
    Calling(BoxFuture<'static, Result<Response<Streaming<v1::LeaderMessage>>, Status>>),
    Reading(Box<Streaming<v1::LeaderMessage>>),
    Over,
}

impl Sessions {
    /// No session yet.
    pub fn new(connector: Connector) -> Self {
        Sessions { connector, dialling: None, current: None, kept: VecDeque::new() }
    }

    /// Starts a dial; its end is an event.
    pub fn dial(&mut self, no: SessionNo, target: Target) {
        let connector = self.connector.clone();
        let open = async move { open(&connector, no, target).await };
        self.dialling = Some((no, Box::pin(open)));
    }

    /// Queues a message. `Some`: the session cannot take it and is over.
    pub fn send(&mut self, no: SessionNo, message: v1::AgentMessage) -> Option<Event> {
        let session = self.current.as_mut().filter(|session| session.no == no)?;
        match session.up.try_send(message) {
            // The end of the stream is told by its other half.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => None,
            Err(mpsc::error::TrySendError::Full(_)) => {
                session.down = Down::Over;
                let why = format!("the controller left {UP_MAX} messages unread");
                Some(Event::Disconnected { session: no, why })
            }
        }
    }

    /// Reads no more of it, but keeps its socket.
    pub fn abandon(&mut self, no: SessionNo) {
        if let Some(session) = self.current.take_if(|session| session.no == no) {
            self.keep(session);
        }
    }

    fn keep(&mut self, session: Session) {
        self.kept.push_back(session);
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
    }

    /// Closes one session's socket.
    pub fn release(&mut self, no: SessionNo) {
        self.current.take_if(|session| session.no == no);
        self.kept.retain(|session| session.no != no);
        self.dialling.take_if(|(dialled, _)| *dialled == no);
    }

    /// Closes the sockets of all older sessions.
    pub fn release_before(&mut self, no: SessionNo) {
        self.kept.retain(|session| session.no >= no);
    }

    /// Where a relay for this session's peer dials; `None`: it is not the current one.
    pub fn relay_target(&self, no: SessionNo) -> Option<(Connector, Target)> {
        let session = self.current.as_ref().filter(|session| session.no == no)?;
        Some((self.connector.clone(), session.target.clone()))
    }

    /// The next thing that happens on the dial or the current session. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some((no, dial)) = &mut self.dialling {
            let no = *no;
            if let Poll::Ready(result) = dial.as_mut().poll(cx) {
                self.dialling = None;
                return Poll::Ready(self.dialled(no, result));
            }
        }
        match &mut self.current {
            Some(session) => session.poll_next(cx),
            None => Poll::Pending,
        }
    }

    fn dialled(&mut self, no: SessionNo, result: Result<Session, OpenError>) -> Event {
        match result {
            Ok(session) => {
                let address = session.address.clone();
                // The core abandons a session before it dials, but what was behind a failed save in
                // its list was not carried out: its socket must not close all the same.
                if let Some(older) = self.current.replace(session) {
                    self.keep(older);
                }
                Event::Connected { session: no, address }
            }
            Err(why) => Event::Disconnected { session: no, why: why.to_string() },
        }
    }
}

impl Session {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        let session = self.no;
        loop {
            let why = match &mut self.down {
                Down::Over => return Poll::Pending,
                Down::Calling(call) => match futures::ready!(call.as_mut().poll(cx)) {
                    Ok(response) => {
                        self.down = Down::Reading(Box::new(response.into_inner()));
                        continue;
                    }
                    Err(status) => words_of(&status),
                },
                Down::Reading(stream) => match futures::ready!(stream.poll_next_unpin(cx)) {
                    Some(Ok(message)) => {
                        return Poll::Ready(Event::FromLeader { session, message });
                    }
                    Some(Err(status)) => words_of(&status),
                    None => "the controller ended the session".to_owned(),
                },
            };
            self.down = Down::Over;
            return Poll::Ready(Event::Disconnected { session, why });
        }
    }
}

fn words_of(status: &Status) -> String {
    format!("the session broke: {} ({:?})", status.message(), status.code())
}

async fn open(connector: &Connector, no: SessionNo, target: Target) -> Result<Session, OpenError> {
    let wire = connector.dial(&target).await?;
    let held = wire.hold().map_err(OpenError::Hold)?;
    let address = wire.own_address();
    let client = client_over(wire, Use::Session).await?;
    let (up, queue) = mpsc::channel(UP_MAX);
    let mut caller = client.clone();
    let call = async move { caller.session(ReceiverStream::new(queue)).await };
    let down = Down::Calling(Box::pin(call));
    Ok(Session { no, target, address, up, down, _client: client, _held: held })
}

/// A client whose channel has this one connection and never makes another.
pub async fn client_over(
    wire: Wire,
    purpose: Use,
) -> Result<AgentsClient<Channel>, tonic::transport::Error> {
    let mut wire = Some(TokioIo::new(StaysOpen(wire)));
    let once = service_fn(move |_: Uri| {
        let wire = wire.take().ok_or_else(|| io::Error::other("the connection is over"));
        async move { wire }
    });
    let mut endpoint = Endpoint::from_static("http://docket");
    if purpose == Use::Relay {
        endpoint = endpoint
            .http2_keep_alive_interval(RELAY_KEEP_ALIVE)
            .keep_alive_timeout(RELAY_KEEP_ALIVE)
            .keep_alive_while_idle(true);
    }
    let channel = endpoint.connect_with_connector(once).await?;
    Ok(AgentsClient::new(channel).max_decoding_message_size(DOWN_MAX_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    /// Whether the agent's end of this connection is open, whatever it has sent.
    async fn is_open(peer: &mut TcpStream) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match tokio::time::timeout(Duration::from_millis(100), peer.read(&mut bytes)).await {
                Ok(Ok(0) | Err(_)) => return false,
                Ok(Ok(_)) => {}
                Err(_) => return true,
            }
        }
    }

    async fn dials(sessions: &mut Sessions, listener: &TcpListener, no: u64) -> TcpStream {
        sessions.dial(SessionNo(no), Target::Listed(0));
        let (event, peer) = tokio::join!(sessions.next(), listener.accept());
        assert!(matches!(event, Event::Connected { session: SessionNo(n), .. } if n == no));
        peer.unwrap().0
    }

    #[tokio::test]
    async fn only_a_release_closes_a_sessions_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut sessions = Sessions::new(Connector::Tcp(vec![address]));
        let mut first = dials(&mut sessions, &listener, 1).await;
        sessions.abandon(SessionNo(1));
        let mut second = dials(&mut sessions, &listener, 2).await;
        // Its abandonment was lost behind a save that failed.
        let mut third = dials(&mut sessions, &listener, 3).await;
        assert!(is_open(&mut first).await && is_open(&mut second).await);
        sessions.release_before(SessionNo(3));
        assert!(!is_open(&mut first).await && !is_open(&mut second).await);
        assert!(is_open(&mut third).await);
        sessions.release(SessionNo(3));
        assert!(!is_open(&mut third).await);
    }
}
