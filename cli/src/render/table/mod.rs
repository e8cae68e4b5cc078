//! The screens of design 11, for people.

mod edit;
mod explain;
mod list;
mod operate;
mod paint;
mod show;
mod strangers;

use super::{Check, ListLayout, ListSummary, Render, SettingRow, View};
use proto::v1;

/// Tables at the width of the terminal.
pub struct Table {
    view: View,
    layout: ListLayout,
    /// Pages of a list come newest first and are shown newest last, so they are kept to the end.
    tasks: Vec<v1::Task>,
}

impl Table {
    /// For one reader.
    pub fn new(view: View, layout: ListLayout) -> Self {
        Table { view, layout, tasks: Vec::new() }
    }
}

impl Render for Table {
    fn list_page(&mut self, tasks: &[v1::Task]) -> String {
        self.tasks.extend_from_slice(tasks);
        String::new()
    }

    fn list_end(&mut self, summary: &ListSummary) -> String {
        list::list(&std::mem::take(&mut self.tasks), summary, &self.layout, &self.view)
    }

    fn show(&mut self, tasks: &[v1::Task]) -> String {
        let each: Vec<String> = tasks.iter().map(|task| show::show(task, &self.view)).collect();
        each.join("\n")
    }

    fn events(&mut self, answer: &v1::EventsAnswer) -> String {
        explain::events(answer, &self.view)
    }

    fn explain(&mut self, answers: &[v1::ExplainAnswer]) -> String {
        let each: Vec<String> =
            answers.iter().map(|answer| explain::explain(answer, &self.view)).collect();
        each.join("\n")
    }

    fn nodes(&mut self, nodes: &[v1::Node]) -> String {
        operate::nodes(nodes, &self.view)
    }

    fn status(&mut self, status: &v1::StatusAnswer) -> String {
        operate::status(status)
    }

    fn cancelled(&mut self, results: &[v1::CancelResult]) -> String {
        operate::cancelled(results)
    }

    fn edited(&mut self, results: &[v1::EditResult]) -> String {
        edit::edited(results)
    }

    fn orphans(&mut self, orphans: &[v1::Orphan], more: bool) -> String {
        strangers::orphans(orphans, more, &self.view)
    }

    fn strays(&mut self, nodes: &[v1::Node]) -> String {
        strangers::strays(nodes, &self.view)
    }

    fn settings(&mut self, rows: &[SettingRow]) -> String {
        operate::settings(rows)
    }

    fn checks(&mut self, checks: &[Check]) -> String {
        operate::checks(checks, &self.view)
    }
}
