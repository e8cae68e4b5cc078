//! Repair of a lone controller's log after rot or lost files (design 4, "Opening"): what would be
//! lost, and the doing of it. Never by itself: `docket wal repair` explains and asks.
//!
//! What was acknowledged and is given up may have led to jobs that ran. So the cluster's generation
//! is raised, durably and before the log is touched: the ledger then gives no job id again that it
//! may have given, and holds whatever waits until somebody has looked (`ledger/generation.rs`).

use crate::directory::{Directory, DirectoryError};
use std::path::{Path, PathBuf};
use wal::repair::{Repair as LogRepair, carry_out, plan};
use wal::{OpenError, SnapshotError, SnapshotStore};

/// Why a log was not repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The directory is in use, or cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// It never served: there is nothing to repair.
    #[error("{dir} has never served as a controller: there is no log to repair")]
    NeverServed {
        /// The data directory.
        dir: String,
    },
    /// No repair can help, or a call failed.
    #[error(transparent)]
    Log(#[from] wal::RepairError),
    /// The log's directory cannot be taken.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The snapshots cannot be read.
    #[error("cannot look at the snapshots: {0}")]
    Snapshots(#[from] SnapshotError),
}

/// A planned repair. It holds the directory: no controller can start meanwhile.
#[derive(Debug)]
pub struct Repair {
    log: LogRepair,
    /// Position of the newest whole snapshot.
    snapshot: Option<u64>,
    disk: wal::Disk,
    directory: Directory,
}

impl Repair {
    /// Plans the repair of a controller's data directory; `None` if its log may be opened.
    ///
    /// # Errors
    /// [`RepairError`]; nothing was changed then.
    pub fn plan(data: &Path) -> Result<Option<Repair>, RepairError> {
        // Looked at first, so that no directory is made where there was none.
        if !data.join("controller").join("identity").exists() {
            return Err(RepairError::NeverServed { dir: data.display().to_string() });
        }
        let directory = Directory::open(data)?;
        let disk = wal::Disk::open(&directory.wal())?;
        let Some(log) = plan(&disk)? else { return Ok(None) };
        let store = SnapshotStore::open(wal::Disk::open(&directory.snapshots())?)?;
        let snapshot = store.newest()?.map(|(info, _)| info.index);
        Ok(Some(Repair { log, snapshot, disk, directory }))
    }

    /// What would be done with the log's files, and why.
    pub fn log(&self) -> &LogRepair {
        &self.log
    }

    /// Entries that are in no snapshot either: first and last that the log is known to have held.
    /// `None` if a snapshot has all of them.
    pub fn lost(&self) -> Option<(u64, u64)> {
        let first = self.log.last.max(self.snapshot.unwrap_or(0)) + 1;
        (first <= self.log.known_last).then_some((first, self.log.known_last))
    }

    /// Position of the newest whole snapshot.
    pub fn snapshot(&self) -> Option<u64> {
        self.snapshot
    }

    /// Repairs, and says where the damaged files lie now.
    ///
    /// # Errors
    /// [`RepairError`]; the log is refused as before then, and the repair can be tried again.
    pub fn carry_out(self) -> Result<PathBuf, RepairError> {
        let generation = self.directory.raise_generation()?;
        let aside = self.directory.make_aside(&format!("damaged-{generation}"))?;
        carry_out(&self.disk, &self.log, &aside)?;
        tracing::warn!(
            aside = %aside.display(), generation, last = self.log.last,
            "the log was repaired: what lay behind is given up"
        );
        Ok(aside)
    }
}
