//! What is wrong with a command line, in one line; with a hint where somebody comes from Slurm.

use crate::args::Cli;
use crate::parse::nearest;
use crate::slurm;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error;

/// The words for stderr, without `docket: `.
pub fn words(error: &clap::Error) -> String {
    let argument = context(error, ContextKind::InvalidArg);
    let option = argument.as_deref().map(option_name);
    match error.kind() {
        ErrorKind::ValueValidation => {
            let value = context(error, ContextKind::InvalidValue).unwrap_or_default();
            let why = error.source().map(|why| value_words(&why.to_string())).unwrap_or_default();
            format!("{} {value}: {why}", option.unwrap_or_default())
        }
        ErrorKind::UnknownArgument => unknown(error, &argument.unwrap_or_default()),
        ErrorKind::InvalidSubcommand => {
            no_command(error, &context(error, ContextKind::InvalidSubcommand).unwrap_or_default())
        }
        ErrorKind::InvalidValue => {
            let value = context(error, ContextKind::InvalidValue).unwrap_or_default();
            let allowed = context(error, ContextKind::ValidValue).unwrap_or_default();
            let option = option.unwrap_or_default();
            match value.as_str() {
                "" if allowed.is_empty() => format!("{option}: it needs a value"),
                "" => format!("{option}: it needs a value; {allowed}"),
                value => format!("{option} {value}: it can be {allowed}"),
            }
        }
        ErrorKind::MissingRequiredArgument => match parent(error).as_str() {
            "cancel" => "cancel what? give job IDs, or --user, --name, --state or --all".to_owned(),
            "set" => "set what? docket set ID… --time DUR, --priority N, --name, --cpus, --mem or --array-limit".to_owned(),
            "wait" => "wait for what? docket wait ID…; docket list shows the jobs".to_owned(),
            of @ ("show" | "explain" | "events" | "logs" | "hold" | "release" | "suspend"
            | "resume" | "retry") => {
                format!("{of} which job? docket {of} ID; ID is missing: docket list shows them")
            }
            _ => format!("{} is missing: see --help", argument.unwrap_or_default()),
        },
        _ => first_line(error),
    }
}

/// A command that docket does not have.
fn no_command(error: &clap::Error, given: &str) -> String {
    let parent = parent(error);
    if let Some(hint) = slurm::command_hint(&parent, given) {
        return hint;
    }
    let root = Cli::command();
    let command = root.find_subcommand(&parent).unwrap_or(&root);
    let names = command.get_subcommands().map(clap::Command::get_name);
    let near = nearest(given, names);
    let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
    let name = format!("{parent} {given}");
    let all = format!("docket help {parent}");
    format!("no command {}: {near}{} lists all", name.trim_start(), all.trim_end())
}

/// The command whose words are wrong, as its usage names it; empty: docket itself.
fn parent(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let usage = text.lines().find_map(|line| line.trim().strip_prefix("Usage: docket "));
    let first = usage.and_then(|usage| usage.split(' ').next()).unwrap_or_default();
    let known = Cli::command().find_subcommand(first).is_some();
    if known { first.to_owned() } else { String::new() }
}

/// The words of the standard library tell what is wrong, not what is right.
fn value_words(why: &str) -> String {
    match why {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "give a whole number".to_owned()
        }
        "number too large to fit in target type" => "the number is too large".to_owned(),
        "number too small to fit in target type" => "the number is too small".to_owned(),
        other => other.to_owned(),
    }
}

/// An option that docket does not have.
fn unknown(error: &clap::Error, argument: &str) -> String {
    let name = argument.split('=').next().unwrap_or(argument);
    let of_set = || if parent(error) == "set" { slurm::set_hint(name) } else { None };
    if let Some(hint) = of_set() {
        return format!("{name}: {hint}");
    }
    if let Some(hint) = slurm::hint(name) {
        return format!("{name}: {hint}");
    }
    if name.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return format!("{name}: no value below zero is taken here: see --help");
    }
    if !name.starts_with('-') {
        let one_job = if parent(error) == "logs" { "it takes one job id" } else { "see --help" };
        return format!("{name}: one word too many: {one_job}");
    }
    match context(error, ContextKind::SuggestedArg) {
        Some(near) => format!("no option {name}: did you mean {near}?"),
        None => format!("no option {name}: see --help; a command of yours stands behind --"),
    }
}

