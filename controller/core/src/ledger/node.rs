//! A node as the ledger knows it: its agent, the session that counts, its journal, its troubles.

use super::drain::Drained;
use super::memory::Edits;
use proto::{AttemptId, JobId, OrderId, Seq, v1};
use std::collections::BTreeSet;
use std::sync::Arc;

/// An agent that joined at least once.
#[derive(Clone, PartialEq, Debug)]
pub struct Agent {
    pub(super) id: Arc<str>,
    pub(super) join: v1::Join,
    pub(super) journal: Arc<[u8]>,
    pub(super) boot: Arc<[u8]>,
    pub(super) high: Seq,
    pub(super) up_order: OrderId,
    pub(super) session: Session,
    pub(super) since_wall_ms: u64,
    pub(super) judging: Option<Judging>,
    pub(super) strays: Vec<AttemptId>,
    pub(super) fault: Option<NodeFault>,
    pub(super) confirms: Edits,
    pub(super) drained: Option<Drained>,
    pub(super) facts_lost: Option<FactsLost>,
    pub(super) bygone: Option<Bygone>,
    /// The next id when the first term since its newest join began. If an older copy of the log was
    /// put in place since that join, every id below was given before the copy was made.
    pub(super) ids_then: Option<JobId>,
}

/// A journal was acknowledged further than this log ever did: it is an older copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bygone {
    /// Facts below may be about attempts of the forgotten part.
    pub below: Seq,
    /// How far it was acknowledged when that was found.
    pub acked: Seq,
    /// Order id of the join that found it.
    pub order: OrderId,
}

impl Bygone {
    pub fn freeze(&self) -> v1::ImageBygone {
        v1::ImageBygone { below: self.below.0, order: self.order.0, acked: self.acked.0 }
    }

    pub fn thaw(image: &v1::ImageBygone) -> Bygone {
        let (below, acked) = (Seq(image.below), Seq(image.acked));
        Bygone { below, acked, order: OrderId(image.order) }
    }
}

/// Facts of an agent's journal that are gone for good: some log acknowledged them, so the keeper let
/// go of them, and this log never had them. It is an older copy of that one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FactsLost {
    /// The first one.
    pub from: Seq,
    /// The last one.
    pub to: Seq,
    /// No manifest of a join was judged since: what that lacks may have run and ended, and its finish
    /// may be one of these.
    pub unjudged: bool,
}

/// Where the agent's newest session stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Session {
    /// Joined; its manifest is not judged yet, so it gets no order.
    Joining,
    /// Joined and judged: it may get orders.
    Up,
    /// Over, or nothing is heard of it.
    Down(DownWhy),
}

/// Why an agent is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownWhy {
    /// Its process died: the connection was closed without a goodbye.
    Died,
    /// Nothing was heard for `heartbeat_timeout`.
    Silent,
    /// It said that it restarts or reconnects.
    Goodbye,
    /// It left after a drain.
    Left,
    /// A new leader has not heard of it yet.
    NewTerm,
}

/// A failure that was the node's: it is kept out of placement and tried again with back-off.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeFault {
    /// What failed last.
    pub failure: v1::StartFailure,
    /// How often in a row.
    pub count: u32,
    /// Kept out until this led time, ms.
    pub until_led_ms: u64,
    /// When it failed last, wall ms.
    pub wall_ms: u64,
    /// Order id of the command that told of the newest one that counted: what was assigned later
    /// was started later.
    pub order: OrderId,
}

impl NodeFault {
    /// Why its step failed. The node's own words may begin with the step, which is told beside them.
    pub fn words(&self) -> String {
        let v1::StartFailure { step, errno, message, .. } = &self.failure;
        let rest = message.strip_prefix(step.as_str()).filter(|rest| rest.starts_with([':', ' ']));
        match rest.unwrap_or(message).trim_start_matches([':', ' ']) {
            "" => format!("errno {errno}"),
            words => words.to_owned(),
        }
    }
}

/// A manifest whose pages are coming in.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Judging {
    pub at_join: bool,
    pub next_page: u64,
    pub seen: BTreeSet<AttemptId>,
}

impl DownWhy {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            DownWhy::Died => "its agent's process died",
            DownWhy::Silent => "silent",
            DownWhy::Goodbye => "its agent said goodbye",
            DownWhy::Left => "it left",
            DownWhy::NewTerm => "not heard since the leader changed",
        }
    }
}

impl Agent {
    /// Its stable id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.join.name
    }

    /// Its newest session's number.
    pub fn incarnation(&self) -> u64 {
        self.join.incarnation
    }

    /// The random id of its process.
    pub fn process_id(&self) -> &[u8] {
        &self.join.process_id
    }

    /// The id of its keeper's journal.
    pub fn journal_id(&self) -> &Arc<[u8]> {
        &self.journal
    }

    /// The node's boot id at its newest join; empty: not told.
    pub fn boot_id(&self) -> &Arc<[u8]> {
        &self.boot
    }

    /// Highest fact of that journal that the ledger took.
    pub fn high(&self) -> Seq {
        self.high
    }

    /// Facts that were found to be gone when its newest session joined.
    pub fn facts_lost(&self) -> Option<FactsLost> {
        self.facts_lost
    }

    /// Whether its newest join found out that this log is an older copy of one that acknowledged
    /// more of its journal.
    pub fn shows_older_log(&self) -> bool {
        self.bygone.is_some_and(|bygone| bygone.order == self.up_order)
    }

    /// Order id of the join of its newest session: attempts assigned before it are judged.
    pub fn up_order(&self) -> OrderId {
        self.up_order
    }

    /// Its newest join.
    pub fn join(&self) -> &v1::Join {
        &self.join
    }

    /// Cpus it offers.
    pub fn cpus(&self) -> u32 {
        self.join.resources.as_ref().map_or(0, |r| r.cpus)
    }

    /// Memory it offers, in bytes.
    pub fn mem_bytes(&self) -> u64 {
        self.join.resources.as_ref().map_or(0, |r| r.mem_bytes)
    }

    /// GPUs it offers.
    pub fn gpus(&self) -> u32 {
        self.join.resources.as_ref().map_or(0, |r| r.gpus)
    }

    /// How much it offers of a named consumable.
    pub fn offers(&self, name: &str) -> u64 {
        let resources = self.join.resources.as_ref();
        resources.and_then(|r| r.resources.get(name)).copied().unwrap_or(0)
    }

    /// Named consumables that it offers.
    pub fn resources(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.join.resources.iter().flat_map(|r| &r.resources);
        all.map(|(name, amount)| (name.as_str(), *amount))
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.join.resources.as_ref()?.labels.get(key).map(String::as_str)
    }

    /// Where its newest session stands.
    pub fn session(&self) -> Session {
        self.session
    }

    /// Since when, wall ms.
    pub fn since_wall_ms(&self) -> u64 {
        self.since_wall_ms
    }

    /// Who keeps new tasks from it, and why.
    pub fn drained(&self) -> Option<&Drained> {
        self.drained.as_ref()
    }

    /// Attempts it has of which the ledger knows nothing, of its newest manifest.
    pub fn strays(&self) -> &[AttemptId] {
        &self.strays
    }

    /// The fault that keeps it out of placement, if its time is not over.
    pub fn kept_out(&self, led_ms: u64) -> Option<&NodeFault> {
        self.fault.as_ref().filter(|fault| fault.until_led_ms > led_ms)
    }

    /// Its last fault, until something ran there again.
    pub fn fault(&self) -> Option<&NodeFault> {
        self.fault.as_ref()
    }
}
