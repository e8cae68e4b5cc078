//! Facts on their way into the log (design 3, 5): in order, few at a time, acknowledged only when
//! applied and only to the session that sent them. What does not fit is dropped and asked for
//! again: the keeper's journal is the spool, the leader's memory is not.

use super::SessionId;
use super::reign::{Reign, protocol};
use super::session::Session;
use super::turn::{Refusal, Turn};
use crate::ledger::{Ledger, Outcome};
use prost::Message as _;
use proto::Seq;
use proto::mutants::Mutant;
use proto::v1::{Ack, Facts, FactsCommand, Join, Later, ResendFrom, command, leader_message};
use std::collections::VecDeque;

/// Commands of one session that may be proposed and not applied. More would not be faster, for they
/// are applied in order; fewer would leave the log idle between two.
const IN_FLIGHT_MAX: usize = 4;

/// Facts of one session that may wait for that: twice what an agent sends without an
/// acknowledgement, so that only a peer that keeps no window is ever cut off.
const WAITING_MAX_FACTS: usize = 16_384;

/// The same in bytes.
const WAITING_MAX_BYTES: usize = 16 << 20;

/// Neighbouring batches are merged into one command up to this many bytes: half of what the
/// proposer puts into one entry.
const MERGED_MAX_BYTES: usize = 128 << 10;

/// One session's facts.
#[derive(Debug, Default)]
pub(super) struct FactsFlow {
    /// Proposed and not applied, in order: last seq, and when it was proposed.
    in_flight: VecDeque<(u64, u64)>,
    waiting: VecDeque<Facts>,
    waiting_facts: usize,
    waiting_bytes: usize,
    mode: Mode,
}

/// Is anything missing between what was taken and what comes?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mode {
    /// No.
    #[default]
    Flowing,
    /// Something was dropped: drop the rest too until all that is in flight is answered.
    Draining,
    /// It was asked for again from here on: what begins behind it is older than the question.
    Expecting(u64),
}

/// A batch of an agent.
pub(super) fn take(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, batch: Facts) {
    let Some(session) = reign.sessions.get_mut(&id) else { return };
    if batch.journal_id != session.join.journal_id {
        return reign.expel(turn, id, protocol("facts of another journal than its Join named"));
    }
    if batch.to < batch.from {
        return reign.expel(turn, id, protocol("a batch of facts that ends before it begins"));
    }
    session.facts.push(batch);
    pump(session, turn);
}

/// A `FactsCommand` was applied.
pub(super) fn applied(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    command: &FactsCommand,
    outcome: &Outcome,
) {
    let Some(batch) = &command.facts else { return };
    let Some(session) = sender(reign, command) else { return };
    // Not of this session's own proposing: an older leader's, or taken for lost meanwhile.
    if !session.facts.answered(batch.to) {
        return;
    }
    match outcome {
        Outcome::FactsTaken { later, .. } => {
            session.reported.facts(batch);
            acknowledge(session, turn, batch, later);
        }
        Outcome::FactsGap { .. } => session.facts.drop_waiting(),
        Outcome::Rejected(rejection) => {
            let (id, reason) = (session.id, format!("its facts were refused: {rejection}"));
            return reign.expel(turn, id, Refusal { reason, fatal: false });
        }
        // An older incarnation's: its newest session will send them again.
        _ => {}
    }
    pump(session, turn);
}

/// A session begins. Its agent sends what nobody acknowledged; what this log lacks of the rest, being
/// an older copy of the one that did, has to be asked for.
pub(super) fn begin(session: &mut Session, turn: &mut Turn<'_>) {
    let high = high(turn.ledger, &session.join);
    if session.join.acked_seq > high {
        ask_from(session, turn, high.saturating_add(1));
    }
}

fn ask_from(session: &mut Session, turn: &mut Turn<'_>, from: u64) {
    session.facts.mode = Mode::Expecting(from);
    let journal_id = session.join.journal_id.clone();
    session.send(turn, leader_message::Kind::Resend(ResendFrom { journal_id, from }));
}

/// The stream has ended: propose all that was received, whatever is in flight.
pub(super) fn flush(session: &mut Session, turn: &mut Turn<'_>) {
    while let Some(batch) = session.facts.pop() {
        propose(session, turn, batch);
    }
}

/// Proposals that are never applied are asked for again.
pub(super) fn tick(session: &mut Session, turn: &mut Turn<'_>) {
    if session.facts.in_flight.front().is_some_and(|(_, since)| turn.lost(*since)) {
        session.facts.in_flight.clear();
        session.facts.drop_waiting();
    }
    pump(session, turn);
}

