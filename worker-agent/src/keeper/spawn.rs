//! One start, as a thread of the spawner makes it: prepared, cloned, and what is known of it then. The
//! same threads measure and cut outputs, for that may take its time as well.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use proto::v1::{JobSpec, KeeperRun, StartFact, StartFailure};

use super::board::Board;
use super::cgroup::Slot;
use super::child::{self, Report, Step};
use super::clone::{self, ChildStack};
use super::growth::{Held, Hold};
use super::identity;
use super::outputs::{self, Measure, Measured};
use super::plan::{self, Prepared, fault};
use super::procfs;
use super::spawner::Desk;
use super::sys::{self, Waited};
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
    Hold(u64, Box<Hold>),
    /// Whether this program can take over from this one.
    Check(Box<Candidacy>),
}

/// What comes back: in the order asked, but for what took long.
pub(crate) enum Result_ {
    Spawned(u64, Result<Started, StartFailure>),
    Measured(u64, Measured),
    Held(u64, Held),
    Checked(Result<Candidate, String>),
}

/// What the loop may see of a thread that does not come back.
#[derive(Default)]
pub(crate) struct Progress {
    /// CLOCK_BOOTTIME in ms at which the present errand began; 0: none.
    pub since_ms: AtomicU64,
    pub task: AtomicU64,
    pub report: Report,
}

/// Limits on open files that jobs start with, remembered before the keeper raised its own.
#[derive(Clone, Copy)]
pub(crate) struct Nofile {
    pub soft: u64,
    pub hard: u64,
}

/// Keeps a child from being cloned while another thread holds a script open for writing: the child
/// would hold it too until its exec, and where that hangs nobody could execute the script (ETXTBSY).
/// Held for microseconds, by a thread's number and one; a child lets go of it as its first act, for
/// its thread sleeps until the exec.
#[derive(Default)]
pub(crate) struct Gate(pub AtomicU32);

/// Between looks at a gate that is held.
const GATE_PAUSE: Duration = Duration::from_micros(100);

impl Gate {
    fn enter(&self, hand: usize) {
        let own = Gate::name(hand);
        while self.0.compare_exchange(0, own, Ordering::Acquire, Relaxed).is_err() {
            std::thread::sleep(GATE_PAUSE);
        }
    }

    /// Where the child has done so already, another may be in by now.
    fn leave(&self, hand: usize) {
        let _ = self.0.compare_exchange(Gate::name(hand), 0, Ordering::Release, Relaxed);
    }

    fn name(hand: usize) -> u32 {
        hand as u32 + 1
    }
}

/// A thread of the spawner.
pub(super) struct Hand {
    pub number: usize,
    pub stack: ChildStack,
    pub null: OwnedFd,
    pub wake: OwnedFd,
    pub progress: Arc<Progress>,
    pub nofile: Nofile,
    pub board: Arc<Board>,
    pub gate: Arc<Gate>,
}

impl Hand {
    pub(super) fn run(mut self, desk: &Desk, outbox: &SyncSender<Result_>) {
        while let Some(errand) = desk.next(self.number) {
            self.reset_report();
            let result = match errand {
                Errand::Spawn(order) => {
                    self.begin(order.id, Step::None);
                    let result = self.spawn(&order);
                    Result_::Spawned(order.id, result)
                }
                Errand::Check(candidacy) => {
                    self.begin(0, Step::Check);
                    Result_::Checked(candidacy.check())
                }
                Errand::Measure(id, measure) => {
                    self.begin(id, Step::Measure);
                    Result_::Measured(id, outputs::hold_and_measure(&measure))
                }
                Errand::Hold(id, hold) => {
                    self.begin(id, Step::Hold);
                    Result_::Held(id, hold.run())
                }
            };
            self.progress.since_ms.store(0, Relaxed);
            if outbox.send(result).is_err() {
                return;
            }
            // EAGAIN: the counter is full, so the loop is woken already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    fn begin(&self, task: u64, step: Step) {
        self.progress.report.step.store(step as u32, Relaxed);
        self.progress.task.store(task, Relaxed);
        self.progress.since_ms.store(identity::boottime_ms(), Relaxed);
    }

    fn spawn(&mut self, order: &SpawnOrder) -> Result<Started, StartFailure> {
        self.gate.enter(self.number);
        let prepared = Prepared::new(order, &self.null, self.nofile, &self.progress.report);
        self.gate.leave(self.number);
        let mut prepared = prepared?;
        let start_wall_ms = identity::wall_ms();
        let slot = order.slot.as_deref();
        self.progress.report.step.store(Step::Fork as u32, Relaxed);
        let board = Arc::clone(&self.board);
        let announced = board.announce(&order.mark);
        prepared.plan.birth = announced.birth();
        prepared.plan.gate = &self.gate.0;
        let arg = (&raw const prepared.plan).cast_mut().cast::<c_void>();
        let birthplace = slot.and_then(Slot::birthplace);
        self.gate.enter(self.number);
        // SAFETY: `child_main` keeps to the rules; the plan and all it points to live until here
        // again, which is after the child has left our memory.
        let child = unsafe { clone::spawn(&mut self.stack, birthplace, child::child_main, arg) };
        // There is no child, or it was killed before it could do anything.
        self.gate.leave(self.number);
        drop(announced);
        let child = child.map_err(|e| fault(Step::Fork, &e, b""))?;
        if self.progress.report.errno.load(Relaxed) != 0 {
            // It has ended, or is about to: reaped here, so that the loop never hears of it.
            let _ = sys::wait_for(child.pid);
            return Err(prepared.failure(order, &self.progress.report));
        }
        if procfs::stat(child.pid).is_some_and(|stat| stat.ended_before_exec()) {
            // Killed on its way by somebody else: nothing of the job ran.
            let signal = match sys::wait_for(child.pid) {
                Ok(Waited::Ended(reaped)) => reaped.status & 0x7f,
                Ok(Waited::Running | Waited::NoChild) | Err(_) => 0,
            };
            return Err(plan::killed(&self.progress.report, signal));
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