/// `--mem <SIZE>` names the option `--mem`, and `<ID>...` the argument `ID`.
fn option_name(argument: &str) -> String {
    let first = argument.split(' ').next().unwrap_or(argument);
    first.trim_matches(|c| matches!(c, '<' | '>' | '[' | ']' | '.')).to_owned()
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(", ")),
        ContextValue::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// clap's own words, without its usage and tips.
fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let whole: Vec<&str> =
        text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    format!("{}; see --help", whole.join(" "))
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::{CommandFactory, Parser};

    fn refused(line: &str) -> String {
        let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
        super::words(&error)
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_value_is_told_with_its_option_and_what_is_right() {
        assert_eq!(
            refused("docket submit --mem 4 -- true"),
            "--mem 4: a size needs a unit: 4G or 4M"
        );
        let text = refused("docket submit -t 1:30 -- true");
        assert!(text.starts_with("--time 1:30: ") && text.contains("1h30m"), "{text}");
        let text = refused("docket submit -t 0s -- true");
        assert!(text.contains("no limit"), "{text}");
        let text = refused("docket show abc");
        assert_eq!(
            text,
            "ID abc: no job id: give a number such as 123, or a task of an array such as 123_7"
        );
        let text = refused("docket submit --priority 1001 -- true");
        assert!(text.starts_with("--priority 1001: ") && text.contains("1000"), "{text}");
        assert_eq!(refused("docket up --data "), "--data: it needs a value");
        let text = refused("docket list -o xml");
        assert!(text.contains("table") && text.contains("jsonl"), "{text}");
    }

    #[test]
    fn every_refusal_is_one_line() {
        for line in [
            "docket nonsense",
            "docket submit --nodlist x -- true",
            "docket show",
            "docket cancel",
            "docket cancel 1 --all",
            "docket wait 1 --timeout",
            "docket list --limit 0",
            "docket submit --clean-env --env-only A -- true",
        ] {
            let text = refused(line);
            assert!(!text.is_empty() && !text.contains('\n'), "{line}: {text}");
        }
    }

    #[test]
    fn options_of_slurm_get_a_hint_and_those_of_later_versions_say_so() {
        assert!(refused("docket submit --ntasks 4 -- true").contains("-c"));
        assert!(refused("docket submit --wrap=x").contains("sh -c"));
        assert!(refused("docket submit --partition=gpu -- true").contains("--queue"));
    }

    #[test]
    fn an_option_of_a_later_version_is_not_advised_away() {
        let text = refused("docket list --watch");
        assert!(text.contains("not in this version of docket"), "{text}");
        assert!(!text.contains("leave it out"), "{text}");
    }

    #[test]
    fn what_a_job_cannot_wait_for_is_named() {
        for (option, part) in [
            ("--after-ok=x", "`x` is no id"),
            ("--after=12,13_", "`13_` is no id"),
            ("-daftrok:1", "did you mean afterok?"),
            ("--dependency=singleton", "tasks of one array"),
            ("--dependency=after:1+5", "--begin now+5m"),
            ("--begin=soon", "no time: give"),
            ("--begin=now+60", "60s"),
        ] {
            let text = refused(&format!("docket submit {option} -- true"));
            assert!(text.contains(part), "{option}: {text}");
        }
    }

    #[test]
    fn commands_of_slurm_and_of_later_versions_are_known_by_name() {
        for (line, part) in [
            ("docket top", "not in this version of docket: top: "),
            ("docket cluster add n2", "not in this version of docket: cluster add: "),
            ("docket squeue", "docket list"),
            ("docket sbatch x.sh", "docket submit"),
            ("docket scancel 1", "docket cancel"),
            ("docket sacct", "docket list --all"),
            ("docket srun x", "docket run"),
            ("docket wal verfy x", "no command wal verfy: did you mean verify? docket help wal"),
            ("docket lst", "no command lst: did you mean list? docket help lists all"),
        ] {
            let text = refused(line);
            assert!(text.contains(part), "{line}: {text}");
        }
    }

    #[test]
    fn set_refuses_by_name_what_a_later_version_changes() {
        for option in ["--gpus=1", "--queue=x", "--node=n1", "-w=n1", "--comment=x"] {
            let text = refused(&format!("docket set 1 --priority 1 {option}"));
            let name = option.split('=').next().unwrap();
            assert!(text.starts_with(&format!("{name}: set does not change that")), "{text}");
            assert!(text.contains("--priority"), "{text}");
        }
        assert_eq!(
            refused("docket set 1"),
            "set what? docket set ID… --time DUR, --priority N, --name, --cpus, --mem or --array-limit"
        );
        assert_eq!(
            refused("docket set"),
            "set what? docket set ID… --time DUR, --priority N, --name, --cpus, --mem or --array-limit"
        );
        let text = refused("docket set 1 --priority 1001");
        assert!(text.starts_with("--priority 1001: ") && text.contains("1000"), "{text}");
    }

    #[test]
    fn hints_do_not_depend_on_the_name_of_the_program() {
        for name in ["docket", "dk", "/opt/my docket/docket-0.1"] {
            let refused = |words: &[&str]| {
                let words = std::iter::once(name).chain(words.iter().copied());
                super::words(&Cli::try_parse_from(words).unwrap_err())
            };
            assert_eq!(
                refused(&["set", "1"]),
                "set what? docket set ID… --time DUR, --priority N, --name, --cpus, --mem or --array-limit",
                "{name}"
            );
            assert_eq!(refused(&["logs", "2", "3"]), "3: one word too many: it takes one job id");
            assert!(refused(&["wal", "verfy"]).contains("did you mean verify?"), "{name}");
        }
    }

    #[test]
    fn the_commands_that_change_jobs_take_ids() {
        for name in ["hold", "release", "suspend", "resume"] {
            Cli::try_parse_from(["docket", name, "1", "2"]).unwrap();
            assert!(refused(&format!("docket {name}")).contains("ID"), "{name}");
        }
        Cli::try_parse_from(["docket", "set", "1", "2", "--priority", "-5"]).unwrap();
        assert!(refused("docket list --orphans --all").contains("--orphans"));
        Cli::try_parse_from(["docket", "list", "--orphans", "--limit", "3"]).unwrap();
    }

    #[test]
    fn a_wrong_word_is_told_with_what_is_right() {
        assert_eq!(refused("docket run -c abc -- x"), "--cpus abc: give a whole number");
        assert_eq!(refused("docket logs 2 3"), "3: one word too many: it takes one job id");
        let text = refused("docket cancel");
        assert!(text.contains("IDs, or --user, --name, --state or --all"), "{text}");
        let text = refused("docket show");
        assert!(text.contains("ID") && text.contains("missing"), "{text}");
    }

    #[test]
    fn a_value_below_zero_is_told_as_a_value_and_not_as_an_option() {
        for option in ["--kill-grace", "--time"] {
            let text = refused(&format!("docket submit {option} -1 -- true"));
            assert!(text.starts_with(&format!("{option} -1: not a duration: write it")), "{text}");
            let text = refused(&format!("docket submit {option} -5s -- true"));
            assert_eq!(text, "-5: no value below zero is taken here: see --help");
        }
        let text = refused("docket wait 1 --timeout -1");
        assert!(text.starts_with("--timeout -1: not a duration"), "{text}");
    }

    #[test]
    fn a_command_without_the_id_that_it_needs_says_how_it_is_called() {
        let text = refused("docket wait");
        assert_eq!(text, "wait for what? docket wait ID…; docket list shows the jobs");
        for name in ["show", "explain", "events", "logs", "hold", "resume"] {
            let text = refused(&format!("docket {name}"));
            assert!(text.starts_with(&format!("{name} which job? docket {name} ID")), "{text}");
        }
    }

    #[test]
    fn help_shows_nothing_that_is_not_there() {
        let mut command = Cli::command();
        let help = command.find_subcommand_mut("submit").unwrap().render_long_help().to_string();
        assert!(!help.contains("--watch"), "{help}");
        assert!(!Cli::command().render_long_help().to_string().contains("keeper"));
    }

    #[test]
    fn every_option_has_a_help_of_one_line() {
        let mut commands = vec![Cli::command()];
        let mut seen = 0;
        while let Some(command) = commands.pop() {
            for argument in command.get_arguments().filter(|a| !a.is_hide_set()) {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                let id = format!("{} {}", command.get_name(), argument.get_id());
                assert!(!help.is_empty() && !help.contains('\n'), "{id}: {help:?}");
                seen += 1;
            }
            commands.extend(command.get_subcommands().cloned());
        }
        assert!(seen > 60, "{seen}");
    }

    #[test]
    fn an_option_given_twice_counts_as_given_last() {
        let cli =
            Cli::try_parse_from(["docket", "submit", "-c", "1", "-c", "2", "--", "x"]).unwrap();
        let Some(crate::args::Command::Submit(args)) = cli.command else { panic!("submit") };
        assert_eq!(args.job.cpus, 2);
    }
}
