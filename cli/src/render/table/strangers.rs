//! `docket list --orphans` and `docket nodes --strays`: what nodes know and the ledger does not.

use super::paint;
use crate::render::escape::line;
use crate::render::layout::{Align, Column, Grid};
use crate::render::quantity::{count, rough};
use crate::render::{View, attempt_task_id, reason};
use proto::v1::{Node, Orphan};

/// Facts about jobs that are not known here, oldest first.
pub fn orphans(orphans: &[Orphan], more: bool, view: &View) -> String {
    if orphans.is_empty() {
        return "no orphans: every job that a node told of is known here\n".to_owned();
    }
    let mut grid = Grid::new(vec![
        Column::new("ID", Align::Left, 4),
        Column::new("ATTEMPT", Align::Right, 7),
        Column::new("NODE", Align::Left, 4).shrinking(),
        Column::new("CAME", Align::Right, 7),
        Column::new("KEPT AS", Align::Left, 7),
        Column::new("WHAT IT SAYS", Align::Left, 12).shrinking(),
    ]);
    for orphan in orphans {
        let ago = rough(view.now_ms.saturating_sub(orphan.wall_ms));
        grid.row(vec![
            attempt_task_id(orphan.job, orphan.task),
            orphan.attempt.to_string(),
            line(&orphan.node),
            format!("{ago} ago"),
            if orphan.expired { "orphan" } else { "waiting" }.to_owned(),
            says(orphan),
        ]);
    }
    let mut out = grid.render(view.row_max(), |row, _, text| match row {
        None => paint::bold(text, view),
        Some(_) => text,
    });
    out.push_str("Each still takes effect if its job is submitted to this log.\n");
    if more {
        out.push_str(&format!("The first {} are shown: --limit N\n", count(orphans.len() as u64)));
    }
    out
}

fn says(orphan: &Orphan) -> String {
    match &orphan.reason {
        Some(why) => format!("ended: {}", reason::full(why)),
        None => line(match orphan.fact.as_str() {
            "start" => "started",
            other => other,
        }),
    }
}

/// Attempts that nodes hold and that are not known here.
pub fn strays(nodes: &[Node], view: &View) -> String {
    if nodes.iter().all(|node| node.strays.is_empty()) {
        return "no strays: every attempt that a node holds is known here\n".to_owned();
    }
    let mut grid = Grid::new(vec![
        Column::new("NODE", Align::Left, 5).shrinking(),
        Column::new("STATE", Align::Left, 7),
        Column::new("ID", Align::Left, 4),
        Column::new("ATTEMPT", Align::Right, 7),
    ]);
    for node in nodes {
        for stray in &node.strays {
            grid.row(vec![
                line(&node.name),
                line(&node.state),
                attempt_task_id(stray.job, stray.task),
                stray.attempt.to_string(),
            ]);
        }
    }
    let table = grid.render(view.row_max(), |row, at, text| match (row, at) {
        (None, _) => paint::bold(text, view),
        (Some(_), 1) => paint::state(text, view),
        _ => text,
    });
    table + "They run on: nobody here knows what they are. Look on the node, end them there.\n"
}
