//! Places queued tasks on nodes: `plan(ledger, reachable) -> Plan`, pure, with a reason for every
//! refusal. It never changes anything: a plan is proposed, and `apply` checks it again (rule 13).
//! Begin reading with `plan.rs`; the constraints stand in `feasible.rs`.

mod feasible;
mod order;
mod place;
mod plan;
mod view;

#[cfg(test)]
mod tests;

pub use feasible::{Refusal, Resource, feasible, id_taken};
pub(crate) use plan::why_by_ledger;
pub use plan::{NodeVerdict, Placement, Plan, Unplaced, Why, plan, why};
pub use view::{Free, Reach};
