//! The values of the cluster that the ledger uses (design 7, marked *), and what they may be.

use super::given::{Amounts, RESOURCE_NAME_RULE, is_resource_name};
use super::number::{WEIGHT_MAX, Weights};
use super::outcome::Rejection;
use super::submit::PRIORITY;
use proto::v1::{OnDisconnect, Policy, QueuePolicy};
use std::collections::BTreeMap;

/// Most queues: each is looked at by name, one after the other.
const QUEUES_MAX: usize = 256;

/// Most named consumables of the cluster: each of a pass is looked at by name.
const OFFERED_MAX: usize = 256;

/// Longest name of a queue, in bytes.
const QUEUE_NAME_MAX: usize = 64;

/// The defaults of design 7.
pub(super) fn default_policy() -> Policy {
    let weights = Weights::of(&Policy::default());
    Policy {
        heartbeat_timeout_ms: 30_000,
        transient_job_timeout_ms: 300_000,
        unknown_finish_ttl_ms: 60_000,
        unknown_finish_max: 65_536,
        on_disconnect: OnDisconnect::Exit as i32,
        max_queue: 1_000_000,
        job_ttl_ms: 7 * 24 * 3600 * 1000,
        max_completed: 100_000,
        fence_after_ms: 10 * 60 * 1000,
        default_time_ms: None,
        max_time_ms: None,
        resources: BTreeMap::new(),
        priority_weight: Some(weights.priority),
        age_weight: Some(weights.age),
        share_weight: Some(weights.share),
        user_max_tasks: None,
        user_max_cpus: None,
        user_max_queue: None,
        queues: Vec::new(),
        closed_queues: false,
    }
}

/// Completes and judges a policy: 0 and unspecified mean the default where 0 makes no sense.
pub fn judge(policy: &Policy) -> Result<Policy, Rejection> {
    let default = default_policy();
    let or = |given: u64, default: u64| if given == 0 { default } else { given };
    let on_disconnect = match policy.on_disconnect() {
        OnDisconnect::Unspecified => OnDisconnect::Exit,
        given => given,
    };
    let judged = Policy {
        heartbeat_timeout_ms: or(policy.heartbeat_timeout_ms, default.heartbeat_timeout_ms),
        transient_job_timeout_ms: or(
            policy.transient_job_timeout_ms,
            default.transient_job_timeout_ms,
        ),
        unknown_finish_ttl_ms: or(policy.unknown_finish_ttl_ms, default.unknown_finish_ttl_ms),
        unknown_finish_max: or(policy.unknown_finish_max, default.unknown_finish_max),
        on_disconnect: on_disconnect as i32,
        max_queue: or(policy.max_queue, default.max_queue),
        job_ttl_ms: or(policy.job_ttl_ms, default.job_ttl_ms),
        max_completed: or(policy.max_completed, default.max_completed),
        fence_after_ms: or(policy.fence_after_ms, default.fence_after_ms),
        default_time_ms: policy.default_time_ms.filter(|ms| *ms > 0),
        max_time_ms: policy.max_time_ms.filter(|ms| *ms > 0),
        resources: resources(&policy.resources)?,
        priority_weight: weight("policy.priority_weight", policy.priority_weight, 0)?
            .or(default.priority_weight),
        age_weight: weight("policy.age_weight", policy.age_weight, 1)?.or(default.age_weight),
        share_weight: weight("policy.share_weight", policy.share_weight, 0)?
            .or(default.share_weight),
        user_max_tasks: policy.user_max_tasks.filter(|n| *n > 0),
        user_max_cpus: policy.user_max_cpus.filter(|n| *n > 0),
        user_max_queue: policy.user_max_queue.filter(|n| *n > 0),
        queues: queues(&policy.queues)?,
        closed_queues: policy.closed_queues,
    };
    if judged.fence_after_ms <= judged.heartbeat_timeout_ms {
        return Err(Rejection::malformed(
            "policy.fence_after_ms",
            format!(
                "{} ms does not exceed heartbeat_timeout, {} ms: a lease must outlast a silence",
                judged.fence_after_ms, judged.heartbeat_timeout_ms
            ),
        ));
    }
    if let (Some(default), Some(max)) = (judged.default_time_ms, judged.max_time_ms)
        && default > max
    {
        let why = format!("{default} ms is above max_time, {max} ms");
        return Err(Rejection::malformed("policy.default_time_ms", why));
    }
    Ok(judged)
}

fn weight(field: &'static str, given: Option<u32>, least: u32) -> Result<Option<u32>, Rejection> {
    match given {
        Some(0) if least > 0 => {
            Err(Rejection::malformed(field, "0 given: what waits would never be helped by it"))
        }
        Some(weight) if weight > WEIGHT_MAX => {
            Err(Rejection::malformed(field, format!("{weight} given, at most {WEIGHT_MAX}")))
        }
        given => Ok(given),
    }
}

