//! The board: memory that the guard made and every keeper of it shares, so that what a keeper noted
//! outlives it. Two things stand there: who was born (each child writes its own pid as its first
//! act, so that an end which nobody journalled still finds its attempt), and the fences of leased
//! trees, which the guard enforces when the keeper is dead or stands still.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};

use super::child::Step;
use super::identity::{self, ProcessId};
use super::journal::hex;

/// Births remembered: twice the starts that may wait to be journalled.
const BIRTHS_MAX: usize = 4096;

/// Where the two tables of fences lie, far apart: pages never written take no memory. One is read
/// while the other is written.
const FENCES_AT: [u64; 2] = [1 << 20, 128 << 20];

/// Room of one table: some 300,000 leased attempts.
const FENCES_BYTES: u64 = 64 << 20;

const BOARD_BYTES: u64 = 256 << 20;

/// One start, announced before the child exists.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Birth {
    /// Written by the child itself; 0: it did not run yet, or never.
    pub pid: AtomicU32,
    /// The step at which it gave up without executing the job; 0: it did not.
    pub failed_step: AtomicU32,
    pub errno: AtomicI32,
    spare: AtomicU32,
    /// CLOCK_BOOTTIME in ms of the announcement.
    at_ms: AtomicU64,
    /// [`mark_id`] of the attempt, in two halves.
    id: [AtomicU64; 2],
}

#[repr(C)]
struct Page {
    /// CLOCK_BOOTTIME in ms at which the board was made.
    since_ms: AtomicU64,
    /// Births announced ever.
    announced: AtomicU64,
    /// Tables of fences written ever: the last one tells which of the two counts.
    fences: AtomicU64,
    births: [Birth; BIRTHS_MAX],
    /// Id of the journal of the last keeper, in two halves; 0: none came so far.
    journal: [AtomicU64; 2],
    /// CLOCK_BOOTTIME in ms since when the directory has another name and no agent knows it; 0: not.
    renamed_ms: AtomicU64,
    /// How often a keeper took over from an older program.
    upgrades: AtomicU64,
}

/// What the board says of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Born {
    /// Its child got this pid.
    As { pid: u32, failed: Option<(Step, i32)> },
    /// No child of it ever ran.
    Never,
    /// It was accepted before this board, or too many were born since.
    Unknown,
}

/// A tree that must not outlive its fence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fence {
    /// CLOCK_BOOTTIME in ms.
    pub at_ms: u64,
    pub mark: Vec<u8>,
    pub slot: Option<PathBuf>,
    pub main: Option<ProcessId>,
    /// Sessions that members were seen in.
    pub sessions: Vec<u32>,
}

/// One end of the shared memory.
pub(crate) struct Board {
    file: File,
    page: NonNull<Page>,
    /// Places of births whose child may still write there. One announces at a time.
    under_way: Mutex<BTreeSet<usize>>,
}

/// A birth that is kept in its place, however many come after it, until this is dropped: a start
/// that hangs must not write into the place of another one.
pub(crate) struct Announced<'a> {
    board: &'a Board,
    place: usize,
}

