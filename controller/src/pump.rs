//! The apply pump: the one thread that owns the ledger and the leader's duties. Everything that
//! changes either comes through its mailbox, in order; reads are answered between two entries.

use crate::clock::{ms_since, wall_ms};
use crate::failure::Failure;
use crate::metrics::Live;
use crate::progress::Replay;
use crate::proposer::{Item, OwnSender};
use crate::raft::Reply;
use crate::since::SinceSnapshot;
use crate::watch::{Watcher, Watchers};
use docket_core::leader::{Action, Event, Leader, LeaderConfig, OUTBOX_MAX, SessionEnd, SessionId};
use docket_core::ledger::{Frozen, Ledger, Outcome};
use prost::Message as _;
use proto::JobId;
use proto::v1::{self, command};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Notify, oneshot};

/// Messages that wait for the pump: a few batches of each kind; senders wait beyond it.
const MAILBOX_MAX: usize = 1024;

/// Messages taken in one go before the outputs are drained.
const DRAIN_MAX: usize = 64;

/// Commands of the leader's duties that wait for the proposer: sessions pause beyond it.
const BACKLOG_MAX: usize = 65_536;

/// A committed entry on its way into the ledger.
pub struct Committed {
    /// Log position, from 1.
    pub position: u64,
    /// The encoded proposal.
    pub bytes: Arc<[u8]>,
    /// Who waits for the outcomes; none in replay and on followers.
    pub reply: Option<Box<dyn FnOnce(Reply) + Send>>,
    /// When raft handed it over.
    pub committed: Instant,
}

/// Where this node stands in raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads; commands are taken once the first entry of this term is applied.
    Leading {
        /// The raft term.
        term: u64,
    },
    /// Another node leads, or none.
    Following {
        /// The leader, if known.
        leader: Option<u64>,
    },
}

/// What a read may look at.
pub struct View<'a> {
    /// The ledger after the last applied entry.
    pub ledger: &'a Ledger,
    /// The leader's duties; they know nothing while this node does not lead.
    pub leader: &'a Leader,
    /// Now, on the clock of the leader's duties.
    pub now_ms: u64,
}

