//! `List`, and the scan behind every request that selects jobs by their properties. The pump is
//! visited in slices, so that a list over a million jobs delays no entry by more than one slice.

use super::convert::{Filter, ValidList};
use super::server::{Cursor, Scan, Shared, counts_to_wire};
use docket_core::ledger::{Job, StateName};
use prost::Message as _;
use proto::{JobId, v1};
use std::collections::BTreeMap;
use tonic::Status;

/// What a filter says of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Match,
    /// All but its end time matches: it ended too long ago.
    TooOld,
    No,
}

impl Filter {
    fn judge(&self, job: &Job) -> Verdict {
        let state = job.state_name();
        let matches = self.user.as_ref().is_none_or(|user| job.by().name == *user)
            && (self.states.is_empty() || self.states.contains(&state))
            && !(self.live_only && state.terminal())
            && (!self.failed || state == StateName::Exit)
            && self.name.as_ref().is_none_or(|name| name.matches(&job.spec().name));
        let ended = job.state().ended().map(|ended| ended.finish_wall_ms);
        match (matches, self.ended_since_wall_ms, ended) {
            (false, ..) => Verdict::No,
            (true, Some(since), Some(ended)) if ended < since => Verdict::TooOld,
            (true, ..) => Verdict::Match,
        }
    }

    /// Whether the job is meant.
    pub fn matches(&self, job: &Job) -> bool {
        self.judge(job) == Verdict::Match
    }
}

#[derive(Default)]
struct Page {
    tasks: Vec<v1::Task>,
    bytes: usize,
    full: bool,
    next_below: Option<JobId>,
    counts: BTreeMap<StateName, u64>,
    older_ended: u64,
}

/// Answers one page. Counts are those of all jobs that match, on whatever page.
pub async fn list(shared: &Shared, request: ValidList) -> Result<v1::ListAnswer, Status> {
    shared.linearizable().await?;
    let ValidList { filter, below, limit } = request;
    let mut page = Page::default();
    let mut cursor = Cursor::Newest;
    while cursor != Cursor::End {
        let filter = filter.clone();
        let step = move |page: &mut Page, ledger: &_, job: &Job| {
            take(page, ledger, job, &filter, below, limit)
        };
        (cursor, page) = shared.scan(cursor, page, step).await?;
    }
    Ok(v1::ListAnswer {
        tasks: page.tasks,
        next_after_job: page.next_below.map_or(0, |id| id.0),
        counts: counts_to_wire(page.counts),
        older_ended: page.older_ended,
    })
}

/// A page is full at this many bytes: with one more task, a specification of 1 MiB, it stays below
/// what gRPC clients take by default, 4 MiB.
const PAGE_MAX_BYTES: usize = 2 * 1024 * 1024;

/// Wire forms are dearer than looks: a slice that wrote this many ends early.
const WRITTEN_SLICE: usize = 512;

fn take(
    page: &mut Page,
    ledger: &docket_core::ledger::Ledger,
    job: &Job,
    filter: &Filter,
    below: Option<JobId>,
    limit: usize,
) -> Scan {
    match filter.judge(job) {
        Verdict::No => return Scan::More,
        Verdict::TooOld => {
            page.older_ended += 1;
            return Scan::More;
        }
        Verdict::Match => *page.counts.entry(job.state_name()).or_default() += 1,
    }
    if below.is_some_and(|below| job.id() >= below) {
        return Scan::More;
    }
    if page.full {
        page.next_below = page.tasks.last().map(|task| JobId(task.job));
        return Scan::More;
    }
    let task = job.to_wire(ledger);
    page.bytes += task.encoded_len();
    page.tasks.push(task);
    page.full = page.tasks.len() >= limit || page.bytes >= PAGE_MAX_BYTES;
    if page.tasks.len().is_multiple_of(WRITTEN_SLICE) { Scan::Enough } else { Scan::More }
}

/// Ids of all jobs that match, oldest first.
pub async fn matching(shared: &Shared, filter: Filter) -> Result<Vec<JobId>, Status> {
    shared.linearizable().await?;
    let (mut ids, mut cursor) = (Vec::new(), Cursor::Newest);
    while cursor != Cursor::End {
        let filter = filter.clone();
        let step = move |ids: &mut Vec<JobId>, _: &_, job: &Job| {
            if filter.matches(job) {
                ids.push(job.id());
            }
            Scan::More
        };
        (cursor, ids) = shared.scan(cursor, ids, step).await?;
    }
    ids.reverse();
    Ok(ids)
}
