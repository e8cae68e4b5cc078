//! What passes between controller and keeper: manifests, facts, acknowledgements, orders.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

mod world;

use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_event::Kind as FromKeeper;
use proto::v1::keeper_request::Kind as ToKeeper;
use proto::v1::leader_message::Kind as Down;
use worker_agent_core::{Action, CoreConfig, Event, NoUser, SessionNo, User};
use world::{JOURNAL, World, ada, attempt, config, identity, kill_order, run_order, token};

fn manifest_nonce(world: &mut World) -> u64 {
    let asked = world.sent_down().into_iter().find_map(|request| match request {
        ToKeeper::Manifest(ask) => Some(ask.nonce),
        _ => None,
    });
    asked.expect("the keeper was asked for its manifest")
}

fn answer_manifest(world: &mut World, nonce: u64, count: u64) {
    let item = |job| v1::ManifestItem { attempt: attempt(job), ..v1::ManifestItem::default() };
    let items = (1..=count).map(item).collect();
    let manifest = v1::KeeperManifest { nonce, items, last_seq: 12, last_order: 34 };
    world.keeper(FromKeeper::Manifest(manifest));
}

fn pages(world: &mut World) -> Vec<v1::ManifestPage> {
    let sent = world.sent_up().into_iter();
    sent.filter_map(|kind| if let Up::Manifest(page) = kind { Some(page) } else { None }).collect()
}

fn facts_sent(world: &mut World) -> Vec<(u64, u64)> {
    let sent = world.sent_up().into_iter();
    sent.filter_map(
        |kind| {
            if let Up::Facts(facts) = kind { Some((facts.from, facts.to)) } else { None }
        },
    )
    .collect()
}

fn ack(to: u64) -> Down {
    Down::Ack(v1::Ack { journal_id: JOURNAL.to_vec(), to })
}

fn resend(from: u64) -> ToKeeper {
    ToKeeper::Resend(v1::KeeperResend { from })
}

fn knows(world: &mut World, uid: u32, user: Result<User, NoUser>) {
    world.happens(Event::UserLookedUp { uid, user });
}

fn the_run(world: &mut World) -> v1::KeeperRun {
    let runs = world.sent_down().into_iter();
    let mut runs =
        runs.filter_map(|kind| if let ToKeeper::Run(run) = kind { Some(run) } else { None });
    let run = runs.next().expect("a run went to the keeper");
    assert_eq!(runs.next(), None);
    run
}

/// The run order of ada on an agent of this configuration, where the database says this.
fn run_on(config: CoreConfig, order: v1::RunOrder, user: Result<User, NoUser>) -> v1::KeeperRun {
    let mut world = World::with(config, identity());
    world.keeper_welcomes(0);
    world.joins(1);
    world.actions.clear();
    let uid = order.uid;
    world.leader(1, Down::Run(order));
    assert!(world.has(&Action::LookUpUser(uid)));
    knows(&mut world, uid, user);
    the_run(&mut world)
}

#[test]
fn every_join_is_followed_by_the_whole_manifest_in_pages() {
    let mut world = World::new();
    world.keeper_welcomes(0);
    let mut no = world.dials();
    for count in [0, 1, 1_000, 1_001, 2_500] {
        world.joins(no);
        world.sent_up();
        let nonce = manifest_nonce(&mut world);
        answer_manifest(&mut world, nonce, count);
        let pages = pages(&mut world);
        assert_eq!(pages.len() as u64, count.div_ceil(1_000).max(1));
        assert_eq!(pages.iter().map(|page| page.items.len() as u64).sum::<u64>(), count);
        for (n, page) in pages.iter().enumerate() {
            assert!(page.items.len() <= 1_000);
            assert_eq!(page.last, n + 1 == pages.len());
            assert_eq!((page.last_seq, page.last_order, page.asked), (12, 34, 0));
        }
        world.breaks(no);
        no = world.dials();
    }
}

#[test]
fn a_manifest_on_request_names_the_request() {
    let mut world = World::joined();
    world.leader(1, Down::SendManifest(v1::SendManifest { nonce: 99 }));
    let nonce = manifest_nonce(&mut world);
    answer_manifest(&mut world, nonce, 3);
    let pages = pages(&mut world);
    assert_eq!((pages.len(), pages[0].asked, pages[0].last), (1, 99, true));
}

