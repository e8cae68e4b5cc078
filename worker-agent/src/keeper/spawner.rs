//! The spawner: threads that start jobs, of which one at a time takes errands, so that a hung file
//! system suspends who met it and never the loop or the starts behind it. Who is at an errand for
//! long is left to it, and another takes over. Begin with [`Desk::next`]: it says whose turn it is.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::board::Board;
use super::child::Step;
use super::clone::ChildStack;
use super::spawn::{Errand, Gate, Hand, Nofile, Progress, QUEUE_MAX, Result_};

/// An errand that takes longer is left to its thread: those behind it go on with another one. Long
/// for a start (a millisecond, on a cold network file system perhaps a second), short for a user.
const LEFT_ALONE_MS: u64 = 2_000;

/// Errands that may hang at once before those behind them wait. Each holds a thread of half a MiB of
/// address space and a half-started child; jobs of one dead mount would else take them without end.
pub(crate) const HANGING_MAX: usize = 8;

/// An errand that does not come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocked {
    pub task: u64,
    pub step: Step,
    pub for_ms: u64,
}

/// The loop's end of the spawner. Dropping it ends each thread after the errand it is at.
pub(crate) struct Spawner {
    desk: Arc<Desk>,
    outbox: SyncSender<Result_>,
    results: Receiver<Result_>,
    wake: OwnedFd,
    hands: Vec<Arc<Progress>>,
    nofile: Nofile,
    board: Arc<Board>,
    gate: Arc<Gate>,
    waiting: usize,
}

/// What the loop and the threads share.
#[derive(Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Errand>,
    /// Whose turn it is. One at a time: nobody else begins a start.
    turn: usize,
    closed: bool,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        // No one panics while holding it: it guards plain moves.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next errand of this thread, once it is its turn; `None`: there will be none. A thread
    /// whose errand came back late waits here until it is needed. It does not end: the jobs it
    /// started would become children of the loop's thread, unreaped ones among them.
    pub(super) fn next(&self, hand: usize) -> Option<Errand> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if state.turn == hand
                && let Some(errand) = state.queue.pop_front()
            {
                return Some(errand);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Spawner {
    /// Starts the first thread. The signals of the calling thread must be blocked already.
    pub(crate) fn start(nofile: Nofile, board: Arc<Board>) -> io::Result<Spawner> {
        let (outbox, results) = sync_channel(2 * QUEUE_MAX);
        let wake = rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
        )?;
        let mut spawner = Spawner {
            desk: Arc::default(),
            outbox,
            results,
            wake,
            hands: Vec::new(),
            nofile,
            board,
            gate: Arc::default(),
            waiting: 0,
        };
        spawner.add_hand()?;
        Ok(spawner)
    }

    fn add_hand(&mut self) -> io::Result<usize> {
        let number = self.hands.len();
        let progress = Arc::new(Progress::default());
        let hand = Hand {
            number,
            stack: ChildStack::new()?,
            null: File::options().read(true).open("/dev/null")?.into(),
            wake: self.wake.try_clone()?,
            progress: Arc::clone(&progress),
            nofile: self.nofile,
            board: Arc::clone(&self.board),
            gate: Arc::clone(&self.gate),
        };
        let (desk, outbox) = (Arc::clone(&self.desk), self.outbox.clone());
        std::thread::Builder::new()
            .name("spawner".into())
            .stack_size(512 << 10)
            .spawn(move || hand.run(&desk, &outbox))?;
        self.hands.push(progress);
        Ok(number)
    }

    /// Readable when results wait.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Errands whose results did not come back yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Hands an errand over; gives it back if the queue is full.
    pub(crate) fn ask(&mut self, errand: Errand) -> Result<(), Errand> {
        let mut state = self.desk.state();
        if state.queue.len() >= 2 * QUEUE_MAX {
            return Err(errand);
        }
        state.queue.push_back(errand);
        drop(state);
        self.desk.changed.notify_all();
        self.waiting += 1;
        Ok(())
    }

    /// The next result, if one waits.
    pub(crate) fn take(&mut self) -> Option<Result_> {
        match self.results.try_recv() {
            Ok(result) => {
                self.waiting -= 1;
                Some(result)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Clears the wake-up before results are taken.
    pub(crate) fn awake(&self) {
        let mut count = [0; 8];
        // EAGAIN: it was not set.
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    /// Errands that have been under way for this long, the longest first.
    pub(crate) fn blocked(&self, now_ms: u64, longer_than_ms: u64) -> Vec<Blocked> {
        let under_way = self.hands.iter().filter_map(|hand| under_way(hand, now_ms));
        let mut all: Vec<Blocked> = under_way.filter(|b| b.for_ms > longer_than_ms).collect();
        all.sort_by_key(|blocked| std::cmp::Reverse(blocked.for_ms));
        all
    }

    /// Gives the turn to another thread where the one that has it does not come back. `false`: all
    /// that there may be hang, and what is behind them waits.
    ///
    /// # Errors
    /// No further thread can be made; asked again, it is tried again.
    pub(crate) fn relieve(&mut self, now_ms: u64) -> io::Result<bool> {
        let hangs = |hand: &Progress| {
            under_way(hand, now_ms).is_some_and(|blocked| blocked.for_ms > LEFT_ALONE_MS)
        };
        let turn = self.desk.state().turn;
        if !self.hands.get(turn).is_some_and(|hand| hangs(hand)) {
            return Ok(true);
        }
        let idle = |hand: &Arc<Progress>| hand.since_ms.load(Relaxed) == 0;
        let next = match self.hands.iter().position(idle) {
            Some(hand) => hand,
            None if self.hands.len() <= HANGING_MAX => self.add_hand()?,
            None => return Ok(false),
        };
        self.desk.state().turn = next;
        self.desk.changed.notify_all();
        Ok(true)
    }
}

fn under_way(hand: &Progress, now_ms: u64) -> Option<Blocked> {
    let since_ms = hand.since_ms.load(Relaxed);
    (since_ms != 0).then(|| Blocked {
        task: hand.task.load(Relaxed),
        step: Step::from_raw(hand.report.step.load(Relaxed)),
        for_ms: now_ms.saturating_sub(since_ms),
    })
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.desk.state().closed = true;
        self.desk.changed.notify_all();
    }
}
