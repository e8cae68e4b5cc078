//! Queues, and what users may have: as the configuration and `cluster set` write them, and as the ledger
//! holds them (docs/scheduling.md).

use proto::v1::{Policy, QueuePolicy};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;
use units::{DurationError, exact_duration};

/// One queue: `[controller.queues.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Added to the priority of each of its jobs.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// The highest priority that its jobs may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i32>,
    /// Tasks on nodes at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tasks: Option<u64>,
    /// The cpus that those hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cpus: Option<u64>,
    /// Tasks that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queue: Option<u64>,
    /// Time limit of jobs that name none.
    #[serde(
        with = "super::config::human_duration_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub default_time: Option<Duration>,
    /// Longest time limit.
    #[serde(
        with = "super::config::human_duration_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_time: Option<Duration>,
    /// Who may submit to it; empty: everybody.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// Queues by name, as the ledger holds them.
pub fn to_policy(queues: &BTreeMap<String, QueueConfig>) -> Vec<QueuePolicy> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let queue = |(name, queue): (&String, &QueueConfig)| QueuePolicy {
        name: name.clone(),
        priority: queue.priority,
        max_priority: queue.max_priority,
        max_tasks: queue.max_tasks,
        max_cpus: queue.max_cpus,
        max_queue: queue.max_queue,
        default_time_ms: queue.default_time.map(millis),
        max_time_ms: queue.max_time.map(millis),
        users: queue.users.clone(),
    };
    queues.iter().map(queue).collect()
}

/// All queues on one line: `short.max_tasks=4,short.max_time=1h`.
pub fn to_text(queues: &[QueuePolicy]) -> String {
    let parts: Vec<String> = queues.iter().flat_map(queue_text).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(",") }
}

fn queue_text(queue: &QueuePolicy) -> Vec<String> {
    let count = |n: Option<u64>| n.map(|n| n.to_string());
    let time = |ms: Option<u64>| ms.map(|ms| exact_duration(Duration::from_millis(ms)));
    let some = |text: String, is: bool| is.then_some(text);
    let keys = [
        ("priority", some(queue.priority.to_string(), queue.priority != 0)),
        ("max_priority", queue.max_priority.map(|n| n.to_string())),
        ("max_tasks", count(queue.max_tasks)),
        ("max_cpus", count(queue.max_cpus)),
        ("max_queue", count(queue.max_queue)),
        ("default_time", time(queue.default_time_ms)),
        ("max_time", time(queue.max_time_ms)),
        ("users", some(queue.users.join("+"), !queue.users.is_empty())),
    ];
    let name = &queue.name;
    let set: Vec<String> = keys
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{name}.{key}={}", value?)))
        .collect();
    if set.is_empty() { vec![name.clone()] } else { set }
}

/// Why a value of the order cannot be set.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum SetError {
    /// No such key.
    #[error("no key {key} of a queue: there are {}", QUEUE_KEYS.join(", "))]
    NoKey {
        /// What was written.
        key: String,
    },
    /// Not a number.
    #[error("{key}: {value} is no whole number that fits; none takes the limit away")]
    NoNumber {
        /// Which key.
        key: String,
        /// What was written.
        value: String,
    },
    /// Not a duration.
    #[error("{key}: {value}: {why}; none takes the limit away")]
    NoDuration {
        /// Which key.
        key: String,
        /// What was written.
        value: String,
        /// What is wrong with it.
        why: DurationError,
    },
}

/// The keys of a queue.
pub const QUEUE_KEYS: [&str; 8] = [
    "priority",
    "max_priority",
    "max_tasks",
    "max_cpus",
    "max_queue",
    "default_time",
    "max_time",
    "users",
];

/// The keys of the order beside those of queues.
pub const KEYS: [&str; 6] = [
    "priority_weight",
    "age_weight",
    "share_weight",
    "user_max_tasks",
    "user_max_cpus",
    "user_max_queue",
];