#[test]
fn a_manifest_that_an_older_session_asked_for_is_not_sent_in_a_newer_one() {
    let mut world = World::new();
    world.keeper_welcomes(0);
    world.joins(1);
    let nonce = manifest_nonce(&mut world);
    world.breaks(1);
    world.actions.clear();
    let no = world.dials();
    world.joins(no);
    answer_manifest(&mut world, nonce, 3);
    assert_eq!(pages(&mut world), vec![]);
}

#[test]
fn facts_go_up_in_order_and_acknowledgements_down_to_the_keeper() {
    let mut world = World::joined();
    world.facts(1, 3);
    world.facts(4, 4);
    assert_eq!(facts_sent(&mut world), [(1, 3), (4, 4)]);
    world.leader(1, ack(3));
    assert_eq!(world.sent_down(), [ToKeeper::Ack(v1::KeeperAck { to: 3 })]);
    world.leader(1, Down::Ack(v1::Ack { journal_id: vec![1], to: 4 }));
    world.leader(1, ack(5));
    assert_eq!(world.sent_down(), [], "another journal, and a fact that was never sent");
}

#[test]
fn unacknowledged_facts_are_sent_again_after_a_reconnect() {
    let mut world = World::joined();
    world.facts(1, 5);
    world.leader(1, ack(2));
    world.breaks(1);
    world.facts(6, 6);
    world.actions.clear();
    let no = world.dials();
    world.connects(no);
    let join = world.sent_up().remove(0);
    assert!(matches!(join, Up::Join(join) if join.next_seq == 7));
    world.leader(no, Down::Welcome(World::welcome()));
    assert!(world.sent_down().contains(&resend(3)));
    world.facts(7, 7);
    assert_eq!(facts_sent(&mut world), [], "nothing overtakes what is sent again");
    world.facts(3, 6);
    world.facts(7, 7);
    assert_eq!(facts_sent(&mut world), [(3, 6), (7, 7)]);
}

/// A keeper whose journal begins at `first`, acknowledged to 20; what it welcomes is a new session.
fn older_log_world(first_seq: u64) -> (World, u64) {
    let mut world = World::new();
    let welcome = v1::KeeperWelcome { first_seq, ..World::keeper_welcome(20) };
    world.keeper(FromKeeper::Welcome(welcome));
    world.connects(1);
    let told = first_of(&world.sent_up().remove(0));
    world.leader(1, Down::Welcome(World::welcome()));
    world.keeper_pongs(1);
    world.actions.clear();
    (world, told)
}

fn first_of(kind: &Up) -> u64 {
    match kind {
        Up::Join(join) => {
            assert_eq!(join.acked_seq, 20, "whatever a session asks for again");
            join.first_seq
        }
        other => panic!("no join: {other:?}"),
    }
}

fn asks_from(from: u64) -> Down {
    Down::Resend(v1::ResendFrom { journal_id: JOURNAL.to_vec(), from })
}

#[test]
fn a_join_tells_where_the_keepers_journal_begins() {
    assert_eq!(older_log_world(15).1, 15);
    assert_eq!(older_log_world(0).1, 21, "of a keeper that does not tell: what it owes is there");
    assert_eq!(older_log_world(30).1, 21, "what is not acknowledged is never gone");
}

#[test]
fn a_controller_with_an_older_log_gets_what_the_journal_still_holds_though_it_was_acknowledged() {
    let (mut world, _) = older_log_world(15);
    world.facts(21, 22);
    world.leader(1, asks_from(15));
    assert_eq!(world.sent_down(), [resend(15)]);
    world.facts(15, 22);
    assert_eq!(facts_sent(&mut world), [(21, 22), (15, 22)]);
    world.leader(1, ack(22));
    assert_eq!(world.sent_down(), [ToKeeper::Ack(v1::KeeperAck { to: 22 })]);
    world.leader(1, asks_from(14));
    assert_eq!(world.sent_down(), [], "that is gone, as the join told");
}

