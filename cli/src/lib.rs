//! The command line of docket: one binary for people, scripts and the daemons.
//! It never decides anything about jobs: it asks a server, and shows what that says.
//! Begin reading with `entry.rs`, then `args/` (what can be typed) and `commands/run.rs`.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")
)]

mod entry;
mod exit;
mod failure;
mod say;
mod usage;

mod args;
mod sbatch;
mod slurm;

mod parse;
mod progress;
mod spec;

mod client;
mod commands;
mod render;

mod config;
mod roles;

pub use entry::main;
