//! Values from file, environment and options, laid over each other.

use super::keys::SECTIONS;
use super::{ConfigError, Key, Kind};
use crate::parse::nearest;
use crate::render::SettingRow;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::{Table, Value};
use units::{exact_duration, exact_size};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// A variable.
    Env(String),
    /// An option, or what a role decides for itself.
    Option(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Env(name) => write!(f, "env {name}"),
            Source::Option(name) => write!(f, "option {name}"),
        }
    }
}

/// The values that are set; what is not here has its default.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    set: BTreeMap<(&'static str, &'static str), (Value, Source)>,
}

impl Settings {
    /// Reads the file (the named one, else the first of the usual ones) and the environment.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let mut settings = Settings::default();
        if let Some(path) = config_file(file) {
            let text = std::fs::read_to_string(&path)
                .map_err(|why| ConfigError::Read { path: path.clone(), why })?;
            settings.read_file(&path, &text)?;
        }
        settings.read_env(std::env::vars_os())?;
        Ok(settings)
    }

    /// Lays a file over what is set.
    fn read_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        for (section, value) in parsed(path, text)? {
            let place = path.display().to_string();
            let Some(table) = value.as_table().filter(|_| SECTIONS.contains(&section.as_str()))
            else {
                let nearest = nearest(&section, SECTIONS).map(str::to_owned);
                return Err(ConfigError::Section { place, section, nearest });
            };
            for (name, value) in table {
                let key = known(&section, name, &place)?;
                self.put(key, value.clone(), Source::File(path.to_owned()))?;
            }
        }
        Ok(())
    }

    /// Lays variables of the form `DOCKET_SECTION__KEY` over what is set.
    fn read_env(
        &mut self,
        vars: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), ConfigError> {
        for (variable, value) in vars {
            let Some(variable) = variable.to_str() else { continue };
            let Some((section, name)) = variable
                .strip_prefix("DOCKET_")
                .and_then(|rest| rest.split_once("__"))
                .map(|(section, name)| (section.to_lowercase(), name.to_lowercase()))
            else {
                continue;
            };
            let place = variable.to_owned();
            if !SECTIONS.contains(&section.as_str()) {
                let nearest = nearest(&section, SECTIONS).map(str::to_owned);
                return Err(ConfigError::Section { place, section, nearest });
            }
            let key = known(&section, &name, variable)?;
            let text = value.to_str().ok_or_else(|| ConfigError::Value {
                place,
                key: key.path(),
                why: "not UTF-8".to_owned(),
            })?;
            self.put_text(key, text, Source::Env(variable.to_owned()))?;
        }
        Ok(())
    }

    /// Lays an option over what is set. The key must exist: its name is a literal of a role.
    pub fn put_option(
        &mut self,
        section: &str,
        name: &str,
        text: &str,
        option: &'static str,
    ) -> Result<(), ConfigError> {
        let key = known(section, name, option)?;
        self.put_text(key, text, Source::Option(option))
    }

    /// The text of a value that is set.
    pub fn text(&self, section: &str, name: &str) -> Option<String> {
        let key = Key::find(section, name)?;
        self.set.get(&(key.section, key.name)).map(|(value, _)| shown(value))
    }

    /// Where a value came from; `None`: it is the default.
    pub fn source(&self, section: &str, name: &str) -> Option<&Source> {
        let key = Key::find(section, name)?;
        self.set.get(&(key.section, key.name)).map(|(_, source)| source)
    }

    /// The section as its part of docket reads it.
    pub fn section<T: DeserializeOwned>(&self, section: &str) -> Result<T, ConfigError> {
        let mut table = Table::new();
        for ((_, name), (value, source)) in self.set.iter().filter(|((s, _), _)| *s == section) {
            // Each by itself first, so that an error names its key and where it stands.
            let one: Table = [((*name).to_owned(), value.clone())].into_iter().collect();
            Value::Table(one).try_into::<T>().map_err(|error| ConfigError::Value {
                place: source.to_string(),
                key: format!("{section}.{name}"),
                why: one_line(error.message()),
            })?;
            table.insert((*name).to_owned(), value.clone());
        }
        Value::Table(table).try_into().map_err(|error| ConfigError::Value {
            place: "configuration".to_owned(),
            key: section.to_owned(),
            why: one_line(error.message()),
        })
    }

    /// Every key with its value and source.
    pub fn rows(&self) -> Vec<SettingRow> {
        let row = |key: &'static Key| match self.set.get(&(key.section, key.name)) {
            Some((value, source)) => SettingRow {
                key: key.path(),
                value: Some(shown(value)),
                source: source.to_string(),
            },
            None => SettingRow {
                key: key.path(),
                value: Some(key.usual.to_owned()).filter(|text| !text.is_empty()),
                source: "default".to_owned(),
            },
        };
        Key::all().map(row).collect()
    }

    fn put_text(
        &mut self,
        key: &'static Key,
        text: &str,
        source: Source,
    ) -> Result<(), ConfigError> {
        let wrong = |why: &str| ConfigError::Value {
            place: source.to_string(),
            key: key.path(),
            why: why.to_owned(),
        };
        let words = || text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let value = match key.kind {
            Kind::Text | Kind::Duration | Kind::Size => Value::String(text.to_owned()),
            Kind::Count => {
                Value::Integer(text.parse().map_err(|_| wrong("must be a whole number"))?)
            }
            Kind::Flag => Value::Boolean(text.parse().map_err(|_| wrong("must be true or false"))?),
            Kind::Words => Value::Array(words().map(Value::from).collect()),
            Kind::Labels => {
                let mut table = Table::new();
                for word in words() {
                    let (name, label) =
                        crate::parse::label(word).map_err(|e| wrong(&e.to_string()))?;
                    table.insert(name, Value::String(label));
                }
                Value::Table(table)
            }
            Kind::Amounts => Value::Table(amounts(words(), &wrong)?),
            Kind::Queues => Value::Table(queues(words(), &wrong)?),
        };
        self.put(key, value, source)
    }

    fn put(&mut self, key: &'static Key, value: Value, source: Source) -> Result<(), ConfigError> {
        let value = checked(key.kind, value).map_err(|why| ConfigError::Value {
            place: source.to_string(),
            key: key.path(),
            why,
        })?;
        self.set.insert((key.section, key.name), (value, source));
        Ok(())
    }
}

