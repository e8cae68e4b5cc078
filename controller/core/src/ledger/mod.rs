//! The replicated state: jobs, agents, request ids, and the one function that changes them.
//! It never decides when something happens, only what a log entry means (design 2, 3).
//! Begin reading with `apply.rs`, then `state.rs` and `moves.rs`.

mod apply;
mod book;
mod outcome;

mod cause;
mod exit;
mod job;
mod moves;
mod state;

mod memory;
mod node;
mod policy;
mod ranges;
mod request;

mod array;
mod blobs;
mod given;
mod gone;
mod index;
mod leftover;
mod line;
mod number;
mod table;
mod users;
mod waits;

mod assign;
mod cancel;
mod configure;
mod deferred;
mod depend;
mod drain;
mod edit;
mod facts;
mod fence;
mod ids;
mod join;
mod limit;
mod limits;
mod loss;
mod manifest;
mod news;
mod retry;
mod set;
mod settle;
mod submit;
mod targets;
mod tick;

mod check;
mod image;
mod image_parts;
mod thaw;
mod thaw_array;
mod thaw_cause;
mod wire;

#[cfg(test)]
pub(crate) mod tests;

pub use apply::order_id;
pub use array::{Array, Tally};
pub use blobs::{Ask, Blob, Hash, Spec};
pub use book::{Counters, Ledger};
pub use cause::{Cause, Proof, What, Who};
pub use deferred::Deferred;
pub(crate) use depend::culprit;
pub use depend::{DEPENDENCIES_MAX, Waits, judge_dependencies};
pub use drain::{DRAIN_REASON_MAX, Drained};
pub use exit::{ExitReason, WaitEnd};
pub use given::{
    ASKED_MAX, Amounts, Given, RESOURCE_NAME_RULE, is_resource_name, judge_asked as judge_resources,
};
pub use ids::IDS_PER_GENERATION;
pub use image::{Frozen, IMAGE_CHUNK_BYTES};
pub use index::{Bound, Used};
pub use job::{CancelIntent, Job, SignalRequest, SuspendIntent};
pub use leftover::{Holder, Leftover};
pub(crate) use limits::Room;
pub use limits::{Counted, Reached, Whose};
pub(crate) use line::{Line, Place, kill_grace};
pub use moves::{MOVES, Move};
pub use node::{Agent, DownWhy, FactsLost, NodeFault, Session};
pub(crate) use number::POINT;
pub use number::{Number, Weights, points};
pub use outcome::{
    Applied, CancelResult, CancelVerdict, EditResult, ManifestOutcome, Outcome, Rejection,
};
pub use policy::judge as judge_policy;
pub use ranges::Ranges;
pub use request::RequestId;
pub use retry::lease_asked;
pub use state::{Ended, Fence, Grant, Kind, Late, Run, Started, State, StateName, Unknown, Was};
pub use table::Entry;
pub use targets::{ARRAY_MAX, ranges};
pub use thaw::ImageError;
pub use users::User;
