//! One voter: the only place that instantiates `Raft`. The rest of the program proposes bytes,
//! asks for a linearizable moment, and hears who leads.

use super::machine::Machine;
use super::network::Peers;
use super::snapshots::Snapshots;
use super::storage::{LogRoom, LogStore};
use super::types::{Batch, Callback, SnapshotMeta, TypeConfig, WriteResult, Written};
use crate::failure::Failure;
use crate::pump::{PumpGone, PumpHandle, Role};
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{ClientWriteError, LinearizableReadError, RaftError};
use openraft::impls::BasicNode;
use openraft::{Config, Raft, ReadPolicy, ServerState, SnapshotPolicy};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Entries that stay in raft's reach below a snapshot, for followers that are a little behind.
const KEEP_BEHIND_SNAPSHOT: u64 = 1000;

/// The times and the id of this voter.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its id.
    pub id: u64,
    /// Where other voters reach it.
    pub address: String,
    /// Between heartbeats of the leader.
    pub heartbeat: Duration,
    /// Shortest time without a leader before an election; the longest is twice that.
    pub election_timeout: Duration,
}

/// Raft could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeStartError {
    /// Times that contradict each other.
    #[error("the raft times cannot work: {0}")]
    Config(#[from] openraft::ConfigError),
    /// The log or its replay failed.
    #[error("raft cannot start from the log: {0}")]
    Raft(String),
}

/// Why this node cannot confirm a read or take a proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Another node leads, or none.
    #[error("this controller does not lead; try again")]
    NotLeader {
        /// The leader, if known.
        leader: Option<u64>,
    },
    /// Raft has ended.
    #[error("the controller is stopping: {why}")]
    Stopped {
        /// As raft says.
        why: String,
    },
}

/// What operators ask of a voter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its raft term.
    pub term: u64,
    /// The leader it knows; 0 for none.
    pub leader: u64,
    /// How many voters there are.
    pub voters: u64,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Node {
    raft: Raft<TypeConfig, Machine>,
    store: LogStore,
    id: u64,
}

impl Node {
    /// Starts raft over an opened log; entries known to be committed are applied before it
    /// returns. A voter that is alone elects itself at once.
    pub async fn start(
        options: NodeOptions,
        store: LogStore,
        pump: PumpHandle,
        snapshots: Arc<Snapshots>,
        meta: SnapshotMeta,
    ) -> Result<Node, NodeStartError> {
        let id = options.id;
        let config = Arc::new(raft_config(&options).validate()?);
        let machine = Machine::new(pump, snapshots, meta);
        let failed = |e: &dyn std::fmt::Display| NodeStartError::Raft(e.to_string());
        let raft =
            Raft::new(id, config, Peers, store.clone(), machine).await.map_err(|e| failed(&e))?;
        if raft.is_initialized().await.map_err(|e| failed(&e))? {
            if raft.voter_ids().eq([id]) {
                // Nobody else could object: waiting for a time-out would only delay the start.
                raft.trigger().elect(false).await.map_err(|e| failed(&e))?;
            }
        } else {
            let members = BTreeMap::from([(id, BasicNode { addr: options.address })]);
            raft.initialize(members).await.map_err(|e| failed(&e))?;
        }
        Ok(Node { raft, store, id })
    }

    /// This voter's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How much room the log's disk has left.
    pub fn log_room(&self) -> LogRoom {
        self.store.room()
    }

    /// Whether the log's disk is below its reserve.
    pub fn disk_full(&self) -> bool {
        self.log_room() != LogRoom::Enough
    }

    /// Proposes an encoded proposal. `written` runs on the pump's thread right after it was
    /// applied; dropped unrun, the outcome is unknown.
    pub async fn propose(
        &self,
        bytes: Arc<[u8]>,
        written: impl FnOnce(Written) + Send + 'static,
    ) -> Result<(), ReadError> {
        let responder = Callback::new(move |result: WriteResult| {
            written(match result {
                Ok(response) => Written::Applied(response.data),
                Err(ClientWriteError::ForwardToLeader(other)) => {
                    Written::NotLeader(other.leader_id)
                }
                // The other kinds need a change of members or a precondition: not sent from here.
                Err(_) => Written::Unknown,
            });
        });
        let sent = self.raft.client_write_ff(Batch(bytes), Some(responder)).await;
        sent.map_err(|e| ReadError::Stopped { why: e.to_string() })
    }

