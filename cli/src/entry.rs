//! From the words on the command line to an exit code. The keeper branches off first: it forks, so
//! it must run before clap, tokio, tracing or any thread.

use crate::args::{Cli, ClusterCommand, Command};
use crate::commands::{self, Context, Edit};
use crate::exit;
use crate::failure::Failure;
use crate::render::plain_help;
use crate::say::{note, print};
use crate::{roles, usage};
use clap::Parser;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::process::ExitCode;
use worker_agent::keeper;

/// The whole program.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| keeper::is_command(word)) {
        let code = keeper::main(words.into_iter(), env!("CARGO_PKG_VERSION"));
        return ExitCode::from(u8::try_from(code).unwrap_or(exit::FAILED));
    }
    let words = help_of_help(words);
    let code = match Cli::try_parse_from(&words) {
        Ok(cli) => finish(dispatch(cli, words)),
        Err(error) => refused(&error),
    };
    ExitCode::from(code)
}

/// `docket help --help` asks for help: clap takes the option for a command's name.
fn help_of_help(mut words: Vec<OsString>) -> Vec<OsString> {
    let asked = words.get(1).is_some_and(|word| word == "help")
        && words.get(2).is_some_and(|word| word == "--help" || word == "-h");
    if asked {
        words.truncate(2);
    }
    words
}

/// Help and version are answers; everything else is a wrong command line.
fn refused(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            finish(print(&plain_help(error, commands::colour())).map(|()| exit::DONE))
        }
        _ => {
            note(&usage::words(error));
            exit::USAGE
        }
    }
}

fn finish(result: Result<u8, Failure>) -> u8 {
    result.unwrap_or_else(|failure| {
        if let Some(line) = failure.line() {
            note(&line);
        }
        failure.exit_code()
    })
}

fn dispatch(cli: Cli, words: Vec<OsString>) -> Result<u8, Failure> {
    match &cli.command {
        Some(Command::Completions(args)) => return commands::completions(args),
        Some(Command::Wal(command)) => return commands::wal(command),
        _ => {}
    }
    let context = Context::new(words, &cli.global)?;
    match &cli.command {
        Some(Command::Up(args)) => roles::up(&context.places, args),
        Some(Command::Controller(args)) => roles::controller(&context.places, args),
        Some(Command::Agent(args)) => roles::agent(&context.places, args),
        Some(Command::Config(args)) => commands::config(&context, args),
        command => client(&context, command.as_ref()),
    }
}

/// Commands that ask a server: one thread is enough for them, and starts at once.
fn client(context: &Context, command: Option<&Command>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| Failure::System { what: "start the runtime", why })?;
    let result = runtime.block_on(ask(context, command));
    // A writer that is stuck on a closed pager must not hold up the exit.
    runtime.shutdown_background();
    result
}

async fn ask(context: &Context, command: Option<&Command>) -> Result<u8, Failure> {
    match command {
        Some(Command::Run(args)) => commands::run(context, args).await,
        Some(Command::Submit(args)) => commands::submit(context, args).await,
        Some(Command::List(args)) => commands::list(context, args).await,
        Some(Command::Show(args)) => commands::show(context, args).await,
        Some(Command::Wait(args)) => commands::wait(context, args).await,
        Some(Command::Logs(args)) => commands::logs(context, args).await,
        Some(Command::Cancel(args)) => commands::cancel(context, args).await,
        Some(Command::Hold(args)) => commands::edit(context, args, Edit::Hold).await,
        Some(Command::Release(args)) => commands::edit(context, args, Edit::Release).await,
        Some(Command::Suspend(args)) => commands::edit(context, args, Edit::Suspend).await,
        Some(Command::Resume(args)) => commands::edit(context, args, Edit::Resume).await,
        Some(Command::Set(args)) => commands::set(context, args).await,
        Some(Command::Retry(args)) => commands::retry(context, args).await,
        Some(Command::Explain(args)) => commands::explain(context, args).await,
        Some(Command::Events(args)) => commands::events(context, args).await,
        Some(Command::Nodes(args)) => commands::nodes(context, args).await,
        Some(Command::Drain(args)) => commands::drain(context, args).await,
        Some(Command::Undrain(args)) => commands::undrain(context, args).await,
        Some(Command::Down(args)) => commands::down(context, args).await,
        Some(Command::Doctor(args)) => commands::doctor(context, args).await,
        Some(Command::Cluster(ClusterCommand::Status { output })) => {
            commands::cluster_status(context, output.form()).await
        }
        Some(Command::Cluster(ClusterCommand::Set(args))) => {
            commands::cluster_set(context, args).await
        }
        // The rest was dispatched before the runtime was needed.
        _ => commands::home(context).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_of_help_is_help_and_that_of_a_command_stays() {
        let of = |line: &str| {
            let words = help_of_help(line.split(' ').map(OsString::from).collect());
            Cli::try_parse_from(words).unwrap_err().kind()
        };
        for line in ["docket help --help", "docket help -h", "docket help", "docket help wal"] {
            assert_eq!(of(line), ErrorKind::DisplayHelp, "{line}");
        }
        assert_eq!(of("docket help nonsense"), ErrorKind::InvalidSubcommand);
    }
}
