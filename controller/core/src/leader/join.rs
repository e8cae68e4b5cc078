//! Joins (design 5, Session): who may join, the cloned-directory rule, and the newest session wins.

use super::SessionId;
use super::facts;
use super::life::{Life, Pulse};
use super::liveness;
use super::newcomer::{BACKLOG_MAX, BACKLOG_MAX_BYTES, NEWCOMERS_MAX, Newcomer, Stage};
use super::reign::{Reign, protocol};
use super::session::Session;
use super::storm::Flight;
use super::turn::{Refusal, Turn};
use crate::ledger::{Ledger, Outcome, Rejection};
use proto::mutants::Mutant;
use proto::v1::{AgentMessage, AgentUpCommand, Join, Ping, Welcome, command, leader_message};

/// Longest agent id, process id or journal id, in bytes: they are random values of 16 bytes, in
/// text at most.
const ID_MAX_BYTES: usize = 64;

/// Longest node name, in bytes: a host name is at most 253.
const NAME_MAX_BYTES: usize = 255;

/// A controller serves agents of this many protocol versions around its own (design 5, Versions).
const PROTOCOL_SPREAD: u32 = 1;

/// The answer of a controller that does not lead.
pub(super) fn not_leading() -> Refusal {
    Refusal {
        reason: "this controller does not lead; try again or another one".into(),
        fatal: false,
    }
}

/// A stream with its Join.
pub(super) fn opened(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, join: Join) {
    if reign.newcomers.len() >= NEWCOMERS_MAX {
        let reason = format!("{NEWCOMERS_MAX} agents are joining at once; try again later");
        return turn.send_away(id, Refusal { reason, fatal: false });
    }
    liveness::joins(reign, turn, &join);
    reign.newcomers.insert(id, Newcomer::new(join, turn.now));
    if reign.begun.is_some() || Mutant::ClaimBeforeTerm.active() {
        proceed(reign, turn, id);
    }
}

/// The term has begun: judge the Join, ask an older session whether it lives, or propose.
pub(super) fn proceed(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId) {
    let Some(newcomer) = reign.newcomers.get(&id) else { return };
    if let Err(refusal) = check(turn.ledger, reign.term, &newcomer.join) {
        return refuse(reign, turn, id, refusal);
    }
    match rival(reign, turn, &newcomer.join) {
        Some(rival) => challenge(reign, turn, id, rival),
        None => accept(reign, turn, id),
    }
}

/// A live session of the same agent id and another process: perhaps a cloned data directory.
fn rival(reign: &Reign, turn: &Turn<'_>, join: &Join) -> Option<SessionId> {
    let life = reign.lives.get(&join.agent_id)?;
    let timeout = turn.ledger.policy().heartbeat_timeout_ms;
    let lives = life.last_word_ms(turn.now).is_some_and(|age| age < timeout);
    life.session.filter(|_| lives && life.process_id != join.process_id)
}

fn challenge(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, rival: SessionId) {
    let nonce = reign.next_nonce();
    let until_ms = turn.now.saturating_add(turn.config.ping_ms);
    if let Some(older) = reign.sessions.get(&rival) {
        older.send(turn, leader_message::Kind::Ping(Ping { nonce }));
    }
    if let Some(newcomer) = reign.newcomers.get_mut(&id) {
        newcomer.stage = Stage::Challenged { nonce, rival, until_ms };
    }
}

fn accept(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId) {
    let Some(newcomer) = reign.newcomers.get_mut(&id) else { return };
    newcomer.stage = Stage::Queued;
    liveness::knocked(&mut reign.lives, &newcomer.join);
    reign.joins.queue(id);
    pump(reign, turn);
}

/// Proposes joins while there are places for them in the log.
fn pump(reign: &mut Reign, turn: &mut Turn<'_>) {
    while let Some(id) = reign.joins.next() {
        let queued = |newcomer: &&mut Newcomer| newcomer.stage == Stage::Queued;
        let Some(newcomer) = reign.newcomers.get_mut(&id).filter(queued) else { continue };
        newcomer.stage = Stage::Joining { since_ms: turn.now };
        reign.joins.takes(flight(&newcomer.join), id, turn.now);
        let join = Some(newcomer.join.clone());
        turn.propose(command::Kind::AgentUp(AgentUpCommand { join }));
    }
}

fn flight(join: &Join) -> Flight {
    (join.agent_id.clone(), join.incarnation, 0)
}

