//! The time limit of a job, and what else `docket set` changes of what was asked: what is in force,
//! within the bounds of the cluster.

use super::book::Ledger;
use super::job::{Changes, Job};
use super::limits::queue_of;
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
        let queue = queue_of(spec);
        let of_queue = self.queue(queue).and_then(|queue| queue.default_time_ms);
        let max = self.max_time(queue).map(|(max, _)| max);
        let default = of_queue.or(self.policy.default_time_ms).or(max);
        // A default of the cluster may be above the bound of one queue: the bound then.
        let default = default.map(|ms| max.map_or(ms, |max| ms.min(max)));
        self.judge_limit(spec.time_limit_ms.or(default), queue)
    }

    /// Refuses a limit that is above `max_time` of the cluster or of the queue.
    pub(super) fn judge_limit(
        &self,
        limit: Option<u64>,
        queue: &str,
    ) -> Result<Option<NonZeroU64>, Rejection> {
        match self.max_time(queue) {
            Some((max, key)) if limit.is_none_or(|limit| limit > max) => {
                Err(Rejection::OverMaxTime { asked_ms: limit, max_ms: max, key })
            }
            _ => Ok(limit.and_then(NonZeroU64::new)),
        }
    }

    /// The longest limit that a job of a queue may have, and which key says so.
    fn max_time(&self, queue: &str) -> Option<(u64, String)> {
        let of_queue = self.queue(queue).and_then(|queue| queue.max_time_ms);
        let of_queue = of_queue.map(|ms| (ms, format!("queues.{queue}.max_time")));
        let of_all = self.policy.max_time_ms.map(|ms| (ms, "max_time".to_owned()));
        of_queue.into_iter().chain(of_all).min_by_key(|(ms, _)| *ms)
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
