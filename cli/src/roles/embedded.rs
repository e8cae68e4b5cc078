//! The life of an embedded node: controller and agent in one process, joined by streams in memory.

use super::RoleError;
use super::background::Report;
use super::ending::Ending;
use super::listen::Socket;
use crate::client::{Client, Patience, request_id};
use crate::say::{note, print};
use ::controller::{Claim, Controller, Sources};
use futures::FutureExt;
use proto::v1::{CancelRequest, ListNodesRequest, ListRequest, StatusRequest, Task};
use std::net::TcpListener;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use worker_agent::{AgentError, Connector};

/// Streams in memory that wait to be accepted: agent, its bulk streams, this process as a client.
const STREAMS_AHEAD: usize = 16;
/// Between two looks at what has no signal of its own.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Between two looks for idleness.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// An agent that did not join by then is told about; the node serves all the same.
const JOIN_MAX: Duration = Duration::from_secs(20);
/// An agent ends within 2 s of its stop; the whole stop must fit into 5 s.
const AGENT_STOP_MAX: Duration = Duration::from_millis(2300);
/// What is left of the 5 s for the controller.
const CONTROLLER_STOP_MAX: Duration = Duration::from_millis(2500);
/// `docket down --kill` waits so long for its jobs to end: their grace and the keeper's own.
const KILL_MAX: Duration = Duration::from_secs(60);
/// Most tasks in one page, and most ids in one request.
const PAGE: u32 = 10_000;

/// Everything a node is made of.
pub struct Node {
    /// The controller's section.
    pub controller: ::controller::Config,
    /// Its directory, taken before the socket was bound.
    pub claim: Claim,
    /// The agent's section.
    pub agent: worker_agent::Config,
    /// Its directory, taken before the socket was bound.
    pub agent_claim: worker_agent::Claim,
    /// The loopback port, unless it was taken.
    pub port: Option<TcpListener>,
    /// The port of the metrics, unless it was taken.
    pub http: Option<TcpListener>,
    /// The socket.
    pub socket: Socket,
    /// `--idle-exit`.
    pub idle_exit: Option<Duration>,
}

/// Why a node ends.
enum Why {
    Asked(String),
    Kill,
    Failed(RoleError),
}

/// Serves until something ends it, then stops in order. The socket's names go with it.
pub async fn serve(node: Node, report: Option<&Report>) -> Result<(), RoleError> {
    let names = node.socket.names();
    let served = start_and_stop(node, report).await;
    names.remove();
    served
}

async fn start_and_stop(node: Node, report: Option<&Report>) -> Result<(), RoleError> {
    let mut ending = Ending::watch()?;
    let (streams, memory) = mpsc::channel(STREAMS_AHEAD);
    let mut addresses = vec![node.socket.path.display().to_string()];
    addresses.extend(node.port.as_ref().map(|_| format!("http://{}", node.controller.listen)));
    addresses.extend(node.http.as_ref().map(|_| metrics_at(&node.controller.http)));
    let node_name = node.agent.node_name();
    let sources =
        Sources { tcp: node.port, http: node.http, unix: Some(node.socket.listener), memory };
    let mut controller = tokio::select! {
        started = ::controller::start_claimed(node.controller, node.claim, sources) => started?,
        signal = ending.next() => {
            tracing::info!("{signal} before it served: stopped");
            return Ok(());
        }
    };
    let stop = CancellationToken::new();
    let connector = Connector::Memory(streams.clone());
    let running = worker_agent::run_claimed(node.agent, node.agent_claim, connector, stop.clone());
    let mut agent = tokio::spawn(running);
    let client = Client::in_process(streams);
    let mut is_whole = true;
    let early = tokio::select! {
        joined = joined(&client, &node_name) => {
            if !joined {
                note("the agent has not joined yet: jobs wait; see the messages above");
            }
            is_whole = joined;
            None
        }
        signal = ending.next() => Some(Why::Asked(signal.to_owned())),
        ended = &mut agent => Some(Why::Failed(agent_end(ended))),
    };
    let why = match early {
        Some(why) => why,
        None => {
            say_up(&addresses, is_whole, report);
            until_end(&mut controller, &mut agent, &mut ending, node.idle_exit).await
        }
    };
    let result = match why {
        Why::Failed(error) => Err(error),
        Why::Asked(by) => {
            tracing::info!("{by}: stopping; jobs go on under the keeper");
            Ok(())
        }
        Why::Kill => {
            end_jobs(&client).await;
            Ok(())
        }
    };
    stop_in_order(controller, agent, &stop).await;
    result
}

/// Where the metrics are, in the line that says what is served.
pub fn metrics_at(http: &str) -> String {
    format!("metrics http://{http}/metrics")
}

