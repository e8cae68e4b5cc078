//! `List`, and the scan behind every request that selects jobs by their properties. The pump is
//! visited in slices, so that a list over a million jobs delays no entry by more than one slice.

use super::convert::{Filter, ValidList};
use super::server::{Cursor, Scan, Seen, Shared, counts_to_wire};
use docket_core::ledger::{Array, Entry, Job, Ledger, Ranges, StateName};
use prost::Message as _;
use proto::{JobId, TaskId, v1};
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
    next_below: Option<TaskId>,
    counts: BTreeMap<StateName, u64>,
    older_ended: u64,
}

/// Answers one page. Counts are those of all jobs that match, on whatever page.
pub async fn list(shared: &Shared, request: ValidList) -> Result<v1::ListAnswer, Status> {
    shared.linearizable().await?;
    let ValidList { filter, below, below_task, fold, limit } = request;
    let mut page = Page::default();
    let mut cursor = Cursor::Newest;
    while cursor != Cursor::End {
        let filter = filter.clone();
        let part = Part { below, below_task, fold, limit };
        let step = move |page: &mut Page, seen: &Seen<'_>, entry: Entry<'_>| match entry {
            Entry::Job(job) => take(page, seen, job, &filter, part),
            Entry::Array(array) if part.fold => take_folded(page, seen, array, &filter, part),
            Entry::Array(array) => take_tasks(page, seen, array, &filter, part),
        };
        (cursor, page) = shared.scan(cursor, page, step).await?;
    }
    Ok(v1::ListAnswer {
        tasks: page.tasks,
        next_after_job: page.next_below.map_or(0, |id| id.job.0),
        next_after_task: page.next_below.and_then(|id| id.index),
        counts: counts_to_wire(page.counts),
        older_ended: page.older_ended,
    })
}

/// A page is full at this many bytes: with one more task, a specification of 1 MiB, it stays below
/// what gRPC clients take by default, 4 MiB.
const PAGE_MAX_BYTES: usize = 2 * 1024 * 1024;

/// Wire forms are dearer than looks: a slice that wrote this many ends early.
const WRITTEN_SLICE: usize = 512;

fn take(page: &mut Page, seen: &Seen<'_>, job: &Job, filter: &Filter, part: Part) -> Scan {
    let written = page.tasks.len();
    if page.counts(job, filter, 1) && part.begins_before(job.task_id()) {
        page.write(part, job.task_id(), || job.to_wire_seen(seen.ledger, &seen.outlook));
    }
    page.scan(written)
}

/// One line for an array: it is meant if any of its tasks is, and all of those are counted.
fn take_folded(
    page: &mut Page,
    seen: &Seen<'_>,
    array: &Array,
    filter: &Filter,
    part: Part,
) -> Scan {
    let written = page.tasks.len();
    let shared = array.shared().map(|(members, job)| (job, members.len()));
    let own = array.own_tasks().map(|job| (job, 1));
    let mut meant = false;
    for (job, tasks) in shared.chain(own) {
        meant |= page.counts(job, filter, tasks);
    }
    let id = TaskId::plain(array.id());
    if meant && part.begins_before(id) {
        page.write(part, id, || array.to_wire(seen.ledger));
    }
    page.scan(written)
}

/// Each task of an array by itself, the highest number first.
fn take_tasks(
    page: &mut Page,
    seen: &Seen<'_>,
    array: &Array,
    filter: &Filter,
    part: Part,
) -> Scan {
    let written = page.tasks.len();
    let mut meant = Vec::new();
    for (members, job) in array.shared() {
        if page.counts(job, filter, members.len()) {
            meant.extend(members.stretches());
        }
    }
    for job in array.own_tasks() {
        let number = job.task_id().index.unwrap_or_default();
        if page.counts(job, filter, 1) {
            meant.push((number, number));
        }
    }
    let meant = Ranges::of(meant);
    let stretches: Vec<(u32, u32)> = meant.stretches().collect();
    let newest_first = stretches.into_iter().rev().flat_map(|(first, last)| (first..=last).rev());
    for number in newest_first.filter(|n| part.begins_before(array.task_id(*n))) {
        let id = array.task_id(number);
        let wire =
            || seen.ledger.numbered(id).map(|job| job.to_wire_seen(seen.ledger, &seen.outlook));
        if !page.write(part, id, || wire().unwrap_or_default()) {
            break;
        }
    }
    page.scan(written)
}

/// What of a list goes on this page.
#[derive(Clone, Copy)]
struct Part {
    below: Option<JobId>,
    below_task: Option<u32>,
    fold: bool,
    limit: usize,
}

impl Part {
    /// Whether a task comes behind the page before this one. That ended within an array if it says so.
    fn begins_before(self, id: TaskId) -> bool {
        match (self.below, self.below_task) {
            (None, _) => true,
            (Some(below), Some(task)) if id.job == below => id.index < Some(task),
            (Some(below), _) => id.job < below,
        }
    }
}

impl Page {
    /// Counts so many tasks with that record; whether they are meant.
    fn counts(&mut self, job: &Job, filter: &Filter, tasks: u64) -> bool {
        match filter.judge(job) {
            Verdict::No => return false,
            Verdict::TooOld => {
                self.older_ended += tasks;
                return false;
            }
            Verdict::Match => {}
        }
        *self.counts.entry(job.state_name()).or_default() += tasks;
        true
    }

