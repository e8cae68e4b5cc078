//! Outputs that grow over `output_max`: their middle is taken out of the file, head and tail stay and
//! every byte keeps its offset. Only files of the run directory: what a user named is the user's, may
//! be shared with others or be the result itself, and nobody but the user takes bytes out of it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use super::outputs::Output;
use crate::cut::{self, Cut, Note};

/// The head is this share of what is kept.
const HEAD_SHARE: u64 = 4;

/// And the tail this, right after a cut: the rest is what it may grow by until the next one, so that
/// a file is cut once for every quarter of its bound.
const TAIL_SHARE: u64 = 2;

/// Cuts lie at multiples of it: of whole pages nothing is left that would have to be zeroed.
const ALIGN_BYTES: u64 = 4096;

/// Taken for the note when half of the bound is reached, while there is room.
const NOTE_BYTES: u64 = 4096;

/// What an output of this size loses; `None`: it is within its bound.
pub(super) fn wanted(size: u64, cut: Cut, max: u64) -> Option<Cut> {
    if size.saturating_sub(cut.bytes()) <= max {
        return None;
    }
    let down = |bytes: u64| bytes / ALIGN_BYTES * ALIGN_BYTES;
    let begin = if cut.bytes() > 0 { cut.begin } else { down(max / HEAD_SHARE) };
    let end = down(size - max / TAIL_SHARE);
    (end > begin && end > cut.end).then_some(Cut { begin, end })
}

/// From this size on an output is looked at closely.
pub(super) fn is_large(size: u64, max: u64) -> bool {
    max > 0 && size > max / 2
}

/// Holds an output to its bound, and gives what is cut out of it so far. Blocks as its file system
/// does. Called from several threads at a time it does the same once.
///
/// # Errors
/// The file goes on to grow: its file system punches no holes, or has no room for the note.
pub(super) fn hold(output: &Output, max: u64) -> io::Result<Cut> {
    if !output.own || max == 0 {
        return Ok(Cut::default());
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().write(true).custom_flags(flags).open(&output.path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Cut::default()),
        Err(e) => return Err(e),
    };
    // Checked on the open file: a keeper of root must not take bytes out of any other.
    let meta = file.metadata()?;
    if !output.is_it(&meta) || (!is_large(meta.len(), max) && !has_note(output)) {
        return Ok(Cut::default());
    }
    let note = open_note(output)?;
    let (_, noted) = note.latest()?;
    // Under the lock of the note: somebody else may have cut meanwhile.
    let size = file.metadata()?.len();
    let cut = noted.within(size);
    let Some(wanted) = wanted(size, cut, max) else {
        if cut != noted {
            note.write(cut)?;
        }
        return Ok(cut);
    };
    note.write(wanted)?;
    match punch(&file, wanted) {
        Ok(()) => Ok(wanted),
        Err(e) => {
            // They are there, so they are to be read.
            note.write(cut)?;
            Err(e)
        }
    }
}

/// From the very beginning each time: a keeper may have died between the note and the hole.
fn punch(file: &File, cut: Cut) -> io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match fallocate(file, how, cut.begin, cut.bytes()) {
            Err(rustix::io::Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

fn has_note(output: &Output) -> bool {
    fs::symlink_metadata(cut::note_path(&output.path)).is_ok()
}

/// Opens and locks the note; a new one gets its room, and shows whether holes can be punched here.
fn open_note(output: &Output) -> io::Result<Note> {
    let path = cut::note_path(&output.path);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    let meta = file.metadata()?;
    if meta.len() > 0 || meta.blocks() > 0 {
        return Ok(Note { file });
    }
    let room = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, NOTE_BYTES);
    let hole = Cut { begin: 0, end: NOTE_BYTES };
    let ready = room
        .map_err(io::Error::from)
        .and_then(|()| punch(&file, hole))
        .and_then(|()| Ok(fallocate(&file, FallocateFlags::KEEP_SIZE, 0, NOTE_BYTES)?));
    if let Err(e) = ready {
        // Nothing is noted there, and nothing will be.
        let _ = fs::remove_file(&path);
        return Err(e);
    }
    Ok(Note { file })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn an_output_within_its_bound_loses_nothing_and_one_beyond_keeps_head_and_tail() {
        let max = 64 * KIB;
        assert_eq!(wanted(max, Cut::default(), max), None);
        let first = wanted(max + 1, Cut::default(), max).unwrap();
        assert_eq!(first, Cut { begin: 16 * KIB, end: 32 * KIB });
        // It grows by a quarter of its bound before the next one.
        assert_eq!(wanted(80 * KIB, first, max), None);
        let second = wanted(80 * KIB + 1, first, max).unwrap();
        assert_eq!(second, Cut { begin: 16 * KIB, end: 48 * KIB });
        let far = wanted(1 << 50, second, max).unwrap();
        assert_eq!((far.begin, far.end), (16 * KIB, (1 << 50) - 32 * KIB));
    }

    #[test]
    fn what_is_kept_is_never_over_the_bound_and_never_less_than_three_quarters() {
        let max = 1_000_003;
        let mut cut = Cut::default();
        for step in 1..2_000 {
            let size = step * 7_919;
            if let Some(next) = wanted(size, cut, max) {
                assert!(next.begin == cut.begin || cut.bytes() == 0);
                assert!(next.end > cut.end);
                cut = next;
                let kept = size - cut.bytes();
                assert!(kept <= max * 3 / 4 + 2 * ALIGN_BYTES && kept >= max * 3 / 4 - 4096);
            }
            assert!(size - cut.bytes() <= max);
        }
    }
}
