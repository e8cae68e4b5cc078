//! Leases (design 3, Fences and retries): what a leader may promise a node, and when it may believe
//! that a node it cannot reach has ended an attempt by itself.
//!
//! A heartbeat is echoed only after a quorum confirmed this leader's term in a round that began
//! after the heartbeat came: a deposed or cut-off leader renews nothing. One round at a time serves
//! all agents; what comes meanwhile waits for the next.

use super::reign::Reign;
use super::turn::Turn;
use super::{SessionId, dispatch};
use crate::ledger::Grant;
use proto::mutants::Mutant;
use proto::v1::{AttemptRef, FencedCommand, HeartbeatAnswer, command, leader_message};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// A round without an answer is begun anew after this long, ms: many raft heartbeats, and still a
/// small part of any agent's patience.
const ROUND_MS: u64 = 1_000;

/// Leases are counted to their ends this often, ms: as exact as the slack that is added to each.
const LOOK_MS: u64 = 1_000;

/// What is added to a lease, beside a hundredth of it, before it is believed over, ms (design 3):
/// clock rates differ by less than 1 %, and ticks are not exact.
const SLACK_MS: u64 = 2_000;

/// Leases of one `Fenced`: one entry's worth.
const FENCED_MAX: usize = 1_024;

/// Heartbeats that are not echoed yet, and what the echoes promised.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// The newest round. Numbers are never used again, in no later term either: the answer to an
    /// older one proves nothing about what came since.
    round: u64,
    /// Since when its answer is awaited.
    since_ms: Option<u64>,
    /// Heartbeats that a round from this one on confirms, with their h.
    asked: BTreeMap<SessionId, (u64, u64)>,
    /// Newest h of those that came after the newest round had begun.
    next: BTreeMap<SessionId, u64>,
    /// When each agent was last sent a renewing answer, by agent id and the journal of the keeper
    /// behind that session: what renews a new keeper renews nothing of one whose directory is lost.
    renewed: BTreeMap<(Arc<str>, Arc<[u8]>), u64>,
    looked_ms: u64,
    /// A `Fenced` that is proposed and not applied, since when.
    fenced_ms: Option<u64>,
}

impl Leases {
    /// Those of a new term.
    pub fn after(round: u64) -> Self {
        Leases { round, ..Leases::default() }
    }

    /// The newest round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// A session is over: nobody is left to answer.
    pub fn forget(&mut self, id: SessionId) {
        self.asked.remove(&id);
        self.next.remove(&id);
    }

    /// Begins a round unless one is under way or nobody waits.
    fn begin(&mut self, turn: &mut Turn<'_>) {
        if self.since_ms.is_some() || (self.next.is_empty() && self.asked.is_empty()) {
            return;
        }
        self.round += 1;
        self.since_ms = Some(turn.now);
        for (id, h_ms) in std::mem::take(&mut self.next) {
            match self.asked.entry(id) {
                Entry::Vacant(free) => {
                    free.insert((self.round, h_ms));
                }
                // An older one of it is asked for, and any answer from now on confirms that.
                Entry::Occupied(_) => {
                    self.next.insert(id, h_ms);
                }
            }
        }
        turn.confirm(self.round);
    }
}

/// A heartbeat came: its echo waits for a round.
pub(super) fn heard(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, h_ms: u64) {
    if Mutant::DeposedRenews.active() {
        return echo(reign, turn, id, h_ms);
    }
    reign.leases.next.insert(id, h_ms);
    reign.leases.begin(turn);
}

/// A quorum confirmed that this node led at some moment after that round had begun.
pub(super) fn confirmed(reign: &mut Reign, turn: &mut Turn<'_>, round: u64) {
    let leases = &mut reign.leases;
    if round == leases.round {
        leases.since_ms = None;
    }
    let answered: Vec<(SessionId, u64)> = leases
        .asked
        .extract_if(.., |_, (from, _)| *from <= round)
        .map(|(id, (_, h))| (id, h))
        .collect();
    for (id, h_ms) in answered {
        echo(reign, turn, id, h_ms);
    }
    reign.leases.begin(turn);
}

fn echo(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, h_ms: u64) {
    let Some(session) = reign.sessions.get_mut(&id) else { return };
    session.send(turn, leader_message::Kind::Heartbeat(HeartbeatAnswer { h_ms }));
    let keeper = (session.join.agent_id.as_str().into(), session.join.journal_id.as_slice().into());
    reign.leases.renewed.insert(keeper, turn.now);
    // 0 is no time of its keeper: nothing can begin with it.
    let first = h_ms != 0 && !session.echoed;
    session.echoed |= first;
    if first && reign.lives.get(&session.join.agent_id).is_some_and(|life| !life.is_lost()) {
        // Leased runs waited for this.
        dispatch::all(reign, turn, id);
    }
}

/// Time passed: a round may be lost, and a lease over.
pub(super) fn tick(reign: &mut Reign, turn: &mut Turn<'_>) {
    let leases = &mut reign.leases;
    if leases.since_ms.is_some_and(|since| turn.now.saturating_sub(since) >= ROUND_MS) {
        leases.since_ms = None;
        leases.begin(turn);
    }
    if leases.fenced_ms.is_some_and(|since| turn.lost(since)) {
        leases.fenced_ms = None;
    }
    if turn.now.saturating_sub(leases.looked_ms) >= LOOK_MS {
        leases.looked_ms = turn.now;
        fence(reign, turn);
    }
}

/// A `Fenced` was applied: the rest may follow.
pub(super) fn applied(reign: &mut Reign, turn: &mut Turn<'_>) {
    if reign.leases.fenced_ms.take().is_some() {
        fence(reign, turn);
    }
}

/// Proposes the leases that are over, of the attempts that somebody waits for.
fn fence(reign: &mut Reign, turn: &mut Turn<'_>) {
    let Some(begun) = reign.begun else { return };
    if reign.leases.fenced_ms.is_some() {
        return;
    }
    let fences = turn.ledger.waiting().filter_map(|job| {
        let fence = job.fence()?;
        Some((AttemptRef { attempt: fence.attempt, ..job.attempt_id().to_wire() }, &fence.grant))
    });
    let left = turn.ledger.leftovers().map(|(attempt, left)| (attempt.to_wire(), &left.grant));
    let over = |grant: &Grant| {
        let keeper = (Arc::clone(&grant.agent), Arc::clone(&grant.journal));
        let renewed = reign.leases.renewed.get(&keeper).copied().unwrap_or_default();
        let first = if Mutant::LeaseForgotten.active() { 0 } else { begun.at_ms };
        let over = |lease| renewed.max(first).saturating_add(patience_ms(lease)) <= turn.now;
        grant.lease_ms.is_some_and(over)
    };
    let attempts = fences.chain(left).filter(|(_, grant)| over(grant)).map(|(attempt, _)| attempt);
    let attempts: Vec<AttemptRef> = attempts.take(FENCED_MAX).collect();
    if !attempts.is_empty() {
        reign.leases.fenced_ms = Some(turn.now);
        turn.propose(command::Kind::Fenced(FencedCommand { attempts }));
    }
}

/// How long after its last renewal a lease is over by any clock.
fn patience_ms(lease_ms: u64) -> u64 {
    lease_ms.saturating_add(lease_ms.div_ceil(100)).saturating_add(SLACK_MS)
}
