//! Values of the cluster as people write and read them: the keys that design 7 marks with *, what each is
//! in the ledger, and how one is set (`docket cluster set`).

use crate::queues::{self, SetError};
use docket_core::ledger::{RESOURCE_NAME_RULE, Weights, is_resource_name};
use proto::v1::{OnDisconnect, Policy};
use std::time::Duration;
use thiserror::Error;
use units::{DurationError, exact_duration};

/// Why a value is not set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingError {
    /// There is no such key.
    #[error("no setting {key}: {}", near(key))]
    NoKey {
        /// What was written.
        key: String,
    },
    /// Not a number.
    #[error("{key}: {value} is no whole number that fits")]
    NoNumber {
        /// Which key.
        key: String,
        /// What was written.
        value: String,
    },
    /// Not a duration.
    #[error("{key}: {value}: {why}")]
    NoDuration {
        /// Which key.
        key: String,
        /// What was written.
        value: String,
        /// What is wrong with it.
        why: DurationError,
    },
    /// Neither of the two words.
    #[error("on_disconnect: {value}: it can be exit or unknown")]
    NoDisconnect {
        /// What was written.
        value: String,
    },
    /// No name of a consumable.
    #[error("resource.{name}: {RESOURCE_NAME_RULE}")]
    NoName {
        /// What was written.
        name: String,
    },
    /// A value of the order.
    #[error(transparent)]
    Order(#[from] SetError),
}

/// Every setting with its value, in the order of the documentation. All queues stand in one.
pub fn all(policy: &Policy) -> Vec<(&'static str, String)> {
    let d = |ms: u64| exact_duration(Duration::from_millis(ms));
    let n = |count: u64| count.to_string();
    let w = |weight: u32| weight.to_string();
    let o = |ms: Option<u64>| ms.map_or_else(|| "none".to_owned(), d);
    let c = |count: Option<u64>| count.map_or_else(|| "none".to_owned(), n);
    let weights = Weights::of(policy);
    vec![
        ("heartbeat_timeout", d(policy.heartbeat_timeout_ms)),
        ("transient_job_timeout", d(policy.transient_job_timeout_ms)),
        ("unknown_finish_ttl", d(policy.unknown_finish_ttl_ms)),
        ("unknown_finish_max", n(policy.unknown_finish_max)),
        ("on_disconnect", disconnect(policy)),
        ("max_queue", n(policy.max_queue)),
        ("job_ttl", d(policy.job_ttl_ms)),
        ("max_completed", n(policy.max_completed)),
        ("fence_after", d(policy.fence_after_ms)),
        ("default_time", o(policy.default_time_ms)),
        ("max_time", o(policy.max_time_ms)),
        ("resources", amounts(policy)),
        ("priority_weight", w(weights.priority)),
        ("age_weight", w(weights.age)),
        ("share_weight", w(weights.share)),
        ("user_max_tasks", c(policy.user_max_tasks)),
        ("user_max_cpus", c(policy.user_max_cpus)),
        ("user_max_queue", c(policy.user_max_queue)),
        ("queues", queues::to_text(&policy.queues)),
    ]
}

/// Sets one.
pub fn set(policy: &mut Policy, key: &str, value: &str) -> Result<(), SettingError> {
    if let Some(name) = key.strip_prefix("resource.").or_else(|| key.strip_prefix("resources.")) {
        return set_resource(policy, name, value);
    }
    match key {
        "heartbeat_timeout" => policy.heartbeat_timeout_ms = time(key, value)?,
        "transient_job_timeout" => policy.transient_job_timeout_ms = time(key, value)?,
        "unknown_finish_ttl" => policy.unknown_finish_ttl_ms = time(key, value)?,
        "unknown_finish_max" => policy.unknown_finish_max = count(key, value)?,
        "on_disconnect" => policy.on_disconnect = on_disconnect(value)?.into(),
        "max_queue" => policy.max_queue = count(key, value)?,
        "job_ttl" => policy.job_ttl_ms = time(key, value)?,
        "max_completed" => policy.max_completed = count(key, value)?,
        "fence_after" => policy.fence_after_ms = time(key, value)?,
        "default_time" => policy.default_time_ms = optional(key, value)?,
        "max_time" => policy.max_time_ms = optional(key, value)?,
        _ => {
            if !queues::set(policy, key, value)? {
                return Err(SettingError::NoKey { key: key.to_owned() });
            }
        }
    }
    Ok(())
}

fn near(key: &str) -> String {
    let known = all(&Policy::default()).into_iter().map(|(known, _)| known);
    let score = |known: &&str| strsim::jaro_winkler(key, known);
    let best = known.max_by(|a, b| score(a).total_cmp(&score(b)));
    match best.filter(|best| score(best) > 0.8) {
        Some("queues") | None => {
            "docket cluster set lists all; queues.NAME.KEY is one of a queue, resource.NAME how much the \
             cluster has of something"
                .to_owned()
        }
        Some("resources") => "each is set for itself: docket cluster set resource.NAME N".to_owned(),
        Some(best) => format!("did you mean {best}? docket cluster set lists all"),
    }
}

