//! Options of the commands for operators.

use super::jobs::OutputArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `docket nodes`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct NodesArgs {
    /// What is done to a node.
    #[command(subcommand)]
    pub command: Option<NodesCommand>,
    /// Instead: attempts that nodes hold and that are not known here; they are not killed
    #[arg(long)]
    pub strays: bool,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `docket nodes …`.
#[derive(Debug, Subcommand)]
pub enum NodesCommand {
    /// Vouch that nothing lives on a lost node, so that what waits for proof of that is tried again
    ConfirmDead {
        /// Name of the node, or its agent's id
        node: String,
    },
}

/// `docket drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Names of nodes, or their agents' ids
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Why, for people
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

/// `docket undrain`.
#[derive(Debug, Args)]
pub struct UndrainArgs {
    /// Names of nodes, or their agents' ids
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
}

/// `docket config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Configuration file [default: DOCKET_CONFIG, ~/.config/docket/docket.toml, /etc/docket/docket.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `docket doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directory to judge [default: as for `docket up`]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `docket cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Who leads, what is applied, how many tasks there are
    Status {
        /// Form of the output.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show the values of the cluster, or set one of them; admins only
    Set(SettingArgs),
}

/// `docket cluster set`.
#[derive(Debug, Args)]
pub struct SettingArgs {
    /// Which value; queues.NAME.KEY is one of a queue [default: all are shown]
    #[arg(value_name = "KEY")]
    pub key: Option<String>,
    /// What it is set to; none takes a limit away [default: it is shown]
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub value: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `docket wal`.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Read every byte and say whether the log is whole; changes nothing
    Verify {
        /// Directory of the log, or the data directory above it
        dir: PathBuf,
    },
    /// Print every record with its file and offset
    Dump {
        /// Directory of the log, or the data directory above it
        dir: PathBuf,
        /// Print JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Give up what a damaged log can no longer prove; explains and asks first
    ///
    /// For a controller that refuses to start because acknowledged data are damaged, and of which
    /// there is no better copy. Keeps everything before the damage, moves the damaged files aside,
    /// holds the jobs that waited (some of them may have run), and never gives a job id again.
    Repair {
        /// Data directory of the controller, which must not run
        dir: PathBuf,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Print sizes, positions and counts
    Stat {
        /// Directory of the log, or the data directory above it
        dir: PathBuf,
    },
}

/// `docket completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    pub shell: clap_complete::Shell,
}