type Reader = Box<dyn FnOnce(View<'_>) + Send>;

enum Message {
    Apply(Vec<Committed>),
    Role(Role),
    Install(Box<Ledger>),
    Open { join: Box<v1::Join>, peer_addr: String, reply: oneshot::Sender<Session> },
    Event(Box<Event<'static>>),
    Confirmed(u64),
    Send { agent_id: String, kind: Box<v1::leader_message::Kind>, reply: oneshot::Sender<bool> },
    Read(Reader),
    Freeze(oneshot::Sender<Frozen>),
    Watch { watcher: Arc<Watcher>, jobs: Vec<JobId>, reply: oneshot::Sender<()> },
    Tick,
    Stop,
}

/// An opened agent session: its id, and what must be sent to the agent. The end of the receiver
/// means that the session is to be closed.
pub type Session = (SessionId, mpsc::Receiver<v1::LeaderMessage>);

/// The pump has ended: the process is stopping or must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the controller is stopping")]
pub struct PumpGone;

/// Cheap to clone; hides the mailbox.
#[derive(Clone)]
pub struct PumpHandle {
    mailbox: mpsc::Sender<Message>,
    congestion: Arc<Congestion>,
}

/// How much the leader's duties wait to propose, for those who would add to it.
#[derive(Default)]
struct Congestion {
    waiting: AtomicUsize,
    eased: Notify,
}

/// What the pump needs besides its ledger.
pub struct PumpParts {
    /// Limits and times of the leader's duties.
    pub leader: LeaderConfig,
    /// Takes what the leader's duties propose.
    pub proposer: OwnSender,
    /// Takes the leader's questions whether it still leads; answered by [`PumpHandle::confirmed`].
    pub confirms: mpsc::Sender<u64>,
    /// Thrown when the pump cannot go on.
    pub failure: Failure,
    /// When a snapshot is due, and who is told.
    pub snapshot: SnapshotDue,
    /// Counts what is applied.
    pub metrics: Live,
    /// Tells how far a long start is.
    pub replay: Replay,
}

/// Counts what was applied since the last snapshot.
pub struct SnapshotDue {
    /// Bytes of log between two snapshots.
    pub every_bytes: u64,
    /// Commands between two snapshots.
    pub every_commands: u64,
    /// Woken when one is due.
    pub due: Arc<Notify>,
}

/// Starts the pump's thread with the ledger of the newest snapshot, or an empty one.
pub fn start(
    ledger: Ledger,
    parts: PumpParts,
) -> std::io::Result<(PumpHandle, std::thread::JoinHandle<()>)> {
    let (sender, mailbox) = mpsc::channel(MAILBOX_MAX);
    let congestion = Arc::new(Congestion::default());
    let handle = PumpHandle { mailbox: sender, congestion: Arc::clone(&congestion) };
    let pump = Pump {
        ledger,
        leader: Leader::new(parts.leader),
        leading: None,
        sessions: BTreeMap::new(),
        next_session: 1,
        backlog: VecDeque::new(),
        congestion,
        watchers: Watchers::default(),
        proposer: parts.proposer,
        confirms: parts.confirms,
        failure: parts.failure,
        snapshot: parts.snapshot,
        metrics: parts.metrics,
        replay: parts.replay,
        since: SinceSnapshot::default(),
        start: Instant::now(),
    };
    let thread =
        std::thread::Builder::new().name("pump".to_owned()).spawn(move || pump.run(mailbox))?;
    Ok((handle, thread))
}

impl PumpHandle {
    /// Hands committed entries over, in log order.
    pub async fn apply(&self, entries: Vec<Committed>) -> Result<(), PumpGone> {
        self.send(Message::Apply(entries)).await
    }

    /// Tells that raft made this node a leader or a follower.
    pub async fn role(&self, role: Role) -> Result<(), PumpGone> {
        self.send(Message::Role(role)).await
    }

    /// Replaces the ledger by that of a snapshot.
    pub async fn install(&self, ledger: Ledger) -> Result<(), PumpGone> {
        self.send(Message::Install(Box::new(ledger))).await
    }

    /// Registers an agent's session, and tells the leader's duties of its join.
    pub async fn open_session(
        &self,
        join: v1::Join,
        peer_addr: String,
    ) -> Result<Session, PumpGone> {
        self.uncongested().await;
        let join = Box::new(join);
        self.ask(|reply| Message::Open { join, peer_addr, reply }).await
    }

    /// Hands over what happened on a session.
    pub async fn session_event(&self, event: Event<'static>) -> Result<(), PumpGone> {
        self.uncongested().await;
        self.send(Message::Event(Box::new(event))).await
    }

    /// This node was found to lead at some moment after [`Action::Confirm`] of that round.
    pub async fn confirmed(&self, round: u64) -> Result<(), PumpGone> {
        self.send(Message::Confirmed(round)).await
    }

    /// Sends `kind` on the newest session of an agent; false if it has none.
    pub async fn send_to_agent(
        &self,
        agent_id: String,
        kind: v1::leader_message::Kind,
    ) -> Result<bool, PumpGone> {
        let kind = Box::new(kind);
        self.ask(|reply| Message::Send { agent_id, kind, reply }).await
    }

    /// Answers `look` from the ledger as it is after everything handed over so far.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(View<'_>) -> T + Send + 'static,
    ) -> Result<T, PumpGone> {
        self.ask(|reply| {
            Message::Read(Box::new(move |view: View<'_>| {
                // Who no longer waits for the answer does not need it.
                let _ = reply.send(look(view));
            }))
        })
        .await
    }

    /// A frozen copy of the ledger, cheap to take; it is written out elsewhere.
    pub async fn freeze(&self) -> Result<Frozen, PumpGone> {
        self.ask(Message::Freeze).await
    }

    /// A watcher that hears of every change of `jobs` from now on.
    pub async fn watch(&self, jobs: Vec<JobId>) -> Result<Arc<Watcher>, PumpGone> {
        let watcher = Arc::new(Watcher::default());
        let registered = Arc::clone(&watcher);
        self.ask(|reply| Message::Watch { watcher: registered, jobs, reply }).await?;
        Ok(watcher)
    }

    /// Time passes for the leader's duties. Dropped while the mailbox is full: more come.
    pub fn tick(&self) -> Result<(), PumpGone> {
        match self.mailbox.try_send(Message::Tick) {
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(PumpGone),
        }
    }

    /// Commands of the leader's duties that the proposer has not taken yet.
    pub fn backlog(&self) -> u64 {
        self.congestion.waiting.load(Ordering::Relaxed) as u64
    }

    /// Ends the thread after everything handed over so far.
    pub async fn stop(&self) {
        // An error means that it has ended already.
        let _ = self.send(Message::Stop).await;
    }

    async fn send(&self, message: Message) -> Result<(), PumpGone> {
        self.mailbox.send(message).await.map_err(|_| PumpGone)
    }

    async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, PumpGone> {
        let (reply, answer) = oneshot::channel();
        self.send(message(reply)).await?;
        answer.await.map_err(|_| PumpGone)
    }

    async fn uncongested(&self) {
        loop {
            let eased = self.congestion.eased.notified();
            if self.congestion.waiting.load(Ordering::Relaxed) < BACKLOG_MAX {
                return;
            }
            eased.await;
        }
    }
}

