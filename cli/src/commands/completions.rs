//! `docket completions`.

use crate::args::{Cli, CompletionsArgs};
use crate::exit;
use crate::failure::Failure;
use clap::CommandFactory;
use std::io::Write;

/// Prints the script of a shell.
pub fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "docket", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(exit::DONE)
}
