//! Changing segments: the spare that is the reserve, rotation, and dropping old segments.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use super::{Active, CLOSE_BYTES, GROWTH, Log, RESERVE_PART, Spare};
use crate::error::{WriteError, is_no_space};
use crate::frame::FrameKind;
use crate::index::SEGMENT_BYTES_MAX;
use crate::reader::{Room, SegmentFile};
use crate::segment::{
    HEADER_BYTES, SEGMENT_BYTES_MIN, SPARE_NAME, SegmentHeader, allocate_between, segment_name,
};
use crate::storage::{Storage, StorageFile};

impl<S: Storage> Log<S> {
    /// Closes the active segment and begins one after the given position with room for `need`
    /// bytes. Every step can be repeated, so a full disk in the middle leaves a usable log.
    pub(super) fn rotate(&mut self, index: u64, term: u64, need: u64) -> Result<(), WriteError> {
        let least = HEADER_BYTES + need + CLOSE_BYTES;
        let most = self.options.max_segment_bytes.min(SEGMENT_BYTES_MAX);
        let wish = self.active.bytes.saturating_mul(GROWTH).min(most);
        let spare = self.take_spare(least.max(SEGMENT_BYTES_MIN), wish, need)?;
        if !self.active.closed {
            if let Err(e) = self.write_seal(FrameKind::Close) {
                self.spare = Some(spare);
                return Err(e);
            }
            self.sync()?;
            self.active.closed = true;
        }
        let header = self.next_header(index, term, spare.bytes)?;
        self.adopt(spare, &header, need)
    }

    fn next_header(
        &mut self,
        index: u64,
        term: u64,
        bytes: u64,
    ) -> Result<SegmentHeader, WriteError> {
        let salt = self.storage.salt().map_err(|e| self.fail("get a salt for", e))?;
        let shared = self.reader.lock();
        Ok(SegmentHeader {
            identity: self.identity,
            seq: self.active.seq + 1,
            first_index: index + 1,
            previous_term: term,
            segment_bytes: bytes,
            salt,
            first_batch: self.next_batch,
            durable_seq: self.durable,
            cut_from: shared.index.cut_from,
            committed: shared.index.committed,
            vote: shared.index.vote.clone(),
        })
    }

    /// A spare with at least `least` bytes, up to `wish` as far as the disk has them.
    fn take_spare(
        &mut self,
        least: u64,
        wish: u64,
        need: u64,
    ) -> Result<Spare<S::File>, WriteError> {
        let mut spare = match self.spare.take() {
            Some(spare) => spare,
            None => match self.storage.create(SPARE_NAME) {
                Ok(file) => Spare { name: SPARE_NAME.to_owned(), file, bytes: 0 },
                Err(e) if is_no_space(&e) => {
                    return Err(WriteError::NoSpace { need_bytes: need });
                }
                Err(e) => return Err(self.fail("make the segment after", e)),
            },
        };
        let reached = allocate_between(&spare.file, least, wish);
        let reached = reached.map_err(|e| self.fail("allocate the segment after", e))?;
        if let Some(bytes) = reached {
            spare.bytes = bytes;
            return Ok(spare);
        }
        self.spare = Some(spare);
        Err(WriteError::NoSpace { need_bytes: need })
    }

    /// Makes the spare the active segment.
    fn adopt(
        &mut self,
        mut spare: Spare<S::File>,
        header: &SegmentHeader,
        need: u64,
    ) -> Result<(), WriteError> {
        let name = segment_name(header.first_index, header.seq);
        let named = give_name(&self.storage, &mut spare.name, &spare.file, &name);
        named.map_err(|e| self.fail("name the segment after", e))?;
        match spare.file.write_at(0, &[IoSlice::new(&header.encode())]) {
            Err(e) if is_no_space(&e) => {
                self.spare = Some(spare);
                return Err(WriteError::NoSpace { need_bytes: need });
            }
            other => other.and_then(|()| spare.file.sync_data()),
        }
        .map_err(|e| self.fail("write the header of the segment after", e))?;
        let file = Arc::new(SegmentFile { name, file: spare.file });
        self.active = Active {
            seq: header.seq,
            file: Arc::clone(&file),
            bytes: spare.bytes,
            offset: HEADER_BYTES,
            salt: header.salt,
            closed: false,
        };
        self.segments.push_back((header.seq, spare.bytes));
        self.sealed = true;
        self.reader.lock_mut().files.insert(header.seq, file);
        self.replenish();
        Ok(())
    }

