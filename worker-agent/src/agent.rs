//! The agent's loop: wait for one thing, one step of the core, carry its actions out in order. All
//! decisions are the core's; here are sockets, files and the clock.

use crate::claim::{Claim, claim};
use crate::config::{Config, ConfigError};
use crate::home::Home;
use crate::inventory;
use crate::keeper_client::KeeperLink;
use crate::output::{Place, Relays};
use crate::passwd;
use crate::retention::{self, Limits};
use crate::session::Sessions;
use crate::state_file::{StateFile, StateFileError};
use crate::wire::Connector;
use proto::AttemptId;
use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use worker_agent_core::{Action, AgentCore, CoreConfig, End, Event, NoUser, Saved, User};

/// The core wants to step at least this often, so that a stall of this process is told from silence
/// of the peer.
const TICK: Duration = Duration::from_millis(500);

/// Why an agent could not start or had to end.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory.
    #[error("cannot use the data directory {path}: {source}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another agent has it.
    #[error(
        "another agent ({holder}) runs on {path} already: stop it, or give this one a data directory of \
         its own"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Its pid, in words.
        holder: String,
    },
    /// Another agent uses it too, for somebody removed the lock.
    #[error(
        "another agent (pid {pid}) uses the data directory {path} too, and the controller takes only \
         one: stop one of them, and leave agent.lock there, which keeps a second one off"
    )]
    Shared {
        /// The directory.
        path: PathBuf,
        /// The other one's pid.
        pid: u32,
    },
    /// The state file.
    #[error(transparent)]
    State(#[from] StateFileError),
    /// No random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    /// The controller will never take this agent as it is.
    #[error("the controller refuses this agent: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
}

/// Runs the agent of one data directory until `stop` is cancelled (it then ends within 2 s; jobs
/// live on under the keeper) or the controller refuses it for good.
///
/// # Errors
/// What keeps it from starting, or the refusal. An unreachable controller or keeper is no error: it
/// is tried again for ever.
pub async fn run(
    config: Config,
    connector: Connector,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    config.check()?;
    let claim = claim(&config.data)?;
    run_claimed(config, claim, connector, stop).await
}

/// The same on a directory that was taken before.
///
/// # Errors
/// As of [`run`].
pub async fn run_claimed(
    config: Config,
    claim: Claim,
    connector: Connector,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let mut agent = Agent::new(&config, claim, connector, stop)?;
    let end = loop {
        let event = agent.next_event().await;
        if let Some(end) = agent.step(event).await {
            break end;
        }
    };
    agent.relays.shutdown().await;
    match end {
        End::Stopped => Ok(()),
        End::Refused { reason } => Err(match agent.claim.shared_with() {
            // Whatever it was refused for, that comes first.
            Some(pid) => AgentError::Shared { path: agent.claim.data().to_owned(), pid },
            None => AgentError::Refused { reason },
        }),
    }
}

struct Agent {
    core: AgentCore,
    started: Instant,
    state_file: StateFile,
    keeper: KeeperLink,
    sessions: Sessions,
    relays: Relays,
    lookups: JoinSet<(u32, Result<User, NoUser>)>,
    sweeps: JoinSet<()>,
    /// Looks at where the data directory is, one at a time: its file system may hang.
    looks: JoinSet<Option<String>>,
    home: Arc<Home>,
    limits: Limits,
    cpus: u32,
    /// Events that actions caused at once.
    ready: VecDeque<Event>,
    stop: CancellationToken,
    stopping: bool,
    claim: Claim,
}