#[test]
fn a_journal_that_lets_go_of_what_is_asked_for_is_told_by_a_new_join() {
    for asked_first in [true, false] {
        let (mut world, _) = older_log_world(15);
        if asked_first {
            world.leader(1, asks_from(15));
            world.facts(19, 22);
            assert_eq!(facts_sent(&mut world), [], "the answer begins behind the question");
        }
        world.pass(2_000);
        world.keeper_pongs_from(19);
        if !asked_first {
            world.leader(1, asks_from(15));
        }
        let goodbye = world.sent_up().into_iter().any(|kind| matches!(kind, Up::Goodbye(_)));
        assert!(goodbye, "asked first: {asked_first}");
        let no = world.dials();
        world.connects(no);
        let first = world.sent_up().iter().map(first_of).collect::<Vec<_>>();
        assert_eq!(first, [19]);
    }
}

#[test]
fn a_leader_with_a_gap_and_a_fact_for_later_are_passed_to_the_keeper() {
    let mut world = World::joined();
    world.facts(1, 5);
    let resend_from = v1::ResendFrom { journal_id: JOURNAL.to_vec(), from: 2 };
    world.leader(1, Down::Resend(resend_from));
    world.leader(1, later(4));
    assert_eq!(world.sent_down(), [resend(2)]);
    world.pass(1_000);
    assert_eq!(put_off_down(&mut world), [again(4)]);
}

fn later(seq: u64) -> Down {
    Down::Later(v1::Later { journal_id: JOURNAL.to_vec(), seq, reason: "full".into() })
}

fn again(seq: u64) -> ToKeeper {
    ToKeeper::Later(v1::KeeperLater { seq })
}

fn acked(to: u64) -> ToKeeper {
    ToKeeper::Ack(v1::KeeperAck { to })
}

/// What went to the keeper about its facts.
fn put_off_down(world: &mut World) -> Vec<ToKeeper> {
    let of_facts = |request: &ToKeeper| {
        matches!(request, ToKeeper::Later(_) | ToKeeper::Ack(_) | ToKeeper::Resend(_))
    };
    world.sent_down().into_iter().filter(of_facts).collect()
}

/// Time passes in a session whose controller answers.
fn heard_for(world: &mut World, ms: u64) {
    for _ in 0..ms / 100 {
        world.leader(1, Down::Heartbeat(v1::HeartbeatAnswer::default()));
        world.pass(100);
    }
}

#[test]
fn a_fact_that_is_put_off_is_journalled_anew_only_after_a_wait_that_grows() {
    let mut world = World::joined();
    world.facts(1, 3);
    world.leader(1, later(2));
    world.leader(1, ack(3));
    assert_eq!(put_off_down(&mut world), [acked(1)], "the keeper must keep it");
    let mut seq = 2;
    for wait_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
        heard_for(&mut world, wait_ms - 100);
        assert_eq!(put_off_down(&mut world), [], "before {wait_ms} ms have passed");
        world.pass(100);
        let (last, next) = (seq.max(3), seq.max(3) + 1);
        assert_eq!(put_off_down(&mut world), [again(seq), acked(last)], "after {wait_ms} ms");
        // It comes again behind the others, and is put off again.
        world.facts(next, next);
        world.leader(1, later(next));
        world.leader(1, ack(next));
        seq = next;
    }
    // Taken at last; the next trouble begins with a short wait.
    heard_for(&mut world, 30_000);
    assert_eq!(put_off_down(&mut world), [again(seq), acked(seq)]);
    heard_for(&mut world, 32_000);
    world.facts(seq + 1, seq + 1);
    world.leader(1, later(seq + 1));
    world.pass(1_000);
    assert_eq!(put_off_down(&mut world), [again(seq + 1)]);
}

#[test]
fn facts_behind_one_that_is_put_off_go_up_and_are_told_as_acknowledged_with_it() {
    let mut world = World::joined();
    world.facts(1, 2);
    world.leader(1, later(1));
    world.leader(1, ack(2));
    world.facts(3, 9);
    assert_eq!(facts_sent(&mut world), [(1, 2), (3, 9)]);
    world.leader(1, later(5));
    world.leader(1, ack(9));
    assert_eq!(put_off_down(&mut world), []);
    world.pass(1_000);
    assert_eq!(put_off_down(&mut world), [again(1), again(5), acked(9)]);
}

