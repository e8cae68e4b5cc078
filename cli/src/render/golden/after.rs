//! Jobs that wait for others and for a time, and one that can no longer start.

use super::*;
use proto::v1::{DependencyFailure, DependencyKind as D, DependencyView};

fn on(kind: D, job: u64, tasks: &str, open: bool) -> DependencyView {
    DependencyView { kind: kind.into(), job, tasks: tasks.to_owned(), open }
}

fn waiting() -> Task {
    let mut task = task(120, "concat", "PEND");
    task.substate = "waiting".to_owned();
    task.message = "waits for 119, 118_0-4; begins at 2026-12-01 07:30:00 UTC".to_owned();
    task.begin_wall_ms = Some(1_796_110_200_000);
    task.dependencies = vec![
        on(D::AfterOk, 117, "", false),
        on(D::AfterOk, 119, "", true),
        on(D::AfterAny, 118, "0-4", true),
        on(D::AfterAny, 116, "1,3", false),
    ];
    task
}

fn failed() -> Task {
    let mut task = task(121, "report", "EXIT");
    task.terminal = true;
    task.finish_wall_ms = Some(task.submit_wall_ms + 2_000);
    task.dependencies = vec![on(D::AfterOk, 119, "", false)];
    task.reason = Some(Reason {
        kind: ExitKind::DependencyFailed.into(),
        dependency: Some(DependencyFailure {
            kind: D::AfterOk.into(),
            job: 119,
            task: Some(3),
            done: false,
            end: ExitKind::ExitCode.into(),
            code: Some(3),
            signal: None,
        }),
        ..Reason::default()
    });
    task
}

#[test]
fn what_a_job_waits_for_and_what_became_of_it_is_told() {
    let mut list = table();
    list.list_page(&[waiting(), failed()]);
    let listed = list.list_end(&ListSummary::default());
    fits(&listed);
    let shown = table().show(&[waiting(), failed()]);
    fits(&shown);
    golden("after.txt", &format!("{listed}\n{shown}"));
    golden("after.json", &renderer(Output::Json, view()).show(&[waiting(), failed()]));
}
