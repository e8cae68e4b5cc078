//! A thousand agents that come at once, each with three pages of manifest.

use super::world::{World, join, started};
use crate::leader::storm::{JOINS_MAX, PAGES_MAX};
use crate::leader::{SessionEnd, SessionId};
use proto::JobId;
use proto::v1::{self, Phase, agent_message::Kind as Up, command::Kind as Do};
use std::collections::BTreeMap;

const AGENTS: u64 = 1_000;
const PAGES: u64 = 3;

fn named(n: u64) -> v1::Join {
    v1::Join { agent_id: format!("s{n}"), name: format!("s{n}"), ..join(1) }
}

/// Joins and pages in the log.
fn in_log(world: &World) -> (usize, usize) {
    let kinds = || world.waiting.iter().filter_map(|command| command.kind.as_ref());
    (
        kinds().filter(|kind| matches!(kind, Do::AgentUp(_))).count(),
        kinds().filter(|kind| matches!(kind, Do::Manifest(_))).count(),
    )
}

/// Pages of attempts of a ledger that this one does not know: each is looked at and listed.
fn page(n: u64, last: bool) -> Up {
    let items = (0..10).map(|k| v1::ManifestItem {
        attempt: Some(v1::AttemptRef { job: 1_000_000 + n * 10 + k, task: None, attempt: 1 }),
        phase: Phase::Running.into(),
        ..Default::default()
    });
    Up::Manifest(v1::ManifestPage { items: items.collect(), last, ..Default::default() })
}

fn beat(world: &mut World, session: SessionId) {
    let beat = v1::Heartbeat { h_ms: 1, keeper_answers: true, ..Default::default() };
    world.say(session, Up::Heartbeat(beat));
}

#[test]
fn a_thousand_agents_join_within_bounds_and_in_order_and_none_starves() {
    let mut world = World::new();
    let calm = world.joined(join(1), vec![]);
    world.hold = true;
    let storm: Vec<SessionId> = (0..AGENTS).map(|n| world.open(named(n))).collect();
    for (n, session) in (0..).zip(&storm) {
        (0..PAGES).for_each(|at| world.say(*session, page(n, at + 1 == PAGES)));
    }
    let (mut welcomed, mut judged, mut rounds) = (Vec::new(), BTreeMap::new(), 0);
    while judged.len() < storm.len() {
        rounds += 1;
        assert!(rounds < 2_000, "it does not end: {} judged", judged.len());
        let (joins, pages) = in_log(&world);
        assert!(joins <= JOINS_MAX && pages <= PAGES_MAX, "{joins} joins, {pages} pages at once");
        assert!(joins > 0 || pages == PAGES_MAX || judged.len() + 8 > storm.len(), "idle");
        world.proposed.clear();
        world.commit_once();
        let up = world.ledger.agents_up();
        for (n, session) in storm.iter().enumerate() {
            if !world.take(*session).is_empty() {
                welcomed.push(n);
            }
            if up.contains(&format!("s{n}")) {
                judged.entry(n).or_insert(rounds);
            }
        }
        if rounds == 10 {
            // Facts of those that have joined do not wait behind the storm.
            world.facts(calm, 1, 1, vec![started(1, JobId(7))]);
            world.commit_once();
            assert!(world.take(calm).contains(&"ack 1".to_owned()));
        }
    }
    let mut in_order = welcomed.clone();
    in_order.sort_unstable();
    assert_eq!(welcomed, in_order, "first come, first served");
    // Judged in turn: the last agent waits for a page of each other one, not for all of theirs.
    let (first, last) = (judged.values().min().unwrap(), judged.values().max().unwrap());
    assert!(last - first <= (AGENTS * PAGES / PAGES_MAX as u64) as i32, "{first} to {last}");
}

#[test]
fn an_agent_that_waits_for_its_turn_and_speaks_is_not_silent() {
    let mut world = World::new();
    let session = world.joined(named(AGENTS - 1), vec![]);
    let job = world.submit();
    world.facts(session, 1, 1, vec![started(1, job)]);
    world.close(session, SessionEnd::Other);
    world.pass(25_000);
    world.hold = true;
    for n in 0..JOINS_MAX as u64 {
        world.open(named(n));
    }
    let back = world.open(v1::Join { incarnation: 2, next_seq: 2, ..named(AGENTS - 1) });
    let down = |world: &World| world.proposed.iter().any(|name| name.starts_with("down"));
    for _ in 0..3 {
        world.pass(5_000);
        beat(&mut world, back);
    }
    assert!(!down(&world), "{:?}", world.proposed);
    // One that says nothing is silent, wherever it waits.
    world.pass(31_000);
    assert!(down(&world), "{:?}", world.proposed);
}