#[test]
fn what_was_put_off_in_a_session_that_ended_is_sent_again_from_the_keepers_journal() {
    let mut world = World::joined();
    world.facts(1, 4);
    world.leader(1, later(2));
    world.leader(1, ack(4));
    world.breaks(1);
    world.actions.clear();
    let no = world.dials();
    world.joins(no);
    assert!(world.sent_down().contains(&resend(2)));
    world.facts(2, 4);
    world.leader(no, later(2));
    world.leader(no, ack(4));
    assert_eq!(put_off_down(&mut world), []);
    world.pass(2_000);
    assert_eq!(put_off_down(&mut world), [again(2), acked(4)]);
}

#[test]
fn an_exit_that_could_not_be_journalled_still_reaches_the_controller() {
    let mut world = World::joined();
    world.facts(1, 2);
    world.leader(1, ack(2));
    world.actions.clear();
    let finish = v1::FinishFact { attempt: attempt(5), ..v1::FinishFact::default() };
    let exit = v1::KeeperVolatileExit { finish: Some(finish.clone()) };
    world.keeper(FromKeeper::NotJournalled(exit));
    let sent = world.sent_up();
    let [Up::Facts(facts)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((facts.from, facts.to), (2, 2), "a position that moves nothing");
    assert_eq!(facts.facts[0].kind, Some(v1::fact::Kind::Finish(finish)));
}

#[test]
fn an_exit_that_could_not_be_journalled_waits_for_the_first_acknowledgement_and_the_next_session() {
    let mut world = World::joined();
    world.facts(1, 2);
    world.actions.clear();
    let finish = v1::FinishFact { attempt: attempt(5), ..v1::FinishFact::default() };
    let exit = v1::KeeperVolatileExit { finish: Some(finish.clone()) };
    world.keeper(FromKeeper::NotJournalled(exit.clone()));
    assert_eq!(world.sent_up(), [], "no position is acknowledged yet");
    world.leader(1, ack(2));
    let is_it = |up: &Up| matches!(up, Up::Facts(f) if f.from == 2 && f.facts.len() == 1);
    assert!(world.sent_up().iter().any(is_it));
    world.keeper(FromKeeper::NotJournalled(exit));
    assert_eq!(world.sent_up(), [], "known");
    world.breaks(1);
    let no = world.dials();
    world.joins(no);
    assert!(world.sent_up().iter().any(is_it), "nothing acknowledges it, so it goes again");
}

#[test]
fn a_run_carries_user_environment_paths_and_run_file() {
    let run = run_on(config(), run_order(8), Ok(ada()));
    assert_eq!(run.refuse, None);
    assert_eq!((run.order_id, run.attempt, run.token), (8, attempt(8), token()));
    assert_eq!((run.uid, run.gid, run.groups), (1000, 100, vec![100, 27]));
    assert_eq!(run.stdout_path, b"/jobs/sim-8.log");
    assert_eq!(run.stderr_path, b"");
    assert_eq!(run.run_file, b"/d/runs/8/0.1");
    assert_eq!((run.cluster_id.as_str(), run.default_grace_ms, run.mem_bytes), ("c1", 10_000, 77));
    for var in ["A=1", "HOME=/home/ada", "DOCKET_JOB_ID=8", "DOCKET_CPUS=2", "DOCKET_NODE=n1"] {
        assert!(run.env.contains(&var.as_bytes().to_vec()), "{var}");
    }
}

#[test]
fn a_user_that_the_node_does_not_know_by_that_name_is_a_failed_setuid() {
    let bob = User { name: "bob".into(), ..ada() };
    let root_order = v1::RunOrder { uid: 0, user: "root".into(), ..run_order(8) };
    let root = User { name: "root".into(), ..ada() };
    let own = CoreConfig { own_uid: 1001, ..config() };
    let cases = [
        (config(), run_order(8), Ok(bob), "uid 1000 is `bob` on n1"),
        (config(), run_order(8), Err(NoUser::Absent), "no user with uid 1000"),
        (config(), root_order, Ok(root), "runs no jobs of root"),
        (own, run_order(8), Ok(ada()), "runs as uid 1001"),
    ];
    for (config, order, user, words) in cases {
        let run = run_on(config, order, user);
        let why = run.refuse.expect(words);
        assert_eq!((why.step.as_str(), why.node_fault), ("setuid", false));
        assert!(why.message.contains(words), "{}", why.message);
        assert_eq!((run.spec, run.env), (vec![], vec![]), "nothing to run goes along");
    }
}

#[test]
fn a_user_database_that_cannot_be_asked_is_the_nodes_fault() {
    let run = run_on(config(), run_order(8), Err(NoUser::Failed { errno: 5 }));
    let why = run.refuse.unwrap();
    assert!(why.node_fault && why.errno == 5);
}

#[test]
fn root_jobs_run_where_they_are_allowed_and_an_unprivileged_agent_runs_its_own() {
    let allowed = CoreConfig { allow_root_jobs: true, ..config() };
    let order = v1::RunOrder { uid: 0, user: "root".into(), ..run_order(8) };
    let root = User { name: "root".into(), gid: 0, ..ada() };
    assert_eq!(run_on(allowed, order, Ok(root)).refuse, None);
    let own = CoreConfig { own_uid: 1000, own_gid: 55, ..config() };
    let run = run_on(own, run_order(8), Err(NoUser::Absent));
    assert_eq!((run.refuse, run.gid), (None, 55), "a container's uid needs no entry");
}

#[test]
fn what_is_too_large_for_the_keeper_is_refused_with_its_size() {
    let order = v1::RunOrder { stdin: vec![0; 4 << 20], ..run_order(8) };
    let why = run_on(config(), order, Ok(ada())).refuse.unwrap();
    assert!(why.message.contains("bytes, a node takes at most 4193280"), "{}", why.message);
}

#[test]
fn a_kill_never_overtakes_a_run_that_waits_for_its_user() {
    let mut world = World::joined();
    world.leader(1, Down::Run(run_order(8)));
    world.leader(1, Down::Kill(kill_order(8)));
    world.leader(1, Down::Run(run_order(9)));
    assert_eq!(world.sent_down(), [], "all wait behind the look-up");
    knows(&mut world, 1000, Ok(ada()));
    let kinds: Vec<&str> = world
        .sent_down()
        .iter()
        .map(|request| match request {
            ToKeeper::Run(_) => "run",
            ToKeeper::Kill(_) => "kill",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["run", "kill", "run"]);
    let lookups = world.actions.iter().filter(|a| matches!(a, Action::LookUpUser(_))).count();
    assert_eq!(lookups, 1, "the second run finds the user known");
}

#[test]
fn a_look_up_that_a_failed_save_swallowed_is_asked_again() {
    let mut world = World::joined();
    world.term += 1;
    world.leader(1, Down::Run(run_order(8)));
    world.actions.clear();
    world.happens(Event::NotSaved { why: "no space".into() });
    let no = world.dials();
    world.joins(no);
    world.leader(no, Down::Run(run_order(8)));
    assert!(world.has(&Action::LookUpUser(1000)));
}

#[test]
fn orders_that_wait_when_the_session_ends_are_refused() {
    let mut world = World::joined();
    world.leader(1, Down::Run(run_order(8)));
    world.breaks(1);
    knows(&mut world, 1000, Ok(ada()));
    assert_eq!(world.sent_down(), []);
}

#[test]
fn a_known_user_is_looked_up_again_after_a_minute_and_a_missing_one_after_a_second() {
    let mut world = World::joined();
    world.leader(1, Down::Run(run_order(8)));
    knows(&mut world, 1000, Err(NoUser::Absent));
    assert!(the_run(&mut world).refuse.is_some());
    world.pass(1_100);
    world.actions.clear();
    world.leader(1, Down::Run(run_order(9)));
    assert!(world.has(&Action::LookUpUser(1000)));
    knows(&mut world, 1000, Ok(ada()));
    world.actions.clear();
    world.leader(1, Down::Run(run_order(10)));
    assert_eq!(the_run(&mut world).refuse, None);
}

#[test]
fn a_kill_without_a_grace_means_the_attempts_own() {
    let mut world = World::joined();
    for (given, wire) in [(None, 0), (Some(0), 1), (Some(700), 700)] {
        world.leader(1, Down::Kill(v1::KillOrder { grace_ms: given, ..kill_order(4) }));
        let sent = world.sent_down();
        assert!(matches!(&sent[..], [ToKeeper::Kill(kill)] if kill.grace_ms == wire), "{sent:?}");
    }
}

#[test]
fn an_order_that_names_nothing_is_refused_and_told() {
    let mut world = World::joined();
    world.leader(1, Down::Kill(v1::KillOrder { attempt: None, ..kill_order(4) }));
    world.leader(1, Down::Suspend(v1::SuspendOrder { token: None, ..Default::default() }));
    assert_eq!(world.sent_down(), []);
    assert_eq!(world.warnings().len(), 2);
}

#[test]
fn a_bulk_request_is_opened_for_its_session() {
    let mut world = World::joined();
    world.leader(1, Down::OpenBulk(v1::OpenBulk { request: 12 }));
    assert!(world.has(&Action::OpenBulk { session: SessionNo(1), request: 12 }));
}

#[test]
fn old_run_files_are_swept_with_what_the_keeper_still_holds_left_out() {
    let mut world = World::joined();
    world.pass(59_000);
    world.sent_down();
    world.pass(2_000);
    let nonce = manifest_nonce(&mut world);
    answer_manifest(&mut world, nonce, 2);
    let live = world.actions.iter().find_map(|action| match action {
        Action::Sweep(live) => Some(live.len()),
        _ => None,
    });
    assert_eq!(live, Some(2));
}

fn echo(world: &mut World, no: u64, h_ms: u64) {
    world.leader(no, Down::Heartbeat(v1::HeartbeatAnswer { h_ms }));
}

fn renewals(world: &mut World) -> Vec<u64> {
    let sent = world.sent_down().into_iter();
    sent.filter_map(|kind| if let ToKeeper::Renew(r) = kind { Some(r.h_ms) } else { None })
        .collect()
}

/// Joined as session 1, the keeper's first question answered.
fn vouched() -> World {
    let mut world = World::new();
    world.keeper_welcomes(0);
    world.keeper_pongs(1);
    world.joins(1);
    world.actions.clear();
    world
}

/// A session whose heartbeat carried this h.
fn beats_with(world: &mut World, h_ms: u64) {
    world.pass(world::INTERVAL_MS / 2);
    world.keeper_pongs(h_ms);
    world.pass(world::INTERVAL_MS);
    assert!(world.heartbeats().iter().any(|beat| beat.h_ms == h_ms));
}

#[test]
fn an_echoed_h_renews_the_leases_forward_only_and_once() {
    let mut world = vouched();
    beats_with(&mut world, 5_000);
    echo(&mut world, 1, 5_000);
    echo(&mut world, 1, 5_000);
    echo(&mut world, 1, 4_999);
    echo(&mut world, 1, 0);
    assert_eq!(renewals(&mut world), [5_000]);
    echo(&mut world, 1, 5_001);
    assert_eq!(renewals(&mut world), [], "no heartbeat said that");
    assert!(world.warnings().iter().any(|text| text.contains("5001")));
}

#[test]
fn an_echo_of_a_stale_term_or_another_session_renews_nothing() {
    let mut world = vouched();
    beats_with(&mut world, 5_000);
    let answer = Down::Heartbeat(v1::HeartbeatAnswer { h_ms: 5_000 });
    world.leader_says(1, 2, 1, answer.clone());
    world.leader_says(1, 3, 2, answer.clone());
    world.breaks(1);
    world.leader_says(1, 3, 1, answer.clone());
    let no = world.dials();
    world.joins(no);
    world.leader_says(1, 3, 1, answer);
    assert_eq!(renewals(&mut world), []);
}

#[test]
fn a_leased_run_carries_the_last_echo_of_its_own_session() {
    let leased = |job| v1::RunOrder { fence_after_ms: Some(60_000), ..run_order(job) };
    let mut world = vouched();
    knows(&mut world, 1000, Ok(ada()));
    world.leader(1, Down::Run(leased(1)));
    let run = the_run(&mut world);
    assert_eq!((run.fence_after_ms, run.h_ms), (Some(60_000), None), "nothing was echoed yet");
    beats_with(&mut world, 5_000);
    echo(&mut world, 1, 5_000);
    world.leader(1, Down::Run(leased(2)));
    assert_eq!(the_run(&mut world).h_ms, Some(5_000));
    world.leader(1, Down::Run(run_order(3)));
    assert_eq!(the_run(&mut world).h_ms, None, "it has no lease");
    world.breaks(1);
    let no = world.dials();
    world.joins(no);
    world.leader(no, Down::Run(leased(4)));
    assert_eq!(the_run(&mut world).h_ms, None, "the echo was another session's");
}
