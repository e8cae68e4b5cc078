//! `docket list`: page after page, so that a million jobs never lie in memory at once in JSON. Every form
//! shows the oldest first; the server gives the newest first, so that a limit leaves out old ones.

use super::context::{Context, now_ms, view};
use crate::args::{ListArgs, Output};
use crate::client::{Client, Patience};
use crate::exit;
use crate::failure::Failure;
use crate::render::{ListLayout, ListSummary, list_renderer, quantity};
use crate::say::{note, print};
use proto::v1::{ListAnswer, ListRequest, Orphan, OrphansRequest, Task};
use std::time::Duration;

/// Tasks asked for at once.
const PAGE: u32 = 1000;
/// Pages that are kept until all are there; of more only the bounds.
const KEPT_PAGES: usize = 4;
/// Rows of a table, unless more are asked for: nobody reads more.
const TABLE_ROWS: u32 = 1000;

/// Lists jobs.
pub async fn list(context: &Context, args: &ListArgs) -> Result<u8, Failure> {
    let form = args.output.form();
    if args.orphans {
        return orphans(context, args, form).await;
    }
    let layout = ListLayout { columns: args.format.clone(), sort: args.sort };
    let mut renderer = list_renderer(form, view(), layout);
    let mut client = context.client().await?;
    let usual = if form == Output::Table { TABLE_ROWS } else { u32::MAX };
    let mut left = args.limit.unwrap_or(usual);
    let mut request = request(args);
    request.fold_arrays = matches!(form, Output::Table | Output::Id);
    let mut summary: Option<ListSummary> = None;
    let mut pages: Vec<Page> = Vec::new();
    loop {
        request.limit = left.min(PAGE);
        let answer = page(&mut client, &request).await?;
        summary.get_or_insert_with(|| first_summary(args, &answer));
        left = left.saturating_sub(u32::try_from(answer.tasks.len()).unwrap_or(u32::MAX));
        let below = (request.after_job, request.after_task);
        let from = answer.tasks.last().map_or((0, None), |task| (task.job, task.task));
        let kept = (pages.len() < KEPT_PAGES).then_some(answer.tasks);
        pages.push(Page { below, from, kept });
        request.after_job = answer.next_after_job;
        request.after_task = answer.next_after_task;
        if left == 0 || answer.next_after_job == 0 {
            break;
        }
    }
    let cut = request.after_job != 0;
    // Pages come newest first, and every form shows the oldest first.
    while let Some(Page { below, from, kept }) = pages.pop() {
        let mut tasks = match kept {
            Some(tasks) => tasks,
            None => again(&mut client, &request, below, from).await?,
        };
        tasks.reverse();
        print(&renderer.list_page(&tasks))?;
    }
    let summary = ListSummary { cut, ..summary.unwrap_or_default() };
    print(&renderer.list_end(&summary))?;
    Ok(exit::DONE)
}

/// Tasks from `from` up to, not including, `below`; job 0 as `below`: up to the newest.
struct Page {
    below: (u64, Option<u32>),
    from: (u64, Option<u32>),
    /// `None`: read again when its turn comes, for more would lie in memory.
    kept: Option<Vec<Task>>,
}

/// The tasks of a page that was not kept. They may have grown meanwhile, and so need several answers.
async fn again(
    client: &mut Client,
    like: &ListRequest,
    (after_job, after_task): (u64, Option<u32>),
    from: (u64, Option<u32>),
) -> Result<Vec<Task>, Failure> {
    let mut tasks: Vec<Task> = Vec::new();
    let mut request = ListRequest { after_job, after_task, limit: PAGE, ..like.clone() };
    loop {
        let answer = page(client, &request).await?;
        let id = |task: &Task| (task.job, task.task);
        let reached = answer.tasks.last().is_none_or(|task| id(task) <= from);
        tasks.extend(answer.tasks.into_iter().filter(|task| id(task) >= from));
        if reached || answer.next_after_job == 0 {
            return Ok(tasks);
        }
        request.after_job = answer.next_after_job;
        request.after_task = answer.next_after_task;
    }
}

async fn page(client: &mut Client, request: &ListRequest) -> Result<ListAnswer, Failure> {
    let ask = async |client: &Client| client.jobs().list(request.clone()).await;
    Ok(client.ask(Patience::READ, note, ask).await?)
}

/// What nodes told of jobs that the ledger does not know, oldest first.
async fn orphans(context: &Context, args: &ListArgs, form: Output) -> Result<u8, Failure> {
    let mut client = context.client().await?;
    let usual = if form == Output::Table { TABLE_ROWS } else { u32::MAX };
    let most = args.limit.unwrap_or(usual);
    let mut found: Vec<Orphan> = Vec::new();
    let mut request = OrphansRequest::default();
    loop {
        request.limit =
            most.saturating_sub(u32::try_from(found.len()).unwrap_or(u32::MAX)).min(PAGE);
        let ask = async |client: &Client| client.jobs().orphans(request).await;
        let answer = client.ask(Patience::READ, note, ask).await?;
        found.extend(answer.orphans);
        request.after_position = found.last().map_or(0, |orphan| orphan.position);
        let cut = found.len() >= most as usize;
        if !answer.more || cut {
            print(&context.renderer(form).orphans(&found, answer.more))?;
            return Ok(exit::DONE);
        }
    }
}

fn request(args: &ListArgs) -> ListRequest {
    let window = u64::try_from(args.since.as_millis()).unwrap_or(u64::MAX);
    ListRequest {
        user: args.user.clone(),
        all_users: args.all_users,
        states: args.state.clone(),
        failed: args.failed,
        name_glob: args.name.clone(),
        ended_since_wall_ms: (!args.all).then(|| now_ms().saturating_sub(window)),
        ..ListRequest::default()
    }
}

/// Counts are those of the whole answer, so the first page has them all.
fn first_summary(args: &ListArgs, answer: &ListAnswer) -> ListSummary {
    ListSummary {
        counts: answer.counts.clone().into_iter().collect(),
        older_ended: answer.older_ended,
        window: (!args.all).then(|| window_words(args.since)),
        cut: false,
    }
}

/// `hour`, `2d`.
fn window_words(window: Duration) -> String {
    match window.as_secs() {
        3600 => "hour".to_owned(),
        86_400 => "day".to_owned(),
        _ => quantity::span(u64::try_from(window.as_millis()).unwrap_or(u64::MAX)),
    }
}
