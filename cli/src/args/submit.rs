//! Options of `submit` and `run`: what to run, with what, and where its output goes.

use super::AfterOptions;
use crate::parse::{self, Fence};
use clap::{Args, ValueEnum};
use proto::v1::{ArraySpec, ExitKind, WarnSignal};
use std::ffi::OsString;
use std::time::Duration;

/// `docket submit`.
#[derive(Debug, Args)]
#[command(
    after_help = "A SCRIPT is stored with the job; its `#DOCKET` and `#SBATCH` header lines are options.\nOptions here beat `#DOCKET` lines, and those `#SBATCH` lines; what docket cannot do of them is refused by name (docs/slurm.md).",
    override_usage = "docket submit [OPTIONS] -- CMD [ARG…]\n       docket submit [OPTIONS] SCRIPT [ARG…]\n       docket submit [OPTIONS] --from FILE.jsonl"
)]
pub struct SubmitArgs {
    /// The job's own options.
    #[command(flatten)]
    pub job: JobOptions,
    /// Submit one job a line of FILE, in the JSON form of `show`; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["words", "wait", "key", "stdin"])]
    pub from: Option<OsString>,
    /// Submit nothing: say whether, where and when it could run; exit 1 if no node ever could
    #[arg(long, conflicts_with_all = ["from", "wait", "key"])]
    pub dry_run: bool,
    /// Wait until the job has ended and exit as it did [default: print the id and return]
    #[arg(short = 'W', long)]
    pub wait: bool,
    /// Print JSON instead of the bare id
    #[arg(long)]
    pub json: bool,
    /// `-- CMD [ARG…]`, or SCRIPT [ARG…]
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub words: Vec<OsString>,
}

/// `docket run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "docket run [OPTIONS] -- CMD [ARG…]\n       docket run [OPTIONS] SCRIPT [ARG…]"
)]
pub struct RunArgs {
    /// The job's own options.
    #[command(flatten)]
    pub job: JobOptions,
    /// `-- CMD [ARG…]`, or SCRIPT [ARG…]
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub words: Vec<OsString>,
}

