//! The files of an attempt when it has ended: how large its outputs are, the last lines of stderr,
//! and which run files go. A file counts only while it is the one that was opened at the start.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::cutting;
use crate::cut::{self, Cut};
use crate::rights::Rights;
use proto::v1::StartFact;

/// Of a failed attempt's stderr travels with its finish (design 5, Logs).
pub(crate) const TAIL_MAX_BYTES: u64 = 4096;

/// A group that nobody is in: the kernel's id of what has none.
const NO_GROUP: u32 = 65_534;

/// What is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    /// Prefix of the run files.
    pub run_file: PathBuf,
    pub start: StartFact,
    /// Whom the job ran as.
    pub uid: u32,
    pub want_tail: bool,
    /// Of each output in the run directory that is kept; 0: all.
    pub max: u64,
    /// No process of the tree is left: empty run files and the script may go.
    pub tidy: bool,
}

/// What was found; zeros where the file is gone or another one.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Measured {
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Of those: taken out of the middle.
    pub stdout_cut: u64,
    pub stderr_cut: u64,
    pub stderr_tail: Vec<u8>,
}

impl Measure {
    /// Both outputs are run files: on the file system of the journal, so quick.
    pub(crate) fn is_local(&self) -> bool {
        self.start.stdout_path.is_empty() && self.start.stderr_path.is_empty()
    }
}

/// Measures, and removes what an ended attempt need not keep.
pub(crate) fn measure(what: &Measure) -> Measured {
    let [out, err] = Output::both(&what.run_file, &what.start, what.uid);
    let mut measured = Measured {
        stdout_bytes: out.size().unwrap_or(0),
        stderr_bytes: err.size().unwrap_or(0),
        ..Measured::default()
    };
    if what.want_tail && measured.stderr_bytes > 0 {
        // Gone or another file between the two looks: no tail then.
        measured.stderr_tail = err.tail().unwrap_or_default();
    }
    if what.tidy {
        out.remove_if_empty();
        err.remove_if_empty();
        remove_script(&what.run_file);
    }
    measured
}

/// Holds outputs to their bound a last time, then measures. Blocks as their file systems do.
pub(crate) fn hold_and_measure(what: &Measure) -> Measured {
    let [out, err] = Output::both(&what.run_file, &what.start, what.uid);
    // What cannot be cut is there, whole: it was said while the job ran.
    let cut = |output| cutting::hold(output, what.max).map_or(0, Cut::bytes);
    let (stdout_cut, stderr_cut) = (cut(&out), cut(&err));
    Measured { stdout_cut, stderr_cut, ..measure(what) }
}

/// Removes the files of an attempt that never ran, as far as they are empty.
pub(crate) fn discard(run_file: &Path) {
    for suffix in [".out", ".err"] {
        let path = suffixed(run_file, suffix);
        if fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() && m.len() == 0) {
            let _ = fs::remove_file(path);
        }
    }
    remove_script(run_file);
}

/// Removes the directory of a job's run files if nothing is in it. Only while no attempt of the job
/// is about to start: its child opens files by a descriptor of this directory.
pub(crate) fn remove_dir_if_empty(run_file: &Path) {
    if let Some(dir) = run_file.parent() {
        // Not empty, in nearly all cases: that is the answer.
        let _ = fs::remove_dir(dir);
    }
}

fn remove_script(run_file: &Path) {
    // Most attempts have none.
    let _ = fs::remove_file(suffixed(run_file, ".script"));
}

/// An output file as its job opened it.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub path: PathBuf,
    /// In the run directory, and so docket's; else the user named it.
    pub own: bool,
    uid: u32,
    dev: u64,
    ino: u64,
}

impl Output {
    /// Standard output and standard error.
    pub(crate) fn both(run_file: &Path, start: &StartFact, uid: u32) -> [Output; 2] {
        let of = |given: &[u8], suffix, dev, ino| {
            let own = given.is_empty();
            let path = if own {
                suffixed(run_file, suffix)
            } else {
                PathBuf::from(OsStr::from_bytes(given))
            };
            Output { path, own, uid, dev, ino }
        };
        [
            of(&start.stdout_path, ".out", start.stdout_dev, start.stdout_ino),
            of(&start.stderr_path, ".err", start.stderr_dev, start.stderr_ino),
        ]
    }

