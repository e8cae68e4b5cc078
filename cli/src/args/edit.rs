//! Options of the commands that change jobs that are there.

use crate::parse::{self, Named};
use clap::Args;
use proto::v1::TimeChange;

/// `docket hold`, `release`, `suspend` and `resume`.
#[derive(Debug, Args)]
pub struct EditArgs {
    /// Job ids, or tasks as 123_0-9
    #[arg(required = true, value_name = "ID", value_parser = parse::named)]
    pub ids: Vec<Named>,
    /// Print the results as one JSON array
    #[arg(long)]
    pub json: bool,
}

/// `docket set`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true))]
pub struct SetArgs {
    /// Which jobs, and how they answer.
    #[command(flatten)]
    pub jobs: EditArgs,
    /// Place in the queue, -1000 to 1000: higher starts first
    #[arg(long, value_name = "N", group = "change", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    pub priority: Option<i32>,
    /// How many tasks of an array may run at once, a count, or none
    #[arg(long, value_name = "N", group = "change", allow_negative_numbers = true, value_parser = parse::array_limit)]
    pub array_limit: Option<u32>,
    /// Time limit from its start on, such as 2h; +30m or -30m changes the one it has; or none
    #[arg(short, long, value_name = "DUR", group = "change", allow_hyphen_values = true, value_parser = parse::time_change)]
    pub time: Option<TimeChange>,
    /// Name
    #[arg(short = 'J', long, value_name = "TEXT", group = "change")]
    pub name: Option<String>,
    /// Cpus to reserve, a count; not of a job that a node has
    #[arg(short, long, value_name = "N", group = "change", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// Memory to reserve, such as 2G; not of a job that a node has
    #[arg(long, value_name = "SIZE", group = "change", value_parser = units::size)]
    pub mem: Option<u64>,
}

/// `docket retry`.
#[derive(Debug, Args)]
pub struct RetryArgs {
    /// Job ids, or tasks as 123_0-9
    #[arg(required = true, value_name = "ID", value_parser = parse::named)]
    pub ids: Vec<Named>,
    /// Of an array only the tasks that failed
    #[arg(long)]
    pub failed: bool,
    /// Print the results as one JSON array
    #[arg(long)]
    pub json: bool,
}
