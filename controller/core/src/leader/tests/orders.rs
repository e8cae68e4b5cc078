//! Planning and orders: right after what makes them possible, each once, repeated where it is safe.

use super::world::{LATER_MS, World, batch, finished, item, join, rejoin};
use crate::leader::SessionEnd;
use crate::ledger::StateName;
use proto::v1::{self, Phase, agent_message::Kind as Up, leader_message::Kind as Down};

#[test]
fn a_submit_is_planned_and_ordered_without_waiting_for_a_tick() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    assert_eq!(world.take(session), [format!("run {job}/1")]);
}

#[test]
fn a_job_is_ordered_when_its_begin_time_has_come_and_once() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit_later();
    world.proposals();
    world.pass(LATER_MS - world.now - 100);
    assert!(world.take(session).iter().all(|order| !order.starts_with("run")));
    assert!(world.proposals().iter().all(|proposed| proposed != "tick"), "in vain");
    world.pass(200);
    let orders = world.take(session);
    assert!(orders.contains(&format!("run {job}/1")), "{orders:?}");
    world.pass(5_000);
    assert!(world.take(session).iter().all(|order| !order.starts_with("run")), "once");
}

#[test]
fn tasks_of_an_array_are_ordered_and_ended_one_by_one() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit_array();
    assert_eq!(world.take(session), [format!("run {job}_0/1"), format!("run {job}_1/1")]);
    world.cancel(job, None);
    let kill = |n| format!("kill {job}_{n}/1 Cancel");
    assert_eq!(
        world.take(session),
        [kill(0), kill(1)],
        "what waited has ended, and orders nothing"
    );
}

#[test]
fn an_order_leaves_only_when_its_assign_is_applied() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.proposals();
    world.hold = true;
    let job = world.submit();
    assert_eq!(world.proposals(), [format!("assign {job}/1")]);
    assert!(world.take(session).is_empty());
    world.commit();
    assert_eq!(world.take(session), [format!("run {job}/1")]);
}

#[test]
fn no_assign_is_proposed_twice_while_it_is_in_flight() {
    let mut world = World::new();
    world.joined(join(1), vec![]);
    world.proposals();
    world.hold = true;
    let first = world.submit();
    let second = world.submit();
    world.pass(3_000);
    assert_eq!(world.proposals(), [format!("assign {first}/1")]);
    world.hold = false;
    world.commit();
    assert_eq!(world.proposals(), [format!("assign {second}/1")]);
}

#[test]
fn a_lost_plan_is_made_again() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    world.hold = true;
    let job = world.submit();
    world.waiting.clear();
    world.hold = false;
    world.pass(10_000);
    assert_eq!(world.take(session), [format!("run {job}/1")]);
}

#[test]
fn at_most_what_fits_is_placed_and_a_finish_makes_room() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let jobs = [world.submit(), world.submit(), world.submit()];
    let runs = jobs.map(|job| format!("run {job}/1"));
    assert_eq!(world.take(session), runs[..2]);
    world.facts(session, 1, 3, vec![finished(3, jobs[0], 0)]);
    assert_eq!(world.take(session), ["ack 3", &runs[2]]);
}

#[test]
fn a_stopped_agent_gets_nothing_and_does_not_hold_up_the_others() {
    let mut world = World::new();
    let frozen = world.joined(join(1), vec![]);
    let other = v1::Join { agent_id: "a2".into(), name: "n2".into(), ..join(1) };
    let other = world.joined(other, vec![]);
    for _ in 0..3 {
        world.pass(10_000);
        world.beat(other, 0, 0, 0);
    }
    assert_eq!(world.reachable(), ["a2"]);
    let job = world.submit();
    assert_eq!(world.take(other), [format!("run {job}/1")]);
    assert!(world.take(frozen).is_empty());
}

