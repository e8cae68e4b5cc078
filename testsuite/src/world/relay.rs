//! A man in the middle of agent and controller who speaks their protocol: he records what passes,
//! and can hold it, delay it, say it twice, say it again much later, and keep answers to himself.
//!
//! Towards the controller he never ends a session by himself, as an agent does not: the end of a
//! socket would say that the agent is dead (design 3, RDHUP).

use crate::patience::pass_time;
use proto::v1::agents_client::AgentsClient;
use proto::v1::agents_server::{Agents, AgentsServer};
use proto::v1::{
    AgentMessage, BulkDown, BulkUp, Facts, LeaderMessage, agent_message, fact, leader_message,
};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Messages of one session on their way; more than an agent's window, so that only a rule delays.
const QUEUE_MAX: usize = 4096;

/// What happens to that which passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Everything passes at once.
    Open,
    /// Nothing passes, in neither direction, and nothing is lost: it waits.
    Silent,
    /// Every batch of facts passes twice.
    Twice,
    /// Every batch of facts waits for so long.
    Late(Duration),
    /// The first acknowledgement of each batch is lost, and the session with it.
    LosesFirstAnswers,
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the agent.
    Up,
    /// From the controller.
    Down,
}

/// The relay; it ends with its value.
pub struct Relay {
    address: String,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    controller: String,
    rule: watch::Sender<Rule>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    facts: Vec<Facts>,
    messages: [u64; 2],
    answers_lost: BTreeSet<(Vec<u8>, u64)>,
    /// The upper halves of all sessions: none ends before the relay does.
    sessions: Vec<mpsc::Sender<AgentMessage>>,
}

impl Relay {
    /// Starts one in front of the controller at that address.
    pub fn start(controller: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        listener.set_nonblocking(true).expect("a listener can be made non-blocking");
        let address = listener.local_addr().expect("it is bound").to_string();
        let shared = Arc::new(Shared {
            controller: format!("http://{controller}"),
            rule: watch::Sender::new(Rule::Open),
            seen: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let middle = Middle(Arc::clone(&shared));
        let thread = std::thread::spawn(move || {
            crate::client::runtime().block_on(serve(listener, middle, stopped));
        });
        Relay { address, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Where agents dial.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What happens from now on.
    pub fn set(&self, rule: Rule) {
        self.shared.rule.send_replace(rule);
    }

    /// Messages that came so far from that side.
    pub fn messages(&self, way: Way) -> u64 {
        self.shared.seen().messages[way as usize]
    }

    /// How often a finish of the job passed.
    pub fn finishes_of(&self, job: u64) -> usize {
        let seen = self.shared.seen();
        seen.facts.iter().flat_map(|batch| &batch.facts).filter(|fact| is_finish(fact, job)).count()
    }

    /// Acknowledgements that were lost.
    pub fn answers_lost(&self) -> usize {
        self.shared.seen().answers_lost.len()
    }

    /// Says all facts again that ever passed, in their order, on the newest session.
    pub fn say_again(&self) {
        let seen = self.shared.seen();
        let session = seen.sessions.last().expect("an agent has joined");
        for batch in seen.facts.clone() {
            let message = AgentMessage { kind: Some(agent_message::Kind::Facts(batch)) };
            session.blocking_send(message).expect("the session is open");
        }
    }
}

fn is_finish(fact: &proto::v1::Fact, job: u64) -> bool {
    match &fact.kind {
        Some(fact::Kind::Finish(finish)) => {
            finish.attempt.as_ref().is_some_and(|attempt| attempt.job == job)
        }
        _ => false,
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.shared.rule.send_replace(Rule::Open);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits while nothing may pass; gives the rule.
    async fn rule(&self) -> Rule {
        let mut rule = self.rule.subscribe();
        let open = rule.wait_for(|rule| *rule != Rule::Silent).await;
        open.map_or(Rule::Open, |rule| *rule)
    }
}

async fn serve(listener: TcpListener, middle: Middle, stopped: oneshot::Receiver<()>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime is here");
    let incoming = TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(AgentsServer::new(middle).max_decoding_message_size(64 << 20))
        .serve_with_incoming(incoming);
    // Sessions never end by themselves: the relay just goes.
    tokio::select! {
        served = server => served.expect("the relay serves"),
        _ = stopped => {}
    }
}

struct Middle(Arc<Shared>);

type Answers<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Agents for Middle {
    type SessionStream = Answers<LeaderMessage>;
    type BulkStream = Answers<BulkDown>;

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let connected = AgentsClient::connect(self.0.controller.clone()).await;
        let client = connected.map_err(|e| Status::unavailable(e.to_string()))?;
        let (to_controller, upward) = mpsc::channel(QUEUE_MAX);
        let (to_agent, downward) = mpsc::channel(QUEUE_MAX);
        self.0.seen().sessions.push(to_controller.clone());
        tokio::spawn(carry_up(Arc::clone(&self.0), request.into_inner(), to_controller));
        tokio::spawn(carry_down(Arc::clone(&self.0), client, upward, to_agent));
        Ok(Response::new(Box::pin(ReceiverStream::new(downward))))
    }

    async fn bulk(
        &self,
        _request: Request<Streaming<BulkUp>>,
    ) -> Result<Response<Self::BulkStream>, Status> {
        Err(Status::unimplemented("output does not pass here"))
    }
}

async fn carry_up(
    shared: Arc<Shared>,
    mut from: Streaming<AgentMessage>,
    to: mpsc::Sender<AgentMessage>,
) {
    while let Ok(Some(message)) = from.message().await {
        let rule = shared.rule().await;
        shared.seen().messages[Way::Up as usize] += 1;
        if let Some(agent_message::Kind::Facts(batch)) = &message.kind {
            shared.seen().facts.push(batch.clone());
            match rule {
                Rule::Late(span) => pass_time(span).await,
                Rule::Twice if to.send(message.clone()).await.is_err() => return,
                _ => {}
            }
        }
        if to.send(message).await.is_err() {
            return;
        }
    }
}

async fn carry_down(
    shared: Arc<Shared>,
    mut client: AgentsClient<tonic::transport::Channel>,
    upward: mpsc::Receiver<AgentMessage>,
    to: mpsc::Sender<Result<LeaderMessage, Status>>,
) {
    // The controller may answer the call only once it has read the join.
    let mut from = match client.session(ReceiverStream::new(upward)).await {
        Ok(response) => response.into_inner(),
        Err(status) => return drop(to.send(Err(status)).await),
    };
    while let Ok(Some(message)) = from.message().await {
        let rule = shared.rule().await;
        shared.seen().messages[Way::Down as usize] += 1;
        if rule == Rule::LosesFirstAnswers && shared.is_first_answer(&message) {
            break;
        }
        if to.send(Ok(message)).await.is_err() {
            break;
        }
    }
    drop(to);
    // For the controller the agent is still there.
    while let Ok(Some(_)) = from.message().await {}
}

impl Shared {
    fn is_first_answer(&self, message: &LeaderMessage) -> bool {
        match &message.kind {
            Some(leader_message::Kind::Ack(ack)) => {
                self.seen().answers_lost.insert((ack.journal_id.clone(), ack.to))
            }
            _ => false,
        }
    }
}