struct Pump {
    ledger: Ledger,
    leader: Leader,
    /// The term raft says we lead.
    leading: Option<u64>,
    sessions: BTreeMap<SessionId, OpenSession>,
    next_session: u64,
    backlog: VecDeque<v1::Command>,
    congestion: Arc<Congestion>,
    watchers: Watchers,
    proposer: OwnSender,
    confirms: mpsc::Sender<u64>,
    failure: Failure,
    snapshot: SnapshotDue,
    metrics: Live,
    replay: Replay,
    since: SinceSnapshot,
    start: Instant,
}

struct OpenSession {
    agent_id: String,
    incarnation: u64,
    outgoing: mpsc::Sender<v1::LeaderMessage>,
}

impl Pump {
    fn run(mut self, mut mailbox: mpsc::Receiver<Message>) {
        let failure = self.failure.clone();
        let mut taken = Vec::with_capacity(DRAIN_MAX);
        while mailbox.blocking_recv_many(&mut taken, DRAIN_MAX) > 0 {
            // An impossible state must end the process, and nobody may hear of this thread's end first.
            let doing = || "a duty of the controller failed".to_owned();
            let turned = failure.guard(doing, || self.turn(&mut taken));
            if turned.is_none_or(|flow| flow.is_break()) {
                return;
            }
        }
    }

    fn turn(&mut self, taken: &mut Vec<Message>) -> ControlFlow<()> {
        taken.drain(..).try_for_each(|message| self.handle(message))?;
        self.hand_to_proposer();
        ControlFlow::Continue(())
    }

