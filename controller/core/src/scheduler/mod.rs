//! Places queued tasks on nodes: `plan(ledger, reachable) -> Plan`, pure, with a reason for every
//! refusal. It never changes anything: a plan is proposed, and `apply` checks it again (rule 13).
//! Begin reading with `plan.rs`; the constraints stand in `feasible.rs`.

mod feasible;
mod order;
mod place;
mod plan;
mod pool;
mod rank;
mod reserve;
mod rooms;
mod view;
mod why;
mod would;

#[cfg(test)]
mod tests;

pub use feasible::{Refusal, Resource, Short, feasible, id_taken, refusals};
pub use plan::{Placement, Plan, Unplaced, plan, plan_at};
pub(crate) use pool::free_by;
pub use pool::{Missing, Pool};
pub use rank::{Ahead, Rank};
pub use reserve::Kept;
pub use view::{Free, Reach};
pub(crate) use why::why_by_ledger;
pub use why::{NodeVerdict, Outlook, Start, Why, why};
pub use would::{Would, never, would};
