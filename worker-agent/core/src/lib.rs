//! The agent's core: session life cycle, joins, heartbeats, the relay of facts and orders.
//! It never does I/O, reads a clock or draws a random number: [`AgentCore::step`] takes an event
//! and the time, and returns what the shell must do, in order.
//! Begin reading with `event.rs`, then `agent.rs`.

mod agent;
mod backoff;
mod beat;
mod environment;
mod event;
mod facts;
mod join;
mod keeper;
mod later;
mod leader;
mod lease;
mod manifest;
mod orders;
mod out;
mod pattern;
mod run_order;
mod slurm;
mod upgrade;
mod user;

pub use agent::{AgentCore, CoreConfig};
pub use environment::{JobPlace, job_environment};
pub use event::{Action, End, Event, Saved, SessionNo, Target};
pub use pattern::{Names, expand, output_path};
pub use run_order::{KEEPER_FRAME_MAX_BYTES, run_file};
pub use user::{NoUser, User};