/// The older session lives: the newcomer has its data directory.
pub(super) fn pong(reign: &mut Reign, turn: &mut Turn<'_>, from: SessionId, answered: u64) {
    let cloned = reign.newcomers.iter().find_map(|(id, newcomer)| match newcomer.stage {
        Stage::Challenged { nonce, rival, .. } if (nonce, rival) == (answered, from) => Some(*id),
        _ => None,
    });
    let Some(id) = cloned else { return };
    let agent = reign.newcomers.get(&id).map(|n| n.join.agent_id.clone()).unwrap_or_default();
    let reason = format!(
        "agent id {agent} is in use by another process that answers: this data directory is a copy; \
         remove agent.state there to get an id of its own"
    );
    refuse(reign, turn, id, Refusal { reason, fatal: true });
}

/// The older session is gone: nobody is left to answer.
pub(super) fn rival_gone(reign: &mut Reign, turn: &mut Turn<'_>, gone: SessionId) {
    advance(
        reign,
        turn,
        |stage, _| matches!(stage, Stage::Challenged { rival, .. } if *rival == gone),
    );
}

/// Challenges that were not answered, and joins whose proposal was lost.
pub(super) fn tick(reign: &mut Reign, turn: &mut Turn<'_>) {
    reign.joins.tick(turn);
    advance(
        reign,
        turn,
        |stage, now| matches!(stage, Stage::Challenged { until_ms, .. } if *until_ms <= now),
    );
    let lost: Vec<SessionId> = reign
        .newcomers
        .iter()
        .filter(|(_, n)| matches!(n.stage, Stage::Joining { since_ms } if turn.lost(since_ms)))
        .map(|(id, _)| *id)
        .collect();
    for id in lost {
        let reason = "the join could not be recorded in time; try again".to_string();
        refuse(reign, turn, id, Refusal { reason, fatal: false });
    }
    pump(reign, turn);
}

fn advance(reign: &mut Reign, turn: &mut Turn<'_>, ready: impl Fn(&Stage, u64) -> bool) {
    let now = turn.now;
    let ids: Vec<SessionId> = reign
        .newcomers
        .iter()
        .filter(|(_, newcomer)| ready(&newcomer.stage, now))
        .map(|(id, _)| *id)
        .collect();
    for id in ids {
        accept(reign, turn, id);
    }
}

/// A message before the Welcome waits for it.
pub(super) fn early(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, message: AgentMessage) {
    let Some(newcomer) = reign.newcomers.get_mut(&id) else { return };
    if matches!(newcomer.stage, Stage::Queued | Stage::Joining { .. }) {
        liveness::knocked(&mut reign.lives, &newcomer.join);
    }
    if !newcomer.keep(message, turn.now) {
        let what = format!(
            "more than {BACKLOG_MAX} messages or {BACKLOG_MAX_BYTES} bytes before the Welcome"
        );
        refuse(reign, turn, id, protocol(&what));
    }
}

/// An `AgentUp` was applied: welcome whoever waits for it, or say why not.
pub(super) fn applied(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    command: &AgentUpCommand,
    outcome: &Outcome,
) {
    let Some(join) = &command.join else { return };
    let waiting = reign.joins.lands(&flight(join)).filter(|id| reign.newcomers.contains_key(id));
    answer(reign, turn, join, waiting, outcome);
    pump(reign, turn);
}

fn answer(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    join: &Join,
    waiting: Option<SessionId>,
    outcome: &Outcome,
) {
    match (waiting, outcome) {
        (Some(id), Outcome::AgentUp) => welcome(reign, turn, id),
        (None, Outcome::AgentUp) => orphaned(reign, turn, join),
        (Some(id), Outcome::Rejected(rejection)) => {
            let fatal = !matches!(rejection, Rejection::TooManyAgents { .. });
            refuse(reign, turn, id, Refusal { reason: rejection.to_string(), fatal });
        }
        (Some(id), Outcome::Stale { what }) => {
            let reason = format!("this join is out of date: {what}; join with a newer incarnation");
            refuse(reign, turn, id, Refusal { reason, fatal: false });
        }
        _ => {}
    }
}

/// Its stream ended before the answer, and still it is the newest session for the ledger: an older one
/// that is open counts no longer, and the agent is silent until it joins again.
fn orphaned(reign: &mut Reign, turn: &mut Turn<'_>, join: &Join) {
    let counting = Pulse::Counting { quiet_ms: 0 };
    let life = Life::inherited(join.incarnation, counting);
    let older = reign.lives.insert(join.agent_id.clone(), life);
    if let Some(id) = older.and_then(|older| older.session) {
        reign.sessions.remove(&id);
        turn.close(id);
        rival_gone(reign, turn, id);
    }
}

