//! Values that commands hand to renderers and that are no messages of the wire.

use std::collections::BTreeMap;

/// What stands under a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListSummary {
    /// Tasks by state, of all that the filter matches.
    pub counts: BTreeMap<String, u64>,
    /// Ended ones that the window left out.
    pub older_ended: u64,
    /// The window in words, such as `hour`; `None`: all were asked for.
    pub window: Option<String>,
    /// More match than are shown.
    pub cut: bool,
}

/// One key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingRow {
    /// `controller.listen`.
    pub key: String,
    /// What is in force; `None`: nothing is set and there is no fixed default.
    pub value: Option<String>,
    /// Where it came from.
    pub source: String,
}

/// How a thing that `doctor` looked at is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// As it should be.
    Good,
    /// It works, with less than there could be.
    Note,
    /// Something will not work.
    Bad,
}

/// One thing that `doctor` looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What it is.
    pub what: &'static str,
    /// How it is.
    pub health: Health,
    /// What was found, and what to do if it is bad.
    pub found: String,
}

impl Health {
    /// As it is written in every form.
    pub fn name(self) -> &'static str {
        match self {
            Health::Good => "ok",
            Health::Note => "note",
            Health::Bad => "bad",
        }
    }
}
