//! From options to a submit request: validated once, here, into the wire type; no requests are made.
//! Begin with [`build`].

mod build;
mod environment;
mod header;
mod limits;
mod lines;

pub use build::{Here, Work, build};
pub use environment::{environment, own_entries};
pub use header::{Header, read_header};
pub use limits::{BLOB_MAX_BYTES, SPEC_MAX_BYTES};
pub use lines::read_line;

use std::path::PathBuf;

/// Why there is nothing to submit.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// No command.
    #[error("nothing to run: give a command: docket {0} -- CMD [ARG…]")]
    NoCommand(&'static str),
    /// The words without `--` name no file.
    #[error(
        "{script}: no script file there ({why}); a command needs -- before it: docket {verb} -- {script}"
    )]
    NoScript {
        /// What was given.
        script: String,
        /// What the system said.
        why: std::io::Error,
        /// `run` or `submit`.
        verb: &'static str,
    },
    /// A script that the kernel could not run.
    #[error("{0}: a script must begin with #! and an interpreter: put #!/bin/sh in its first line")]
    NoInterpreter(String),
    /// A header line that is not understood.
    #[error("{script}:{line}: {why}; see docket submit --help")]
    Header {
        /// The script.
        script: String,
        /// From 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A race of one.
    #[error("--race: only the tasks of an array can race: give --array N-M")]
    RaceAlone,
    /// `%q` in the name of an output file.
    #[error(
        "{option} {pattern}: there is no {unknown}: %j job, %t attempt, %n node, %x name, %u user, \
         %A array, %a task, each also with a width as in %4j; %% is a percent sign"
    )]
    Pattern {
        /// `--stdout` or `--stderr`.
        option: &'static str,
        /// The pattern.
        pattern: String,
        /// What stands behind the percent sign, with it.
        unknown: String,
    },
    /// A part is larger than is allowed.
    #[error("{what} is {size} bytes: at most {limit} are allowed{advice}")]
    TooLarge {
        /// Which part.
        what: String,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
        /// What to do instead.
        advice: &'static str,
    },
    /// More on standard input than travels with a job.
    #[error(
        "standard input is larger than {0} bytes (1 MiB): put it in a file and give --stdin FILE"
    )]
    StdinTooLarge(usize),
    /// A zero byte, which no process can be given.
    #[error("{0} holds a zero byte: no program can be given one; leave it out")]
    ZeroByte(String),
    /// An empty word where the program's name should be.
    #[error("the command is empty: give the name of a program")]
    EmptyCommand,
    /// `--env` or `--env-only` names a variable that is not set.
    #[error("--env {0}: you have no such variable; set it, or give {0}=VALUE")]
    NoVariable(String),
    /// Not a variable name.
    #[error("--env {0}: a variable is written NAME or NAME=VALUE")]
    BadVariable(String),
    /// Two entries of the submitter's environment have one name.
    #[error(
        "your environment has `{0}` twice, and programs disagree on which one counts: unset it, give \
         --env {0}=VALUE, or choose with --env-only or --clean-env"
    )]
    TwiceSet(String),
    /// An entry of the submitter's environment that is no variable.
    #[error(
        "your environment has the entry `{0}`, which is no NAME=VALUE: start docket without it, or \
         choose with --env-only or --clean-env"
    )]
    NoAssignment(String),
    /// The directory to run in cannot be named.
    #[error("the current directory is gone ({0}): cd somewhere, or give --dir")]
    NoDirectory(std::io::Error),
    /// A line of `--from` is not a job.
    #[error("{file}:{line}: {why}")]
    Line {
        /// The file.
        file: String,
        /// From 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A file cannot be read.
    #[error("{}: cannot be read: {why}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        why: std::io::Error,
    },
}