fn welcome(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId) {
    let Some(newcomer) = reign.newcomers.remove(&id) else { return };
    let Newcomer { join, backlog, heard_ms, .. } = newcomer;
    let mut session = Session::new(id, reign.term, join.clone());
    let kind = leader_message::Kind::Welcome(Welcome {
        cluster_id: turn.ledger.cluster_id().to_owned(),
        generation: turn.ledger.generation(),
        heartbeat_timeout_ms: turn.ledger.policy().heartbeat_timeout_ms,
    });
    session.send(turn, kind);
    facts::begin(&mut session, turn);
    reign.sessions.insert(id, session);
    let mut life = Life::joined(&join, id, heard_ms);
    let older = reign.lives.remove(&join.agent_id);
    // Another session makes no room: its heartbeats will tell.
    life.disk_full = older.as_ref().is_some_and(|older| older.disk_full);
    reign.lives.insert(join.agent_id.clone(), life);
    let older = older.and_then(|life| life.session);
    if let Some(older) = older.filter(|older| *older != id) {
        reign.sessions.remove(&older);
        reign.leases.forget(older);
        turn.close(older);
        rival_gone(reign, turn, older);
    }
    let agent = join.agent_id.clone();
    for message in backlog {
        reign.message(turn, id, message);
    }
    // Taken now, said then: a reset that comes next must not look as if it followed a young word.
    if let Some(life) = reign.lives.get_mut(&agent).filter(|life| life.session == Some(id)) {
        life.heard_ms = Some(heard_ms);
    }
}

fn refuse(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, refusal: Refusal) {
    reign.newcomers.remove(&id);
    turn.send_away(id, refusal);
}

/// May this Join be taken at all? Pure over the ledger.
fn check(ledger: &Ledger, term: u64, join: &Join) -> Result<(), Refusal> {
    shape(join)?;
    versions(join)?;
    let fatal = |reason| Err(Refusal { reason, fatal: true });
    if !join.cluster_id.is_empty() && join.cluster_id != ledger.cluster_id() {
        return fatal(format!(
            "the agent of this data directory belongs to cluster {}, this is {}: give it a data \
             directory of its own; or, where that cluster is gone for good, remove agent.state there \
             to join as a new node",
            join.cluster_id,
            ledger.cluster_id()
        ));
    }
    if join.generation > ledger.generation() {
        return fatal(format!(
            "the agent has seen generation {} of this cluster, this controller is of generation {}: \
             it was restored from an older copy",
            join.generation,
            ledger.generation()
        ));
    }
    if join.generation == ledger.generation() && join.term_seen > term {
        let reason = format!("a leader of term {} exists, this is term {term}", join.term_seen);
        return Err(Refusal { reason, fatal: false });
    }
    let timeout = ledger.policy().heartbeat_timeout_ms;
    if join.heartbeat_interval_ms == 0 || join.heartbeat_interval_ms > timeout / 3 {
        return fatal(format!(
            "heartbeat_interval is {} ms; it must be above 0 and at most a third of the cluster's \
             heartbeat_timeout of {timeout} ms",
            join.heartbeat_interval_ms
        ));
    }
    Ok(())
}

fn shape(join: &Join) -> Result<(), Refusal> {
    let ids = [join.agent_id.as_bytes(), &join.process_id, &join.journal_id];
    if ids.iter().any(|id| id.is_empty() || id.len() > ID_MAX_BYTES) {
        return Err(protocol("agent id, process id and journal id must have 1 to 64 bytes"));
    }
    if join.name.is_empty() || join.name.len() > NAME_MAX_BYTES {
        return Err(protocol("the node name must have 1 to 255 bytes"));
    }
    if join.incarnation == 0 || join.next_seq == 0 {
        return Err(protocol("incarnation and next fact seq count from 1"));
    }
    Ok(())
}

fn versions(join: &Join) -> Result<(), Refusal> {
    let fatal = |reason| Err(Refusal { reason, fatal: true });
    if join.protocol.abs_diff(proto::PROTOCOL) > PROTOCOL_SPREAD || join.protocol == 0 {
        return fatal(format!(
            "the agent (docket {}) speaks session protocol {}, this controller {}: they may differ \
             by one; upgrade the older one",
            join.version,
            join.protocol,
            proto::PROTOCOL
        ));
    }
    if join.level.saturating_add(1) < proto::LEVEL || join.level == 0 {
        return fatal(format!(
            "the agent (docket {}) has level {}, this controller {}: upgrade the agent",
            join.version,
            join.level,
            proto::LEVEL
        ));
    }
    Ok(())
}