    /// Resolves once this node is known to lead and everything committed before the call is in the
    /// pump's mailbox: a read through it is linearizable (ReadIndex).
    pub async fn linearizable(&self) -> Result<(), ReadError> {
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(other))) => {
                Err(ReadError::NotLeader { leader: other.leader_id })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(ReadError::NotLeader { leader: None })
            }
            Err(RaftError::Fatal(fatal)) => Err(ReadError::Stopped { why: fatal.to_string() }),
        }
    }

    /// What operators see.
    pub fn status(&self) -> Status {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        Status {
            term: metrics.vote.leader_id.term,
            leader: metrics.current_leader.unwrap_or(0),
            voters: metrics.membership_config.voter_ids().count() as u64,
        }
    }

    /// Tells pump and proposer who leads, in that order, and takes snapshots when they are due.
    /// Raft ending by itself throws `failure`.
    pub fn follow(
        &self,
        pump: PumpHandle,
        snapshot_due: Arc<Notify>,
        failure: Failure,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> watch::Receiver<Role> {
        let (role, watched) = watch::channel(Role::Following { leader: None });
        let node = self.clone();
        let guarded = failure.clone();
        let following = guarded.guard_task("following raft failed", async move {
            if node.follow_role(&pump, &role).await.is_ok() {
                failure.fail(format!("raft has ended by itself: {}", node.why_ended()));
            }
            // Kept until the end: its drop would look like an orderly stop to those who watch.
            std::future::pending::<()>().await;
        });
        tasks.spawn(stop.clone().run_until_cancelled_owned(following));
        let raft = self.raft.clone();
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                snapshot_due.notified().await;
                if raft.trigger().snapshot().await.is_err() {
                    return; // raft has ended, which is reported above
                }
            }
        }));
        watched
    }

    /// As raft says.
    fn why_ended(&self) -> String {
        let metrics = self.raft.metrics();
        let ended = metrics.borrow_watched().running_state.clone();
        ended.err().map_or_else(|| "it does not say why".to_owned(), |fatal| fatal.to_string())
    }

    /// Until raft ends. An error is the end of the pump, which has told its cause itself.
    async fn follow_role(
        &self,
        pump: &PumpHandle,
        role: &watch::Sender<Role>,
    ) -> Result<(), PumpGone> {
        let mut metrics = self.raft.server_metrics();
        loop {
            let now = {
                let metrics = metrics.borrow_and_update();
                match metrics.state {
                    ServerState::Leader => Role::Leading { term: metrics.vote.leader_id.term },
                    _ => Role::Following { leader: metrics.current_leader },
                }
            };
            if *role.borrow() != now {
                pump.role(now).await?;
                role.send_replace(now);
            }
            if metrics.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Asks for a snapshot now; it is taken in the background.
    pub async fn snapshot(&self) -> Result<(), ReadError> {
        let asked = self.raft.trigger().snapshot().await;
        asked.map_err(|e| ReadError::Stopped { why: e.to_string() })
    }

    /// Ends raft, then flushes and seals the log.
    pub async fn stop(self) {
        if let Err(e) = self.raft.shutdown().await {
            tracing::warn!("raft did not end in order: {e}");
        }
        if let Err(e) = self.store.stop().await {
            tracing::warn!("the log was not sealed: {e}");
        }
    }
}

fn raft_config(options: &NodeOptions) -> Config {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: "docket".to_owned(),
        heartbeat_interval: ms(options.heartbeat),
        election_timeout_min: ms(options.election_timeout),
        election_timeout_max: ms(options.election_timeout).saturating_mul(2),
        enable_pre_vote: Some(true),
        // The default resumes leadership of the same term after a crash: with asynchronous fsync
        // that gave two entries at one position in simulation (design 12). A test holds it.
        enable_leader_restore: Some(false),
        // Bytes and commands decide, which raft does not count: see `SnapshotDue`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: KEEP_BEHIND_SNAPSHOT,
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safety_settings_are_not_the_defaults() {
        let config = raft_config(&NodeOptions {
            id: 1,
            address: String::new(),
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_millis(500),
        });
        let config = config.validate().unwrap();
        assert_eq!(config.enable_leader_restore, Some(false));
        assert_eq!(config.enable_pre_vote, Some(true));
        assert_eq!((config.election_timeout_min, config.election_timeout_max), (500, 1000));
    }
}
