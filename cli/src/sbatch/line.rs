//! One `#SBATCH` line: its words as Slurm splits them, its options as getopt_long finds them.

use super::table::{OPTIONS, SlurmOption, Takes};
use crate::parse::nearest;

/// An option of a line, and its value if it has one.
pub type Given = (&'static SlurmOption, Option<String>);

/// The options of what stands behind `#SBATCH`.
pub fn options(text: &str) -> Result<Vec<Given>, String> {
    let mut words = words(text)?.into_iter();
    let mut all = Vec::new();
    while let Some(word) = words.next() {
        match word.strip_prefix("--") {
            Some("") => return Err("-- ends options: leave it out".to_owned()),
            Some(long) => all.push(long_option(long, &mut words)?),
            None if word.len() > 1 && word.starts_with('-') => {
                letters(&word[1..], &mut words, &mut all)?;
            }
            None => return Err(stray(&word)),
        }
    }
    Ok(all)
}

/// Splits as Slurm does: blanks; quotes of both kinds; a backslash keeps what follows it, within quotes
/// too; a `#` outside them begins a comment, within a word too.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', _) => {
                let next = chars.next().ok_or("a backslash at the end of the line")?;
                word.get_or_insert_default().push(next);
            }
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) => break,
            (c, None) if c.is_ascii_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote that is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// A word that is no option and belongs to none.
fn stray(word: &str) -> String {
    match word.to_ascii_lowercase().as_str() {
        "hetjob" | "packjob" | ":" => {
            format!("{word}: docket has no jobs of several parts: submit one job for each")
        }
        _ => format!(
            "`{word}` belongs to no option: options begin with dashes, values with blanks need quotes, and \
             # begins a comment"
        ),
    }
}

fn long_option(text: &str, rest: &mut impl Iterator<Item = String>) -> Result<Given, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let option = named(name)?;
    let value = match (option.takes, value) {
        (Takes::Nothing, Some(value)) => {
            return Err(format!("--{}: it takes no value: leave ={value} out", option.name));
        }
        (Takes::Value, None) => Some(needed(option, rest.next())?),
        (_, value) => value,
    };
    Ok((option, value))
}

fn needed(option: &SlurmOption, value: Option<String>) -> Result<String, String> {
    value.ok_or_else(|| format!("--{}: it needs a value", option.name))
}

/// The option of that name, or the only one that begins so.
fn named(name: &str) -> Result<&'static SlurmOption, String> {
    let names = |option: &'static SlurmOption| {
        std::iter::once(option.name).chain(option.others.iter().copied())
    };
    if let Some(option) = OPTIONS.iter().find(|option| names(option).any(|known| known == name)) {
        return Ok(option);
    }
    let begin: Vec<&SlurmOption> = OPTIONS
        .iter()
        .filter(|option| names(option).any(|known| known.starts_with(name)))
        .collect();
    match begin[..] {
        [one] => Ok(one),
        [] => Err(unknown(&format!("--{name}"), nearest(name, OPTIONS.iter().flat_map(names)))),
        _ => {
            let names: Vec<String> = begin.iter().map(|one| format!("--{}", one.name)).collect();
            Err(format!("--{name} can be {}: write it in full", names.join(", ")))
        }
    }
}

fn unknown(given: &str, near: Option<&str>) -> String {
    let near = near.map_or(String::new(), |near| format!(": did you mean --{near}?"));
    format!("Slurm has no option {given}{near}")
}

/// `-Hn4`: letters without a value, and at the end one with its value.
fn letters(
    text: &str,
    rest: &mut impl Iterator<Item = String>,
    all: &mut Vec<Given>,
) -> Result<(), String> {
    let mut left = text;
    while let Some(letter) = left.chars().next() {
        left = &left[letter.len_utf8()..];
        let option = OPTIONS.iter().find(|option| option.letter == Some(letter));
        let option = option.ok_or_else(|| unknown(&format!("-{letter}"), None))?;
        let value = match (option.takes, left) {
            (Takes::Nothing, _) => None,
            (Takes::Perhaps, "") => None,
            (Takes::Value, "") => Some(needed(option, rest.next())?),
            (_, value) => {
                let value = value.to_owned();
                left = "";
                Some(value)
            }
        };
        all.push((option, value));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<(&'static str, Option<String>)> {
        let read = options(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        read.into_iter().map(|(option, value)| (option.name, value)).collect()
    }

    fn some(name: &'static str, value: &str) -> (&'static str, Option<String>) {
        (name, Some(value.to_owned()))
    }

    #[test]
    fn several_options_quotes_and_comments_are_read_as_slurm_does() {
        assert_eq!(read(" --time=5 # note"), [some("time", "5")]);
        assert_eq!(read(" --time=5# note"), [some("time", "5")]);
        assert_eq!(read("\t# only a note"), []);
        assert_eq!(
            read("-N 1 -n4 -c\t2"),
            [some("nodes", "1"), some("ntasks", "4"), some("cpus-per-task", "2")]
        );
        assert_eq!(
            read(r#"-J "a # b" --comment='it "is"'"#),
            [some("job-name", "a # b"), some("comment", "it \"is\"")]
        );
        assert_eq!(
            read(r#"-J a\ b\#c --comment="x\"y""#),
            [some("job-name", "a b#c"), some("comment", "x\"y")]
        );
        assert_eq!(read("--comment \"\""), [some("comment", "")]);
        assert_eq!(
            read("-HvJ x -k"),
            [("hold", None), ("verbose", None), some("job-name", "x"), ("no-kill", None)]
        );
        assert_eq!(
            read("--nice --nice=5 --exclusive"),
            [("nice", None), some("nice", "5"), ("exclusive", None)]
        );
    }

    #[test]
    fn what_begins_only_one_option_is_that_option() {
        for (short, name) in [("--part", "partition"), ("--job", "job-name"), ("--mem", "mem")] {
            let expected = if name == "job-name" { "--job-n" } else { short };
            assert_eq!(read(&format!("{expected}=x"))[0].0, name);
        }
        let why = options("--mail=x").unwrap_err();
        assert_eq!(why, "--mail can be --mail-type, --mail-user: write it in full");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("--partion=x", "did you mean --partition?"),
            ("-y 3", "no option -y"),
            ("--time", "--time: it needs a value"),
            ("-t", "--time: it needs a value"),
            ("--hold=yes", "it takes no value"),
            ("--time 5 minutes", "`minutes` belongs to no option"),
            ("--exclusive user", "`user` belongs to no option"),
            ("hetjob", "several parts"),
            (": -n 1", "several parts"),
            ("--", "-- ends options"),
            ("-J 'x", "not closed"),
            ("-J x\\", "backslash"),
        ] {
            let why = options(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn no_line_panics(text: String) {
            let _ = options(&text);
        }
    }
}
