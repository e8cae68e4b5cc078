//! The agent of a node, and the keeper that is parent of its jobs: two processes of one crate.
//! It never decides what a job's state is: that is the controller's, from the facts sent here.
//! Begin reading with `agent.rs` (the loop around the pure core) or `keeper/`.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")
)]

mod agent;
mod claim;
mod config;
mod cut;
mod home;
mod inventory;
mod keeper_client;
mod output;
mod passwd;
mod retention;
mod rights;
mod session;
mod state_file;
mod wire;

pub mod keeper;

pub use agent::{AgentError, run, run_claimed};
pub use claim::{Claim, claim};
pub use config::{Config, ConfigError, RunSpace};
pub use state_file::StateFileError;
pub use wire::Connector;
