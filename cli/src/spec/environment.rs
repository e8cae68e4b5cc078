//! Which of the submitter's variables go with a job (design 7, Jobs).

use super::SpecError;
use crate::args::JobOptions;
use proto::v1::EnvBlob;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Variables that describe the submitter's session, not the work.
const SESSION_NAMES: [&str; 2] = ["XDG_RUNTIME_DIR", "DISPLAY"];
/// Beginnings of such names.
const SESSION_PREFIXES: [&str; 6] = ["DOCKET_", "DBUS_", "SSH_", "TERM", "SLURM_", "SLURMD_"];

/// So much of an entry that is refused is shown.
const SHOWN_MAX: usize = 60;

/// This process's variables, entry by entry as it was given them. The standard library's list lacks
/// what is no NAME=VALUE; it is the answer only where this program's file may not be read, and with
/// it its /proc entry.
pub fn own_entries() -> Vec<OsString> {
    if let Ok(block) = std::fs::read("/proc/self/environ") {
        return entries(&block);
    }
    let joined = |(name, value): (OsString, OsString)| {
        OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    std::env::vars_os().map(joined).collect()
}

/// The strings of a block in which each ends with a zero.
fn entries(block: &[u8]) -> Vec<OsString> {
    let whole = block.strip_suffix(b"\0").unwrap_or(block);
    if whole.is_empty() {
        return Vec::new();
    }
    whole.split(|byte| *byte == 0).map(|entry| OsString::from_vec(entry.to_vec())).collect()
}

/// The environment of a job, sorted so that equal ones have equal bytes and are stored once. What
/// cannot go with it as it is, is refused: of two entries of one name a program sees the first or the
/// last, as it likes. Of options that repeat a name the last one holds.
pub fn environment(mine: &[OsString], options: &JobOptions) -> Result<EnvBlob, SpecError> {
    let mut chosen: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for given in &options.env {
        let (name, value) = given_variable(given, mine)?;
        chosen.insert(name, value);
    }
    let given: Vec<Vec<u8>> = chosen.keys().cloned().collect();
    for entry in mine.iter().filter(|entry| passes(name_of(entry), options)) {
        let (name, value) = parts(entry).ok_or_else(|| SpecError::NoAssignment(shown(entry)))?;
        if given.binary_search_by(|known| known.as_slice().cmp(name)).is_ok() {
            continue;
        }
        if chosen.insert(name.to_vec(), value.to_vec()).is_some() {
            return Err(SpecError::TwiceSet(shown(OsStr::from_bytes(name))));
        }
    }
    for name in &options.env_only {
        if !mine.iter().any(|entry| name_of(entry) == name) {
            return Err(SpecError::NoVariable(shown(name)));
        }
    }
    let joined = |(name, value): (Vec<u8>, Vec<u8>)| [name.as_slice(), b"=", &value].concat();
    Ok(EnvBlob { vars: chosen.into_iter().map(joined).collect() })
}

/// What stands before the first `=`; all of an entry that has none.
fn name_of(entry: &OsStr) -> &OsStr {
    OsStr::from_bytes(entry.as_bytes().split(|byte| *byte == b'=').next().unwrap_or_default())
}

/// Name and value; none without a `=` or without a name.
fn parts(entry: &OsStr) -> Option<(&[u8], &[u8])> {
    let bytes = entry.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some((&bytes[..at], &bytes[at + 1..]))
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
    !session
}

/// `NAME=VALUE` as given, `NAME` from the submitter.
fn given_variable(given: &OsStr, mine: &[OsString]) -> Result<(Vec<u8>, Vec<u8>), SpecError> {
    if given.as_bytes().contains(&b'=') {
        let (name, value) = parts(given).ok_or_else(|| SpecError::BadVariable(shown(given)))?;
        return Ok((name.to_vec(), value.to_vec()));
    }
    let mut found = mine.iter().filter(|entry| name_of(entry) == given);
    let entry = found.next().ok_or_else(|| SpecError::NoVariable(shown(given)))?;
    let (name, value) = parts(entry).ok_or_else(|| SpecError::NoAssignment(shown(entry)))?;
    if found.next().is_some() {
        return Err(SpecError::TwiceSet(shown(given)));
    }
    Ok((name.to_vec(), value.to_vec()))
}

fn shown(name: &OsStr) -> String {
    let text = name.to_string_lossy();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine() -> Vec<OsString> {
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
        .map(|(name, value)| format!("{name}={value}").into())
        .to_vec()
    }

    fn of(block: &[u8], options: &JobOptions) -> Result<Vec<Vec<u8>>, String> {
        let blob = environment(&entries(block), options).map_err(|e| e.to_string())?;
        Ok(blob.vars)
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
    fn another_slurms_variables_stay_behind_but_for_those_that_are_given() {
        let block = b"SLURM_JOB_ID=7\0SLURMD_X=1\0A=1\0";
        let given = JobOptions { env: vec!["SLURM_JOB_ID=8".into()], ..Default::default() };
        assert_eq!(of(block, &JobOptions::default()), Ok(vec![b"A=1".to_vec()]));
        let vars = of(block, &given).unwrap();
        assert_eq!(vars, [b"A=1".to_vec(), b"SLURM_JOB_ID=8".to_vec()]);
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

    #[test]
    fn any_value_and_any_name_go_exactly() {
        for entry in [
            &b"LINES=one\ntwo\n\nfour\n"[..],
            b"BASH_FUNC_x%%=() {  echo \"a b\";\n echo 2\n}",
            b"RAW=\xff\xfe\x80=\xc3",
            b"N\xc3\xa9\xff=value",
            b"EMPTY=",
            b"EQUALS===",
            b"a b.c-d=x",
        ] {
            let block = [entry, &b"\0"[..]].concat();
            assert_eq!(of(&block, &JobOptions::default()), Ok(vec![entry.to_vec()]));
        }
        assert_eq!(of(b"", &JobOptions::default()), Ok(vec![]));
    }

    #[test]
    fn what_would_have_to_be_dropped_is_refused_and_named() {
        let all = JobOptions::default();
        let twice = of(b"A=1\0PATH=/bin\0B=2\0PATH=/usr/bin\0", &all).unwrap_err();
        assert!(twice.contains("`PATH` twice") && twice.contains("--env-only"), "{twice}");
        assert!(of(b"A=1\0A=1\0", &all).is_err(), "equal ones too");
        for (block, name) in [
            (&b"A=1\0LONELY\0"[..], "`LONELY`"),
            (b"=x\0", "`=x`"),
            (b"A=1\0\0B=2\0", "``"),
            (b"\xff\0", "`\u{fffd}`"),
        ] {
            let refused = of(block, &all).unwrap_err();
            assert!(refused.contains(name) && refused.contains("NAME=VALUE"), "{refused}");
        }
    }

    #[test]
    fn what_does_not_go_with_the_job_does_not_hinder_it() {
        let block = b"A=1\0LONELY\0B=2\0B=3\0DOCKET_X\0SSH_A=1\0SSH_A=2\0";
        let only = JobOptions { env_only: vec!["A".into()], ..Default::default() };
        assert_eq!(of(block, &only), Ok(vec![b"A=1".to_vec()]));
        let clean = JobOptions { clean_env: true, ..Default::default() };
        assert_eq!(of(block, &clean), Ok(vec![]));
        let settled = JobOptions { env: vec!["B=4".into()], ..Default::default() };
        let rest = b"A=1\0B=2\0B=3\0";
        assert_eq!(of(rest, &settled), Ok(vec![b"A=1".to_vec(), b"B=4".to_vec()]));
        let asked = JobOptions { env: vec!["B".into()], clean_env: true, ..Default::default() };
        assert!(of(rest, &asked).unwrap_err().contains("`B` twice"));
    }
}
