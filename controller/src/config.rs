//! The `[controller]` section of the configuration (design 7): parsed once, at the edge, into typed
//! values; unknown keys and values without a unit are refused.

use crate::queues::{self, QueueConfig};
use crate::settings;
use proto::v1;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use units::{DurationError, SizeError, duration, exact_duration, exact_size, size};

/// Values marked * in design 7 seed the ledger at bootstrap and are changed there afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Data directory; the controller's files are under `controller/` in it.
    pub data: PathBuf,
    /// gRPC address.
    pub listen: String,
    /// HTTP address: metrics.
    pub http: String,
    /// Address that other voters and agents should use, if it differs from `listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Users who may change every job, besides root.
    pub admins: Vec<String>,
    /// * An agent that said nothing for this long is silent.
    #[serde(with = "human_duration")]
    pub heartbeat_timeout: Duration,
    /// * A task whose whereabouts are unknown for this long is lost.
    #[serde(with = "human_duration")]
    pub transient_job_timeout: Duration,
    /// * How long a finish of an unknown job is kept.
    #[serde(with = "human_duration")]
    pub unknown_finish_ttl: Duration,
    /// * How many finishes of unknown jobs are kept.
    pub unknown_finish_max: u64,
    /// * What the death of an agent's process means for its jobs.
    pub on_disconnect: OnDisconnect,
    /// * Tasks that may be in the ledger and not ended; a submit beyond it is refused.
    pub max_queue: u64,
    /// * How long an ended job stays in the ledger.
    #[serde(with = "human_duration")]
    pub job_ttl: Duration,
    /// * Ended jobs that stay in the ledger at most.
    pub max_completed: u64,
    /// * Default of `--fence-after`.
    #[serde(with = "human_duration")]
    pub fence_after: Duration,
    /// * Time limit of jobs that name none.
    #[serde(with = "human_duration_option", skip_serializing_if = "Option::is_none")]
    pub default_time: Option<Duration>,
    /// * Longest time limit that a job may name.
    #[serde(with = "human_duration_option", skip_serializing_if = "Option::is_none")]
    pub max_time: Option<Duration>,
    /// * Named consumables of all nodes together, licences and the like: how much there is of each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, u64>,
    /// * Points of a job's number for each point of its priority.
    pub priority_weight: u32,
    /// * For each hour that it waits.
    pub age_weight: u32,
    /// * Taken off from jobs of a user who has all cpus.
    pub share_weight: u32,
    /// * Tasks of one user on nodes at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_max_tasks: Option<u64>,
    /// * Cpus that those of one user hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_max_cpus: Option<u64>,
    /// * Tasks of one user that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_max_queue: Option<u64>,
    /// How long archived log segments are kept, whichever bound comes first.
    pub history_retention: Retention,
    /// When a snapshot is due, whichever comes first.
    pub snapshot_every: SnapshotEvery,
    /// Between heartbeats of the raft leader.
    #[serde(with = "human_duration")]
    pub raft_heartbeat: Duration,
    /// Shortest time without a leader before an election; the longest is twice that.
    #[serde(with = "human_duration")]
    pub raft_election_timeout: Duration,
    /// * Queues by name; `default` is always there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub queues: BTreeMap<String, QueueConfig>,
    /// Controller and agent are one process (`docket up`). Set by the role, never by a file.
    #[serde(skip)]
    pub embedded: bool,
}

/// What the leader does with the running jobs of an agent whose process died (design 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDisconnect {
    /// They end as `agent-died` at once.
    Exit,
    /// They are unknown until the agent is back or the time-out.
    Unknown,
}

/// `90d, 10GiB`: an age and a size; one of them may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Files older than this go; never under a day.
    pub age: Duration,
    /// Beyond this many bytes the oldest go, unless they are younger than a day.
    pub bytes: u64,
}

/// `256MiB or 500000 commands`; one of them may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEvery {
    /// Bytes of log since the last snapshot.
    pub bytes: u64,
    /// Commands since the last snapshot.
    pub commands: u64,
}

