//! The proposer: gathers commands into proposals, stamps their two times, and parks every reply
//! until its entry is applied (design 2, Batches everywhere).
//!
//! A lone command goes at once; at most two proposals are in flight; nothing is proposed before
//! the first entry of the term is applied; whoever waits when that cannot be told any more hears
//! "outcome unknown", never "failed".

mod batch;

use crate::clock::{ms_since, wall_ms};
use crate::failure::Failure;
use crate::pump::{PumpHandle, Role};
use crate::raft::{LogRoom, Node, Reply, Written};
use batch::{Gathered, Gathering};
use docket_core::ledger::{Ledger, Outcome};
use prost::Message as _;
use proto::v1;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use batch::BATCH_MAX_COMMANDS;

/// Proposals in flight: one is being written while the next is gathered and queued behind it.
const IN_FLIGHT_MAX: usize = 2;

/// Commands of callers that wait: eight full batches; callers wait beyond it.
const QUEUE_MAX: usize = 8 * BATCH_MAX_COMMANDS;

/// Commands of the leader's duties that wait; the pump keeps the rest.
const OWN_QUEUE_MAX: usize = 2 * BATCH_MAX_COMMANDS;

/// Bytes of specs and environments that wait in the queue: callers wait beyond it, so that a
/// flood of large jobs cannot fill the memory.
const QUEUE_MAX_BYTES: usize = 64 * 1024 * 1024;

/// A command that waits to be proposed.
pub struct Item {
    command: v1::Command,
    blobs: Vec<v1::Blob>,
    reply: Option<oneshot::Sender<Result<Accepted, ProposeError>>>,
    /// Its share of [`QUEUE_MAX_BYTES`]; given back once it is in a proposal.
    _room: Option<OwnedSemaphorePermit>,
}

/// Where the pump puts what the leader's duties propose.
pub type OwnSender = mpsc::Sender<Item>;

/// A command that was committed and applied.
#[derive(Debug)]
pub struct Accepted {
    /// What apply answered.
    pub outcome: Outcome,
}

/// Why a command has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was proposed.
    #[error("this controller does not lead{}; ask the leader, or try again", hint(.leader))]
    NotLeader {
        /// Node id of the leader, if known.
        leader: Option<u64>,
    },
    /// It was proposed, and nobody can say here whether it was committed.
    #[error(
        "the outcome is unknown: the controller stopped leading or ended meanwhile; send it \
             again with the same request id"
    )]
    OutcomeUnknown,
    /// New jobs are refused while the disk is below its reserve.
    #[error("the controller's disk is full: it takes no new jobs until there is room under {data}")]
    DiskFull {
        /// Its data directory.
        data: String,
    },
    /// Not even the reserve is left: nothing can be made durable, so nothing is taken.
    #[error(
        "the controller's disk is full, its reserve too: it takes nothing until there is room under \
         {data}; nothing was changed, try again then"
    )]
    ReserveUsed {
        /// Its data directory.
        data: String,
    },
    /// The controller is stopping; nothing was proposed.
    #[error("the controller is stopping; try again")]
    Stopping,
}

fn hint(leader: &Option<u64>) -> String {
    leader.map_or_else(String::new, |id| format!(", node {id} does"))
}

/// A reply that is parked until its entry is applied.
pub struct Pending(oneshot::Receiver<Result<Accepted, ProposeError>>);

impl Pending {
    /// Waits for the outcome.
    pub async fn outcome(self) -> Result<Accepted, ProposeError> {
        // A sender that was dropped parked a reply that nobody can give any more.
        self.0.await.unwrap_or(Err(ProposeError::OutcomeUnknown))
    }
}

/// Cheap to clone; hides the queue.
#[derive(Clone)]
pub struct ProposerHandle {
    queue: mpsc::Sender<Item>,
    room: Arc<Semaphore>,
    disk: Arc<Disk>,
}

/// Asks how much room the log has left.
type AskRoom = Box<dyn Fn() -> LogRoom + Send + Sync>;

struct Disk {
    room: AskRoom,
    data: String,
}

impl Disk {
    /// Nothing that would wait for room is taken: whoever asks can be told at once.
    fn admits(&self, command: &v1::Command) -> Result<(), ProposeError> {
        let is_submit = matches!(command.kind, Some(v1::command::Kind::Submit(_)));
        let data = || self.data.clone();
        match (self.room)() {
            LogRoom::Used => Err(ProposeError::ReserveUsed { data: data() }),
            LogRoom::Reserve if is_submit => Err(ProposeError::DiskFull { data: data() }),
            LogRoom::Reserve | LogRoom::Enough => Ok(()),
        }
    }
}

