//! Why a command did not do what it was asked: one line for people, one exit code for scripts.

use crate::client::ClientError;
use crate::config::ConfigError;
use crate::exit;
use crate::roles::RoleError;
use crate::spec::SpecError;
use std::io;

/// Everything that can end a command early; [`crate::main`] alone turns it into an exit code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Between the command and its server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// There is nothing to submit.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A part of docket cannot start, or had to end.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// A log on disk cannot be read.
    #[error(transparent)]
    Wal(#[from] crate::commands::WalError),
    /// The reader of stdout went away: nothing is left to say.
    #[error("standard output was closed")]
    OutputClosed,
    /// stdout takes nothing.
    #[error("cannot write the output: {0}; look at where it goes")]
    Output(#[source] io::Error),
    /// stdout did not take the id of a job that is there now, so stderr tells it.
    #[error("job {job} is submitted, but its id cannot be written: {why}; see docket show {job}")]
    Unwritten {
        /// The job.
        job: u64,
        /// What the system said.
        why: io::Error,
    },
    /// stdin gives nothing.
    #[error("cannot read standard input: {0}; give --stdin FILE or null")]
    Input(#[source] io::Error),
    /// `--timeout` ran out.
    #[error("{what} after {limit}: it goes on; docket wait {ids}")]
    TimedOut {
        /// What still is.
        what: String,
        /// The limit.
        limit: String,
        /// What to wait for.
        ids: String,
    },
    /// A signal ended the command before its submit was answered.
    #[error("left before the server answered: it is not known whether there is a job; docket list")]
    LeftEarly,
    /// The command line is wrong in a way that clap does not see.
    #[error("{0}")]
    Usage(String),
    /// Some of several things went wrong; each was told when it happened.
    #[error("told")]
    Told(u8),
    /// This process cannot have what it needs from the system.
    #[error("cannot {what}: {why}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        why: io::Error,
    },
}

impl Failure {
    /// Exit code (design 7, Formats).
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Client(error) => error.exit_code(),
            Failure::Spec(_) | Failure::Config(_) | Failure::Usage(_) => exit::USAGE,
            Failure::Role(error) => error.exit_code(),
            Failure::TimedOut { .. } => exit::TIMEOUT,
            Failure::LeftEarly => exit::INTERRUPTED,
            Failure::Told(code) => *code,
            Failure::OutputClosed => exit::DONE,
            Failure::Wal(crate::commands::WalError::Denied(_)) => exit::DENIED,
            Failure::Wal(_)
            | Failure::Output(_)
            | Failure::Unwritten { .. }
            | Failure::Input(_)
            | Failure::System { .. } => exit::FAILED,
        }
    }

    /// The same failure where the output would have been the id of a job.
    pub fn of_submit(self, job: u64) -> Self {
        match self {
            Failure::Output(why) => Failure::Unwritten { job, why },
            Failure::OutputClosed => {
                let why = io::Error::from(io::ErrorKind::BrokenPipe);
                Failure::Unwritten { job, why }
            }
            other => other,
        }
    }

    /// The line for stderr; none where everything was said or nobody listens.
    pub fn line(&self) -> Option<String> {
        match self {
            Failure::OutputClosed | Failure::Told(_) => None,
            other => Some(other.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    /// Only writes to stdout use this: every other error knows what it was about.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Output(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_whose_id_could_not_be_written_is_named() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::BrokenPipe] {
            let failure = Failure::from(io::Error::from(kind)).of_submit(41);
            assert_eq!(failure.exit_code(), exit::FAILED);
            assert!(failure.line().unwrap().starts_with("job 41 is submitted, but"), "{failure}");
        }
    }
}
