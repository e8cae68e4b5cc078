//! What a queued job costs in memory, all indexes included: a million of them must fit.
#![allow(unsafe_code)]

use docket_core::ledger::Ledger;
use proto::v1::{self, command::Kind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes asked for and not given back, in this whole process: so this file has one test.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Counts on top of the system's allocator, with what the system adds to each piece.
struct Counting;

/// Size a piece takes from glibc's malloc: 8 bytes of header, rounded up to 16, 32 at least.
fn taken(layout: Layout) -> usize {
    ((layout.size() + 8).div_ceil(16) * 16).max(32)
}

// SAFETY: both calls are handed on unchanged; only a counter is kept beside them.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(taken(layout), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        HELD.fetch_sub(taken(layout), Ordering::Relaxed);
        // SAFETY: `piece` came from `System.alloc` with this layout.
        unsafe { System.dealloc(piece, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const JOBS: usize = 100_000;
const LIMIT: usize = 600;

/// What a task of an array that waits may take (the issue of arrays).
const TASK_LIMIT: usize = 16;

/// An array of a million tasks, the numbers of which make no stretch longer than one.
fn array() -> usize {
    use prost::Message as _;
    let before = HELD.load(Ordering::Relaxed);
    let mut ledger = Ledger::new();
    let ranges = vec![v1::TaskRange { first: 0, last: 1_999_998, step: 2 }];
    let spec = v1::JobSpec {
        argv: vec![b"true".to_vec()],
        cpus: 1,
        array: Some(v1::ArraySpec { ranges, ..Default::default() }),
        ..Default::default()
    };
    let mut proposal = proposal(0, &spec.encode_to_vec());
    proposal.commands.truncate(1);
    ledger.apply(1, &proposal);
    assert_eq!(ledger.pending_count(), 1_000_000);
    (HELD.load(Ordering::Relaxed) - before).div_ceil(1_000_000)
}

fn proposal(first: usize, spec: &[u8]) -> v1::Proposal {
    let hash = |n: u8| vec![n; 32];
    let submit = |n: usize| v1::SubmitCommand {
        by: Some(v1::Requester { user: "mia".to_owned(), uid: 1000, admin: false }),
        request_id: format!("0190163d-8694-739b-aea5-{n:012x}"),
        user_key: false,
        spec_hash: hash(1),
        env_hash: hash(2),
        stdin_hash: None,
    };
    v1::Proposal {
        level: 1,
        wall_ms: 0x0190_163d_8694,
        led_ms: 0,
        blobs: vec![
            v1::Blob { hash: hash(1), data: spec.to_vec() },
            v1::Blob { hash: hash(2), data: vec![] },
        ],
        commands: (first..first + 1000)
            .map(|n| v1::Command { kind: Some(Kind::Submit(submit(n))) })
            .collect(),
    }
}

#[test]
fn a_queued_job_takes_at_most_600_bytes_and_a_task_of_an_array_16() {
    use prost::Message as _;
    let spec = v1::JobSpec { argv: vec![b"true".to_vec()], cpus: 1, ..Default::default() };
    let spec = spec.encode_to_vec();
    let before = HELD.load(Ordering::Relaxed);
    let mut ledger = Ledger::new();
    for (index, first) in (1u64..).zip((0..JOBS).step_by(1000)) {
        ledger.apply(index, &proposal(first, &spec));
    }
    assert_eq!(ledger.pending_count(), JOBS as u64);
    let per_job = (HELD.load(Ordering::Relaxed) - before) / JOBS;
    println!("{per_job} bytes a queued job");
    let per_task = array();
    println!("{per_task} bytes a task of an array that waits");
    assert!(per_task <= TASK_LIMIT, "{per_task} bytes a task, {TASK_LIMIT} is the limit");
    assert!(per_job <= LIMIT, "{per_job} bytes a queued job, {LIMIT} is the limit");
}
