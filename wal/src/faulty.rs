//! The enemy: a disk in memory that forgets, tears, flips, fills up and fails on purpose.
//!
//! It keeps what was written apart from what was synced. A power loss keeps any subset of the
//! unsynced sectors, lengths and directory changes, drawn from a seed, so that a failure can be
//! repeated. A handle from before a crash only gives errors.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::storage::{Storage, StorageFile};

/// A directory of the enemy. Clones are the same disk: keep one to torment it, give one to the
/// log.
#[derive(Debug, Clone)]
pub struct FaultyDisk {
    state: Arc<Mutex<State>>,
    /// Power-on period of this handle.
    period: u64,
}

/// A file of a [`FaultyDisk`].
#[derive(Debug)]
pub struct FaultyFile {
    state: Arc<Mutex<State>>,
    period: u64,
    id: u64,
}

/// What a power loss keeps of that which was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// Everything, as if it had been synced in time.
    Everything,
    /// Any subset of sectors, one of them perhaps torn, drawn from the seed.
    Random,
}

/// A failure to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Power is lost in the middle of the n-th change from now (1 = the next). Changes are
    /// creates, writes, allocations, renames, removals and syncs.
    PowerLossAt(u64),
    /// The n-th sync of a file from now fails; its unsynced bytes stay readable until power is
    /// lost and are then gone even if a later sync succeeds, as with Linux.
    FailSync(u64),
    /// The n-th write from now fails with an I/O error, nothing written.
    FailWrite(u64),
    /// The n-th write from now finds no space for its last byte, as can happen on a copy-on-write
    /// file system; the others are written.
    NoSpaceInWrite(u64),
    /// The n-th removal from now fails and removes nothing.
    FailRemove(u64),
}

/// The unit in which a power loss keeps or loses bytes.
const SECTOR_BYTES: u64 = 512;

#[derive(Debug, Default)]
struct State {
    period: u64,
    files: BTreeMap<u64, Inode>,
    next_id: u64,
    /// The directory as processes see it.
    names: BTreeMap<String, u64>,
    /// The directory as it is on disk.
    durable_names: BTreeMap<String, u64>,
    dir_changes: Vec<DirChange>,
    archived: BTreeMap<String, u64>,
    capacity: Option<u64>,
    faults: Vec<(Trigger, u64)>,
    changes: u64,
    dead: bool,
    random: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    PowerLoss,
    FailSync,
    FailWrite,
    NoSpaceInWrite,
    FailRemove,
}

#[derive(Debug, Default)]
struct Inode {
    /// As processes see it.
    bytes: Vec<u8>,
    durable: Vec<u8>,
    dirty: Vec<Dirty>,
}

#[derive(Debug)]
enum Dirty {
    Write { offset: u64, bytes: Vec<u8> },
    Grow { to: u64 },
}

#[derive(Debug, Clone)]
enum DirChange {
    Add { name: String, id: u64 },
    Rename { from: String, to: String, id: u64 },
    Remove { name: String },
}

impl FaultyDisk {
    /// An empty disk without a limit.
    pub fn new(seed: u64) -> FaultyDisk {
        let state = State { random: seed, ..State::default() };
        FaultyDisk { state: Arc::new(Mutex::new(state)), period: 0 }
    }

    /// Power is lost and comes back. Handles from before are dead; this one is renewed.
    pub fn crash(&mut self, keep: Keep) {
        let mut state = self.lock();
        state.crash(keep);
        let period = state.period;
        drop(state);
        self.period = period;
    }

    /// The process dies, the machine does not: handles are dead, nothing is lost, unsynced bytes
    /// stay unsynced.
    pub fn kill(&mut self) {
        let mut state = self.lock();
        state.period += 1;
        state.faults.clear();
        let period = state.period;
        drop(state);
        self.period = period;
    }

    /// Arms a failure beside those that are armed.
    pub fn arm(&self, fault: Fault) {
        let armed = match fault {
            Fault::PowerLossAt(n) => (Trigger::PowerLoss, n),
            Fault::FailSync(n) => (Trigger::FailSync, n),
            Fault::FailWrite(n) => (Trigger::FailWrite, n),
            Fault::NoSpaceInWrite(n) => (Trigger::NoSpaceInWrite, n),
            Fault::FailRemove(n) => (Trigger::FailRemove, n),
        };
        self.lock().faults.push(armed);
    }

    /// Limits the sum of all file lengths; `None` for no limit. Less than what is in use is legal.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Sum of all file lengths, in bytes.
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Number of changes so far: the clock of [`Fault::PowerLossAt`].
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Names and contents of all files as processes see them.
    pub fn image(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.lock();
        let of = |id: &u64| state.files.get(id).map(|file| file.bytes.clone()).unwrap_or_default();
        state.names.iter().map(|(name, id)| (name.clone(), of(id))).collect()
    }

