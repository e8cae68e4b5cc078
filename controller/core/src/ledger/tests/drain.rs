//! Drains: who may, what they keep away, and that they stay.

use super::image::bytes;
use super::world::*;
use crate::ledger::{Kind, Ledger, Outcome, Rejection};
use crate::scheduler::plan;
use proto::v1::{self, command::Kind as Command, finish_fact::End};

fn drain(world: &mut World, by: &str, id: &str, undrain: bool) -> Outcome {
    let (by, request_id) = (Some(user(by)), id.to_owned());
    let (agent_id, reason) = (N1.to_owned(), "new disk".to_owned());
    world.apply(Command::Drain(v1::DrainCommand { by, request_id, agent_id, reason, undrain }))
}

fn placed(world: &World) -> usize {
    plan(&world.ledger, &world.ledger.agents_up(), 10).placements.len()
}

#[test]
fn only_admins_drain_and_nothing_new_goes_there_until_it_is_undrained() {
    let mut world = World::with_node();
    let running = world.running();
    let waits = world.submit();
    assert_eq!(drain(&mut world, "mia", "d1", false), Outcome::Rejected(Rejection::NotAdmin));
    assert_eq!(placed(&world), 1);
    assert_eq!(drain(&mut world, "root", "d2", false), Outcome::Drained { held: 1 });
    assert_eq!(placed(&world), 0);
    let stale = world.assign_to(waits, N1);
    assert!(matches!(&stale, Outcome::Stale { what } if what.contains("new disk")), "{stale:?}");
    assert!(world.task(waits).message.contains("drained by root: new disk"));
    world.finish(running, End::WaitStatus(0));
    assert_eq!(world.kind(running), Kind::Done, "what runs goes on");
    // Over a new session and over a snapshot.
    world.node_up(N1, 2, "j1");
    assert_eq!(placed(&world), 0);
    let image = bytes(&world.ledger.freeze());
    let thawed = Ledger::thaw(image.iter().cloned()).expect("its own image");
    assert_eq!(plan(&thawed, &thawed.agents_up(), 10).placements.len(), 0);
    assert_eq!(drain(&mut world, "root", "d3", true), Outcome::Drained { held: 0 });
    assert_eq!(placed(&world), 1);
    // P8: a drain that is repeated after it was taken back changes nothing.
    drain(&mut world, "root", "d2", false);
    assert_eq!(placed(&world), 1);
}