/// A configuration that cannot work.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Nowhere to keep the log.
    #[error("no data directory: give --data DIR or `data` in [controller]")]
    NoData,
    /// A weight, a limit or a queue that cannot be.
    #[error("{why}")]
    Policy {
        /// What is wrong.
        why: String,
    },
    /// A value that must be greater than another one.
    #[error("`{key}` is {value}: it must be more than {bound}, which is {bound_value}")]
    TooSmall {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it is compared with.
        bound: &'static str,
        /// That one's value.
        bound_value: String,
    },
}

impl Default for Config {
    fn default() -> Self {
        Config {
            data: PathBuf::new(),
            listen: "127.0.0.1:7460".to_owned(),
            http: "127.0.0.1:7461".to_owned(),
            advertise: None,
            admins: Vec::new(),
            heartbeat_timeout: Duration::from_secs(30),
            transient_job_timeout: Duration::from_secs(300),
            unknown_finish_ttl: Duration::from_secs(60),
            unknown_finish_max: 65_536,
            on_disconnect: OnDisconnect::Exit,
            max_queue: 1_000_000,
            job_ttl: Duration::from_secs(7 * 86_400),
            max_completed: 100_000,
            fence_after: Duration::from_secs(600),
            default_time: None,
            max_time: None,
            resources: BTreeMap::new(),
            priority_weight: 1,
            age_weight: 1,
            share_weight: 100,
            user_max_tasks: None,
            user_max_cpus: None,
            user_max_queue: None,
            history_retention: Retention::default(),
            snapshot_every: SnapshotEvery::default(),
            raft_heartbeat: Duration::from_millis(100),
            raft_election_timeout: Duration::from_millis(500),
            queues: BTreeMap::new(),
            embedded: false,
        }
    }
}

