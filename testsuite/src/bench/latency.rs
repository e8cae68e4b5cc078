//! One `docket run -- true` on a warm node: what a person waits for.

use super::Ground;
use super::reference::SyncLoop;
use super::report::{Report, Row, Samples};
use super::spawn;

pub(super) fn run(ground: &Ground, quick: bool) -> Report {
    let count = if quick { 30 } else { 300 };
    let (_node, _address) = ground.up(4);
    let docket = |args: &[&str]| {
        let ran = ground.world.docket(args);
        assert_eq!(ran.code, Some(0), "{}", ran.describe());
        ran.took
    };
    docket(&["run", "--", "true"]);
    let mut log = SyncLoop::new(&ground.file("sync"), 2 * count);
    let (mut least, mut whole) = (Samples::empty(), Samples::empty());
    // In turn, so that whatever disturbs the machine disturbs both.
    for _ in 0..count {
        let begin = std::time::Instant::now();
        docket(&["--version"]);
        spawn::spawn_and_wait();
        log.write();
        log.write();
        least.add(begin.elapsed());
        whole.add(docket(&["run", "--", "true"]));
    }
    let row = |what: &str, share: f64| Row {
        what: what.to_owned(),
        docket: whole.micros(share) / 1000.0,
        reference: Some(least.micros(share) / 1000.0),
        unit: "ms",
    };
    Report {
        name: "latency",
        reference: "start of the binary, posix_spawn and waitpid, two fdatasync",
        rows: vec![row("docket run -- true, p50", 0.5), row("docket run -- true, p90", 0.9)],
    }
}
