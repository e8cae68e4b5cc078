//! The simulator: a whole cluster in one thread under virtual time, from one seed. The ledger, the
//! scheduler, the leader's duties and the agent's core are the real ones; log, network, keepers,
//! processes, clocks and clients are pretended, and break in every way the design names.
//! It never touches a file, a socket or a real clock: the same seed gives the same bytes.
//! Begin reading with `world.rs`, then the table in `invariants/mod.rs`.
#![allow(
    clippy::indexing_slicing,
    reason = "nodes, controllers and processes are numbered here and never go away"
)]

mod agent;
mod chaos;
mod client;
mod command;
mod controller;
mod ends;
mod invariants;
mod journal;
mod keeper;
mod log;
#[cfg(feature = "mutants")]
mod mutants;
mod network;
mod plan;
mod process;
mod progress;
mod queue;
mod recovery;
mod rng;
mod shell_bugs;
mod shrink;
mod trace;
mod trim;
mod truth;
mod watch;
mod world;

pub use command::main;
pub use invariants::TABLE;
#[cfg(feature = "mutants")]
pub use mutants::{Caught, ROWS, Row, hunt};
pub use progress::bar;
pub use shrink::{Shrunk, shrink};
pub use trace::Tracing;
pub use trim::{Case, Trim};
pub use world::{Report, Violation, run, run_case};
