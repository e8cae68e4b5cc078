//! DIR/guard.exits: what the guard reaped in the keeper's place, one line each, written down before
//! the process is let go. The guard appends, the keeper reads, and empties it when nothing that it
//! waits for can be in it any more. Room for some lines is kept allocated behind its end, so that a
//! full disk loses no end either.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use proto::v1::Rusage;
use rustix::fs::FallocateFlags;

use super::identity::ProcessId;
use super::journal::hex;

/// Read at most, of a file that somebody else made large: 100,000 ends.
const READ_MAX_BYTES: u64 = 16 << 20;

/// Kept allocated behind the end of the file: 500 ends, far more than there are jobs while a keeper
/// is started anew.
const ROOM_BYTES: u64 = 64 << 10;

/// The end of one process.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Exit {
    pub process: ProcessId,
    pub status: u32,
    pub rusage: Rusage,
    pub wall_ms: u64,
    /// Whose main process it was, as the board says; 0: not known.
    pub attempt: u128,
    /// The guard killed it, since it was leased and its keeper dead.
    pub fenced: bool,
}

fn open(dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(dir.join("guard.exits"))?;
    keep_room(&file);
    Ok(file)
}

/// Allocates what the next lines need. Where that is refused, the next try or luck must do.
fn keep_room(file: &File) {
    let len = file.metadata().map_or(0, |meta| meta.len());
    let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, len, ROOM_BYTES);
}

/// The guard's end of the file.
pub(crate) struct ExitWriter {
    file: File,
    boot: String,
}

impl ExitWriter {
    pub(crate) fn open(dir: &Path, boot_id: &[u8]) -> io::Result<ExitWriter> {
        Ok(ExitWriter { file: open(dir)?, boot: hex(boot_id) })
    }

    /// Durable when it returns. A line begins with a line feed too: one that a full disk cut short
    /// does not spoil the next.
    pub(crate) fn write(&mut self, exit: &Exit) -> io::Result<()> {
        let Exit { process, status, rusage, wall_ms, attempt, fenced } = exit;
        let fenced = u8::from(*fenced);
        let line = format!(
            "\n{} {} {} {status} {} {} {} {wall_ms} {attempt} {fenced} .\n",
            self.boot,
            process.pid,
            process.start_ticks,
            rusage.user_us,
            rusage.system_us,
            rusage.max_rss_bytes
        );
        self.file.write_all(line.as_bytes())?;
        self.file.sync_data()?;
        keep_room(&self.file);
        Ok(())
    }
}

/// The keeper's end of the file.
pub(crate) struct ExitReader {
    file: File,
    offset: u64,
    exits: BTreeMap<(String, ProcessId), Exit>,
}

impl ExitReader {
    pub(crate) fn open(dir: &Path) -> io::Result<ExitReader> {
        Ok(ExitReader { file: open(dir)?, offset: 0, exits: BTreeMap::new() })
    }

    /// Takes in what was appended since the last time.
    pub(crate) fn refresh(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.offset))?;
        let mut text = Vec::new();
        (&self.file).take(READ_MAX_BYTES).read_to_end(&mut text)?;
        // A line that is being written is read the next time.
        let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        self.offset += whole as u64;
        for line in String::from_utf8_lossy(&text[..whole]).lines() {
            if let Some((boot, exit)) = parse(line) {
                self.exits.insert((boot, exit.process), exit);
            }
        }
        Ok(())
    }

    /// How this process of that boot ended, if the guard saw it.
    pub(crate) fn of(&self, boot_id: &[u8], process: ProcessId) -> Option<&Exit> {
        self.exits.get(&(hex(boot_id), process))
    }

    /// How the main process of this attempt of that boot ended, if the guard saw it.
    pub(crate) fn of_attempt(&self, boot_id: &[u8], attempt: u128) -> Option<&Exit> {
        let boot = hex(boot_id);
        let mut exits = self.exits.iter().filter(|((of, _), _)| *of == boot);
        exits.find(|(_, exit)| attempt != 0 && exit.attempt == attempt).map(|(_, exit)| exit)
    }

    /// Empties the file. Only while no process is waited for that the guard would reap: what it
    /// appends meanwhile is about nobody. On a disk that may not give back what emptying lets go it
    /// stays as it is, and is read on from there.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.exits.clear();
        let disk = rustix::fs::fstatvfs(&self.file)?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) < 2 * ROOM_BYTES {
            return Ok(());
        }
        self.offset = 0;
        self.file.set_len(0)?;
        keep_room(&self.file);
        Ok(())
    }
}