    /// A disk that durably holds an image.
    pub fn from_image(image: &BTreeMap<String, Vec<u8>>, seed: u64) -> FaultyDisk {
        let disk = FaultyDisk::new(seed);
        let mut state = disk.lock();
        for (name, bytes) in image {
            let id = state.next_id;
            state.next_id += 1;
            let inode = Inode { bytes: bytes.clone(), durable: bytes.clone(), dirty: Vec::new() };
            state.files.insert(id, inode);
            state.names.insert(name.clone(), id);
        }
        state.durable_names = state.names.clone();
        drop(state);
        disk
    }

    /// Names of the files that were moved to an archive.
    pub fn archived(&self) -> Vec<String> {
        self.lock().archived.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if this handle is of the present and power is on.
    fn live(&self) -> io::Result<MutexGuard<'_, State>> {
        live(&self.state, self.period)
    }

    fn handle(&self, id: u64) -> FaultyFile {
        FaultyFile { state: Arc::clone(&self.state), period: self.period, id }
    }
}

fn live(state: &Mutex<State>, period: u64) -> io::Result<MutexGuard<'_, State>> {
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    if state.dead || state.period != period {
        return Err(power_lost());
    }
    Ok(state)
}

fn power_lost() -> io::Error {
    io::Error::other("power was lost")
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name} does not exist"))
}

fn no_space() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Storage for FaultyDisk {
    type File = FaultyFile;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.live()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<FaultyFile> {
        let mut state = self.live()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.next_id;
        state.next_id += 1;
        state.files.insert(id, Inode::default());
        state.change_dir(DirChange::Add { name: name.to_owned(), id })?;
        drop(state);
        Ok(self.handle(id))
    }

    fn open(&self, name: &str) -> io::Result<FaultyFile> {
        let id = *self.live()?.names.get(name).ok_or_else(|| not_found(name))?;
        Ok(self.handle(id))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.live()?;
        let id = *state.names.get(from).ok_or_else(|| not_found(from))?;
        state.change_dir(DirChange::Rename { from: from.to_owned(), to: to.to_owned(), id })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.live()?;
        if !state.names.contains_key(name) {
            return Err(not_found(name));
        }
        if state.fires(Trigger::FailRemove) {
            return Err(io::Error::other("removal failed on purpose"));
        }
        state.change_dir(DirChange::Remove { name: name.to_owned() })
    }

    fn archive(&self, name: &str, _to: &Path) -> io::Result<()> {
        let mut state = self.live()?;
        let id = *state.names.get(name).ok_or_else(|| not_found(name))?;
        state.archived.insert(name.to_owned(), id);
        state.change_dir(DirChange::Remove { name: name.to_owned() })
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.live()?;
        state.count_change()?;
        let changes = std::mem::take(&mut state.dir_changes);
        for change in &changes {
            apply_dir_change(&mut state.durable_names, change);
        }
        Ok(())
    }

    fn salt(&self) -> io::Result<u64> {
        Ok(self.live()?.draw())
    }
}

impl FaultyFile {
    fn live(&self) -> io::Result<MutexGuard<'_, State>> {
        live(&self.state, self.period)
    }
}

impl StorageFile for FaultyFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.live()?.inode(self.id).bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut state = self.live()?;
        let bytes = &state.inode(self.id).bytes;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let some = &bytes[from..(from + out.len()).min(bytes.len())];
        out[..some.len()].copy_from_slice(some);
        Ok(some.len())
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut state = self.live()?;
        let mut bytes = parts.iter().flat_map(|part| part.iter()).copied().collect::<Vec<_>>();
        if state.fires(Trigger::FailWrite) {
            return Err(io::Error::other("write failed on purpose"));
        }
        let cut = state.fires(Trigger::NoSpaceInWrite);
        if cut {
            bytes.pop();
        }
        let end = offset + bytes.len() as u64;
        let old = state.inode(self.id).bytes.len() as u64;
        if state.is_full_for(end.saturating_sub(old)) {
            return Err(no_space());
        }
        state.inode(self.id).write(offset, bytes);
        // Power lost in the middle of a write may keep some of its sectors.
        state.count_change()?;
        if cut { Err(no_space()) } else { Ok(()) }
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.live()?;
        let old = state.inode(self.id).bytes.len() as u64;
        if bytes <= old {
            return Ok(());
        }
        if state.is_full_for(bytes - old) {
            return Err(no_space());
        }
        let inode = state.inode(self.id);
        inode.bytes.resize(bytes as usize, 0);
        inode.dirty.push(Dirty::Grow { to: bytes });
        state.count_change()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut state = self.live()?;
        state.count_change()?;
        if state.fires(Trigger::FailSync) {
            // The pages count as clean from now on, and are not on disk.
            state.inode(self.id).dirty.clear();
            return Err(io::Error::other("fsync failed on purpose"));
        }
        let inode = state.inode(self.id);
        for dirty in std::mem::take(&mut inode.dirty) {
            dirty.reach(&mut inode.durable);
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.live()?;
        Ok(state.capacity.map_or(u64::MAX / 4, |capacity| capacity.saturating_sub(state.used())))
    }
}

