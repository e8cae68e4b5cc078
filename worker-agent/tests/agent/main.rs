//! The whole agent against a controller and a keeper played by hand, over real sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

mod keeper;
#[allow(dead_code, reason = "the tests of whole nodes use the rest of it")]
mod leader;
mod outputs;
mod sessions;

use keeper::FakeKeeper;
use leader::FakeLeader;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use worker_agent::{AgentError, Config, Connector};

/// A node: one agent in a directory of its own, its keeper and its controller in the test's hands.
struct Node {
    dir: tempfile::TempDir,
    stop: CancellationToken,
    agent: JoinHandle<Result<(), AgentError>>,
    leader: FakeLeader,
    keeper: FakeKeeper,
}

impl Node {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keeper = FakeKeeper::listen(dir.path());
        let leader = FakeLeader::listen().await;
        let stop = CancellationToken::new();
        let agent = spawn(dir.path().to_owned(), &leader, &stop);
        Node { dir, stop, agent, leader, keeper }
    }

    fn runs(&self) -> PathBuf {
        self.dir.path().join("runs")
    }

    async fn stopped(self) -> Result<(), AgentError> {
        self.stop.cancel();
        within(self.agent).await.unwrap()
    }
}

fn config(data: PathBuf) -> Config {
    Config {
        data,
        name: "n1".into(),
        heartbeat_interval: Duration::from_millis(200),
        ..Config::default()
    }
}

fn spawn(
    data: PathBuf,
    leader: &FakeLeader,
    stop: &CancellationToken,
) -> JoinHandle<Result<(), AgentError>> {
    let connector = Connector::Tcp(vec![leader.address()]);
    tokio::spawn(worker_agent::run(config(data), connector, stop.clone()))
}

/// Nothing in these tests takes longer than this, even on a busy machine.
async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), what).await.expect("it did not happen in 10 s")
}
