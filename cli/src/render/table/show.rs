//! `docket show`: one job in full, and what to type next.

use super::paint;
use crate::render::escape::{bytes_line, command, line, width};
use crate::render::layout::wrap;
use crate::render::quantity as q;
use crate::render::{View, reason, task_id};
use proto::v1::{ArrayView, DependencyKind, Rusage, Task};
use units::exact_size;

/// Where the values begin.
const INDENT: usize = 13;
/// Where the second half of a line begins.
const SECOND: usize = 39;
/// Where the state stands in the first line.
const STATE_AT: usize = 50;
/// Most lines of stderr that are shown.
const TAIL_LINES: usize = 10;

/// The screen of one task.
pub fn show(task: &Task, view: &View) -> String {
    let mut out = title(task, view);
    out.push_str(&field("command", &command_words(task), view));
    out.push_str(&where_it_is(task, view));
    if !task.comment.is_empty() {
        out.push_str(&field("comment", &line(&task.comment), view));
    }
    out.push_str(&after(task, view));
    if let Some(array) = &task.array {
        out.push_str(&array_words(task, array, view));
        return out + &next(task);
    }
    out.push_str(&times(task, view));
    out.push_str(&used(task));
    out.push_str(&beside(task, view));
    out.push_str(&output(task, view));
    out.push_str(&stderr_tail(task));
    out.push_str(&next(task));
    out
}

/// Ids of one kind of dependency that are shown.
const IDS_SHOWN: usize = 10;