/// Both ends of the proposer's queues, made before the pump and the node that it stands between.
pub struct Queues {
    /// For the pump.
    pub own: OwnSender,
    handle: mpsc::Sender<Item>,
    own_queue: mpsc::Receiver<Item>,
    queue: mpsc::Receiver<Item>,
}

impl Queues {
    /// Empty queues.
    pub fn new() -> Self {
        let (own, own_queue) = mpsc::channel(OWN_QUEUE_MAX);
        let (handle, queue) = mpsc::channel(QUEUE_MAX);
        Queues { own, handle, own_queue, queue }
    }
}

impl Item {
    /// A command of the leader's duties: they read its effect off the ledger.
    pub fn own(command: v1::Command) -> Self {
        Item { command, blobs: Vec::new(), reply: None, _room: None }
    }

    /// The command back, of an item that the queue did not take.
    pub fn into_command(self) -> v1::Command {
        self.command
    }

    fn refuse(self, error: ProposeError) {
        if let Some(reply) = self.reply {
            // A caller that went away needs no refusal.
            let _ = reply.send(Err(error));
        }
    }
}

impl ProposerHandle {
    /// Commands of callers that wait to be proposed.
    pub fn waiting(&self) -> u64 {
        QUEUE_MAX.saturating_sub(self.queue.capacity()) as u64
    }

    /// Proposes one command and waits until it is applied. `blobs` are those that it names.
    pub async fn propose(
        &self,
        command: v1::Command,
        blobs: Vec<v1::Blob>,
    ) -> Result<Accepted, ProposeError> {
        self.enqueue(command, blobs).await?.outcome().await
    }

    /// Queues one command behind all queued before; its outcome is waited for apart.
    pub async fn enqueue(
        &self,
        command: v1::Command,
        blobs: Vec<v1::Blob>,
    ) -> Result<Pending, ProposeError> {
        self.disk.admits(&command)?;
        let bytes = blobs.iter().map(|blob| blob.data.len()).sum::<usize>().min(QUEUE_MAX_BYTES);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes);
        let room = Some(room.await.map_err(|_| ProposeError::Stopping)?);
        let (reply, parked) = oneshot::channel();
        let item = Item { command, blobs, reply: Some(reply), _room: room };
        self.queue.send(item).await.map_err(|_| ProposeError::Stopping)?;
        Ok(Pending(parked))
    }
}

/// What the proposer needs besides its queues.
pub struct ProposerParts {
    /// Raft.
    pub node: Node,
    /// For the led time at the start of a term.
    pub pump: PumpHandle,
    /// Where this node stands.
    pub role: watch::Receiver<Role>,
    /// What of it the ledger lacks ([`due`]) is proposed right behind the first entry of a term.
    pub configure: v1::ConfigureCommand,
    /// Names the disk that is full.
    pub data: String,
    /// Thrown when the proposer cannot go on.
    pub failure: Failure,
}

/// What of the configuration a ledger lacks: all of it, or a generation that was raised since (a
/// repair of the log, a copy of the directory). The rest of a cluster that has begun stays as it is.
fn due(configure: &v1::ConfigureCommand, ledger: &Ledger) -> Option<v1::ConfigureCommand> {
    if ledger.cluster_id().is_empty() {
        return Some(configure.clone());
    }
    let generation = configure.generation.filter(|raised| *raised > ledger.raised())?;
    Some(v1::ConfigureCommand { generation: Some(generation), ..v1::ConfigureCommand::default() })
}

/// Starts the proposer. The receiver tells the term in which commands are taken, once they are.
pub fn start(
    queues: Queues,
    parts: ProposerParts,
    tasks: &TaskTracker,
    stop: CancellationToken,
) -> (ProposerHandle, watch::Receiver<Option<u64>>) {
    let node = parts.node.clone();
    let disk = Disk { room: Box::new(move || node.log_room()), data: parts.data.clone() };
    let room = Arc::new(Semaphore::new(QUEUE_MAX_BYTES));
    let handle = ProposerHandle { queue: queues.handle, room, disk: Arc::new(disk) };
    let (serving, watched) = watch::channel(None);
    let failure = parts.failure.clone();
    let proposer = Proposer {
        own: queues.own_queue,
        queue: queues.queue,
        parts,
        in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
        serving,
    };
    let proposing = failure.guard_task("the proposer failed", proposer.run());
    tasks.spawn(stop.run_until_cancelled_owned(proposing));
    (handle, watched)
}

