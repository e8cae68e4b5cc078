//! The spawner: one thread that starts jobs one after the other, so that a hung file system suspends
//! it and never the loop. It also measures outputs that lie outside the data directory, for the same
//! reason. Results come back over a channel, with a descriptor to wake the loop.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use proto::v1::{JobSpec, KeeperRun, StartFact, StartFailure};

use super::board::Board;
use super::cgroup::Slot;
use super::child::{self, Report, Step};
use super::clone::{self, ChildStack};
use super::identity;
use super::outputs::{self, Measure, Measured};
use super::plan::{Prepared, fault};
use super::procfs;
use super::sys;
use super::upgrade::{Candidacy, Candidate};

/// Starts that may wait for the spawner; beyond it a run is refused for now, since what waits is
/// held in memory (a specification may have 1 MiB).
pub(crate) const QUEUE_MAX: usize = 1024;

/// One start.
pub(crate) struct SpawnOrder {
    pub id: u64,
    pub run: KeeperRun,
    pub spec: JobSpec,
    pub mark: Vec<u8>,
    pub slot: Option<Arc<Slot>>,
}

/// A child that has executed its program.
pub(crate) struct Started {
    pub fact: StartFact,
    pub pidfd: OwnedFd,
}

/// What the loop asks for.
pub(crate) enum Errand {
    Spawn(Box<SpawnOrder>),
    Measure(u64, Box<Measure>),
    /// Whether this program can take over from this one.
    Check(Box<Candidacy>),
}

/// What comes back, in the order asked.
pub(crate) enum Result_ {
    Spawned(u64, Result<Started, StartFailure>),
    Measured(u64, Measured),
    Checked(Result<Candidate, String>),
}

/// What the loop may see of a spawner that does not come back.
#[derive(Default)]
pub(crate) struct Progress {
    /// CLOCK_BOOTTIME in ms at which the present start began; 0: none.
    since_ms: AtomicU64,
    task: AtomicU64,
    report: Report,
}

/// The loop's end of the spawner. Dropping it ends the thread after the errand it is at.
pub(crate) struct Spawner {
    errands: SyncSender<Errand>,
    results: Receiver<Result_>,
    wake: OwnedFd,
    progress: Arc<Progress>,
    waiting: usize,
}

/// Limits on open files that jobs start with, remembered before the keeper raised its own.
#[derive(Clone, Copy)]
pub(crate) struct Nofile {
    pub soft: u64,
    pub hard: u64,
}

impl Spawner {
    /// Starts the thread. The signals of the calling thread must be blocked already.
    pub(crate) fn start(nofile: Nofile, board: Arc<Board>) -> io::Result<Spawner> {
        let (errands, inbox) = sync_channel(2 * QUEUE_MAX);
        let (outbox, results) = sync_channel(2 * QUEUE_MAX);
        let wake = rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
        )?;
        let progress = Arc::new(Progress::default());
        let thread = Thread {
            stack: ChildStack::new()?,
            null: File::options().read(true).open("/dev/null")?.into(),
            wake: wake.try_clone()?,
            progress: Arc::clone(&progress),
            nofile,
            board,
        };
        std::thread::Builder::new()
            .name("spawner".into())
            .stack_size(512 << 10)
            .spawn(move || thread.run(&inbox, &outbox))?;
        Ok(Spawner { errands, results, wake, progress, waiting: 0 })
    }

    /// Readable when results wait.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Errands whose results did not come back yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Hands an errand over; gives it back if the queue is full or the thread is gone.
    pub(crate) fn ask(&mut self, errand: Errand) -> Result<(), Errand> {
        match self.errands.try_send(errand) {
            Ok(()) => {
                self.waiting += 1;
                Ok(())
            }
            Err(TrySendError::Full(errand) | TrySendError::Disconnected(errand)) => Err(errand),
        }
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

    /// The start that has been under way for this long: task, step, ms.
    pub(crate) fn blocked(&self, now_ms: u64, longer_than_ms: u64) -> Option<(u64, Step, u64)> {
        let since = self.progress.since_ms.load(Relaxed);
        let elapsed = now_ms.saturating_sub(since);
        (since != 0 && elapsed > longer_than_ms).then(|| {
            let step = Step::from_raw(self.progress.report.step.load(Relaxed));
            (self.progress.task.load(Relaxed), step, elapsed)
        })
    }
}