// SAFETY: the mapping lives as long as the value and holds atomics only.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// A new one: the guard's, or of a keeper that has no guard.
    pub(crate) fn new() -> io::Result<Board> {
        let file = File::from(memfd_create("docket-board", MemfdFlags::CLOEXEC)?);
        file.set_len(BOARD_BYTES)?;
        let board = Board::over(file)?;
        board.page().since_ms.store(identity::boottime_ms(), Ordering::Release);
        Ok(board)
    }

    /// The one that the guard handed down.
    pub(crate) fn handed(fd: OwnedFd) -> io::Result<Board> {
        let file = File::from(fd);
        if file.metadata()?.len() != BOARD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no board"));
        }
        Board::over(file)
    }

    fn over(file: File) -> io::Result<Board> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping of a file that is longer and that nobody shortens.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<Page>(),
                prot,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Board { file, page, under_way: Mutex::default() })
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped while `self` lives; atomics of any value are valid.
        unsafe { self.page.as_ref() }
    }

    /// The descriptor to hand down.
    pub(crate) fn raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The keeper says whose journal this is.
    pub(crate) fn note_journal(&self, id: [u8; 16]) {
        let id = u128::from_be_bytes(id);
        self.page().journal[0].store((id >> 64) as u64, Ordering::Release);
        self.page().journal[1].store(id as u64, Ordering::Release);
    }

    /// Journal of the last keeper; `None`: there was none yet.
    pub(crate) fn journal(&self) -> Option<[u8; 16]> {
        let half = |n: usize| u128::from(self.page().journal[n].load(Ordering::Acquire));
        let id = half(0) << 64 | half(1);
        (id != 0).then(|| id.to_be_bytes())
    }

    /// The directory got another name, and no agent came there since then; `None`: one knows it.
    pub(crate) fn note_renamed(&self, since_ms: Option<u64>) {
        self.page().renamed_ms.store(since_ms.unwrap_or(0), Ordering::Release);
    }

    /// What was noted last.
    pub(crate) fn renamed(&self) -> Option<u64> {
        let since_ms = self.page().renamed_ms.load(Ordering::Acquire);
        (since_ms != 0).then_some(since_ms)
    }

    /// A newer program took over from the keeper, and serves.
    pub(crate) fn note_upgrade(&self) {
        self.page().upgrades.fetch_add(1, Ordering::AcqRel);
    }

    /// How often that happened.
    pub(crate) fn upgrades(&self) -> u64 {
        self.page().upgrades.load(Ordering::Acquire)
    }

    /// Before a child of this attempt is made. Only the threads of the spawner call it.
    pub(crate) fn announce(&self, mark: &[u8]) -> Announced<'_> {
        let mut under_way = self.under_way();
        let page = self.page();
        let mut number = page.announced.load(Ordering::Relaxed);
        let place_of = |number: u64| number as usize % BIRTHS_MAX;
        while under_way.contains(&place_of(number)) {
            // Stepped over, it counts as born just now: nothing that was pushed out of the ring
            // may be younger than its oldest birth.
            page.births[place_of(number)].at_ms.store(identity::boottime_ms(), Ordering::Relaxed);
            number += 1;
        }
        let place = place_of(number);
        let birth = &page.births[place];
        let id = mark_id(mark);
        birth.id[0].store((id >> 64) as u64, Ordering::Relaxed);
        birth.id[1].store(id as u64, Ordering::Relaxed);
        birth.at_ms.store(identity::boottime_ms(), Ordering::Relaxed);
        birth.failed_step.store(0, Ordering::Relaxed);
        birth.errno.store(0, Ordering::Relaxed);
        birth.pid.store(0, Ordering::Release);
        page.announced.store(number + 1, Ordering::Release);
        under_way.insert(place);
        Announced { board: self, place }
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The births that are remembered, newest first.
    fn births(&self) -> impl Iterator<Item = &Birth> {
        let page = self.page();
        let last = page.announced.load(Ordering::Acquire);
        let first = last.saturating_sub(BIRTHS_MAX as u64);
        (first..last).rev().map(|number| &page.births[number as usize % BIRTHS_MAX])
    }

    /// Whose child this is; the newest that had this pid.
    pub(crate) fn attempt_of(&self, pid: u32) -> Option<u128> {
        self.births().find(|birth| birth.pid.load(Ordering::Acquire) == pid).map(Birth::id)
    }

    /// Whether the attempt of this mark was born under this board, as far as is remembered.
    pub(crate) fn knows(&self, mark: &[u8]) -> bool {
        let id = mark_id(mark);
        id != 0 && self.births().any(|birth| birth.id() == id)
    }

    /// What became of the start of an attempt that was accepted at this CLOCK_BOOTTIME. Its keeper
    /// must be dead, and no child of it on its way any more.
    pub(crate) fn born(&self, mark: &[u8], accepted_ms: u64) -> Born {
        let id = mark_id(mark);
        if let Some(birth) = self.births().find(|birth| birth.id() == id) {
            let failed = Step::from_raw(birth.failed_step.load(Ordering::Acquire));
            return match birth.pid.load(Ordering::Acquire) {
                0 => Born::Never,
                pid => {
                    let errno = birth.errno.load(Ordering::Acquire);
                    Born::As { pid, failed: (failed != Step::None).then_some((failed, errno)) }
                }
            };
        }
        let full = self.page().announced.load(Ordering::Acquire) >= BIRTHS_MAX as u64;
        let oldest_ms = match self.births().last() {
            Some(oldest) if full => oldest.at_ms.load(Ordering::Acquire),
            _ => self.page().since_ms.load(Ordering::Acquire),
        };
        if accepted_ms > oldest_ms { Born::Never } else { Born::Unknown }
    }

    /// Replaces the table of fences as a whole: whoever dies meanwhile leaves the old one.
    pub(crate) fn publish(&self, fences: &[Fence]) -> io::Result<()> {
        let text: Vec<u8> = fences.iter().flat_map(|fence| line_of(fence).into_bytes()).collect();
        if text.len() as u64 > FENCES_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too many leased attempts"));
        }
        let next = self.page().fences.load(Ordering::Acquire) + 1;
        let at = FENCES_AT[next as usize % 2];
        self.file.write_all_at(&text, at + 8)?;
        self.file.write_all_at(&(text.len() as u64).to_ne_bytes(), at)?;
        self.page().fences.store(next, Ordering::Release);
        Ok(())
    }

    /// The fences as published last; none if there never were any.
    pub(crate) fn fences(&self) -> Vec<Fence> {
        loop {
            let seen = self.page().fences.load(Ordering::Acquire);
            if seen == 0 {
                return Vec::new();
            }
            let table = self.read_table(FENCES_AT[seen as usize % 2]);
            // Written over while it was read: only then may it be torn.
            if self.page().fences.load(Ordering::Acquire) <= seen + 1 {
                return table.unwrap_or_default();
            }
        }
    }

    fn read_table(&self, at: u64) -> io::Result<Vec<Fence>> {
        let mut length = [0; 8];
        self.file.read_exact_at(&mut length, at)?;
        let mut text = vec![0; u64::from_ne_bytes(length).min(FENCES_BYTES) as usize];
        self.file.read_exact_at(&mut text, at + 8)?;
        Ok(String::from_utf8_lossy(&text).lines().filter_map(parse).collect())
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped in `over` with this size; no reference outlives the value.
        unsafe { libc::munmap(self.page.as_ptr().cast(), size_of::<Page>()) };
    }
}