/// What a job is made of; also the options that `#DOCKET` header lines may hold.
#[derive(Debug, Clone, Default, Args)]
pub struct JobOptions {
    /// Name of the job [default: base name of the command]
    #[arg(short = 'J', long, value_name = "NAME")]
    pub name: Option<String>,
    /// Many tasks of the same: numbers such as 0-99, 0-99:2 or 1,3,5-7, and %N at once at most
    #[arg(short = 'a', long, value_name = "N-M[:S][%L]", value_parser = parse::array)]
    pub array: Option<ArraySpec>,
    /// What has to happen before it starts
    #[command(flatten)]
    pub after: AfterOptions,
    /// Keep it in the queue until docket release
    #[arg(short = 'H', long)]
    pub hold: bool,
    /// Tries beyond the first if it ends as --retry-on says, a count
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub retries: u32,
    /// Ends after which it is tried again [default: exit-code,signal,start-failed]
    #[arg(long, value_name = "END,…", value_delimiter = ',', value_parser = parse::exit_kind, requires = "retries", action = clap::ArgAction::Set)]
    pub retry_on: Vec<ExitKind>,
    /// Its node ends it after so long without a controller, or only proof of its end counts [default: the cluster's, 10m]
    #[arg(long, value_name = "DUR|proof", allow_negative_numbers = true, value_parser = parse::fence, requires = "retry_on")]
    pub fence_after: Option<Fence>,
    /// The first task of the array that is DONE cancels the others
    #[arg(long)]
    pub race: bool,
    /// Cpus to reserve, a count
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: u32,
    /// Memory to reserve, such as 2G or 512M [default: none reserved]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub mem: Option<u64>,
    /// GPUs to reserve, a count; CUDA_VISIBLE_DEVICES names those it is given [default: none, and it sees none]
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// Some of a named consumable, of its node or of the cluster (a licence); may be repeated
    #[arg(long, value_name = "NAME=N", value_parser = parse::amount)]
    pub resource: Vec<(String, u64)>,
    /// Wall time after which it is ended, such as 90s, 1h30m or 01:30:00 [default: no limit]
    #[arg(short, long, value_name = "DUR", allow_negative_numbers = true, value_parser = units::positive_duration)]
    pub time: Option<Duration>,
    /// Signal that warns of the time limit, sent so long before it; `B:` only to the main process [default time: 60s]
    #[arg(long, value_name = "[B:]SIG[@DUR]", value_parser = parse::warn_signal)]
    pub signal: Option<WarnSignal>,
    /// Directory to run in [default: where you stand]
    #[arg(short = 'D', long, value_name = "DIR")]
    pub dir: Option<OsString>,
    /// Set a variable, or pass one of yours; may be repeated
    #[arg(long, value_name = "K[=V]")]
    pub env: Vec<OsString>,
    /// Pass only these variables of yours [default: all but DOCKET_*, SSH_*, TERM* and such]
    #[arg(long, value_name = "K,…", value_delimiter = ',', action = clap::ArgAction::Set)]
    pub env_only: Vec<OsString>,
    /// Pass none of your variables
    #[arg(long, conflicts_with = "env_only")]
    pub clean_env: bool,
    /// Standard input: a file, `-` for yours (up to 1 MiB), or `null` [default: null]
    #[arg(long, value_name = "FILE|-|null")]
    pub stdin: Option<OsString>,
    /// File for standard output; %j job, %a task, %x name, %u user, %n node, %t attempt [default: kept by the node]
    #[arg(short = 'o', long, value_name = "PATTERN")]
    pub stdout: Option<OsString>,
    /// File for standard error; patterns as for --stdout [default: kept by the node]
    #[arg(short = 'e', long, value_name = "PATTERN")]
    pub stderr: Option<OsString>,
    /// What the first attempt does with existing output files
    #[arg(long, value_name = "MODE", value_enum, default_value_t = OpenMode::Truncate)]
    pub open_mode: OpenMode,
    /// Run only on this node
    #[arg(short = 'w', long, value_name = "N")]
    pub node: Option<String>,
    /// Run only on nodes with this label; may be repeated
    #[arg(long, value_name = "K=V", value_parser = parse::label)]
    pub node_label: Vec<(String, String)>,
    /// Queue
    #[arg(short = 'p', long, value_name = "NAME", default_value = "default")]
    pub queue: String,
    /// Priority, -1000 to 1000, higher starts first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    pub priority: i32,
    /// What the job becomes when its node's agent dies [default: the cluster's]
    #[arg(long, value_name = "WHAT", value_enum)]
    pub on_disconnect: Option<Disconnect>,
    /// Your own request id: the same key again gives the same job
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Exit codes that count as success, 0 to 255
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0", action = clap::ArgAction::Set)]
    pub success_codes: Vec<u8>,
    /// Time between SIGTERM and SIGKILL [default: the node's, 10s]
    #[arg(long, value_name = "DUR", allow_negative_numbers = true, value_parser = units::duration)]
    pub kill_grace: Option<Duration>,
    /// Set Slurm's variables too (SLURM_JOB_ID, …) and pass none of yours that begin so [default: with #SBATCH lines]
    #[arg(long)]
    pub slurm_env: bool,
    /// What only `#SBATCH` lines say.
    #[arg(skip)]
    pub slurm: SlurmFacts,
    /// A note for people, shown by `show`
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
}

/// What `#SBATCH` lines say that no option of docket does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlurmFacts {
    /// The queue is what they call a partition.
    pub partition: bool,
    /// Wait for the end.
    pub wait: bool,
    /// Tasks in Slurm's sense, all on one node; 0: not said.
    pub tasks: u32,
    /// What `--ntasks-per-node` said.
    pub tasks_per_node: Option<u32>,
}

/// `--open-mode`.
#[allow(missing_docs, reason = "a docstring would become help and stretch every line of it")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OpenMode {
    // Empty the file first.
    #[default]
    Truncate,
    // Write behind what is there.
    Append,
}

/// `--on-disconnect`.
#[allow(missing_docs, reason = "a docstring would become help and stretch every line of it")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Disconnect {
    // EXIT agent-died at once.
    Exit,
    // UNKWN until the agent is back or the time-out settles it.
    Unknown,
}
