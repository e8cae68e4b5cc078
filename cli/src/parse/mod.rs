//! Names and numbers that people type, read strictly (design 7, Formats); durations and sizes are read
//! by the crate `units`.

mod words;

pub use words::{
    Fence, Named, array, array_limit, exit_kind, fence, label, named, nearest, signal, signal_name,
    state, task_id, time_change, warn_signal, warn_text,
};
