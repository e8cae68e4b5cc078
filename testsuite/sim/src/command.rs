//! The command line: many seeds, or one of them told line by line.

use crate::invariants::TABLE;
use crate::shrink::shrink;
use crate::trace::Tracing;
use crate::trim::{Case, Trim};
use crate::world::{Report, Violation, run_case};
use clap::Parser;
use std::collections::BTreeMap;
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
    #[command(flatten)]
    trim: Trim,
    /// Prints every step of it.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Goes on after a failed seed.
    #[arg(long)]
    keep_going: bool,
    /// Leaves a failed run as large as it is.
    #[arg(long)]
    no_shrink: bool,
    /// Prints how often each kind of end and each cause came up.
    #[arg(long)]
    coverage: bool,
    /// Lists the properties that are checked.
    #[arg(long)]
    properties: bool,
    /// Switches a bug on, by its number.
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "N")]
    mutant: Option<u16>,
    /// Runs every bug until it is caught.
    #[cfg(feature = "mutants")]
    #[arg(long)]
    mutants: bool,
}

/// Enters the program; the exit code is 1 if a property was broken, or if a bug survived.
pub fn main() -> ExitCode {
    let args = Args::parse();
    if args.properties {
        for row in TABLE {
            println!("{:<12} {}\n{:<12}   in {}", row.name, row.reason, "", row.file);
        }
        return ExitCode::SUCCESS;
    }
    #[cfg(feature = "mutants")]
    if args.mutants {
        return all_mutants();
    }
    match args.seed {
        Some(seed) => one(&args, &args.case(seed)),
        None => many(&args),
    }
}

impl Args {
    fn case(&self, seed: u64) -> Case {
        #[cfg(feature = "mutants")]
        let mutant = self.mutant;
        #[cfg(not(feature = "mutants"))]
        let mutant = None;
        Case { seed, trim: self.trim.clone(), mutant }
    }
}

fn one(args: &Args, case: &Case) -> ExitCode {
    let report = if args.trace { run_case(case, Tracing::Print) } else { case.run() };
    if tell(case, &report) {
        return ExitCode::SUCCESS;
    }
    if !args.trace && !args.no_shrink {
        make_smaller(case);
    }
    ExitCode::FAILURE
}

fn many(args: &Args) -> ExitCode {
    // One line each: the seed repeats it with all that a debugger wants.
    std::panic::set_hook(Box::new(|panic| println!("{panic}")));
    let begun = Instant::now();
    let (mut failed, mut jobs, mut virtual_ms, mut ran) = (0_u64, 0, 0, 0_u64);
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let bar = crate::bar(args.seeds, "seeds");
    for seed in args.from..args.from.saturating_add(args.seeds) {
        ran += 1;
        bar.inc(1);
        let case = args.case(seed);
        let report = case.run();
        jobs += report.jobs;
        virtual_ms += report.virtual_ms;
        report.seen.iter().for_each(|(what, n)| *seen.entry(what.clone()).or_default() += n);
        if report.violation.is_none() {
            continue;
        }
        bar.suspend(|| tell(&case, &report));
        failed += 1;
        if !args.keep_going {
            bar.finish_and_clear();
            if !args.no_shrink {
                make_smaller(&case);
            }
            break;
        }
    }
    bar.finish_and_clear();
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

fn tell(case: &Case, report: &Report) -> bool {
    let seed = case.seed;
    let Some(Violation { property, what, at_ms }) = &report.violation else {
        println!(
            "seed {seed}: {} events, {} virtual ms, no violation",
            report.events, report.virtual_ms
        );
        return true;
    };
    println!("seed {seed} broke {property} at {at_ms} ms: {what}\n  again: {}", case.command());
    false
}

fn make_smaller(case: &Case) {
    std::panic::set_hook(Box::new(|_| {}));
    let Some(smaller) = shrink(case) else { return };
    let what = smaller.report.violation.map(|violation| violation.what).unwrap_or_default();
    let (jobs, faults) = smaller.left;
    println!(
        "smaller after {} runs, with {jobs} jobs and {faults} faults: {what}\n  again: {}",
        smaller.runs,
        smaller.case.command()
    );
}

#[cfg(feature = "mutants")]
fn all_mutants() -> ExitCode {
    use crate::mutants::{ROWS, hunt};
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    println!("{:>3} {:<22} {:>6} {:>6} {:<24} breaks", "no", "name", "bound", "seed", "caught by");
    let mut holes = 0;
    for row in ROWS {
        let (number, name) = (row.mutant.number(), format!("{:?}", row.mutant));
        let (mut seed, mut by) = ("-".to_owned(), "SURVIVES".to_owned());
        let caught = hunt(row);
        if let Some(caught) = &caught {
            seed = caught.seed.to_string();
            let property = caught.violation.property;
            by = if row.expects(caught) {
                property.to_owned()
            } else {
                format!("NOT BY {property}")
            };
        }
        holes += u32::from(caught.as_ref().is_none_or(|caught| !row.expects(caught)));
        let (bound, breaks) = (row.bound, row.mutant.breaks());
        println!("{number:>3} {name:<22} {bound:>6} {seed:>6} {by:<24} {breaks}");
        if let Some(caught) = caught.filter(|caught| !row.expects(caught)) {
            println!("{:>40} {}", "", caught.violation.what);
        }
    }
    println!("{} mutants, {holes} holes, {:.1} s", ROWS.len(), begun.elapsed().as_secs_f64());
    if holes == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
