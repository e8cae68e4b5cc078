//! The configuration (design 7): option beats environment beats file beats default, and each value
//! knows where it came from. Begin with [`Settings`].

mod keys;
mod settings;

pub use keys::{Key, Kind};
pub use settings::{Settings, client_server};

use std::path::PathBuf;

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {why}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        why: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{}: not TOML: {why}", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// What is wrong, on one line.
        why: String,
    },
    /// No such section.
    #[error("{place}: no section [{section}]: there are [client], [controller] and [agent]{}", nearest_text(nearest.as_deref()))]
    Section {
        /// Where it stands.
        place: String,
        /// What it is called.
        section: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// No such key.
    #[error("{place}: no key {key} in [{section}]{}; docket config lists all", nearest_text(nearest.as_deref()))]
    Key {
        /// Where it stands.
        place: String,
        /// Its section.
        section: String,
        /// What it is called.
        key: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// A value that cannot be.
    #[error("{place}: {key}: {why}")]
    Value {
        /// Where it stands.
        place: String,
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
}

fn nearest_text(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |name| format!("; the nearest is {name}"))
}
