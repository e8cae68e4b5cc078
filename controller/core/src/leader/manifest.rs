//! Manifests on their way into the log (design 3, "Manifest at every join"): page by page, only when
//! the facts they rest on are applied; and what follows from the verdicts.

use super::SessionId;
use super::dispatch;
use super::facts;
use super::reign::{Reign, protocol};
use super::session::Session;
use super::storm::Gate;
use super::turn::{Refusal, Turn};
use crate::ledger::{Ledger, ManifestOutcome, Outcome, Rejection, State};
use proto::mutants::Mutant;
use proto::v1::{
    ManifestCommand, ManifestItem, ManifestPage, Phase, SendManifest, command, leader_message,
};
use proto::{AttemptId, OrderId};
use std::collections::{BTreeSet, VecDeque};

/// Most attempts in one page (design 3): one page is one entry.
const PAGE_ITEMS_MAX: usize = 1_000;

/// Pages of one manifest that may wait: a million attempts on one node.
const PAGES_MAX: usize = 1_000;

/// Heartbeats without any page after which the manifest is asked for again.
const PATIENCE_BEATS: u32 = 3;

/// One session's manifest, as far as it is asked for.
#[derive(Debug)]
pub(super) struct ManifestFlow {
    /// The `SendManifest` that it answers; 0: the Join.
    nonce: u64,
    /// No manifest of this session is judged yet: every attempt assigned before the Join is, for
    /// no order of an older session can still be taken.
    at_join: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// None is asked for.
    Idle,
    /// Asked for, and not judged to its end.
    Coming {
        /// Received and not judged; the first may be in flight.
        pages: VecDeque<ManifestPage>,
        /// Number of that first one.
        next: u64,
        in_flight: Option<u64>,
        /// Attempts of the pages judged so far: they live, or their ends are on the way.
        listed: BTreeSet<AttemptId>,
        /// Heartbeats since it was asked for or the last page came.
        beats: u32,
    },
}

impl ManifestFlow {
    /// The one that every Join is followed by.
    pub fn of_the_join() -> Self {
        ManifestFlow { nonce: 0, at_join: true, stage: Stage::coming() }
    }

    /// Is one asked for, and not judged to its end?
    pub fn pending(&self) -> bool {
        matches!(self.stage, Stage::Coming { .. })
    }

    /// A heartbeat came. True if one that was asked for is overdue.
    pub fn overdue(&mut self) -> bool {
        let Stage::Coming { pages, beats, in_flight, .. } = &mut self.stage else { return false };
        *beats += 1;
        pages.is_empty() && in_flight.is_none() && *beats > PATIENCE_BEATS
    }

    /// Can a page be judged now?
    fn wants(&self, high: u64) -> bool {
        let Stage::Coming { pages, in_flight, .. } = &self.stage else { return false };
        let early = Mutant::FactsBeforeManifest.active();
        in_flight.is_none() && pages.front().is_some_and(|page| page.last_seq <= high || early)
    }

    /// The page that can be judged now, if one is at hand and none is in flight.
    fn ready(&mut self, high: u64, now: u64) -> Option<(u64, bool, ManifestPage)> {
        let at_join = self.at_join;
        let Stage::Coming { pages, next, in_flight, .. } = &mut self.stage else { return None };
        let page = pages.front().filter(|page| {
            in_flight.is_none() && page.last_seq <= high || Mutant::FactsBeforeManifest.active()
        })?;
        *in_flight = Some(now);
        Some((*next, at_join, page.clone()))
    }

    /// The first page was judged: it and its number go. `None` if that page is of an older manifest.
    fn judged_page(&mut self, asked: u64, number: u64) -> Option<ManifestPage> {
        let Stage::Coming { pages, next, in_flight, .. } = &mut self.stage else { return None };
        if in_flight.is_none() || (self.nonce, *next) != (asked, number) {
            return None;
        }
        *in_flight = None;
        *next += 1;
        pages.pop_front()
    }
}

impl Stage {
    fn coming() -> Self {
        Stage::Coming {
            pages: VecDeque::new(),
            next: 0,
            in_flight: None,
            listed: BTreeSet::new(),
            beats: 0,
        }
    }
}

/// Asks for a full manifest. What came of an earlier one is void.
pub(super) fn ask(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId) {
    let nonce = reign.next_nonce();
    let Some(session) = reign.sessions.get_mut(&id) else { return };
    session.manifest.nonce = nonce;
    session.manifest.stage = Stage::coming();
    session.comparison.asked();
    session.send(turn, leader_message::Kind::SendManifest(SendManifest { nonce }));
}

/// A page of an agent. One that answers an older question is void.
pub(super) fn take(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, page: ManifestPage) {
    let Some(session) = reign.sessions.get_mut(&id) else { return };
    let flow = &mut session.manifest;
    let Stage::Coming { pages, beats, .. } = &mut flow.stage else { return };
    if page.asked != flow.nonce {
        return;
    }
    if page.items.len() > PAGE_ITEMS_MAX || pages.len() >= PAGES_MAX {
        let what = "a manifest of more than 1,000 attempts a page or 1,000 pages";
        return reign.expel(turn, id, protocol(what));
    }
    *beats = 0;
    pages.push_back(page);
    advance(&mut reign.pages, session, turn);
    pump(reign, turn);
}

/// The next page wants a place in the log, if the facts it rests on are applied.
pub(super) fn advance(gate: &mut Gate, session: &Session, turn: &Turn<'_>) {
    if session.manifest.wants(facts::high(turn.ledger, &session.join)) {
        gate.queue(session.id);
    }
}

