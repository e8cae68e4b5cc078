//! The life of sessions: joins, refusals, losses, heartbeats, goodbyes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

mod world;

use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_event::Kind as FromKeeper;
use proto::v1::keeper_request::Kind as ToKeeper;
use proto::v1::leader_message::Kind as Down;
use worker_agent_core::{Action, End, Event, Saved, SessionNo, Target};
use world::{INTERVAL_MS, TIMEOUT_MS, World, config, identity, kill_order};

fn joins_in(world: &World) -> Vec<v1::Join> {
    let joins = world.actions.iter().filter_map(|action| match action {
        Action::ToLeader { message, .. } => message.kind.clone(),
        _ => None,
    });
    joins.filter_map(|kind| if let Up::Join(join) = kind { Some(join) } else { None }).collect()
}

fn refused(leader: &str, fatal: bool) -> Down {
    Down::Refused(v1::Refused { reason: "no".into(), fatal, leader: leader.into() })
}

#[test]
fn nothing_joins_before_the_keeper_has_spoken() {
    let mut world = World::new();
    world.connects(1);
    world.pass(10_000);
    assert_eq!(joins_in(&world), vec![]);
    world.keeper_welcomes(41);
    let join = &joins_in(&world)[0];
    assert_eq!((join.next_seq, join.journal_id.as_slice()), (42, &world::JOURNAL[..]));
    assert_eq!(join.resources.as_ref().map(|r| r.limits.as_str()), Some("v2"));
    let by = join.resources.as_ref().and_then(|r| r.limits_by.as_ref());
    assert_eq!(by.map(|by| by.cpus.as_str()), Some("v1"), "as the keeper says, limit by limit");
    assert_eq!(join.address, "10.0.0.1:5");
}

#[test]
fn the_incarnation_grows_with_every_session_and_is_saved_before_the_join() {
    let mut world = World::with(config(), Saved { incarnation: 6, ..identity() });
    world.keeper_welcomes(0);
    let mut no = world.dials();
    for incarnation in 7..12 {
        world.connects(no);
        let saved = world.actions.iter().position(
            |action| matches!(action, Action::Save(saved) if saved.incarnation == incarnation),
        );
        let joined = world.actions.iter().position(|action| {
            matches!(action, Action::ToLeader { message, .. }
                if matches!(&message.kind, Some(Up::Join(join)) if join.incarnation == incarnation))
        });
        assert!(saved.is_some() && saved < joined, "{saved:?} {joined:?}");
        world.breaks(no);
        no = world.dials();
    }
}

#[test]
fn a_state_file_that_cannot_be_written_means_no_session() {
    let mut world = World::new();
    world.keeper_welcomes(0);
    world.connects(1);
    world.happens(Event::NotSaved { why: "no space".into() });
    assert!(world.has(&Action::Abandon(SessionNo(1))));
    assert!(world.warnings().iter().any(|text| text.contains("no space")));
    world.actions.clear();
    assert_eq!(world.dials(), 2, "it is tried again");
}

#[test]
fn a_question_to_the_keeper_that_a_failed_save_swallowed_is_asked_again() {
    let mut world = World::joined();
    world.keeper_pongs(1);
    world.breaks(1);
    let no = world.dials();
    world.now += INTERVAL_MS;
    world.connects(no);
    // What the list had behind the save was not carried out.
    world.actions.clear();
    world.happens(Event::NotSaved { why: "no space".into() });
    world.pass(2 * INTERVAL_MS);
    assert!(world.sent_down().iter().any(|request| matches!(request, ToKeeper::Ping(_))));
}

#[test]
fn a_dial_that_a_failed_save_swallowed_is_made_again() {
    let mut world = World::joined();
    world.breaks(1);
    let lost = world.dials();
    world.actions.clear();
    world.happens(Event::NotSaved { why: "no space".into() });
    assert!(world.has(&Action::Release(SessionNo(lost))));
    assert_eq!(world.dials(), lost + 1);
}