impl Inode {
    fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        let dirty = Dirty::Write { offset, bytes };
        dirty.reach(&mut self.bytes);
        self.dirty.push(dirty);
    }
}

impl Dirty {
    /// Takes effect on the given bytes.
    fn reach(&self, target: &mut Vec<u8>) {
        let (at, bytes) = match self {
            Dirty::Write { offset, bytes } => (*offset as usize, &bytes[..]),
            Dirty::Grow { to } => (*to as usize, &[][..]),
        };
        if target.len() < at + bytes.len() {
            target.resize(at + bytes.len(), 0);
        }
        target[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

fn apply_dir_change(names: &mut BTreeMap<String, u64>, change: &DirChange) {
    match change {
        DirChange::Add { name, id } => {
            names.insert(name.clone(), *id);
        }
        DirChange::Rename { from, to, id } => {
            names.remove(from);
            names.insert(to.clone(), *id);
        }
        DirChange::Remove { name } => {
            names.remove(name);
        }
    }
}

impl State {
    fn inode(&mut self, id: u64) -> &mut Inode {
        self.files.get_mut(&id).expect("files are dropped only with their handles' period")
    }

    fn used(&self) -> u64 {
        let of = |id| self.files.get(id).map_or(0, |file| file.bytes.len() as u64);
        self.names.values().map(of).sum()
    }

    fn is_full_for(&self, more: u64) -> bool {
        more > 0 && self.capacity.is_some_and(|capacity| self.used() + more > capacity)
    }

    fn change_dir(&mut self, change: DirChange) -> io::Result<()> {
        apply_dir_change(&mut self.names, &change);
        self.dir_changes.push(change);
        self.count_change()
    }

    /// Counts a change; it may be the one in whose middle power is lost.
    fn count_change(&mut self) -> io::Result<()> {
        self.changes += 1;
        if self.fires(Trigger::PowerLoss) {
            self.dead = true;
            return Err(power_lost());
        }
        Ok(())
    }

    /// Counts down the armed failures of a kind; whether one is due.
    fn fires(&mut self, trigger: Trigger) -> bool {
        let mut due = false;
        for (armed, left) in &mut self.faults {
            if *armed == trigger {
                *left -= 1;
                due |= *left == 0;
            }
        }
        self.faults.retain(|(_, left)| *left > 0);
        due
    }

    fn crash(&mut self, keep: Keep) {
        self.period += 1;
        self.dead = false;
        self.faults.clear();
        for change in std::mem::take(&mut self.dir_changes) {
            if self.keeps(keep) {
                apply_dir_change(&mut self.durable_names, &change);
            }
        }
        self.names = self.durable_names.clone();
        let mut files = std::mem::take(&mut self.files);
        files.retain(|id, _| {
            self.names.values().chain(self.archived.values()).any(|named| named == id)
        });
        for inode in files.values_mut() {
            for dirty in std::mem::take(&mut inode.dirty) {
                self.crash_dirty(keep, &dirty, &mut inode.durable);
            }
            inode.bytes.clone_from(&inode.durable);
        }
        self.files = files;
    }

    fn crash_dirty(&mut self, keep: Keep, dirty: &Dirty, durable: &mut Vec<u8>) {
        let Dirty::Write { offset, bytes } = dirty else {
            if self.keeps(keep) {
                dirty.reach(durable);
            }
            return;
        };
        let mut from = 0;
        while from < bytes.len() {
            let at = offset + from as u64;
            let to_boundary = (SECTOR_BYTES - at % SECTOR_BYTES) as usize;
            let to = bytes.len().min(from + to_boundary);
            // One sector in eight is torn at any byte.
            let torn = keep == Keep::Random && self.draw().is_multiple_of(8);
            let kept = if torn { from + self.draw() as usize % (to - from) } else { to };
            if self.keeps(keep) {
                let bytes = bytes[from..kept].to_vec();
                Dirty::Write { offset: at, bytes }.reach(durable);
            }
            from = to;
        }
    }

    fn keeps(&mut self, keep: Keep) -> bool {
        match keep {
            Keep::Nothing => false,
            Keep::Everything => true,
            Keep::Random => self.draw().is_multiple_of(2),
        }
    }

    /// SplitMix64: small, and the same everywhere.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