    /// Keeps a spare of the reserve's length allocated. A full disk is seen later, when the
    /// spare is needed; it is tried again at every seal and rotation.
    pub(super) fn replenish(&mut self) {
        let used: u64 = self.segments.iter().map(|(_, bytes)| bytes).sum();
        let most = self.options.max_segment_bytes.max(self.options.reserve_min_bytes);
        let most = most.min(SEGMENT_BYTES_MAX);
        let reserve = (used / RESERVE_PART).clamp(self.options.reserve_min_bytes, most);
        let lacks = self.spare.as_ref().is_none_or(|spare| spare.bytes < reserve);
        let grown = if lacks { self.grow_spare(reserve) } else { Ok(()) };
        match &grown {
            // Once, not at every seal: a log that grows with each change would fill the next disk.
            Err(e) if !self.reserve_lacks => {
                tracing::warn!(error = %e, reserve, "cannot allocate the log's reserve");
            }
            Ok(()) if self.reserve_lacks => {
                tracing::info!(reserve, "the log has its reserve again")
            }
            _ => {}
        }
        self.reserve_lacks = grown.is_err();
        let room = Room {
            open_bytes: self.active.open_bytes(),
            spare_bytes: self.spare.as_ref().map_or(0, |spare| spare.bytes),
            reserve_bytes: reserve,
        };
        self.reader.lock_mut().room = room;
    }

    fn grow_spare(&mut self, reserve: u64) -> io::Result<()> {
        if self.spare.is_none() {
            let file = self.storage.create(SPARE_NAME)?;
            self.spare = Some(Spare { name: SPARE_NAME.to_owned(), file, bytes: 0 });
        }
        if let Some(spare) = &mut self.spare {
            spare.file.allocate(reserve)?;
            spare.bytes = reserve;
        }
        Ok(())
    }

    /// Removes or moves the segments before `keep`, oldest first, each durably before the next:
    /// a crash never leaves a hole.
    pub(super) fn drop_before(
        &mut self,
        keep: u64,
        archive: Option<&Path>,
    ) -> Result<(), WriteError> {
        while let Some(&(seq, _)) = self.segments.front()
            && seq < keep
        {
            // A segment may be void only by a cut that is not on disk yet.
            self.sync()?;
            let file = self.reader.lock().files.get(&seq).map(Arc::clone);
            let name = file.map(|file| file.name.clone()).unwrap_or_default();
            let (doing, done) = match archive {
                Some(to) => ("move", self.storage.archive(&name, to)),
                None => ("remove", self.storage.remove(&name)),
            };
            done.map_err(|e| WriteError::Purge { doing, file: name, source: Arc::new(e) })?;
            self.storage.sync_dir().map_err(|e| self.fail("sync the directory of", e))?;
            self.segments.pop_front();
            let mut shared = self.reader.lock_mut();
            shared.index.forget_before(seq + 1);
            shared.files.remove(&seq);
        }
        Ok(())
    }
}

/// Gives a file its segment name, durably; its length is durable before the name is.
pub(crate) fn give_name<S: Storage>(
    storage: &S,
    old: &mut String,
    file: &S::File,
    name: &str,
) -> io::Result<()> {
    file.sync_all()?;
    if old != name {
        storage.rename(old, name)?;
        name.clone_into(old);
    }
    storage.sync_dir()
}