/// `client.server` of the usual file, with the file's path: all that a command needs of it.
pub fn client_server() -> Result<Option<(PathBuf, String)>, ConfigError> {
    let Some(path) = config_file(None) else { return Ok(None) };
    let text = std::fs::read_to_string(&path)
        .map_err(|why| ConfigError::Read { path: path.clone(), why })?;
    let server = parsed(&path, &text)?
        .get("client")
        .and_then(|client| client.get("server"))
        .and_then(Value::as_str)
        .map(str::to_owned);
    Ok(server.map(|server| (path, server)))
}

/// The file that is read: the named one, `DOCKET_CONFIG`, or the first usual one that exists.
pub fn config_file(named: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = named {
        return Some(path.to_owned());
    }
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = set("DOCKET_CONFIG") {
        return Some(path);
    }
    let home = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    home.map(|dir| dir.join("docket/docket.toml"))
        .into_iter()
        .chain([PathBuf::from("/etc/docket/docket.toml")])
        .find(|path| path.exists())
}

fn parsed(path: &Path, text: &str) -> Result<Table, ConfigError> {
    text.parse::<Table>().map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1);
        let why = format!("line {line}: {}", one_line(error.message()));
        ConfigError::Syntax { path: path.to_owned(), why }
    })
}

fn known(section: &str, name: &str, place: &str) -> Result<&'static Key, ConfigError> {
    Key::find(section, name).ok_or_else(|| {
        let names = Key::all().filter(|key| key.section == section).map(|key| key.name);
        ConfigError::Key {
            place: place.to_owned(),
            section: section.to_owned(),
            key: name.to_owned(),
            nearest: nearest(name, names).map(str::to_owned),
        }
    })
}

/// The value in the form that every reader takes: durations and sizes exact, in docket's own form.
fn checked(kind: Kind, value: Value) -> Result<Value, String> {
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Err(number.to_string()),
        other => Err(format!("must be a text, not {}", other.type_str())),
    };
    match kind {
        Kind::Text => text(value).map(Value::String),
        Kind::Duration => {
            let text = text(value).unwrap_or_else(|number| number);
            let time = units::duration(&text).map_err(|error| format!("{text}: {error}"))?;
            Ok(Value::String(exact_duration(time)))
        }
        Kind::Size => {
            let text = text(value).unwrap_or_else(|number| number);
            let bytes = units::size(&text).map_err(|error| format!("{text}: {error}"))?;
            Ok(Value::String(exact_size(bytes)))
        }
        Kind::Count => match value {
            Value::Integer(0..) => Ok(value),
            _ => Err("must be a whole number, 0 or more".to_owned()),
        },
        Kind::Flag => match value {
            Value::Boolean(_) => Ok(value),
            _ => Err("must be true or false".to_owned()),
        },
        Kind::Words => match &value {
            Value::Array(words) if words.iter().all(Value::is_str) => Ok(value),
            _ => Err("must be a list of texts".to_owned()),
        },
        Kind::Queues => match &value {
            Value::Table(queues) if queues.values().all(Value::is_table) => Ok(value),
            _ => Err("must be a table for each queue".to_owned()),
        },
        Kind::Amounts => match &value {
            Value::Table(all) if all.values().all(|n| matches!(n, Value::Integer(0..))) => {
                Ok(value)
            }
            _ => Err("must be a table of whole numbers, 0 or more".to_owned()),
        },
        Kind::Labels => match &value {
            Value::Table(labels) if labels.values().all(Value::is_str) => Ok(value),
            _ => Err("must be a table of texts".to_owned()),
        },
    }
}

