//! The state of an agent and its one entry point, [`AgentCore::step`].

use crate::backoff::Backoff;
use crate::event::{Action, Event, Saved, SessionNo, Target};
use crate::facts::FactRelay;
use crate::join::Link;
use crate::keeper::KeeperView;
use crate::later::PutOff;
use crate::manifest::Asks;
use crate::orders::Orders;
use crate::out::Out;
use crate::upgrade::Upgrade;
use proto::v1;

/// What does not change while the agent runs.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Node name.
    pub name: String,
    /// Random, new at each start of the process.
    pub process_id: Vec<u8>,
    /// Of this program.
    pub version: String,
    /// Absolute path of this program's file, for an older keeper to be replaced by; empty: not known.
    pub program: Vec<u8>,
    /// What the node offers; `limits` is filled in from the keeper.
    pub resources: v1::NodeResources,
    /// Milliseconds between heartbeats.
    pub heartbeat_interval_ms: u64,
    /// Milliseconds between SIGTERM and SIGKILL where the job says nothing.
    pub kill_grace_ms: u64,
    /// Bytes of one output in the run directory that are kept; 0: all.
    pub output_max_bytes: u64,
    /// Absolute path of the directory of run files.
    pub runs_dir: Vec<u8>,
    /// User and group that the agent itself runs as.
    pub own_uid: u32,
    /// See `own_uid`.
    pub own_gid: u32,
    /// Whether an agent of root runs jobs of root (design 5).
    pub allow_root_jobs: bool,
    /// A random number of the shell; jitter follows from it.
    pub seed: u64,
}

/// Most that one step may count as silence of the peer: time in which this process stood still is
/// no proof against anybody (design 5).
const STALL_MAX_MS: u64 = 1_000;

/// Longest wait between dials; an agent whose beats are rarer than that may wait one beat.
const BACKOFF_CEILING_MS: u64 = 10_000;

/// The pure agent: the shell feeds it events in the order in which they happen.
#[derive(Debug)]
pub struct AgentCore {
    pub(crate) config: CoreConfig,
    pub(crate) saved: Saved,
    pub(crate) link: Link,
    pub(crate) keeper: Option<KeeperView>,
    /// Why there is no keeper, or what is wrong with the one that there is; empty: nothing.
    pub(crate) keeper_trouble: String,
    pub(crate) relay: FactRelay,
    pub(crate) put_off: PutOff,
    /// Exits that the keeper could not journal; at most one an attempt it holds.
    pub(crate) unjournalled: Vec<v1::FinishFact>,
    pub(crate) orders: Orders,
    pub(crate) out_of_place: Out,
    pub(crate) asks: Asks,
    pub(crate) backoff: Backoff,
    /// Dials so far: numbers the sessions and turns the list of controllers.
    pub(crate) dials: u64,
    /// Leader hints followed in a row without a welcome.
    pub(crate) redirects: u32,
    /// The last trouble told, so that a retry loop tells each one once.
    pub(crate) told: String,
    /// Of the controller, once known.
    pub(crate) heartbeat_timeout_ms: u64,
    pub(crate) load_permille: u32,
    pub(crate) sweep_at_ms: Option<u64>,
    pub(crate) upgrade: Upgrade,
    last_step_ms: Option<u64>,
    pub(crate) out: Vec<Action>,
}

impl AgentCore {
    /// An agent that has not dialled yet; its first step dials at once.
    pub fn new(config: CoreConfig, saved: Saved) -> Self {
        let ceiling_ms = config.heartbeat_interval_ms.min(BACKOFF_CEILING_MS);
        AgentCore {
            backoff: Backoff::new(ceiling_ms, config.seed),
            config,
            saved,
            link: Link::Apart { dial_at_ms: 0, target: Target::Listed(0) },
            keeper: None,
            keeper_trouble: String::new(),
            relay: FactRelay::default(),
            put_off: PutOff::default(),
            unjournalled: Vec::new(),
            orders: Orders::default(),
            out_of_place: Out::default(),
            asks: Asks::default(),
            dials: 0,
            redirects: 0,
            told: String::new(),
            // The controller's default until it says its own (design 7).
            heartbeat_timeout_ms: 30_000,
            load_permille: 0,
            sweep_at_ms: None,
            upgrade: Upgrade::default(),
            last_step_ms: None,
            out: Vec::new(),
        }
    }

