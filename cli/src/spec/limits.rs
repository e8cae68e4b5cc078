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
    pattern("--stdout", spec.stdout_pattern.as_deref().unwrap_or_default())?;
    pattern("--stderr", spec.stderr_pattern.as_deref().unwrap_or_default())?;
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

/// The node leaves what it does not know as it is, so a slip would become a file name.
fn pattern(option: &'static str, pattern: &[u8]) -> Result<(), SpecError> {
    no_zero(option, pattern)?;
    let mut rest = pattern;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        let digits = rest[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let end = at + 1 + digits;
        if !rest.get(end).is_some_and(|key| b"jAatnxu%".contains(key)) {
            let shown = String::from_utf8_lossy(&rest[at..]);
            return Err(SpecError::Pattern {
                option,
                pattern: String::from_utf8_lossy(pattern).into_owned(),
                unknown: shown.chars().take(digits + 2).collect(),
            });
        }
        rest = &rest[end + 1..];
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_the_node_knows_stands_behind_a_percent_sign() {
        for good in ["", "out.txt", "%j-%A_%4a.%t.%n.%x.%u", "100%%", "%010j"] {
            assert!(pattern("--stdout", good.as_bytes()).is_ok(), "{good}");
        }
        for (bad, unknown) in [("%q", "%q"), ("a%4z", "%4z"), ("%%%", "%"), ("%J.out", "%J")] {
            let text = pattern("--stderr", bad.as_bytes()).unwrap_err().to_string();
            let start = format!("--stderr {bad}: there is no {unknown}: %j job");
            assert!(text.starts_with(&start), "{text}");
        }
        assert!(pattern("--stdout", b"a\0").is_err());
    }

    proptest! {
        #[test]
        fn no_pattern_panics(bytes: Vec<u8>) {
            let _ = pattern("--stdout", &bytes);
        }
    }
}
