//! The screens of operators: nodes, cluster, cancel results, settings, checks.

use super::paint;
use crate::render::escape::line;
use crate::render::layout::{Align, Column, Grid, wrap};
use crate::render::limits;
use crate::render::quantity::{count, last_word, share, span};
use crate::render::{Check, SettingRow, View, named};
use proto::v1::{CancelResult, ClusterResource, Node, StatusAnswer};

/// `docket nodes`.
pub fn nodes(nodes: &[Node], view: &View) -> String {
    if nodes.is_empty() {
        return "no nodes: start one with docket agent, or docket up\n".to_owned();
    }
    let mut grid = Grid::new(vec![
        Column::new("NODE", Align::Left, 5).shrinking(),
        Column::new("STATE", Align::Left, 7),
        Column::new("LAST WORD", Align::Right, 9),
        Column::new("CPUS used", Align::Right, 9),
        Column::new("MEM used", Align::Right, 9),
        Column::new("GPUS", Align::Right, 4),
        Column::new("JOBS", Align::Right, 4),
        Column::new("NOTES", Align::Left, 5).shrinking(),
    ]);
    for node in nodes {
        grid.row(node_row(node));
    }
    grid.render(view.row_max(), |row, at, text| match (row, at) {
        (None, _) => paint::bold(text, view),
        (Some(_), 1) => paint::state(text, view),
        _ => text,
    })
}

fn node_row(node: &Node) -> Vec<String> {
    let has = node.resources.clone().unwrap_or_default();
    let limits = limits::note(&has);
    let notes = Some(line(&node.notes)).filter(|notes| !notes.is_empty());
    let named = has.resources.iter().map(|(name, all)| {
        let used = node.resources_used.get(name).copied().unwrap_or(0);
        format!("{name} {used}/{all}")
    });
    let notes: Vec<String> = notes.into_iter().chain(named).chain(limits).collect();
    vec![
        line(&node.name),
        line(&node.state),
        node.last_word_ms.map_or_else(|| "-".to_owned(), last_word),
        format!("{}/{}", node.cpus_used, has.cpus),
        share(node.mem_used, has.mem_bytes),
        match (has.gpus, node.gpus_used) {
            (0, 0) => "-".to_owned(),
            (all, used) => format!("{used}/{all}"),
        },
        node.jobs.to_string(),
        notes.join(", "),
    ]
}

/// `docket cluster status`.
pub fn status(status: &StatusAnswer) -> String {
    let of = |state: &str| status.tasks_by_state.get(state).copied().unwrap_or(0);
    let tasks: Vec<String> = ["RUN", "PEND", "SUSP", "UNKWN", "DONE", "EXIT"]
        .into_iter()
        .map(|state| format!("{} {state}", count(of(state))))
        .collect();
    let leader = match status.leader {
        0 => "none known".to_owned(),
        id => format!("controller {id}"),
    };
    let listen = if status.listen.is_empty() { "its socket only" } else { status.listen.as_str() };
    let http = if status.http.is_empty() { "none" } else { status.http.as_str() };
    let kind = if status.embedded { "embedded node" } else { "controller" };
    let resources = status.resources.iter().map(cluster_resource).collect::<Vec<_>>().join(", ");
    let resources = (!resources.is_empty()).then_some(("resources", resources));
    let disk = if status.disk_full { "full: no new jobs are taken" } else { "room" };
    let rows = [
        ("cluster", format!("{}, generation {}", line(&status.cluster_id), status.generation)),
        ("leader", format!("{leader}, term {}, {} voter(s)", status.term, status.voters)),
        ("applied", format!("log position {}, level {}", count(status.applied), status.level)),
        ("tasks", tasks.join(", ")),
        (
            "server",
            format!(
                "docket {}, {kind} of {} on {}, pid {}, up {}",
                line(&status.version),
                line(&status.user),
                line(&status.host),
                status.pid,
                span(status.uptime_ms)
            ),
        ),
        ("data", line(&status.data)),
        ("disk", disk.to_owned()),
        ("listen", line(listen)),
        ("http", line(http)),
    ];
    let rows = rows.into_iter().chain(resources);
    rows.map(|(label, text)| format!("{label:<10} {text}\n")).collect()
}

/// `matlab 1/2`, and how much of that nobody uses for certain.
fn cluster_resource(resource: &ClusterResource) -> String {
    let ClusterResource { name, total, used, left_over } = resource;
    let left = match left_over {
        0 => String::new(),
        left => format!(" ({left} left over: docket nodes)"),
    };
    format!("{} {used}/{total}{left}", line(name))
}

/// `docket cancel`: what became of each job; those refused are told as errors.
pub fn cancelled(results: &[CancelResult]) -> String {
    let words = |outcome: &str| match outcome {
        "requested" => "cancel requested: it ends when its node says so".to_owned(),
        "already-ended" => "has already ended".to_owned(),
        other => line(other),
    };
    results
        .iter()
        .filter(|result| result.error.is_none())
        .map(|result| {
            let id = named(result.job, result.tasks.as_ref());
            format!("{id} {}\n", words(&result.outcome))
        })
        .collect()
}

/// `docket config`.
pub fn settings(rows: &[SettingRow]) -> String {
    let mut grid = Grid::new(vec![
        Column::new("KEY", Align::Left, 3),
        Column::new("VALUE", Align::Left, 5),
        Column::new("FROM", Align::Left, 4),
    ]);
    for row in rows {
        let value = row.value.as_ref().map_or_else(|| "-".to_owned(), |value| line(value));
        grid.row(vec![row.key.clone(), value, line(&row.source)]);
    }
    // Values are shown whole: somebody may want to copy them.
    grid.render(usize::MAX, |_, _, text| text)
}

/// `docket doctor`.
pub fn checks(checks: &[Check], view: &View) -> String {
    const INDENT: usize = 21;
    let mut out = String::new();
    for check in checks {
        let health = check.health.name();
        let text = format!("{health:<5} {:<14} {}", check.what, line(&check.found));
        let text = wrap(&text, view.width, INDENT);
        let rest = text.strip_prefix(health).unwrap_or_default();
        out.push_str(&format!("{}{rest}\n", paint::state(health.to_owned(), view)));
    }
    out
}
