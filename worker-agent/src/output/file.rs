//! Output files: which may be served, and their bytes. An agent of root must not become a way to
//! read any file (design 5): only regular files, no link in the run directory, and a `--stdout` file
//! only while device and inode are those that the job opened, and the job's user may read it.

use super::relay::PIECE_BYTES;
use crate::cut::{self, Cut};
use crate::passwd;
use crate::retention;
use crate::rights::Rights;
use proto::{AttemptId, v1};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use thiserror::Error;
use worker_agent_core::NoUser;

/// Bytes looked at in one step backwards for the last lines.
const TAIL_STEP_BYTES: u64 = 64 << 10;

/// Why an output is not served; the text is for the reader.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The request itself.
    #[error("the request names no attempt")]
    NoAttempt,
    /// A `--stdout` file whose identity the keeper did not record.
    #[error("{path} is not served: the node does not know that the job opened it")]
    NotKnown {
        /// The file.
        path: PathBuf,
    },
    /// Another file stands there now.
    #[error("{path} is not the file that the job wrote: it was replaced")]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// A directory, pipe, device or link.
    #[error("{path} is not a regular file")]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// A `--stdout` file that the job could write and its user may not read.
    #[error("{path} is not served: the job's user may not read it")]
    NotReadable {
        /// The file.
        path: PathBuf,
    },
    /// Whether the job's user may read it cannot be known now.
    #[error("{path} is not served: it needs the rights of user {uid}, and {why}; try again later")]
    NoUser {
        /// The file.
        path: PathBuf,
        /// Whom.
        uid: u32,
        /// What the user database said.
        why: String,
    },
    /// Removed by docket's own retention.
    #[error(
        "{path} was removed {why}; output that is to stay longer goes to a file of yours (--stdout), \
         or needs more than these limits of [agent]"
    )]
    Removed {
        /// The file.
        path: PathBuf,
        /// When and for which limit.
        why: String,
    },
    /// Removed by somebody else.
    #[error("{path} is gone: somebody removed it")]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// Anything else.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The runtime is ending.
    #[error("the agent is stopping")]
    Stopping,
}

impl OutputError {
    /// Whether waiting cannot bring the bytes.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            OutputError::NotKnown { .. }
                | OutputError::NotRegular { .. }
                | OutputError::Replaced { .. }
                | OutputError::NotReadable { .. }
                | OutputError::Removed { .. }
                | OutputError::Gone { .. }
        )
    }
}

/// An open output file.
#[derive(Clone, Debug)]
pub struct Output {
    file: Arc<File>,
    path: Arc<Path>,
    /// In the run directory: the keeper may take bytes out of its middle.
    own: bool,
}

/// Bytes of an output.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Piece {
    /// Where they begin.
    pub offset: u64,
    /// Bytes right before them that were asked for and are not there any more.
    pub cut: u64,
    /// The bytes.
    pub data: Vec<u8>,
}

/// An output just opened.
#[derive(Debug)]
pub struct Begun {
    /// The file.
    pub output: Output,
    /// Bytes that it has.
    pub size: u64,
    /// Where to begin: as asked, or where the last lines begin.
    pub offset: u64,
}

/// Runs file work where it blocks nobody else.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OutputError> + Send + 'static,
) -> Result<T, OutputError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(OutputError::Stopping))
}

/// Opens what is asked for; `None`: it does not exist.
pub fn open(runs: &Path, read: &v1::ReadOutput) -> Result<Option<Begun>, OutputError> {
    let path = path_of(runs, read)?;
    let file = match open_as_its_user(&path, read)? {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !read.path.is_empty() => {
            return Err(OutputError::NotReadable { path });
        }
        // O_NOFOLLOW on a link.
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            return Err(OutputError::NotRegular { path });
        }
        Err(source) => return Err(OutputError::Io { path, source }),
    };
    let own = read.path.is_empty();
    let output = Output { file: Arc::new(file), path: path.clone().into(), own };
    let about = output.file.metadata().map_err(|e| output.io(e))?;
    if !about.is_file() {
        return Err(OutputError::NotRegular { path });
    }
    if read.ino == 0 && !read.path.is_empty() {
        return Err(OutputError::NotKnown { path });
    }
    if read.ino != 0 && (about.dev(), about.ino()) != (read.dev, read.ino) {
        return Err(OutputError::Replaced { path });
    }
    let size = about.len();
    let offset = match read.tail_lines {
        Some(lines) => output.start_of_last(lines, size)?,
        None => read.offset,
    };
    Ok(Some(Begun { output, size, offset }))
}