impl Agent {
    fn new(
        config: &Config,
        claim: Claim,
        connector: Connector,
        stop: CancellationToken,
    ) -> Result<Self, AgentError> {
        config.check()?;
        let unusable = |source| AgentError::Directory { path: claim.data().to_owned(), source };
        let home = Arc::new(Home::open(claim.data()).map_err(unusable)?);
        let state_file = StateFile::new(Arc::clone(&home));
        let saved = match state_file.load()? {
            Some(saved) => saved,
            None => first_start(&state_file)?,
        };
        let resources = inventory::resources(config);
        let cpus = resources.cpus;
        let place = Place { home: Arc::clone(&home), agent_id: saved.agent_id.clone() };
        let core_config = CoreConfig {
            name: config.node_name(),
            process_id: random::<16>()?.to_vec(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: own_program().unwrap_or_default().into_os_string().into_vec(),
            resources,
            heartbeat_interval_ms: ms(config.heartbeat_interval),
            kill_grace_ms: ms(config.kill_grace),
            output_max_bytes: config.output_max,
            runs_dir: claim.runs().as_os_str().as_bytes().to_vec(),
            own_uid: rustix::process::geteuid().as_raw(),
            own_gid: rustix::process::getegid().as_raw(),
            allow_root_jobs: config.allow_root_jobs,
            seed: u64::from_le_bytes(random::<8>()?),
        };
        Ok(Agent {
            core: AgentCore::new(core_config, saved),
            started: Instant::now(),
            state_file,
            keeper: KeeperLink::new(Arc::clone(&home)),
            sessions: Sessions::new(connector),
            relays: Relays::new(place),
            lookups: JoinSet::new(),
            sweeps: JoinSet::new(),
            looks: JoinSet::new(),
            home,
            limits: Limits {
                keep: config.run_retention,
                space: config.run_space,
                files: config.run_files,
            },
            cpus,
            ready: VecDeque::from([Event::Tick { load_permille: 0 }]),
            stop,
            stopping: false,
            claim,
        })
    }

    fn now_ms(&self) -> u64 {
        ms(self.started.elapsed())
    }

    async fn next_event(&mut self) -> Event {
        if let Some(event) = self.ready.pop_front() {
            return event;
        }
        let tick = Instant::now() + TICK;
        let due = self.core.next_due_ms().map(Duration::from_millis);
        let wake =
            due.and_then(|due| self.started.checked_add(due)).map_or(tick, |at| at.min(tick));
        tokio::select! {
            () = self.stop.cancelled(), if !self.stopping => {
                self.stopping = true;
                Event::Stop
            }
            event = self.keeper.next() => event,
            event = self.sessions.next() => event,
            Some(Ok((uid, user))) = self.lookups.join_next() => Event::UserLookedUp { uid, user },
            Some(Ok(trouble)) = self.looks.join_next() => {
                Event::Directory(trouble.unwrap_or_default())
            }
            () = sleep_until(wake) => {
                self.run_look();
                Event::Tick { load_permille: inventory::load_permille(self.cpus) }
            }
        }
    }

    /// One step of the core with all that it wants done. `Some`: the agent is done.
    async fn step(&mut self, event: Event) -> Option<End> {
        let actions = self.core.step(event, self.now_ms());
        for action in actions {
            match action {
                Action::End(end) => return Some(end),
                Action::Save(saved) => {
                    if let Err(error) = self.run_save(saved).await {
                        // What follows in the list relies on it.
                        self.ready.push_back(Event::NotSaved { why: error.to_string() });
                        break;
                    }
                }
                other => self.run_action(other),
            }
        }
        self.keeper.flush();
        None
    }

    fn run_action(&mut self, action: Action) {
        match action {
            Action::Dial { session, target } => self.sessions.dial(session, target),
            Action::ToLeader { session, message } => {
                self.ready.extend(self.sessions.send(session, message));
            }
            Action::Abandon(session) => self.sessions.abandon(session),
            Action::Release(session) => self.sessions.release(session),
            Action::ReleaseBefore(session) => self.sessions.release_before(session),
            Action::ToKeeper(request) => self.keeper.send(&request),
            Action::LookUpUser(uid) => self.run_look_up(uid),
            Action::OpenBulk { session, request } => {
                if let Some((connector, target)) = self.sessions.relay_target(session) {
                    self.relays.open(connector, target, request);
                }
            }
            Action::Sweep(live) => self.run_sweep(live),
            Action::Warn(text) => tracing::warn!("{text}"),
            Action::Note(text) => tracing::info!("{text}"),
            // Taken care of by the caller: they decide whether the rest is carried out.
            Action::Save(_) | Action::End(_) => {}
        }
    }

    async fn run_save(&mut self, saved: Saved) -> Result<(), StateFileError> {
        let file = self.state_file.clone();
        match tokio::task::spawn_blocking(move || file.save(&saved)).await {
            Ok(result) => result,
            // The runtime is ending; nothing that follows will be sent either.
            Err(_) => Ok(()),
        }
    }

    fn run_look_up(&mut self, uid: u32) {
        self.lookups.spawn_blocking(move || (uid, passwd::look_up(uid)));
    }

    fn run_look(&mut self) {
        if self.looks.is_empty() {
            let home = Arc::clone(&self.home);
            self.looks.spawn_blocking(move || home.trouble());
        }
    }

    /// One at a time: a sweep of a slow disk must not meet the next one.
    fn run_sweep(&mut self, live: BTreeSet<AttemptId>) {
        while self.sweeps.try_join_next().is_some() {}
        if !self.sweeps.is_empty() {
            return;
        }
        let (home, limits, stop) = (Arc::clone(&self.home), self.limits.clone(), self.stop.clone());
        self.sweeps.spawn_blocking(move || {
            // Never in another directory that took its name.
            let runs = home.runs();
            let give_up = || stop.is_cancelled();
            match retention::sweep(&runs, &limits, &live, SystemTime::now(), &give_up) {
                Ok(swept) if swept.files == 0 => {}
                Ok(swept) => {
                    let retention::Swept { files, bytes } = swept;
                    tracing::info!(files, bytes, "removed old run files");
                }
                Err(error) => tracing::warn!(%error, "cannot look for old run files"),
            }
        });
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The file that this process runs, if its path still leads there: an upgrade may have put another
/// one in its place.
fn own_program() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    let (own, there) = (fs::metadata("/proc/self/exe").ok()?, fs::metadata(&path).ok()?);
    ((own.dev(), own.ino()) == (there.dev(), there.ino())).then_some(path)
}

/// A new node: an id of its own, durable before anybody hears of it.
fn first_start(file: &StateFile) -> Result<Saved, AgentError> {
    let id = random::<16>()?;
    let agent_id = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let saved = Saved { agent_id, ..Saved::default() };
    file.save(&saved)?;
    Ok(saved)
}

fn random<const N: usize>() -> Result<[u8; N], AgentError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(AgentError::Random)?;
    Ok(bytes)
}
