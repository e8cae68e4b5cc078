//! Snapshot files: a position, the caller's meta bytes, and chunks, each under a checksum.
//!
//! A snapshot appears under its name only when it is whole and durable; the two newest are kept,
//! so that a damaged one leaves the older one and the log behind it.
//!
//! ```text
//! header   0  8  magic "DOCKETSN"      16  8  index
//!          8  4  format version (1)    24  8  term
//!         12  4  checksum of the       32  4  length of the meta bytes
//!                header (this field    36 28  zero
//!                zero) and the meta    64     meta bytes
//! chunk    0  4  length                 4  4  checksum of its ordinal (8 bytes) and its bytes
//! end      0  4  0xffffffff             4  4  checksum of the next 16 bytes
//!          8  8  number of chunks      16  8  bytes in them
//! ```

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{SnapshotError, is_no_space};
use crate::frame::{u32_at, u64_at};
use crate::recovery::{SNAPSHOTS, SnapshotFacts, SnapshotVerdict, decide};
use crate::storage::{Storage, StorageFile};

const MAGIC: [u8; 8] = *b"DOCKETSN";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const CHUNK_HEADER_BYTES: u64 = 8;
const END_BYTES: usize = 24;
const END_MARK: u32 = u32::MAX;
/// The longest meta part: a membership and little else.
const META_BYTES_MAX: usize = 16 << 20;
/// The longest chunk: it is held in memory whole when it is read.
const CHUNK_BYTES_MAX: usize = 64 << 20;
/// How many snapshots are kept.
const KEPT: usize = 2;
const UNFINISHED: &str = ".tmp";

/// A directory of snapshots.
#[derive(Debug)]
pub struct SnapshotStore<S: Storage> {
    storage: S,
    /// Held while saving: two savers at one position would write one file.
    saving: Mutex<()>,
}

/// What a snapshot is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Index of the last entry that it contains.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// The caller's bytes.
    pub meta: Vec<u8>,
    /// File name in the store's directory.
    pub file: String,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes in all chunks.
    pub bytes: u64,
}

impl<S: Storage> SnapshotStore<S> {
    /// Takes a directory and removes what an interrupted save left in it.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub fn open(storage: S) -> Result<SnapshotStore<S>, SnapshotError> {
        for name in storage.list().map_err(io_error("list", "directory"))? {
            if name.ends_with(UNFINISHED) {
                storage.remove(&name).map_err(io_error("remove", &name))?;
            }
        }
        storage.sync_dir().map_err(io_error("sync", "directory"))?;
        Ok(SnapshotStore { storage, saving: Mutex::new(()) })
    }

    /// Saves a snapshot of everything up to a position; durable when it returns. Then removes
    /// all but the two newest.
    ///
    /// # Errors
    /// [`SnapshotError::NoSpace`], [`SnapshotError::TooLong`] and [`SnapshotError::Io`]; in each
    /// case the snapshots that were there still are.
    pub fn save(
        &self,
        index: u64,
        term: u64,
        meta: &[u8],
        chunks: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<SnapshotInfo, SnapshotError> {
        // The lock guards no data, so a panic of another saver leaves nothing half done here.
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let name = snapshot_name(index, term);
        let temp = format!("{name}{UNFINISHED}");
        // Left behind by a save that failed and could not clean up.
        match self.storage.remove(&temp) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &temp)(e));
            }
            _ => {}
        }
        let file = self.storage.create(&temp).map_err(save_error("make", &name))?;
        let written = write_all(&file, &name, index, term, meta, chunks);
        let saved = written.and_then(|info| {
            file.sync_all().map_err(save_error("sync", &name))?;
            self.storage.rename(&temp, &name).map_err(save_error("name", &name))?;
            self.storage.sync_dir().map_err(save_error("sync the directory of", &name))?;
            Ok(info)
        });
        if saved.is_err() {
            // The first error is the one to tell; open removes what stays.
            let _ = self.storage.remove(&temp);
        } else {
            self.prune()?;
        }
        saved
    }

    fn prune(&self) -> Result<(), SnapshotError> {
        for (_, name) in self.newest_first()?.into_iter().skip(KEPT) {
            self.storage.remove(&name).map_err(io_error("remove", &name))?;
        }
        self.storage.sync_dir().map_err(io_error("sync", "directory"))
    }

    /// Positions of all snapshots that are there, newest first, unchecked.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub fn positions(&self) -> Result<Vec<(u64, u64)>, SnapshotError> {
        Ok(self.newest_first()?.into_iter().map(|(position, _)| position).collect())
    }

    fn newest_first(&self) -> Result<Vec<Named>, SnapshotError> {
        let names = self.storage.list().map_err(io_error("list", "directory"))?;
        let mut found: Vec<_> =
            names.into_iter().filter_map(|name| Some((parse_name(&name)?, name))).collect();
        found.sort();
        found.reverse();
        Ok(found)
    }

    /// The newest whole snapshot: its checksums are all verified before this returns, and again
    /// as the chunks are read. Falls back to the older one and says so in the log.
    ///
    /// # Errors
    /// [`SnapshotError::UnknownVersion`], or the newest one's damage if none is whole.
    pub fn newest(&self) -> Result<Option<Opened<S::File>>, SnapshotError> {
        let mut opened = Vec::new();
        for (_, name) in self.newest_first()?.into_iter().take(KEPT) {
            let checked = self.open_checked(&name);
            if let Err(e @ (SnapshotError::UnknownVersion { .. } | SnapshotError::Io { .. })) =
                checked
            {
                return Err(e);
            }
            let good = checked.is_ok();
            opened.push(checked);
            if good {
                break;
            }
        }
        let whole = |place: usize| opened.get(place).is_some_and(Result::is_ok);
        let facts = SnapshotFacts {
            any: !opened.is_empty(),
            newest_whole: whole(0),
            older_whole: whole(1),
        };
        let place = match decide(SNAPSHOTS, &facts).verdict {
            SnapshotVerdict::None => return Ok(None),
            SnapshotVerdict::Newest | SnapshotVerdict::Refuse => 0,
            SnapshotVerdict::Older => {
                if let Some(Err(damage)) = opened.first() {
                    tracing::warn!(error = %damage, "using the older snapshot");
                }
                1
            }
        };
        opened.into_iter().nth(place).transpose()
    }

    fn open_checked(&self, name: &str) -> Result<Opened<S::File>, SnapshotError> {
        let file = self.storage.open(name).map_err(io_error("open", name))?;
        let (mut info, start) = read_head(&file, name)?;
        let mut chunks = SnapshotChunks::new(Arc::new(file), name, start)?;
        let again = chunks.clone();
        for chunk in &mut chunks {
            info.bytes += chunk?.len() as u64;
            info.chunks += 1;
        }
        Ok((info, again))
    }
}

