//! What people type, read strictly: a text with two readings is refused with both (design 7, Formats).

mod duration;
mod size;
mod words;

pub use duration::{duration, exact_duration, positive_duration};
pub use size::{exact_size, size};
pub use words::{label, nearest, signal, signal_name, state, task_id};