struct Proposer {
    own: mpsc::Receiver<Item>,
    queue: mpsc::Receiver<Item>,
    parts: ProposerParts,
    in_flight: Arc<Semaphore>,
    serving: watch::Sender<Option<u64>>,
}

/// Led time of this term: that of its first entry, and what the own clock measured since.
struct Term {
    number: u64,
    led_ms: u64,
    since: Instant,
}

impl Term {
    fn led_ms(&self) -> u64 {
        self.led_ms.saturating_add(ms_since(self.since))
    }
}

impl Proposer {
    async fn run(mut self) {
        loop {
            let role = *self.parts.role.borrow_and_update();
            let more = match role {
                Role::Following { leader } => self.follow(leader).await,
                Role::Leading { term } => match self.begin(term).await {
                    Some(begun) => {
                        self.serving.send_replace(Some(term));
                        let more = self.lead(begun).await;
                        self.serving.send_replace(None);
                        more
                    }
                    None => self.parts.role.changed().await.is_ok(),
                },
            };
            if !more {
                return;
            }
        }
    }

    /// Refuses until the role changes. False: the queues have ended.
    async fn follow(&mut self, leader: Option<u64>) -> bool {
        loop {
            let item = tokio::select! {
                biased;
                changed = self.parts.role.changed() => return changed.is_ok(),
                item = self.own.recv() => item,
                item = self.queue.recv() => item,
            };
            let Some(item) = item else { return false };
            item.refuse(ProposeError::NotLeader { leader });
        }
    }

    /// Proposes the first entry of the term and waits until it is applied.
    async fn begin(&self, term: u64) -> Option<Term> {
        // All that earlier terms committed is applied before the read is answered only if raft
        // has applied it: apply takes the maximum, so an older value does no harm.
        let configure = self.parts.configure.clone();
        let look =
            self.parts.pump.read(move |view| (view.ledger.led(), due(&configure, view.ledger)));
        let (led_ms, configure) = look.await.ok()?;
        let leader = self.parts.node.id();
        let begin = v1::TermCommand { leader, term };
        let mut commands = vec![command(v1::command::Kind::Term(begin))];
        if let Some(configure) = configure {
            commands.push(command(v1::command::Kind::Configure(configure)));
        }
        let proposal = stamped(led_ms, Vec::new(), commands);
        let (done, applied) = oneshot::channel();
        let written = move |written| {
            // The proposer waits for it unless it is being stopped.
            let _ = done.send(written);
        };
        self.parts.node.propose(encode(&proposal), written).await.ok()?;
        match applied.await.ok()? {
            Written::Applied(reply) => {
                Some(Term { number: term, led_ms: reply.led_ms, since: Instant::now() })
            }
            Written::NotLeader(_) | Written::Unknown => None,
        }
    }

    /// Gathers and proposes until the role changes. False: the queues have ended.
    async fn lead(&mut self, term: Term) -> bool {
        loop {
            let in_flight = Arc::clone(&self.in_flight);
            let permit = tokio::select! {
                biased;
                changed = self.parts.role.changed() => return changed.is_ok(),
                permit = in_flight.acquire_owned() => permit,
            };
            let Ok(permit) = permit else { return false };
            let first = tokio::select! {
                biased;
                changed = self.parts.role.changed() => return changed.is_ok(),
                item = self.own.recv() => item,
                item = self.queue.recv() => item,
            };
            let Some(first) = first else { return false };
            let gathered = self.gather(first);
            if self.propose(&term, gathered, permit).await.is_err() {
                tracing::warn!(term = term.number, "raft takes no more proposals");
                return self.parts.role.changed().await.is_ok();
            }
        }
    }

    /// What waits, up to the limits of a batch; facts and orders before new submits.
    fn gather(&mut self, first: Item) -> Gathered {
        let mut gathering = Gathering::new(first);
        while gathering.has_room() {
            let next = self.own.try_recv().or_else(|_| self.queue.try_recv());
            let Ok(item) = next else { break };
            gathering.push(item);
        }
        gathering.finish()
    }

    async fn propose(
        &self,
        term: &Term,
        gathered: Gathered,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), crate::raft::ReadError> {
        let Gathered { commands, blobs, replies } = gathered;
        let proposal = stamped(term.led_ms(), blobs, commands);
        let written = move |written: Written| {
            answer(replies, written);
            drop(permit);
        };
        self.parts.node.propose(encode(&proposal), written).await
    }
}

type Replies = Vec<Option<oneshot::Sender<Result<Accepted, ProposeError>>>>;