/// A snapshot that was found whole, and its chunks.
type Opened<F> = (SnapshotInfo, SnapshotChunks<F>);

/// Position (index, term) and file name.
type Named = ((u64, u64), String);

fn snapshot_name(index: u64, term: u64) -> String {
    format!("{index:020}-{term:016x}.snap")
}

fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (index, term) = name.strip_suffix(".snap")?.split_once('-')?;
    Some((index.parse().ok()?, u64::from_str_radix(term, 16).ok()?))
}

fn io_error<'a>(
    doing: &'static str,
    file: &'a str,
) -> impl FnOnce(io::Error) -> SnapshotError + use<'a> {
    move |source| SnapshotError::Io { doing, file: file.to_owned(), source }
}

fn save_error<'a>(
    doing: &'static str,
    file: &'a str,
) -> impl FnOnce(io::Error) -> SnapshotError + use<'a> {
    move |source| {
        if is_no_space(&source) {
            SnapshotError::NoSpace { file: file.to_owned() }
        } else {
            SnapshotError::Io { doing, file: file.to_owned(), source }
        }
    }
}

fn check_length(part: &'static str, bytes: usize, max: usize) -> Result<(), SnapshotError> {
    if bytes > max { Err(SnapshotError::TooLong { part, bytes, max }) } else { Ok(()) }
}

fn write_all<F: StorageFile>(
    file: &F,
    name: &str,
    index: u64,
    term: u64,
    meta: &[u8],
    chunks: impl IntoIterator<Item = Vec<u8>>,
) -> Result<SnapshotInfo, SnapshotError> {
    check_length("meta part", meta.len(), META_BYTES_MAX)?;
    let header = encode_header(VERSION, index, term, meta);
    let mut at = 0;
    let mut put = |parts: &[&[u8]]| {
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_at(at, &slices).map_err(save_error("write", name))?;
        at += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(())
    };
    put(&[&header, meta])?;
    let (mut count, mut bytes) = (0u64, 0u64);
    for chunk in chunks {
        check_length("chunk", chunk.len(), CHUNK_BYTES_MAX)?;
        let head = chunk_header(chunk.len() as u32, chunk_crc(count, &chunk));
        put(&[&head, &chunk])?;
        count += 1;
        bytes += chunk.len() as u64;
    }
    put(&[&encode_end(count, bytes)])?;
    let meta = meta.to_vec();
    Ok(SnapshotInfo { index, term, meta, file: name.to_owned(), chunks: count, bytes })
}

fn encode_header(version: u32, index: u64, term: u64, meta: &[u8]) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[0..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&version.to_le_bytes());
    out[16..24].copy_from_slice(&index.to_le_bytes());
    out[24..32].copy_from_slice(&term.to_le_bytes());
    out[32..36].copy_from_slice(&(meta.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), meta);
    out[12..16].copy_from_slice(&crc.to_le_bytes());
    out
}

fn chunk_crc(ordinal: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&ordinal.to_le_bytes()), bytes)
}

