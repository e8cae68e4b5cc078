//! Loss of a worker: two kinds, two answers (design 3). Silence is counted by the sweep; a close is
//! the death of the agent only if everything on the list of RDHUP is true.

use super::life::{Life, Pulse};
use super::manifest;
use super::pace::PASS_MAX_MS;
use super::reign::Reign;
use super::session::Session;
use super::turn::Turn;
use super::{SessionEnd, SessionId, facts, join};
use crate::ledger::{self, Ledger};
use proto::mutants::Mutant;
use proto::v1::{
    AgentDownCommand, DownCause, GoodbyeKind, Join, UnknownCommand, agent_message, command,
};
use std::collections::BTreeMap;

/// A close proves a death only if the last word is no older than the heartbeat interval and this,
/// in ms: otherwise a partition may have healed with a reset.
const LAST_WORD_SLACK_MS: u64 = 2_000;

/// Any message is a sign of life. One that had been given up shows what it holds before it gets an
/// order; its facts are taken as always.
pub(super) fn heard(
    reign: &mut Reign,
    turn: &mut Turn<'_>,
    id: SessionId,
    agent: &str,
    kind: &agent_message::Kind,
) {
    let Some(life) = reign.lives.get_mut(agent) else { return };
    if Mutant::BeatIsNoLife.active() && matches!(kind, agent_message::Kind::Heartbeat(_)) {
        return;
    }
    let mut ask = life.heard(turn.now);
    if vouches(kind) {
        life.unvouched_ms = 0;
        ask |= std::mem::take(&mut life.unvouched);
    }
    if ask && let Some(session) = reign.sessions.get_mut(&id) {
        session.judged = false;
        manifest::ask(reign, turn, id);
    }
}

/// Does the agent send this only while its keeper answers (design 3)?
fn vouches(kind: &agent_message::Kind) -> bool {
    match kind {
        agent_message::Kind::Heartbeat(beat) => beat.keeper_answers,
        agent_message::Kind::Manifest(_) | agent_message::Kind::Facts(_) => true,
        agent_message::Kind::Join(_)
        | agent_message::Kind::Goodbye(_)
        | agent_message::Kind::Pong(_) => false,
    }
}

/// A stream ended, and all that it said was handed over before. An older session of an agent is
/// none of the leader's any more, and its end is ignored.
pub(super) fn closed(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId, end: SessionEnd) {
    reign.newcomers.remove(&id);
    let Some(mut session) = reign.sessions.remove(&id) else { return };
    reign.leases.forget(id);
    // A finish that was received is never overtaken by what follows.
    facts::flush(&mut session, turn);
    let agent = session.join.agent_id.clone();
    let pulse = after_close(reign, turn, &session, end);
    if let Some(life) = reign.lives.get_mut(&agent).filter(|life| life.session == Some(id)) {
        life.session = None;
        if let (Some(pulse), false) = (pulse, life.is_lost()) {
            match pulse {
                Pulse::Lost { cause, .. } => lose(life, turn, &agent, cause),
                pulse => life.pulse = pulse,
            }
        }
    }
    join::rival_gone(reign, turn, id);
}

/// What the end of the newest session says; `None`: nothing, silence is counted on.
fn after_close(
    reign: &Reign,
    turn: &Turn<'_>,
    session: &Session,
    end: SessionEnd,
) -> Option<Pulse> {
    let lost = |cause| Some(Pulse::Lost { proposed_ms: turn.now, cause });
    match session.goodbye.filter(|_| !Mutant::GoodbyeIgnored.active()) {
        Some(GoodbyeKind::Leave) => lost(DownCause::Leave),
        // What was drained, holds nothing and is stopped in order has left.
        Some(GoodbyeKind::Restart) if has_nothing_to_do(turn, session) => lost(DownCause::Leave),
        Some(GoodbyeKind::Restart) => lost(DownCause::Goodbye),
        // It is about to be back; until then it is silent.
        Some(GoodbyeKind::Reconnect | GoodbyeKind::Unspecified) => None,
        None if proves_death(reign, turn, session, end) => Some(Pulse::Confirming {
            due_ms: turn.now.saturating_add(turn.config.rdhup_confirm_ms),
        }),
        None => None,
    }
}

/// Drained, and nothing is or may be there.
fn has_nothing_to_do(turn: &Turn<'_>, session: &Session) -> bool {
    let agent_id = session.join.agent_id.as_str();
    let drained = turn.ledger.agent(agent_id).is_some_and(|agent| agent.drained().is_some());
    drained && turn.ledger.used(agent_id).jobs == 0
}

/// The list of design 3, RDHUP, but for the Join that may still come.
fn proves_death(reign: &Reign, turn: &Turn<'_>, session: &Session, end: SessionEnd) -> bool {
    let join = &session.join;
    let window = join.heartbeat_interval_ms.saturating_add(LAST_WORD_SLACK_MS);
    let last_word = reign.lives.get(&join.agent_id).and_then(|life| life.last_word_ms(turn.now));
    let back_already = reign.newcomers.values().any(|newcomer| same_process(&newcomer.join, join));
    matches!(end, SessionEnd::Fin | SessionEnd::Reset)
        && last_word.is_some_and(|age| age < window || Mutant::DeathAfterPartition.active())
        && (!reign.pace.stalled_within(window, turn.now) || Mutant::DeathAfterStall.active())
        && !back_already
        // What was dropped is still in the journal: its finish must not be overtaken either.
        && session.facts.complete()
}

