//! Starting and stopping one controller: the order in which its parts come up, and go down.

use crate::activity::Activity;
use crate::config::{Config, ConfigError};
use crate::directory::{Directory, DirectoryError, Identity, Known};
use crate::failure::Failure;
use crate::http::{self, Pages};
use crate::metrics::Live;
use crate::progress::{Applied, Progress, Replay, Unit};
use crate::proposer::{self, ProposerHandle, ProposerParts, Queues};
use crate::pump::{self, PumpHandle, PumpParts, SnapshotDue};
use crate::raft::{
    Archive, LogRoom, LogStore, Node, NodeOptions, NodeStartError, SnapshotMeta, Snapshots,
    SnapshotsError, StoreError,
};
use crate::rpc::{self, About, Gate, Shared, ShutdownRequest, Sources};
use docket_core::leader::LeaderConfig;
use docket_core::ledger::Ledger;
use proto::v1;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Questions of the leader's duties that may wait for raft: one is asked, and the newest one is the
/// answer to all.
const CONFIRMS_MAX: usize = 2;

/// How long raft may take to find out whether this node leads: several elections.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);

/// A lone voter leads within milliseconds; with others an election or two may be needed.
const SERVING_TIMEOUT: Duration = Duration::from_secs(30);

/// Open requests get this long to end when the controller stops; then they are cut.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a controller did not start. The messages say what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory is in use or damaged.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The log was refused or could not be read.
    #[error("cannot open the log: {0}")]
    Log(#[from] wal::OpenError),
    /// The log holds raft state that this program cannot read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This directory has served before and its log is gone.
    #[error(
        "the log under {dir} is gone, but this directory has served before: restore the log or a \
         backup; to begin anew, name an empty data directory"
    )]
    LogLost {
        /// The data directory.
        dir: String,
    },
    /// No snapshot can be read.
    #[error("cannot start from a snapshot: {0}")]
    Snapshot(#[from] SnapshotsError),
    /// Raft did not start.
    #[error(transparent)]
    Node(#[from] NodeStartError),
    /// The operating system refused a thread, a listener, or a task.
    #[error("cannot start the controller: {0}")]
    System(#[from] io::Error),
    /// It could not lead, or another part ended first.
    #[error("the controller does not serve: {why}")]
    NotServing {
        /// What happened.
        why: String,
    },
}

/// No snapshot can be asked for any more.
#[derive(Debug, thiserror::Error)]
#[error("no snapshot can be taken: {why}")]
pub struct SnapshotRefused {
    /// As raft says.
    why: String,
}

/// A controller that serves. Dropping it without [`Controller::stop`] leaves its log unsealed,
/// which the next start repairs.
pub struct Controller {
    node: Node,
    pump: PumpHandle,
    pump_thread: std::thread::JoinHandle<()>,
    server: JoinHandle<()>,
    tasks: TaskTracker,
    /// Ends the services, then everything else.
    stop_serving: CancellationToken,
    stop_all: CancellationToken,
    failure: Failure,
    activity: Activity,
    shutdown: mpsc::Receiver<ShutdownRequest>,
    snapshots: Weak<Snapshots>,
    _directory: Directory,
}

/// The right to be the controller of a data directory: nobody else is it while this lives.
#[derive(Debug)]
pub struct Claim(Directory);

/// Takes a data directory for a controller that starts later: what others would see of it, such as
/// its socket, is put in place behind this only.
///
/// # Errors
/// Who has it, or what the operating system refuses.
pub fn claim(data: &Path) -> Result<Claim, StartError> {
    Ok(Claim(Directory::open(data)?))
}

/// Starts a controller and resolves once it serves. An empty data directory bootstraps itself.
pub async fn start(config: Config, sources: Sources) -> Result<Controller, StartError> {
    config.check()?;
    let data = config.data.clone();
    let claimed = tokio::task::spawn_blocking(move || claim(&data)).await;
    start_claimed(config, claimed.map_err(io::Error::other)??, sources).await
}

/// The same on a directory that is claimed already; `config.data` names it.
pub async fn start_claimed(
    config: Config,
    claim: Claim,
    sources: Sources,
) -> Result<Controller, StartError> {
    config.check()?;
    let opened = {
        let (config, failure) = (config.clone(), Failure::default());
        tokio::task::spawn_blocking(move || open(&config, claim, failure))
            .await
            .map_err(io::Error::other)??
    };
    let Opened { directory, identity, ledger, meta, snapshots, store, replay, failure } = opened;
    let (tasks, stop_all) = (TaskTracker::new(), CancellationToken::new());
    let queues = Queues::new();
    let snapshot_due = Arc::new(Notify::new());
    let leader = LeaderConfig::default();
    let snapshot = SnapshotDue {
        every_bytes: config.snapshot_every.bytes,
        every_commands: config.snapshot_every.commands,
        due: Arc::clone(&snapshot_due),
    };
    let own = queues.own.clone();
    let (confirms, rounds) = mpsc::channel(CONFIRMS_MAX);
    let metrics = Live::default();
    let parts = PumpParts {
        leader,
        proposer: own,
        confirms,
        failure: failure.clone(),
        snapshot,
        metrics: metrics.clone(),
        replay,
    };
    let applied = parts.replay.position();
    let (pump, pump_thread) = pump::start(ledger, parts)?;
    let options = node_options(&config, &identity);
    let held_snapshots = Arc::downgrade(&snapshots);
    let node = Node::start(options, store, pump.clone(), snapshots, meta).await;
    let node = node.map_err(|e| first_cause(&failure, e.into()))?;
    let role = node.follow(pump.clone(), snapshot_due, failure.clone(), &tasks, &stop_all);
    let parts = ProposerParts {
        node: node.clone(),
        pump: pump.clone(),
        role,
        configure: bootstrap(&config, &identity),
        data: config.data.display().to_string(),
        failure: failure.clone(),
    };
    let (proposer, serving) = proposer::start(queues, parts, &tasks, stop_all.clone());
    let pulse = failure.clone().guard_task("the pulse failed", tick(pump.clone(), leader.tick_ms));
    tasks.spawn(stop_all.clone().run_until_cancelled_owned(pulse));
    let asking = confirm(rounds, node.clone(), pump.clone());
    let asking = failure.clone().guard_task("asking raft failed", asking);
    tasks.spawn(stop_all.clone().run_until_cancelled_owned(asking));
    tasks.spawn(
        stop_all.clone().run_until_cancelled_owned(end_waiting(failure.clone(), stop_all.clone())),
    );
    until_serving(serving, &failure, goes_on(node.clone(), applied)).await?;
    warn_of_differences(&config, &pump).await;
    let snapshots = held_snapshots;
    let parts = Parts { node, pump, proposer, metrics, tasks, stop_all, failure, snapshots };
    serve(config, sources, parts, pump_thread, directory)
}

/// What opening the data directory gives.
struct Opened {
    directory: Directory,
    identity: Identity,
    ledger: Ledger,
    meta: SnapshotMeta,
    snapshots: Arc<Snapshots>,
    store: LogStore,
    replay: Replay,
    failure: Failure,
}

fn open(config: &Config, claim: Claim, failure: Failure) -> Result<Opened, StartError> {
    let Claim(directory) = claim;
    let (identity, known) = at_its_place(&directory)?;
    let mut progress = Progress::begin();
    let disk = wal::Disk::open(&directory.snapshots())?;
    let (snapshots, ledger, meta) = Snapshots::open(disk, &mut progress)?;
    let snapshots = Arc::new(snapshots);
    let owner = wal::Identity { cluster_id: identity.cluster_id, owner_id: identity.node_id };
    let disk = wal::Disk::open(&directory.wal())?;
    let (log, recovered) = open_log(disk, owner, &mut progress)?;
    tell(&recovered);
    if known == Known::Served && recovered.verdict == wal::Verdict::Fresh {
        return Err(StartError::LogLost { dir: config.data.display().to_string() });
    }
    directory.confirm()?;
    let archive = Archive { dir: directory.archive(), retention: config.history_retention };
    let failing = failure.clone();
    let store = LogStore::start(log, &recovered, Arc::clone(&snapshots), archive, failing)?;
    let replay = Replay::of(progress, store.committed());
    Ok(Opened { directory, identity, ledger, meta, snapshots, store, replay, failure })
}

fn open_log(
    disk: wal::Disk,
    owner: wal::Identity,
    progress: &mut Progress,
) -> Result<(wal::Log<wal::Disk>, wal::Recovered), wal::OpenError> {
    let mut began = false;
    wal::Log::open_seen(disk, owner, wal::Options::default(), &mut |seen| {
        if !std::mem::replace(&mut began, true) {
            progress.stage("reading the log", Unit::Bytes, seen.of);
        }
        progress.at(seen.bytes);
    })
}

/// The identity. A directory that is a copy may lack what was acknowledged since it was made: before
/// anything else is done with it, it gets a generation of its own.
fn at_its_place(directory: &Directory) -> Result<(Identity, Known), DirectoryError> {
    if let Some(generation) = directory.settle()? {
        tracing::warn!(
            dir = %directory.path().display(), generation,
            "this data directory is a COPY: it may lack what was acknowledged since it was made. \
             What waits is held: look, then `docket release`"
        );
    }
    directory.identity()
}

fn tell(recovered: &wal::Recovered) {
    if let wal::Verdict::TornTail { file, offset, bytes, reason } = &recovered.verdict {
        tracing::warn!(
            "the log ended in a torn write ({file} at {offset}: {reason}); {bytes} bytes that were \
             never acknowledged are gone"
        );
    }
    recovered.notes.iter().for_each(|note| tracing::warn!("log: {note}"));
}

fn node_options(config: &Config, identity: &Identity) -> NodeOptions {
    NodeOptions {
        id: identity.node_id,
        address: config.advertise.clone().unwrap_or_else(|| config.listen.clone()),
        heartbeat: config.raft_heartbeat,
        election_timeout: config.raft_election_timeout,
    }
}

fn bootstrap(config: &Config, identity: &Identity) -> v1::ConfigureCommand {
    v1::ConfigureCommand {
        by: None,
        request_id: String::new(),
        policy: Some(config.policy()),
        cluster_id: Some(identity.cluster_name()),
        generation: Some(identity.generation),
        before: None,
    }
}

/// When the process must end, nobody waits on: dropping the proposer answers "outcome unknown".
async fn end_waiting(failure: Failure, stop_all: CancellationToken) {
    failure.failed().await;
    stop_all.cancel();
}

/// The pulse of the leader's duties.
async fn tick(pump: PumpHandle, every_ms: u64) {
    let mut interval = tokio::time::interval(Duration::from_millis(every_ms));
    // After a stall one tick is as good as many.
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        if pump.tick().is_err() {
            return;
        }
    }
}

/// Answers the leader's duties whether this node still leads. A check that fails says nothing.
async fn confirm(mut rounds: mpsc::Receiver<u64>, node: Node, pump: PumpHandle) {
    while let Some(mut round) = rounds.recv().await {
        // What is asked from now on is asked after all of these.
        while let Ok(newer) = rounds.try_recv() {
            round = newer;
        }
        let asked = tokio::time::timeout(CONFIRM_TIMEOUT, node.linearizable()).await;
        if matches!(asked, Ok(Ok(()))) && pump.confirmed(round).await.is_err() {
            return;
        }
    }
}

/// What a start fails with: the reason for which the process must end, if there is one, for all else
/// only follows from it.
fn first_cause(failure: &Failure, error: StartError) -> StartError {
    failure.reason().map_or(error, |why| StartError::NotServing { why })
}

/// Waits for the first entry of a term, which is applied behind the whole log. `goes_on` says whether
/// the start is under way for another reason than an election: a start that gave up would only begin
/// again, and for ever so if it takes longer than that.
async fn until_serving(
    mut serving: watch::Receiver<Option<u64>>,
    failure: &Failure,
    mut goes_on: impl FnMut() -> bool,
) -> Result<(), StartError> {
    let why = loop {
        let led = tokio::time::timeout(SERVING_TIMEOUT, serving.wait_for(Option::is_some));
        tokio::select! {
            biased;
            why = failure.failed() => break why,
            led = led => match led {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => break "its proposer ended".to_owned(),
                Err(_) if goes_on() => {}
                Err(_) => break format!("it found no majority within {SERVING_TIMEOUT:?}"),
            },
        }
    };
    // The proposer may have ended for a reason that was told since this was last polled.
    Err(first_cause(failure, StartError::NotServing { why }))
}

/// Whether a start that does not serve yet goes on: it waits for room on the disk of its log, or it
/// has applied more of it since it was last asked.
fn goes_on(node: Node, applied: Applied) -> impl FnMut() -> bool {
    let mut seen = applied.position();
    move || {
        let before = std::mem::replace(&mut seen, applied.position());
        let waits = node.log_room() == LogRoom::Used;
        if waits {
            tracing::warn!("the start waits for room on the disk of the log");
        }
        waits || seen != before
    }
}

/// The ledger's values are in force; a file that says otherwise must not mislead its reader.
async fn warn_of_differences(config: &Config, pump: &PumpHandle) {
    let Ok(policy) = pump.read(|view| view.ledger.policy().clone()).await else { return };
    for (key, file, ledger) in config.differences(&policy) {
        tracing::warn!(
            "{key} is {ledger} in this cluster, not {file} as configured here: the cluster's value was \
             set when its data directory was made, and stays"
        );
    }
}

/// What runs already.
struct Parts {
    node: Node,
    pump: PumpHandle,
    proposer: ProposerHandle,
    metrics: Live,
    tasks: TaskTracker,
    stop_all: CancellationToken,
    failure: Failure,
    snapshots: Weak<Snapshots>,
}

fn serve(
    config: Config,
    mut sources: Sources,
    parts: Parts,
    pump_thread: std::thread::JoinHandle<()>,
    directory: Directory,
) -> Result<Controller, StartError> {
    let Parts { node, pump, proposer, metrics, tasks, stop_all, failure, snapshots } = parts;
    let gate = Gate::of_this_process(config.admins.clone());
    let (asked, shutdown) = mpsc::channel(1);
    let listen = sources.tcp.as_ref().map(std::net::TcpListener::local_addr).transpose()?;
    let http = sources.http.as_ref().map(std::net::TcpListener::local_addr).transpose()?;
    let uid = gate.own_uid();
    let about = About {
        listen: listen.map_or_else(String::new, |address| address.to_string()),
        http: http.map_or_else(String::new, |address| address.to_string()),
        embedded: config.embedded,
        user: rpc::user_name(uid)?.unwrap_or_else(|| uid.to_string()),
        uid,
        host: host_name(),
        since: Instant::now(),
        shutdown: asked,
        config,
    };
    let (stop_serving, activity) = (CancellationToken::new(), Activity::default());
    let shared = Shared {
        node: node.clone(),
        pump: pump.clone(),
        proposer,
        stop: stop_serving.clone(),
        activity: activity.clone(),
        about: Arc::new(about),
    };
    if let Some(listener) = sources.http.take() {
        let pages = Pages::new(shared.clone(), metrics);
        http::serve(pages, listener, gate.clone(), &tasks, stop_serving.clone())?;
    }
    let serving = rpc::serve(shared, sources, gate, tasks.clone(), stop_serving.clone());
    let server = tokio::spawn(services(serving, failure.clone(), stop_serving.clone()));
    let _directory = directory;
    Ok(Controller {
        node,
        pump,
        pump_thread,
        server,
        tasks,
        stop_serving,
        stop_all,
        failure,
        activity,
        shutdown,
        snapshots,
        _directory,
    })
}

/// The services until they are stopped. A controller that leads and cannot be asked must end.
async fn services(
    serving: impl Future<Output = io::Result<()>>,
    failure: Failure,
    stop: CancellationToken,
) {
    match failure.clone().guard_task("the services failed", serving).await {
        Some(Err(why)) => failure.fail(format!("the services have ended: {why}")),
        Some(Ok(())) if !stop.is_cancelled() => failure.fail("the services have ended unasked"),
        Some(Ok(())) | None => {}
    }
}

fn host_name() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

impl Controller {
    /// Resolves with the reason if the process must end: an fsync failed, or the ledger or raft
    /// cannot go on. Whoever waits for an outcome hears "outcome unknown" then.
    pub async fn failed(&self) -> String {
        self.failure.failed().await
    }

    /// The next request to end the embedding process (`docket down`).
    pub async fn shutdown_requested(&mut self) -> ShutdownRequest {
        match self.shutdown.recv().await {
            Some(request) => request,
            // The services have ended, so nobody can ask any more.
            None => std::future::pending().await,
        }
    }

    /// How long nobody has asked anything while no task was pending, running or unknown; zero
    /// while there is one. Decides `--idle-exit`.
    pub async fn idle(&self) -> Duration {
        match self.pump.read(|view| view.ledger.live()).await {
            Ok(0) => self.activity.quiet(),
            _ => Duration::ZERO,
        }
    }

    /// Asks for a snapshot now; it is written in the background. They come by themselves as
    /// `snapshot_every` says.
    pub async fn snapshot(&self) -> Result<(), SnapshotRefused> {
        self.node.snapshot().await.map_err(|e| SnapshotRefused { why: e.to_string() })
    }

    /// Stops in order: services, duties, raft, log, pump. Jobs are not touched.
    pub async fn stop(self) {
        self.stop_serving.cancel();
        let mut server = self.server;
        if tokio::time::timeout(DRAIN_TIMEOUT, &mut server).await.is_err() {
            tracing::warn!("requests were still open after {DRAIN_TIMEOUT:?}; cut");
            server.abort();
        }
        self.stop_all.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.node.stop().await;
        self.pump.stop().await;
        let joined = tokio::task::spawn_blocking(move || self.pump_thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the pump ended in a panic");
        }
        // A snapshot that is being written holds the directory's lock: who starts next must get it.
        let written = async {
            while self.snapshots.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, written).await.is_err() {
            tracing::warn!("a snapshot is still being written; it is left to its fate");
        }
    }
}

#[cfg(test)]
mod tests;
