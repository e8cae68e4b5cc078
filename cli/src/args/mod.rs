//! Flag definitions, and nothing else: no logic, no requests, no formatting (design 9, rule 22).
//! Every option has a one-line help with its unit and default; design 7 is the contract.

mod after;
mod edit;
mod jobs;
mod operate;
mod roles;
mod submit;

pub use after::AfterOptions;
pub use edit::{EditArgs, RetryArgs, SetArgs};
pub use jobs::{
    CancelArgs, Column, EventsArgs, ExplainArgs, ListArgs, LogsArgs, Output, ShowArgs, SortBy,
    WaitArgs,
};
pub use operate::{
    ClusterCommand, CompletionsArgs, ConfigArgs, DoctorArgs, DrainArgs, NodesArgs, NodesCommand,
    SettingArgs, UndrainArgs, WalCommand,
};
pub use roles::{AgentArgs, ControllerArgs, DownArgs, Stage, UpArgs};
pub use submit::{Disconnect, JobOptions, OpenMode, RunArgs, SlurmFacts, SubmitArgs};

use clap::{Parser, Subcommand};
use std::sync::OnceLock;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "docket",
    // Whatever the file is called: messages and hints name commands as the documentation does.
    bin_name = "docket",
    version,
    long_version = long_version(),
    about = "Runs jobs and tells the truth about how they ended",
    args_override_self = true,
    disable_help_subcommand = false,
    max_term_width = 100
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do; absent: what is there and what to type.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The version, and what this program was built with that users do not get.
fn long_version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let features = match proto::FEATURES {
            [] => "none".to_owned(),
            some => some.join(", "),
        };
        format!("{}\nfeatures: {features}", env!("CARGO_PKG_VERSION"))
    })
}

/// Options of every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Global {
    /// Server to ask, tried in order [default: DOCKET_SERVER, then the sockets of this machine]
    #[arg(long, global = true, value_name = "URL[,URL…]", help_heading = "Global options")]
    pub server: Option<String>,
}

/// The commands, in the order in which help shows them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command and wait for it: its output, its exit code
    Run(Box<RunArgs>),
    /// Queue a command or a script and print its job id
    Submit(Box<SubmitArgs>),
    /// Show jobs: live ones, and those that ended in the last hour
    List(ListArgs),
    /// Show one job in full
    Show(ShowArgs),
    /// Wait until jobs have ended; exit as the job did
    Wait(WaitArgs),
    /// Print a job's output, also while it runs
    Logs(LogsArgs),
    /// End jobs: SIGTERM to the whole tree, SIGKILL after the grace
    Cancel(CancelArgs),
    /// Keep jobs in the queue until they are released
    Hold(EditArgs),
    /// Let held jobs start
    Release(EditArgs),
    /// Stop the whole tree of jobs until they are resumed: by the cgroup freezer, else SIGSTOP
    Suspend(EditArgs),
    /// Let suspended jobs go on
    Resume(EditArgs),
    /// Change jobs that are there
    Set(SetArgs),
    /// Submit jobs again that have ended, and print the new ids
    Retry(RetryArgs),
    /// Say in words why a job is in its state
    #[command(visible_alias = "why")]
    Explain(ExplainArgs),
    /// Time line of a job: time, log position, who, what
    Events(EventsArgs),
    /// Show the nodes, their state and what they run
    Nodes(NodesArgs),
    /// Keep new jobs from nodes; what runs there goes on
    Drain(DrainArgs),
    /// Let new jobs go to drained nodes again
    Undrain(UndrainArgs),
    /// Start a node here: one controller and one agent in one process
    Up(UpArgs),
    /// End the node that runs here; its jobs go on
    Down(DownArgs),
    /// Run one controller
    Controller(ControllerArgs),
    /// Run one node's agent
    Agent(AgentArgs),
    /// Tell what this machine can do: cgroups, limits, clock, disk, ports, versions
    Doctor(DoctorArgs),
    /// Print every setting in force and where it came from
    Config(ConfigArgs),
    /// Ask about the cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Look into a write-ahead log on disk
    #[command(subcommand)]
    Wal(WalCommand),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_version_tells_that_nothing_is_built_in_that_users_do_not_get() {
        let text = Cli::command().render_long_version();
        assert_eq!(text, format!("docket {}\nfeatures: none\n", env!("CARGO_PKG_VERSION")));
        assert!(proto::FEATURES.is_empty());
    }
}