    /// Writes a line; false if the page is full.
    fn write(&mut self, part: Part, id: TaskId, task: impl FnOnce() -> v1::Task) -> bool {
        if self.full {
            let last = self.tasks.last().map(|task| TaskId {
                job: JobId(task.job),
                index: task.task.filter(|_| task.job == id.job.0),
            });
            self.next_below = self.next_below.or(last);
            return false;
        }
        let task = task();
        self.bytes += task.encoded_len();
        self.tasks.push(task);
        self.full = self.tasks.len() >= part.limit || self.bytes >= PAGE_MAX_BYTES;
        true
    }

    /// Whether the slice ends here, by how many lines there were before this job.
    fn scan(&self, before: usize) -> Scan {
        let pauses = self.tasks.len() / WRITTEN_SLICE > before / WRITTEN_SLICE;
        if pauses { Scan::Enough } else { Scan::More }
    }
}

/// One page of the unknown-finish registry, in the order of the log. A page names its last
/// position, so the facts of one entry are never parted: it may be longer than asked for.
pub fn orphans(ledger: &Ledger, after: u64, limit: usize) -> v1::OrphansAnswer {
    let mut later = ledger.deferred().skip_while(|fact| fact.position <= after).peekable();
    let mut orphans: Vec<v1::Orphan> = Vec::new();
    while let Some(fact) = later.peek() {
        let parts = orphans.last().is_some_and(|last| last.position == fact.position);
        if orphans.len() >= limit && !parts {
            break;
        }
        orphans.push(fact.to_wire(ledger));
        later.next();
    }
    v1::OrphansAnswer { more: later.peek().is_some(), orphans }
}

/// Ids of all jobs that match, oldest first.
pub async fn matching(shared: &Shared, filter: Filter) -> Result<Vec<JobId>, Status> {
    shared.linearizable().await?;
    let (mut ids, mut cursor) = (Vec::new(), Cursor::Newest);
    while cursor != Cursor::End {
        let filter = filter.clone();
        let step = move |ids: &mut Vec<JobId>, _: &Seen<'_>, entry: Entry<'_>| {
            let meant = match entry {
                Entry::Job(job) => filter.matches(job),
                Entry::Array(array) => array.records().any(|job| filter.matches(job)),
            };
            if meant {
                ids.push(entry.id());
            }
            Scan::More
        };
        (cursor, ids) = shared.scan(cursor, ids, step).await?;
    }
    ids.reverse();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::command::Kind;

    fn apply(ledger: &mut Ledger, position: u64, kind: Kind) {
        let commands = vec![v1::Command { kind: Some(kind) }];
        let (level, wall_ms, led_ms) = (proto::LEVEL, 1_000 + position, position);
        let proposal = v1::Proposal { level, wall_ms, led_ms, blobs: Vec::new(), commands };
        ledger.apply(position, &proposal);
    }

    fn told(seqs: std::ops::RangeInclusive<u64>, job: u64) -> Kind {
        let attempt = Some(v1::AttemptRef { job, task: None, attempt: 1 });
        let token = Some(v1::Token { generation: 1, attempt: 1 });
        let fact = |seq| {
            let kind = match seq % 2 {
                1 => {
                    let start = v1::StartFact { attempt, token, pid: 7, ..Default::default() };
                    v1::fact::Kind::Start(start)
                }
                _ => v1::fact::Kind::Finish(v1::FinishFact {
                    attempt,
                    token,
                    end: Some(v1::finish_fact::End::WaitStatus(3 << 8)),
                    ..Default::default()
                }),
            };
            v1::Fact { seq, kind: Some(kind) }
        };
        let (from, to) = (*seqs.start(), *seqs.end());
        let facts =
            v1::Facts { journal_id: vec![1; 16], from, to, facts: seqs.map(fact).collect() };
        let agent_id = "a1".to_owned();
        Kind::Facts(v1::FactsCommand { agent_id, incarnation: 1, facts: Some(facts) })
    }

    #[test]
    fn a_page_of_orphans_never_parts_the_facts_of_one_entry() {
        let mut ledger = Ledger::new();
        let join = v1::Join {
            agent_id: "a1".to_owned(),
            name: "n1".to_owned(),
            incarnation: 1,
            journal_id: vec![1; 16],
            next_seq: 1,
            ..v1::Join::default()
        };
        apply(&mut ledger, 1, Kind::AgentUp(v1::AgentUpCommand { join: Some(join) }));
        apply(&mut ledger, 2, told(1..=2, 50));
        apply(&mut ledger, 3, told(3..=3, 60));
        let first = orphans(&ledger, 0, 1);
        let seen: Vec<(u64, &str, &str, u64, bool)> = first
            .orphans
            .iter()
            .map(|o| (o.job, &*o.fact, &*o.node, o.position, o.expired))
            .collect();
        assert_eq!(seen, [(50, "start", "n1", 2, false), (50, "finish", "n1", 2, false)]);
        assert_eq!(first.orphans[1].reason.as_ref().and_then(|reason| reason.code), Some(3));
        assert!(first.more);
        let last = orphans(&ledger, 2, 1);
        assert_eq!(last.orphans.iter().map(|o| o.job).collect::<Vec<_>>(), [60]);
        assert!(!last.more);
    }
}
