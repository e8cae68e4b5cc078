//! What was taken out of the middle of an output that grew over `output_max`: one range, noted in a
//! file beside the output before its bytes go. The keeper writes the note, whoever reads the output
//! looks at it after it has read: bytes that the note names are never served, for they may be zeros.
//!
//! The note is `<output>.cut`: two slots of 128 bytes, written in turn. A slot is
//! `NUMBER BEGIN END NUMBER BEGIN END\n` in decimals of 20 digits, padded with blanks; twice the same,
//! so that one that is half written is known as that. The valid slot with the higher number counts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a slot.
const SLOT_BYTES: usize = 128;

/// Digits of a number: those of the largest u64.
const DIGITS: usize = 20;

/// A range of an output that is not there any more; empty: nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cut {
    /// First byte that is gone.
    pub begin: u64,
    /// First byte behind it that is there again.
    pub end: u64,
}

impl Cut {
    /// Bytes that are gone.
    pub fn bytes(self) -> u64 {
        self.end.saturating_sub(self.begin)
    }

    /// Whether this byte is gone.
    pub fn has(self, offset: u64) -> bool {
        (self.begin..self.end).contains(&offset)
    }

    /// Whether any of so many bytes from `offset` on is gone.
    pub fn touches(self, offset: u64, bytes: u64) -> bool {
        self.begin < offset.saturating_add(bytes) && offset < self.end
    }

    /// As far as it holds of an output of this size: one that is shorter was emptied by its job, and
    /// what stands there now is new.
    pub fn within(self, size: u64) -> Cut {
        if size < self.end { Cut::default() } else { self }
    }
}

/// Where the note of an output is.
pub fn note_path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".cut");
    PathBuf::from(name)
}

/// What was taken out of the output at this path; empty where there is no note.
///
/// # Errors
/// There is a note that cannot be read: then nobody knows which of the bytes are real.
pub fn read(output: &Path) -> io::Result<Cut> {
    let opened =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(note_path(output));
    match opened {
        Ok(file) => Ok(Note { file }.latest()?.1),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Cut::default()),
        Err(e) => Err(e),
    }
}

/// An open note.
pub struct Note {
    /// The file.
    pub file: File,
}

impl Note {
    /// Number and range of the slot that counts; 0 and nothing if none was written yet.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn latest(&self) -> io::Result<(u64, Cut)> {
        let mut bytes = [0; 2 * SLOT_BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                n => filled += n,
            }
        }
        let slots = bytes.chunks_exact(SLOT_BYTES).filter_map(decode);
        Ok(slots.max_by_key(|(number, _)| *number).unwrap_or_default())
    }

    /// Notes another range durably. Bytes of it may go only after this.
    ///
    /// # Errors
    /// It may or may not be noted then; what was noted before is.
    pub fn write(&self, cut: Cut) -> io::Result<()> {
        let (last, _) = self.latest()?;
        let number = last + 1;
        let at = last % 2 * SLOT_BYTES as u64;
        self.file.write_all_at(&encode(number, cut), at)?;
        self.file.sync_data()
    }
}

fn encode(number: u64, cut: Cut) -> [u8; SLOT_BYTES] {
    let Cut { begin, end } = cut;
    let once = format!("{number:020} {begin:020} {end:020}");
    let text = format!("{once} {once}");
    let mut slot = [b' '; SLOT_BYTES];
    slot[..text.len()].copy_from_slice(text.as_bytes());
    slot[SLOT_BYTES - 1] = b'\n';
    slot
}

fn decode(slot: &[u8]) -> Option<(u64, Cut)> {
    let text = std::str::from_utf8(slot).ok()?.strip_suffix('\n')?;
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let (once, again) = words.split_at_checked(3)?;
    if once != again || once.iter().any(|word| word.len() != DIGITS) {
        return None;
    }
    let number = |at: usize| once.get(at)?.parse().ok();
    Some((number(0)?, Cut { begin: number(1)?, end: number(2)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(dir: &Path) -> Note {
        let path = note_path(&dir.join("out"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        Note { file: options.open(path).unwrap() }
    }

    #[test]
    fn the_range_that_was_noted_last_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out");
        assert_eq!(read(&output).unwrap(), Cut::default(), "there is no note");
        let note = note(dir.path());
        assert_eq!(read(&output).unwrap(), Cut::default(), "an empty one");
        for end in [10, 20, 99, 100, u64::MAX] {
            note.write(Cut { begin: 5, end }).unwrap();
            assert_eq!(read(&output).unwrap(), Cut { begin: 5, end });
        }
        note.write(Cut::default()).unwrap();
        assert_eq!(read(&output).unwrap(), Cut::default(), "taken back");
    }

    #[test]
    fn a_slot_that_is_half_written_does_not_count() {
        let [old, new] = [Cut { begin: 4096, end: 199 }, Cut { begin: 4096, end: 200 }];
        for (before, after) in [(1, 3), (9, 11), (99, 101)] {
            let (was, will) = (encode(before, old), encode(after, new));
            for at in 0..=SLOT_BYTES {
                let torn = [&will[..at], &was[at..]].concat();
                let read = decode(&torn);
                let whole = [None, Some((before, old)), Some((after, new))];
                assert!(whole.contains(&read), "{at}: {read:?}");
            }
        }
    }

    #[test]
    fn a_range_holds_only_of_an_output_that_reaches_behind_it() {
        let cut = Cut { begin: 10, end: 20 };
        assert_eq!((cut.bytes(), cut.within(20), cut.within(19)), (10, cut, Cut::default()));
        assert!(cut.has(10) && cut.has(19) && !cut.has(9) && !cut.has(20));
        assert!(cut.touches(0, 11) && cut.touches(19, 5) && cut.touches(0, u64::MAX));
        assert!(!cut.touches(0, 10) && !cut.touches(20, 5) && !Cut::default().touches(0, 9));
    }
}
