//! The pure heart of the controller: the replicated ledger, the scheduler, and the leader's duties.
//! It never does I/O, reads a clock, draws a random number, locks or spawns: what it needs comes
//! in a log entry or an argument, and what must happen outside is read off its state.
//! Begin reading with `ledger/apply.rs`, the one transition function, then `ledger/state.rs`.

mod events;
mod explain;
#[cfg(test)]
mod explain_tests;
mod forecast;
mod held;
pub mod leader;
pub mod ledger;
pub mod scheduler;
mod words;

pub use events::events;
pub use explain::{Sight, Word, explain};
pub use forecast::forecast;
pub use held::left_on;
pub use words::duration as duration_words;