    fn handle(&mut self, message: Message) -> ControlFlow<()> {
        match message {
            Message::Apply(entries) => {
                return entries.into_iter().try_for_each(|entry| self.apply(entry));
            }
            Message::Role(role) => self.change_role(role),
            Message::Install(ledger) => {
                self.ledger = *ledger;
                self.watchers.notify_all();
            }
            Message::Open { join, peer_addr, reply } => self.open(*join, peer_addr, reply),
            Message::Event(event) => self.session_event(*event),
            Message::Confirmed(round) => self.step(Event::Confirmed { round }),
            Message::Send { agent_id, kind, reply } => {
                // The broker that no longer waits needs no answer.
                let _ = reply.send(self.send_to_agent(&agent_id, *kind));
            }
            Message::Read(look) => look(View {
                ledger: &self.ledger,
                leader: &self.leader,
                now_ms: ms_since(self.start),
            }),
            Message::Freeze(reply) => {
                self.since = SinceSnapshot::default();
                // A snapshot that was given up meanwhile is tried again when the next is due.
                let _ = reply.send(self.ledger.freeze());
            }
            Message::Watch { watcher, jobs, reply } => {
                self.watchers.register(&watcher, &jobs);
                // A watcher that went away is swept.
                let _ = reply.send(());
            }
            Message::Tick => self.step(Event::Tick { wall_ms: wall_ms() }),
            Message::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Applies one entry; what cannot be read of our own log stops the pump by name (style rule 10).
    fn apply(&mut self, entry: Committed) -> ControlFlow<()> {
        let proposal = match decode(&entry) {
            Ok(proposal) => proposal,
            Err(why) => {
                self.failure.fail(why);
                return ControlFlow::Break(());
            }
        };
        let failure = self.failure.clone();
        let doing = || format!("log entry {} cannot be applied", entry.position);
        let apply = || self.ledger.apply(entry.position, &proposal);
        // Caught while the entry's reply is still parked: its drop is a consequence that others hear.
        let Some(applied) = failure.guard(doing, apply) else { return ControlFlow::Break(()) };
        debug_assert_eq!(applied.outcomes.len(), proposal.commands.len());
        applied.changed.iter().for_each(|task| self.watchers.notify(task.job));
        self.replay.applied(entry.position);
        self.count(entry.bytes.len(), proposal.commands.len());
        self.warn_of_older_log(&proposal.commands, &applied.outcomes);
        self.step(Event::Applied {
            index: entry.position,
            commands: &proposal.commands,
            applied: &applied,
        });
        if let Some(reply) = entry.reply {
            // Neither a replay nor a follower has one.
            let delay = entry.committed.elapsed();
            self.metrics.applied(delay, &proposal.commands, &applied.outcomes);
            reply(Reply {
                outcomes: applied.outcomes,
                position: entry.position,
                led_ms: self.ledger.led(),
            });
        }
        ControlFlow::Continue(())
    }

    /// Said by the leader, at the join that found it out.
    fn warn_of_older_log(&self, commands: &[v1::Command], outcomes: &[Outcome]) {
        if self.leading.is_none() {
            return;
        }
        for (command, outcome) in commands.iter().zip(outcomes) {
            let (Some(command::Kind::AgentUp(up)), Outcome::AgentUp) = (&command.kind, outcome)
            else {
                continue;
            };
            let agent = up.join.as_ref().and_then(|join| self.ledger.agent(&join.agent_id));
            let Some(agent) = agent else { continue };
            let lost = agent.facts_lost().filter(|lost| lost.unjudged);
            if lost.is_none() && !agent.shows_older_log() {
                continue;
            }
            tracing::warn!(
                node = agent.name(),
                lost = lost.map_or(0, |lost| lost.to.0 + 1 - lost.from.0),
                "this controller's log is OLDER than what it once acknowledged to this node: was an \
                 old copy of its data directory put in place? Jobs that were submitted since are \
                 forgotten; what waited is held: look, then `docket release`; attempts that the \
                 node does not have any more, and whose facts are lost, end as vanished: they may \
                 have run"
            );
        }
    }

    fn change_role(&mut self, role: Role) {
        let leading = match role {
            Role::Leading { term } => Some(term),
            Role::Following { .. } => None,
        };
        if leading == self.leading {
            return;
        }
        if self.leading.is_some() {
            self.step(Event::Deposed);
            // What the old term wanted to propose is void: the new one reads it off the ledger.
            self.backlog.clear();
        }
        self.leading = leading;
        if let Some(term) = leading {
            self.step(Event::Elected { term });
        }
    }

    fn count(&mut self, bytes: usize, commands: usize) {
        if self.since.count(&self.snapshot, bytes as u64, commands as u64) {
            self.snapshot.due.notify_one();
        }
    }

    fn open(&mut self, join: v1::Join, peer_addr: String, reply: oneshot::Sender<Session>) {
        let session = SessionId(self.next_session);
        self.next_session += 1;
        let (outgoing, receiver) = mpsc::channel(OUTBOX_MAX);
        if reply.send((session, receiver)).is_err() {
            return; // the connection ended meanwhile: there is nobody to join
        }
        let (agent_id, incarnation) = (join.agent_id.clone(), join.incarnation);
        self.sessions.insert(session, OpenSession { agent_id, incarnation, outgoing });
        self.step(Event::Opened { session, join, peer_addr });
    }

    fn session_event(&mut self, event: Event<'static>) {
        let closed = match &event {
            Event::Closed { session, .. } => Some(*session),
            _ => None,
        };
        self.step(event);
        if let Some(session) = closed {
            self.sessions.remove(&session);
        }
    }

    fn send_to_agent(&mut self, agent_id: &str, kind: v1::leader_message::Kind) -> bool {
        let newest = self
            .sessions
            .values()
            .filter(|session| session.agent_id == agent_id)
            .max_by_key(|session| session.incarnation);
        let Some(session) = newest else { return false };
        let message = v1::LeaderMessage {
            term: self.leading.unwrap_or_default(),
            incarnation: session.incarnation,
            kind: Some(kind),
        };
        session.outgoing.try_send(message).is_ok()
    }

    /// One step of the leader's duties. They turn sessions away while this node does not lead.
    fn step(&mut self, event: Event<'_>) {
        let now_ms = ms_since(self.start);
        let actions = self.leader.step(&self.ledger, now_ms, event);
        self.execute(actions);
    }

    fn execute(&mut self, actions: Vec<Action>) {
        let mut todo = VecDeque::from(actions);
        while let Some(action) = todo.pop_front() {
            match action {
                Action::Propose(command) => self.backlog.push_back(command),
                // While one is asked, the next finds no room: the leader asks again by itself.
                Action::Confirm { round } => drop(self.confirms.try_send(round)),
                Action::Close { session } => {
                    self.sessions.remove(&session);
                }
                Action::Send { session, message } => {
                    if self.send(session, message).is_err() {
                        self.sessions.remove(&session);
                        let end = SessionEnd::Local;
                        let event = Event::Closed { session, end };
                        todo.extend(self.leader.step(&self.ledger, ms_since(self.start), event));
                    }
                }
            }
        }
    }

    /// An error means that the agent reads too slowly. Messages to a session that has ended are
    /// void: its end is on the way here.
    fn send(&self, session: SessionId, message: v1::LeaderMessage) -> Result<(), ()> {
        let Some(open) = self.sessions.get(&session) else { return Ok(()) };
        match open.outgoing.try_send(message) {
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(_)) => {
                tracing::warn!(agent = open.agent_id, "agent reads too slowly: session closed");
                Err(())
            }
        }
    }

    /// Hands over what fits; the rest goes when the proposals in flight come back through here.
    fn hand_to_proposer(&mut self) {
        while let Some(command) = self.backlog.pop_front() {
            match self.proposer.try_send(Item::own(command)) {
                Ok(()) => {}
                Err(TrySendError::Full(item)) => {
                    self.backlog.push_front(item.into_command());
                    break;
                }
                Err(TrySendError::Closed(_)) => self.backlog.clear(),
            }
        }
        let before = self.congestion.waiting.swap(self.backlog.len(), Ordering::Relaxed);
        if before >= BACKLOG_MAX && self.backlog.len() < BACKLOG_MAX {
            self.congestion.eased.notify_waiters();
        }
    }
}

fn decode(entry: &Committed) -> Result<v1::Proposal, String> {
    let proposal = v1::Proposal::decode(&entry.bytes[..])
        .map_err(|e| format!("the log entry at {} cannot be read: {e}", entry.position))?;
    if proposal.level > proto::LEVEL {
        return Err(format!(
            "the log entry at {} has level {}, and this docket knows {} at most: install the \
             version that wrote it",
            entry.position,
            proposal.level,
            proto::LEVEL
        ));
    }
    Ok(proposal)
}
