//! Columns: widths from the content, shrunk to the terminal, cells cut with `…`.

use super::escape::{fit, width};

/// Blanks between two columns.
const GAP: usize = 2;
/// Narrowest that a column of names becomes.
const NARROWEST: usize = 6;
/// As wide as most names are.
const NAMEABLE: usize = 12;
/// As wide as most reasons are.
const READABLE: usize = 20;

/// Where a cell stands in its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// At its left edge.
    Left,
    /// At its right edge.
    Right,
}

/// One column.
#[derive(Debug, Clone)]
pub struct Column {
    title: String,
    align: Align,
    least: usize,
    shrinks: bool,
}

impl Column {
    /// A column at least `least` wide.
    pub fn new(title: &str, align: Align, least: usize) -> Self {
        Column { title: title.to_owned(), align, least: least.max(width(title)), shrinks: false }
    }

    /// Its cells may be cut when the line is too long; a later column is cut before an earlier one.
    #[must_use]
    pub fn shrinking(mut self) -> Self {
        self.shrinks = true;
        self
    }
}

/// Lays out rows of escaped cells in at most `columns_max` columns of the terminal.
pub struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// No rows yet.
    pub fn new(columns: Vec<Column>) -> Self {
        Grid { columns, rows: Vec::new() }
    }

    /// Adds a row, one cell a column.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The header and the rows, each a line without trailing blanks. `paint` colours a cell that
    /// is already padded, given its row (`None`: the header) and column.
    pub fn render(
        &self,
        line_max: usize,
        paint: impl Fn(Option<usize>, usize, String) -> String,
    ) -> String {
        let widths = self.widths(line_max);
        let titles: Vec<String> = self.columns.iter().map(|c| c.title.clone()).collect();
        let mut out = self.line(None, &titles, &widths, &paint);
        for (at, row) in self.rows.iter().enumerate() {
            out.push_str(&self.line(Some(at), row, &widths, &paint));
        }
        out
    }

    fn widths(&self, line_max: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|c| c.least).collect();
        for row in &self.rows {
            for (slot, cell) in widths.iter_mut().zip(row) {
                *slot = (*slot).max(width(cell));
            }
        }
        let gaps = GAP * widths.len().saturating_sub(1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(line_max);
        // Names first, down to what tells them apart; then the last column, which explains; then
        // whatever is left.
        let last = widths.len().saturating_sub(1);
        for (is_last, floor) in [(false, NAMEABLE), (true, READABLE), (false, NARROWEST), (true, 0)]
        {
            for (at, column) in self.columns.iter().enumerate().rev() {
                if column.shrinks && (at == last) == is_last {
                    let floor = floor.max(width(&column.title));
                    let cut = excess.min(widths[at].saturating_sub(floor));
                    widths[at] -= cut;
                    excess -= cut;
                }
            }
        }
        widths
    }

    fn line(
        &self,
        row: Option<usize>,
        cells: &[String],
        widths: &[usize],
        paint: &impl Fn(Option<usize>, usize, String) -> String,
    ) -> String {
        let mut out = String::new();
        let last = cells.len().saturating_sub(1);
        for (at, (cell, columns)) in cells.iter().zip(widths).enumerate() {
            let cell = fit(cell, *columns);
            let blanks = " ".repeat(columns - width(&cell));
            let right = self.columns[at].align == Align::Right;
            if right {
                out.push_str(&blanks);
            }
            out.push_str(&paint(row, at, cell));
            if !right && at != last {
                out.push_str(&blanks);
            }
            if at != last {
                out.push_str(&" ".repeat(GAP));
            }
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
        out
    }
}

/// Breaks a line at blanks so that it fits; what follows the first line is indented by `indent`.
/// A word longer than a line stays whole: it may be a path that somebody wants to copy.
pub fn wrap(text: &str, line_max: usize, indent: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    let mut at_start = true;
    for word in text.split(' ') {
        let wide = width(word);
        if !at_start && used + 1 + wide > line_max {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = indent;
            at_start = true;
        }
        if !at_start {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += wide;
        at_start = false;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(_: Option<usize>, _: usize, cell: String) -> String {
        cell
    }

    #[test]
    fn the_last_column_is_cut_first_and_numbers_stand_right() {
        let mut grid = Grid::new(vec![
            Column::new("ID", Align::Left, 4),
            Column::new("NAME", Align::Left, 4).shrinking(),
            Column::new("N", Align::Right, 3),
            Column::new("REASON", Align::Left, 6).shrinking(),
        ]);
        grid.row(
            ["1", "a-long-name-of-a-job", "7", "because of this and that and more"]
                .map(str::to_owned)
                .to_vec(),
        );
        let text = grid.render(40, plain);
        assert!(text.lines().all(|line| width(line) <= 40), "{text}");
        assert!(text.starts_with("ID    NAME"), "{text}");
        assert!(text.contains('…'));
    }

    #[test]
    fn lines_break_at_blanks_and_keep_their_words() {
        assert_eq!(wrap("one two three", 8, 2), "one two\n  three");
        assert_eq!(wrap("  one two", 80, 2), "  one two");
        assert_eq!(wrap("averylongword x", 5, 0), "averylongword\nx");
    }

    proptest! {
        #[test]
        fn no_row_is_wider_than_the_terminal(cells in proptest::collection::vec("[a-z日 ]{0,60}", 3), most in 40usize..120) {
            let mut grid = Grid::new(vec![
                Column::new("A", Align::Left, 4).shrinking(),
                Column::new("B", Align::Right, 4).shrinking(),
                Column::new("C", Align::Left, 4).shrinking(),
            ]);
            grid.row(cells);
            let text = grid.render(most, plain);
            prop_assert!(text.lines().all(|line| width(line) <= most));
        }
    }
}
