//! Output bytes from agents to readers (design 5, Logs). A reader asks the broker, the broker sends
//! `OpenBulk` down the agent's session, the agent opens a `Bulk` call with that number, and the two
//! are joined: one relay a reader, pieces under a window of credits, everything with a deadline.

#[cfg(test)]
mod tests;

use super::agents::SessionHost;
use proto::v1::{
    BulkCredit, BulkDown, BulkHello, BulkPiece, BulkStop, BulkUp, OpenBulk, ReadOutput, bulk_down,
    bulk_up, leader_message,
};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Status, Streaming};

/// Pieces that an agent may send before the reader has taken one (design 5): 256 KiB each.
pub const WINDOW_PIECES: usize = 4;

/// Relays at once. Each holds at most a window of pieces, so this bounds the memory at 1 GiB.
const RELAYS_MAX: usize = 1_024;

/// Questions that wait for the broker's loop; it answers each at once.
const INBOX_MAX: usize = 64;

/// Messages that wait on their way down to an agent: the question, the credits of one window, two
/// stops; a reader waits when it is full.
const DOWN_MAX: usize = 8;

/// An agent that has not opened its `Bulk` call after this long is taken for away.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// The next piece of a read that does not follow must come within this. One that follows may wait
/// for its job for ever; the end of the agent's session ends it.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

/// An agent's `Bulk` call must name its request within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Why bytes do not come. What was delivered before stands; a reader resumes by offset.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BulkError {
    /// The agent has no session, lost it, or stopped answering.
    #[error("agent {agent_id} is away, and it holds the output; try again when it is back")]
    Away {
        /// Which.
        agent_id: String,
    },
    /// Too many readers.
    #[error("{RELAYS_MAX} outputs are being read at once, the limit; try again later")]
    Busy,
    /// The agent could not read the output.
    #[error("the agent could not read the output: {message}")]
    Failed {
        /// In its own words.
        message: String,
        /// The file is gone for good.
        gone: bool,
    },
    /// The controller is stopping.
    #[error("the controller is stopping")]
    Stopping,
}

/// Joins readers and agents. Cheap to clone; ends with its `stop` token.
#[derive(Clone)]
pub struct BulkBroker {
    inbox: mpsc::Sender<Ask>,
}

enum Ask {
    /// The session of that agent began.
    Up {
        agent_id: String,
        session: u64,
    },
    /// It ended, or its agent is silent.
    Away {
        agent_id: String,
        session: u64,
    },
    Open {
        agent_id: String,
        read: ReadOutput,
        reply: oneshot::Sender<Result<Opened, BulkError>>,
    },
    Attach {
        request: u64,
        agent_id: String,
        reply: oneshot::Sender<Relay>,
    },
}

/// A reader's end, registered; the agent is yet to be asked.
struct Opened {
    request: u64,
    ends: ReaderEnds,
}

struct ReaderEnds {
    pieces: mpsc::Receiver<bulk_up::Kind>,
    down: mpsc::Sender<bulk_down::Kind>,
    away: CancellationToken,
}

/// An agent's end.
struct Relay {
    pieces: mpsc::Sender<bulk_up::Kind>,
    down: mpsc::Receiver<bulk_down::Kind>,
}

/// One read of one output.
pub struct BulkReader {
    agent_id: String,
    follows: bool,
    /// Its agent has opened the call.
    attached: bool,
    ended: bool,
    /// Credits for pieces that were taken, not sent yet.
    owed: u32,
    ends: ReaderEnds,
}

impl BulkBroker {
    /// Starts the broker's loop on `tasks`; it ends when `stop` is cancelled.
    pub fn start(tasks: &TaskTracker, stop: CancellationToken) -> Self {
        let (inbox, asks) = mpsc::channel(INBOX_MAX);
        tasks.spawn(Board::default().run(asks, stop));
        BulkBroker { inbox }
    }

    /// Begins a read: asks the agent through its newest session.
    ///
    /// # Errors
    /// The agent is away, too many outputs are being read, or the controller is stopping.
    pub async fn open(
        &self,
        host: &impl SessionHost,
        agent_id: &str,
        read: ReadOutput,
    ) -> Result<BulkReader, BulkError> {
        let agent_id = agent_id.to_owned();
        let follows = read.follow;
        let (reply, answer) = oneshot::channel();
        self.tell(Ask::Open { agent_id: agent_id.clone(), read, reply }).await?;
        let Opened { request, ends } = answer.await.map_err(|_| BulkError::Stopping)??;
        let reader = BulkReader {
            agent_id: agent_id.clone(),
            follows,
            attached: false,
            ended: false,
            owed: 0,
            ends,
        };
        let open = leader_message::Kind::OpenBulk(OpenBulk { request });
        if host.send_to_agent(agent_id.clone(), open).await {
            Ok(reader)
        } else {
            Err(BulkError::Away { agent_id })
        }
    }

