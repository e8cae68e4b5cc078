//! Snapshots of the ledger on disk: written from a frozen copy, read back at a restart. The two
//! newest are kept; the log behind the older one stays, so that either can be started from.

use super::codec::{CodecError, decode_meta};
use super::types::SnapshotMeta;
use crate::progress::{Progress, Unit};
use docket_core::ledger::{Frozen, ImageError, Ledger};
use std::sync::{Mutex, PoisonError};
use wal::{SnapshotError, SnapshotStore};

/// Names one snapshot; its bytes stay in the store until somebody needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    position: u64,
}

/// Why a snapshot was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotsError {
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] SnapshotError),
    /// Its metadata is not what this program writes.
    #[error("cannot read the metadata of snapshot {file}: {source}")]
    Meta {
        /// Which.
        file: String,
        /// What is wrong.
        source: CodecError,
    },
    /// Its image is not a ledger that this program can read.
    #[error("cannot read the ledger of snapshot {file}: {source}")]
    Image {
        /// Which.
        file: String,
        /// What is wrong.
        source: ImageError,
    },
    /// The image that was asked for is not the newest one.
    #[error("the snapshot of position {position} is not there any more")]
    Gone {
        /// Which position.
        position: u64,
    },
}

/// The store, and what its newest snapshot is of.
pub struct Snapshots {
    store: SnapshotStore<wal::Disk>,
    /// Changed only once a snapshot is durable.
    newest: Mutex<Option<(SnapshotMeta, Image)>>,
}

impl Snapshots {
    /// Opens the store and thaws its newest whole snapshot; an empty ledger where there is none.
    pub fn open(
        disk: wal::Disk,
        progress: &mut Progress,
    ) -> Result<(Snapshots, Ledger, SnapshotMeta), SnapshotsError> {
        let store = SnapshotStore::open(disk)?;
        let snapshots = Snapshots { store, newest: Mutex::new(None) };
        let Some((ledger, meta, image)) = snapshots.read_newest(Some(progress))? else {
            return Ok((snapshots, Ledger::new(), SnapshotMeta::default()));
        };
        snapshots.remember(&meta, image);
        Ok((snapshots, ledger, meta))
    }

    /// Writes a frozen ledger; durable when it returns.
    pub fn save(
        &self,
        position: u64,
        bytes: &[u8],
        meta: &SnapshotMeta,
        frozen: Frozen,
    ) -> Result<Image, SnapshotsError> {
        let term = meta.last_log_id.map_or(0, |id| id.leader_id.term);
        let info = self.store.save(position, term, bytes, frozen.chunks())?;
        tracing::info!(position, bytes = info.bytes, "snapshot written");
        let image = Image { position };
        self.remember(meta, image);
        Ok(image)
    }

    /// What the newest snapshot is of.
    pub fn newest_meta(&self) -> Option<(SnapshotMeta, Image)> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The ledger of a snapshot, which must be the newest.
    pub fn thaw(&self, image: &Image) -> Result<Ledger, SnapshotsError> {
        match self.read_newest(None)? {
            Some((ledger, _, newest)) if newest == *image => Ok(ledger),
            _ => Err(SnapshotsError::Gone { position: image.position }),
        }
    }

    /// Position of the older of two snapshots: the log up to it is not needed any more.
    pub fn older_position(&self) -> Result<Option<u64>, SnapshotsError> {
        Ok(self.store.positions()?.get(1).map(|(position, _)| *position))
    }

    fn remember(&self, meta: &SnapshotMeta, image: Image) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = Some((meta.clone(), image));
    }

    fn read_newest(
        &self,
        mut progress: Option<&mut Progress>,
    ) -> Result<Option<(Ledger, SnapshotMeta, Image)>, SnapshotsError> {
        let Some((info, chunks)) = self.store.newest()? else { return Ok(None) };
        if let Some(progress) = &mut progress {
            progress.stage("reading the snapshot", Unit::Bytes, info.bytes);
        }
        let mut done = 0;
        let meta = decode_meta(&info.meta)
            .map_err(|source| SnapshotsError::Meta { file: info.file.clone(), source })?;
        let mut broken = None;
        let whole = chunks.map_while(|chunk| match chunk {
            Ok(chunk) => {
                done += chunk.len() as u64;
                if let Some(progress) = &mut progress {
                    progress.at(done);
                }
                Some(chunk)
            }
            Err(e) => {
                broken = Some(e);
                None
            }
        });
        let ledger = Ledger::thaw(whole);
        if let Some(e) = broken {
            return Err(e.into());
        }
        let ledger =
            ledger.map_err(|source| SnapshotsError::Image { file: info.file.clone(), source })?;
        Ok(Some((ledger, meta, Image { position: info.index })))
    }
}
