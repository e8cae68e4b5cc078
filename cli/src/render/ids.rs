//! `-o id`: the names alone, one a line.

use super::escape::line;
use super::{Check, ListSummary, Render, SettingRow, attempt_task_id, named, task_id};
use proto::v1;

/// Bare ids.
pub struct Ids;

fn lines(names: impl IntoIterator<Item = String>) -> String {
    names.into_iter().map(|name| name + "\n").collect()
}

impl Render for Ids {
    fn list_page(&mut self, tasks: &[v1::Task]) -> String {
        lines(tasks.iter().map(task_id))
    }

    fn list_end(&mut self, _: &ListSummary) -> String {
        String::new()
    }

    fn show(&mut self, tasks: &[v1::Task]) -> String {
        lines(tasks.iter().map(task_id))
    }

    fn events(&mut self, answer: &v1::EventsAnswer) -> String {
        lines(answer.events.iter().map(|event| event.position.to_string()))
    }

    fn explain(&mut self, answers: &[v1::ExplainAnswer]) -> String {
        lines(answers.iter().filter_map(|answer| answer.task.as_ref().map(task_id)))
    }

    fn nodes(&mut self, nodes: &[v1::Node]) -> String {
        lines(nodes.iter().map(|node| line(&node.name)))
    }

    fn status(&mut self, status: &v1::StatusAnswer) -> String {
        lines([line(&status.cluster_id)])
    }

    fn cancelled(&mut self, results: &[v1::CancelResult]) -> String {
        lines(results.iter().map(|result| named(result.job, result.tasks.as_ref())))
    }

    fn edited(&mut self, results: &[v1::EditResult]) -> String {
        lines(results.iter().map(|result| named(result.job, result.tasks.as_ref())))
    }

    fn orphans(&mut self, orphans: &[v1::Orphan], _: bool) -> String {
        lines(orphans.iter().map(|orphan| attempt_task_id(orphan.job, orphan.task)))
    }

    fn strays(&mut self, nodes: &[v1::Node]) -> String {
        let strays = nodes.iter().flat_map(|node| &node.strays);
        lines(strays.map(|stray| attempt_task_id(stray.job, stray.task)))
    }

    fn settings(&mut self, rows: &[SettingRow]) -> String {
        lines(rows.iter().map(|row| row.key.clone()))
    }

    fn checks(&mut self, checks: &[Check]) -> String {
        lines(checks.iter().map(|check| check.what.to_owned()))
    }
}
