//! Options of the commands that change jobs that are there.

use crate::parse;
use clap::Args;
use proto::TaskId;

/// `docket hold`, `release`, `suspend` and `resume`.
#[derive(Debug, Args)]
pub struct EditArgs {
    /// Job ids
    #[arg(required = true, value_name = "ID", value_parser = parse::task_id)]
    pub ids: Vec<TaskId>,
    /// Print the results as one JSON array
    #[arg(long)]
    pub json: bool,
}

/// `docket set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Which jobs, and how they answer.
    #[command(flatten)]
    pub jobs: EditArgs,
    /// Place in the queue, -1000 to 1000: higher starts first
    #[arg(long, value_name = "N", required = true, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    pub priority: i32,
}
