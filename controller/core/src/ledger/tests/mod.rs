//! Tests of the ledger as a whole: one file per rule of design 3, over a world with verbs.

mod ahead;
mod array;
mod cancel;
mod deferred;
mod depend;
mod drain;
mod edit;
mod facts;
mod ids;
mod image;
mod loss;
mod manifest;
mod migration;
mod moves;
mod older_log;
mod random;
mod resources;
mod retention;
mod retry;
mod set;
mod submit;
pub(crate) mod world;
