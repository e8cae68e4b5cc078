//! The `[agent]` section of the configuration (design 7): parsed once, at the edge, into typed
//! values; unknown keys and values without a unit are refused.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use units::{exact_duration, exact_size, size};

/// Smallest `output_max`.
const OUTPUT_MAX_LEAST_BYTES: u64 = 64 << 10;

/// What an agent is told. Options and environment are laid over the file before this is read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Data directory: `agent.state`, `keeper.sock`, `journal/`, `runs/`.
    pub data: PathBuf,
    /// `host:port` of the voters. Read by the command line, which makes the connector of it.
    pub controllers: Vec<String>,
    /// Node name; empty: the host name.
    pub name: String,
    /// Cpus to offer; absent: what affinity and cgroup quota allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory to offer in bytes; absent: that of the machine or of the cgroup.
    #[serde(with = "human_size_option", skip_serializing_if = "Option::is_none")]
    pub mem: Option<u64>,
    /// GPUs to offer: those with the numbers from 0 on, as programs count them.
    pub gpus: u32,
    /// Named consumables to offer, and how much of each.
    pub resources: BTreeMap<String, u64>,
    /// What `--node-label` of a job is compared with.
    pub labels: BTreeMap<String, String>,
    /// Between heartbeats; at most a third of the controller's `heartbeat_timeout`.
    #[serde(with = "human_duration")]
    pub heartbeat_interval: Duration,
    /// Between SIGTERM and SIGKILL, where the job says nothing.
    #[serde(with = "human_duration")]
    pub kill_grace: Duration,
    /// How long outputs of finished attempts are kept.
    #[serde(with = "human_duration")]
    pub run_retention: Duration,
    /// How much of the disk they may take.
    pub run_space: RunSpace,
    /// How many files they may be.
    pub run_files: u64,
    /// Bytes of one output in the run directory that are kept: of a longer one its first quarter
    /// and its end.
    #[serde(with = "human_size")]
    pub output_max: u64,
    /// Whether an agent of root runs jobs of root (design 5).
    pub allow_root_jobs: bool,
}

/// A share of the file system (`20%`) or a size (`10GiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunSpace {
    /// Percent of the file system's size, 1 to 100.
    Percent(u8),
    /// Bytes.
    Bytes(u64),
}

/// A configuration that cannot work.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Nowhere to keep state.
    #[error("no data directory: give --data DIR or `data` in [agent]")]
    NoData,
    /// Below 10 ms heartbeats are all that the agent does.
    #[error("`heartbeat_interval` is {0}: it must be from 10ms to 1h")]
    Interval(String),
    /// A node that offers no cpu runs nothing.
    #[error("`cpus` is 0: a node must offer at least one")]
    NoCpus,
    /// No name of a consumable.
    #[error("`resources`: {0:?} is no name: it has 1 to 64 letters, digits, - _ .")]
    ResourceName(String),
    /// What is cut lies at whole pages, and what is kept must be worth reading.
    #[error("`output_max` is {0}: it must be at least {least}", least = exact_size(OUTPUT_MAX_LEAST_BYTES))]
    OutputMax(String),
}

impl Default for Config {
    fn default() -> Self {
        Config {
            data: PathBuf::new(),
            controllers: Vec::new(),
            name: String::new(),
            cpus: None,
            mem: None,
            gpus: 0,
            resources: BTreeMap::new(),
            labels: BTreeMap::new(),
            heartbeat_interval: Duration::from_secs(10),
            kill_grace: Duration::from_secs(10),
            run_retention: Duration::from_secs(30 * 86_400),
            run_space: RunSpace::Percent(20),
            run_files: 1_000_000,
            output_max: 10 << 30,
            allow_root_jobs: false,
        }
    }
}

