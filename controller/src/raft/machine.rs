//! Raft's state machine: hands committed entries to the pump, which owns the ledger, and takes
//! snapshots of what the pump froze. It returns when the pump has the entries in its mailbox;
//! whatever is read through that mailbox afterwards sees them applied.

use super::codec::{encode_meta, position_of};
use super::snapshots::{Image, Snapshots, SnapshotsError};
use super::types::{Entry, LogId, Reply, SnapshotMeta, StoredMembership, TypeConfig};
use crate::pump::{Committed, PumpGone, PumpHandle};
use docket_core::ledger::Frozen;
use futures::{Stream, StreamExt as _};
use openraft::EntryPayload;
use openraft::storage::{
    ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot,
};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Entries handed over in one message: with 256 KiB an entry, 16 MiB.
const HAND_OVER_MAX: usize = 64;

/// The position of the ledger, and the way to it.
pub struct Machine {
    pump: PumpHandle,
    snapshots: Arc<Snapshots>,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl Machine {
    /// A machine whose pump holds the ledger as of `meta`.
    pub fn new(pump: PumpHandle, snapshots: Arc<Snapshots>, meta: SnapshotMeta) -> Self {
        let SnapshotMeta { last_log_id: applied, last_membership: membership } = meta;
        Machine { pump, snapshots, applied, membership }
    }

    fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() }
    }

    /// Takes note of an entry; those that carry a proposal go to the pump.
    fn take(
        &mut self,
        entry: Entry,
        responder: Option<ApplyResponder<TypeConfig>>,
    ) -> Option<Committed> {
        self.applied = Some(entry.log_id);
        let bytes = match entry.payload {
            EntryPayload::Normal(batch) => batch.0,
            EntryPayload::Blank => {
                answer_empty(responder);
                return None;
            }
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                answer_empty(responder);
                return None;
            }
        };
        let reply = responder.map(|responder| {
            Box::new(move |reply| responder.send(reply)) as Box<dyn FnOnce(Reply) + Send>
        });
        Some(Committed {
            position: position_of(entry.log_id.index),
            bytes,
            reply,
            committed: Instant::now(),
        })
    }
}

fn answer_empty(responder: Option<ApplyResponder<TypeConfig>>) {
    if let Some(responder) = responder {
        responder.send(Reply::default());
    }
}

fn gone(error: PumpGone) -> io::Error {
    io::Error::other(error)
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = Image;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        let mut batch = Vec::new();
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            batch.extend(self.take(entry, responder));
            if batch.len() >= HAND_OVER_MAX {
                self.pump.apply(std::mem::take(&mut batch)).await.map_err(gone)?;
            }
        }
        if !batch.is_empty() {
            self.pump.apply(batch).await.map_err(gone)?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        // Frozen here, between two applies: later entries must not be in the image.
        let frozen = self.pump.freeze().await;
        Builder { frozen: Some(frozen), meta: self.meta(), snapshots: Arc::clone(&self.snapshots) }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, image: Image) -> io::Result<()> {
        let snapshots = Arc::clone(&self.snapshots);
        let thaw = move || snapshots.thaw(&image);
        let ledger = tokio::task::spawn_blocking(thaw).await.map_err(io::Error::other)?;
        self.pump.install(ledger.map_err(io::Error::other)?).await.map_err(gone)?;
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<openraft::alias::SnapshotOf<TypeConfig, Image>>> {
        let newest = self.snapshots.newest_meta();
        Ok(newest.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

/// Writes one frozen ledger out.
pub struct Builder {
    frozen: Option<Result<Frozen, PumpGone>>,
    meta: SnapshotMeta,
    snapshots: Arc<Snapshots>,
}

impl Builder {
    /// A full disk must not end the process: the log is whole without this snapshot. Raft is shown
    /// the one it knows already, which it ignores.
    fn unwritten(&self, error: &SnapshotsError) -> openraft::alias::SnapshotOf<TypeConfig, Image> {
        tracing::warn!("no snapshot was written, the next one is tried when it is due: {error}");
        let (meta, snapshot) = self.snapshots.newest_meta().unwrap_or_default();
        Snapshot { meta, snapshot }
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Image;

    async fn build_snapshot(
        &mut self,
    ) -> io::Result<openraft::alias::SnapshotOf<TypeConfig, Image>> {
        let frozen = self.frozen.take().ok_or_else(|| io::Error::other("built already"))?;
        let frozen = frozen.map_err(gone)?;
        let (meta, snapshots) = (self.meta.clone(), Arc::clone(&self.snapshots));
        let position = meta.last_log_id.map_or(0, |id| position_of(id.index));
        let bytes = encode_meta(&meta);
        let write = move || snapshots.save(position, &bytes, &meta, frozen);
        let written = tokio::task::spawn_blocking(write).await.map_err(io::Error::other)?;
        let snapshot = match written {
            Ok(image) => image,
            Err(e) => return Ok(self.unwritten(&e)),
        };
        Ok(Snapshot { meta: self.meta.clone(), snapshot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;
    use docket_core::ledger::Ledger;

    #[tokio::test]
    async fn a_snapshot_that_cannot_be_written_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snapshots");
        let (snapshots, _, _) =
            Snapshots::open(wal::Disk::open(&path).unwrap(), &mut Progress::begin()).unwrap();
        let snapshots = Arc::new(snapshots);
        let at = |index| SnapshotMeta {
            last_log_id: Some(LogId::new_term_index(1, index)),
            ..SnapshotMeta::default()
        };
        let build = async |index| {
            let frozen = Some(Ok(Ledger::new().freeze()));
            let mut builder =
                Builder { frozen, meta: at(index), snapshots: Arc::clone(&snapshots) };
            builder.build_snapshot().await.unwrap().meta
        };
        assert_eq!(build(4).await, at(4));
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(build(9).await, at(4), "what raft knows already");
    }
}
