//! The openraft room: propose a batch, read linearizably, know who leads (design 4, Replication).
//! It never knows jobs: entries are bytes, applied by the pump, kept by the wal.
//! Begin reading with `node.rs`; `types.rs` pins the one instantiation of `Raft`.

mod archive;
mod codec;
mod machine;
mod network;
mod node;
mod snapshots;
mod storage;
mod tail;
mod types;

pub use archive::Archive;
pub use node::{Node, NodeOptions, NodeStartError, ReadError};
pub use snapshots::{Snapshots, SnapshotsError};
pub use storage::{LogRoom, LogStore, StoreError};
pub use types::{Reply, SnapshotMeta, Written};