impl Config {
    /// The default configuration with its data under `data`.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Config { data: data.as_ref().to_owned(), ..Config::default() }
    }

    /// Checks what the types cannot: relations between values.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.data.as_os_str().is_empty() {
            return Err(ConfigError::NoData);
        }
        let zero = Duration::ZERO;
        more("heartbeat_timeout", self.heartbeat_timeout, "0", zero)?;
        more("transient_job_timeout", self.transient_job_timeout, "0", zero)?;
        more("unknown_finish_ttl", self.unknown_finish_ttl, "0", zero)?;
        more("job_ttl", self.job_ttl, "0", zero)?;
        more("fence_after", self.fence_after, "heartbeat_timeout", self.heartbeat_timeout)?;
        more("raft_heartbeat", self.raft_heartbeat, "0", zero)?;
        let two = self.raft_heartbeat * 2;
        more("raft_election_timeout", self.raft_election_timeout, "twice raft_heartbeat", two)?;
        let counts = [
            ("max_queue", self.max_queue),
            ("max_completed", self.max_completed),
            ("unknown_finish_max", self.unknown_finish_max),
            ("snapshot_every", self.snapshot_every.bytes.min(self.snapshot_every.commands)),
        ];
        counts.into_iter().try_for_each(|(key, value)| at_least_one(key, value))?;
        let judged = docket_core::ledger::judge_policy(&self.policy());
        judged.map(drop).map_err(|why| ConfigError::Policy { why: why.to_string() })
    }

    /// The values that seed the ledger.
    pub fn policy(&self) -> v1::Policy {
        v1::Policy {
            heartbeat_timeout_ms: millis(self.heartbeat_timeout),
            transient_job_timeout_ms: millis(self.transient_job_timeout),
            unknown_finish_ttl_ms: millis(self.unknown_finish_ttl),
            unknown_finish_max: self.unknown_finish_max,
            on_disconnect: match self.on_disconnect {
                OnDisconnect::Exit => v1::OnDisconnect::Exit.into(),
                OnDisconnect::Unknown => v1::OnDisconnect::Unknown.into(),
            },
            max_queue: self.max_queue,
            job_ttl_ms: millis(self.job_ttl),
            max_completed: self.max_completed,
            fence_after_ms: millis(self.fence_after),
            default_time_ms: self.default_time.map(millis),
            max_time_ms: self.max_time.map(millis),
            resources: self.resources.clone(),
            priority_weight: Some(self.priority_weight),
            age_weight: Some(self.age_weight),
            share_weight: Some(self.share_weight),
            user_max_tasks: self.user_max_tasks,
            user_max_cpus: self.user_max_cpus,
            user_max_queue: self.user_max_queue,
            queues: queues::to_policy(&self.queues),
            closed_queues: true,
        }
    }

    /// Keys whose value here differs from what the ledger uses, with both (design 2): the ledger's
    /// value is in force.
    pub fn differences(&self, ledger: &v1::Policy) -> Vec<(&'static str, String, String)> {
        let (mine, theirs) = (settings::all(&self.policy()), settings::all(ledger));
        let pairs =
            mine.into_iter().zip(theirs).map(|((key, mine), (_, theirs))| (key, mine, theirs));
        pairs.filter(|(_, mine, theirs)| mine != theirs).collect()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn more(
    key: &'static str,
    value: Duration,
    bound: &'static str,
    least: Duration,
) -> Result<(), ConfigError> {
    if value > least {
        return Ok(());
    }
    let (value, bound_value) = (exact_duration(value), exact_duration(least));
    Err(ConfigError::TooSmall { key, value, bound, bound_value })
}

fn at_least_one(key: &'static str, value: u64) -> Result<(), ConfigError> {
    if value > 0 {
        return Ok(());
    }
    let (value, bound_value) = (value.to_string(), "0".to_owned());
    Err(ConfigError::TooSmall { key, value, bound: "none", bound_value })
}

impl Default for Retention {
    fn default() -> Self {
        Retention { age: Duration::from_secs(90 * 86_400), bytes: 10 << 30 }
    }
}

impl Default for SnapshotEvery {
    fn default() -> Self {
        // A command costs about 12 µs to apply again, the snapshot before it 2 s: a start stays below 10 s
        // of one core.
        SnapshotEvery { bytes: 256 << 20, commands: 500_000 }
    }
}

/// Why a value of two parts is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Neither a duration nor a size.
    #[error("`{text}` is no age ({age}) and no size ({size}): write for example 90d, 10GiB")]
    NoRetention {
        /// The part.
        text: String,
        /// Why it is no duration.
        age: DurationError,
        /// Why it is no size.
        size: SizeError,
    },
    /// Neither a size nor a count of commands.
    #[error(
        "`{text}` is no distance between snapshots: write for example 256MiB or 500000 commands"
    )]
    NoDistance {
        /// The part.
        text: String,
    },
}

impl std::str::FromStr for Retention {
    type Err = PartError;

    fn from_str(text: &str) -> Result<Self, PartError> {
        let mut parsed = Retention::default();
        for part in parts(text) {
            match (duration(part), size(part)) {
                (Ok(age), _) => parsed.age = age,
                (_, Ok(bytes)) => parsed.bytes = bytes,
                (Err(age), Err(size)) => {
                    return Err(PartError::NoRetention { text: part.to_owned(), age, size });
                }
            }
        }
        Ok(parsed)
    }
}

impl std::str::FromStr for SnapshotEvery {
    type Err = PartError;

    fn from_str(text: &str) -> Result<Self, PartError> {
        let mut parsed = SnapshotEvery::default();
        for part in parts(text) {
            let none = || PartError::NoDistance { text: part.to_owned() };
            match part.strip_suffix("commands") {
                Some(count) => parsed.commands = count.trim().parse().map_err(|_| none())?,
                None => parsed.bytes = size(part).map_err(|_| none())?,
            }
        }
        Ok(parsed)
    }
}

/// `a, b` and `a or b`.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').flat_map(|part| part.split(" or ")).map(str::trim)
}

