//! Specs, environments and inputs, each kept once per distinct content and counted by use.
//! Names are BLAKE3 hashes, computed at the edge: the ledger compares them and never hashes.

use super::given::{Amounts, amounts};
use prost::Message as _;
use proto::v1;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The queue of jobs that name none; it is always there.
pub(super) const QUEUE: &str = "default";

/// BLAKE3 of a blob.
pub type Hash = [u8; 32];

/// An interned environment or input.
#[derive(PartialEq, Debug)]
pub struct Blob {
    /// Its name.
    pub hash: Hash,
    /// Its content.
    pub data: Box<[u8]>,
}

/// An interned job specification, decoded once for all jobs that share it.
#[derive(PartialEq, Debug)]
pub struct Spec {
    /// Name of the encoded form.
    pub hash: Hash,
    /// As submitted: what run orders carry.
    pub bytes: Box<[u8]>,
    /// Decoded.
    pub spec: v1::JobSpec,
    /// What it asks of a node.
    pub ask: Arc<Ask>,
    /// Name of its queue.
    pub queue: Arc<str>,
}

/// What a task asks of a node. Tasks with equal asks fit and fail alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ask {
    /// Cpus, at least 1.
    pub cpus: u32,
    /// Memory in bytes; 0: none reserved.
    pub mem_bytes: u64,
    /// GPUs.
    pub gpus: u32,
    /// Only the node of this name.
    pub node: Option<String>,
    /// Only nodes with these labels.
    pub labels: BTreeMap<String, String>,
    /// Named consumables, of its node or of the cluster.
    pub resources: Amounts,
}

/// Things named by hash, with the number of jobs that use each.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Interned<T> {
    map: BTreeMap<Hash, (Arc<T>, u64)>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Interned { map: BTreeMap::new() }
    }
}

impl<T> Interned<T> {
    /// The content of that name, if any job uses it.
    pub fn get(&self, hash: &Hash) -> Option<Arc<T>> {
        self.map.get(hash).map(|(value, _)| Arc::clone(value))
    }

    /// Counts one more use.
    pub fn hold(&mut self, hash: Hash, value: &Arc<T>) {
        self.map.entry(hash).or_insert_with(|| (Arc::clone(value), 0)).1 += 1;
    }

    /// Counts one use less; unused content goes.
    pub fn release(&mut self, hash: &Hash) {
        if let Some((_, uses)) = self.map.get_mut(hash) {
            *uses -= 1;
            if *uses == 0 {
                self.map.remove(hash);
            }
        }
    }

    /// Uses by name: what `check` compares.
    pub fn uses(&self) -> BTreeMap<Hash, u64> {
        self.map.iter().map(|(hash, (_, uses))| (*hash, *uses)).collect()
    }
}

impl Spec {
    /// Decodes an encoded specification.
    pub fn decode(hash: Hash, bytes: &[u8]) -> Result<Spec, prost::DecodeError> {
        let spec = v1::JobSpec::decode(bytes)?;
        let ask = Arc::new(Ask::of(&spec));
        let queue = if spec.queue.is_empty() { QUEUE } else { spec.queue.as_str() };
        let queue = Arc::from(queue);
        Ok(Spec { hash, bytes: bytes.into(), spec, ask, queue })
    }
}

impl Ask {
    /// Of a specification.
    pub(crate) fn of(spec: &v1::JobSpec) -> Ask {
        Ask {
            cpus: spec.cpus,
            mem_bytes: spec.mem_bytes,
            gpus: spec.gpus,
            node: spec.node.clone(),
            labels: spec.node_labels.clone(),
            resources: amounts(&spec.resources),
        }
    }
}