impl Announced<'_> {
    pub(crate) fn birth(&self) -> &Birth {
        &self.board.page().births[self.place]
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.board.under_way().remove(&self.place);
    }
}

impl Birth {
    fn id(&self) -> u128 {
        let half = |n: usize| u128::from(self.id[n].load(Ordering::Acquire));
        half(0) << 64 | half(1)
    }
}

/// The random number at a mark's end: unique per attempt.
pub(crate) fn mark_id(mark: &[u8]) -> u128 {
    let random = mark.rsplit(|b| *b == b'.').next().unwrap_or_default();
    let text = std::str::from_utf8(random).unwrap_or_default();
    u128::from_str_radix(text, 16).unwrap_or(0)
}

fn line_of(fence: &Fence) -> String {
    let slot = fence.slot.as_ref().map_or("-".into(), |slot| hex(slot.as_os_str().as_bytes()));
    let main = fence.main.unwrap_or(ProcessId { pid: 0, start_ticks: 0 });
    let sessions: Vec<String> = fence.sessions.iter().map(ToString::to_string).collect();
    format!(
        "{} {} {slot} {} {} {}\n",
        fence.at_ms,
        hex(&fence.mark),
        main.pid,
        main.start_ticks,
        sessions.join(",")
    )
}

fn parse(line: &str) -> Option<Fence> {
    let mut words = line.split(' ');
    let mut word = || words.next();
    let at_ms = word()?.parse().ok()?;
    let mark = unhex(word()?)?;
    let slot = match word()? {
        "-" => None,
        path => Some(Path::new(OsStr::from_bytes(&unhex(path)?)).to_owned()),
    };
    let main = ProcessId { pid: word()?.parse().ok()?, start_ticks: word()?.parse().ok()? };
    let sessions = word()?.split(',').filter_map(|session| session.parse().ok()).collect();
    Some(Fence { at_ms, mark, slot, main: (main.pid != 0).then_some(main), sessions })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn mark(n: usize) -> Vec<u8> {
        format!("cluster.1.{n}.1.{:032x}", n + 1).into_bytes()
    }

    #[test]
    fn a_birth_is_known_by_its_attempt_and_by_its_pid_and_the_newest_counts() {
        let board = Board::new().unwrap();
        let long_after = identity::boottime_ms() + 1_000;
        assert_eq!(board.born(&mark(1), long_after), Born::Never);
        assert_eq!(board.born(&mark(1), 0), Born::Unknown, "accepted before this board");
        let announced = board.announce(&mark(1));
        assert_eq!(board.born(&mark(1), 0), Born::Never, "announced, and it never ran");
        announced.birth().pid.store(77, Ordering::Relaxed);
        assert_eq!(board.born(&mark(1), 0), Born::As { pid: 77, failed: None });
        assert_eq!(board.attempt_of(77), Some(mark_id(&mark(1))));
        let announced = board.announce(&mark(2));
        let again = announced.birth();
        again.pid.store(77, Ordering::Relaxed);
        again.errno.store(2, Ordering::Relaxed);
        again.failed_step.store(Step::Exec as u32, Ordering::Relaxed);
        assert_eq!(board.attempt_of(77), Some(mark_id(&mark(2))));
        let failed = Some((Step::Exec, 2));
        assert_eq!(board.born(&mark(2), 0), Born::As { pid: 77, failed });
        assert_eq!(board.attempt_of(78), None);
    }

    #[test]
    fn what_was_pushed_out_of_the_ring_is_unknown_and_not_never() {
        let board = Board::new().unwrap();
        let accepted_ms = identity::boottime_ms() + 1;
        for n in 0..=BIRTHS_MAX {
            board.announce(&mark(n)).birth().at_ms.store(accepted_ms + n as u64, Ordering::Relaxed);
        }
        assert_eq!(board.born(&mark(0), accepted_ms), Born::Unknown);
        assert_eq!(board.born(&mark(1), accepted_ms), Born::Never, "announced");
        assert_eq!(board.born(b"c.1.9.1.ffffff", accepted_ms + 2), Born::Never);
    }

    #[test]
    fn the_place_of_a_start_that_hangs_goes_to_no_other() {
        let board = Board::new().unwrap();
        let hung = board.announce(&mark(0));
        hung.birth().pid.store(7, Ordering::Relaxed);
        hung.birth().at_ms.store(1, Ordering::Relaxed);
        for n in 1..3 * BIRTHS_MAX {
            board.announce(&mark(n)).birth().pid.store(100 + n as u32, Ordering::Relaxed);
        }
        // What its child says now is said of nobody else.
        hung.birth().errno.store(libc::EIO, Ordering::Relaxed);
        hung.birth().failed_step.store(Step::Stdout as u32, Ordering::Relaxed);
        let failed = Some((Step::Stdout, libc::EIO));
        assert_eq!(board.born(&mark(0), 0), Born::As { pid: 7, failed });
        for n in 2 * BIRTHS_MAX + 2..3 * BIRTHS_MAX {
            let pid = 100 + n as u32;
            assert_eq!(board.born(&mark(n), 0), Born::As { pid, failed: None }, "{n}");
        }
        // Its own time tells nothing of those that were pushed out.
        assert_eq!(board.born(&mark(1), 2), Born::Unknown);
        let at = hung.place;
        drop(hung);
        let next = (0..BIRTHS_MAX).any(|n| board.announce(&mark(n)).place == at);
        assert!(next, "once it is over, its place is used again");
    }

    #[test]
    fn the_next_keeper_and_the_guard_read_what_a_dead_keeper_noted() {
        let board = Board::new().unwrap();
        let keeper = Board::handed(board.file.try_clone().unwrap().into()).unwrap();
        keeper.announce(&mark(3)).birth().pid.store(5, Ordering::Relaxed);
        let fences = |at_ms| {
            let slot = Some(PathBuf::from("/sys/fs/cgroup/a b/s1"));
            let main = Some(ProcessId { pid: 7, start_ticks: 9 });
            let with = Fence { at_ms, mark: mark(3), slot, main, sessions: vec![7, 8] };
            let without =
                Fence { at_ms: 1, mark: mark(4), slot: None, main: None, sessions: vec![] };
            vec![with, without]
        };
        assert_eq!(board.fences(), []);
        for at_ms in 10..15 {
            keeper.publish(&fences(at_ms)).unwrap();
            assert_eq!(board.fences(), fences(at_ms));
        }
        drop(keeper);
        assert_eq!(board.fences(), fences(14));
        assert_eq!(board.attempt_of(5), Some(mark_id(&mark(3))));
        board.publish(&[]).unwrap();
        assert_eq!(board.fences(), []);
    }
}
