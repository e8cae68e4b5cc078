//! What the shell tells the core, and what the core wants done. Actions are carried out in the
//! order of the list: a later one may rely on an earlier one being done.

use crate::user::{NoUser, User};
use proto::AttemptId;
use proto::v1;
use std::collections::BTreeSet;

/// Number of a dial of this process and of the session that it becomes, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SessionNo(pub u64);

/// What happened outside.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time passed; sent at least twice a second. Load of the node in thousandths of its cpus.
    Tick {
        /// Run-queue length times 1000 over the cpus.
        load_permille: u32,
    },
    /// A message of the keeper, in the order of its socket.
    FromKeeper(v1::KeeperEvent),
    /// The socket to the keeper is gone; requests not answered may be lost.
    KeeperLost,
    /// Why no keeper can be reached, or what is wrong with the one that answers, for the operator;
    /// empty: that is over.
    KeeperTrouble(String),
    /// Why nothing can start in the data directory before somebody acts, as it was looked at now;
    /// empty: it is in its place.
    Directory(String),
    /// The dial succeeded; own address of the connection as this node sees it.
    Connected {
        /// The dial.
        session: SessionNo,
        /// `ip:port`, or empty where there is none.
        address: String,
    },
    /// The dial failed, or the session's stream ended.
    Disconnected {
        /// Which one.
        session: SessionNo,
        /// For the log.
        why: String,
    },
    /// A message from the controller, in the order of its stream.
    FromLeader {
        /// Over which session.
        session: SessionNo,
        /// What it says.
        message: v1::LeaderMessage,
    },
    /// Answer to [`Action::LookUpUser`].
    UserLookedUp {
        /// Who was asked for.
        uid: u32,
        /// What the node's user database says.
        user: Result<User, NoUser>,
    },
    /// An [`Action::Save`] failed; the actions after it in its list were not carried out.
    NotSaved {
        /// The error.
        why: String,
    },
    /// End in order: say goodbye, then [`Action::End`].
    Stop,
}

/// Where to dial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The `n`th try over the configured controllers, to be taken modulo their number.
    Listed(u64),
    /// The leader, as a voter named it.
    Leader(String),
}

/// The agent's one small file (design 6).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Saved {
    /// Stable, random; made at the first start.
    pub agent_id: String,
    /// Of the latest session; grows with every one.
    pub incarnation: u64,
    /// Empty: never joined a cluster.
    pub cluster_id: String,
    /// Highest generation of the cluster that was seen.
    pub generation: u64,
    /// Highest raft term of that generation that was seen.
    pub term: u64,
}

/// What the shell must do.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Make this durable before any later action of the list; on failure carry out none of them
    /// and report [`Event::NotSaved`].
    Save(Saved),
    /// Open a connection and a session stream; answered by `Connected` or `Disconnected`.
    Dial {
        /// Its number.
        session: SessionNo,
        /// Whom.
        target: Target,
    },
    /// Send up that session's stream.
    ToLeader {
        /// Which.
        session: SessionNo,
        /// What.
        message: v1::AgentMessage,
    },
    /// Read no more of this session, but keep its socket open (design 5, "Who ended the
    /// connection") until a release.
    Abandon(SessionNo),
    /// This session was refused before it began: its socket may be closed.
    Release(SessionNo),
    /// A newer join was answered: sockets of all older sessions may be closed.
    ReleaseBefore(SessionNo),
    /// Send to the keeper.
    ToKeeper(v1::KeeperRequest),
    /// Ask the node's user database; answered by [`Event::UserLookedUp`].
    LookUpUser(u32),
    /// Open `Agents.Bulk` to the peer of this session for that request.
    OpenBulk {
        /// Whose peer asks.
        session: SessionNo,
        /// Number the controller gave it.
        request: u64,
    },
    /// Remove old run files, but none of these attempts (design 6, retention).
    Sweep(BTreeSet<AttemptId>),
    /// For the operator's log.
    Warn(String),
    /// For the operator's log, of no concern.
    Note(String),
    /// The agent is done; nothing follows.
    End(End),
}

/// How the agent ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// As asked.
    Stopped,
    /// The controller refuses this agent for good.
    Refused {
        /// Its words.
        reason: String,
    },
}
