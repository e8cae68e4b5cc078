//! The two ways out: text on stdout, one-line notes on stderr. A closed pipe is never a panic.

use crate::failure::Failure;
use crate::render::{escape, without_errno};
use std::io::{self, Write};

/// Writes text to stdout, whole and at once.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// One line on stderr: `docket: …`. Who closed stderr does not want to know.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "docket: {}", escape::line(&without_errno(text)));
}