impl Config {
    /// What can be seen to be wrong before anything is started.
    ///
    /// # Errors
    /// The first value that cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.data.as_os_str().is_empty() {
            return Err(ConfigError::NoData);
        }
        let sane = Duration::from_millis(10)..=Duration::from_secs(3600);
        if !sane.contains(&self.heartbeat_interval) {
            return Err(ConfigError::Interval(exact_duration(self.heartbeat_interval)));
        }
        if self.cpus == Some(0) {
            return Err(ConfigError::NoCpus);
        }
        if let Some(name) = self.resources.keys().find(|name| !is_resource_name(name)) {
            return Err(ConfigError::ResourceName(name.clone()));
        }
        if self.output_max < OUTPUT_MAX_LEAST_BYTES {
            return Err(ConfigError::OutputMax(exact_size(self.output_max)));
        }
        Ok(())
    }

    /// The node's name: as configured, else the host's.
    pub fn node_name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }
}

/// As the ledger takes them.
fn is_resource_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(letter)
}

impl RunSpace {
    fn parse(text: &str) -> Result<Self, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return size(text).map(RunSpace::Bytes).map_err(|why| format!("`{text}`: {why}"));
        };
        match percent.parse() {
            Ok(share @ 1..=100) => Ok(RunSpace::Percent(share)),
            _ => Err(format!("`{text}` is no share of the disk: write 1% to 100%, or a size")),
        }
    }
}

impl<'de> Deserialize<'de> for RunSpace {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        RunSpace::parse(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

impl Serialize for RunSpace {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            RunSpace::Percent(share) => to.serialize_str(&format!("{share}%")),
            RunSpace::Bytes(bytes) => to.serialize_str(&exact_size(*bytes)),
        }
    }
}

mod human_duration {
    use super::*;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        units::duration(&text).map_err(|why| de::Error::custom(format!("`{text}`: {why}")))
    }

    pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&exact_duration(*value))
    }
}

mod human_size {
    use super::*;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        units::size(&text).map_err(|why| de::Error::custom(format!("`{text}`: {why}")))
    }

    pub fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&exact_size(*value))
    }
}

mod human_size_option {
    use super::*;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        human_size::deserialize(from).map(Some)
    }

    pub fn serialize<S: Serializer>(value: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => human_size::serialize(bytes, to),
            None => to.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_design_is_read_and_written_back() {
        let text = r#"
            data = "/d"
            controllers = ["c1:7460"]
            name = "n1"
            cpus = 4
            mem = "2GiB"
            gpus = 1
            heartbeat_interval = "1s500ms"
            kill_grace = "5s"
            run_retention = "2d"
            run_space = "10GiB"
            run_files = 7
            output_max = "1MiB"
            allow_root_jobs = true
            [labels]
            disk = "ssd"
            [resources]
            scratch = 4
        "#;
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.mem, Some(2 << 30));
        assert_eq!(config.run_space, RunSpace::Bytes(10 << 30));
        assert_eq!(config.heartbeat_interval, Duration::from_millis(1500));
        let written = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&written).unwrap(), config);
    }

    #[test]
    fn an_empty_section_means_the_defaults_of_the_design() {
        let config: Config = toml::from_str("").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.check(), Err(ConfigError::NoData));
        assert_eq!(config.run_space, RunSpace::Percent(20));
        assert!(!config.node_name().is_empty());
    }

    #[test]
    fn a_bound_of_outputs_that_keeps_nothing_is_refused_by_name() {
        let config: Config = toml::from_str("data = \"/d\"\noutput_max = \"64KiB\"").unwrap();
        assert_eq!(config.check(), Ok(()));
        let config: Config = toml::from_str("data = \"/d\"\noutput_max = \"63KiB\"").unwrap();
        let said = config.check().unwrap_err().to_string();
        assert_eq!(said, "`output_max` is 63K: it must be at least 64K");
    }

    #[test]
    fn unknown_keys_and_bare_numbers_are_refused() {
        let config: Config = toml::from_str("data = \"/d\"\n[resources]\n\"a b\" = 1").unwrap();
        assert_eq!(config.check(), Err(ConfigError::ResourceName("a b".to_owned())));
        for text in ["nme = \"n1\"", "heartbeat_interval = \"10\"", "run_space = \"0%\"", "mem = 5"]
        {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
        }
    }
}
