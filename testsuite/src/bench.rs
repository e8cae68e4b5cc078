//! Benchmarks of the whole program, each beside a reference measured in the same run on the same
//! disk and cores, so that a ratio means the same on a slow machine and on a fast one.
//! Begin reading with [`run`].

mod history;
mod latency;
mod noop;
mod reference;
mod report;
mod restart;
mod spawn;
mod submit;

use crate::itself;
use crate::world::{Daemon, Turn, World};
use std::path::{Path, PathBuf};

pub use report::{Report, Row, Samples};

/// Which benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Bench {
    /// Acknowledged submits, against a loop of fdatasync.
    Submit,
    /// Jobs that do nothing from submit to end, against posix_spawn and wait.
    Noop,
    /// One `docket run`, against the least that any such program must do.
    Latency,
    /// A restart with a full queue.
    Restart,
    /// A restart behind ever more ended jobs, and the size of its files.
    History,
}

/// Runs one benchmark in a fresh world on the disk under `place`; `quick` takes seconds.
pub fn run(bench: Bench, place: &Path, quick: bool) -> Report {
    let ground = Ground::new(place);
    match bench {
        Bench::Submit => submit::run(&ground, quick),
        Bench::Noop => noop::run(&ground, quick),
        Bench::Latency => latency::run(&ground, quick),
        Bench::Restart => restart::run(&ground, quick),
        Bench::History => history::run(&ground, quick),
    }
}

/// A world on a real disk, with the benchmark program itself linked as `docket`: so the two can
/// never be of different builds.
struct Ground {
    world: World,
    _rooms: tempfile::TempDir,
}

impl Ground {
    fn new(place: &Path) -> Ground {
        let rooms = tempfile::Builder::new().prefix("docket-bench-").tempdir_in(place);
        let rooms = rooms.expect("the place for the benchmark is writable");
        let exe = itself::link_into(rooms.path());
        Ground { world: World::below(rooms.path(), exe, Turn::alone()), _rooms: rooms }
    }

    /// Starts the node; gives it and the address of its gRPC server.
    fn up(&self, cpus: u32) -> (Daemon, String) {
        let address = World::free_address();
        (self.world.up_with(cpus, &["--listen", &address]), address)
    }

    /// A file on the same disk as the node's log.
    fn file(&self, name: &str) -> PathBuf {
        self.world.file(name)
    }

    /// Takes the only cpu, so that whatever is submitted now stays in the queue.
    fn block(&self) {
        let job = self.world.submit_sh(&[], "while :; do sleep 1; done");
        self.world.wait_state(job, "RUN");
    }
}