    /// A session of that agent began: it can be asked from now on.
    pub(super) async fn session_began(&self, agent_id: &str, session: u64) {
        // A broker that has ended is asked nothing any more.
        let _ = self.tell(Ask::Up { agent_id: agent_id.to_owned(), session }).await;
    }

    /// It ended or fell silent: its readers are told.
    pub(super) async fn session_away(&self, agent_id: &str, session: u64) {
        let _ = self.tell(Ask::Away { agent_id: agent_id.to_owned(), session }).await;
    }

    async fn attach(&self, request: u64, agent_id: String) -> Option<Relay> {
        let (reply, answer) = oneshot::channel();
        self.tell(Ask::Attach { request, agent_id, reply }).await.ok()?;
        answer.await.ok()
    }

    async fn tell(&self, ask: Ask) -> Result<(), BulkError> {
        self.inbox.send(ask).await.map_err(|_| BulkError::Stopping)
    }
}

impl BulkReader {
    /// The next piece, in order of offsets; `None` at the end of the output. A call that is given up
    /// before it returns has lost nothing.
    ///
    /// # Errors
    /// The agent went away or could not read: what came before stands.
    pub async fn next(&mut self) -> Result<Option<BulkPiece>, BulkError> {
        while !self.ended {
            // Nothing is awaited behind the receive: that is what makes giving up safe.
            match self.receive().await? {
                bulk_up::Kind::Hello(_) => self.attached = true,
                bulk_up::Kind::Piece(piece) => {
                    self.credit();
                    return Ok(Some(piece));
                }
                bulk_up::Kind::End(_) => self.ended = true,
                bulk_up::Kind::Error(error) => {
                    return Err(BulkError::Failed { message: error.message, gone: error.gone });
                }
            }
        }
        Ok(None)
    }

    async fn receive(&mut self) -> Result<bulk_up::Kind, BulkError> {
        let away = || BulkError::Away { agent_id: self.agent_id.clone() };
        tokio::select! {
            biased;
            kind = self.ends.pieces.recv() => kind.ok_or_else(away),
            () = self.ends.away.cancelled() => Err(away()),
            () = deadline(self.attached, self.follows) => Err(away()),
        }
    }

    /// Lets the agent send one more piece.
    fn credit(&mut self) {
        self.owed += 1;
        let credit = bulk_down::Kind::Credit(BulkCredit { pieces: self.owed });
        // A full channel keeps them for the next piece; a closed one shows itself there.
        if self.ends.down.try_send(credit).is_ok() {
            self.owed = 0;
        }
    }

    /// Ends a read that follows: with `after_end` at the end of the file as it is then, for the
    /// attempt is terminal; else at once.
    pub async fn stop(&mut self, after_end: bool) {
        // No longer following: the rest must come in time.
        self.follows = false;
        // An agent's end that is gone shows itself at the next piece.
        let _ = self.ends.down.send(bulk_down::Kind::Stop(BulkStop { after_end })).await;
    }
}

/// Serves one `Bulk` call of an agent: what the reader says goes through `handover`, what the agent
/// sends goes to the reader. It ends with either of them, or with `stop`.
pub(super) async fn serve(
    mut inbound: Streaming<BulkUp>,
    broker: BulkBroker,
    handover: oneshot::Sender<mpsc::Receiver<bulk_down::Kind>>,
    stop: CancellationToken,
) {
    let Some((request, hello)) = hello(&mut inbound).await else { return };
    let Some(relay) = broker.attach(request, hello.agent_id.clone()).await else {
        return tracing::debug!(request, "nobody waits for this output any more");
    };
    let Relay { pieces, down } = relay;
    // The reader learns that its agent has come; it may then wait for bytes as long as it likes.
    let told = pieces.send(bulk_up::Kind::Hello(hello)).await.is_ok();
    if handover.send(down).is_err() || !told {
        return; // the call, or its reader, has ended
    }
    loop {
        let message = tokio::select! {
            message = inbound.message() => message,
            () = pieces.closed() => return,
            () = stop.cancelled() => return,
        };
        let Ok(Some(BulkUp { kind: Some(kind), .. })) = message else { return };
        if pieces.send(kind).await.is_err() {
            return;
        }
    }
}