    pub(crate) fn is_it(&self, meta: &fs::Metadata) -> bool {
        meta.is_file() && self.ino != 0 && (meta.dev(), meta.ino()) == (self.dev, self.ino)
    }

    /// A path that the user chose may go through links, as it did when the job's user opened it.
    pub(crate) fn size(&self) -> Option<u64> {
        let meta =
            if self.own { fs::symlink_metadata(&self.path) } else { fs::metadata(&self.path) };
        meta.ok().filter(|meta| self.is_it(meta)).map(|meta| meta.len())
    }

    fn tail(&self) -> io::Result<Vec<u8>> {
        let no_follow = if self.own { libc::O_NOFOLLOW } else { 0 };
        let looked_at = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | no_follow)
            .open(&self.path)?;
        let meta = looked_at.metadata()?;
        // Checked on the open file: a root keeper must not become a way to read any file.
        if !self.is_it(&meta) {
            return Ok(Vec::new());
        }
        let file = self.reopened(&looked_at)?;
        let from = meta.len().saturating_sub(TAIL_MAX_BYTES);
        let mut tail = vec![0; (meta.len() - from) as usize];
        let mut read = 0;
        while read < tail.len() {
            match file.read_at(&mut tail[read..], from + read as u64)? {
                0 => break,
                n => read += n,
            }
        }
        tail.truncate(read);
        Ok(tail)
    }

    /// The same file, for reading. One that the user chose must be one that the user may read: the
    /// job may have had the right to write alone. Groups are not asked for: the user database may
    /// take its time, and all that is lost is a tail.
    fn reopened(&self, looked_at: &File) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", looked_at.as_raw_fd());
        if self.own {
            return File::open(path);
        }
        let rights = Rights { uid: self.uid, gid: NO_GROUP, groups: Vec::new() };
        rights.borrowed(|| File::open(path))?
    }

    fn remove_if_empty(&self) {
        if self.own && self.size() == Some(0) {
            let _ = fs::remove_file(&self.path);
            // Its job emptied it after it had been large.
            let _ = fs::remove_file(cut::note_path(&self.path));
        }
    }
}

fn suffixed(run_file: &Path, suffix: &str) -> PathBuf {
    let mut name = run_file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn of(dir: &Path, want_tail: bool) -> Measure {
        let ids = |suffix| {
            fs::metadata(suffixed(&dir.join("x.1"), suffix)).map_or((0, 0), |m| (m.dev(), m.ino()))
        };
        let ((stdout_dev, stdout_ino), (stderr_dev, stderr_ino)) = (ids(".out"), ids(".err"));
        let start =
            StartFact { stdout_dev, stdout_ino, stderr_dev, stderr_ino, ..StartFact::default() };
        Measure { run_file: dir.join("x.1"), start, uid: 0, want_tail, max: 0, tidy: true }
    }

    #[test]
    fn sizes_tail_and_the_end_of_empty_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("x.1.out"), b"").unwrap();
        let err: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
        fs::write(dir.path().join("x.1.err"), &err).unwrap();
        fs::write(dir.path().join("x.1.script"), b"true").unwrap();
        let measured = measure(&of(dir.path(), true));
        assert_eq!((measured.stdout_bytes, measured.stderr_bytes), (0, 10_000));
        assert_eq!(measured.stderr_tail, err[10_000 - 4096..]);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "only stderr stays: {left:?}");
    }

    #[test]
    fn another_file_under_the_name_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("x.1.err"), b"ours").unwrap();
        let what = of(dir.path(), true);
        fs::rename(dir.path().join("x.1.err"), dir.path().join("kept")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("x.1.err")).unwrap();
        assert_eq!(measure(&what), Measured::default());
    }
}