/// Consumables of the cluster on one line: `ansys=1,matlab=2`.
fn amounts(policy: &Policy) -> String {
    let all = policy.resources.iter().map(|(name, amount)| format!("{name}={amount}"));
    let all: Vec<String> = all.collect();
    if all.is_empty() { "none".to_owned() } else { all.join(",") }
}

/// None of it is a value too: nobody gets it for now. Without the name it is the nodes' to offer.
fn set_resource(policy: &mut Policy, name: &str, value: &str) -> Result<(), SettingError> {
    if !is_resource_name(name) {
        return Err(SettingError::NoName { name: name.to_owned() });
    }
    if value == "none" {
        policy.resources.remove(name);
        return Ok(());
    }
    let key = || format!("resource.{name}");
    let wrong = |_| SettingError::NoNumber { key: key(), value: value.to_owned() };
    policy.resources.insert(name.to_owned(), value.parse().map_err(wrong)?);
    Ok(())
}

fn disconnect(policy: &Policy) -> String {
    match policy.on_disconnect() {
        OnDisconnect::Unknown => "unknown".to_owned(),
        OnDisconnect::Exit | OnDisconnect::Unspecified => "exit".to_owned(),
    }
}

fn on_disconnect(value: &str) -> Result<OnDisconnect, SettingError> {
    match value {
        "exit" => Ok(OnDisconnect::Exit),
        "unknown" => Ok(OnDisconnect::Unknown),
        _ => Err(SettingError::NoDisconnect { value: value.to_owned() }),
    }
}

fn time(key: &str, value: &str) -> Result<u64, SettingError> {
    let wrong = |why| {
        let (key, value) = (key.to_owned(), value.to_owned());
        SettingError::NoDuration { key, value, why }
    };
    let time = units::positive_duration(value).map_err(wrong)?;
    Ok(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn optional(key: &str, value: &str) -> Result<Option<u64>, SettingError> {
    if value == "none" { Ok(None) } else { time(key, value).map(Some) }
}

fn count(key: &str, value: &str) -> Result<u64, SettingError> {
    let wrong = || SettingError::NoNumber { key: key.to_owned(), value: value.to_owned() };
    value.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    /// What every key may be set to; the text that comes back.
    const VALUES: [(&str, &str); 17] = [
        ("heartbeat_timeout", "7s"),
        ("transient_job_timeout", "2m"),
        ("unknown_finish_ttl", "90s"),
        ("unknown_finish_max", "12"),
        ("on_disconnect", "unknown"),
        ("max_queue", "77"),
        ("job_ttl", "3d"),
        ("max_completed", "5"),
        ("fence_after", "11m"),
        ("default_time", "1h"),
        ("max_time", "2h"),
        ("priority_weight", "3"),
        ("age_weight", "4"),
        ("share_weight", "5"),
        ("user_max_tasks", "6"),
        ("user_max_cpus", "none"),
        ("user_max_queue", "8"),
    ];

    #[test]
    fn every_setting_is_set_and_read_back() {
        let mut policy = Config::default().policy();
        for (key, value) in VALUES {
            assert_eq!(set(&mut policy, key, value), Ok(()), "{key}");
            let read = all(&policy).into_iter().find(|(known, _)| *known == key);
            assert_eq!(read.map(|(_, text)| text), Some(value.replace("90s", "1m30s")), "{key}");
        }
        let known: Vec<&str> = all(&policy).into_iter().map(|(key, _)| key).collect();
        let missing = known.iter().filter(|key| !VALUES.iter().any(|(value, _)| value == *key));
        let missing: Vec<_> = missing.collect();
        assert!(missing.iter().all(|key| ["queues", "resources"].contains(*key)), "{missing:?}");
        assert_eq!(set(&mut policy, "queues.short.max_tasks", "4"), Ok(()));
        let mut put = |name: &str, value: &str| {
            assert_eq!(set(&mut policy, &format!("resource.{name}"), value), Ok(()));
            amounts(&policy)
        };
        assert_eq!(
            (put("matlab", "3"), put("ansys", "0")),
            ("matlab=3".into(), "ansys=0,matlab=3".into())
        );
        assert_eq!(
            (put("matlab", "none"), put("ansys", "none")),
            ("ansys=0".into(), "none".into())
        );
    }

    #[test]
    fn what_is_no_setting_or_no_value_is_refused_by_name() {
        let mut policy = Policy::default();
        let mut refused =
            |key: &str, value: &str| set(&mut policy, key, value).unwrap_err().to_string();
        assert!(refused("max_que", "5").contains("did you mean max_queue?"));
        assert!(refused("xyz", "5").contains("docket cluster set lists all"));
        assert!(refused("max_queue", "0").contains("no whole number"));
        assert!(refused("job_ttl", "90").contains("90s"));
        assert!(refused("on_disconnect", "die").contains("exit or unknown"));
        assert!(refused("resource.a/b", "1").contains("1 to 64 letters"));
        assert!(refused("resource.matlab", "-1").contains("no whole number"));
        assert!(refused("resources", "matlab=1").contains("resource.NAME"));
        assert!(refused("queues.short.nope", "1").contains("no key nope of a queue"));
    }
}
