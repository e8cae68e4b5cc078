//! Help and version text of clap, as it goes to a reader: with styles only on a terminal.

/// The text with its styles, or without.
pub fn plain_help(error: &clap::Error, colour: bool) -> String {
    let styled = error.render();
    if colour { styled.ansi().to_string() } else { styled.to_string() }
}