/// Named consumables of the cluster. None of one is a value: nobody gets it for now.
fn resources(given: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>, Rejection> {
    if given.len() > OFFERED_MAX {
        let why = format!("{} given, at most {OFFERED_MAX}", given.len());
        return Err(Rejection::malformed("policy.resources", why));
    }
    match given.keys().find(|name| !is_resource_name(name)) {
        Some(name) => {
            Err(Rejection::malformed("policy.resources", format!("{name:?}: {RESOURCE_NAME_RULE}")))
        }
        None => Ok(given.clone()),
    }
}

/// What of a policy the ledger keeps at hand.
pub(super) fn offers(policy: &Policy) -> Amounts {
    policy.resources.iter().map(|(name, all)| (name.as_str().into(), *all)).collect()
}

/// Queues in order of their names, each once.
fn queues(given: &[QueuePolicy]) -> Result<Vec<QueuePolicy>, Rejection> {
    let refused = |name: &str, why: &str| {
        Err(Rejection::malformed("policy.queues", format!("queue {name:?}: {why}")))
    };
    let mut judged: Vec<QueuePolicy> = Vec::new();
    if given.len() > QUEUES_MAX {
        let why = format!("{} given, at most {QUEUES_MAX}", given.len());
        return Err(Rejection::malformed("policy.queues", why));
    }
    for queue in given {
        let name = queue.name.as_str();
        let letter = |c: char| c.is_ascii_alphanumeric() || "-_+".contains(c);
        if name.is_empty() || name.len() > QUEUE_NAME_MAX || !name.chars().all(letter) {
            return refused(name, "a name has 1 to 64 letters, digits, - _ +");
        }
        let some = |n: Option<u64>| n.filter(|n| *n > 0);
        let queue = QueuePolicy {
            max_tasks: some(queue.max_tasks),
            max_cpus: some(queue.max_cpus),
            max_queue: some(queue.max_queue),
            default_time_ms: some(queue.default_time_ms),
            max_time_ms: some(queue.max_time_ms),
            ..queue.clone()
        };
        if !PRIORITY.contains(&queue.priority) {
            return refused(name, "its priority is from -1000 to 1000");
        }
        if queue.max_priority.is_some_and(|max| !PRIORITY.contains(&max)) {
            return refused(name, "its max_priority is from -1000 to 1000");
        }
        if queue.users.iter().any(String::is_empty) {
            return refused(name, "a user of it has no name");
        }
        match (queue.default_time_ms, queue.max_time_ms) {
            (Some(default), Some(max)) if default > max => {
                return refused(name, "its default_time is above its max_time");
            }
            _ => judged.push(queue),
        }
    }
    judged.sort_by(|a, b| a.name.cmp(&b.name));
    match judged.windows(2).find(|two| matches!(two, [a, b] if a.name == b.name)) {
        Some([twice, ..]) => refused(&twice.name, "it is there twice"),
        _ => Ok(judged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_queues_that_cannot_be_are_refused() {
        let bad = |policy: Policy| assert!(judge(&policy).is_err(), "{policy:?}");
        bad(Policy { age_weight: Some(0), ..Policy::default() });
        bad(Policy { share_weight: Some(WEIGHT_MAX + 1), ..Policy::default() });
        let queue = |name: &str| QueuePolicy { name: name.to_owned(), ..QueuePolicy::default() };
        bad(Policy { queues: vec![queue("")], ..Policy::default() });
        bad(Policy { queues: vec![queue("a b")], ..Policy::default() });
        bad(Policy { queues: vec![queue("a"), queue("a")], ..Policy::default() });
        let times = QueuePolicy { default_time_ms: Some(2), max_time_ms: Some(1), ..queue("a") };
        bad(Policy { queues: vec![times], ..Policy::default() });
        let queues = vec![queue("b"), QueuePolicy { max_tasks: Some(0), ..queue("a") }];
        let judged = judge(&Policy { queues, ..Policy::default() }).map(|policy| policy.queues);
        assert_eq!(judged, Ok(vec![queue("a"), queue("b")]), "sorted, and 0 limits nothing");
    }

    #[test]
    fn what_is_left_out_takes_its_default() {
        assert_eq!(judge(&Policy::default()), Ok(default_policy()));
    }

    #[test]
    fn a_fence_that_does_not_outlast_a_silence_is_refused() {
        let short = Policy { fence_after_ms: 30_000, ..Policy::default() };
        assert!(judge(&short).is_err());
        let long = Policy { fence_after_ms: 30_001, ..Policy::default() };
        assert!(judge(&long).is_ok());
    }
}
