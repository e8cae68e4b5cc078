//! A whole node: the agent with a real keeper, guard and jobs, against a controller played by hand.
//! This binary is its own keeper and guard (`launch` executes /proc/self/exe), so there is no test
//! harness in between.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

#[path = "../agent/leader.rs"]
#[allow(dead_code, reason = "the agent's tests use the rest of it")]
mod leader;

mod directories;

use leader::{FakeLeader, FakeSession};
use prost::Message as _;
use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::leader_message::Kind as Down;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use worker_agent::{AgentError, Config, Connector, keeper};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first() {
        Some(first) if keeper::is_command(first) => {
            // A copy under this name plays an older release.
            let own = std::env::current_exe().unwrap_or_default();
            let older = own.file_name().is_some_and(|name| name == OLDER);
            let version = if older { "0.0.1" } else { env!("CARGO_PKG_VERSION") };
            let code = keeper::main(args.into_iter(), version);
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
        Some(first) if first == "launch" => {
            keeper::launch(Path::new(&args[1])).unwrap();
            ExitCode::SUCCESS
        }
        Some(first) if first == "scenarios" => {
            tokio::runtime::Runtime::new().unwrap().block_on(scenarios());
            ExitCode::SUCCESS
        }
        Some(first) if first == "--list" => ExitCode::SUCCESS,
        _ => {
            // In a process of its own, for keepers inherit the environment.
            let mut command = Command::new(std::env::current_exe().unwrap());
            let status = command
                .arg("scenarios")
                .args(&args)
                .env(keeper::IDLE_SWITCH, "300")
                .status()
                .unwrap();
            if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

/// File name of a program whose keeper is of an older release.
const OLDER: &str = "docket-0.0.1";

async fn scenarios() {
    scenario(
        "an_older_keeper_goes_on_as_the_program_of_a_newer_agent",
        an_older_keeper_goes_on_as_the_program_of_a_newer_agent(),
    )
    .await;
    scenario(
        "a_job_runs_and_its_end_and_output_come_up",
        a_job_runs_and_its_end_and_output_come_up(),
    )
    .await;
    scenario(
        "a_job_outlives_its_agent_and_keeps_its_exit_code",
        a_job_outlives_its_agent_and_keeps_its_exit_code(),
    )
    .await;
    scenario(
        "a_user_that_the_node_does_not_know_is_a_failed_setuid",
        a_user_that_the_node_does_not_know_is_a_failed_setuid(),
    )
    .await;
    scenario(
        "two_agents_of_one_directory_are_told_and_do_not_fight",
        two_agents_of_one_directory_are_told_and_do_not_fight(),
    )
    .await;
    directories::scenarios().await;
}

/// Runs it unless the command line names another one.
async fn scenario(name: &str, run: impl Future<Output = ()>) {
    let mut only = std::env::args().skip(2).filter(|arg| !arg.starts_with('-'));
    if only.next().is_none_or(|only| name.contains(&only)) {
        run.await;
        println!("test {name} ... ok");
    }
}

async fn a_job_runs_and_its_end_and_output_come_up() {
    let mut node = Node::start().await;
    let mut session = node.leader.joined().await;
    session.says(Down::Run(shell(1, "echo out $DOCKET_JOB_ID; echo err >&2; exit 7"))).await;
    let finish = finish_of(&mut session, 1).await;
    assert_eq!(finish.end, Some(v1::finish_fact::End::WaitStatus(7 << 8)));
    assert_eq!((finish.stdout_bytes, finish.stderr_bytes), (6, 4));
    assert_eq!(node.output(&mut session, 1, false).await, b"out 1\n");
    assert_eq!(node.output(&mut session, 1, true).await, b"err\n");
    node.stops().await;
}

async fn a_job_outlives_its_agent_and_keeps_its_exit_code() {
    let mut node = Node::start().await;
    let mut session = node.leader.joined().await;
    let gate = node.dir.path().join("gate");
    let text = format!("while ! test -e {}; do sleep 0.02; done; exit 42", gate.display());
    session.says(Down::Run(shell(2, &text))).await;
    let start = start_of(&mut session, 2).await;
    drop(session);
    node.restarts().await;
    let mut session = node.leader.joined().await;
    let item = manifest(&mut session).await.remove(0);
    assert_eq!((item.pid, item.phase()), (start.pid, v1::Phase::Running));
    std::fs::write(&gate, "").unwrap();
    let finish = finish_of(&mut session, 2).await;
    assert_eq!(finish.end, Some(v1::finish_fact::End::WaitStatus(42 << 8)));
    node.stops().await;
}

async fn an_older_keeper_goes_on_as_the_program_of_a_newer_agent() {
    let dir = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    let older = dir.path().join(OLDER);
    std::fs::copy(&own, &older).unwrap();
    let launched = Command::new(&older).arg("launch").arg(dir.path()).status().unwrap();
    assert!(launched.success());
    let mut client = keeper::Client::connect(dir.path()).unwrap();
    client.send(v1::keeper_request::Kind::Hello(v1::KeeperHello::default())).unwrap();
    let event = client.receive(Duration::from_secs(10)).unwrap();
    let Some(v1::keeper_event::Kind::Welcome(old)) = event else { panic!("{event:?}") };
    assert_eq!(old.version, "0.0.1");
    // The agent comes, and becomes the one client.
    let mut node = Node::in_dir(dir).await;
    let exe = format!("/proc/{}/exe", old.pid);
    let runs_newer = async {
        while std::fs::read_link(&exe).unwrap() != own {
            tokio::task::yield_now().await;
        }
    };
    within(runs_newer).await;
    let mut session = node.leader.lasting().await;
    session.says(Down::Run(shell(4, "exit 9"))).await;
    let finish = finish_of(&mut session, 4).await;
    assert_eq!(finish.end, Some(v1::finish_fact::End::WaitStatus(9 << 8)));
    node.stops().await;
}

async fn a_user_that_the_node_does_not_know_is_a_failed_setuid() {
    let mut node = Node::start().await;
    let mut session = node.leader.joined().await;
    let order = v1::RunOrder { uid: 4_000_000_123, user: "nobody-here".into(), ..shell(3, "true") };
    session.says(Down::Run(order)).await;
    let finish = finish_of(&mut session, 3).await;
    let Some(v1::finish_fact::End::StartFailure(why)) = finish.end else { panic!("{finish:?}") };
    assert_eq!((why.step.as_str(), why.node_fault), ("setuid", false), "{why:?}");
    assert!(why.message.contains("4000000123"), "{why:?}");
    node.stops().await;
}

async fn two_agents_of_one_directory_are_told_and_do_not_fight() {
    let mut node = Node::start().await;
    let mut session = node.leader.joined().await;
    // The lock keeps a second one off, unless somebody removes it.
    let stop = CancellationToken::new();
    let refused = within(spawn(node.dir.path(), &node.leader, &stop)).await.unwrap();
    assert!(matches!(refused, Err(AgentError::InUse { .. })), "{refused:?}");
    std::fs::remove_file(node.dir.path().join("agent.lock")).unwrap();
    let nowhere = Connector::Tcp(vec!["127.0.0.1:1".into()]);
    let second = tokio::spawn(worker_agent::run(config(node.dir.path()), nowhere, stop.clone()));
    let mut sessions = 1;
    let told = async {
        loop {
            match session.hears_besides_beats_with("another agent uses this keeper: stop one").await
            {
                Some(Up::Goodbye(_)) => {
                    session = node.leader.joined().await;
                    sessions += 1;
                }
                Some(_) => {}
                None => return,
            }
        }
    };
    within(told).await;
    assert!(sessions < 6, "{sessions} sessions: they take the keeper from each other");
    stop.cancel();
    within(second).await.unwrap().unwrap();
    // With the keeper to itself it works on, in whichever session.
    let mut answers = 0;
    while answers < 5 {
        match within(session.hears()).await {
            Up::Heartbeat(beat) if beat.keeper_answers => answers += 1,
            Up::Heartbeat(_) => answers = 0,
            Up::Goodbye(_) => session = node.leader.joined().await,
            _ => {}
        }
    }
    session.says(Down::Run(shell(4, "exit 3"))).await;
    let finish = finish_of(&mut session, 4).await;
    assert_eq!(finish.end, Some(v1::finish_fact::End::WaitStatus(3 << 8)));
    node.stops().await;
}

/// A node whose controller is in the test's hands.
struct Node {
    dir: tempfile::TempDir,
    leader: FakeLeader,
    stop: CancellationToken,
    agent: JoinHandle<Result<(), AgentError>>,
    requests: u64,
}

impl Node {
    async fn start() -> Self {
        Node::in_dir(tempfile::tempdir().unwrap()).await
    }

    async fn in_dir(dir: tempfile::TempDir) -> Self {
        let leader = FakeLeader::listen().await;
        let stop = CancellationToken::new();
        let agent = spawn(dir.path(), &leader, &stop);
        Node { dir, leader, stop, agent, requests: 0 }
    }

    async fn stops(self) {
        self.stop.cancel();
        within(self.agent).await.unwrap().unwrap();
    }

    async fn restarts(&mut self) {
        self.stop.cancel();
        within(&mut self.agent).await.unwrap().unwrap();
        self.stop = CancellationToken::new();
        self.agent = spawn(self.dir.path(), &self.leader, &self.stop);
    }

    async fn output(&mut self, session: &mut FakeSession, job: u64, stderr: bool) -> Vec<u8> {
        self.requests += 1;
        session.says(Down::OpenBulk(v1::OpenBulk { request: self.requests })).await;
        let (mut relay, _) = self.leader.relay().await;
        let read = v1::ReadOutput { attempt: attempt(job), stderr, ..v1::ReadOutput::default() };
        relay.says(v1::bulk_down::Kind::Read(read)).await;
        let mut bytes = Vec::new();
        loop {
            match relay.hears().await {
                v1::bulk_up::Kind::Piece(piece) => bytes.extend_from_slice(&piece.data),
                v1::bulk_up::Kind::End(_) => return bytes,
                other => panic!("{other:?}"),
            }
        }
    }
}

fn spawn(
    dir: &Path,
    leader: &FakeLeader,
    stop: &CancellationToken,
) -> JoinHandle<Result<(), AgentError>> {
    let connector = Connector::Tcp(vec![leader.address()]);
    tokio::spawn(worker_agent::run(config(dir), connector, stop.clone()))
}

fn config(dir: &Path) -> Config {
    Config {
        data: dir.to_owned(),
        name: "n1".into(),
        heartbeat_interval: Duration::from_millis(200),
        allow_root_jobs: true,
        ..Config::default()
    }
}

fn attempt(job: u64) -> Option<v1::AttemptRef> {
    Some(v1::AttemptRef { job, task: None, attempt: 1 })
}

/// An order to run a line of shell as whoever runs the tests.
fn shell(job: u64, text: &str) -> v1::RunOrder {
    let argv = ["/bin/sh", "-c", text].map(|word| word.as_bytes().to_vec()).to_vec();
    let spec = v1::JobSpec { name: "sh".into(), argv, dir: b"/".to_vec(), ..Default::default() };
    let uid = rustix::process::geteuid().as_raw();
    v1::RunOrder {
        order_id: job,
        attempt: attempt(job),
        token: Some(v1::Token { generation: 1, attempt: 1 }),
        spec: spec.encode_to_vec(),
        user: if uid == 0 { "root" } else { "tester" }.into(),
        uid,
        cpus: 1,
        ..v1::RunOrder::default()
    }
}

/// The first fact about that job that `pick` wants; everything that comes is acknowledged.
async fn fact_of<T>(session: &mut FakeSession, pick: impl Fn(v1::fact::Kind) -> Option<T>) -> T {
    loop {
        let Up::Facts(facts) = session.hears_besides_beats().await else { continue };
        let v1::Facts { journal_id, to, facts, .. } = facts;
        session.says(Down::Ack(v1::Ack { journal_id, to })).await;
        if let Some(found) = facts.into_iter().find_map(|fact| pick(fact.kind?)) {
            return found;
        }
    }
}

async fn finish_of(session: &mut FakeSession, job: u64) -> v1::FinishFact {
    let pick = |kind| match kind {
        v1::fact::Kind::Finish(finish) if finish.attempt == attempt(job) => Some(finish),
        _ => None,
    };
    fact_of(session, pick).await
}

async fn start_of(session: &mut FakeSession, job: u64) -> v1::StartFact {
    let pick = |kind| match kind {
        v1::fact::Kind::Start(start) if start.attempt == attempt(job) => Some(start),
        _ => None,
    };
    fact_of(session, pick).await
}

async fn manifest(session: &mut FakeSession) -> Vec<v1::ManifestItem> {
    loop {
        if let Up::Manifest(page) = session.hears_besides_beats().await {
            assert!(page.last);
            return page.items;
        }
    }
}

/// Nothing in these tests takes longer than this, even on a busy machine.
async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), what).await.expect("it did not happen in 10 s")
}
