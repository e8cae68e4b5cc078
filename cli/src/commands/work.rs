//! The words behind the options: a command after `--`, or a script whose header lines are options.

use super::context::Context;
use crate::args::{Cli, Command, JobOptions};
use crate::failure::Failure;
use crate::spec::{Header, SPEC_MAX_BYTES, SpecError, Work, read_header};
use crate::usage;
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::Path;

/// Options alone, as one header line holds them.
#[derive(Debug, Parser)]
#[command(name = "#DOCKET", args_override_self = true, disable_help_flag = true)]
struct HeaderLine {
    #[command(flatten)]
    _options: JobOptions,
}

/// What to run, and the options with those of the script's header under them.
pub fn work(
    context: &Context,
    verb: &'static str,
    words: &[OsString],
    options: &JobOptions,
) -> Result<(Work, JobOptions), Failure> {
    let Some((first, rest)) = words.split_first() else {
        return Err(SpecError::NoCommand(verb).into());
    };
    if behind_dashes(&context.words, words) {
        return Ok((Work::Command(words.to_vec()), options.clone()));
    }
    let script = Path::new(first);
    let contents = read_script(script, verb)?;
    let shown = script.display().to_string();
    if !contents.starts_with(b"#!") {
        return Err(SpecError::NoInterpreter(shown).into());
    }
    let header = header(&shown, &contents, verb)?;
    let options = match header.options.is_empty() {
        true => options.clone(),
        false => merged(context, verb, &header)?,
    };
    let name = script.file_name().unwrap_or(first).to_string_lossy().into_owned();
    Ok((Work::Script { name, contents, arguments: rest.to_vec() }, options))
}

/// True if `--` stands before the last words.
fn behind_dashes(all: &[OsString], words: &[OsString]) -> bool {
    all.len().checked_sub(words.len() + 1).is_some_and(|at| all[at] == "--")
}

fn read_script(script: &Path, verb: &'static str) -> Result<Vec<u8>, SpecError> {
    let no_script = |why| SpecError::NoScript { script: script.display().to_string(), why, verb };
    let mut file = std::fs::File::open(script).map_err(no_script)?;
    let mut contents = Vec::new();
    let most = SPEC_MAX_BYTES as u64 + 1;
    (&mut file).take(most).read_to_end(&mut contents).map_err(no_script)?;
    if contents.len() > SPEC_MAX_BYTES {
        let size = file
            .metadata()
            .map_or(contents.len(), |meta| usize::try_from(meta.len()).unwrap_or(usize::MAX));
        return Err(SpecError::TooLarge {
            what: script.display().to_string(),
            size,
            limit: SPEC_MAX_BYTES,
            advice: "; give a command that reads it: -- /path/of/it",
        });
    }
    Ok(contents)
}

/// The header, each of its lines understood by itself, so that an error names its line.
fn header(script: &str, contents: &[u8], verb: &'static str) -> Result<Header, SpecError> {
    let wrong = |line, why: String| SpecError::Header { script: script.to_owned(), line, why };
    let header = read_header(contents).map_err(|(line, why)| wrong(line, why.to_owned()))?;
    for (line, words) in &header.options {
        let argv = std::iter::once("#DOCKET").chain(words.iter().map(String::as_str));
        HeaderLine::try_parse_from(argv).map_err(|error| wrong(*line, usage::words(&error)))?;
    }
    if let Some((line, text)) = header.sbatch.first() {
        return Err(SpecError::Sbatch {
            script: script.to_owned(),
            count: header.sbatch.len(),
            line: *line,
            text: text.clone(),
            verb,
        });
    }
    Ok(header)
}