/// A file that is missing for good was empty, or was removed: an error then.
pub fn why_missing(runs: &Path, read: &v1::ReadOutput) -> Result<(), OutputError> {
    let path = path_of(runs, read)?;
    if let Some(attempt) = attempt_of(read)
        && read.path.is_empty()
        && let Some(why) = retention::removal_of(runs, attempt, kind_of(read), SystemTime::now())
    {
        return Err(OutputError::Removed { path, why });
    }
    if read.expected > 0 || !read.path.is_empty() {
        return Err(OutputError::Gone { path });
    }
    Ok(())
}

fn attempt_of(read: &v1::ReadOutput) -> Option<AttemptId> {
    AttemptId::from_wire(read.attempt.as_ref()).ok()
}

fn kind_of(read: &v1::ReadOutput) -> &'static str {
    if read.stderr { "err" } else { "out" }
}

fn path_of(runs: &Path, read: &v1::ReadOutput) -> Result<PathBuf, OutputError> {
    if !read.path.is_empty() {
        return Ok(PathBuf::from(OsStr::from_bytes(&read.path)));
    }
    let attempt = attempt_of(read).ok_or(OutputError::NoAttempt)?;
    let mut path = worker_agent_core::run_file(runs.as_os_str().as_bytes(), attempt);
    path.push(b'.');
    path.extend_from_slice(kind_of(read).as_bytes());
    Ok(PathBuf::from(OsStr::from_bytes(&path)))
}

/// A path that the user chose is opened with that user's rights. The run directory is the node's own.
fn open_as_its_user(path: &Path, read: &v1::ReadOutput) -> Result<io::Result<File>, OutputError> {
    let Some(uid) = read.uid.filter(|uid| *uid != 0 && !read.path.is_empty()) else {
        return Ok(open_file(path, read.path.is_empty()));
    };
    // Only a node of root has rights to lay down; nobody else need know the user.
    if !rustix::process::geteuid().is_root() {
        return Ok(open_file(path, false));
    }
    let user = passwd::look_up(uid).map_err(|why| no_user(path, uid, &why))?;
    let rights = Rights { uid, gid: user.gid, groups: user.groups };
    let opened = rights.borrowed(|| open_file(path, false));
    Ok(opened.unwrap_or_else(Err))
}

fn no_user(path: &Path, uid: u32, why: &NoUser) -> OutputError {
    let why = match why {
        NoUser::Absent => "this node has no such user".to_owned(),
        NoUser::Failed { errno } => {
            format!("the node cannot look it up: {}", io::Error::from_raw_os_error(*errno))
        }
    };
    OutputError::NoUser { path: path.to_path_buf(), uid, why }
}

