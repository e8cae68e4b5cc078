//! Options of the commands that are a part of docket: the embedded node, a controller, an agent.

use crate::parse;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// `docket up`.
#[derive(Debug, Clone, Default, Args)]
pub struct UpArgs {
    /// Directory for everything [default: DOCKET_DATA, /var/lib/docket as root, ~/.local/share/docket/HOST]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address for gRPC [default: 127.0.0.1:7460, left out if it is taken]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Address for HTTP, /metrics [default: 127.0.0.1:7461, left out if it is taken]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Cpus to offer, a count [default: those this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// Memory to offer, such as 64G [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub mem: Option<u64>,
    /// GPUs to offer, a count: numbers 0 to N-1 [default: none]
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// So much of a named consumable to offer; may be repeated
    #[arg(long, value_name = "NAME=N", value_parser = parse::amount)]
    pub resource: Vec<(String, u64)>,
    /// Return when it serves, and leave it running; its log is DIR/up.log
    #[arg(long)]
    pub background: bool,
    /// End after this time without jobs and clients [default: never]
    #[arg(long, value_name = "DUR", allow_negative_numbers = true, value_parser = units::positive_duration)]
    pub idle_exit: Option<Duration>,
    /// Configuration file [default: DOCKET_CONFIG, ~/.config/docket/docket.toml, /etc/docket/docket.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Which of the processes of `--background` this is.
    #[arg(long, value_enum, hide = true)]
    pub stage: Option<Stage>,
}

/// The processes of a start in the background.
#[allow(missing_docs, reason = "a docstring would become help and stretch every line of it")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    // Leads a new session, starts the node, and ends, so that init becomes the node's parent.
    Launch,
    // The node itself.
    Serve,
}

/// `docket down`.
#[derive(Debug, Args)]
pub struct DownArgs {
    /// Directory of the node [default: the node that --server or DOCKET_SERVER names, else as for `docket up`]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// End its jobs too [default: they go on under their keeper]
    #[arg(long)]
    pub kill: bool,
}

/// `docket controller`.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// Directory of the log and the snapshots
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address for gRPC [default: 127.0.0.1:7460]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Address for HTTP, /metrics [default: 127.0.0.1:7461, left out if it is taken]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Configuration file [default: DOCKET_CONFIG, ~/.config/docket/docket.toml, /etc/docket/docket.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `docket agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Directory of the keeper's journal and the run files
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Addresses of the controllers, such as 127.0.0.1:7460
    #[arg(long, value_name = "ADDR[,ADDR]")]
    pub controllers: Option<String>,
    /// Name of the node [default: host name]
    #[arg(long, value_name = "N")]
    pub name: Option<String>,
    /// Cpus to offer, a count [default: those this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// Memory to offer, such as 64G [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub mem: Option<u64>,
    /// GPUs to offer, a count: numbers 0 to N-1 [default: none]
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// So much of a named consumable to offer; may be repeated
    #[arg(long, value_name = "NAME=N", value_parser = parse::amount)]
    pub resource: Vec<(String, u64)>,
    /// A label of the node; may be repeated
    #[arg(long, value_name = "K=V", value_parser = parse::label)]
    pub label: Vec<(String, String)>,
    /// Configuration file [default: DOCKET_CONFIG, ~/.config/docket/docket.toml, /etc/docket/docket.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
