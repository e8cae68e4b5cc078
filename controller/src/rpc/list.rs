//! `List`, and the scan behind every request that selects jobs by their properties. The pump is
//! visited in slices, so that a list over a million jobs delays no entry by more than one slice.

use super::convert::{Filter, ValidList};
use super::server::{Cursor, Scan, Seen, Shared, counts_to_wire};
use docket_core::ledger::{Job, Ledger, StateName};
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
        let step = move |page: &mut Page, seen: &Seen<'_>, job: &Job| {
            take(page, seen, job, &filter, below, limit)
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
    seen: &Seen<'_>,
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
    let task = job.to_wire_seen(seen.ledger, seen.reach);
    page.bytes += task.encoded_len();
    page.tasks.push(task);
    page.full = page.tasks.len() >= limit || page.bytes >= PAGE_MAX_BYTES;
    if page.tasks.len().is_multiple_of(WRITTEN_SLICE) { Scan::Enough } else { Scan::More }
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
        let step = move |ids: &mut Vec<JobId>, _: &Seen<'_>, job: &Job| {
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