/// The line that scripts wait for.
fn say_up(addresses: &[String], is_whole: bool, report: Option<&Report>) {
    let (places, pid) = (addresses.join(", "), std::process::id());
    let but = match (is_whole, report) {
        (false, Some(_)) => "; jobs wait, for its agent has not joined yet: see up.log there",
        _ => "",
    };
    let line = format!("docket is up: {places} (pid {pid}){but}\n");
    match report {
        Some(report) => report.up(&line),
        // If nobody reads it, the node serves all the same.
        None => drop(print(&line)),
    }
}

/// Waits until the controller leads and this node's agent is up; false: not in time.
async fn joined(client: &Client, name: &str) -> bool {
    let up = async {
        loop {
            let (mut cluster, mut same) = (client.cluster(), client.cluster());
            let leads = cluster.status(StatusRequest {}).await;
            let nodes = same.list_nodes(ListNodesRequest {}).await;
            if let (Ok(status), Ok(nodes)) = (leads, nodes) {
                let nodes = nodes.into_inner().nodes;
                let up = nodes.iter().any(|node| node.name == name && is_here(&node.state));
                if up && status.into_inner().leader != 0 {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(JOIN_MAX, up).await.is_ok()
}

async fn until_end(
    controller: &mut Controller,
    agent: &mut JoinHandle<Result<(), AgentError>>,
    ending: &mut Ending,
    idle_exit: Option<Duration>,
) -> Why {
    let mut idle_look = Instant::now() + IDLE_LOOK;
    loop {
        tokio::select! {
            signal = ending.next() => return Why::Asked(signal.to_owned()),
            request = controller.shutdown_requested() => {
                return if request.kill { Why::Kill } else { Why::Asked("docket down".to_owned()) };
            }
            ended = &mut *agent => return Why::Failed(agent_end(ended)),
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        if let Some(why) = controller.failed().now_or_never() {
            return Why::Failed(RoleError::Failed(why));
        }
        if let Some(limit) = idle_exit
            && Instant::now() >= idle_look
        {
            idle_look = Instant::now() + IDLE_LOOK;
            if controller.idle().await >= limit {
                return Why::Asked("idle".to_owned());
            }
        }
    }
}

/// An agent that ends by itself has a reason, and a node without one runs nothing.
fn agent_end(ended: Result<Result<(), AgentError>, tokio::task::JoinError>) -> RoleError {
    match ended {
        Ok(Err(error)) => error.into(),
        Ok(Ok(())) => RoleError::Failed("the agent ended".to_owned()),
        Err(panic) => RoleError::Failed(format!("the agent ended in a panic: {panic}")),
    }
}

/// First the agent, so that it can say that its jobs go on, then the controller.
async fn stop_in_order(
    controller: Controller,
    mut agent: JoinHandle<Result<(), AgentError>>,
    stop: &CancellationToken,
) {
    stop.cancel();
    if !agent.is_finished() && tokio::time::timeout(AGENT_STOP_MAX, &mut agent).await.is_err() {
        tracing::warn!("the agent did not stop in time");
        agent.abort();
    }
    if tokio::time::timeout(CONTROLLER_STOP_MAX, controller.stop()).await.is_err() {
        tracing::warn!(
            "the controller did not stop in time; its log is repaired at the next start"
        );
    }
}

/// `docket down --kill`: cancels what runs and waits for its end.
async fn end_jobs(client: &Client) {
    let mut client = client.clone();
    let ended = tokio::time::timeout(KILL_MAX, async {
        let live = held(&mut client).await;
        for part in live.chunks(PAGE as usize) {
            let request = CancelRequest {
                request_id: request_id(),
                jobs: part.to_vec(),
                ..CancelRequest::default()
            };
            let ask = async |client: &Client| client.jobs().cancel(request.clone()).await;
            if let Err(error) = client.ask(Patience::CHANGE, note, ask).await {
                note(&format!("jobs are not cancelled: {error}"));
            }
        }
        while !held(&mut client).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    if ended.await.is_err() {
        note("some jobs have not ended yet; their keeper goes on ending them");
    }
}

/// Jobs that a node holds: what is only queued stays queued.
async fn held(client: &mut Client) -> Vec<u64> {
    let mut found = Vec::new();
    let mut request =
        ListRequest { all_users: true, live_only: true, limit: PAGE, ..ListRequest::default() };
    let is_held = |task: &&Task| task.state != "PEND" || task.substate == "dispatched";
    loop {
        let ask = async |client: &Client| client.jobs().list(request.clone()).await;
        let Ok(answer) = client.ask(Patience::READ, note, ask).await else { return found };
        found.extend(answer.tasks.iter().filter(is_held).map(|task| task.job));
        request.after_job = answer.next_after_job;
        if answer.next_after_job == 0 {
            return found;
        }
    }
}

/// Whether a node of that state has joined, drained or not.
fn is_here(state: &str) -> bool {
    matches!(state, "up" | "drained")
}
