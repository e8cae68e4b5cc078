//! Runs tests by name as the standard harness does: filters, `--list`, `--exact`, one line each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A named test.
pub type Test = (&'static str, fn());

/// Worlds at a time: each is mostly waiting.
const THREADS: usize = 4;

/// Runs what the command line asks for.
pub fn run(tests: &[Test]) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let exact = args.iter().any(|a| a == "--exact");
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| {
        filters.is_empty()
            || filters.iter().any(|f| if exact { name == *f } else { name.contains(f.as_str()) })
    };
    let chosen: Vec<Test> = tests.iter().copied().filter(|(name, _)| wanted(name)).collect();
    if args.iter().any(|a| a == "--list") {
        // There are none that are ignored.
        if !args.iter().any(|a| a == "--ignored") {
            chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        }
        return ExitCode::SUCCESS;
    }
    println!("running {} tests", chosen.len());
    let failed = run_all(&chosen);
    println!("\ntest result: {} passed; {} failed", chosen.len() - failed.len(), failed.len());
    failed.iter().for_each(|name| println!("    {name}"));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_all(tests: &[Test]) -> Vec<&'static str> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((name, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    let good = catch_unwind(AssertUnwindSafe(test)).is_ok();
                    let verdict = if good { "ok" } else { "FAILED" };
                    println!("test {name} ... {verdict} ({:.1} s)", began.elapsed().as_secs_f32());
                    if !good {
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}
