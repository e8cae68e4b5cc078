//! Durations and sizes as people write them: one grammar for the command line, the configuration and
//! the environment (design 7, Formats; `docs/units.md`). It never guesses: a text with two readings is
//! refused with both. Begin reading with `duration.rs`.

// Tests may unwrap; the build without tests checks everything else for it.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod duration;
mod size;

pub use duration::{DurationError, duration, exact_duration, positive_duration};
pub use size::{SizeError, exact_size, size};