#[test]
fn a_welcome_of_another_cluster_or_of_a_stale_leader_is_refused() {
    let seen = Saved { cluster_id: "c1".into(), generation: 2, term: 5, ..identity() };
    let cases = [
        ("c2", 2, 9, false),
        ("", 2, 9, false),
        ("c1", 1, 9, false),
        ("c1", 2, 4, false),
        ("c1", 2, 5, true),
        ("c1", 2, 6, true),
        ("c1", 3, 1, true),
    ];
    for (cluster, generation, term, taken) in cases {
        let mut world = World::with(config(), seen.clone());
        world.keeper_welcomes(0);
        world.connects(1);
        world.actions.clear();
        let welcome =
            v1::Welcome { cluster_id: cluster.into(), generation, heartbeat_timeout_ms: 1 };
        world.leader_says(1, term, 1, Down::Welcome(welcome));
        let case = format!("{cluster} {generation} {term}");
        assert_eq!(world.has(&Action::ReleaseBefore(SessionNo(1))), taken, "{case}");
        assert_eq!(world.has(&Action::Abandon(SessionNo(1))), !taken, "{case}");
        let saved = world.core.saved();
        let expected = if taken { (generation, term) } else { (2, 5) };
        assert_eq!((saved.generation, saved.term), expected, "{case}");
        assert_eq!(saved.cluster_id, "c1", "{case}");
    }
}