/// Amounts as the environment has them: `matlab=2,ansys=1`.
fn amounts<'a>(
    words: impl Iterator<Item = &'a str>,
    wrong: &dyn Fn(&str) -> ConfigError,
) -> Result<Table, ConfigError> {
    let mut all = Table::new();
    for word in words {
        let pair = word.split_once('=').and_then(|(name, n)| Some((name, n.parse().ok()?)));
        let (name, amount): (&str, i64) =
            pair.ok_or_else(|| wrong(&format!("{word}: write NAME=N")))?;
        all.insert(name.to_owned(), Value::Integer(amount));
    }
    Ok(all)
}

/// Queues as the environment has them: `short.max_tasks=4,short.users=mia+tom`.
fn queues<'a>(
    words: impl Iterator<Item = &'a str>,
    wrong: &dyn Fn(&str) -> ConfigError,
) -> Result<Table, ConfigError> {
    let mut all = Table::new();
    for word in words {
        let parts =
            word.split_once('=').and_then(|(key, value)| Some((key.split_once('.')?, value)));
        let ((name, key), value) =
            parts.ok_or_else(|| wrong(&format!("{word}: write NAME.KEY=VALUE")))?;
        let value = match (key, value.parse()) {
            ("users", _) => Value::Array(value.split('+').map(Value::from).collect()),
            (_, Ok(number)) => Value::Integer(number),
            (_, Err(_)) => Value::from(value),
        };
        let queue = all.entry(name).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(queue) = queue {
            queue.insert(key.to_owned(), value);
        }
    }
    Ok(all)
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(words) => words.iter().map(shown).collect::<Vec<_>>().join(","),
        Value::Table(table) => {
            let pair = |(name, value): (&String, &Value)| match value {
                Value::Table(queue) => {
                    let key = |(key, value): (&String, &Value)| {
                        format!("{name}.{key}={}", shown(value).replace(',', "+"))
                    };
                    queue.iter().map(key).collect::<Vec<_>>().join(",")
                }
                value => format!("{name}={}", shown(value)),
            };
            table.iter().map(pair).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/etc/docket/docket.toml";

    fn with_file(text: &str) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        settings.read_file(Path::new(FILE), text).map(|()| settings)
    }

    fn env(settings: &mut Settings, name: &str, value: &str) -> Result<(), ConfigError> {
        settings.read_env([(OsString::from(name), OsString::from(value))])
    }

    #[test]
    fn an_option_beats_the_environment_which_beats_the_file() {
        let mut settings = with_file("[controller]\nlisten = '127.0.0.1:1'\n").unwrap();
        let place = |s: &Settings| {
            let source = s.source("controller", "listen").map(ToString::to_string);
            (s.text("controller", "listen"), source)
        };
        assert_eq!(place(&settings).1.as_deref(), Some("file /etc/docket/docket.toml"));
        env(&mut settings, "DOCKET_CONTROLLER__LISTEN", "127.0.0.1:2").unwrap();
        assert_eq!(place(&settings).1.as_deref(), Some("env DOCKET_CONTROLLER__LISTEN"));
        settings.put_option("controller", "listen", "127.0.0.1:3", "--listen").unwrap();
        assert_eq!(
            place(&settings),
            (Some("127.0.0.1:3".to_owned()), Some("option --listen".to_owned()))
        );
        assert_eq!(Settings::default().source("controller", "listen"), None);
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_the_nearest() {
        let wrong = |text: &str| with_file(text).unwrap_err().to_string();
        let text = wrong("[controller]\nheartbeat_time = '3s'\n");
        assert!(text.contains("nearest is heartbeat_timeout") && text.contains(FILE), "{text}");
        assert!(wrong("[controler]\n").contains("nearest is controller"));
        assert!(wrong("listen = 'x'\n").contains("no section [listen]"));
        assert!(wrong("[agent\n").contains("line 1"));
        let mut settings = Settings::default();
        let text = env(&mut settings, "DOCKET_AGENT__CPU", "1").unwrap_err().to_string();
        assert!(text.contains("nearest is cpus"), "{text}");
        assert!(env(&mut settings, "DOCKET_SERVER", "x").is_ok(), "no key, another variable");
        assert!(env(&mut settings, "DOCKET_AGNT__CPUS", "1").is_err());
    }

    #[test]
    fn values_are_checked_where_they_stand() {
        let wrong = |text: &str| with_file(text).unwrap_err().to_string();
        assert!(wrong("[agent]\nkill_grace = 10\n").contains("10s or 10m"));
        assert!(wrong("[agent]\nmem = '4'\n").contains("4G or 4M"));
        assert!(wrong("[agent]\ncpus = 'two'\n").contains("whole number"));
        assert!(wrong("[agent]\ncpus = -1\n").contains("whole number"));
        assert!(wrong("[controller]\nadmins = 'mia'\n").contains("list"));
        let mut settings = Settings::default();
        env(&mut settings, "DOCKET_AGENT__LABELS", "disk=ssd, rack=4").unwrap();
        assert_eq!(settings.text("agent", "labels").as_deref(), Some("disk=ssd,rack=4"));
        env(&mut settings, "DOCKET_CONTROLLER__RESOURCES", "matlab=2, ansys=0").unwrap();
        assert_eq!(settings.text("controller", "resources").as_deref(), Some("ansys=0,matlab=2"));
        assert!(env(&mut settings, "DOCKET_AGENT__RESOURCES", "scratch").is_err());
        assert!(wrong("[controller.resources]\nmatlab = '2'\n").contains("whole numbers"));
        env(&mut settings, "DOCKET_CONTROLLER__ADMINS", "mia,tom").unwrap();
        env(&mut settings, "DOCKET_AGENT__HEARTBEAT_INTERVAL", "00:01:30").unwrap();
        assert_eq!(settings.text("agent", "heartbeat_interval").as_deref(), Some("1m30s"));
    }

    #[test]
    fn queues_are_read_from_file_and_environment_and_shown_as_they_are_written() {
        let text = "[controller.queues.short]\nmax_tasks = 4\nusers = ['mia', 'tom']\n";
        let mut settings = with_file(text).unwrap();
        let shown = |settings: &Settings| settings.text("controller", "queues");
        assert_eq!(shown(&settings).as_deref(), Some("short.max_tasks=4,short.users=mia+tom"));
        let same = shown(&settings).unwrap();
        let section = |s: &Settings| s.section::<controller::Config>("controller").unwrap().queues;
        let from_file = section(&settings);
        env(&mut settings, "DOCKET_CONTROLLER__QUEUES", &same).unwrap();
        assert_eq!(section(&settings), from_file);
        assert!(env(&mut settings, "DOCKET_CONTROLLER__QUEUES", "max_tasks=4").is_err());
        assert!(with_file("[controller]\nqueues = 'short'\n").is_err());
    }

    #[test]
    fn the_defaults_that_are_shown_are_the_ones_in_force() {
        let mut shown = Settings::default();
        for key in Key::all().filter(|key| !key.usual.is_empty() && key.section != "client") {
            shown.put_option(key.section, key.name, key.usual, "test").unwrap();
        }
        let controller: controller::Config = shown.section("controller").unwrap();
        assert_eq!(controller, controller::Config::default());
        let agent: worker_agent::Config = shown.section("agent").unwrap();
        assert_eq!(agent, worker_agent::Config::default());
    }

    #[test]
    fn every_key_is_one_that_its_part_reads() {
        for key in Key::all().filter(|key| key.section != "client") {
            let text = match (key.kind, key.usual) {
                (_, usual) if !usual.is_empty() => usual,
                (Kind::Duration, _) => "1h",
                (Kind::Size, _) => "1G",
                (Kind::Count, _) => "1",
                (Kind::Flag, _) => "true",
                (Kind::Labels, _) => "a=b",
                (Kind::Amounts, _) => "a=2,b=0",
                (Kind::Queues, _) => "a.max_time=1h,a.users=mia+tom,a.max_tasks=4",
                (Kind::Text | Kind::Words, _) => "x",
            };
            let mut settings = Settings::default();
            settings.put_option(key.section, key.name, text, "test").unwrap();
            let read = match key.section {
                "controller" => settings.section::<controller::Config>("controller").map(|_| ()),
                _ => settings.section::<worker_agent::Config>("agent").map(|_| ()),
            };
            assert!(read.is_ok(), "{}: {read:?}", key.path());
        }
    }
}
