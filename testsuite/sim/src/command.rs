//! The command line: many seeds, or one of them told line by line.

use crate::invariants::TABLE;
use crate::trace::Tracing;
use crate::world::{Report, Violation, run};
use clap::Parser;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// Runs docket's cores in a simulated cluster.
#[derive(Parser)]
#[command(name = "sim")]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0, value_name = "S")]
    from: u64,
    /// Runs this one only.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Prints every step of it.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Goes on after a failed seed.
    #[arg(long)]
    keep_going: bool,
    /// Prints how often each kind of end and each cause came up.
    #[arg(long)]
    coverage: bool,
    /// Lists the properties that are checked.
    #[arg(long)]
    properties: bool,
}

/// Enters the program; the exit code is 1 if a property was broken.
pub fn main() -> ExitCode {
    let args = Args::parse();
    if args.properties {
        for row in TABLE {
            println!("{:<12} {}\n{:<12}   in {}", row.name, row.reason, "", row.file);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(seed) = args.seed {
        let tracing = if args.trace { Tracing::Print } else { Tracing::Off };
        let report = run(seed, tracing);
        return if tell(seed, &report) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    many(&args)
}

fn many(args: &Args) -> ExitCode {
    // One line each: the seed repeats it with all that a debugger wants.
    std::panic::set_hook(Box::new(|panic| println!("{panic}")));
    let begun = Instant::now();
    let (mut failed, mut jobs, mut virtual_ms, mut ran) = (0_u64, 0, 0, 0_u64);
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in args.from..args.from.saturating_add(args.seeds) {
        ran += 1;
        let Ok(report) = catch_unwind(AssertUnwindSafe(|| run(seed, Tracing::Off))) else {
            println!("seed {seed} panicked, as told above\n  again: {}", again(seed));
            failed += 1;
            if args.keep_going {
                continue;
            }
            break;
        };
        jobs += report.jobs;
        virtual_ms += report.virtual_ms;
        report.seen.iter().for_each(|(what, n)| *seen.entry(what.clone()).or_default() += n);
        if report.violation.is_some() {
            tell(seed, &report);
            failed += 1;
            if !args.keep_going {
                break;
            }
        }
    }
    if args.coverage {
        seen.iter().for_each(|(what, n)| println!("{n:>9} {what}"));
    }
    let (seconds, hours) = (begun.elapsed().as_secs_f64(), virtual_ms / 3_600_000);
    let rate = ran as f64 * 60.0 / seconds;
    println!(
        "{ran} seeds, {failed} failed, {jobs} jobs, {hours} virtual hours in {seconds:.1} s \
         ({rate:.0} seeds a minute)"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(seed: u64, report: &Report) -> bool {
    let Some(Violation { property, what, at_ms }) = &report.violation else {
        println!(
            "seed {seed}: {} events, {} virtual ms, no violation",
            report.events, report.virtual_ms
        );
        return true;
    };
    println!("seed {seed} broke {property} at {at_ms} ms: {what}\n  again: {}", again(seed));
    false
}

fn again(seed: u64) -> String {
    format!("cargo run --release -p sim -- --seed {seed} --trace")
}
