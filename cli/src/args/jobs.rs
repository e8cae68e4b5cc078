//! Options of the commands that read or end jobs.

use crate::parse::{self, Named};
use clap::{Args, ValueEnum};
use proto::TaskId;
use std::time::Duration;

/// Form of what a reading command prints.
#[allow(missing_docs, reason = "a docstring would become help and stretch every line of it")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    // For people, at the width of the terminal.
    Table,
    // One array.
    Json,
    // One object a line.
    Jsonl,
    // Ids alone, one a line.
    Id,
}

/// `-o` and `--json` of the reading commands.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// Form of the output
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Same as -o json
    #[arg(long)]
    json: bool,
}

impl OutputArgs {
    /// The form that was asked for.
    pub fn form(self) -> Output {
        if self.json { Output::Json } else { self.output }
    }
}

/// `docket show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Job ids, or tasks as 123_0-9
    #[arg(required = true, value_name = "ID", value_parser = parse::named)]
    pub ids: Vec<Named>,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `docket list`.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// Also jobs that ended long ago [default: live, and ended in the last hour]
    #[arg(long)]
    pub all: bool,
    /// Jobs of every user [default: your own]
    #[arg(long, conflicts_with = "user")]
    pub all_users: bool,
    /// Jobs of this user [default: you]
    #[arg(long, value_name = "U")]
    pub user: Option<String>,
    /// Only these states: PEND RUN SUSP UNKWN DONE EXIT
    #[arg(long, value_name = "S,…", value_delimiter = ',', value_parser = parse::state)]
    pub state: Vec<String>,
    /// Only jobs that failed (EXIT)
    #[arg(long)]
    pub failed: bool,
    /// Only names that match this pattern, such as 'prep*'
    #[arg(long, value_name = "GLOB")]
    pub name: Option<String>,
    /// Also jobs that ended within this time
    #[arg(long, value_name = "DUR", allow_negative_numbers = true, default_value = "1h", value_parser = units::positive_duration)]
    pub since: Duration,
    /// Columns to print [default: id,name,user,state,time,cpus,node,reason]
    #[arg(long, value_name = "COLS", value_delimiter = ',', value_enum)]
    pub format: Vec<Column>,
    /// Order of the rows
    #[arg(long, value_name = "BY", value_enum, default_value_t = SortBy::Id)]
    pub sort: SortBy,
    /// At most this many of the newest jobs, the oldest of them first [default: 1000 in a table, all in JSON]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Instead: what nodes told of jobs that are not known here
    #[arg(long, conflicts_with_all = ["all", "all_users", "user", "state", "failed", "name", "since", "format", "sort"])]
    pub orphans: bool,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A column of `list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "a docstring would become help and stretch every line of it")]
pub enum Column {
    Id,
    Name,
    User,
    State,
    Time,
    Cpus,
    Gpus,
    Resources,
    Node,
    Reason,
    Queue,
    Priority,
    Attempt,
    Dir,
    Command,
}

/// Order of the rows of `list`.
#[allow(missing_docs, reason = "a docstring would become help and stretch every line of it")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    // By job id, the newest last.
    Id,
    // By name, then id.
    Name,
    // By state: live ones first.
    State,
    // By time in the state shown, the longest last.
    Time,
}

/// `docket wait`.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Job ids, or tasks as 123_0-9
    #[arg(required = true, value_name = "ID", value_parser = parse::named)]
    pub ids: Vec<Named>,
    /// Give up after this time with exit code 124 [default: never]
    #[arg(long, value_name = "DUR", allow_negative_numbers = true, value_parser = units::duration)]
    pub timeout: Option<Duration>,
    /// Return when the first of them has ended, and print its id [default: when all have]
    #[arg(long)]
    pub any: bool,
    /// Print the ended jobs as JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// `docket logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Job id
    #[arg(value_name = "ID", value_parser = parse::task_id)]
    pub id: TaskId,
    /// Go on until the job has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Standard error [default: standard output]
    #[arg(long)]
    pub stderr: bool,
    /// Only the last lines, a count
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub tail: Option<u64>,
    /// Begin at this byte
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
    /// Which attempt, from 1 [default: the newest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub attempt: Option<u32>,
}

/// `docket cancel`.
#[derive(Debug, Args)]
#[command(
    override_usage = "docket cancel ID…\n       docket cancel [--user U] [--name GLOB] [--state S,…] [--all]"
)]
pub struct CancelArgs {
    /// Job ids
    #[arg(value_name = "ID", value_parser = parse::named, required_unless_present_any = ["user", "name", "state", "all"], conflicts_with_all = ["user", "name", "state", "all"])]
    pub ids: Vec<Named>,
    /// Live jobs of this user
    #[arg(long, value_name = "U")]
    pub user: Option<String>,
    /// Live jobs whose name matches this pattern
    #[arg(long, value_name = "GLOB")]
    pub name: Option<String>,
    /// Live jobs in these states
    #[arg(long, value_name = "S,…", value_delimiter = ',', value_parser = parse::state)]
    pub state: Vec<String>,
    /// All your live jobs
    #[arg(long)]
    pub all: bool,
    /// Send only this signal, such as USR1 or 10 [default: TERM, then KILL after the grace]
    #[arg(long, value_name = "S", value_parser = parse::signal)]
    pub signal: Option<u32>,
    /// Do not ask before a set of jobs is cancelled
    #[arg(short, long)]
    pub yes: bool,
    /// Print the results as one JSON array
    #[arg(long)]
    pub json: bool,
}

/// `docket events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Job id
    #[arg(value_name = "ID", value_parser = parse::task_id)]
    pub id: TaskId,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `docket explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Job ids
    #[arg(required = true, value_name = "ID", value_parser = parse::task_id)]
    pub ids: Vec<TaskId>,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}
