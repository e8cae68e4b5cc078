//! `DIR/agent.state`, the agent's one small file (design 6): who it is, its incarnation, and the
//! highest (cluster, generation, term) it saw. Text, a line a value, a checksum at the end.
//!
//! It lies there twice, each copy in a block of its own, and is written in place: a full disk cannot
//! keep an agent from saving its next incarnation. One copy is durable before the other is touched,
//! so a write that is cut off spoils one copy at most and the other is whole: the older or the newer
//! state. Only the first file is made beside and renamed.
//!
//! It never guesses: where no copy is whole the file is refused by name, for a lost incarnation or
//! term could make this agent obey a leader that is none.

use crate::home::Home;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use worker_agent_core::Saved;

const NAME: &str = "agent.state";

const HEADER: &str = "docket-agent 2";

/// The form before: one copy, replaced as a whole. It is read, and never written.
const HEADER_BEFORE: &str = "docket-agent 1";

/// One copy fills this: a block of the file system, so that no write touches both.
const COPY_BYTES: usize = 4096;

/// The file of one data directory.
#[derive(Clone, Debug)]
pub struct StateFile {
    home: Arc<Home>,
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
    /// The file in this directory, under whatever name that is later; nothing is read yet.
    pub fn new(home: Arc<Home>) -> Self {
        StateFile { home }
    }

    /// To open it.
    fn path(&self) -> PathBuf {
        self.home.inside(NAME)
    }

    /// To name it.
    fn shown(&self) -> PathBuf {
        self.home.name().join(NAME)
    }

    /// What was saved last; `None` at the first start.
    pub fn load(&self) -> Result<Option<Saved>, StateFileError> {
        let bytes = match fs::read(self.path()) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.io("read", source)),
        };
        let copies: Vec<Copy> = match bytes.len() == 2 * COPY_BYTES {
            true => bytes.chunks(COPY_BYTES).map(Copy::of).collect(),
            false => vec![Copy::of_the_form_before(&bytes)],
        };
        let path = self.shown();
        if let Some(header) = copies.iter().find_map(Copy::newer) {
            return Err(StateFileError::Newer { path, header });
        }
        let whole = copies.into_iter().filter_map(Copy::whole);
        let newest = whole.max_by_key(|(number, _)| *number);
        let what = "no copy in it is whole";
        newest.map(|(_, saved)| Some(saved)).ok_or(StateFileError::Damaged { path, what })
    }

    /// Replaces what is saved; durable when it returns. Needs no room but for the first time.
    pub fn save(&self, saved: &Saved) -> Result<(), StateFileError> {
        self.write(saved).map_err(|source| self.io("write", source))
    }

    fn write(&self, saved: &Saved) -> io::Result<()> {
        let file = match OpenOptions::new().read(true).write(true).open(self.path()) {
            Ok(file) if file.metadata()?.len() == 2 * COPY_BYTES as u64 => file,
            Ok(_) => return self.make(saved),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return self.make(saved),
            Err(e) => return Err(e),
        };
        let mut bytes = vec![0; 2 * COPY_BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        let (last, order) = places(&bytes);
        let text = render(last + 1, saved)?;
        for place in order {
            file.write_all_at(&text, place * COPY_BYTES as u64)?;
            file.sync_data()?;
        }
        Ok(())
    }

    /// Makes the file with both copies, whose blocks it has from then on.
    fn make(&self, saved: &Saved) -> io::Result<()> {
        let text = render(1, saved)?;
        let temporary = self.path().with_extension("state.tmp");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(&text)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, self.path())?;
        match self.path().parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }

    fn io(&self, action: &'static str, source: io::Error) -> StateFileError {
        StateFileError::Io { action, path: self.shown(), source }
    }
}

/// The number of the newest whole copy of the two, and in which order they may be written over: until
/// the other one is durable, the newest is all that there is.
fn places(bytes: &[u8]) -> (u64, [u64; 2]) {
    let number = |copy: &[u8]| Copy::of(copy).whole().map_or(0, |(number, _)| number);
    let (first, second) = bytes.split_at(COPY_BYTES.min(bytes.len()));
    let (first, second) = (number(first), number(second));
    (first.max(second), if first > second { [1, 0] } else { [0, 1] })
}