/// What has to happen before it starts, as it was asked for.
fn after(task: &Task, view: &View) -> String {
    let mut out = String::new();
    let mut kinds: Vec<DependencyKind> = task.dependencies.iter().map(|dep| dep.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let ids = || task.dependencies.iter().filter(|dep| dep.kind() == kind);
        let shown: Vec<String> = ids().take(IDS_SHOWN).map(reason::dependency_id).collect();
        let more = match ids().count().saturating_sub(IDS_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let name = reason::dependency_kind(kind);
        out.push_str(&field(name, &format!("{}{more}", shown.join(", ")), view));
    }
    if let Some(begin) = task.begin_wall_ms {
        out.push_str(&field("begin", &q::date_time(begin, &view.zone), view));
    }
    out
}

/// How far an array is.
fn array_words(task: &Task, array: &ArrayView, view: &View) -> String {
    let at = q::date_time(task.submit_wall_ms, &view.zone);
    let limit = array.limit.map_or(String::new(), |limit| format!(", at most {limit} at once"));
    let tasks = format!("{} ({} of them{limit})", line(&array.tasks), array.total);
    let mut out = field("submitted", &at, view);
    out.push_str(&field("tasks", &tasks, view));
    out.push_str(&field("now", &reason::array(array), view));
    out.push_str(&used(task));
    out.push_str(&beside(task, view));
    out.push_str(&field(
        "each task",
        &format!("docket show {}_N, docket logs {0}_N", task.job),
        view,
    ));
    out
}

fn title(task: &Task, view: &View) -> String {
    let left = format!("Job {}  {}", task_id(task), line(&task.name));
    let blanks = STATE_AT.saturating_sub(width(&left)).max(2);
    let why = task.reason.as_ref().map_or(String::new(), |r| format!("  {}", reason::full(r)));
    let late = task.late_outcome.as_ref().map_or(String::new(), |late| {
        format!("\n  late       {} came after this was decided", reason::full(late))
    });
    let why = if task.state == "DONE" { String::new() } else { why };
    let long = width(&left) + blanks + width(&task.state) + width(&why) > view.width;
    let state = paint::state(task.state.clone(), view);
    let left = paint::bold(left, view);
    if long {
        let state = field("state", &format!("{}{why}", task.state), view);
        return format!("{left}\n{}{late}", state.trim_end_matches('\n')) + "\n";
    }
    format!("{left}{}{state}{why}{late}\n", " ".repeat(blanks))
}

fn command_words(task: &Task) -> String {
    let words = command(&task.command);
    match (task.script, words.is_empty()) {
        (true, true) => "stored script".to_owned(),
        (true, false) => format!("stored script, arguments: {words}"),
        (false, _) => words,
    }
}

fn where_it_is(task: &Task, view: &View) -> String {
    let more = format!(
        "user {}    queue {}    priority {}",
        line(&task.user),
        line(&task.queue),
        task.priority
    );
    pair("dir", &bytes_line(&task.dir), &more, view)
}

fn times(task: &Task, view: &View) -> String {
    let at = |ms: u64| q::date_time(ms, &view.zone);
    let first = task.start_wall_ms.or(task.finish_wall_ms).unwrap_or(view.now_ms);
    let waited = q::seconds(first.saturating_sub(task.submit_wall_ms));
    let waited = match task.state.as_str() {
        "PEND" => format!("waiting {waited}"),
        _ => format!("waited {waited}"),
    };
    let mut out = pair("submitted", &at(task.submit_wall_ms), &waited, view);
    if let Some(start) = task.start_wall_ms {
        out.push_str(&pair("started", &at(start), &placed(task), view));
    }
    let limit = task.time_limit_ms.map_or_else(|| "none".to_owned(), q::span);
    if let Some(finish) = task.finish_wall_ms {
        let ran = task.start_wall_ms.map(|start| q::seconds(finish.saturating_sub(start)));
        let ran = match (ran, &task.node) {
            (Some(ran), _) => format!("ran {ran} (limit {limit})"),
            (None, Some(node)) => format!("on {}, never ran", line(node)),
            (None, None) => "never ran".to_owned(),
        };
        out.push_str(&pair("ended", &at(finish), &ran, view));
    } else if let Some(start) = task.start_wall_ms {
        let ran = q::seconds(view.now_ms.saturating_sub(start));
        out.push_str(&field("running", &format!("for {ran} (limit {limit})"), view));
    }
    if task.start_wall_ms.is_none() && task.retries > 0 {
        out.push_str(&field("attempt", &format!("{}{}", task.attempt, retried(task)), view));
    }
    if !task.killed.is_empty() {
        out.push_str(&field("killed", &line(&task.killed), view));
    }
    if let Some(by) = reason::cancel_beside(task) {
        let text = format!("asked by {by}: docket events {}", task_id(task));
        out.push_str(&field("cancel", &text, view));
    }
    let why = if task.terminal { String::new() } else { reason::cell(task, view) };
    if !why.is_empty() {
        out.push_str(&field("now", &why, view));
    }
    out
}

fn placed(task: &Task) -> String {
    let node = task.node.as_ref().map_or_else(|| "nowhere".to_owned(), |node| line(node));
    let pid = if task.pid > 0 { format!(", pid {}", task.pid) } else { String::new() };
    format!("on {node}, attempt {}{}{pid}", task.attempt, retried(task))
}

/// How much of its retries is used; nothing where none were asked for.
fn retried(task: &Task) -> String {
    match task.retries {
        0 => String::new(),
        retries => format!(" ({} of {retries} retries used)", task.retried),
    }
}

fn used(task: &Task) -> String {
    let asked = match task.mem_bytes {
        0 => "none".to_owned(),
        bytes => exact_size(bytes),
    };
    let cpus = format!("{} cpu{}", task.cpus, if task.cpus == 1 { "" } else { "s" });
    match &task.rusage {
        Some(used) => {
            let cpu = q::seconds((used.user_us + used.system_us) / 1000);
            let memory = match used.peak_bytes {
                Some(peak) => format!("peak memory {}", q::size(peak)),
                None => format!("largest process {}", q::size(used.max_rss_bytes)),
            };
            let text = format!("cpu {cpu} of {cpus}, {memory} (asked: {asked})");
            format!("  used       {text}{}\n{}", left_out(used), killed_for_memory(used))
        }
        None => format!("  asked      {cpus}, memory {asked}\n"),
    }
}

/// Gpus and named consumables, if it asks for some.
fn beside(task: &Task, view: &View) -> String {
    let mut out = String::new();
    if task.gpus > 0 {
        let ids: Vec<String> = task.gpu_ids.iter().map(u32::to_string).collect();
        let given = match ids.is_empty() {
            true => format!("{} asked", task.gpus),
            false => format!("{} asked, given: {}", task.gpus, ids.join(",")),
        };
        out.push_str(&field("gpus", &given, view));
    }
    if !task.resources.is_empty() {
        out.push_str(&field("resources", &q::amounts(&task.resources), view));
    }
    out
}

/// Said where nobody counted the whole tree.
fn left_out(used: &Rusage) -> &'static str {
    if used.whole_tree { "" } else { "\n             without processes that nothing waited for" }
}