#[test]
fn a_welcome_of_another_cluster_is_refused_with_what_to_do() {
    let seen = Saved { cluster_id: "c1".into(), ..identity() };
    let mut world = World::with(config(), seen);
    world.keeper_welcomes(0);
    world.connects(1);
    world.warnings();
    let welcome = v1::Welcome { cluster_id: "c2".into(), ..World::welcome() };
    world.leader_says(1, 9, 1, Down::Welcome(welcome));
    let said = world.warnings().join("\n");
    let wanted = [
        "this node belongs to cluster c1, the controller that answers is of cluster c2",
        "no job is touched",
        "Name c1's own in `controllers`",
        "a data directory of its own",
        "remove agent.state",
    ];
    for part in wanted {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_higher_term_is_saved_before_its_order_is_carried_out() {
    let mut world = World::joined();
    world.leader_says(1, 9, 1, Down::Kill(kill_order(4)));
    let expected =
        Saved { incarnation: 1, cluster_id: "c1".into(), generation: 1, term: 9, ..identity() };
    assert_eq!(world.actions[0], Action::Save(expected));
    assert!(matches!(world.actions[1], Action::ToKeeper(_)));
}

#[test]
fn orders_of_an_older_term_or_incarnation_are_refused() {
    let mut world = World::joined();
    world.leader_says(1, 2, 1, Down::Kill(kill_order(4)));
    world.leader_says(1, 3, 0, Down::Kill(kill_order(4)));
    world.leader_says(1, 3, 2, Down::Kill(kill_order(4)));
    world.leader_says(1, 2, 1, Down::SendManifest(v1::SendManifest { nonce: 3 }));
    assert_eq!(world.sent_down(), vec![]);
    assert_eq!(world.warnings().len(), 3, "the 1st, 2nd and 4th are told");
    world.leader(1, Down::Kill(kill_order(4)));
    assert_eq!(world.sent_down().len(), 1);
}

#[test]
fn queued_orders_of_a_session_that_was_given_up_are_refused() {
    let mut world = World::joined();
    world.breaks(1);
    world.leader_says(1, 3, 1, Down::Kill(kill_order(4)));
    assert_eq!(world.sent_down(), vec![]);
    let no = world.dials();
    world.connects(no);
    world.leader_says(1, 3, 1, Down::Kill(kill_order(4)));
    world.leader_says(no, 3, 2, Down::Kill(kill_order(4)));
    assert_eq!(world.sent_down(), vec![], "an order before the welcome is none either");
}

#[test]
fn heartbeats_keep_their_schedule_whatever_else_is_sent() {
    let mut world = World::joined();
    let start = world.now;
    let mut beats_at = Vec::new();
    for n in 0..100 {
        world.facts(n + 1, n + 1);
        world.leader(1, Down::Ping(v1::Ping { nonce: n }));
        world.pass(100);
        if !world.heartbeats().is_empty() {
            beats_at.push(world.now - start);
        }
    }
    let expected: Vec<u64> = (1..=10).map(|n| n * INTERVAL_MS).collect();
    assert_eq!(beats_at, expected);
}

#[test]
fn a_late_heartbeat_does_not_move_the_next_one() {
    let mut world = World::joined();
    world.stall(2_700);
    assert_eq!(world.heartbeats().len(), 1, "missed slots are not made up for");
    world.pass(200);
    assert_eq!(world.heartbeats().len(), 0);
    world.pass(100);
    assert_eq!(world.heartbeats().len(), 1, "on the old grid, 3,000 ms after the join");
}

#[test]
fn a_heartbeat_vouches_only_as_long_as_the_keeper_answers() {
    let mut world = World::new();
    world.keeper_welcomes(0);
    world.keeper_pongs(5_000);
    world.joins(1);
    let first = world.heartbeats().remove(0);
    assert!(first.keeper_answers);
    assert_eq!((first.h_ms, first.digest), (5_000, 5));
    assert_eq!((first.last_seq, first.last_order), (8, 6));
    world.pass(INTERVAL_MS / 2);
    world.keeper_pongs(5_500);
    world.pass(INTERVAL_MS / 2);
    let second = world.heartbeats().remove(0);
    assert!(second.keeper_answers);
    assert_eq!(second.h_ms, 5_500);
    world.pass(INTERVAL_MS);
    let silent = world.heartbeats().remove(0);
    assert!(!silent.keeper_answers, "its last answer is 1,500 ms old");
    assert!(silent.problem.contains("1500 ms"), "{}", silent.problem);
}

#[test]
fn an_answer_vouches_for_the_time_of_its_question() {
    let mut world = World::new();
    world.keeper_welcomes(0);
    world.joins(1);
    world.pass(3 * INTERVAL_MS - 100);
    world.heartbeats();
    world.keeper_pongs(9);
    let pings = world.sent_down();
    assert!(matches!(pings[..], [ToKeeper::Ping(_)]), "it is asked anew at once: {pings:?}");
    world.pass(100);
    let beat = world.heartbeats().remove(0);
    assert!(!beat.keeper_answers, "an answer that took so long says nothing about now");
}

#[test]
fn a_silent_leader_is_given_up_after_its_own_time_out_and_not_before() {
    let mut world = World::joined();
    world.pass(TIMEOUT_MS - 100);
    assert!(!world.has(&Action::Abandon(SessionNo(1))));
    world.leader(1, Down::Ping(v1::Ping { nonce: 1 }));
    world.pass(TIMEOUT_MS - 100);
    assert!(!world.has(&Action::Abandon(SessionNo(1))), "any message is a sign of life");
    world.sent_up();
    world.pass(200);
    let goodbye = Up::Goodbye(v1::Goodbye { kind: v1::GoodbyeKind::Reconnect.into() });
    assert!(world.sent_up().contains(&goodbye));
    assert!(world.has(&Action::Abandon(SessionNo(1))));
    assert!(!world.actions.iter().any(|action| matches!(action, Action::Release(_))));
}

#[test]
fn time_in_which_the_agent_stood_still_is_no_silence_of_the_leader() {
    let mut world = World::joined();
    world.stall(600_000);
    world.pass(TIMEOUT_MS - 1_100);
    assert!(!world.has(&Action::Abandon(SessionNo(1))));
    world.pass(200);
    assert!(world.has(&Action::Abandon(SessionNo(1))), "a stall counts one second");
}

#[test]
fn an_old_socket_stays_open_until_the_newer_join_is_answered() {
    let mut world = World::joined();
    world.breaks(1);
    let no = world.dials();
    world.connects(no);
    assert!(world.has(&Action::Abandon(SessionNo(1))));
    assert!(!world.actions.iter().any(|action| matches!(action, Action::ReleaseBefore(_))));
    world.leader(no, Down::Welcome(World::welcome()));
    assert!(world.has(&Action::ReleaseBefore(SessionNo(no))));
}

#[test]
fn the_back_off_grows_until_a_heartbeat_was_served_and_not_until_a_connect() {
    let mut world = World::joined();
    let mut longest = 0;
    let mut no = 1;
    for _ in 0..12 {
        world.breaks(no);
        let before = world.now;
        no = world.dials();
        longest = longest.max(world.now - before);
        world.joins(no);
    }
    assert!(longest > 300, "joins alone do not reset it: {longest} ms");
    assert!(longest <= INTERVAL_MS + 10, "the ceiling holds: {longest} ms");
    world.leader(no, Down::Heartbeat(v1::HeartbeatAnswer { h_ms: 1 }));
    world.breaks(no);
    let before = world.now;
    world.dials();
    assert!(world.now - before <= 110, "a served heartbeat resets it");
}

#[test]
fn a_voter_that_does_not_lead_sends_the_agent_to_the_leader_at_once() {
    let mut world = World::new();
    world.keeper_welcomes(0);
    assert_eq!(world.dials(), 1);
    world.connects(1);
    let before = world.now;
    world.leader(1, refused("c2:7460", false));
    assert!(world.has(&Action::Release(SessionNo(1))));
    let target = Target::Leader("c2:7460".into());
    assert!(world.has(&Action::Dial { session: SessionNo(2), target }));
    assert_eq!(world.now, before);
    for no in 2..=3 {
        world.dials();
        world.connects(no);
        world.leader(no, refused("c1:7460", false));
    }
    world.dials();
    world.connects(4);
    world.actions.clear();
    world.leader(4, refused("c2:7460", false));
    let dialled_leader = world
        .actions
        .iter()
        .any(|action| matches!(action, Action::Dial { target: Target::Leader(_), .. }));
    assert!(!dialled_leader, "voters that point at each other meet the back-off");
    assert_eq!(world.dials(), 5);
}

#[test]
fn the_configured_controllers_are_tried_in_turn() {
    let mut world = World::new();
    for no in 1..=4 {
        let target = Target::Listed(no - 1);
        assert!(world.has(&Action::Dial { session: SessionNo(no), target }));
        world.dials();
        world.breaks(no);
        if no < 4 {
            while !world.actions.iter().any(|action| matches!(action, Action::Dial { .. })) {
                world.pass(10);
            }
        }
    }
    assert_eq!(world.warnings().len(), 1, "the same trouble is told once");
}

#[test]
fn a_fatal_refusal_ends_the_agent_unless_a_stale_leader_says_it() {
    let seen = Saved { cluster_id: "c1".into(), generation: 1, term: 5, ..identity() };
    for (term, ends) in [(4, false), (5, true), (0, true)] {
        let mut world = World::with(config(), seen.clone());
        world.keeper_welcomes(0);
        world.connects(1);
        world.leader_says(1, term, 1, refused("", true));
        let end = Action::End(End::Refused { reason: "no".into() });
        assert_eq!(world.has(&end), ends, "term {term}");
    }
}

#[test]
fn a_stop_says_goodbye_and_waits_a_second_at_most() {
    let mut world = World::joined();
    world.happens(Event::Stop);
    let goodbye = Up::Goodbye(v1::Goodbye { kind: v1::GoodbyeKind::Restart.into() });
    assert_eq!(world.sent_up(), vec![goodbye]);
    world.leader(1, Down::Kill(kill_order(4)));
    assert_eq!(world.sent_down(), vec![], "no order is taken any more");
    world.pass(900);
    assert!(!world.has(&Action::End(End::Stopped)));
    world.pass(100);
    assert!(world.has(&Action::End(End::Stopped)));

    let mut world = World::joined();
    world.happens(Event::Stop);
    world.leader(1, Down::Goodbye(v1::GoodbyeAnswer {}));
    assert!(world.has(&Action::End(End::Stopped)), "an answer ends it at once");

    let mut world = World::new();
    world.happens(Event::Stop);
    assert!(world.has(&Action::End(End::Stopped)), "nobody to say goodbye to");
}

#[test]
fn a_keeper_that_came_back_makes_a_new_session() {
    let mut world = World::joined();
    world.happens(Event::KeeperLost);
    world.leader(1, Down::Kill(kill_order(4)));
    assert_eq!(world.sent_down(), vec![]);
    world.pass(INTERVAL_MS);
    let beat = world.heartbeats().pop().unwrap();
    assert!(!beat.keeper_answers && beat.h_ms == 0);
    world.keeper_welcomes(0);
    let goodbye = Up::Goodbye(v1::Goodbye { kind: v1::GoodbyeKind::Reconnect.into() });
    assert!(world.sent_up().contains(&goodbye));
    let no = world.dials();
    world.connects(no);
    assert_eq!(joins_in(&world).len(), 1);
}

#[test]
fn trouble_with_the_keeper_is_told_once_and_shown_in_heartbeats() {
    let mut world = World::joined();
    world.happens(Event::KeeperLost);
    world.warnings();
    for _ in 0..5 {
        world.happens(Event::KeeperTrouble("lock is held".into()));
    }
    assert_eq!(world.warnings(), ["lock is held"]);
    let problems: Vec<String> = world.heartbeats().into_iter().map(|beat| beat.problem).collect();
    assert_eq!(problems, ["lock is held"], "at once: until then it gets jobs");
    world.pass(INTERVAL_MS);
    assert_eq!(world.heartbeats().pop().unwrap().problem, "lock is held");
}

#[test]
fn trouble_of_a_keeper_that_answers_is_shown_until_it_is_over() {
    let mut world = World::new();
    world.keeper_welcomes(0);
    world.keeper_pongs(1);
    world.joins(1);
    world.heartbeats();
    world.happens(Event::KeeperTrouble("another agent uses this keeper".into()));
    assert!(world.heartbeats().is_empty(), "a keeper that answers keeps the schedule");
    world.pass(INTERVAL_MS / 2);
    world.keeper_pongs(1);
    world.pass(INTERVAL_MS / 2);
    let beat = world.heartbeats().pop().unwrap();
    assert_eq!((beat.keeper_answers, &*beat.problem), (true, "another agent uses this keeper"));
    world.warnings();
    world.happens(Event::KeeperTrouble(String::new()));
    assert!(world.warnings().is_empty());
    world.pass(INTERVAL_MS / 2);
    world.keeper_pongs(1);
    world.pass(INTERVAL_MS / 2);
    assert_eq!(world.heartbeats().pop().unwrap().problem, "");
}

#[test]
fn a_ping_is_answered_with_its_nonce() {
    let mut world = World::joined();
    world.leader(1, Down::Ping(v1::Ping { nonce: 77 }));
    assert_eq!(world.sent_up(), vec![Up::Pong(v1::Pong { nonce: 77 })]);
}

fn upgrades_asked(world: &mut World) -> Vec<v1::KeeperUpgrade> {
    let sent = world.sent_down().into_iter();
    sent.filter_map(|r| if let ToKeeper::Upgrade(asked) = r { Some(asked) } else { None }).collect()
}

#[test]
fn an_older_keeper_is_asked_to_go_on_as_the_agents_program_ever_more_rarely() {
    let mut world = World::joined();
    assert_eq!(upgrades_asked(&mut world), [], "of the same version");
    let as_old = |world: &mut World, version: &str| {
        let version = version.to_owned();
        let welcome = v1::KeeperWelcome { version, ..World::keeper_welcome(0) };
        world.keeper(FromKeeper::Welcome(welcome));
        upgrades_asked(world)
    };
    assert_eq!(as_old(&mut world, "0.2.0"), [], "a newer one is left alone");
    let asked = v1::KeeperUpgrade { exe: b"/bin/docket".to_vec() };
    assert_eq!(as_old(&mut world, "0.0.9"), [asked]);
    // It came back as old as it was: not at once again.
    assert_eq!(as_old(&mut world, "0.0.9"), []);
    let mut times = Vec::new();
    for _ in 0..60 * 60 {
        world.stall(1_000);
        if !upgrades_asked(&mut world).is_empty() {
            times.push(world.now);
        }
    }
    assert!((4..8).contains(&times.len()), "{times:?}");
    assert_eq!(as_old(&mut world, "0.1.0"), []);
}
