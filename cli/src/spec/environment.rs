//! Which of the submitter's variables go with a job (design 7, Jobs).

use super::SpecError;
use crate::args::JobOptions;
use proto::v1::EnvBlob;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Variables that describe the submitter's session, not the work.
const SESSION_NAMES: [&str; 2] = ["XDG_RUNTIME_DIR", "DISPLAY"];
/// Beginnings of such names.
const SESSION_PREFIXES: [&str; 4] = ["DOCKET_", "DBUS_", "SSH_", "TERM"];

/// The environment of a job, sorted so that equal ones have equal bytes and are stored once.
pub fn environment(
    mine: &[(OsString, OsString)],
    options: &JobOptions,
) -> Result<EnvBlob, SpecError> {
    let mut chosen: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (name, value) in mine {
        if passes(name, options) {
            chosen.insert(name.as_bytes().to_vec(), value.as_bytes().to_vec());
        }
    }
    for name in &options.env_only {
        if !mine.iter().any(|(known, _)| known == name) {
            return Err(SpecError::NoVariable(shown(name)));
        }
    }
    for given in &options.env {
        let (name, value) = given_variable(given, mine)?;
        chosen.insert(name, value);
    }
    let joined = |(name, value): (Vec<u8>, Vec<u8>)| [name.as_slice(), b"=", &value].concat();
    Ok(EnvBlob { vars: chosen.into_iter().map(joined).collect() })
}

fn passes(name: &OsStr, options: &JobOptions) -> bool {
    if options.clean_env {
        return false;
    }
    if !options.env_only.is_empty() {
        return options.env_only.iter().any(|wanted| wanted == name);
    }
    let bytes = name.as_bytes();
    let session = SESSION_NAMES.iter().any(|known| known.as_bytes() == bytes)
        || SESSION_PREFIXES.iter().any(|prefix| bytes.starts_with(prefix.as_bytes()));
    !session && !bytes.is_empty()
}

/// `NAME=VALUE` as given, `NAME` from the submitter.
fn given_variable(
    given: &OsStr,
    mine: &[(OsString, OsString)],
) -> Result<(Vec<u8>, Vec<u8>), SpecError> {
    let bytes = given.as_bytes();
    let (name, value) = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (&bytes[..at], bytes[at + 1..].to_vec()),
        None => {
            let found = mine.iter().find(|(name, _)| name == given);
            let (_, value) = found.ok_or_else(|| SpecError::NoVariable(shown(given)))?;
            (bytes, value.as_bytes().to_vec())
        }
    };
    if name.is_empty() {
        return Err(SpecError::BadVariable(shown(given)));
    }
    Ok((name.to_vec(), value))
}

fn shown(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine() -> Vec<(OsString, OsString)> {
        [
            ("PATH", "/bin"),
            ("HOME", "/home/mia"),
            ("DOCKET_SERVER", "x"),
            ("XDG_RUNTIME_DIR", "/run/user/1"),
            ("DBUS_SESSION_BUS_ADDRESS", "x"),
            ("SSH_AUTH_SOCK", "/secret"),
            ("DISPLAY", ":0"),
            ("TERM", "xterm"),
            ("TERM_PROGRAM", "x"),
            ("DISPLAYS", "kept"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .to_vec()
    }

    fn vars(options: &JobOptions) -> Vec<String> {
        let blob = environment(&mine(), options).unwrap();
        blob.vars.into_iter().map(|v| String::from_utf8(v).unwrap()).collect()
    }

    #[test]
    fn the_session_stays_behind_and_the_rest_goes_sorted() {
        let all = vars(&JobOptions::default());
        assert_eq!(all, ["DISPLAYS=kept", "HOME=/home/mia", "PATH=/bin"]);
    }

    #[test]
    fn options_add_choose_and_clean() {
        let add = JobOptions { env: vec!["A=b=c".into(), "TERM".into()], ..Default::default() };
        assert!(vars(&add).contains(&"A=b=c".to_owned()));
        assert!(vars(&add).contains(&"TERM=xterm".to_owned()));
        let only = JobOptions { env_only: vec!["HOME".into()], ..Default::default() };
        assert_eq!(vars(&only), ["HOME=/home/mia"]);
        let clean = JobOptions { clean_env: true, env: vec!["A=".into()], ..Default::default() };
        assert_eq!(vars(&clean), ["A="]);
    }

    #[test]
    fn a_variable_that_is_not_there_is_refused() {
        for options in [
            JobOptions { env: vec!["NOPE".into()], ..Default::default() },
            JobOptions { env: vec!["=x".into()], ..Default::default() },
            JobOptions { env_only: vec!["NOPE".into()], ..Default::default() },
        ] {
            assert!(environment(&mine(), &options).is_err());
        }
    }
}
