//! The parts of docket that run on: the embedded node, a controller, an agent. Thin shells around
//! `controller::start` and `worker_agent::run`. Begin with `up.rs`.

mod agent;
mod background;
mod controller;
mod data_dir;
mod embedded;
mod ending;
mod listen;
mod lock;
mod logging;
mod port_owner;
mod up;

pub use agent::agent;
pub use background::{Background, start_in_background};
pub use controller::controller;
pub use data_dir::network_file_system;
pub use lock::{Holder, gone};
pub use up::up;

use crate::exit;
use std::io;
use std::path::PathBuf;

/// Why a part does not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// Another node, or a controller, has the directory.
    #[error(
        "{0} is in use: {holder} runs there; docket down --data {0} ends it, or give --data another \
         directory",
        dir.display()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Who has it.
        holder: Holder,
    },
    /// The directory is a part of one that is in use.
    #[error(
        "{} lies inside {}, where {holder} runs; give --data a directory of its own",
        dir.display(),
        outer.display()
    )]
    Inside {
        /// The directory.
        dir: PathBuf,
        /// What it lies in.
        outer: PathBuf,
        /// Who has that.
        holder: Holder,
    },
    /// A part of the directory is in use as another's.
    #[error(
        "{} cannot be used: {holder} runs on {1}, inside of it; docket down --data {1} ends that one",
        dir.display(),
        inner.display()
    )]
    Around {
        /// The directory.
        dir: PathBuf,
        /// What lies in it.
        inner: PathBuf,
        /// Who has that.
        holder: Holder,
    },
    /// The directory is somebody else's.
    #[error("{} belongs to uid {owner}, not to you: give --data a directory of your own", dir.display())]
    NotYours {
        /// The directory.
        dir: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others may write in the directory.
    #[error("{} can be written by others (mode {mode:o}): chmod 700 it, or give --data another", dir.display())]
    Open {
        /// The directory.
        dir: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file has the name.
    #[error("{} is not a directory; give --data a directory of your own", path.display())]
    NoDirectory {
        /// Which path.
        path: PathBuf,
    },
    /// The directory cannot be used.
    #[error("cannot use {}: {why}; give --data a directory of your own", path.display())]
    Directory {
        /// Which path.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// An address that was asked for cannot be served.
    #[error("cannot listen on {address}: {why}; {advice}")]
    Listen {
        /// Which.
        address: String,
        /// What the system said.
        why: io::Error,
        /// Who has it, if that is known, and what to do.
        advice: String,
    },
    /// Not an address.
    #[error("{option} {address}: an address is written {example}")]
    BadAddress {
        /// Its option.
        option: &'static str,
        /// What was given.
        address: String,
        /// What is right.
        example: &'static str,
    },
    /// An address that others can reach, with nothing that tells who they are.
    #[error(
        "{option} {address}: only loopback is served in this version: without TLS nobody could tell who asks; use 127.0.0.1:PORT"
    )]
    NotLoopback {
        /// Its option.
        option: &'static str,
        /// What was given.
        address: String,
    },
    /// No directory is named.
    #[error("no data directory: give --data DIR, or set DOCKET_DATA")]
    NoData,
    /// No controller is named.
    #[error("no controllers: give --controllers HOST:PORT, or agent.controllers in the file")]
    NoControllers,
    /// The controller does not start.
    #[error(transparent)]
    Controller(#[from] ::controller::StartError),
    /// The agent does not start, or is refused.
    #[error(transparent)]
    Agent(#[from] worker_agent::AgentError),
    /// It cannot go on.
    #[error("had to stop: {0}")]
    Failed(String),
    /// The node in the background said why it does not start.
    #[error("{message}")]
    Background {
        /// Its exit code.
        code: u8,
        /// Its words.
        message: String,
    },
    /// The node in the background says nothing.
    #[error("the node in {} {what}: look into {}", dir.display(), dir.join("up.log").display())]
    Silent {
        /// Its directory.
        dir: PathBuf,
        /// What it does instead.
        what: &'static str,
    },
    /// A node has the directory and does not serve.
    #[error(
        "the node in {} (pid {pid}) does not answer: {why}; look into {}, docket down ends it",
        dir.display(),
        dir.join("up.log").display()
    )]
    NotServing {
        /// Its directory.
        dir: PathBuf,
        /// Who has it.
        pid: String,
        /// What it says instead.
        why: String,
    },
    /// The system refuses something that every part needs.
    #[error("cannot {what}: {why}")]
    System {
        /// What.
        what: &'static str,
        /// What the system said.
        why: io::Error,
    },
}

impl RoleError {
    /// Exit code of the command that met it.
    pub fn exit_code(&self) -> u8 {
        match self {
            RoleError::NotYours { .. } => exit::DENIED,
            RoleError::Directory { why, .. } if why.kind() == io::ErrorKind::PermissionDenied => {
                exit::DENIED
            }
            RoleError::BadAddress { .. }
            | RoleError::NotLoopback { .. }
            | RoleError::NoData
            | RoleError::NoControllers => exit::USAGE,
            RoleError::Background { code, .. } => *code,
            _ => exit::FAILED,
        }
    }
}
