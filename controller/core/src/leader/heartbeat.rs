//! Heartbeats: the echo, the node's own words, and the digest that finds a lost finish while
//! everybody stayed connected (design 3).

use super::SessionId;
use super::facts;
use super::lease;
use super::manifest;
use super::reign::Reign;
use super::session::Session;
use super::turn::Turn;
use crate::ledger::{Job, Ledger, State};
use proto::OrderId;
use proto::digest::Digest;
use proto::mutants::Mutant;
use proto::v1::{Heartbeat, Phase};

/// Mismatches in a row that make the leader ask: one alone may be a change that is on its way.
const MISMATCHES_MAX: u32 = 2;

/// Heartbeats that could not be compared, in a row: a busy node may never stand still, and must not
/// hide a difference by that.
const BLIND_MAX: u32 = 3;

/// How the digests of one session compared lately.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// The order that the agent's O reaches once nothing is under way: the last one sent, or the O
    /// of a manifest that was asked for after that.
    last_order: u64,
    /// `last_order` when the manifest was asked for.
    when_asked: u64,
    mismatches: u32,
    blind: u32,
    /// An order to run that the newest manifest lacked, though it was sent.
    lacked: Option<OrderId>,
}

impl Comparison {
    /// An order was sent.
    pub fn sent(&mut self, order: u64) {
        self.last_order = self.last_order.max(order);
    }

    /// A manifest was asked for: what was seen before counts no longer.
    pub fn asked(&mut self) {
        (self.mismatches, self.blind) = (0, 0);
        self.when_asked = self.last_order;
    }

    /// It was judged with this O. Whatever was sent before the question has been taken by then.
    pub fn judged(&mut self, last_order: u64) {
        if self.last_order == self.when_asked {
            self.last_order = last_order;
        }
    }

    /// It was judged, and lacked that order to run, which is above its O: it may be under way. True if
    /// the one before it lacked the same: it was sent before this one was asked for.
    pub fn lacks(&mut self, order: Option<OrderId>) -> bool {
        let before = std::mem::replace(&mut self.lacked, order);
        before.is_some() && before == order && !Mutant::LostRunWaits.active()
    }

    /// Notes one heartbeat: `None` if it could not be compared. True if it is time to ask.
    fn note(&mut self, equal: Option<bool>) -> bool {
        match equal {
            Some(true) => (self.mismatches, self.blind) = (0, 0),
            Some(false) => (self.mismatches, self.blind) = (self.mismatches + 1, 0),
            None => self.blind += 1,
        }
        self.mismatches >= MISMATCHES_MAX || self.blind >= BLIND_MAX
    }
}

/// A heartbeat of the agent's newest session.
pub(super) fn take(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    id: SessionId,
    agent: &str,
    beat: Heartbeat,
) {
    let Some(session) = reign.sessions.get_mut(&id) else { return };
    let ask = wants_manifest(session, turn.ledger, &beat);
    lease::heard(reign, turn, id, beat.h_ms);
    if let Some(life) = reign.lives.get_mut(agent) {
        // An agent that has not heard its keeper knows nothing of its disk.
        let full = if beat.keeper_answers { beat.disk_full } else { life.disk_full };
        // Orders to it would be dropped there.
        let keeperless = !beat.keeper_answers && !beat.problem.is_empty();
        let refused = life.refuses().is_some();
        life.disk_full = full;
        life.keeperless = keeperless;
        life.takes_no_runs = beat.takes_no_runs;
        life.problem = beat.problem;
        if refused && life.refuses().is_none() {
            reign.placing.look_again();
        }
    }
    if ask {
        manifest::ask(reign, turn, id);
    }
}

fn wants_manifest(session: &mut Session, ledger: &Ledger, beat: &Heartbeat) -> bool {
    if !beat.keeper_answers {
        return false;
    }
    if session.manifest.pending() {
        return session.manifest.overdue();
    }
    if Mutant::DigestIgnored.active() {
        return false;
    }
    let equal = comparable(session, ledger, beat)
        .then(|| digest_of(ledger, session).is_some_and(|digest| digest.value() == beat.digest));
    session.comparison.note(equal)
}

/// Both sides describe the same point: F is applied, and O is the last order that was sent.
fn comparable(session: &Session, ledger: &Ledger, beat: &Heartbeat) -> bool {
    if Mutant::DigestOutOfOrder.active() {
        return true;
    }
    session.facts.idle()
        && facts::high(ledger, &session.join) == beat.last_seq
        && session.comparison.last_order == beat.last_order
}

/// What the node must hold for the ledger; `None` if a task is unknown that it may hold.
fn digest_of(ledger: &Ledger, session: &Session) -> Option<Digest> {
    ledger
        .held_by(&session.join.agent_id)
        .map(|job| Some((job.attempt_id(), phase(job)?)))
        .collect()
}

fn phase(job: &Job) -> Option<Phase> {
    match job.state() {
        State::Dispatched(_) => Some(Phase::Accepted),
        State::Running(_) => Some(Phase::Running),
        State::Suspended(_) => Some(Phase::Suspended),
        _ => None,
    }
}
