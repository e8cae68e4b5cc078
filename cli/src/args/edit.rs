//! Options of the commands that change jobs that are there.

use crate::parse::{self, Named};
use clap::Args;

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
}