impl std::fmt::Display for Retention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", exact_duration(self.age), exact_size(self.bytes))
    }
}

impl std::fmt::Display for SnapshotEvery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} or {} commands", exact_size(self.bytes), self.commands)
    }
}

macro_rules! serde_as_text {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(de::Error::custom)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    };
}
serde_as_text!(Retention);
serde_as_text!(SnapshotEvery);

mod human_duration {
    use super::*;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        units::duration(&text).map_err(|why| de::Error::custom(format!("`{text}`: {why}")))
    }

    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&exact_duration(*duration))
    }
}

pub(crate) mod human_duration_option {
    use super::*;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        human_duration::deserialize(from).map(Some)
    }

    pub fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => human_duration::serialize(duration, to),
            None => to.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn an_empty_section_is_the_default_and_reads_back_as_written() {
        let default = parse("").unwrap();
        assert_eq!(default, Config::default());
        let written = toml::to_string(&default).unwrap();
        assert_eq!(parse(&written).unwrap(), default, "{written}");
    }

    #[test]
    fn values_have_units_and_unknown_keys_are_refused() {
        let config = parse(
            "heartbeat_timeout = '3s'\nsnapshot_every = '1MiB or 50 commands'\n\
             history_retention = '2d'\nmax_time = '1h'\non_disconnect = 'unknown'",
        )
        .unwrap();
        assert_eq!(config.heartbeat_timeout, Duration::from_secs(3));
        assert_eq!(config.snapshot_every, SnapshotEvery { bytes: 1 << 20, commands: 50 });
        assert_eq!(config.history_retention.age, Duration::from_secs(2 * 86_400));
        assert_eq!(config.policy().max_time_ms, Some(3_600_000));
        assert_eq!(config.policy().on_disconnect(), v1::OnDisconnect::Unknown);
        assert!(parse("heartbeat_timeout = '3'").is_err());
        assert!(parse("heartbeat_timeout = 3").is_err());
        assert!(parse("heartbeat_timeuot = '3s'").is_err());
        assert!(parse("snapshot_every = 'x commands'").is_err());
    }

    #[test]
    fn queues_and_weights_seed_the_ledger_and_are_checked() {
        let text =
            "age_weight = 5\nuser_max_cpus = 8\n[queues.short]\nmax_time = '1h'\npriority = 10";
        let mut config = parse(text).unwrap();
        config.data = "/tmp/x".into();
        assert_eq!(config.check(), Ok(()));
        let policy = config.policy();
        assert_eq!((policy.age_weight, policy.user_max_cpus), (Some(5), Some(8)));
        assert!(policy.closed_queues, "other names are refused");
        let short = policy.queues.first().map(|q| (&*q.name, q.max_time_ms, q.priority));
        assert_eq!(short, Some(("short", Some(3_600_000), 10)));
        let written = toml::to_string(&config).unwrap();
        assert_eq!(parse(&written).unwrap().queues, config.queues, "{written}");
        assert!(parse("[queues.short]\nmax_task = 1").is_err());
        config.age_weight = 0;
        assert!(matches!(config.check(), Err(ConfigError::Policy { .. })));
    }

    #[test]
    fn relations_between_values_are_checked() {
        assert_eq!(Config::default().check(), Err(ConfigError::NoData));
        let good = Config::new("/tmp/x");
        assert_eq!(good.check(), Ok(()));
        let bad = Config { fence_after: Duration::from_secs(30), ..good };
        let message = bad.check().unwrap_err().to_string();
        let expected = "`fence_after` is 30s: it must be more than heartbeat_timeout, which is 30s";
        assert_eq!(message, expected);
    }

    #[test]
    fn differences_name_the_key_and_both_values() {
        let config = Config::default();
        assert_eq!(config.differences(&config.policy()), []);
        let ledger = v1::Policy { max_queue: 5, ..config.policy() };
        let expected = [("max_queue", "1000000".to_owned(), "5".to_owned())];
        assert_eq!(config.differences(&ledger), expected);
    }
}