async fn hello(inbound: &mut Streaming<BulkUp>) -> Option<(u64, BulkHello)> {
    match timeout(HELLO_TIMEOUT, inbound.message()).await {
        Ok(Ok(Some(BulkUp { request, kind: Some(bulk_up::Kind::Hello(hello)) }))) => {
            Some((request, hello))
        }
        _ => None,
    }
}

/// The down side of a `Bulk` call, once its reader is known.
pub(super) fn answers(
    handover: oneshot::Receiver<mpsc::Receiver<bulk_down::Kind>>,
) -> impl futures::Stream<Item = Result<BulkDown, Status>> + Send {
    async_stream::stream! {
        let Ok(mut down) = handover.await else { return };
        while let Some(kind) = down.recv().await {
            yield Ok(BulkDown { kind: Some(kind) });
        }
    }
}

async fn deadline(attached: bool, follows: bool) {
    match (attached, follows) {
        (false, _) => tokio::time::sleep(ATTACH_TIMEOUT).await,
        (true, false) => tokio::time::sleep(PIECE_TIMEOUT).await,
        (true, true) => std::future::pending().await,
    }
}

/// The broker's own state.
#[derive(Default)]
struct Board {
    sessions: BTreeMap<String, Line>,
    waiting: BTreeMap<u64, Waiting>,
    /// Every reader, attached or not, by request number: weak, so that a reader that goes away ends
    /// its agent's call by itself.
    readers: BTreeMap<u64, mpsc::WeakSender<bulk_down::Kind>>,
    requests: u64,
}

/// An agent's session, as far as readers care.
struct Line {
    session: u64,
    away: CancellationToken,
}

/// Registered, and not attached by its agent yet.
struct Waiting {
    agent_id: String,
    relay: Relay,
}

impl Board {
    async fn run(mut self, mut asks: mpsc::Receiver<Ask>, stop: CancellationToken) {
        while let Some(Some(ask)) = stop.run_until_cancelled(asks.recv()).await {
            self.take(ask);
        }
        for line in self.sessions.into_values() {
            line.away.cancel();
        }
    }

    fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Up { agent_id, session } => self.up(agent_id, session),
            Ask::Away { agent_id, session } => self.away(&agent_id, session),
            Ask::Open { agent_id, read, reply } => {
                // A reader that no longer waits is swept with the next question.
                let _ = reply.send(self.open(agent_id, read));
            }
            Ask::Attach { request, agent_id, reply } => {
                if let Some(relay) = self.attach(request, &agent_id)
                    && let Err(relay) = reply.send(relay)
                {
                    drop(relay); // its reader sees the end of the pieces
                }
            }
        }
    }

    fn up(&mut self, agent_id: String, session: u64) {
        let line = Line { session, away: CancellationToken::new() };
        if let Some(older) = self.sessions.insert(agent_id, line) {
            older.away.cancel();
        }
    }

    fn away(&mut self, agent_id: &str, session: u64) {
        if self.sessions.get(agent_id).is_some_and(|line| line.session == session)
            && let Some(line) = self.sessions.remove(agent_id)
        {
            line.away.cancel();
        }
    }

    fn open(&mut self, agent_id: String, read: ReadOutput) -> Result<Opened, BulkError> {
        self.sweep();
        if self.readers.len() >= RELAYS_MAX {
            return Err(BulkError::Busy);
        }
        let Some(line) = self.sessions.get(&agent_id) else {
            return Err(BulkError::Away { agent_id });
        };
        let (pieces_in, pieces) = mpsc::channel(WINDOW_PIECES + 1);
        let (down, down_out) = mpsc::channel(DOWN_MAX);
        // The channel is new and empty: the question fits.
        if down.try_send(bulk_down::Kind::Read(read)).is_err() {
            return Err(BulkError::Busy);
        }
        self.requests += 1;
        let request = self.requests;
        self.readers.insert(request, down.downgrade());
        let relay = Relay { pieces: pieces_in, down: down_out };
        self.waiting.insert(request, Waiting { agent_id, relay });
        let ends = ReaderEnds { pieces, down, away: line.away.clone() };
        Ok(Opened { request, ends })
    }

    fn attach(&mut self, request: u64, agent_id: &str) -> Option<Relay> {
        if self.waiting.get(&request)?.agent_id != agent_id {
            return None;
        }
        self.waiting.remove(&request).map(|waiting| waiting.relay)
    }

    /// What no reader waits for any more.
    fn sweep(&mut self) {
        self.waiting.retain(|_, waiting| !waiting.relay.pieces.is_closed());
        self.readers.retain(|_, reader| reader.strong_count() > 0);
    }
}