/// Gives each parked reply the outcome of its command, or why there is none.
fn answer(replies: Replies, written: Written) {
    let (outcomes, error) = match written {
        Written::Applied(Reply { outcomes, .. }) => (outcomes, ProposeError::OutcomeUnknown),
        Written::NotLeader(leader) => (Vec::new(), ProposeError::NotLeader { leader }),
        Written::Unknown => (Vec::new(), ProposeError::OutcomeUnknown),
    };
    let mut outcomes = outcomes.into_iter();
    for reply in replies {
        let outcome = outcomes.next();
        let Some(reply) = reply else { continue };
        let accepted = outcome.map(|outcome| Accepted { outcome });
        // A caller that went away does not hear it.
        let _ = reply.send(accepted.ok_or_else(|| error.clone()));
    }
}

fn command(kind: v1::command::Kind) -> v1::Command {
    v1::Command { kind: Some(kind) }
}

fn stamped(led_ms: u64, blobs: Vec<v1::Blob>, commands: Vec<v1::Command>) -> v1::Proposal {
    v1::Proposal { level: proto::LEVEL, wall_ms: wall_ms(), led_ms, blobs, commands }
}

fn encode(proposal: &v1::Proposal) -> Arc<[u8]> {
    Arc::from(proposal.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(queue: mpsc::Sender<Item>, room: LogRoom) -> ProposerHandle {
        let disk = Disk { room: Box::new(move || room), data: "/data".to_owned() };
        let room = Arc::new(Semaphore::new(QUEUE_MAX_BYTES));
        ProposerHandle { queue, room, disk: Arc::new(disk) }
    }

    fn submit() -> v1::Command {
        command(v1::command::Kind::Submit(v1::SubmitCommand::default()))
    }

    /// Every command that a caller can send; the rest comes from the leader's duties, and waits.
    fn of_callers() -> [v1::Command; 5] {
        use v1::command::Kind;
        [
            Kind::Submit(v1::SubmitCommand::default()),
            Kind::Cancel(v1::CancelCommand::default()),
            Kind::Hold(v1::HoldCommand::default()),
            Kind::Suspend(v1::SuspendCommand::default()),
            Kind::Priority(v1::PriorityCommand::default()),
        ]
        .map(command)
    }

    #[tokio::test]
    async fn the_reserve_is_for_all_but_submits_and_without_it_everything_is_refused() {
        let data = || "/data".to_owned();
        for (room, submit, rest) in [
            (LogRoom::Enough, None, None),
            (LogRoom::Reserve, Some(ProposeError::DiskFull { data: data() }), None),
            (
                LogRoom::Used,
                Some(ProposeError::ReserveUsed { data: data() }),
                Some(ProposeError::ReserveUsed { data: data() }),
            ),
        ] {
            let Queues { handle: sender, mut queue, .. } = Queues::new();
            let handle = handle(sender, room);
            for (number, command) in of_callers().into_iter().enumerate() {
                let expected = if number == 0 { &submit } else { &rest };
                let refused = handle.enqueue(command.clone(), Vec::new()).await.err();
                assert_eq!(refused, *expected, "{room:?}: {command:?}");
                let queued = queue.try_recv().ok().map(Item::into_command);
                assert_eq!(queued, expected.is_none().then_some(command), "{room:?}");
            }
        }
    }

    #[tokio::test]
    async fn whoever_waits_when_nobody_can_tell_any_more_hears_that_it_is_unknown() {
        let Queues { handle: sender, mut queue, .. } = Queues::new();
        let handle = handle(sender, LogRoom::Enough);
        let pending = handle.enqueue(submit(), Vec::new()).await.unwrap();
        let item = queue.try_recv().unwrap();
        drop(queue);
        drop(item);
        assert_eq!(pending.outcome().await.err(), Some(ProposeError::OutcomeUnknown));
        let late = handle.enqueue(submit(), Vec::new()).await.err();
        assert_eq!(late, Some(ProposeError::Stopping), "nothing was proposed");
    }

    #[tokio::test]
    async fn each_reply_gets_the_outcome_of_its_own_command() {
        let (replies, answers): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel()).unzip();
        let mut replies: Replies = replies.into_iter().map(Some).collect();
        replies.insert(1, None); // the leader's own command
        let outcomes = vec![
            Outcome::AgentUp,
            Outcome::Configured,
            Outcome::Assigned,
            Outcome::TermStarted { count: 3 },
        ];
        answer(replies, Written::Applied(Reply { outcomes, ..Reply::default() }));
        let mut heard = Vec::new();
        for answer in answers {
            heard.push(answer.await.unwrap().unwrap().outcome);
        }
        let own = [Outcome::AgentUp, Outcome::Assigned, Outcome::TermStarted { count: 3 }];
        assert_eq!(heard, own);
    }
}