/// Opens for reading without waking a device or waiting for a pipe: looked at first, then reopened.
fn open_file(path: &Path, refuse_link: bool) -> io::Result<File> {
    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    if refuse_link {
        flags |= OFlags::NOFOLLOW;
    }
    let looked_at = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !looked_at.metadata()?.is_file() {
        return Ok(looked_at);
    }
    let reopened = format!("/proc/self/fd/{}", looked_at.as_fd().as_raw_fd());
    Ok(File::from(rustix::fs::open(reopened, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
}

impl Output {
    /// At most one piece from `offset`, not beyond `end`; empty at the end. What was cut is left out.
    pub async fn read(&self, offset: u64, end: u64) -> Result<Piece, OutputError> {
        let output = self.clone();
        blocking(move || output.piece(offset, end)).await
    }

    /// Looks at what is cut only after it has read, for the note comes before the hole: bytes that the
    /// note does not name were real when they were read. Reads anew where they were not.
    fn piece(&self, offset: u64, end: u64) -> Result<Piece, OutputError> {
        let mut known = self.cut()?;
        loop {
            let from = if known.has(offset) { known.end.min(end) } else { offset };
            let until = if from < known.begin { end.min(known.begin) } else { end };
            let there = self.size()?.min(until).saturating_sub(from).min(PIECE_BYTES);
            let data = self.bytes(from, there)?;
            let now = self.cut()?;
            let real = now == known || !now.touches(offset, from - offset + data.len() as u64);
            if real {
                return Ok(Piece { offset: from, cut: from - offset, data });
            }
            known = now;
        }
    }

    /// What the keeper took out of it so far.
    fn cut(&self) -> Result<Cut, OutputError> {
        if !self.own {
            return Ok(Cut::default());
        }
        let noted = cut::read(&self.path).map_err(|e| self.io(e))?;
        Ok(noted.within(self.size()?))
    }

    /// Bytes in the file now.
    pub fn size(&self) -> Result<u64, OutputError> {
        self.file.metadata().map(|about| about.len()).map_err(|e| self.io(e))
    }

    /// A path to this very file, whatever stands at its name.
    pub fn descriptor_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd()).into()
    }

    fn bytes(&self, offset: u64, count: u64) -> Result<Vec<u8>, OutputError> {
        // `count` is at most a piece.
        let mut data = vec![0; usize::try_from(count).unwrap_or(0)];
        let mut filled = 0;
        while filled < data.len() {
            match self.file.read_at(&mut data[filled..], offset + filled as u64) {
                Ok(0) => break, // it was cut meanwhile
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.io(e)),
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    /// Offset at which the last `lines` lines begin; a newline at the very end ends the last one.
    fn start_of_last(&self, lines: u64, size: u64) -> Result<u64, OutputError> {
        if lines == 0 {
            return Ok(size);
        }
        let mut wanted = lines;
        let mut end = size;
        let cut = self.cut()?;
        while end > 0 {
            if cut.touches(end - 1, 1) {
                // The line goes on before what was cut, as far as anybody can tell.
                end = cut.begin;
                continue;
            }
            let floor = if cut.end <= end { cut.end } else { 0 };
            let start = end.saturating_sub(TAIL_STEP_BYTES).max(floor);
            let data = self.bytes(start, end - start)?;
            for (at, byte) in data.iter().enumerate().rev() {
                let position = start + at as u64;
                if *byte == b'\n' && position + 1 != size {
                    wanted -= 1;
                    if wanted == 0 {
                        return Ok(position + 1);
                    }
                }
            }
            end = start;
        }
        Ok(0)
    }

    fn io(&self, source: io::Error) -> OutputError {
        OutputError::Io { path: self.path.to_path_buf(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn asked(path: &Path, ino: u64, dev: u64) -> v1::ReadOutput {
        let path = path.as_os_str().as_bytes().to_vec();
        v1::ReadOutput { attempt: attempt(), path, ino, dev, ..v1::ReadOutput::default() }
    }

    fn attempt() -> Option<v1::AttemptRef> {
        Some(v1::AttemptRef { job: 5, task: None, attempt: 1 })
    }

    fn tail(content: &str, lines: u64) -> String {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("5")).unwrap();
        fs::write(dir.path().join("5/0.1.out"), content).unwrap();
        let read = v1::ReadOutput {
            attempt: attempt(),
            tail_lines: Some(lines),
            ..v1::ReadOutput::default()
        };
        let begun = open(dir.path(), &read).unwrap().unwrap();
        content[usize::try_from(begun.offset).unwrap()..].to_owned()
    }

    #[test]
    fn the_last_lines_are_found_across_steps_and_without_a_final_newline() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a\nb\n", 9), "a\nb\n");
        assert_eq!(tail("a\nb\n", 0), "");
        assert_eq!(tail("", 3), "");
        assert_eq!(tail("\n\n\n", 1), "\n");
        let long = "x".repeat(200_000);
        assert_eq!(tail(&format!("first\n{long}\nend\n"), 2), format!("{long}\nend\n"));
    }

    /// An output of 100 KiB of lines, 16 to 32 KiB of which are cut, as `holes` has them.
    fn cut_output(dir: &Path, own: bool) -> Output {
        let path = dir.join("0.1.out");
        let content: String = (0..10_240).map(|n| format!("{n:09}\n")).collect();
        fs::write(&path, content).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true);
        let note = cut::Note { file: options.open(cut::note_path(&path)).unwrap() };
        note.write(Cut { begin: 16_384, end: 32_768 }).unwrap();
        file.write_all_at(&[0; 16_384], 16_384).unwrap();
        Output { file: Arc::new(file), path: path.into(), own }
    }

    #[test]
    fn what_was_cut_is_left_out_and_counted_and_never_served_as_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let output = cut_output(dir.path(), true);
        let head = output.piece(0, u64::MAX).unwrap();
        assert_eq!((head.offset, head.cut, head.data.len()), (0, 0, 16_384));
        let tail = output.piece(16_384, u64::MAX).unwrap();
        assert_eq!((tail.offset, tail.cut, tail.data.len()), (32_768, 16_384, 102_400 - 32_768));
        let within = output.piece(20_000, u64::MAX).unwrap();
        assert_eq!((within.offset, within.cut), (32_768, 12_768), "of what was asked for");
        // Of a reader that stops there the rest is told too.
        let last = output.piece(20_000, 25_000).unwrap();
        assert_eq!(last, Piece { offset: 25_000, cut: 5_000, data: Vec::new() });
        for piece in [head, tail, within] {
            assert!(!piece.data.contains(&0));
        }
        // A file that the user named has no note of docket's, whatever lies beside it.
        let named = cut_output(dir.path(), false);
        assert_eq!(named.piece(16_384, u64::MAX).unwrap().cut, 0);
    }

    #[test]
    fn the_last_lines_are_counted_past_what_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let output = cut_output(dir.path(), true);
        assert_eq!(output.start_of_last(3, 102_400).unwrap(), 102_370);
        // 6,963 lines and a part stand behind the cut, 1,638 and a part before it.
        assert_eq!(output.start_of_last(6_963, 102_400).unwrap(), 32_770);
        assert_eq!(output.start_of_last(6_964, 102_400).unwrap(), 16_380);
        assert_eq!(output.start_of_last(6_965, 102_400).unwrap(), 16_370);
        assert_eq!(output.start_of_last(99_999, 102_400).unwrap(), 0);
    }

    #[test]
    fn an_output_that_its_job_emptied_is_whole_again() {
        let dir = tempfile::tempdir().unwrap();
        let output = cut_output(dir.path(), true);
        output.file.set_len(30_000).unwrap();
        assert_eq!(output.piece(16_384, u64::MAX).unwrap().data.len(), 30_000 - 16_384);
    }

    #[test]
    fn a_named_file_is_served_only_while_it_is_the_one_the_job_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.txt");
        fs::write(&path, "mine").unwrap();
        let about = fs::metadata(&path).unwrap();
        assert!(open(dir.path(), &asked(&path, about.ino(), about.dev())).unwrap().is_some());
        let unknown = open(dir.path(), &asked(&path, 0, 0)).unwrap_err();
        assert!(matches!(unknown, OutputError::NotKnown { .. }));

        let other = dir.path().join("shadow");
        fs::write(&other, "secret").unwrap();
        fs::rename(&path, dir.path().join("kept")).unwrap();
        symlink(&other, &path).unwrap();
        let error = open(dir.path(), &asked(&path, about.ino(), about.dev())).unwrap_err();
        assert!(matches!(error, OutputError::Replaced { .. }) && error.is_gone());
        fs::remove_file(&path).unwrap();
        let read = asked(&path, about.ino(), about.dev());
        assert!(open(dir.path(), &read).unwrap().is_none());
        assert!(why_missing(dir.path(), &read).unwrap_err().is_gone());
    }

    #[test]
    fn links_pipes_and_directories_are_never_opened_for_reading() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("5");
        fs::create_dir(&run).unwrap();
        let read = v1::ReadOutput { attempt: attempt(), ..v1::ReadOutput::default() };
        let file = run.join("0.1.out");
        symlink("/etc/passwd", &file).unwrap();
        let error = open(dir.path(), &read).unwrap_err();
        assert!(matches!(error, OutputError::NotRegular { .. }) && error.is_gone(), "{error:?}");
        fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(matches!(open(dir.path(), &read), Err(OutputError::NotRegular { .. })));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(matches!(open(dir.path(), &read), Err(OutputError::NotRegular { .. })));
    }

    #[test]
    fn a_missing_run_file_was_empty_unless_its_finish_counted_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let read = v1::ReadOutput { attempt: attempt(), ..v1::ReadOutput::default() };
        assert!(open(dir.path(), &read).unwrap().is_none());
        why_missing(dir.path(), &read).unwrap();
        let read = v1::ReadOutput { expected: 7, ..read };
        assert!(matches!(why_missing(dir.path(), &read), Err(OutputError::Gone { .. })));
    }
}
