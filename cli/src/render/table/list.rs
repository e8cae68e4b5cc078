//! `docket list`: one row a task, a line of counts under it.

use super::paint;
use crate::args::{Column, SortBy};
use crate::render::escape::{bytes_line, command, line};
use crate::render::layout::{Align, Column as Layout, Grid};
use crate::render::quantity::{amounts, clock, count, gpus};
use crate::render::{ListLayout, ListSummary, View, reason, task_id};
use proto::v1::Task;

/// The columns of design 11.
const USUAL: [Column; 8] = [
    Column::Id,
    Column::Name,
    Column::User,
    Column::State,
    Column::Time,
    Column::Cpus,
    Column::Node,
    Column::Reason,
];

/// The table of `tasks` (any order) and its last line.
pub fn list(tasks: &[Task], summary: &ListSummary, layout: &ListLayout, view: &View) -> String {
    let columns = if layout.columns.is_empty() { USUAL.to_vec() } else { layout.columns.clone() };
    let mut tasks: Vec<&Task> = tasks.iter().collect();
    sort(&mut tasks, layout.sort, view);
    let mut grid = Grid::new(columns.iter().map(|column| shape(*column)).collect());
    for task in &tasks {
        grid.row(columns.iter().map(|column| cell(*column, task, view)).collect());
    }
    let footer = footer(tasks.len(), summary);
    if tasks.is_empty() {
        return footer;
    }
    let table = grid.render(view.row_max(), |row, at, text| match (row, columns[at]) {
        (None, _) => paint::bold(text, view),
        (Some(_), Column::State) => paint::state(text, view),
        _ => text,
    });
    table + &footer
}

fn sort(tasks: &mut [&Task], by: SortBy, view: &View) {
    let id = |task: &Task| (task.job, task.task);
    match by {
        SortBy::Id => tasks.sort_by_key(|task| id(task)),
        SortBy::Name => tasks.sort_by(|a, b| (&a.name, id(a)).cmp(&(&b.name, id(b)))),
        SortBy::State => tasks.sort_by_key(|task| (state_rank(shown_state(task)), id(task))),
        SortBy::Time => tasks.sort_by_key(|task| (spent(task, view).unwrap_or(0), id(task))),
    }
}

fn state_rank(state: &str) -> usize {
    let order = ["RUN", "SUSP", "UNKWN", "PEND", "EXIT", "DONE"];
    order.iter().position(|known| *known == state).unwrap_or(order.len())
}

fn shape(column: Column) -> Layout {
    let left = |title: &str, least| Layout::new(title, Align::Left, least);
    let right = |title: &str, least| Layout::new(title, Align::Right, least);
    match column {
        Column::Id => left("ID", 4),
        Column::Name => left("NAME", 7).shrinking(),
        Column::User => left("USER", 4).shrinking(),
        Column::State => left("STATE", 6),
        Column::Time => right("TIME", 9),
        Column::Cpus => right("CPUS", 4),
        Column::Gpus => left("GPUS", 4),
        Column::Resources => left("RESOURCES", 9),
        Column::Node => left("NODE", 4).shrinking(),
        Column::Reason => left("REASON", 6).shrinking(),
        Column::Queue => left("QUEUE", 5).shrinking(),
        Column::Priority => right("PRIORITY", 8),
        Column::Attempt => right("ATTEMPT", 7),
        Column::Dir => left("DIR", 3).shrinking(),
        Column::Command => left("COMMAND", 7).shrinking(),
    }
}

/// An array counts as running while any of its tasks does.
fn shown_state(task: &Task) -> &str {
    match &task.array {
        Some(array) if array.counts.contains_key("RUN") => "RUN",
        _ => &task.state,
    }
}

fn cell(column: Column, task: &Task, view: &View) -> String {
    match column {
        Column::Id => task_id(task),
        Column::Name => line(&task.name),
        Column::User => line(&task.user),
        Column::State => shown_state(task).to_owned(),
        Column::Time => spent(task, view).map_or_else(|| "-".to_owned(), clock),
        Column::Cpus => task.cpus.to_string(),
        Column::Gpus => gpus(task),
        Column::Resources => amounts(&task.resources),
        Column::Node => task.node.as_ref().map_or_else(|| "-".to_owned(), |node| line(node)),
        Column::Reason => reason::cell(task, view),
        Column::Queue => line(&task.queue),
        Column::Priority => task.priority.to_string(),
        Column::Attempt if task.array.is_some() => "-".to_owned(),
        Column::Attempt => task.attempt.to_string(),
        Column::Dir => bytes_line(&task.dir),
        Column::Command => command(&task.command),
    }
}

/// Time it ran, or has waited for resources.
fn spent(task: &Task, view: &View) -> Option<u64> {
    let from = match (task.state.as_str(), task.substate.as_str()) {
        ("PEND", "queued" | "dispatched") => Some(task.submit_wall_ms),
        ("PEND", _) => None,
        _ => task.start_wall_ms,
    };
    let to = task.finish_wall_ms.unwrap_or(view.now_ms);
    from.map(|from| to.saturating_sub(from))
}

fn footer(shown: usize, summary: &ListSummary) -> String {
    let of = |state: &str| summary.counts.get(state).copied().unwrap_or(0);
    let mut parts: Vec<String> = ["RUN", "PEND", "SUSP", "UNKWN"]
        .into_iter()
        .filter(|state| of(state) > 0)
        .map(|state| format!("{} {state}", count(of(state))))
        .collect();
    let ended = of("DONE") + of("EXIT");
    if ended > 0 {
        let window = summary.window.as_ref().map(|w| format!(" in the last {w}"));
        parts.push(format!("{} ended{}", count(ended), window.unwrap_or_default()));
    }
    let mut text = match (parts.is_empty(), shown) {
        (true, 0) => "no such jobs".to_owned(),
        _ => parts.join(", "),
    };
    if summary.cut {
        text.push_str(&format!("; the newest {} are shown: --limit N", count(shown as u64)));
    }
    if summary.older_ended > 0 {
        text.push_str(&format!("; {} older: --all", count(summary.older_ended)));
    }
    text + "\n"
}
