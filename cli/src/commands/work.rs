//! The words behind the options: a command after `--`, or a script whose header lines are options.

use super::context::Context;
use crate::args::{Cli, Command, JobOptions};
use crate::failure::Failure;
use crate::say::note;
use crate::sbatch::{self, Asked};
use crate::spec::{Header, SPEC_MAX_BYTES, SpecError, Work, read_header};
use crate::usage;
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::Path;

/// Marks of header lines that ask for what docket does not have at all.
const REFUSED: [&str; 2] = ["#BB", "#DW"];

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
    let header = header(&shown, &contents)?;
    let asked = slurm(&shown, &header)?;
    let mut options = match header.options.is_empty() && asked.is_none() {
        true => options.clone(),
        false => merged(context, verb, &header, asked.as_ref())?,
    };
    if let Some(asked) = &asked {
        asked.sbatch.fill(&mut options);
    }
    for line in told(&shown, &header, asked.as_ref()) {
        note(&line);
    }
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
fn header(script: &str, contents: &[u8]) -> Result<Header, SpecError> {
    let wrong = |line, why: String| SpecError::Header { script: script.to_owned(), line, why };
    let header = read_header(contents).map_err(|(line, why)| wrong(line, why.to_owned()))?;
    for (line, words) in &header.options {
        let argv = std::iter::once("#DOCKET").chain(words.iter().map(String::as_str));
        HeaderLine::try_parse_from(argv).map_err(|error| wrong(*line, usage::words(&error)))?;
    }
    Ok(header)
}

/// What the `#SBATCH` lines ask for, if there are any.
fn slurm(script: &str, header: &Header) -> Result<Option<Asked>, SpecError> {
    let wrong = |line, why| SpecError::Header { script: script.to_owned(), line, why };
    if let Some((line, mark)) = header.foreign.iter().find(|(_, mark)| REFUSED.contains(mark)) {
        let why =
            format!("{mark}: docket has no burst buffers: stage the data in the script itself");
        return Err(wrong(*line, why));
    }
    if header.sbatch.is_empty() {
        return Ok(None);
    }
    sbatch::read(&header.sbatch).map(Some).map_err(|(line, why)| wrong(line, why))
}

/// What a submitter is told of the header: one line for what is without effect, one for each kind of line
/// that is not read.
fn told(script: &str, header: &Header, asked: Option<&Asked>) -> Vec<String> {
    let mut told = Vec::new();
    let idle = asked.map_or(&[][..], |asked| &asked.without_effect);
    if !idle.is_empty() {
        let names: Vec<String> = idle.iter().map(|name| format!("--{name}")).collect();
        told.push(format!("{script}: without effect in docket: {}", names.join(", ")));
    }
    for (line, mark) in &header.foreign {
        told.push(format!(
            "{script}:{line}: {mark} lines are not read: give what they ask for as options or #DOCKET lines"
        ));
    }
    told
}

/// The command line once more with the header's words before its own, which thereby win; those of
/// `#SBATCH` lines come first.
fn merged(
    context: &Context,
    verb: &str,
    header: &Header,
    asked: Option<&Asked>,
) -> Result<JobOptions, Failure> {
    let at = verb_at(&context.words, verb);
    let (before, after) = context.words.split_at(at + 1);
    let inserted = header.options.iter().flat_map(|(_, words)| words).map(OsString::from);
    let slurm = asked.map(|asked| asked.sbatch.words()).unwrap_or_default();
    let all: Vec<OsString> =
        before.iter().cloned().chain(slurm).chain(inserted).chain(after.iter().cloned()).collect();
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

    fn of_script(text: &str, more: &[&str]) -> Result<JobOptions, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sh");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\necho\n")).unwrap();
        let path = path.to_str().unwrap();
        let line = [&["docket", "submit"], more, &[path]].concat();
        let (context, words, options) = parsed(&line);
        let work = work(&context, "submit", &words, &options);
        work.map(|(_, options)| options).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_beats_lines_of_docket_and_those_lines_of_slurm() {
        let text =
            "#DOCKET --time 3m --cpus 3\n#SBATCH -t 2 -c 2 -J slurm -p long --mem-per-cpu=1G";
        let options = of_script(text, &["-c", "5"]).unwrap();
        assert_eq!((options.cpus, options.mem), (5, Some(5 << 30)));
        assert_eq!(options.time, Some(std::time::Duration::from_secs(180)));
        assert_eq!((options.name.as_deref(), &*options.queue), (Some("slurm"), "long"));
        assert!(options.slurm_env && options.slurm.partition);
        let other = of_script(text, &["-p", "short", "-J", "mine"]).unwrap();
        assert_eq!((other.name.as_deref(), other.slurm.partition), (Some("mine"), false));
        assert!(!of_script("#DOCKET -c 2", &[]).unwrap().slurm_env);
    }

    #[test]
    fn what_docket_cannot_do_of_slurm_is_refused_with_its_line() {
        for (text, part) in [
            (
                "#SBATCH -n 1\n#SBATCH -N 2 # two",
                "s.sh:3: --nodes: 2: docket runs a job on one node",
            ),
            ("#SBATCH --time=D:1:2:3", "s.sh:2: --time: `D:1:2:3` is no time"),
            ("#SBATCH --exclusive", "s.sh:2: --exclusive: not in docket"),
            ("#BB create\n#SBATCH -n 1", "s.sh:2: #BB: docket has no burst buffers"),
        ] {
            let why = of_script(text, &[]).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn what_is_without_effect_is_said_in_one_line() {
        let text = "#!/bin/sh\n#SBATCH --mail-type=ALL -A x\n#SBATCH --mail-type=END\n#PBS -l a\n";
        let header = read_header(text.as_bytes()).unwrap();
        let asked = slurm("s.sh", &header).unwrap();
        let told = told("s.sh", &header, asked.as_ref());
        assert_eq!(told[0], "s.sh: without effect in docket: --mail-type, --account");
        assert!(told[1].starts_with("s.sh:4: #PBS lines are not read"), "{told:?}");
        assert_eq!(told.len(), 2);
    }

    #[test]
    fn words_without_dashes_that_name_no_file_get_the_hint() {
        let (context, words, options) = parsed(&["docket", "run", "echo", "hi"]);
        let error = work(&context, "run", &words, &options).unwrap_err().to_string();
        assert!(error.contains("docket run -- echo"), "{error}");
    }
}
