//! One file a command: from arguments to requests, and their answers to a renderer. No formatting
//! here, no flags. Begin with `run.rs`, the one that does everything.

mod attend;
mod cancel;
mod cgroups;
mod completions;
mod config;
mod context;
mod copy;
mod doctor;
mod down;
mod edit;
mod explain;
#[cfg(test)]
mod fake;
mod follow;
mod from;
mod home;
mod input;
mod list;
mod logs;
mod nodes;
mod outcome;
mod repair;
mod retry;
mod run;
mod settings;
mod show;
mod sink;
mod stuck;
mod submit;
mod wait;
mod wal;
mod work;

pub use cancel::cancel;
pub use completions::completions;
pub use config::config;
pub use context::{Context, colour};
pub use doctor::doctor;
pub use down::down;
pub use edit::{Edit, edit, set};
pub use explain::{events, explain};
pub use home::home;
pub use list::list;
pub use logs::logs;
pub use nodes::{cluster_status, drain, nodes, undrain};
pub use retry::retry;
pub use run::run;
pub use settings::cluster_set;
pub use show::show;
pub use submit::submit;
pub use wait::wait;
pub use wal::{WalError, wal};
