//! A small reader of the project's own sources, for the rules in `tests/tidy.rs`.
//! It never parses Rust: it blanks comments and literals, then counts lines and braces.

mod blank;
mod functions;

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use blank::blank;
pub use functions::{Function, functions};

/// A Rust source file of the workspace.
pub struct Source {
    /// Path from the workspace's root, with `/`.
    pub path: String,
    /// The text as it stands.
    pub text: String,
    /// The same with the insides of comments and literals turned to spaces.
    pub code: String,
    /// Lines that belong to `#[cfg(test)]` items, counted from 0.
    tests: Vec<Range<usize>>,
}

impl Source {
    /// Reads a text as the file at `path`.
    pub fn new(path: &str, text: String) -> Source {
        let code = blank(&text);
        let tests = test_lines(&code);
        Source { path: path.to_owned(), text, code, tests }
    }

    /// Is this line (from 0) test code?
    pub fn is_test(&self, line: usize) -> bool {
        self.is_test_file() || self.tests.iter().any(|range| range.contains(&line))
    }

    /// Is the whole file test code?
    pub fn is_test_file(&self) -> bool {
        self.path.starts_with("testsuite/")
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.ends_with("_tests.rs")
    }

    /// Code lines outside tests, each with its number from 0.
    pub fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().filter(|(number, _)| !self.is_test(*number))
    }
}

/// Lines of every item under `#[cfg(test)]`.
fn test_lines(code: &str) -> Vec<Range<usize>> {
    let line_of = |at: usize| code[..at].matches('\n').count();
    let mut ranges = Vec::new();
    for (at, attribute) in code.match_indices("#[cfg(test)]") {
        let rest = at + attribute.len();
        let end = code[rest..].find(['{', ';']).map_or(code.len(), |open| {
            functions::end_of_block(code, rest + open).unwrap_or(code.len())
        });
        ranges.push(line_of(at)..line_of(end.min(code.len())) + 1);
    }
    ranges
}

/// The workspace's root directory.
pub fn root() -> PathBuf {
    // Asked when it runs: the checkout may have moved since it was built.
    let member = std::env::var_os("CARGO_MANIFEST_DIR");
    let member = member.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    member.parent().expect("a member lies in the root").to_owned()
}

/// Every file of the workspace, build output and version control left out, in order.
pub fn files() -> Vec<PathBuf> {
    let mut rooms = vec![root()];
    let mut found = Vec::new();
    while let Some(room) = rooms.pop() {
        for entry in std::fs::read_dir(&room).expect("the checkout can be read") {
            let path = entry.expect("the checkout can be read").path();
            let name = path.file_name().unwrap_or_default();
            if path.is_symlink() || name == "target" || name == ".git" {
                continue;
            }
            if path.is_dir() {
                rooms.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Path from the root, with `/`.
pub fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().into_owned()
}

/// Every Rust source of the workspace.
pub fn sources() -> Vec<Source> {
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs"));
    rust.map(|path| {
        let text = std::fs::read_to_string(&path).expect("sources are UTF-8");
        Source::new(&relative(&path), text)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_test_modules_are_found() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let source = Source::new("wal/src/x.rs", text.to_owned());
        let product: Vec<usize> = source.product_lines().map(|(number, _)| number).collect();
        assert_eq!(product, [0, 5]);
    }

    #[test]
    fn a_test_module_in_another_file_is_one_line() {
        let text = "#[cfg(test)]\nmod tests;\nfn c() {}\n";
        let source = Source::new("wal/src/x.rs", text.to_owned());
        let product: Vec<usize> = source.product_lines().map(|(number, _)| number).collect();
        assert_eq!(product, [2]);
    }
}