/// A copy as it was found.
struct Copy {
    /// Its text, if its checksum holds.
    text: Option<String>,
    header: &'static str,
}

impl Copy {
    fn of(bytes: &[u8]) -> Copy {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches(' ');
        Copy { text: checksum_holds(text).then(|| text.to_owned()), header: HEADER }
    }

    fn of_the_form_before(bytes: &[u8]) -> Copy {
        Copy { header: HEADER_BEFORE, ..Copy::of(bytes) }
    }

    /// Its first line, if a newer program wrote it.
    fn newer(&self) -> Option<String> {
        let header = self.text.as_ref()?.lines().next()?;
        let known = [HEADER, HEADER_BEFORE].contains(&header);
        (header.starts_with("docket-agent ") && !known).then(|| header.to_owned())
    }

    /// How often it had been written, and what it says.
    fn whole(self) -> Option<(u64, Saved)> {
        let text = self.text.filter(|text| text.lines().next() == Some(self.header))?;
        parse(&text, self.header == HEADER)
    }
}

/// One copy, filled up to its size.
fn render(number: u64, saved: &Saved) -> io::Result<Vec<u8>> {
    let Saved { agent_id, incarnation, cluster_id, generation, term } = saved;
    let body = format!(
        "{HEADER}\nwritten {number}\nagent_id {agent_id}\nincarnation {incarnation}\n\
         cluster_id {cluster_id}\ngeneration {generation}\nterm {term}\n"
    );
    let mut text = format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes())).into_bytes();
    if text.len() > COPY_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its values are too long"));
    }
    text.resize(COPY_BYTES, b' ');
    Ok(text)
}