fn chunk_header(bytes: u32, crc: u32) -> [u8; CHUNK_HEADER_BYTES as usize] {
    let mut out = [0; CHUNK_HEADER_BYTES as usize];
    out[0..4].copy_from_slice(&bytes.to_le_bytes());
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

fn encode_end(count: u64, bytes: u64) -> [u8; END_BYTES] {
    let mut out = [0; END_BYTES];
    out[8..16].copy_from_slice(&count.to_le_bytes());
    out[16..24].copy_from_slice(&bytes.to_le_bytes());
    let crc = crc32c::crc32c(&out[8..]);
    out[0..8].copy_from_slice(&chunk_header(END_MARK, crc));
    out
}

fn read_exact<F: StorageFile>(
    file: &F,
    name: &str,
    offset: u64,
    out: &mut [u8],
) -> Result<(), SnapshotError> {
    let read = file.read_at(offset, out).map_err(io_error("read", name))?;
    if read == out.len() { Ok(()) } else { Err(damaged(name, offset, "the file ends too early")) }
}

fn damaged(file: &str, offset: u64, what: impl Into<String>) -> SnapshotError {
    SnapshotError::Damaged { file: file.to_owned(), offset, what: what.into() }
}

/// Reads header and meta; gives where the chunks begin.
fn read_head<F: StorageFile>(file: &F, name: &str) -> Result<(SnapshotInfo, u64), SnapshotError> {
    let mut head = [0; HEADER_BYTES];
    read_exact(file, name, 0, &mut head)?;
    if head[0..8] != MAGIC {
        return Err(damaged(name, 0, "it does not begin with the magic number"));
    }
    let (version, recorded) = (u32_at(&head, 8), u32_at(&head, 12));
    let (index, term) = (u64_at(&head, 16), u64_at(&head, 24));
    let meta_bytes = u32_at(&head, 32) as usize;
    let size = file.size().map_err(io_error("read", name))?;
    // Nothing is allocated by a length that the file does not hold.
    let fits = meta_bytes <= META_BYTES_MAX && (HEADER_BYTES + meta_bytes) as u64 <= size;
    let mut meta = vec![0; if fits { meta_bytes } else { 0 }];
    read_exact(file, name, HEADER_BYTES as u64, &mut meta)?;
    // Version 1 with a rotten version field is damage, not a newer release.
    let right = encode_header(VERSION, index, term, &meta);
    if version != VERSION && u32_at(&right, 12) != recorded {
        return Err(SnapshotError::UnknownVersion {
            file: name.to_owned(),
            found: version,
            known: VERSION,
        });
    }
    if head != right {
        let found = u32_at(&right, 12);
        let what = format!("checksum of the header is {found:#010x}, recorded is {recorded:#010x}");
        return Err(damaged(name, 0, what));
    }
    let info = SnapshotInfo { index, term, meta, file: name.to_owned(), chunks: 0, bytes: 0 };
    Ok((info, (HEADER_BYTES + meta_bytes) as u64))
}

/// The chunks of a snapshot, read one by one. Ends after the first error.
#[derive(Debug)]
pub struct SnapshotChunks<F> {
    file: Arc<F>,
    name: String,
    size: u64,
    at: u64,
    ordinal: u64,
    bytes: u64,
    done: bool,
}

impl<F> Clone for SnapshotChunks<F> {
    fn clone(&self) -> Self {
        SnapshotChunks { file: Arc::clone(&self.file), name: self.name.clone(), ..*self }
    }
}

impl<F: StorageFile> SnapshotChunks<F> {
    fn new(file: Arc<F>, name: &str, at: u64) -> Result<SnapshotChunks<F>, SnapshotError> {
        let size = file.size().map_err(io_error("read", name))?;
        let name = name.to_owned();
        Ok(SnapshotChunks { file, name, size, at, ordinal: 0, bytes: 0, done: false })
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>, SnapshotError> {
        let mut head = [0; CHUNK_HEADER_BYTES as usize];
        read_exact(&*self.file, &self.name, self.at, &mut head)?;
        let (bytes, crc) = (u32_at(&head, 0), u32_at(&head, 4));
        let start = self.at + CHUNK_HEADER_BYTES;
        if bytes == END_MARK {
            return self.check_end().map(|()| None);
        }
        if u64::from(bytes) > self.size.saturating_sub(start) || bytes as usize > CHUNK_BYTES_MAX {
            return Err(damaged(&self.name, self.at, "a chunk runs past the end of the file"));
        }
        let mut chunk = vec![0; bytes as usize];
        read_exact(&*self.file, &self.name, start, &mut chunk)?;
        let found = chunk_crc(self.ordinal, &chunk);
        if found != crc {
            let what = format!("checksum of a chunk is {found:#010x}, recorded is {crc:#010x}");
            return Err(damaged(&self.name, self.at, what));
        }
        self.at = start + u64::from(bytes);
        self.ordinal += 1;
        self.bytes += u64::from(bytes);
        Ok(Some(chunk))
    }

    fn check_end(&self) -> Result<(), SnapshotError> {
        let mut end = [0; END_BYTES];
        read_exact(&*self.file, &self.name, self.at, &mut end)?;
        let whole = self.at + END_BYTES as u64 == self.size;
        if whole && end == encode_end(self.ordinal, self.bytes) {
            Ok(())
        } else {
            Err(damaged(&self.name, self.at, "its end does not fit its chunks"))
        }
    }
}

impl<F: StorageFile> Iterator for SnapshotChunks<F> {
    type Item = Result<Vec<u8>, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.read().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}
