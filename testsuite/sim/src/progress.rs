//! The bar of a long run: on stderr, and only where that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Shows `count` rounds of `what` as they are done, with the time that is left; nothing where stderr is
/// no terminal. The bar ends with the value.
pub fn bar(count: u64, what: &'static str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg} {bar:32} {pos}/{len} ({elapsed} gone, {eta} left)");
    let bar = ProgressBar::new(count).with_message(what);
    // A round may take longer than a person waits for a sign of life.
    bar.enable_steady_tick(Duration::from_secs(1));
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
