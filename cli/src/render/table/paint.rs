//! Colours, and only where the reader wants them.

use crate::render::View;

const RESET: &str = "\x1b[0m";

/// A header.
pub fn bold(text: String, view: &View) -> String {
    painted(text, "\x1b[1m", view)
}

/// A state of a task, a node, or a check.
pub fn state(text: String, view: &View) -> String {
    let colour = match text.trim() {
        "RUN" | "up" | "ok" => "\x1b[32m",
        "EXIT" | "down" | "bad" => "\x1b[31m",
        "UNKWN" | "silent" | "note" => "\x1b[33m",
        "SUSP" | "drained" => "\x1b[36m",
        _ => return text,
    };
    painted(text, colour, view)
}

fn painted(text: String, code: &str, view: &View) -> String {
    if view.colour && !text.is_empty() { format!("{code}{text}{RESET}") } else { text }
}
