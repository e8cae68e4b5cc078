//! The Agents service (design 5): a session is read to its end and handed to the pump, message by
//! message, before its end is told; orders come back through a bounded channel. Who ended it is the
//! socket's record, never a guess from the stream.

mod stall;
#[cfg(test)]
mod tests;

use super::bulk::{self, BulkBroker};
use super::identity::{self, Gate};
use super::transport::{Ending, Peer};
use crate::pump::PumpHandle;
use docket_core::leader::{Event, SessionEnd, SessionId};
use futures::Stream;
use proto::v1::agents_server::Agents;
use proto::v1::{
    AgentMessage, BulkDown, BulkUp, Join, LeaderMessage, agent_message, leader_message,
};
use stall::StallWatch;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

/// A stream that has not sent its Join after this long is closed.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// After the connection died, what it had brought is read for this long at most.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream may end a moment before its connection shows why.
const RECORD_TIMEOUT: Duration = Duration::from_millis(200);

/// Added to the heartbeat interval for the age at which a last word proves nothing (design 3).
const LAST_WORD_SLACK: Duration = Duration::from_secs(2);

/// Missed heartbeats after which readers of an agent's outputs are told that it is away.
const QUIET_BEATS: u32 = 3;

/// What the service needs of the owner of the ledger.
pub trait SessionHost: Clone + Send + Sync + 'static {
    /// Registers a session and tells the leader's duties; `None` if the controller is stopping.
    /// The end of the receiver means that the session is to be closed.
    fn open_session(
        &self,
        join: Join,
        peer_addr: String,
    ) -> impl Future<Output = Option<(SessionId, mpsc::Receiver<LeaderMessage>)>> + Send;

    /// Hands over what happened on a session. Waits while the pump is behind.
    fn session_event(&self, event: Event<'static>) -> impl Future<Output = ()> + Send;

    /// Sends on the newest session of an agent; false if it has none or is too slow.
    fn send_to_agent(
        &self,
        agent_id: String,
        kind: leader_message::Kind,
    ) -> impl Future<Output = bool> + Send;
}

impl SessionHost for PumpHandle {
    async fn open_session(
        &self,
        join: Join,
        peer_addr: String,
    ) -> Option<(SessionId, mpsc::Receiver<LeaderMessage>)> {
        PumpHandle::open_session(self, join, peer_addr).await.ok()
    }

    async fn session_event(&self, event: Event<'static>) {
        // A pump that has ended leads nobody: its successor judges by manifests.
        let _ = PumpHandle::session_event(self, event).await;
    }

    async fn send_to_agent(&self, agent_id: String, kind: leader_message::Kind) -> bool {
        PumpHandle::send_to_agent(self, agent_id, kind).await.unwrap_or(false)
    }
}

/// Serves agents.
pub struct AgentsService<H> {
    host: H,
    gate: Gate,
    broker: BulkBroker,
    tasks: TaskTracker,
    stop: CancellationToken,
    stall: StallWatch,
}

impl<H: SessionHost> AgentsService<H> {
    /// A service whose tasks run on `tasks` and end when `stop` is cancelled. The owner waits for
    /// the tracker after that.
    pub fn new(
        host: H,
        gate: Gate,
        broker: BulkBroker,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let stall = StallWatch::start(&tasks, stop.clone());
        AgentsService { host, gate, broker, tasks, stop, stall }
    }

