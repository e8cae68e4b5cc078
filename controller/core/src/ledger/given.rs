//! What an attempt is given beside cpus and memory: gpus by their indices, and named consumables of its
//! node and of the cluster. All of it together with the assignment, or nothing.

use super::blobs::Ask;
use super::book::Ledger;
use super::index::Used;
use super::job::Job;
use super::node::Agent;
use super::outcome::Rejection;
use super::state::Grant;
use proto::v1::ImageGrant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most named consumables that a job may ask for.
pub const ASKED_MAX: usize = 16;

/// Longest name of one, in bytes.
const NAME_MAX: usize = 64;

/// What a name is made of, in words.
pub const RESOURCE_NAME_RULE: &str = "a name has 1 to 64 letters, digits, - _ .";

/// Whether that is a name of a consumable.
pub fn is_resource_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(letter)
}

/// What the state machine relies on in what a job asks for.
pub(super) fn judge(asked: &BTreeMap<String, u64>) -> Result<(), Rejection> {
    judge_asked(asked).map_err(|why| Rejection::malformed("spec.resources", why))
}

/// The same for the edge, in words.
pub fn judge_asked(asked: &BTreeMap<String, u64>) -> Result<(), String> {
    let refused = Err;
    if asked.len() > ASKED_MAX {
        return refused(format!("{} given, at most {ASKED_MAX}", asked.len()));
    }
    match asked.iter().find(|(name, amount)| !is_resource_name(name) || **amount == 0) {
        Some((name, 0)) => refused(format!("0 of {name} asked for: 1 or more")),
        Some((name, _)) => refused(format!("{name:?}: {RESOURCE_NAME_RULE}")),
        None => Ok(()),
    }
}

/// Amounts of named consumables.
pub type Amounts = BTreeMap<Arc<str>, u64>;

/// What an attempt was given beside cpus and memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Given {
    /// Indices of gpus of its node. Fewer than were asked for only where a restored ledger adopted the
    /// attempt and its node did not tell them.
    pub gpus: Vec<u32>,
    /// Named consumables of its node.
    pub node: Amounts,
    /// Named consumables of the cluster.
    pub cluster: Amounts,
}

impl Given {
    /// Nothing beside cpus and memory is `None`: most attempts have no more.
    fn some(self) -> Option<Arc<Given>> {
        (self != Given::default()).then(|| Arc::new(self))
    }

    /// As an image holds it.
    pub(super) fn freeze(given: Option<&Arc<Given>>, image: &mut ImageGrant) {
        let Some(given) = given else { return };
        image.gpu_ids.clone_from(&given.gpus);
        image.node_resources = to_map(&given.node);
        image.cluster_resources = to_map(&given.cluster);
    }

    /// Read back.
    pub(super) fn thaw(image: &ImageGrant) -> Option<Arc<Given>> {
        let (gpus, node) = (image.gpu_ids.clone(), amounts(&image.node_resources));
        Given { gpus, node, cluster: amounts(&image.cluster_resources) }.some()
    }
}

/// Amounts as the ledger holds them; those of nothing are left out.
pub(super) fn amounts(map: &BTreeMap<String, u64>) -> Amounts {
    let some = map.iter().filter(|(_, amount)| **amount > 0);
    some.map(|(name, amount)| (name.as_str().into(), *amount)).collect()
}

/// As messages hold them.
pub(super) fn to_map(amounts: &Amounts) -> BTreeMap<String, u64> {
    amounts.iter().map(|(name, amount)| (name.to_string(), *amount)).collect()
}

impl Job {
    /// Indices of the gpus that the present or last attempt was given.
    pub fn gpu_ids(&self) -> &[u32] {
        self.grant().and_then(|grant| grant.given.as_ref()).map_or(&[], |given| &given.gpus)
    }
}

impl Grant {
    /// Its node told which gpus it has, and nobody knew.
    pub(super) fn number_gpus(&mut self, told: &[u32]) {
        let known = self.given.as_ref().is_some_and(|given| !given.gpus.is_empty());
        if known || self.gpus == 0 || told.is_empty() {
            return;
        }
        let distinct: BTreeSet<u32> = told.iter().copied().take(self.gpus as usize).collect();
        let given = self.given.as_deref().cloned().unwrap_or_default();
        self.given = Given { gpus: distinct.into_iter().collect(), ..given }.some();
    }
}

impl Ledger {
    /// What an ask gets on a node that has room for it: the lowest gpus that are free there.
    pub(super) fn given(&self, ask: &Ask, agent: &Agent) -> Option<Arc<Given>> {
        self.given_with(ask, self.used(agent.id()).lowest_gpus(agent.gpus(), ask.gpus))
    }

    /// What an ask holds with these gpus.
    pub(super) fn given_with(&self, ask: &Ask, gpus: Vec<u32>) -> Option<Arc<Given>> {
        let wide = self.offers();
        let (mut node, mut cluster) = (Amounts::new(), Amounts::new());
        for (name, amount) in &ask.resources {
            let pool = if wide.contains_key(name) { &mut cluster } else { &mut node };
            pool.insert(Arc::clone(name), *amount);
        }
        Given { gpus, node, cluster }.some()
    }

    /// Named consumables that the cluster offers, by name, with the whole amount. A name that stands here
    /// is the cluster's, whatever nodes offer under it.
    pub fn offers(&self) -> &Arc<Amounts> {
        &self.offers
    }

    /// How much of one of these is bound.
    pub fn used_of_cluster(&self, name: &str) -> u64 {
        self.index.cluster.get(name).copied().unwrap_or(0)
    }
}

impl Used {
    /// The lowest indices that are free, of a node with so many gpus.
    fn lowest_gpus(&self, most: u32, asked: u32) -> Vec<u32> {
        let free = (0..most).filter(|index| !self.gpu_ids.contains_key(index));
        free.take(asked as usize).collect()
    }

    /// How many gpus of a node with so many are free. One whose holder's indices nobody knows may be any of
    /// them, so none is given while that lasts.
    pub(crate) fn free_gpus(&self, most: u32) -> u64 {
        if self.unnumbered_gpus > 0 {
            return 0;
        }
        let taken = self.gpu_ids.range(..most).count() as u64;
        u64::from(most).saturating_sub(taken)
    }
}
