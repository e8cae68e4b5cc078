//! A data directory that was deleted or renamed under its agent, and what comes of runs then.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

mod world;

use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_request::Kind as ToKeeper;
use proto::v1::leader_message::Kind as Down;
use worker_agent_core::Event;
use world::{INTERVAL_MS, JOURNAL, World, ada, attempt, run_order};

const WHY: &str = "the data directory /d was deleted";

fn is(world: &mut World, why: &str) {
    world.happens(Event::Directory(why.to_owned()));
}

fn run(world: &mut World, job: u64) {
    world.leader(1, Down::Run(run_order(job)));
}

/// A session in which something is acknowledged.
fn joined() -> World {
    let mut world = World::joined();
    world.facts(1, 2);
    world.leader(1, Down::Ack(v1::Ack { journal_id: JOURNAL.to_vec(), to: 2 }));
    world.actions.clear();
    world
}

/// The runs that were refused to the controller, each with its failure.
fn refused(world: &mut World) -> Vec<(u64, v1::StartFailure)> {
    let mut found = Vec::new();
    for sent in world.sent_up() {
        let Up::Facts(facts) = sent else { continue };
        assert_eq!((facts.from, facts.to), (2, 2), "a position that moves nothing");
        assert_eq!(facts.journal_id, JOURNAL);
        for fact in facts.facts {
            let Some(v1::fact::Kind::Refused(refused)) = fact.kind else { panic!("{fact:?}") };
            found.push((refused.attempt.unwrap().job, refused.failure.unwrap()));
        }
    }
    found
}

fn jobs(refused: Vec<(u64, v1::StartFailure)>) -> Vec<u64> {
    refused.into_iter().map(|(job, _)| job).collect()
}

#[test]
fn a_directory_that_is_gone_is_told_at_once_and_with_every_beat_until_it_is_back() {
    let mut world = joined();
    is(&mut world, WHY);
    is(&mut world, WHY);
    assert_eq!(world.warnings(), [WHY]);
    let told = |world: &mut World| -> Vec<(bool, String)> {
        world.heartbeats().into_iter().map(|b| (b.takes_no_runs, b.problem)).collect()
    };
    assert_eq!(told(&mut world), [(true, WHY.to_owned())], "at once, and once");
    world.pass(INTERVAL_MS);
    assert_eq!(told(&mut world), [(true, WHY.to_owned())]);
    is(&mut world, "");
    assert_eq!(told(&mut world), [(false, String::new())]);
}

#[test]
fn a_run_is_refused_by_name_through_the_keeper_while_there_is_one() {
    let mut world = joined();
    is(&mut world, WHY);
    world.sent_down();
    run(&mut world, 8);
    let sent = world.sent_down();
    let [ToKeeper::Run(order)] = &sent[..] else { panic!("{sent:?}") };
    let why = order.refuse.clone().unwrap();
    assert_eq!((order.attempt, order.order_id), (attempt(8), 8));
    assert!(why.node_fault && why.node_out && why.message.contains(WHY), "{why:?}");
    assert_eq!(why.step, "data-directory");
    // It left before it read that.
    world.happens(Event::KeeperLost);
    assert_eq!(refused(&mut world), [(8, why)]);
}

#[test]
fn a_run_that_finds_no_keeper_is_refused_once_it_is_known_that_none_comes() {
    let mut world = joined();
    // One waits for its user to be looked up, one comes later.
    run(&mut world, 7);
    world.happens(Event::KeeperLost);
    run(&mut world, 8);
    assert_eq!(refused(&mut world), [], "a keeper may come, and its join tells");
    is(&mut world, WHY);
    assert_eq!(jobs(refused(&mut world)), [7, 8]);
    run(&mut world, 9);
    assert_eq!(jobs(refused(&mut world)), [9]);
}

#[test]
fn what_a_new_session_settles_is_not_refused_in_it() {
    let mut world = joined();
    world.happens(Event::KeeperLost);
    run(&mut world, 8);
    world.keeper_welcomes(2);
    let no = world.dials();
    world.joins(no);
    world.happens(Event::KeeperLost);
    is(&mut world, WHY);
    assert_eq!(refused(&mut world), []);
}

#[test]
fn a_directory_that_is_back_takes_runs() {
    let mut world = joined();
    is(&mut world, WHY);
    is(&mut world, "");
    world.sent_down();
    run(&mut world, 8);
    world.happens(Event::UserLookedUp { uid: 1000, user: Ok(ada()) });
    let sent = world.sent_down();
    let [ToKeeper::Run(order)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(order.refuse, None);
}