/// The command line once more with the header's words before its own, which thereby win.
fn merged(context: &Context, verb: &str, header: &Header) -> Result<JobOptions, Failure> {
    let at = verb_at(&context.words, verb);
    let (before, after) = context.words.split_at(at + 1);
    let inserted = header.options.iter().flat_map(|(_, words)| words).map(OsString::from);
    let all: Vec<OsString> =
        before.iter().cloned().chain(inserted).chain(after.iter().cloned()).collect();
    let parsed = Cli::try_parse_from(all).map_err(|error| Failure::Usage(usage::words(&error)))?;
    match parsed.command {
        Some(Command::Submit(args)) => Ok(args.job),
        Some(Command::Run(args)) => Ok(args.job),
        _ => Err(Failure::Usage("a header line holds something other than options".to_owned())),
    }
}

/// Where the verb stands: behind the program and its global options.
fn verb_at(words: &[OsString], verb: &str) -> usize {
    let mut at = 1;
    while words.get(at).is_some_and(|word| word != OsStr::new(verb)) {
        at += if words[at] == "--server" { 2 } else { 1 };
    }
    at.min(words.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Places;

    fn parsed(line: &[&str]) -> (Context, Vec<OsString>, JobOptions) {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        let cli = Cli::try_parse_from(&words).unwrap();
        let context = Context { words, places: Places::default() };
        match cli.command {
            Some(Command::Submit(args)) => (context, args.words, args.job),
            Some(Command::Run(args)) => (context, args.words, args.job),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_command_stands_behind_dashes_and_keeps_its_own() {
        let (context, words, options) =
            parsed(&["docket", "run", "-c", "2", "--", "sh", "-c", "x", "--", "-y"]);
        let (work, options) = work(&context, "run", &words, &options).unwrap();
        let expected = ["sh", "-c", "x", "--", "-y"].map(OsString::from).to_vec();
        assert_eq!(work, Work::Command(expected));
        assert_eq!(options.cpus, 2);
    }

    #[test]
    fn a_script_keeps_its_arguments_and_the_command_line_beats_its_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.sh");
        let text = "#!/bin/sh\n#DOCKET -c 4 --mem 2G --env A=1\n#DOCKET --success-codes 0,1\n";
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let line =
            ["docket", "--server", "submit", "submit", "-c", "8", "--env", "B=2", path, "-x", "--"];
        let (context, words, options) = parsed(&line);
        let (work, options) = work(&context, "submit", &words, &options).unwrap();
        let Work::Script { name, arguments, .. } = work else { panic!("a script") };
        assert_eq!((name.as_str(), arguments[0].to_str()), ("job.sh", Some("-x")));
        assert_eq!((options.cpus, options.mem), (8, Some(2 << 30)));
        assert_eq!(options.env, ["A=1", "B=2"].map(OsString::from));
        assert_eq!(options.success_codes, [0, 1]);
    }

    #[test]
    fn a_bad_header_line_is_named_by_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.sh");
        std::fs::write(&path, "#!/bin/sh\n#DOCKET --mem 4\n").unwrap();
        let (context, words, options) = parsed(&["docket", "submit", path.to_str().unwrap()]);
        let error = work(&context, "submit", &words, &options).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("job.sh:2: --mem 4: a size needs a unit"), "{text}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_script_for_slurm_is_refused_before_its_limits_silently_do_not_hold() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sh");
        std::fs::write(&path, "#!/bin/sh\n#SBATCH --mem=4G\n#SBATCH -t 5\necho\n").unwrap();
        let path = path.to_str().unwrap();
        let (context, words, options) = parsed(&["docket", "submit", path]);
        let error = work(&context, "submit", &words, &options).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("s.sh has 2 #SBATCH line(s)"), "{text}");
        assert!(text.contains("line 2, is `#SBATCH --mem=4G`"), "{text}");
        assert!(text.ends_with(&format!("docket submit -- sh {path}")), "{text}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn words_without_dashes_that_name_no_file_get_the_hint() {
        let (context, words, options) = parsed(&["docket", "run", "echo", "hi"]);
        let error = work(&context, "run", &words, &options).unwrap_err().to_string();
        assert!(error.contains("docket run -- echo"), "{error}");
    }
}