    /// Agents on this machine must have the controller's uid or root (design 5).
    fn admit<T>(&self, request: &Request<T>) -> Result<Peer, Status> {
        let caller = identity::caller(request)?;
        if !self.gate.may_be_agent(&caller) {
            return Err(Status::permission_denied(format!(
                "{} (uid {}) may not be an agent here: an agent must run as the controller's uid {} \
                 or as root",
                caller.user,
                caller.uid,
                self.gate.own_uid()
            )));
        }
        let peer = request.extensions().get::<Peer>().cloned();
        peer.ok_or_else(|| Status::internal("the connection has no record"))
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl<H: SessionHost> Agents for AgentsService<H> {
    type SessionStream = Answers<LeaderMessage>;
    type BulkStream = Answers<BulkDown>;

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let peer = self.admit(&request)?;
        let (handover, orders) = oneshot::channel();
        let closed_here = CancellationToken::new();
        let stream_gone = CancellationToken::new();
        let session = Session {
            inbound: request.into_inner(),
            host: self.host.clone(),
            broker: self.broker.clone(),
            stall: self.stall.clone(),
            peer,
            closed_here: closed_here.clone(),
            stream_gone: stream_gone.clone(),
            stop: self.stop.clone(),
            last_message: Instant::now(),
        };
        self.tasks.spawn(session.run(handover));
        let guard = stream_gone.drop_guard();
        let answers = outgoing(orders, closed_here, self.stop.clone(), guard);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn bulk(
        &self,
        request: Request<Streaming<BulkUp>>,
    ) -> Result<Response<Self::BulkStream>, Status> {
        self.admit(&request)?;
        let (handover, down) = oneshot::channel();
        let serve =
            bulk::serve(request.into_inner(), self.broker.clone(), handover, self.stop.clone());
        self.tasks.spawn(serve);
        Ok(Response::new(Box::pin(bulk::answers(down))))
    }
}

/// The down side of a session. On a dead connection it is dropped, not ended: the guard tells.
fn outgoing(
    orders: oneshot::Receiver<mpsc::Receiver<LeaderMessage>>,
    closed_here: CancellationToken,
    stop: CancellationToken,
    guard: DropGuard,
) -> impl Stream<Item = Result<LeaderMessage, Status>> + Send {
    async_stream::stream! {
        let _guard = guard;
        if let Ok(mut orders) = orders.await {
            while let Some(Some(message)) = stop.run_until_cancelled(orders.recv()).await {
                yield Ok(message);
            }
        }
        closed_here.cancel();
    }
}

/// The up side of one session.
struct Session<H> {
    inbound: Streaming<AgentMessage>,
    host: H,
    broker: BulkBroker,
    stall: StallWatch,
    peer: Peer,
    /// The leader closed it, or the controller stops.
    closed_here: CancellationToken,
    /// The down side is gone: the connection died, or it was closed here.
    stream_gone: CancellationToken,
    stop: CancellationToken,
    last_message: Instant,
}

impl<H: SessionHost> Session<H> {
    async fn run(mut self, handover: oneshot::Sender<mpsc::Receiver<LeaderMessage>>) {
        // A stream without a Join is no session: dropping `handover` ends it.
        let Some(join) = self.join().await else { return };
        let (agent, beat) = (join.agent_id.clone(), join.heartbeat_interval_ms);
        let opened = self.host.open_session(join, self.peer.address.clone()).await;
        let Some((id, orders)) = opened else { return };
        // The stream may be gone already: then the receiver ends here, and the reading below too.
        let _ = handover.send(orders);
        self.read(id, &agent, Duration::from_millis(beat)).await;
        self.broker.session_away(&agent, id.0).await;
        let end = self.end(Duration::from_millis(beat)).await;
        tracing::info!(agent, session = id.0, ?end, "session ended");
        self.host.session_event(Event::Closed { session: id, end }).await;
    }

    async fn join(&mut self) -> Option<Join> {
        let first = self.stop.run_until_cancelled(timeout(JOIN_TIMEOUT, self.inbound.message()));
        match first.await? {
            Ok(Ok(Some(AgentMessage { kind: Some(agent_message::Kind::Join(join)) }))) => {
                Some(join)
            }
            other => {
                let what = if other.is_err() { "nothing" } else { "something else" };
                tracing::warn!(peer = self.peer.address, "a session began with {what}, not a Join");
                None
            }
        }
    }

    /// Hands every message over, to the end of the stream.
    async fn read(&mut self, id: SessionId, agent: &str, beat: Duration) {
        let mut quiet = true;
        while let Some(message) = self.next(beat.saturating_mul(QUIET_BEATS)).await {
            match message {
                Some(message) => {
                    if std::mem::take(&mut quiet) {
                        self.broker.session_began(agent, id.0).await;
                    }
                    self.last_message = Instant::now();
                    self.host.session_event(Event::Message { session: id, message }).await;
                }
                None if quiet => {}
                None => {
                    quiet = true;
                    self.broker.session_away(agent, id.0).await;
                }
            }
        }
    }

    /// The next message; `Some(None)` if none came for that long; `None` at the end.
    async fn next(&mut self, patience: Duration) -> Option<Option<AgentMessage>> {
        if self.closed_here.is_cancelled() {
            return None;
        }
        tokio::select! {
            biased;
            message = timeout(patience, self.inbound.message()) => match message {
                Ok(Ok(Some(message))) => Some(Some(message)),
                Ok(Ok(None) | Err(_)) => None,
                Err(_) => Some(None),
            },
            // What the dead connection had brought is still here; nothing more will come.
            () = self.stream_gone.cancelled() => {
                match timeout(DRAIN_TIMEOUT, self.inbound.message()).await {
                    Ok(Ok(Some(message))) => Some(Some(message)),
                    _ => None,
                }
            }
        }
    }

    /// What ended it, as far as it proves anything.
    async fn end(&self, beat: Duration) -> SessionEnd {
        if self.closed_here.is_cancelled() || self.stop.is_cancelled() {
            return SessionEnd::Local;
        }
        // A stream may end while its connection goes on: that proves nothing.
        let ending = timeout(RECORD_TIMEOUT, self.peer.ending.wait()).await.ok();
        let end = session_end(ending);
        // A reader that slept may have read old words late: then the close proves nothing.
        let window = beat + LAST_WORD_SLACK;
        if self.stall.stalled_within(window) { SessionEnd::Other } else { end }
    }
}

fn session_end(ending: Option<Ending>) -> SessionEnd {
    match ending {
        Some(Ending::PeerFin) => SessionEnd::Fin,
        Some(Ending::PeerReset) => SessionEnd::Reset,
        Some(Ending::Local) => SessionEnd::Local,
        Some(Ending::Failed) | None => SessionEnd::Other,
    }
}