fn same_process(one: &Join, other: &Join) -> bool {
    one.agent_id == other.agent_id && one.process_id == other.process_id
}

/// A Join came while a death was being confirmed: the same process lives, another one shows that
/// the old one is gone.
pub(super) fn joins(reign: &mut Reign, turn: &mut Turn<'_>, join: &Join) {
    let Some(life) = reign.lives.get_mut(&join.agent_id) else { return };
    if !matches!(life.pulse, Pulse::Confirming { .. }) {
        return;
    }
    if life.process_id == join.process_id {
        let quiet_ms = life.last_word_ms(turn.now).unwrap_or_default();
        life.pulse = Pulse::Counting { quiet_ms };
    } else {
        lose(life, turn, &join.agent_id, DownCause::Rdhup);
    }
}

/// Its Join waits for the log and it speaks: it is the leader that is slow, not the agent.
pub(super) fn knocked(lives: &mut BTreeMap<String, Life>, join: &Join) {
    let Some(life) = lives.get_mut(&join.agent_id) else { return };
    // A copy of its data directory does not speak for an agent that has a session.
    let own = life.session.is_none() || life.process_id == join.process_id;
    if let Pulse::Counting { quiet_ms } = &mut life.pulse
        && own
    {
        *quiet_ms = 0;
    }
}

/// One pass: `passed` is added to every silence, and what is over its time is proposed, once.
pub(super) fn sweep(reign: &mut Reign, turn: &mut Turn<'_>, passed: u64) {
    let timeout = turn.ledger.policy().heartbeat_timeout_ms;
    let stalled =
        reign.pace.stalled_within(PASS_MAX_MS, turn.now) && !Mutant::DeathAfterStall.active();
    for (agent, life) in &mut reign.lives {
        match life.pulse {
            Pulse::Counting { quiet_ms } => {
                let quiet_ms = quiet_ms.saturating_add(passed);
                life.pulse = Pulse::Counting { quiet_ms };
                if quiet_ms >= timeout && !Mutant::SilenceNotSwept.active() {
                    lose(life, turn, agent, DownCause::Silence);
                }
            }
            // A Join may have waited behind the stall.
            Pulse::Confirming { .. } if stalled => {
                let quiet_ms = life.last_word_ms(turn.now).unwrap_or_default().min(PASS_MAX_MS);
                life.pulse = Pulse::Counting { quiet_ms };
            }
            Pulse::Confirming { due_ms } if due_ms <= turn.now => {
                lose(life, turn, agent, DownCause::Rdhup);
            }
            Pulse::Lost { proposed_ms, cause } if turn.lost(proposed_ms) => {
                lose(life, turn, agent, cause);
            }
            Pulse::Confirming { .. } | Pulse::Lost { .. } => {}
        }
        if let Some(id) = life.session.filter(|_| !life.is_lost())
            && unvouched(life, turn, agent, passed, timeout)
            && let Some(session) = reign.sessions.get_mut(&id)
        {
            session.judged = false;
        }
    }
}

/// The agent speaks, and nobody vouches for its jobs: they are unknown, the agent is not silent.
fn unvouched(life: &mut Life, turn: &mut Turn<'_>, agent: &str, passed: u64, timeout: u64) -> bool {
    life.unvouched_ms = life.unvouched_ms.saturating_add(passed);
    if life.unvouched || life.unvouched_ms < timeout {
        return false;
    }
    life.unvouched = true;
    turn.propose(command::Kind::Unknown(UnknownCommand {
        agent_id: agent.to_owned(),
        incarnation: life.incarnation,
        why: format!("its keeper has not answered for {} s", life.unvouched_ms / 1000),
    }));
    true
}

/// Facts of an agent were applied. A start that was under way when its agent was given up made a
/// task run again, and nobody is left to be silent: the loss is proposed once more.
pub(super) fn told(reign: &mut Reign, turn: &mut Turn<'_>, agent: &str) {
    if let Some(life) = reign.lives.get_mut(agent)
        && let Pulse::Lost { cause, .. } = life.pulse
        && holds_any(turn.ledger, agent)
    {
        lose(life, turn, agent, cause);
    }
}

/// Gives an agent up, and proposes that unless the ledger knows, of all its tasks.
fn lose(life: &mut Life, turn: &mut Turn<'_>, agent: &str, cause: DownCause) {
    let cause = match cause {
        DownCause::Rdhup if Mutant::DeathSilenceSwapped.active() => DownCause::Silence,
        DownCause::Silence if Mutant::DeathSilenceSwapped.active() => DownCause::Rdhup,
        cause => cause,
    };
    life.pulse = Pulse::Lost { proposed_ms: turn.now, cause };
    let known = !counts_as_up(turn.ledger, agent, life.incarnation);
    if !known || holds_any(turn.ledger, agent) {
        turn.propose(command::Kind::AgentDown(AgentDownCommand {
            agent_id: agent.to_owned(),
            incarnation: life.incarnation,
            cause: cause.into(),
        }));
    }
}

/// Does the agent hold a task that is not unknown?
fn holds_any(ledger: &Ledger, agent: &str) -> bool {
    ledger.held_by(agent).any(|job| job.kind().held_by())
}

fn counts_as_up(ledger: &Ledger, agent: &str, incarnation: u64) -> bool {
    ledger.agent(agent).is_some_and(|agent| {
        agent.incarnation() == incarnation && !matches!(agent.session(), ledger::Session::Down(_))
    })
}
