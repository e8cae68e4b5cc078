//! What the ledger wants of a node: a pure function of the state, so that leader change, reconnect,
//! lost message and restart are one path (design 2, "Pure core"). It emits nothing; `dispatch`
//! compares it with what the agent reported and sends the difference.

use crate::ledger::{Job, State};
use proto::OrderId;

/// One thing that an agent should have been told about an attempt that it holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Want {
    /// Start it.
    Run {
        /// Order id: position of its `Assign`.
        order: OrderId,
    },
    /// Stop it, or let it go on.
    Suspend {
        /// Order id: position of the request.
        order: OrderId,
        /// Go on instead.
        resume: bool,
    },
    /// Let it have the time limit that is in force now.
    Limit {
        /// Order id: position of the request.
        order: OrderId,
    },
    /// Send its tree this one signal.
    Signal {
        /// Order id: position of the request.
        order: OrderId,
        /// Number of the signal.
        signal: u32,
    },
    /// End it because its time is up, and its node did not.
    TimeUp {
        /// Order id: position of the tick.
        order: OrderId,
    },
    /// End it because its owner asked.
    Cancel {
        /// Order id: position of the request.
        order: OrderId,
    },
}

impl Want {
    /// Its order id.
    pub fn order(self) -> OrderId {
        match self {
            Want::Run { order }
            | Want::Suspend { order, .. }
            | Want::Limit { order }
            | Want::TimeUp { order }
            | Want::Signal { order, .. }
            | Want::Cancel { order } => order,
        }
    }
}

/// What the session `incarnation` of `agent_id` should have been told about this job's present
/// attempt, in the order in which it has to be told. Nothing while the attempt is not its own, is
/// unknown, or has ended: unknown ones wait for a manifest, ended ones are killed where a node still
/// reports them.
pub fn desired(job: &Job, agent_id: &str, incarnation: u64) -> Vec<Want> {
    let grant = match job.state() {
        State::Dispatched(grant) => grant,
        State::Running(run) | State::Suspended(run) => &run.grant,
        _ => return Vec::new(),
    };
    if *grant.agent != *agent_id || grant.incarnation != incarnation {
        return Vec::new();
    }
    let run = matches!(job.state(), State::Dispatched(_));
    let suspend = job.suspend().map(|s| Want::Suspend { order: s.order, resume: s.resume });
    let signal = job.signal().map(|s| Want::Signal { order: s.order, signal: s.signal });
    let cancel = job.cancel().map(|c| Want::Cancel { order: c.order });
    let mut wants: Vec<Want> = run
        .then_some(Want::Run { order: grant.order })
        .into_iter()
        .chain(suspend)
        .chain(job.limit_order().map(|order| Want::Limit { order }))
        .chain(signal)
        .chain(job.overdue_order().map(|order| Want::TimeUp { order }))
        .chain(cancel)
        .collect();
    wants.sort_by_key(|want| want.order());
    wants
}
