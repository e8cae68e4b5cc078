//! What a run did, line by line, if anybody wants to read it.

use std::fmt::Write as _;

/// What becomes of the lines of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracing {
    /// Nothing is formatted.
    Off,
    /// They are kept, to be compared.
    Keep,
    /// They are printed as they come, so that a panic does not swallow them.
    Print,
}

/// Lines of a run.
#[derive(Debug)]
pub(crate) struct Trace {
    mode: Tracing,
    text: String,
}

impl Trace {
    pub fn new(mode: Tracing) -> Trace {
        Trace { mode, text: String::new() }
    }

    pub fn note(&mut self, now_ms: u64, line: impl FnOnce() -> String) {
        if self.mode == Tracing::Off {
            return;
        }
        let (s, ms, line) = (now_ms / 1000, now_ms % 1000, line());
        match self.mode {
            Tracing::Print => println!("{s:>5}.{ms:03} {line}"),
            _ => writeln!(self.text, "{s:>5}.{ms:03} {line}").expect("a string takes all"),
        }
    }

    pub fn into_text(self) -> String {
        self.text
    }
}