fn pump(session: &mut Session, turn: &mut Turn<'_>) {
    while session.facts.in_flight.len() < IN_FLIGHT_MAX {
        let Some(batch) = session.facts.pop() else { break };
        propose(session, turn, batch);
    }
    if session.facts.mode == Mode::Draining && session.facts.in_flight.is_empty() {
        let from = high(turn.ledger, &session.join).saturating_add(1);
        ask_from(session, turn, from);
    }
}

fn propose(session: &mut Session, turn: &mut Turn<'_>, batch: Facts) {
    session.facts.in_flight.push_back((batch.to, turn.now));
    if Mutant::AckBeforeApplied.active() {
        acknowledge(session, turn, &batch, &[]);
    }
    turn.propose(command::Kind::Facts(FactsCommand {
        agent_id: session.join.agent_id.clone(),
        incarnation: session.join.incarnation,
        facts: Some(batch),
    }));
}

fn sender<'r>(reign: &'r mut Reign, command: &FactsCommand) -> Option<&'r mut Session> {
    let id = reign.lives.get(&command.agent_id)?.session?;
    let session = reign.sessions.get_mut(&id)?;
    (session.join.incarnation == command.incarnation).then_some(session)
}

fn acknowledge(session: &Session, turn: &mut Turn<'_>, batch: &Facts, later: &[(Seq, String)]) {
    let journal_id = || session.join.journal_id.clone();
    // The keeper journals these anew before the acknowledgement lets it drop the old ones.
    for (seq, reason) in later {
        let (seq, reason) = (seq.0, reason.clone());
        session.send(
            turn,
            leader_message::Kind::Later(Later { journal_id: journal_id(), seq, reason }),
        );
    }
    session.send(turn, leader_message::Kind::Ack(Ack { journal_id: journal_id(), to: batch.to }));
}

/// Highest fact of that journal which the ledger took; 0 if it took none.
pub(super) fn high(ledger: &Ledger, join: &Join) -> u64 {
    let agent = ledger.agent(&join.agent_id);
    agent.filter(|agent| **agent.journal_id() == *join.journal_id).map_or(0, |a| a.high().0)
}

impl FactsFlow {
    /// Nothing on its way: what the ledger has is all that came.
    pub fn idle(&self) -> bool {
        self.in_flight.is_empty() && self.waiting.is_empty()
    }

    /// Everything that was received is proposed or applied.
    pub fn complete(&self) -> bool {
        self.mode == Mode::Flowing && self.waiting.is_empty()
    }

    fn push(&mut self, batch: Facts) {
        match self.mode {
            Mode::Draining => return,
            Mode::Expecting(from) if batch.from > from => return,
            Mode::Expecting(_) | Mode::Flowing => self.mode = Mode::Flowing,
        }
        self.waiting_facts += weight(&batch);
        self.waiting_bytes += batch.encoded_len();
        self.waiting.push_back(batch);
        if self.waiting_facts > WAITING_MAX_FACTS || self.waiting_bytes > WAITING_MAX_BYTES {
            self.drop_waiting();
        }
    }

    /// The oldest batch, with its neighbours as far as they fit into one command.
    fn pop(&mut self) -> Option<Facts> {
        let mut merged = self.pop_one()?;
        let mut bytes = merged.encoded_len();
        while let Some(next) = self.waiting.front() {
            bytes += next.encoded_len();
            if next.from != merged.to.saturating_add(1) || bytes > MERGED_MAX_BYTES {
                break;
            }
            let Some(next) = self.pop_one() else { break };
            merged.to = next.to;
            merged.facts.extend(next.facts);
        }
        Some(merged)
    }

    fn pop_one(&mut self) -> Option<Facts> {
        let batch = self.waiting.pop_front()?;
        self.waiting_facts -= weight(&batch);
        self.waiting_bytes -= batch.encoded_len();
        Some(batch)
    }

    fn drop_waiting(&mut self) {
        self.waiting.clear();
        (self.waiting_facts, self.waiting_bytes) = (0, 0);
        self.mode = Mode::Draining;
    }

    /// Takes out the proposal that ends at `to`, and those before it, which were lost.
    fn answered(&mut self, to: u64) -> bool {
        let Some(at) = self.in_flight.iter().position(|(last, _)| *last == to) else {
            return false;
        };
        self.in_flight.drain(..=at);
        true
    }
}

/// Facts of a batch; one without any still takes room.
fn weight(batch: &Facts) -> usize {
    batch.facts.len().max(1)
}