/// Proposes pages while there are places for them, one of each session in turn.
pub(super) fn pump(reign: &mut Reign, turn: &mut Turn<'_>) {
    while let Some(id) = reign.pages.next() {
        let Some(session) = reign.sessions.get_mut(&id) else { continue };
        if let Some(asked) = propose(session, turn) {
            let flight = (session.join.agent_id.clone(), session.join.incarnation, asked);
            reign.pages.takes(flight, id, turn.now);
        }
    }
}

/// The manifest of which a page is proposed now.
fn propose(session: &mut Session, turn: &mut Turn<'_>) -> Option<u64> {
    let high = facts::high(turn.ledger, &session.join);
    let (number, at_join, page) = session.manifest.ready(high, turn.now)?;
    turn.propose(command::Kind::Manifest(ManifestCommand {
        agent_id: session.join.agent_id.clone(),
        incarnation: session.join.incarnation,
        journal_id: session.join.journal_id.clone(),
        items: page.items,
        last: page.last,
        at_join,
        last_order: page.last_order,
        last_seq: page.last_seq,
        page: number,
        asked: page.asked,
    }));
    Some(page.asked)
}

/// Was the proposal of a page lost? Then the whole manifest has to be asked for anew: proposed twice,
/// an old page could be judged after what it led to, and end a task that runs by now.
pub(super) fn lost(session: &Session, turn: &Turn<'_>) -> bool {
    match &session.manifest.stage {
        Stage::Coming { in_flight: Some(since), .. } => turn.lost(*since),
        _ => false,
    }
}

/// A `ManifestCommand` was applied, as the command with that order id.
pub(super) fn applied(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    order: OrderId,
    command: &ManifestCommand,
    outcome: &Outcome,
) {
    reign.pages.lands(&(command.agent_id.clone(), command.incarnation, command.asked));
    verdicts(reign, turn, order, command, outcome);
    pump(reign, turn);
}

fn verdicts(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    order: OrderId,
    command: &ManifestCommand,
    outcome: &Outcome,
) {
    let Some(id) = reign.lives.get(&command.agent_id).and_then(|life| life.session) else { return };
    let Some(session) = reign.sessions.get_mut(&id) else { return };
    if session.join.incarnation != command.incarnation {
        return;
    }
    let Some(page) = session.manifest.judged_page(command.asked, command.page) else { return };
    match outcome {
        Outcome::Manifest(verdicts) => judged(reign, turn, id, order, &page, verdicts),
        // The facts it rests on are on their way again: it stays the next page.
        Outcome::Rejected(Rejection::FactsNotApplied { .. }) => {
            session.manifest.put_back(page);
        }
        Outcome::Rejected(rejection) => {
            let reason = format!("its manifest was refused: {rejection}");
            reign.expel(turn, id, Refusal { reason, fatal: false });
        }
        _ => {
            let reason = "its manifest is out of date; join again".to_string();
            reign.expel(turn, id, Refusal { reason, fatal: false });
        }
    }
}

fn judged(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    id: SessionId,
    order: OrderId,
    page: &ManifestPage,
    verdicts: &ManifestOutcome,
) {
    if let Some(newer) = verdicts.newer.first() {
        let reason = format!("the node holds attempt {newer}, which this leader does not know yet");
        return reign.expel(turn, id, Refusal { reason, fatal: false });
    }
    let Some(session) = reign.sessions.get_mut(&id) else { return };
    session.manifest.note(&page.items);
    session.reported.listed(&page.items, page.last_order);
    dispatch::fence(session, turn, order, &verdicts.kill);
    for attempt in &verdicts.resend {
        session.reported.never_arrived(*attempt);
    }
    if page.last {
        session.reported.keep_only(|attempt| session.manifest.lists(attempt), page.last_order);
        let lacked = lacked(turn.ledger, session, page.last_order);
        if session.comparison.lacks(lacked) {
            let reason = "an order to run got lost inside the node; join again".to_string();
            return reign.expel(turn, id, Refusal { reason, fatal: false });
        }
        session.comparison.judged(page.last_order);
        session.manifest.at_join = false;
        session.manifest.stage = Stage::Idle;
        session.judged = true;
        reign.placing.look_again();
        dispatch::all(reign, turn, id);
    } else {
        advance(&mut reign.pages, session, turn);
    }
}

/// The oldest order to run that was sent in this session, and that the manifest neither lists nor
/// judges: it is above its O.
fn lacked(ledger: &Ledger, session: &Session, last_order: u64) -> Option<OrderId> {
    ledger.held_by(&session.join.agent_id).find_map(|job| {
        let State::Dispatched(grant) = job.state() else { return None };
        let attempt = job.attempt_id();
        let sent = grant.order > OrderId(last_order) && session.reported.knows(attempt);
        (sent && !session.manifest.lists(attempt)).then_some(grant.order)
    })
}

impl ManifestFlow {
    fn put_back(&mut self, page: ManifestPage) {
        if let Stage::Coming { pages, next, .. } = &mut self.stage {
            *next -= 1;
            pages.push_front(page);
        }
    }

    fn note(&mut self, items: &[ManifestItem]) {
        if let Stage::Coming { listed, .. } = &mut self.stage {
            let known = items.iter().filter(|item| item.phase() != Phase::Unspecified);
            listed.extend(known.filter_map(|i| AttemptId::from_wire(i.attempt.as_ref()).ok()));
        }
    }

    fn lists(&self, attempt: AttemptId) -> bool {
        match &self.stage {
            Stage::Coming { listed, .. } => listed.contains(&attempt),
            Stage::Idle => false,
        }
    }
}

/// The attempt of an item that has not ended.
pub(super) fn living(item: &ManifestItem) -> Option<AttemptId> {
    let live = !matches!(item.phase(), Phase::Ended | Phase::Unspecified);
    AttemptId::from_wire(item.attempt.as_ref()).ok().filter(|_| live)
}