#[test]
fn a_node_whose_disk_is_full_gets_no_new_job_until_it_has_room() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let full = v1::Heartbeat { disk_full: true, keeper_answers: true, ..Default::default() };
    world.say(session, Up::Heartbeat(full));
    let job = world.submit();
    assert!(world.take(session).is_empty());
    let view = world.leader.node_views(&world.ledger, world.now).remove(0);
    assert_eq!(view.notes, ["its disk is full: no new jobs"]);
    world.beat(session, 0, 0, 0);
    world.pass(1_100);
    assert_eq!(world.take(session), [format!("run {job}/1")]);
}

#[test]
fn a_full_disk_is_remembered_until_its_keeper_says_otherwise() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let full = v1::Heartbeat { disk_full: true, keeper_answers: true, ..Default::default() };
    world.say(session, Up::Heartbeat(full));
    let job = world.submit();
    // Another session of the node: its first word comes after its manifest is judged.
    world.close(session, SessionEnd::Other);
    let session = world.joined(rejoin(2, 7, 1), vec![]);
    assert!(world.take(session).is_empty(), "a new session makes no room");
    // The agent has not heard its keeper: nothing is known of the disk.
    let blind = v1::Heartbeat { problem: "no keeper".into(), ..Default::default() };
    world.say(session, Up::Heartbeat(blind));
    world.pass(1_100);
    assert!(world.take(session).is_empty(), "nobody vouched for room");
    world.beat(session, 0, 0, 0);
    world.pass(1_100);
    assert_eq!(world.take(session), [format!("run {job}/1")]);
}

#[test]
fn a_node_without_a_keeper_that_says_why_gets_no_new_job() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let gone = v1::Heartbeat { problem: "its directory is gone".into(), ..Default::default() };
    world.say(session, Up::Heartbeat(gone));
    let job = world.submit();
    assert!(world.take(session).is_empty());
    assert_eq!(world.state(job), StateName::Pend);
    let view = world.leader.node_views(&world.ledger, world.now).remove(0);
    assert_eq!(
        (view.reachable, &view.notes[..]),
        (false, &["its directory is gone".to_owned()][..])
    );
    // Its keeper answers again.
    world.beat(session, 0, 0, 0);
    world.pass(1_100);
    assert_eq!(world.take(session), [format!("run {job}/1")]);
}

#[test]
fn a_node_that_says_that_nothing_can_start_there_gets_no_new_job_until_it_says_otherwise() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let running = world.running(session, 1);
    let order = world.order(running);
    let why = "the data directory /d was renamed";
    let out = |takes_no_runs| v1::Heartbeat {
        keeper_answers: true,
        takes_no_runs,
        problem: why.into(),
        last_order: order,
        last_seq: 1,
        ..Default::default()
    };
    world.say(session, Up::Heartbeat(out(true)));
    let job = world.submit();
    world.pass(5_000);
    assert_eq!((world.state(job), world.end(running)), (StateName::Pend, "RUN".to_owned()));
    let view = world.leader.node_views(&world.ledger, world.now).remove(0);
    assert_eq!((view.reachable, view.refuses.as_deref()), (false, Some(why)));
    world.take(session);
    world.say(session, Up::Heartbeat(out(false)));
    world.pass(1_100);
    let sent = world.take(session);
    assert!(sent.contains(&format!("run {job}/1")), "{sent:?}");
}

#[test]
fn a_cancel_kills_once_and_again_after_the_next_join() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.cancel(job, None);
    world.pass(5_000);
    assert_eq!(world.take(session), [format!("kill {job}/1 Cancel")]);
    world.close(session, SessionEnd::Other);
    let session = world.joined(rejoin(2, 7, 3), vec![item(job, Phase::Running)]);
    assert_eq!(world.take(session), [format!("kill {job}/1 Cancel")]);
    assert_eq!(world.state(job), StateName::Run, "it ends when its node says so");
}

#[test]
fn a_cancel_while_the_agent_is_away_is_carried_out_at_the_join() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.close(session, SessionEnd::Other);
    world.cancel(job, None);
    let session = world.joined(rejoin(2, 7, 3), vec![item(job, Phase::Running)]);
    assert_eq!(world.take(session), [format!("kill {job}/1 Cancel")]);
}

