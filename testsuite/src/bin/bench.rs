//! `bench -- submit|noop|latency|restart|history [--quick]`: docket's speed beside its references.
//! Linked as `docket` it is the docket program itself, so that both are of one build.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use testsuite::{bench, itself};

/// Measures docket and, in the same run, the least that it would have to do.
#[derive(Parser)]
#[command(name = "bench")]
struct Options {
    /// What to measure [default: everything]
    bench: Vec<bench::Bench>,
    /// Fewer rounds: seconds instead of minutes
    #[arg(long)]
    quick: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Directory whose disk is measured [default: that of this program]
    #[arg(long, value_name = "DIR")]
    place: Option<PathBuf>,
}

fn main() -> ExitCode {
    if itself::is_docket() {
        return cli::main();
    }
    let exe = std::env::current_exe().unwrap_or_default();
    let options = Options::parse();
    let beside = exe.parent().map(PathBuf::from).unwrap_or_else(std::env::temp_dir);
    let place = options.place.unwrap_or(beside);
    let all = <bench::Bench as clap::ValueEnum>::value_variants().to_vec();
    let wanted = if options.bench.is_empty() { all } else { options.bench };
    for bench in wanted {
        let report = bench::run(bench, &place, options.quick);
        if options.json {
            println!("{}", report.json());
        } else {
            println!("{report}");
        }
    }
    ExitCode::SUCCESS
}
