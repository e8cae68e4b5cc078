//! Sizes that a job may have (design 7, Formats); the server holds the same limits.

use super::SpecError;
use prost::Message;
use proto::v1;

/// Largest encoded specification, script and arguments included.
pub const SPEC_MAX_BYTES: usize = 1 << 20;
/// Largest environment, and largest standard input that travels with a job.
pub const BLOB_MAX_BYTES: usize = 1 << 20;
/// Longest argument or variable that Linux hands to a program (MAX_ARG_STRLEN less its zero).
pub const ARGUMENT_MAX_BYTES: usize = 131_071;

/// Refuses a request that the server or the kernel would refuse.
pub(super) fn check(request: &v1::SubmitRequest) -> Result<(), SpecError> {
    let spec = request.spec.as_ref().ok_or(SpecError::EmptyCommand)?;
    for (at, argument) in spec.argv.iter().enumerate() {
        one_string(&format!("argument {at}"), argument)?;
    }
    for variable in request.env.iter().flat_map(|env| &env.vars) {
        let name = variable.split(|b| *b == b'=').next().unwrap_or_default();
        one_string(&format!("variable {}", String::from_utf8_lossy(name)), variable)?;
    }
    no_zero("the directory", &spec.dir)?;
    let script = "; put the script in a file that the node can read";
    too_large("the job (command, script and options)", spec.encoded_len(), SPEC_MAX_BYTES, script)?;
    let fewer = "; pass fewer variables with --env-only";
    let env_bytes = request.env.as_ref().map_or(0, Message::encoded_len);
    too_large("the environment", env_bytes, BLOB_MAX_BYTES, fewer)?;
    match request.stdin.as_ref().map_or(0, Vec::len) {
        0..=BLOB_MAX_BYTES => Ok(()),
        _ => Err(SpecError::StdinTooLarge(BLOB_MAX_BYTES)),
    }
}

fn one_string(what: &str, bytes: &[u8]) -> Result<(), SpecError> {
    no_zero(what, bytes)?;
    too_large(what, bytes.len(), ARGUMENT_MAX_BYTES, "; pass it in a file")
}

fn no_zero(what: &str, bytes: &[u8]) -> Result<(), SpecError> {
    if bytes.contains(&0) { Err(SpecError::ZeroByte(what.to_owned())) } else { Ok(()) }
}

fn too_large(what: &str, size: usize, limit: usize, advice: &'static str) -> Result<(), SpecError> {
    if size > limit {
        return Err(SpecError::TooLarge { what: what.to_owned(), size, limit, advice });
    }
    Ok(())
}
