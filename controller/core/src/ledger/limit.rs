//! The time limit of a job, and what else `docket set` changes of what was asked: what is in force,
//! within the bounds of the cluster.

use super::book::Ledger;
use super::job::{Changes, Job};
use super::outcome::Rejection;
use super::{Ask, Spec};
use proto::v1;
use std::num::NonZeroU64;
use std::sync::Arc;

impl Ledger {
    /// The limit of a new job: as asked, else `default_time`, else `max_time`; never above `max_time`.
    pub(super) fn limit_at_submit(
        &self,
        spec: &v1::JobSpec,
    ) -> Result<Option<NonZeroU64>, Rejection> {
        let max = self.policy.max_time_ms;
        let limit = spec.time_limit_ms.or(self.policy.default_time_ms).or(max);
        self.judge_limit(limit)
    }

    /// Refuses a limit that is above `max_time`.
    pub(super) fn judge_limit(&self, limit: Option<u64>) -> Result<Option<NonZeroU64>, Rejection> {
        match self.policy.max_time_ms {
            Some(max) if limit.is_none_or(|limit| limit > max) => {
                Err(Rejection::OverMaxTime { asked_ms: limit, max_ms: max })
            }
            _ => Ok(limit.and_then(NonZeroU64::new)),
        }
    }
}

/// The changes of a job as an image holds them; `None`: there are none.
pub(super) fn changes_image(job: &Job) -> Option<v1::ImageChanges> {
    let changes = job.changes.as_deref();
    let ask = changes.and_then(|changes| changes.ask.as_deref());
    let no_limit = job.limit_ms.is_none() && job.spec().time_limit_ms.is_some();
    (changes.is_some() || no_limit).then(|| v1::ImageChanges {
        name: changes.and_then(|changes| changes.name.as_deref()).map(str::to_owned),
        cpus: ask.map(|ask| ask.cpus),
        mem_bytes: ask.map(|ask| ask.mem_bytes),
        no_limit,
    })
}

/// The change of the limit that a node is told.
pub(super) fn limit_image(job: &Job) -> Option<v1::ImageLimit> {
    let limit = job.intents.as_ref()?.limit.as_ref()?;
    Some(v1::ImageLimit { order: limit.order.0, user: limit.by.number })
}

/// The same, read back.
pub(super) fn changes_of(image: &v1::ImageJob, spec: &Spec) -> Option<Box<Changes>> {
    let changes = image.changes.as_ref()?;
    let ask = changes.cpus.zip(changes.mem_bytes);
    let ask = ask.map(|(cpus, mem_bytes)| Arc::new(Ask { cpus, mem_bytes, ..(*spec.ask).clone() }));
    let name = changes.name.as_deref().map(Arc::from);
    (name.is_some() || ask.is_some()).then(|| Box::new(Changes { name, ask }))
}

/// The limit in force, read back.
pub(super) fn limit_of(image: &v1::ImageJob, spec: &Spec) -> Option<NonZeroU64> {
    let lifted = image.changes.as_ref().is_some_and(|changes| changes.no_limit);
    let asked = spec.spec.time_limit_ms.filter(|_| !lifted);
    image.time_limit_ms.or(asked).and_then(NonZeroU64::new)
}
