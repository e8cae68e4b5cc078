//! What the cluster offers to all nodes together, licences and the like, as a pass uses it up.

use super::feasible::{Resource, Short};
use super::reserve::End;
use crate::ledger::{Amounts, Ask, Ledger};
use proto::TaskId;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What is free of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    all: Arc<Amounts>,
    free: Amounts,
    /// For which task the rest of something is kept: it comes first.
    kept: BTreeMap<Arc<str>, TaskId>,
}

/// What an ask lacks of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Of what, how much is asked, and how much is free.
    pub short: Short,
    /// How much there is in all.
    pub all: u64,
    /// Enough of it is free but for what is kept for this task.
    pub kept_for: Option<TaskId>,
    /// What else is missing.
    pub more: Vec<Missing>,
}

impl Pool {
    /// What is offered and not bound.
    pub fn of(ledger: &Ledger) -> Pool {
        let all = Arc::clone(ledger.offers());
        let left = |(name, all): (&Arc<str>, &u64)| {
            (Arc::clone(name), all.saturating_sub(ledger.used_of_cluster(name)))
        };
        Pool { free: all.iter().map(left).collect(), all, kept: BTreeMap::new() }
    }

    /// What an ask lacks.
    pub fn missing(&self, ask: &Ask) -> Option<Missing> {
        let mut missing = ask.resources.iter().filter_map(|(name, asked)| {
            let has = *self.free.get(name)?;
            let short = Short::of((Resource::Named(Arc::clone(name)), *asked, has))?;
            let all = self.all.get(name).copied().unwrap_or(0);
            let kept_for = self.kept.get(name).copied();
            Some(Missing { short, all, kept_for, more: Vec::new() })
        });
        let first = missing.next()?;
        Some(Missing { more: missing.collect(), ..first })
    }

    /// A task is placed.
    pub(super) fn take(&mut self, ask: &Ask) {
        for (name, amount) in &ask.resources {
            if let Some(free) = self.free.get_mut(name) {
                *free = free.saturating_sub(*amount);
            }
        }
    }

    /// What is free of all that it asks is for this task.
    pub(super) fn keep(&mut self, task: TaskId, ask: &Ask) {
        self.take(ask);
        for name in ask.resources.keys().filter(|name| self.all.contains_key(*name)) {
            self.kept.entry(Arc::clone(name)).or_insert(task);
        }
    }
}

impl Missing {
    /// It, and what else is missing.
    pub fn each(&self) -> impl Iterator<Item = &Missing> {
        std::iter::once(self).chain(&self.more)
    }

    /// Whether it can start once others have ended.
    pub fn could_start(&self) -> bool {
        self.each().all(|missing| missing.short.asked <= missing.all)
    }

    /// Name of what is short.
    pub fn name(&self) -> Option<&Arc<str>> {
        match &self.short.what {
            Resource::Named(name) => Some(name),
            _ => None,
        }
    }
}

/// When all that is missing is free by the time limits of who holds it, wall ms; `None`: nobody knows.
pub fn free_by(ledger: &Ledger, missing: &Missing) -> Option<u64> {
    let each = missing.each().map(|missing| one_free_by(ledger, missing));
    each.collect::<Option<Vec<u64>>>()?.into_iter().max()
}

fn one_free_by(ledger: &Ledger, missing: &Missing) -> Option<u64> {
    let holders = ledger.holders(missing.name()?);
    let end = |job| End::of(job).and_then(|end| end.at_wall_ms);
    let mut ends: Vec<(u64, u64)> = holders
        .iter()
        .filter_map(|holder| Some((holder.job.and_then(end)?, holder.amount)))
        .collect();
    ends.sort_unstable();
    let mut free = missing.short.has;
    let enough = ends.into_iter().find(|(_, amount)| {
        free = free.saturating_add(*amount);
        free >= missing.short.asked
    });
    enough.map(|(at, _)| at.max(ledger.wall()))
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Missing { short, all, kept_for, .. }) in self.each().enumerate() {
            let Short { what, asked, has } = short;
            let between = if number == 0 { "" } else { "; " };
            match kept_for {
                _ if asked > all => {
                    write!(f, "{between}{what}: {asked} asked, the cluster has {all} in all")?;
                }
                Some(first) => write!(
                    f,
                    "{between}{what}: {asked} asked, {has} of {all} free beside what is kept for {first}"
                )?,
                None => {
                    write!(
                        f,
                        "{between}{what}: {asked} asked, {has} of {all} free in the cluster"
                    )?;
                }
            }
        }
        Ok(())
    }
}
