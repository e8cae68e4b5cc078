//! Header lines of a stored script: `#DOCKET` lines are options, in words as a shell splits them; those of
//! `#SBATCH` lines are read by the module `sbatch`.

/// What the head of a script says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Line number from 1, and the words of each `#DOCKET` line.
    pub options: Vec<(usize, Vec<String>)>,
    /// Line number from 1, and what stands behind `#SBATCH` in each such line.
    pub sbatch: Vec<(usize, String)>,
    /// Line number and mark of the lines of other systems, the first of each.
    pub foreign: Vec<(usize, &'static str)>,
}

/// Why a header line is not understood, with its line number.
pub type HeaderError = (usize, &'static str);

/// Reads the lines up to the first that is neither empty nor a comment, as Slurm does.
pub fn read_header(script: &[u8]) -> Result<Header, HeaderError> {
    let mut header = Header::default();
    for (at, whole) in script.split(|b| *b == b'\n').enumerate() {
        let line = whole.trim_ascii();
        if !(line.is_empty() || line.starts_with(b"#")) {
            break;
        }
        if let Some(rest) = option_line(line, b"#DOCKET") {
            let text = str::from_utf8(rest).map_err(|_| (at + 1, "not UTF-8"))?;
            header.options.push((at + 1, words(text).map_err(|why| (at + 1, why))?));
        } else if let Some(rest) = whole.strip_prefix(b"#SBATCH") {
            // As Slurm has it: at the beginning of the line only, and with no blank needed behind it.
            let text = str::from_utf8(rest).map_err(|_| (at + 1, "not UTF-8"))?;
            header.sbatch.push((at + 1, text.to_owned()));
        } else {
            let mark = FOREIGN.iter().find(|mark| option_line(line, mark.as_bytes()).is_some());
            let known = |mark: &&str| header.foreign.iter().any(|(_, known)| known == mark);
            header.foreign.extend(mark.filter(|mark| !known(mark)).map(|mark| (at + 1, *mark)));
        }
    }
    Ok(header)
}

/// Marks of header lines that docket does not read.
const FOREIGN: [&str; 5] = ["#PBS", "#BSUB", "#BB", "#DW", "#COBALT"];

/// What follows the mark; `#DOCKETX` is an ordinary comment.
fn option_line<'a>(line: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(mark)?;
    rest.first().is_none_or(u8::is_ascii_whitespace).then_some(rest)
}

/// Splits as a shell does: blanks, single and double quotes, backslash; ` #` begins a comment.
fn words(text: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' if word.is_none() => break,
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' => quoted(&mut chars, '\'', word.get_or_insert_default())?,
            '"' => quoted(&mut chars, '"', word.get_or_insert_default())?,
            '\\' => {
                let next = chars.next().ok_or("a backslash at the end of the line")?;
                word.get_or_insert_default().push(next);
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn quoted(
    chars: &mut std::str::Chars<'_>,
    quote: char,
    word: &mut String,
) -> Result<(), &'static str> {
    loop {
        match chars.next().ok_or("a quote that is not closed")? {
            c if c == quote => return Ok(()),
            '\\' if quote == '"' => {
                let next = chars.next().ok_or("a quote that is not closed")?;
                if !matches!(next, '"' | '\\' | '$' | '`') {
                    word.push('\\');
                }
                word.push(next);
            }
            c => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn header_lines_are_read_up_to_the_first_command() {
        let script = b"#!/bin/sh\n#DOCKET -c 4 --mem 2G # big\n\n# note\n#DOCKET --name 'a b' -e \"x\\\"y\"\n#SBATCH -n 1\necho\n#DOCKET -c 9\n";
        let header = read_header(script).unwrap();
        assert_eq!(header.sbatch, [(6, " -n 1".to_owned())]);
        let expected =
            [(2, vec!["-c", "4", "--mem", "2G"]), (5, vec!["--name", "a b", "-e", "x\"y"])];
        let expected: Vec<(usize, Vec<String>)> = expected
            .into_iter()
            .map(|(line, words)| (line, words.into_iter().map(str::to_owned).collect()))
            .collect();
        assert_eq!(header.options, expected);
    }

    #[test]
    fn lines_of_slurm_count_at_the_beginning_of_a_line_before_the_first_command() {
        let script = b"#!/bin/sh\n #SBATCH -n 9\n#sbatch -n 9\n##SBATCH -n 9\n# SBATCH -n 9\n\n  # note\n\
            #SBATCH--time=5\n#PBS -l x\n#SBATCH\t-n 2\r\n#PBS -l y\n#BSUB\n  : # command\n#SBATCH -n 9\n";
        let header = read_header(script).unwrap();
        assert_eq!(header.sbatch, [(8, "--time=5".to_owned()), (10, "\t-n 2\r".to_owned())]);
        assert_eq!(header.foreign, [(9, "#PBS"), (12, "#BSUB")]);
        assert_eq!(read_header(b"#!/bin/sh\n#SBATCH \xff\n").map_err(|e| e.0), Err(2));
    }

    #[test]
    fn a_look_alike_is_a_comment_and_an_open_quote_is_named() {
        assert_eq!(read_header(b"#!/bin/sh\n#DOCKETS -c 4\n"), Ok(Header::default()));
        assert_eq!(read_header(b"#!/bin/sh\n#DOCKET --name 'a\n").map_err(|e| e.0), Err(2));
        assert_eq!(read_header(b"#!/bin/sh\n#DOCKET \xff\n").map_err(|e| e.0), Err(2));
    }

    proptest! {
        #[test]
        fn quoting_a_word_keeps_it(word in "[^\\n\\r\0']{1,20}") {
            let line = format!("#!/bin/sh\n#DOCKET '{word}'\n");
            prop_assert_eq!(
                read_header(line.as_bytes()).unwrap().options,
                vec![(2, vec![word])]
            );
        }

        #[test]
        fn no_script_panics(script: Vec<u8>) {
            let _ = read_header(&script);
        }
    }
}
