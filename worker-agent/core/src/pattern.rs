//! Output path patterns (design 7): `%j %A` job, `%a` task, `%t` attempt, `%n` node, `%x` name,
//! `%u` user, `%%`; a width as in `%4a` pads a number with zeros. Anything else stays as written.

use proto::AttemptId;

/// What a pattern may name.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Job, task (0 for a job that is no array) and attempt.
    pub attempt: AttemptId,
    /// Node name.
    pub node: &'a str,
    /// Job name.
    pub name: &'a str,
    /// Login name of the job's user.
    pub user: &'a str,
}

/// Longest padding, so that a path cannot grow without bound; u64 has 20 digits, but 10 pad well.
const WIDTH_MAX: usize = 10;

/// The pattern with every specifier replaced.
pub fn expand(pattern: &[u8], names: &Names<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        let (plain, tail) = rest.split_at(at);
        out.extend_from_slice(plain);
        let digits = tail[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let width = width_of(&tail[1..1 + digits]);
        match tail.get(1 + digits).and_then(|key| value_of(*key, width, names)) {
            Some(value) => {
                out.extend_from_slice(value.as_bytes());
                rest = &tail[2 + digits..];
            }
            None => {
                out.push(b'%');
                rest = &tail[1..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// Absolute path of an output: relative patterns are relative to the job's directory.
pub fn output_path(dir: &[u8], pattern: &[u8], names: &Names<'_>) -> Vec<u8> {
    let expanded = expand(pattern, names);
    if expanded.first() == Some(&b'/') {
        return expanded;
    }
    let slash: &[u8] = if dir.last() == Some(&b'/') { b"" } else { b"/" };
    [dir, slash, &expanded].concat()
}

fn width_of(digits: &[u8]) -> usize {
    let value = digits.iter().fold(0usize, |sum, digit| {
        sum.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
    });
    value.min(WIDTH_MAX)
}

fn value_of(key: u8, width: usize, names: &Names<'_>) -> Option<String> {
    let AttemptId { task, attempt } = names.attempt;
    let number = |value: u64| Some(format!("{value:0width$}"));
    match key {
        b'j' | b'A' => number(task.job.0),
        b'a' => number(u64::from(task.index.unwrap_or(0))),
        b't' => number(u64::from(attempt)),
        b'n' => Some(as_component(names.node)),
        b'x' => Some(as_component(names.name)),
        b'u' => Some(as_component(names.user)),
        b'%' => Some("%".to_owned()),
        _ => None,
    }
}

/// A name is one part of a path, never a way out of a directory.
fn as_component(name: &str) -> String {
    match name {
        "." | ".." => "_".repeat(name.len()),
        _ => name.replace(['/', '\0'], "_"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::{JobId, TaskId};

    fn names(name: &str) -> Names<'_> {
        let task = TaskId { job: JobId(123), index: Some(7) };
        Names { attempt: AttemptId { task, attempt: 2 }, node: "n1", name, user: "ada" }
    }

    fn text(pattern: &str, name: &str) -> String {
        String::from_utf8(expand(pattern.as_bytes(), &names(name))).expect("all parts are text")
    }

    #[test]
    fn every_specifier_is_replaced() {
        assert_eq!(text("%j %A %a %t %n %x %u %%", "job"), "123 123 7 2 n1 job ada %");
        assert_eq!(text("%4a.%02t.%6j", "x"), "0007.02.000123");
        assert_eq!(text("%1j %0a", "x"), "123 7");
        assert_eq!(text("%99a", "x"), "0000000007");
    }

    #[test]
    fn what_is_no_specifier_stays_as_written() {
        assert_eq!(text("%z %4z % 100%", "x"), "%z %4z % 100%");
        assert_eq!(text("%%j", "x"), "%j");
        assert_eq!(text("", "x"), "");
    }

    #[test]
    fn a_name_cannot_leave_its_directory() {
        assert_eq!(text("out/%x.log", "../../etc/x"), "out/.._.._etc_x.log");
        assert_eq!(text("%x/f", ".."), "__/f");
    }

    #[test]
    fn relative_patterns_stand_in_the_jobs_directory() {
        let path = |dir: &str, pattern: &str| {
            String::from_utf8(output_path(dir.as_bytes(), pattern.as_bytes(), &names("x")))
                .expect("all parts are text")
        };
        assert_eq!(path("/w", "%j.out"), "/w/123.out");
        assert_eq!(path("/", "%j.out"), "/123.out");
        assert_eq!(path("/w", "/tmp/%a"), "/tmp/7");
    }

    proptest! {
        #[test]
        fn text_without_percent_is_untouched(pattern in "[^%]*") {
            prop_assert_eq!(text(&pattern, "x"), pattern);
        }

        #[test]
        fn doubled_percents_give_back_any_text(plain in ".*") {
            prop_assert_eq!(text(&plain.replace('%', "%%"), "x"), plain);
        }

        #[test]
        fn any_bytes_expand_without_panic_and_within_bounds(
            pattern in proptest::collection::vec(any::<u8>(), 0..200),
            name in ".{0,40}",
        ) {
            let out = expand(&pattern, &names(&name));
            prop_assert!(out.len() <= pattern.len() * (1 + name.len().max(20)));
            let path = output_path(b"/w", &pattern, &names(&name));
            prop_assert_eq!(path.first(), Some(&b'/'));
        }

        #[test]
        fn numbers_are_padded_to_their_width(width in 0usize..=10, job in 1u64..) {
            let mut names = names("x");
            names.attempt.task.job = JobId(job);
            let out = expand(format!("%{width}j").as_bytes(), &names);
            prop_assert_eq!(out, format!("{job:0width$}").into_bytes());
        }
    }
}
