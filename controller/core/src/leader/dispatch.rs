//! Orders: desired minus reported. What the ledger wants is `desired`; what the agent reported,
//! through manifest and facts, or was told in this session is [`Reported`].

use super::SessionId;
use super::desired::{Want, desired};
use super::manifest::living;
use super::reign::Reign;
use super::session::Session;
use super::turn::Turn;
use crate::ledger::{Job, State};
use proto::mutants::Mutant;
use proto::v1::{
    AttemptRef, Facts, KillCause, KillOrder, LimitOrder, ManifestItem, ResumeOrder, RunOrder,
    SuspendOrder, Token, fact, leader_message,
};
use proto::{AttemptId, OrderId, TaskId};
use std::collections::BTreeMap;

/// What one session's agent holds, as far as it is known, and what it was told about it.
#[derive(Debug, Default)]
pub(super) struct Reported {
    held: BTreeMap<AttemptId, Held>,
}

/// One attempt on the node.
#[derive(Debug, Default)]
struct Held {
    token: Option<Token>,
    /// Every order about it up to this one was sent, or taken before this session.
    told: OrderId,
    /// The cancel that was sent since its last manifest. It is sent again after each: a kill that
    /// got lost inside the node must not hang for ever.
    cancel: Option<OrderId>,
    /// It was told that this attempt is over for the ledger, since its last manifest.
    fenced: bool,
}

impl Reported {
    /// A page of a manifest: these live there, and every order up to `last_order` was taken.
    pub fn listed(&mut self, items: &[ManifestItem], last_order: u64) {
        for item in items {
            let Some(attempt) = living(item) else { continue };
            let held = self.held.entry(attempt).or_default();
            held.token = item.token;
            held.told = held.told.max(OrderId(last_order));
            (held.cancel, held.fenced) = (None, false);
        }
    }

    /// A manifest is judged: what it does not list and no later order asked for is not there. What it
    /// lists as ended is not ordered again: the second run would begin behind the end of the first.
    pub fn keep_only(&mut self, lists: impl Fn(AttemptId) -> bool, last_order: u64) {
        self.held.retain(|attempt, held| lists(*attempt) || held.told > OrderId(last_order));
    }

    /// The order to run it never arrived.
    pub fn never_arrived(&mut self, attempt: AttemptId) {
        self.held.remove(&attempt);
    }

    /// Whether the node was told of it, or showed it.
    pub fn knows(&self, attempt: AttemptId) -> bool {
        self.held.contains_key(&attempt)
    }

    /// Facts that the ledger took.
    pub fn facts(&mut self, batch: &Facts) {
        for fact in &batch.facts {
            let (attempt, token, gone) = match &fact.kind {
                Some(fact::Kind::Start(f)) => (f.attempt.as_ref(), f.token, false),
                Some(fact::Kind::Finish(f)) => (f.attempt.as_ref(), f.token, true),
                Some(fact::Kind::Refused(f)) => (f.attempt.as_ref(), f.token, true),
                Some(fact::Kind::Suspended(f)) => (f.attempt.as_ref(), f.token, false),
                Some(fact::Kind::Resumed(f)) => (f.attempt.as_ref(), f.token, false),
                None => continue,
            };
            let Ok(attempt) = AttemptId::from_wire(attempt) else { continue };
            if gone {
                self.held.remove(&attempt);
            } else {
                self.held.entry(attempt).or_default().token = token;
            }
        }
    }

    /// Which of these was not told yet; it counts as told from now on.
    fn untold(&mut self, attempt: AttemptId, token: Option<Token>, wants: &[Want]) -> Vec<Want> {
        wants.iter().copied().filter(|want| self.tell(attempt, token, *want)).collect()
    }

    fn tell(&mut self, attempt: AttemptId, token: Option<Token>, want: Want) -> bool {
        let known = self.held.contains_key(&attempt);
        let held = self.held.entry(attempt).or_default();
        held.token = held.token.or(token);
        // What it has may be another job's that had this id: it refuses the order by name.
        let others = token.is_some() && held.token != token;
        let new = match want {
            Want::Run { order } if others => order > held.told,
            Want::Run { .. } => !known,
            Want::Suspend { order, .. }
            | Want::Limit { order }
            | Want::TimeUp { order }
            | Want::Signal { order, .. } => order > held.told,
            Want::Cancel { order } => held.cancel.replace(order) != Some(order),
        };
        held.told = held.told.max(want.order());
        new
    }

    /// Attempts of this task that the node still holds and that are over for the ledger, each once.
    fn over(&mut self, job: &Job) -> Vec<(AttemptId, Option<Token>)> {
        let all = |attempt| AttemptId { task: job.task_id(), attempt };
        self.held
            .range_mut(all(0)..=all(u32::MAX))
            .filter(|(attempt, held)| !held.fenced && over(job, **attempt))
            .map(|(attempt, held)| {
                held.fenced = true;
                (*attempt, held.token)
            })
            .collect()
    }
}

fn over(job: &Job, attempt: AttemptId) -> bool {
    job.terminal() || attempt.attempt < job.attempt()
}

/// A task changed, as of the entry whose orders end with `order`.
pub(super) fn task(reign: &mut Reign, turn: &mut Turn<'_>, task: TaskId, order: OrderId) {
    let Some(job) = turn.ledger.job(task) else { return };
    let Some(grant) = job.grant() else { return };
    let Some(session) = reign.orderly(&grant.agent) else { return };
    orders(session, turn, job);
    let over = session.reported.over(job);
    for (attempt, token) in over {
        fence_one(session, turn, order, attempt, token);
    }
}

