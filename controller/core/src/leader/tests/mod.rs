//! The leader's duties against a real ledger, told as scripts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

mod chaos;
mod join;
mod judge;
mod lease;
mod loss;
mod orders;
mod report;
mod storm;
mod world;
