//! The one network type of the room. A lone voter has no peers, so every call answers
//! `Unreachable`; the calls to other voters take its place without a second instantiation of `Raft`.

use super::snapshots::Image;
use super::types::{TypeConfig, Vote};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use std::future::Future;

/// Makes connections to peers.
pub struct Peers;

/// The connection to one peer.
pub struct Peer {
    id: u64,
}

impl Peer {
    fn unreachable(&self) -> Unreachable<TypeConfig> {
        let what = format!("voter {} is not reachable: this node has no peers", self.id);
        Unreachable::from_string(what)
    }
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _node: &openraft::impls::BasicNode) -> Peer {
        Peer { id: target }
    }
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = Image;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(self.unreachable().into())
    }

    // The default grants, which would switch pre-vote off without a word (design 12).
    async fn pre_vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: openraft::alias::SnapshotOf<TypeConfig, Image>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(self.unreachable().into())
    }

    async fn transfer_leader(
        &mut self,
        _req: TransferLeaderRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(self.unreachable().into())
    }
}