/// A manifest was judged: everything the ledger wants of that agent and it was not told.
pub(super) fn all(reign: &mut Reign, turn: &mut Turn<'_>, id: SessionId) {
    let Some(session) = reign.sessions.get_mut(&id) else { return };
    let ledger = turn.ledger;
    if session.takes_orders() {
        for job in ledger.held_by(&session.join.agent_id.clone()) {
            orders(session, turn, job);
        }
    }
}

/// Verdicts of a manifest: these are over for the ledger, as of the command with that order id.
pub(super) fn fence(
    session: &mut Session,
    turn: &mut Turn<'_>,
    order: OrderId,
    attempts: &[AttemptId],
) {
    for attempt in attempts {
        let held = session.reported.held.entry(*attempt).or_default();
        held.fenced = true;
        let token = held.token;
        fence_one(session, turn, order, *attempt, token);
    }
}

fn fence_one(
    session: &mut Session,
    turn: &mut Turn<'_>,
    order: OrderId,
    attempt: AttemptId,
    token: Option<Token>,
) {
    send(
        session,
        turn,
        order,
        leader_message::Kind::Kill(KillOrder {
            order_id: order.0,
            attempt: Some(attempt.to_wire()),
            token,
            cause: KillCause::Fenced.into(),
            grace_ms: None,
            signal: None,
        }),
    );
}

fn orders(session: &mut Session, turn: &mut Turn<'_>, job: &Job) {
    if waits_for_echo(session, job) {
        return;
    }
    let mut wants = desired(job, &session.join.agent_id, session.join.incarnation);
    if Mutant::IntentsDropped.active() {
        let joined = turn.ledger.agent(&session.join.agent_id).map(|agent| agent.up_order());
        wants.retain(|want| matches!(want, Want::Run { .. }) || Some(want.order()) > joined);
    }
    for want in session.reported.untold(job.attempt_id(), job.token(), &wants) {
        send(session, turn, want.order(), order_of(job, want));
    }
}

/// A leased run that the node was not told of: its fence begins with the last echo of this session,
/// and there was none yet (design 3).
fn waits_for_echo(session: &Session, job: &Job) -> bool {
    !session.echoed
        && job.leased().is_some()
        && matches!(job.state(), State::Dispatched(_))
        && !session.reported.knows(job.attempt_id())
}

fn send(session: &mut Session, turn: &mut Turn<'_>, order: OrderId, kind: leader_message::Kind) {
    session.comparison.sent(order.0);
    session.send(turn, kind);
}

fn order_of(job: &Job, want: Want) -> leader_message::Kind {
    let attempt: Option<AttemptRef> = Some(job.attempt_id().to_wire());
    let token = job.token();
    let kill = |order: OrderId, cause: KillCause, signal| {
        leader_message::Kind::Kill(KillOrder {
            order_id: order.0,
            attempt,
            token,
            cause: cause.into(),
            grace_ms: job.spec().kill_grace_ms,
            signal,
        })
    };
    match want {
        Want::Run { .. } => leader_message::Kind::Run(run_order(job)),
        Want::Suspend { order, resume: false } => {
            leader_message::Kind::Suspend(SuspendOrder { order_id: order.0, attempt, token })
        }
        Want::Suspend { order, resume: true } => {
            leader_message::Kind::Resume(ResumeOrder { order_id: order.0, attempt, token })
        }
        Want::Limit { order } => leader_message::Kind::Limit(LimitOrder {
            order_id: order.0,
            attempt,
            token,
            time_limit_ms: job.time_limit_ms(),
        }),
        Want::Signal { order, signal } => kill(order, KillCause::Unspecified, Some(signal)),
        Want::TimeUp { order } => kill(order, KillCause::TimeLimit, None),
        Want::Cancel { order } => kill(order, KillCause::Cancel, None),
    }
}

fn run_order(job: &Job) -> RunOrder {
    let (order, cpus, mem_bytes) =
        job.grant().map_or_else(Default::default, |g| (g.order.0, g.cpus, g.mem_bytes));
    RunOrder {
        order_id: order,
        attempt: Some(job.attempt_id().to_wire()),
        token: job.token(),
        spec: job.spec_bytes().to_vec(),
        env: job.env_bytes().to_vec(),
        stdin: job.stdin_bytes().unwrap_or_default().to_vec(),
        user: job.by().name.to_string(),
        uid: job.by().uid,
        fence_after_ms: job.leased(),
        cpus,
        mem_bytes,
        time_limit_ms: Some(job.time_limit_ms().unwrap_or(0)),
        gpus: job
            .grant()
            .and_then(|g| g.given.as_ref())
            .map(|g| g.gpus.clone())
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::JobId;
    use proto::v1::Phase;

    #[test]
    fn an_order_to_run_goes_once_though_another_job_of_that_id_lives_on_the_node() {
        let attempt = AttemptId { task: TaskId { job: JobId(7), index: None }, attempt: 1 };
        let token = |generation| Some(Token { generation, attempt: 1 });
        let item = ManifestItem {
            attempt: Some(attempt.to_wire()),
            token: token(1),
            phase: Phase::Running.into(),
            ..ManifestItem::default()
        };
        let mut reported = Reported::default();
        reported.listed(std::slice::from_ref(&item), 5);
        let run = [Want::Run { order: OrderId(9) }];
        let own = [Want::Run { order: OrderId(4) }];
        assert!(reported.untold(attempt, token(1), &own).is_empty(), "it runs there");
        assert_eq!(reported.untold(attempt, token(2), &run).len(), 1);
        assert!(reported.untold(attempt, token(2), &run).is_empty(), "it was told");
        // It was taken, and refused by name, before the next session.
        reported.listed(&[item], 9);
        assert!(reported.untold(attempt, token(2), &run).is_empty());
    }
}