#[test]
fn a_cancelled_task_whose_order_never_arrived_ends_without_being_started() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    world.close(session, SessionEnd::Other);
    world.cancel(job, None);
    let session = world.joined(rejoin(2, 7, 1), vec![]);
    assert!(world.take(session).is_empty(), "no order to run, and none to kill");
    assert_eq!(world.end(job), "EXIT Cancelled");
}

#[test]
fn a_signal_is_sent_once_even_over_a_rejoin() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    world.cancel(job, Some(10));
    let Down::Kill(kill) = world.take_raw(session).remove(0) else { panic!("no kill") };
    assert_eq!((kill.signal, kill.cause()), (Some(10), v1::KillCause::Unspecified));
    world.close(session, SessionEnd::Other);
    let rejoined = world.open(rejoin(2, 7, 3));
    world.take(rejoined);
    world.manifest(rejoined, 0, vec![item(job, Phase::Running)], 2, kill.order_id);
    assert!(world.take(rejoined).is_empty());
}

#[test]
fn a_signal_that_the_node_never_took_is_sent_at_the_rejoin() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    let order = world.order(job);
    world.close(session, SessionEnd::Other);
    world.cancel(job, Some(10));
    let rejoined = world.open(rejoin(2, 7, 3));
    world.take(rejoined);
    world.manifest(rejoined, 0, vec![item(job, Phase::Running)], 2, order);
    assert_eq!(world.take(rejoined), [format!("signal {job}/1 10")]);
}

#[test]
fn a_task_lost_at_its_deadline_is_killed_when_its_node_speaks_again() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.running(session, 1);
    let order = world.order(job);
    world.pass(world.ledger.policy().transient_job_timeout_ms + 40_000);
    assert_eq!(world.end(job), "EXIT Lost");
    world.beat(session, 0, 2, order);
    assert_eq!(world.take(session), ["manifest 1"]);
    world.manifest(session, 1, vec![item(job, Phase::Running)], 2, order);
    assert_eq!(world.take(session), [format!("kill {job}/1 Fenced")]);
    world.facts(session, 3, 3, vec![finished(3, job, 0)]);
    assert_eq!(world.end(job), "EXIT Lost", "terminal is written once");
}

#[test]
fn a_refused_order_closes_the_attempt_and_the_next_one_waits_for_the_node() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let job = world.submit();
    world.take(session);
    let failure = v1::StartFailure {
        step: "cgroup".into(),
        errno: 28,
        node_fault: true,
        ..Default::default()
    };
    let refused = v1::RefusedFact {
        attempt: super::world::attempt(job),
        token: super::world::token(),
        failure: Some(failure),
    };
    let fact = v1::Fact { seq: 1, kind: Some(v1::fact::Kind::Refused(refused)) };
    world.say(session, Up::Facts(batch(1, 1, vec![fact])));
    assert_eq!(world.take(session), ["ack 1"]);
    world.pass(3_000);
    assert_eq!(world.take(session), [format!("run {job}/2")]);
}

#[test]
fn a_heartbeat_is_answered_with_its_own_time() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let beat = v1::Heartbeat { h_ms: 4_711, keeper_answers: true, ..Default::default() };
    world.say(session, Up::Heartbeat(beat));
    let answer = Down::Heartbeat(v1::HeartbeatAnswer { h_ms: 4_711 });
    assert_eq!(world.take_raw(session), [answer]);
}

#[test]
fn what_a_second_leader_orders_follows_from_the_ledger_alone() {
    let mut world = World::new();
    let session = world.joined(join(1), vec![]);
    let running = world.running(session, 1);
    let dispatched = world.submit();
    let queued = world.submit();
    world.event(crate::leader::Event::Deposed);
    world.elect(2);
    let session = world.joined(rejoin(2, 7, 3), vec![item(running, Phase::Running)]);
    assert_eq!(world.take(session), [format!("run {dispatched}/1")]);
    assert_eq!(world.end(running), "RUN");
    assert_eq!(world.state(queued), StateName::Pend);
}
