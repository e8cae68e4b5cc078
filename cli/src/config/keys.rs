//! Every key of the configuration, once.

/// What a value is made of, and so how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text; the part of docket that reads it checks it.
    Text,
    /// `90s`.
    Duration,
    /// `2G`.
    Size,
    /// A whole number.
    Count,
    /// `true` or `false`.
    Flag,
    /// A list of texts; in the environment separated by commas.
    Words,
    /// A table of texts; in the environment `k=v` separated by commas.
    Labels,
    /// A table of whole numbers; in the environment `k=N` separated by commas.
    Amounts,
    /// A table of tables; in the environment `NAME.KEY=VALUE` separated by commas.
    Queues,
}

/// One key.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Section.
    pub section: &'static str,
    /// Name.
    pub name: &'static str,
    /// What its value is made of.
    pub kind: Kind,
    /// Default, as it is written; empty: none that is fixed.
    pub usual: &'static str,
}

const fn key(section: &'static str, name: &'static str, kind: Kind, usual: &'static str) -> Key {
    Key { section, name, kind, usual }
}

/// All keys, in the order of design 7.
pub const KEYS: [Key; 43] = [
    key("client", "server", Kind::Text, ""),
    key("controller", "data", Kind::Text, ""),
    key("controller", "listen", Kind::Text, "127.0.0.1:7460"),
    key("controller", "http", Kind::Text, "127.0.0.1:7461"),
    key("controller", "advertise", Kind::Text, ""),
    key("controller", "admins", Kind::Words, ""),
    key("controller", "heartbeat_timeout", Kind::Duration, "30s"),
    key("controller", "transient_job_timeout", Kind::Duration, "5m"),
    key("controller", "unknown_finish_ttl", Kind::Duration, "1m"),
    key("controller", "unknown_finish_max", Kind::Count, "65536"),
    key("controller", "on_disconnect", Kind::Text, "exit"),
    key("controller", "max_queue", Kind::Count, "1000000"),
    key("controller", "job_ttl", Kind::Duration, "7d"),
    key("controller", "max_completed", Kind::Count, "100000"),
    key("controller", "fence_after", Kind::Duration, "10m"),
    key("controller", "default_time", Kind::Duration, ""),
    key("controller", "max_time", Kind::Duration, ""),
    key("controller", "resources", Kind::Amounts, ""),
    key("controller", "priority_weight", Kind::Count, "1"),
    key("controller", "age_weight", Kind::Count, "1"),
    key("controller", "share_weight", Kind::Count, "100"),
    key("controller", "user_max_tasks", Kind::Count, ""),
    key("controller", "user_max_cpus", Kind::Count, ""),
    key("controller", "user_max_queue", Kind::Count, ""),
    key("controller", "queues", Kind::Queues, ""),
    key("controller", "history_retention", Kind::Text, "90d, 10GiB"),
    key("controller", "snapshot_every", Kind::Text, "256MiB or 500000 commands"),
    key("controller", "raft_heartbeat", Kind::Duration, "100ms"),
    key("controller", "raft_election_timeout", Kind::Duration, "500ms"),
    key("agent", "data", Kind::Text, ""),
    key("agent", "controllers", Kind::Words, ""),
    key("agent", "name", Kind::Text, ""),
    key("agent", "cpus", Kind::Count, ""),
    key("agent", "mem", Kind::Size, ""),
    key("agent", "gpus", Kind::Count, "0"),
    key("agent", "resources", Kind::Amounts, ""),
    key("agent", "labels", Kind::Labels, ""),
    key("agent", "heartbeat_interval", Kind::Duration, "10s"),
    key("agent", "kill_grace", Kind::Duration, "10s"),
    key("agent", "run_retention", Kind::Duration, "30d"),
    key("agent", "run_space", Kind::Text, "20%"),
    key("agent", "run_files", Kind::Count, "1000000"),
    key("agent", "output_max", Kind::Size, "10G"),
];

/// The one key whose default depends on the role: true in `docket up`, false in `docket agent`.
pub const ALLOW_ROOT_JOBS: Key = key("agent", "allow_root_jobs", Kind::Flag, "");

/// The sections, in order.
pub const SECTIONS: [&str; 3] = ["client", "controller", "agent"];

impl Key {
    /// `controller.listen`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Every key.
    pub fn all() -> impl Iterator<Item = &'static Key> {
        KEYS.iter().chain(std::iter::once(&ALLOW_ROOT_JOBS))
    }

    /// The key of that name.
    pub fn find(section: &str, name: &str) -> Option<&'static Key> {
        Key::all().find(|key| key.section == section && key.name == name)
    }
}
