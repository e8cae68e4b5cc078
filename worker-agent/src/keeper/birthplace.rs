//! DIR/journal.place: which directory the journal was begun in. A copy of a data directory holds the
//! journal of jobs that are another keeper's: there, nothing of it may be looked for. A directory that
//! is renamed keeps its inode and its time of birth, a copy has others of both. The device is left
//! out: its number changes over reboots.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, StatxFlags, statx};

use super::identity;
use super::start::DataDir;

/// Name of the file; it holds the inode and the birth in ns, or `-` where the file system knows none.
const NAME: &str = "journal.place";

/// A directory, told apart from every copy of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Birthplace {
    inode: u64,
    born_ns: Option<i128>,
}

impl Birthplace {
    fn of(dir: &DataDir) -> io::Result<Birthplace> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let stat = statx(&dir.fd, "", AtFlags::EMPTY_PATH, wanted)?;
        let knows_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = stat.stx_btime;
        let born_ns = i128::from(born.tv_sec) * 1_000_000_000 + i128::from(born.tv_nsec);
        Ok(Birthplace { inode: stat.stx_ino, born_ns: knows_birth.then_some(born_ns) })
    }

    /// A birth that one of them does not know tells nothing: another kernel looked at it.
    fn is_same(self, other: Birthplace) -> bool {
        let births = self.born_ns.zip(other.born_ns);
        self.inode == other.inode && births.is_none_or(|(a, b)| a == b)
    }

    fn to_line(self) -> String {
        let born = self.born_ns.map_or_else(|| "-".to_owned(), |ns| ns.to_string());
        format!("{} {born}\n", self.inode)
    }

    fn parse(text: &str) -> Option<Birthplace> {
        let (inode, born) = text.trim().split_once(' ')?;
        let born_ns = match born {
            "-" => None,
            born => Some(born.parse().ok()?),
        };
        Some(Birthplace { inode: inode.parse().ok()?, born_ns })
    }
}

/// Sets the journal of another directory aside, so that this one begins anew, and writes down where
/// this is. Gives what the operator should know. The caller holds the lock; to be called before the
/// journal is opened.
pub(super) fn settle(dir: &DataDir) -> io::Result<Option<String>> {
    let here = Birthplace::of(dir)?;
    let begun = match fs::read_to_string(dir.path.join(NAME)) {
        Ok(text) => Birthplace::parse(&text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    // A journal of an older release, or nothing at all yet: it is of this place from now on.
    let is_copy = begun.is_some_and(|begun| !begun.is_same(here));
    let aside = if is_copy { set_aside(dir)? } else { None };
    if begun != Some(here) {
        write(dir, here)?;
    }
    Ok(aside.map(|aside| {
        format!(
            "this data directory is a copy of another: its journal is set aside as {}, which may be \
             removed, and no process of the first is touched. It begins with an empty journal of \
             its own; for a node of its own remove agent.state too. To go on with the first's jobs, \
             use the first directory; mv it where another name is wanted",
            aside.display()
        )
    }))
}

/// `None`: there was no journal. Interrupted, it is done again: the place is written down last.
fn set_aside(dir: &DataDir) -> io::Result<Option<PathBuf>> {
    let aside = dir.path.join(format!("journal.copied-{}", identity::wall_ms()));
    match fs::rename(dir.path.join("journal"), &aside) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    }
    // Beside the journal that it belongs to; where it stays, it is never used again.
    match fs::rename(dir.path.join("journal.id"), aside.join("journal.id")) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    Ok(Some(aside))
}

fn write(dir: &DataDir, here: Birthplace) -> io::Result<()> {
    let temporary = dir.path.join("journal.place.new");
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(here.to_line().as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, dir.path.join(NAME))?;
    File::open(&dir.path)?.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        for born_ns in [Some(1_700_000_000_123_456_789), Some(-5), None] {
            let place = Birthplace { inode: 7, born_ns };
            assert_eq!(Birthplace::parse(&place.to_line()), Some(place));
        }
        for wrong in ["", "7", "x -", "7 y", "-"] {
            assert_eq!(Birthplace::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn another_inode_or_another_birth_is_another_place() {
        let place = |inode, born_ns| Birthplace { inode, born_ns };
        assert!(place(1, Some(2)).is_same(place(1, Some(2))));
        assert!(!place(1, Some(2)).is_same(place(2, Some(2))));
        assert!(!place(1, Some(2)).is_same(place(1, Some(3))));
        assert!(place(1, None).is_same(place(1, Some(3))));
        assert!(!place(1, None).is_same(place(2, Some(3))));
    }

    #[test]
    fn what_was_set_aside_stays_and_a_second_look_changes_nothing() {
        let base = tempfile::tempdir().unwrap();
        let (first, copy) = (base.path().join("first"), base.path().join("copy"));
        fs::create_dir_all(first.join("journal")).unwrap();
        assert_eq!(settle(&DataDir::open(&first).unwrap()).unwrap(), None);
        fs::create_dir_all(copy.join("journal")).unwrap();
        for (name, text) in [("journal/1.wal", "entries"), ("journal.id", "id")] {
            fs::write(copy.join(name), text).unwrap();
        }
        fs::copy(first.join(NAME), copy.join(NAME)).unwrap();
        let said = settle(&DataDir::open(&copy).unwrap()).unwrap().unwrap();
        assert!(said.contains("journal.copied-") && said.contains("agent.state"), "{said}");
        assert!(!copy.join("journal").exists() && !copy.join("journal.id").exists());
        let mut aside = fs::read_dir(&copy).unwrap().flatten().map(|entry| entry.path());
        let aside = aside.find(|path| path.is_dir()).unwrap();
        assert_eq!(fs::read_to_string(aside.join("1.wal")).unwrap(), "entries");
        assert_eq!(fs::read_to_string(aside.join("journal.id")).unwrap(), "id");
        assert_eq!(settle(&DataDir::open(&copy).unwrap()).unwrap(), None);
        // Under another name the first is still the first.
        let renamed = base.path().join("renamed");
        fs::rename(&first, &renamed).unwrap();
        assert_eq!(settle(&DataDir::open(&renamed).unwrap()).unwrap(), None);
        assert!(renamed.join("journal").exists());
    }
}
