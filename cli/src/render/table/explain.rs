//! `docket explain` and `docket events`: why a job is in its state, and how it got there.

use super::paint;
use crate::render::View;
use crate::render::escape::line;
use crate::render::layout::{Align, Column, Grid, wrap};
use crate::render::quantity::exact_time;
use proto::v1::{EventsAnswer, ExplainAnswer};

/// The words of the server, its nodes between headline and the rest.
pub fn explain(answer: &ExplainAnswer, view: &View) -> String {
    let mut out = format!("{}\n", wrap(&line(&answer.headline), view.width, 2));
    let widest = |part: fn(&proto::v1::ExplainNode) -> &str| {
        answer.nodes.iter().map(|node| line(part(node)).chars().count()).max().unwrap_or(0)
    };
    let (names, has) = (widest(|node| &node.node), widest(|node| &node.has));
    for node in &answer.nodes {
        let row = format!(
            "  {:<names$}  {:<has$}  {}",
            line(&node.node),
            line(&node.has),
            line(&node.why)
        );
        out.push_str(&wrap(row.trim_end(), view.width, names + has + 6));
        out.push('\n');
    }
    for text in &answer.lines {
        let indent = text.bytes().take_while(|b| *b == b' ').count() + 2;
        out.push_str(&wrap(&line(text), view.width, indent));
        out.push('\n');
    }
    out
}

/// The time line of a job.
pub fn events(answer: &EventsAnswer, view: &View) -> String {
    let mut grid = Grid::new(vec![
        Column::new("TIME", Align::Left, 12),
        Column::new("POS", Align::Left, 5),
        Column::new("WHO", Align::Left, 13).shrinking(),
        Column::new("WHAT", Align::Left, 4),
    ]);
    for (n, event) in answer.events.iter().enumerate() {
        // The submit is always kept; what is not came right behind it.
        if n == 1 && answer.truncated {
            let gap = "(older events are no longer kept)".to_owned();
            grid.row(vec![String::new(), String::new(), String::new(), gap]);
        }
        grid.row(vec![
            exact_time(event.wall_ms, view.now_ms, &view.zone),
            event.position.to_string(),
            line(&event.who),
            line(&event.what),
        ]);
    }
    // What happened is never cut: a reason at the end of a line is what people look for.
    grid.render(usize::MAX, |row, _, text| match row {
        None => paint::bold(text, view),
        Some(_) => text,
    })
}
