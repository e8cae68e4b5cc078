//! What can go wrong between a command and its server, and the exit code each case has (design 7).

use super::retry::reason;
use super::{Address, AddressError};
use crate::exit;
use std::path::PathBuf;
use tonic::{Code, Status};

/// Why a request has no answer, or not the one that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// `--server`, `DOCKET_SERVER` or the file names no address.
    #[error("{origin}: {error}")]
    Address {
        /// What named it.
        origin: String,
        /// What is wrong with it.
        error: AddressError,
    },
    /// Nobody answers anywhere.
    #[error("no docket server: tried {}; {}", tried_text(tried), if *named { "is it up? docket doctor" } else { "start one: docket up --background" })]
    NoServer {
        /// Each place and why it is none.
        tried: Vec<(String, String)>,
        /// The user named the places.
        named: bool,
    },
    /// It answered once and is gone; the request was not acknowledged.
    #[error("{server} is away: {why}; {advice}", advice = away_advice(*mutation))]
    Away {
        /// Where it was.
        server: Address,
        /// What the last try met.
        why: String,
        /// The request changes something.
        mutation: bool,
    },
    /// The server said no.
    #[error("{message}")]
    Refused {
        /// gRPC code of the refusal.
        code: Code,
        /// The server's own words: what, why, what to do.
        message: String,
    },
    /// The home directory is not known, so neither is the default directory.
    #[error(
        "no home directory for uid {uid}: HOME is not set; set DOCKET_DATA to a directory of yours"
    )]
    NoHome {
        /// Who asks.
        uid: u32,
    },
    /// The host name is needed for a default and cannot be read.
    #[error("{0}: not a directory name that can be used; set DOCKET_DATA", path.display())]
    BadDefault {
        /// What it would be.
        path: PathBuf,
    },
}

impl ClientError {
    /// The refusal that a status carries.
    pub fn refused(status: &Status) -> Self {
        let message = match (status.message(), reason(status)) {
            ("", _) => format!("the server refused: {}", status.code()),
            (text, Some("no-such-job")) => format!("{text}; docket list --all"),
            (text, _) => text.to_owned(),
        };
        ClientError::Refused { code: status.code(), message }
    }

    /// Exit code of the command that met it.
    pub fn exit_code(&self) -> u8 {
        match self {
            ClientError::Address { .. } => exit::USAGE,
            ClientError::NoServer { .. } | ClientError::Away { .. } => exit::NO_SERVER,
            ClientError::Refused { code, .. } => refusal_exit(*code),
            ClientError::NoHome { .. } | ClientError::BadDefault { .. } => exit::FAILED,
        }
    }
}

/// Exit code of a refusal by its gRPC code.
fn refusal_exit(code: Code) -> u8 {
    match code {
        Code::NotFound => exit::NO_JOB,
        Code::PermissionDenied | Code::Unauthenticated => exit::DENIED,
        Code::ResourceExhausted | Code::Unavailable | Code::DeadlineExceeded | Code::Aborted => {
            exit::AGAIN
        }
        Code::InvalidArgument => exit::USAGE,
        _ => exit::FAILED,
    }
}

/// Exit code of one refusal among several results, by the number of its gRPC code.
pub fn result_exit(number: u32) -> u8 {
    let code = Code::from_i32(i32::try_from(number).unwrap_or(0));
    refusal_exit(code).max(exit::FAILED)
}

fn tried_text(tried: &[(String, String)]) -> String {
    let each: Vec<String> = tried.iter().map(|(place, why)| format!("{place} ({why})")).collect();
    each.join(", ")
}

fn away_advice(mutation: bool) -> &'static str {
    if mutation {
        "it is not known whether the request took effect: look with docket list --all"
    } else {
        "try again, or look with docket doctor"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_the_exit_code_of_the_contract() {
        for (code, expected) in [
            (Code::NotFound, 66),
            (Code::PermissionDenied, 77),
            (Code::Unauthenticated, 77),
            (Code::ResourceExhausted, 75),
            (Code::Unavailable, 75),
            (Code::DeadlineExceeded, 75),
            (Code::InvalidArgument, 2),
            (Code::FailedPrecondition, 1),
            (Code::AlreadyExists, 1),
            (Code::Internal, 1),
        ] {
            assert_eq!(refusal_exit(code), expected, "{code:?}");
        }
    }

    #[test]
    fn no_server_says_what_was_tried_and_how_to_start_one() {
        let tried = vec![("/a/docket.sock".to_owned(), "not there".to_owned())];
        let error = ClientError::NoServer { tried, named: false };
        assert_eq!(error.exit_code(), 69);
        assert_eq!(
            error.to_string(),
            "no docket server: tried /a/docket.sock (not there); start one: docket up --background"
        );
    }
}
