//! What proves docket from outside: real processes in a throw-away world, tidy rules, benchmarks.
//! It never reaches into a product crate: it drives the binary and the public services as users do.
//! Begin reading with [`world`], then `tests/real/main.rs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

pub mod bench;
pub mod client;
pub mod itself;
pub mod patience;
pub mod rounds;
pub mod skip;
pub mod tidy;
pub mod world;
