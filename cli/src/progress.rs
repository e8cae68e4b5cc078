//! How far something long is: a bar on stderr, where that is a terminal, and nothing anywhere else.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// How often it is drawn while nothing happens.
const DRAW_EVERY: Duration = Duration::from_millis(250);

/// A bar, or nothing. It goes away with its value.
#[derive(Debug)]
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Shows how many of `total` things are `done`, as in `submitted`; without a total only how many.
    pub fn new(done: &'static str, total: Option<u64>) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        Progress(Some(bar(done, total, ProgressDrawTarget::stderr_with_hz(8))))
    }

    /// Nothing at all.
    pub fn none() -> Progress {
        Progress(None)
    }

    /// One more.
    pub fn one_more(&self) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
        }
    }

    /// So many of so many.
    pub fn set(&self, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Writes something else, on the same terminal perhaps, without tearing the bar.
    pub fn beside<R>(&self, write: impl FnOnce() -> R) -> R {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn bar(done: &'static str, total: Option<u64>, target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, target).with_message(done);
    let template = match total {
        Some(_) => "{msg} {human_pos} of {human_len} [{bar:30}] {rate}, {eta} left",
        None => "{msg} {human_pos}, {rate} {elapsed}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        let rate = |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            // Nothing can be done about a bar that cannot be written.
            let _ = write!(to, "{:.0}/s", state.per_sec());
        };
        bar.set_style(style.with_key("rate", rate).progress_chars("=> "));
    }
    bar.enable_steady_tick(DRAW_EVERY);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;

    #[test]
    fn a_bar_says_how_many_of_how_many_are_done() {
        let term = InMemoryTerm::new(3, 80);
        let target = || ProgressDrawTarget::term_like_with_hz(Box::new(term.clone()), 200);
        let progress = Progress(Some(bar("submitted", Some(4_000), target())));
        progress.set(1_999, 4_000);
        progress.one_more();
        progress.beside(|| ());
        let shown = term.contents();
        assert!(shown.contains("submitted 2,000 of 4,000 [===="), "{shown}");
        drop(progress);
        assert_eq!(term.contents(), "", "nothing is left of it");
        let progress = Progress(Some(bar("submitted", None, target())));
        progress.one_more();
        progress.beside(|| ());
        assert!(term.contents().contains("submitted 1,"), "{}", term.contents());
    }

    #[test]
    fn where_there_is_no_terminal_there_is_no_bar() {
        let progress = Progress::none();
        progress.one_more();
        progress.set(1, 2);
        assert_eq!(progress.beside(|| 7), 7);
    }
}
