//! What the answers look like: a table for people, JSON and bare ids for programs (design 7, 11).
//! Renderers turn values into text; they ask nobody and print nothing. Begin with [`Render`].

pub mod escape;
#[cfg(test)]
mod golden;
mod home;
mod ids;
mod json;
mod layout;
pub mod limits;
mod plain;
pub mod quantity;
mod reason;
mod row;
mod table;

pub use home::{Home, home};
pub use json::dry_run as dry_run_json;
pub use json::retried as retried_json;
pub use json::submitted as submitted_json;
pub use json::task_line;
pub use plain::plain_help;
pub use reason::{kind_name, verdict, without_errno};
pub use row::{Check, Health, ListSummary, SettingRow};

use crate::args::{Column, Output, SortBy};
use jiff::tz::TimeZone;
use proto::v1;

/// What a renderer knows about its reader; fixed in tests.
#[derive(Debug, Clone)]
pub struct View {
    /// Now, UTC ms.
    pub now_ms: u64,
    /// Where the reader is.
    pub zone: TimeZone,
    /// Columns of the terminal; paragraphs are wrapped at it.
    pub width: usize,
    /// Cells of tables are cut so that a row fits: nobody can widen a terminal, but what a program
    /// reads or a file keeps must be whole.
    pub cuts: bool,
    /// Colours are wanted.
    pub colour: bool,
}

impl View {
    /// Most columns of a row of a table.
    fn row_max(&self) -> usize {
        if self.cuts { self.width } else { usize::MAX }
    }
}

/// One screen after another, in one form. Every method returns text that ends with a line end, or
/// nothing.
pub trait Render {
    /// A page of `list`, newest first.
    fn list_page(&mut self, tasks: &[v1::Task]) -> String;
    /// The end of `list`.
    fn list_end(&mut self, summary: &ListSummary) -> String;
    /// `show`.
    fn show(&mut self, tasks: &[v1::Task]) -> String;
    /// `events` of one job.
    fn events(&mut self, answer: &v1::EventsAnswer) -> String;
    /// `explain`.
    fn explain(&mut self, answers: &[v1::ExplainAnswer]) -> String;
    /// `nodes`.
    fn nodes(&mut self, nodes: &[v1::Node]) -> String;
    /// `cluster status`.
    fn status(&mut self, status: &v1::StatusAnswer) -> String;
    /// `cancel`.
    fn cancelled(&mut self, results: &[v1::CancelResult]) -> String;
    /// `hold`, `release`, `suspend`, `resume`, `set`.
    fn edited(&mut self, results: &[v1::EditResult]) -> String;
    /// `list --orphans`; `more`: there are others behind these.
    fn orphans(&mut self, orphans: &[v1::Orphan], more: bool) -> String;
    /// `nodes --strays`.
    fn strays(&mut self, nodes: &[v1::Node]) -> String;
    /// `config`.
    fn settings(&mut self, rows: &[SettingRow]) -> String;
    /// `doctor`.
    fn checks(&mut self, checks: &[Check]) -> String;
}

/// How `list` is laid out as a table.
#[derive(Debug, Clone)]
pub struct ListLayout {
    /// Columns, in order; empty: those of design 11.
    pub columns: Vec<Column>,
    /// Order of the rows.
    pub sort: SortBy,
}

/// The renderer for a form.
pub fn renderer(form: Output, view: View) -> Box<dyn Render> {
    list_renderer(form, view, ListLayout { columns: Vec::new(), sort: SortBy::Id })
}

/// The renderer for a form, with the layout of `list`.
pub fn list_renderer(form: Output, view: View, layout: ListLayout) -> Box<dyn Render> {
    match form {
        Output::Table => Box::new(table::Table::new(view, layout)),
        Output::Json => Box::new(json::Json::array()),
        Output::Jsonl => Box::new(json::Json::lines()),
        Output::Id => Box::new(ids::Ids),
    }
}

/// `123` or `123_7`, of numbers.
pub fn attempt_task_id(job: u64, task: Option<u32>) -> String {
    match task {
        Some(index) => format!("{job}_{index}"),
        None => job.to_string(),
    }
}

/// What an edit or a cancel was about: `123`, or `123_0-9`.
pub fn named(job: u64, tasks: Option<&String>) -> String {
    match tasks {
        Some(tasks) => format!("{job}_{}", escape::line(tasks)),
        None => job.to_string(),
    }
}

/// `123` or `123_7`.
pub fn task_id(task: &v1::Task) -> String {
    attempt_task_id(task.job, task.task)
}
