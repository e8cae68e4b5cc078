//! Names and numbers that people type, read strictly (design 7, Formats); durations and sizes are read
//! by the crate `units`.

mod after;
mod moment;
mod words;

pub use after::{
    After, after_any, after_each, after_not_ok, after_ok, after_start, dependency, slurm_dependency,
};
pub use moment::begin;
pub use words::{
    Fence, Named, amount, array, array_limit, exit_kind, fence, label, named, nearest, signal,
    signal_name, state, task_id, time_change, warn_signal, warn_text,
};