/// Sets a value of the order: a weight, a limit of users, or `queues.NAME.KEY`. `none` takes a limit away,
/// and with it as the value of `queues.NAME` the queue. `false`: the key is none of these.
pub fn set(policy: &mut Policy, key: &str, value: &str) -> Result<bool, SetError> {
    let queue = key.strip_prefix("queues.").or_else(|| key.strip_prefix("queue."));
    if let Some(rest) = queue {
        return set_queue(policy, rest, value).map(|()| true);
    }
    match key {
        "priority_weight" => policy.priority_weight = number(key, value)?,
        "age_weight" => policy.age_weight = number(key, value)?,
        "share_weight" => policy.share_weight = number(key, value)?,
        "user_max_tasks" => policy.user_max_tasks = number(key, value)?,
        "user_max_cpus" => policy.user_max_cpus = number(key, value)?,
        "user_max_queue" => policy.user_max_queue = number(key, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn set_queue(policy: &mut Policy, rest: &str, value: &str) -> Result<(), SetError> {
    let (name, key) = rest.split_once('.').unwrap_or((rest, ""));
    if key.is_empty() && value == "none" {
        policy.queues.retain(|queue| queue.name != name);
        return Ok(());
    }
    let known = policy.queues.iter().position(|queue| queue.name == name);
    let new = || QueuePolicy { name: name.to_owned(), ..QueuePolicy::default() };
    let mut queue = known.and_then(|at| policy.queues.get(at).cloned()).unwrap_or_else(new);
    match key {
        "priority" => queue.priority = number(key, value)?.unwrap_or(0),
        "max_priority" => queue.max_priority = number(key, value)?,
        "max_tasks" => queue.max_tasks = number(key, value)?,
        "max_cpus" => queue.max_cpus = number(key, value)?,
        "max_queue" => queue.max_queue = number(key, value)?,
        "default_time" => queue.default_time_ms = time(key, value)?,
        "max_time" => queue.max_time_ms = time(key, value)?,
        "users" => {
            let names = value.split([',', '+']).map(str::trim);
            let names = names.filter(|name| !name.is_empty() && value != "none");
            queue.users = names.map(str::to_owned).collect();
        }
        _ => return Err(SetError::NoKey { key: key.to_owned() }),
    }
    match known.and_then(|at| policy.queues.get_mut(at)) {
        Some(old) => *old = queue,
        None => policy.queues.push(queue),
    }
    // Who names queues means that a job of another name is an error.
    policy.closed_queues = true;
    Ok(())
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<Option<T>, SetError> {
    if value == "none" {
        return Ok(None);
    }
    let wrong = |_| SetError::NoNumber { key: key.to_owned(), value: value.to_owned() };
    value.parse().map(Some).map_err(wrong)
}

fn time(key: &str, value: &str) -> Result<Option<u64>, SetError> {
    if value == "none" {
        return Ok(None);
    }
    let wrong = |why| SetError::NoDuration { key: key.to_owned(), value: value.to_owned(), why };
    let time = units::duration(value).map_err(wrong)?;
    Ok(Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_set_taken_away_and_written_as_they_are_set() {
        let mut policy = Policy::default();
        let mut put = |key: &str, value: &str| set(&mut policy, key, value);
        assert_eq!(put("age_weight", "5"), Ok(true));
        assert_eq!(put("user_max_cpus", "8"), Ok(true));
        assert_eq!(put("queues.short.max_time", "1h"), Ok(true));
        assert_eq!(put("queue.short.users", "mia,tom"), Ok(true));
        assert_eq!(put("queues.short.max_tasks", "4"), Ok(true));
        assert_eq!(put("queues.short.max_tasks", "none"), Ok(true));
        assert_eq!(put("max_queue", "5"), Ok(false), "a key of another room");
        assert!(put("queues.short.max_task", "4").is_err());
        assert!(put("queues.short.max_time", "90").is_err(), "a unit is needed");
        assert!(put("user_max_tasks", "-1").is_err());
        assert_eq!((policy.age_weight, policy.user_max_cpus), (Some(5), Some(8)));
        assert!(policy.closed_queues);
        assert_eq!(to_text(&policy.queues), "short.max_time=1h,short.users=mia+tom");
        assert_eq!(set(&mut policy, "queues.short", "none"), Ok(true));
        assert_eq!(to_text(&policy.queues), "none");
    }
}