/// The last line is the checksum of all before it.
fn checksum_holds(text: &str) -> bool {
    let Some(at) = text.rfind("crc32c ") else { return false };
    let (body, line) = text.split_at(at);
    line == format!("crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()))
}

fn parse(text: &str, numbered: bool) -> Option<(u64, Saved)> {
    let mut lines = text.lines().skip(1);
    let mut value = |name: &str| {
        let (key, value) = lines.next()?.split_once(' ')?;
        (key == name).then(|| value.to_owned())
    };
    let number = if numbered { value("written")?.parse().ok()? } else { 0 };
    let saved = Saved {
        agent_id: value("agent_id").filter(|id| !id.is_empty())?,
        incarnation: value("incarnation")?.parse().ok()?,
        cluster_id: value("cluster_id")?,
        generation: value("generation")?.parse().ok()?,
        term: value("term")?.parse().ok()?,
    };
    Some((number, saved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn file_in(dir: &std::path::Path) -> StateFile {
        StateFile::new(Arc::new(Home::open(dir).unwrap()))
    }

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
        let file = file_in(dir.path());
        assert_eq!(file.load().unwrap(), None);
        for incarnation in 1..4 {
            file.save(&saved(incarnation)).unwrap();
            assert_eq!(file.load().unwrap(), Some(saved(incarnation)));
        }
        assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
    }

    /// The file after a save of `new` over `old` that was cut off after so many bytes of its copy.
    fn torn(file: &StateFile, old: u64, new: u64, copy: usize, cut: usize) {
        fs::remove_file(file.path()).ok();
        file.save(&saved(old)).unwrap();
        let text = render(2, &saved(new)).unwrap();
        let open = OpenOptions::new().write(true).open(file.path()).unwrap();
        if copy == 1 {
            open.write_all_at(&text, 0).unwrap();
        }
        open.write_all_at(&text[..cut], (copy * COPY_BYTES) as u64).unwrap();
    }

    #[test]
    fn a_save_that_is_cut_off_leaves_the_older_or_the_newer_state() {
        let dir = tempfile::tempdir().unwrap();
        let file = file_in(dir.path());
        for cut in 0..200 {
            torn(&file, 300, 4000, 0, cut);
            let first = file.load().unwrap().unwrap();
            assert!(first == saved(300) || first == saved(4000), "cut at {cut}: {first:?}");
            torn(&file, 300, 4000, 1, cut);
            assert_eq!(file.load().unwrap(), Some(saved(4000)), "cut at {cut} of the second");
            // The next save goes over what is spoiled first, and both copies are whole again.
            file.save(&saved(5)).unwrap();
            let bytes = fs::read(file.path()).unwrap();
            assert_eq!(bytes[..COPY_BYTES], bytes[COPY_BYTES..]);
            assert_eq!(file.load().unwrap(), Some(saved(5)));
        }
    }

    #[test]
    fn the_only_whole_copy_is_touched_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = file_in(dir.path());
        for whole in [0, 1] {
            fs::remove_file(file.path()).ok();
            file.save(&saved(3)).unwrap();
            let open = OpenOptions::new().write(true).open(file.path()).unwrap();
            open.write_all_at(&[0; 50], ((1 - whole) * COPY_BYTES) as u64).unwrap();
            let bytes = fs::read(file.path()).unwrap();
            assert_eq!(places(&bytes).1, [1 - whole as u64, whole as u64]);
            assert_eq!(file.load().unwrap(), Some(saved(3)));
        }
    }

    #[test]
    fn a_save_takes_no_room_but_for_the_first_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = file_in(dir.path());
        file.save(&saved(1)).unwrap();
        let before = fs::metadata(file.path()).unwrap();
        assert!(before.blocks() * 512 >= 2 * COPY_BYTES as u64, "its blocks are there");
        for incarnation in [2, u64::MAX] {
            file.save(&saved(incarnation)).unwrap();
            let after = fs::metadata(file.path()).unwrap();
            assert_eq!(after.ino(), before.ino(), "no other file is made");
            assert_eq!((after.len(), after.blocks()), (before.len(), before.blocks()));
            assert_eq!(file.load().unwrap(), Some(saved(incarnation)));
        }
    }

    #[test]
    fn a_file_cut_anywhere_or_with_both_copies_flipped_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = file_in(dir.path());
        file.save(&saved(4)).unwrap();
        let bytes = fs::read(file.path()).unwrap();
        let text = bytes[..COPY_BYTES].trim_ascii_end().len();
        for at in 0..text {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            fs::write(file.path(), &flipped).unwrap();
            assert_eq!(file.load().unwrap(), Some(saved(4)), "the other copy is whole");
            flipped[COPY_BYTES + at] ^= 1;
            fs::write(file.path(), &flipped).unwrap();
            let error = file.load().unwrap_err().to_string();
            assert!(error.contains("agent.state"), "flip at {at}: {error}");
        }
        for at in [0, 1, text, COPY_BYTES, COPY_BYTES + text, 2 * COPY_BYTES - 1] {
            fs::write(file.path(), &bytes[..at]).unwrap();
            assert!(file.load().is_err(), "cut at {at}");
        }
    }

    #[test]
    fn the_form_before_is_read_and_becomes_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = file_in(dir.path());
        let body = "docket-agent 1\nagent_id a1b2\nincarnation 4\ncluster_id c-9\n\
                    generation 1\nterm 7\n";
        let sum = crc32c::crc32c(body.as_bytes());
        fs::write(file.path(), format!("{body}crc32c {sum:08x}\n")).unwrap();
        assert_eq!(file.load().unwrap(), Some(saved(4)));
        file.save(&saved(5)).unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().len(), 2 * COPY_BYTES as u64);
        assert_eq!(file.load().unwrap(), Some(saved(5)));
    }

    #[test]
    fn a_newer_format_is_refused_by_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let file = file_in(dir.path());
        let body = "docket-agent 3\nwhatever\n";
        let sum = crc32c::crc32c(body.as_bytes());
        fs::write(file.path(), format!("{body}crc32c {sum:08x}\n")).unwrap();
        assert!(matches!(file.load(), Err(StateFileError::Newer { .. })));
    }
}
