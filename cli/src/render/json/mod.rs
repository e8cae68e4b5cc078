//! JSON with the fields of design 7: one array, or one object a line.

mod other;
mod strangers;
mod task;

pub use other::{dry_run, retried, submitted};

use super::{Check, ListSummary, Render, SettingRow, escape};
use proto::v1;
use serde::Serialize;
use task::TaskJson;

/// JSON output.
pub struct Json {
    lines: bool,
    /// Objects of a list written so far: an array needs to know its first.
    written: u64,
}

impl Json {
    /// One array.
    pub fn array() -> Self {
        Json { lines: false, written: 0 }
    }

    /// One object a line.
    pub fn lines() -> Self {
        Json { lines: true, written: 0 }
    }

    fn all<T: Serialize>(&self, values: &[T]) -> String {
        if self.lines {
            return values.iter().map(|value| text(value) + "\n").collect();
        }
        let each: Vec<String> = values.iter().map(|value| format!("  {}", text(value))).collect();
        if each.is_empty() { "[]\n".to_owned() } else { format!("[\n{}\n]\n", each.join(",\n")) }
    }
}

/// One value on one line; characters that JSON lets through but a terminal would act on are escaped.
pub(super) fn text(value: &impl Serialize) -> String {
    let raw =
        serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        if escape::is_unsafe(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// One task as one line, as `wait --json` prints it.
pub fn task_line(task: &v1::Task) -> String {
    text(&TaskJson::from(task)) + "\n"
}

impl Render for Json {
    fn list_page(&mut self, tasks: &[v1::Task]) -> String {
        let mut out = String::new();
        for task in tasks {
            if !self.lines {
                out.push_str(if self.written == 0 { "[\n  " } else { ",\n  " });
            }
            out.push_str(&text(&TaskJson::from(task)));
            if self.lines {
                out.push('\n');
            }
            self.written += 1;
        }
        out
    }

    fn list_end(&mut self, _: &ListSummary) -> String {
        match (self.lines, self.written) {
            (true, _) => String::new(),
            (false, 0) => "[]\n".to_owned(),
            (false, _) => "\n]\n".to_owned(),
        }
    }

    fn show(&mut self, tasks: &[v1::Task]) -> String {
        self.all(&tasks.iter().map(TaskJson::from).collect::<Vec<_>>())
    }

    fn events(&mut self, answer: &v1::EventsAnswer) -> String {
        self.all(&answer.events.iter().map(other::EventJson::from).collect::<Vec<_>>())
    }

    fn explain(&mut self, answers: &[v1::ExplainAnswer]) -> String {
        self.all(&answers.iter().map(other::ExplainJson::from).collect::<Vec<_>>())
    }

    fn nodes(&mut self, nodes: &[v1::Node]) -> String {
        self.all(&nodes.iter().map(other::NodeJson::from).collect::<Vec<_>>())
    }

    fn status(&mut self, status: &v1::StatusAnswer) -> String {
        text(&other::StatusJson::from(status)) + "\n"
    }

    fn cancelled(&mut self, results: &[v1::CancelResult]) -> String {
        self.all(&results.iter().map(other::CancelJson::from).collect::<Vec<_>>())
    }

    fn edited(&mut self, results: &[v1::EditResult]) -> String {
        self.all(&results.iter().map(other::EditJson::from).collect::<Vec<_>>())
    }

    fn orphans(&mut self, orphans: &[v1::Orphan], _: bool) -> String {
        self.all(&orphans.iter().map(strangers::OrphanJson::from).collect::<Vec<_>>())
    }

    fn strays(&mut self, nodes: &[v1::Node]) -> String {
        self.all(&strangers::strays(nodes))
    }

    fn settings(&mut self, rows: &[SettingRow]) -> String {
        self.all(&rows.iter().map(other::SettingJson::from).collect::<Vec<_>>())
    }

    fn checks(&mut self, checks: &[Check]) -> String {
        self.all(&checks.iter().map(other::CheckJson::from).collect::<Vec<_>>())
    }
}