struct Thread {
    stack: ChildStack,
    null: OwnedFd,
    wake: OwnedFd,
    progress: Arc<Progress>,
    nofile: Nofile,
    board: Arc<Board>,
}

impl Thread {
    fn run(mut self, inbox: &Receiver<Errand>, outbox: &SyncSender<Result_>) {
        while let Ok(errand) = inbox.recv() {
            let result = match errand {
                Errand::Spawn(order) => {
                    self.begin(order.id);
                    let result = self.spawn(&order);
                    Result_::Spawned(order.id, result)
                }
                Errand::Check(candidacy) => {
                    self.reset_report();
                    self.progress.report.step.store(Step::Check as u32, Relaxed);
                    self.begin(0);
                    Result_::Checked(candidacy.check())
                }
                Errand::Measure(id, measure) => Result_::Measured(id, outputs::measure(&measure)),
            };
            self.progress.since_ms.store(0, Relaxed);
            if outbox.send(result).is_err() {
                return;
            }
            // EAGAIN: the counter is full, so the loop is woken already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    fn begin(&self, task: u64) {
        self.progress.task.store(task, Relaxed);
        self.progress.since_ms.store(identity::boottime_ms(), Relaxed);
    }

    fn spawn(&mut self, order: &SpawnOrder) -> Result<Started, StartFailure> {
        self.reset_report();
        let mut prepared = Prepared::new(order, &self.null, self.nofile, &self.progress.report)?;
        let start_wall_ms = identity::wall_ms();
        let slot = order.slot.as_deref();
        self.progress.report.step.store(Step::Fork as u32, Relaxed);
        prepared.plan.birth = self.board.announce(&order.mark);
        let arg = (&raw const prepared.plan).cast_mut().cast::<c_void>();
        // SAFETY: `child_main` keeps to the rules; the plan and all it points to live until here
        // again, which is after the child has left our memory.
        let birthplace = slot.and_then(Slot::birthplace);
        let child = unsafe { clone::spawn(&mut self.stack, birthplace, child::child_main, arg) }
            .map_err(|e| fault(Step::Fork, &e, b""))?;
        if self.progress.report.errno.load(Relaxed) != 0 {
            // It has ended, or is about to: reaped here, so that the loop never hears of it.
            let _ = sys::wait_for(child.pid);
            return Err(prepared.failure(order, &self.progress.report));
        }
        debug_assert!(child.in_cgroup || slot.is_none() || !prepared.plan.join.is_empty());
        Ok(self.started(order, child, start_wall_ms))
    }

    fn reset_report(&self) {
        let report = &self.progress.report;
        for field in [&report.step, &report.candidate, &report.odd_file] {
            field.store(0, Relaxed);
        }
        report.errno.store(0, Relaxed);
        for field in
            [&report.stdout_dev, &report.stdout_ino, &report.stderr_dev, &report.stderr_ino]
        {
            field.store(0, Relaxed);
        }
    }

    fn started(&self, order: &SpawnOrder, child: clone::Child, start_wall_ms: u64) -> Started {
        let report = &self.progress.report;
        let fact = StartFact {
            attempt: order.run.attempt,
            token: order.run.token,
            pid: child.pid,
            // Not reaped yet (only the loop does that, after this), so it has its entry.
            pid_start_ticks: procfs::stat(child.pid).map_or(0, |stat| stat.start_ticks),
            start_wall_ms,
            stdout_path: order.run.stdout_path.clone(),
            stderr_path: order.run.stderr_path.clone(),
            stdout_dev: report.stdout_dev.load(Relaxed),
            stdout_ino: report.stdout_ino.load(Relaxed),
            stderr_dev: report.stderr_dev.load(Relaxed),
            stderr_ino: report.stderr_ino.load(Relaxed),
        };
        Started { fact, pidfd: child.pidfd }
    }
}
