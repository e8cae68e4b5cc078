//! Joins, the way of an order and its facts, reconnects and stops.

use crate::keeper::JOURNAL;
use crate::{Node, config, spawn, within};
use prost::Message as _;
use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_event::Kind as KeeperSays;
use proto::v1::keeper_request::Kind as ToKeeper;
use proto::v1::leader_message::Kind as Down;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;
use worker_agent::{AgentError, Connector};

fn run_order() -> v1::RunOrder {
    let spec = v1::JobSpec { dir: b"/".to_vec(), ..v1::JobSpec::default() };
    let uid = rustix::process::geteuid().as_raw();
    v1::RunOrder {
        order_id: 9,
        attempt: Some(v1::AttemptRef { job: 3, task: None, attempt: 1 }),
        token: Some(v1::Token { generation: 1, attempt: 1 }),
        spec: spec.encode_to_vec(),
        uid,
        user: "whoever".into(),
        ..v1::RunOrder::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_go_down_and_facts_come_up() {
    let mut node = Node::start().await;
    node.keeper.welcome().await;
    let (mut session, join) = node.leader.session().await;
    assert_eq!((join.name.as_str(), join.incarnation, join.next_seq), ("n1", 1, 1));
    assert!(join.resources.as_ref().is_some_and(|r| r.cpus > 0 && r.limits == "rlimits"));
    assert!(join.address.starts_with("127.0.0.1:"), "{}", join.address);
    session.welcomes().await;
    node.keeper.shows_nothing().await;
    let page = session.hears_besides_beats().await;
    assert!(matches!(page, Up::Manifest(page) if page.last && page.items.is_empty()));

    session.says(Down::Run(run_order())).await;
    let ToKeeper::Run(run) = node.keeper.asked().await else { panic!("no run") };
    let file = node.runs().canonicalize().unwrap().join("3/0.1");
    assert_eq!(run.run_file, file.as_os_str().as_encoded_bytes());

    let facts = v1::Facts { journal_id: JOURNAL.to_vec(), from: 1, to: 2, facts: vec![] };
    node.keeper.tell(KeeperSays::Facts(facts.clone())).await;
    assert_eq!(session.hears_besides_beats().await, Up::Facts(facts));
    session.says(Down::Ack(v1::Ack { journal_id: JOURNAL.to_vec(), to: 2 })).await;
    assert_eq!(node.keeper.asked().await, ToKeeper::Ack(v1::KeeperAck { to: 2 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_says_goodbye_and_ends_as_soon_as_it_is_answered() {
    let mut node = Node::start().await;
    node.keeper.welcome().await;
    let mut session = node.leader.joined().await;
    let begun = Instant::now();
    node.stop.cancel();
    loop {
        if let Up::Goodbye(goodbye) = session.hears().await {
            assert_eq!(goodbye.kind(), v1::GoodbyeKind::Restart);
            break;
        }
    }
    session.says(Down::Goodbye(v1::GoodbyeAnswer {})).await;
    within(&mut node.agent).await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_within_two_seconds_even_without_an_answer() {
    let mut node = Node::start().await;
    node.keeper.welcome().await;
    let _deaf = node.leader.joined().await;
    let begun = Instant::now();
    node.stopped().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_with_nobody_there_ends_at_once() {
    let node = Node::start().await;
    drop(node.leader);
    node.stop.cancel();
    within(node.agent).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_incarnation_grows_over_restarts_and_the_identity_stays() {
    let mut node = Node::start().await;
    node.keeper.welcome().await;
    let (_session, first) = node.leader.session().await;
    node.stop.cancel();
    within(&mut node.agent).await.unwrap().unwrap();
    let stop = CancellationToken::new();
    node.agent = spawn(node.dir.path().to_owned(), &node.leader, &stop);
    node.keeper.welcome().await;
    let (_session, second) = node.leader.session().await;
    assert_eq!((first.incarnation, second.incarnation), (1, 2));
    assert_eq!(first.agent_id, second.agent_id);
    assert_ne!(first.process_id, second.process_id);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_on_a_directory_is_refused_by_name() {
    let node = Node::start().await;
    let stop = CancellationToken::new();
    while !node.dir.path().join("agent.state").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = within(spawn(node.dir.path().to_owned(), &node.leader, &stop)).await.unwrap();
    assert!(matches!(&error, Err(AgentError::InUse { .. })), "{error:?}");
    let mode = |name| std::fs::metadata(node.dir.path().join(name)).unwrap().permissions().mode();
    assert_eq!((mode("agent.state") & 0o777, mode("runs") & 0o777), (0o600, 0o700));
    node.stopped().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_given_up_keeps_its_socket_until_the_newer_join_is_answered() {
    let mut node = Node::start().await;
    node.keeper.welcome().await;
    let (up, closed) = node.leader.joined().await.ends_stream();
    let (mut newer, _) = node.leader.session().await;
    // What it did with the older one when it joined anew, it did before it answers.
    for nonce in 1..=3 {
        newer.says(Down::Ping(v1::Ping { nonce })).await;
        assert_eq!(newer.hears_besides_beats().await, Up::Pong(v1::Pong { nonce }));
    }
    assert!(!closed.load(Ordering::SeqCst), "its end would look like the agent's death");
    newer.welcomes().await;
    let released = async {
        while !closed.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(released).await;
    drop(up);
    node.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_leader_is_left_with_a_goodbye_and_an_open_socket() {
    let mut node = Node::start().await;
    node.keeper.welcome().await;
    let mut silent = node.leader.joined().await;
    let (mut newer, join) = node.leader.session().await;
    assert_eq!(join.incarnation, 2);
    let reconnect = async {
        loop {
            if let Up::Goodbye(goodbye) = silent.hears().await {
                return goodbye.kind();
            }
        }
    };
    assert_eq!(within(reconnect).await, v1::GoodbyeKind::Reconnect);
    assert!(!silent.closed.load(Ordering::SeqCst));
    newer.welcomes().await;
    node.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_comes_back_is_found_and_a_new_session_made() {
    let mut node = Node::start().await;
    node.keeper.welcome().await;
    let _first = node.leader.joined().await;
    node.keeper.hang_up();
    node.keeper.welcome().await;
    let (_second, join) = node.leader.session().await;
    assert_eq!(join.incarnation, 2);
    node.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_keeper_serves_another_one_comes_back_ever_later_and_says_why() {
    let mut node = Node::start().await;
    node.keeper.welcome_as(7).await;
    let mut session = node.leader.joined().await;
    node.keeper.hang_up();
    // It may have been anything: the second time the same keeper is there at once.
    node.keeper.welcome_as(7).await;
    let told = async {
        loop {
            match session.hears().await {
                Up::Heartbeat(beat) if beat.problem.contains("another agent uses") => {
                    return beat.problem;
                }
                Up::Goodbye(_) => {
                    session = node.leader.joined().await;
                    node.keeper.shows_nothing().await;
                }
                _ => {}
            }
        }
    };
    let said = within(told).await;
    assert!(said.contains("another agent uses this keeper: stop one"), "{said}");
    assert!(said.contains("(pid 7)") && said.contains("agent.lock"), "{said}");
    for seconds in [1, 2] {
        let begun = Instant::now();
        node.keeper.hang_up();
        node.keeper.welcome_as(7).await;
        assert!(begun.elapsed() >= Duration::from_secs(seconds), "{:?}", begun.elapsed());
    }
    // Another keeper is another matter.
    node.keeper.hang_up();
    node.keeper.welcome_as(8).await;
    let begun = Instant::now();
    node.keeper.hang_up();
    node.keeper.welcome_as(9).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    node.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fatal_refusal_ends_the_agent_with_the_controllers_words() {
    let mut node = Node::start().await;
    node.keeper.welcome().await;
    let (mut session, _) = node.leader.session().await;
    let reason = "this directory is a copy".to_owned();
    session.says(Down::Refused(v1::Refused { reason, fatal: true, leader: String::new() })).await;
    let error = within(node.agent).await.unwrap().unwrap_err().to_string();
    assert_eq!(error, "the controller refuses this agent: this directory is a copy");
}

#[tokio::test(flavor = "multi_thread")]
async fn within_one_process_the_agent_dials_by_memory() {
    let dir = tempfile::tempdir().unwrap();
    let _keeper = crate::keeper::FakeKeeper::listen(dir.path());
    let (streams, mut accepted) = tokio::sync::mpsc::channel::<DuplexStream>(1);
    let stop = CancellationToken::new();
    let connector = Connector::Memory(streams);
    let agent =
        tokio::spawn(worker_agent::run(config(dir.path().to_owned()), connector, stop.clone()));
    let mut stream = within(accepted.recv()).await.unwrap();
    let mut preface = [0; 14];
    within(tokio::io::AsyncReadExt::read_exact(&mut stream, &mut preface)).await.unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0");
    stop.cancel();
    within(agent).await.unwrap().unwrap();
}