fn parse(line: &str) -> Option<(String, Exit)> {
    let mut words = line.split(' ');
    let boot = words.next()?.to_owned();
    let mut number = || words.next()?.parse::<u128>().ok();
    let mut small = || u64::try_from(number()?).ok();
    let process = ProcessId { pid: small()?.try_into().ok()?, start_ticks: small()? };
    let status = small()?.try_into().ok()?;
    let rusage = Rusage {
        user_us: small()?,
        system_us: small()?,
        max_rss_bytes: small()?,
        ..Rusage::default()
    };
    let wall_ms = small()?;
    let exit =
        Exit { process, status, rusage, wall_ms, attempt: number()?, fenced: number()? == 1 };
    (words.next() == Some(".") && words.next().is_none()).then_some((boot, exit))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn exit(pid: u32) -> Exit {
        Exit {
            process: ProcessId { pid, start_ticks: 77 },
            status: 7 << 8,
            rusage: Rusage { user_us: 1, system_us: 2, max_rss_bytes: 3, ..Rusage::default() },
            wall_ms: 4,
            attempt: u128::MAX - u128::from(pid),
            fenced: pid == 3,
        }
    }

    #[test]
    fn room_for_the_next_ends_is_allocated_at_all_times() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let room = |writer: &ExitWriter| {
            let meta = writer.file.metadata().unwrap();
            (meta.len(), meta.blocks() * 512)
        };
        let mut writer = ExitWriter::open(dir.path(), b"boot").unwrap();
        assert_eq!(room(&writer).0, 0);
        assert!(room(&writer).1 >= ROOM_BYTES);
        let blocks = room(&writer).1;
        writer.write(&exit(1)).unwrap();
        assert!(room(&writer).1 >= blocks, "the line lies in what was allocated");
        ExitReader::open(dir.path()).unwrap().forget().unwrap();
        assert_eq!(room(&writer).0, 0);
        assert!(room(&writer).1 >= ROOM_BYTES, "again after it was emptied");
    }

    #[test]
    fn what_the_guard_wrote_the_keeper_reads_but_for_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = ExitWriter::open(dir.path(), b"boot").unwrap();
        writer.write(&exit(1)).unwrap();
        writer.file.write_all(b"\nfeed 2 77 0 1").unwrap();
        writer.write(&exit(3)).unwrap();
        let mut reader = ExitReader::open(dir.path()).unwrap();
        reader.refresh().unwrap();
        assert_eq!(reader.of(b"boot", exit(1).process), Some(&exit(1)));
        assert_eq!(reader.of(b"boot", exit(3).process), Some(&exit(3)));
        assert_eq!(reader.of(b"boot", exit(2).process), None);
        assert_eq!(reader.of(b"other", exit(1).process), None);
        assert_eq!(reader.of_attempt(b"boot", u128::MAX - 3), Some(&exit(3)));
        assert_eq!(reader.of_attempt(b"other", u128::MAX - 3), None);
        assert_eq!(reader.of_attempt(b"boot", 0), None);
        writer.write(&exit(4)).unwrap();
        reader.refresh().unwrap();
        assert_eq!(reader.of(b"boot", exit(4).process), Some(&exit(4)));
        reader.forget().unwrap();
        writer.write(&exit(5)).unwrap();
        reader.refresh().unwrap();
        assert_eq!(reader.of(b"boot", exit(5).process), Some(&exit(5)));
        assert_eq!(reader.of(b"boot", exit(1).process), None);
    }
}
