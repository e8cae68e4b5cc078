//! `DIR/agent.state`, the agent's one small file (design 6): who it is, its incarnation, and the
//! highest (cluster, generation, term) it saw. Text, a line a value, a checksum at the end; replaced
//! as a whole by temporary file, fsync, rename, fsync of the directory.
//!
//! It never guesses: a damaged file is refused by name, for a lost incarnation or term could make
//! this agent obey a leader that is none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;
use worker_agent_core::Saved;

const HEADER: &str = "docket-agent 1";

/// The file of one data directory.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

/// A state file that cannot be used.
#[derive(Debug, Error)]
pub enum StateFileError {
    /// Reading or writing failed.
    #[error("cannot {action} {path}: {source}; check the disk and the rights of the directory")]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what this program wrote.
    #[error(
        "{path} is damaged ({what}): restore it, or remove it to join as a new node; jobs of the \
         old one that still run are then listed as strays"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A newer program wrote it.
    #[error("{path} was written by a newer docket (`{header}`): start that version here")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its first line.
        header: String,
    },
}

impl StateFile {
    /// The file in this directory; nothing is read yet.
    pub fn new(dir: &Path) -> Self {
        StateFile { path: dir.join("agent.state") }
    }

    /// What was saved last; `None` at the first start.
    pub fn load(&self) -> Result<Option<Saved>, StateFileError> {
        let text = match fs::read(&self.path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.io("read", source)),
        };
        let header = text.lines().next().unwrap_or_default();
        if header.starts_with("docket-agent ") && header != HEADER && checksum_holds(&text) {
            let header = header.to_owned();
            return Err(StateFileError::Newer { path: self.path.clone(), header });
        }
        let damaged = |what| StateFileError::Damaged { path: self.path.clone(), what };
        if !checksum_holds(&text) {
            return Err(damaged("its checksum does not fit"));
        }
        parse(&text).map(Some).ok_or_else(|| damaged("a value is missing or malformed"))
    }

    /// Replaces what is saved; durable when it returns.
    pub fn save(&self, saved: &Saved) -> Result<(), StateFileError> {
        self.replace(&render(saved)).map_err(|source| self.io("write", source))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let temporary = self.path.with_extension("state.tmp");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        match self.path.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }

    fn io(&self, action: &'static str, source: io::Error) -> StateFileError {
        StateFileError::Io { action, path: self.path.clone(), source }
    }
}

fn render(saved: &Saved) -> String {
    let Saved { agent_id, incarnation, cluster_id, generation, term } = saved;
    let body = format!(
        "{HEADER}\nagent_id {agent_id}\nincarnation {incarnation}\ncluster_id {cluster_id}\n\
         generation {generation}\nterm {term}\n"
    );
    format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()))
}

/// The last line is the checksum of all before it.
fn checksum_holds(text: &str) -> bool {
    let Some(at) = text.rfind("crc32c ") else { return false };
    let (body, line) = text.split_at(at);
    line == format!("crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()))
}

fn parse(text: &str) -> Option<Saved> {
    let mut lines = text.lines().skip(1);
    let mut value = |name: &str| {
        let (key, value) = lines.next()?.split_once(' ')?;
        (key == name).then(|| value.to_owned())
    };
    Some(Saved {
        agent_id: value("agent_id").filter(|id| !id.is_empty())?,
        incarnation: value("incarnation")?.parse().ok()?,
        cluster_id: value("cluster_id")?,
        generation: value("generation")?.parse().ok()?,
        term: value("term")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn saved(incarnation: u64) -> Saved {
        Saved {
            agent_id: "a1b2".into(),
            incarnation,
            cluster_id: if incarnation > 1 { "c-9".into() } else { String::new() },
            generation: 1,
            term: 7,
        }
    }

    #[test]
    fn what_is_saved_is_loaded_and_only_the_owner_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::new(dir.path());
        assert_eq!(file.load().unwrap(), None);
        for incarnation in 1..4 {
            file.save(&saved(incarnation)).unwrap();
            assert_eq!(file.load().unwrap(), Some(saved(incarnation)));
        }
        assert_eq!(fs::metadata(&file.path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_torn_write_of_the_temporary_file_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::new(dir.path());
        file.save(&saved(3)).unwrap();
        let text = render(&saved(4));
        for cut in 0..text.len() {
            fs::write(file.path.with_extension("state.tmp"), &text[..cut]).unwrap();
            assert_eq!(file.load().unwrap(), Some(saved(3)));
        }
        file.save(&saved(5)).unwrap();
        assert_eq!(file.load().unwrap(), Some(saved(5)));
    }

    #[test]
    fn a_file_cut_or_flipped_anywhere_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::new(dir.path());
        let text = render(&saved(4)).into_bytes();
        for at in 0..text.len() {
            fs::write(&file.path, &text[..at]).unwrap();
            assert!(file.load().is_err(), "cut at {at}");
            let mut flipped = text.clone();
            flipped[at] ^= 1;
            fs::write(&file.path, &flipped).unwrap();
            let error = file.load().unwrap_err().to_string();
            assert!(error.contains("agent.state"), "flip at {at}: {error}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_by_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::new(dir.path());
        let body = "docket-agent 2\nwhatever\n";
        let sum = crc32c::crc32c(body.as_bytes());
        fs::write(&file.path, format!("{body}crc32c {sum:08x}\n")).unwrap();
        assert!(matches!(file.load(), Err(StateFileError::Newer { .. })));
    }
}