    /// One event at `now_ms` (monotonic, never going back); what to do about it, in order.
    pub fn step(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        if matches!(self.link, Link::Ended) {
            return Vec::new();
        }
        self.count_silence(now_ms);
        match event {
            Event::Tick { load_permille } => self.load_permille = load_permille,
            Event::FromKeeper(event) => self.hear_keeper(event, now_ms),
            Event::KeeperLost => self.keeper_lost(),
            Event::KeeperTrouble(why) => self.keeper_in_trouble(why, now_ms),
            Event::Directory(why) => self.directory_is(why, now_ms),
            Event::Connected { session, address } => self.connected(session, address, now_ms),
            Event::Disconnected { session, why } => self.disconnected(session, &why, now_ms),
            Event::FromLeader { session, message } => self.hear_leader(session, message, now_ms),
            Event::UserLookedUp { uid, user } => self.user_looked_up(uid, user, now_ms),
            Event::NotSaved { why } => self.not_saved(&why, now_ms),
            Event::Stop => self.stop(now_ms),
        }
        self.run_due(now_ms);
        std::mem::take(&mut self.out)
    }

    /// When the next step is due at the latest, whatever happens; `None`: nothing is scheduled.
    pub fn next_due_ms(&self) -> Option<u64> {
        let link = match &self.link {
            Link::Apart { dial_at_ms, .. } => Some(*dial_at_ms),
            Link::Joined(session) => Some(session.next_beat_ms),
            Link::Leaving { until_ms, .. } => Some(*until_ms),
            Link::Dialling { .. } | Link::Unready { .. } | Link::Joining(_) | Link::Ended => None,
        };
        let ping = self.keeper.as_ref().map(KeeperView::next_ping_ms);
        let put_off = self.put_off.due_ms();
        let upgrade = self.upgrade_due_ms();
        link.into_iter().chain(ping).chain(put_off).chain(self.sweep_at_ms).chain(upgrade).min()
    }

    /// Identity and highest epoch, as last ordered to be saved.
    pub fn saved(&self) -> &Saved {
        &self.saved
    }

    fn count_silence(&mut self, now_ms: u64) {
        let since = self.last_step_ms.replace(now_ms).unwrap_or(now_ms);
        let passed = now_ms.saturating_sub(since).min(STALL_MAX_MS);
        if let Link::Joining(session) | Link::Joined(session) = &mut self.link {
            session.silent_ms = session.silent_ms.saturating_add(passed);
        }
    }

    fn run_due(&mut self, now_ms: u64) {
        self.dial_if_due(now_ms);
        self.ping_keeper_if_due(now_ms);
        self.tell_put_off_if_due(now_ms);
        self.sweep_if_due(now_ms);
        self.ask_for_upgrade_if_due(now_ms);
        self.beat_if_due(now_ms);
        self.give_up_if_silent(now_ms);
        self.leave_if_due(now_ms);
    }

    pub(crate) fn tell_leader(&mut self, session: SessionNo, kind: v1::agent_message::Kind) {
        let message = v1::AgentMessage { kind: Some(kind) };
        self.out.push(Action::ToLeader { session, message });
    }

    pub(crate) fn tell_keeper(&mut self, kind: v1::keeper_request::Kind) {
        self.out.push(Action::ToKeeper(v1::KeeperRequest { kind: Some(kind) }));
    }

    /// Warns unless the last warning said the same.
    pub(crate) fn warn_once(&mut self, text: String) {
        if self.told != text {
            self.out.push(Action::Warn(text.clone()));
            self.told = text;
        }
    }
}
