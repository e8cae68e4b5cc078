//! `rounds -- [kills|cuts] [--seed N] [--rounds N]`: breaks real processes at random, again and again.
//! Linked as `docket` it is the docket program itself, so that both are of one build.

use clap::{Parser, ValueEnum};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use testsuite::itself;
use testsuite::rounds::cuts::{Cuts, Length};
use testsuite::rounds::kills;
use testsuite::world::{Cut, Pace, Turn};

/// Runs rounds of real processes that are killed or cut off, and judges what docket says of the jobs.
#[derive(Parser)]
#[command(name = "rounds")]
struct Options {
    /// What happens in a round
    #[arg(default_value = "kills")]
    what: What,
    /// Seed of all that is random [default: from the clock; it is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Rounds; for cuts, of each length in each direction [default: 200, for cuts 50]
    #[arg(long)]
    rounds: Option<u64>,
    /// Number of the first round
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Rounds at a time [default: 3, for cuts 25]
    #[arg(long)]
    side_by_side: Option<usize>,
    /// Only cuts of this length
    #[arg(long)]
    length: Option<Length>,
    /// Seconds instead of the default time-outs
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Agent, keeper and controller are killed under ten jobs
    Kills,
    /// The line between controller and agent is cut
    Cuts,
}

fn main() -> ExitCode {
    if itself::is_docket() {
        return cli::main();
    }
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(from_the_clock);
    println!("seed {seed}");
    let rooms = tempfile::Builder::new().prefix("docket-rounds-").tempdir();
    let rooms = rooms.expect("the temporary directory is writable");
    let exe = itself::link_into(rooms.path());
    let turn = Turn::alone();
    let good = match options.what {
        What::Kills => kill(&options, seed, &exe, &turn),
        What::Cuts => cut(&options, seed, &exe, &turn),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn from_the_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |span| span.as_secs())
}

fn kill(options: &Options, seed: u64, exe: &Path, turn: &Arc<Turn>) -> bool {
    let (count, at_a_time) = (options.rounds.unwrap_or(200), options.side_by_side.unwrap_or(3));
    let bar = sim::bar(count, "rounds");
    let tally = kills::run(exe, turn, seed, options.first, count, at_a_time, &|| bar.inc(1));
    bar.finish_and_clear();
    println!("{} rounds passed, {} failed: {:?}", tally.passed, tally.failed.len(), tally.failed);
    for (kind, jobs) in &tally.ends {
        println!("{jobs:>6} {kind}");
    }
    tally.failed.is_empty()
}

fn cut(options: &Options, seed: u64, exe: &Path, turn: &Arc<Turn>) -> bool {
    let (times, at_a_time) = (options.rounds.unwrap_or(50), options.side_by_side.unwrap_or(25));
    let pace = if options.quick { Pace::FORGETFUL } else { Pace::REAL };
    let mut good = true;
    for length in Length::ALL.into_iter().filter(|l| options.length.is_none_or(|one| one == *l)) {
        for way in Cut::ALL {
            let cuts = Cuts { pace, length, way, seed, strict: !options.quick };
            let bar = sim::bar(times, "cuts");
            let (cut, failed) = cuts.run("rounds", exe, turn, times, at_a_time, &|| bar.inc(1));
            bar.finish_and_clear();
            println!(
                "{length:?} {way:?}: {cut} of {times} were cut, {} failed: {failed:?}",
                failed.len()
            );
            good &= failed.is_empty();
        }
    }
    good
}