fn killed_for_memory(used: &Rusage) -> String {
    let whose = match used.oom_of_node {
        true => "\n             its node had no memory left: it had not reached a limit of its own",
        false => "",
    };
    match used.oom_kills {
        0 => String::new(),
        1 => format!("  memory     the kernel killed 1 process of it for memory{whose}\n"),
        n => format!("  memory     the kernel killed {n} processes of it for memory{whose}\n"),
    }
}

/// Where the output is: named files, or the run directory of the node.
fn output(task: &Task, view: &View) -> String {
    let Some(node) = task.node.as_ref().map(|node| line(node)) else { return String::new() };
    if task.start_wall_ms.is_none() {
        return String::new();
    }
    let run = format!("{}.{}", task.task.unwrap_or(0), task.attempt);
    let size = |bytes: u64, cut: u64| match (task.terminal, cut) {
        (false, _) => String::new(),
        (true, 0) => format!("  {}", q::size(bytes)),
        (true, _) => format!("  {}, {} of it cut out", q::size(bytes), q::size(cut)),
    };
    let (out_size, err_size) = (
        size(task.stdout_bytes, task.stdout_cut_bytes),
        size(task.stderr_bytes, task.stderr_cut_bytes),
    );
    let out = match task.stdout_path.as_slice() {
        [] => format!("{node}:runs/{}/{run}.out{out_size}", task.job),
        path => format!("{node}:{}{out_size}", bytes_line(path)),
    };
    let err = match task.stderr_path.as_slice() {
        [] => format!("{run}.err{err_size}"),
        path => format!("{node}:{}{err_size}", bytes_line(path)),
    };
    pair("output", &out, &err, view)
}

fn stderr_tail(task: &Task) -> String {
    if task.state != "EXIT" || task.stderr_tail.is_empty() {
        return String::new();
    }
    let tail = task.stderr_tail.strip_suffix(b"\n").unwrap_or(&task.stderr_tail);
    let lines: Vec<&[u8]> = tail.split(|b| *b == b'\n').collect();
    let shown = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    let mut out = "  last lines of stderr:\n".to_owned();
    for text in shown {
        out.push_str(&format!("    | {}\n", bytes_line(text)));
    }
    out
}

fn next(task: &Task) -> String {
    let id = task_id(task);
    let commands: &[&str] = match task.state.as_str() {
        "PEND" => &["explain", "events", "cancel"],
        "SUSP" if task.suspend_requested.is_none() => &["resume", "logs -f", "cancel"],
        "RUN" | "SUSP" => &["logs -f", "events", "cancel"],
        "UNKWN" => &["explain", "events", "logs"],
        "DONE" => &["logs", "events"],
        _ => &["logs", "explain", "retry"],
    };
    let each: Vec<String> = commands.iter().map(|name| format!("docket {name} {id}")).collect();
    format!("Next: {}\n", each.join(" · "))
}

fn field(label: &str, text: &str, view: &View) -> String {
    let text = wrap(&format!("  {label:<10} {text}"), view.width, INDENT);
    format!("{text}\n")
}

/// Two values on one line if they fit, else on two.
fn pair(label: &str, left: &str, right: &str, view: &View) -> String {
    let one = format!("  {label:<10} {left}");
    let blanks = SECOND.saturating_sub(width(&one)).max(2);
    if width(&one) + blanks + width(right) <= view.width {
        return format!("{one}{}{right}\n", " ".repeat(blanks));
    }
    format!("{one}\n{}{right}\n", " ".repeat(INDENT))
}
