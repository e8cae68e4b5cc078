//! The controller's shell: raft over the wal, the pump that owns the ledger, the proposer, and the
//! services that people and agents call. It never decides what an entry means or when a duty is
//! due: that is `docket-core`. Begin reading with `controller.rs`, then `pump.rs`.
//!
//! ```text
//!  rpc ─► convert ─► proposer ─► raft ─► wal (fdatasync) ─► commit ─► pump: ledger.apply, leader.step
//!   ▲                   ▲                                               │        │
//!   └── outcome ────────┼──────── parked reply ◄────────────────────────┘        │
//!                       └──────── Action::Propose ◄──────────────────────────────┤
//!  agents ◄─────────────────────── Action::Send ◄────────────────────────────────┘
//! ```

// Tests may unwrap; the build without tests checks everything else for it.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod controller;

mod config;
mod directory;
pub mod queues;
mod repair;
mod settings;

mod pump;
mod since;
mod watch;

mod proposer;

mod raft;

mod accept;
mod http;
mod metrics;
mod rpc;

mod activity;
mod clock;
mod failure;
mod progress;

pub use config::{Config, ConfigError, OnDisconnect, PartError, Retention, SnapshotEvery};
pub use controller::{Claim, Controller, SnapshotRefused, StartError, claim, start, start_claimed};
pub use directory::{DirectoryError, wal_dir};
pub use docket_core::ledger::is_resource_name;
pub use repair::{Repair, RepairError};
pub use rpc::{Caller, REASON_KEY, ShutdownRequest, Sources, user_name};
