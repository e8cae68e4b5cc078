//! Replays a trace in the Standard Workload Format on docket, faster: each job is submitted at its time
//! divided by a number, asks for its processors, and sleeps as long as it ran, divided by that number.
//!
//! ```sh
//! docket up --cpus 240 &
//! cargo run --release -p testsuite --example swf -- testsuite/data/hpc2n-seth-2002-3170jobs.swf
//! ```

#[path = "../common/pipe.rs"]
mod pipe;
mod trace;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trace::Entry;

/// Replays a trace in the Standard Workload Format on docket.
#[derive(Parser)]
struct Args {
    /// The trace
    file: PathBuf,
    /// Times are divided by this
    #[arg(long, default_value_t = 100_000.0)]
    scale: f64,
    /// The docket program [default: the one of your PATH]
    #[arg(long)]
    docket: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let docket = pipe::program(args.docket);
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("{} cannot be read", args.file.display()))?;
    let trace = trace::read(&text)?;
    let begin = Instant::now();
    let ids = replay(&docket, &trace, args.scale)?;
    let sent_s = begin.elapsed().as_secs_f64();
    let jobs = pipe::outcomes(&docket, &ids)?;
    for (entry, job) in trace.iter().zip(&jobs) {
        ensure!(
            job["state"] == "DONE",
            "job {} is {}: {}",
            entry.number,
            job["state"],
            job["reason"]
        );
    }
    let mut seconds: BTreeMap<u64, usize> = BTreeMap::new();
    for entry in &trace {
        *seconds.entry((entry.submit_s as f64 / args.scale) as u64).or_default() += 1;
    }
    let burst = seconds.values().max().copied().unwrap_or(0);
    let at_once = trace.iter().filter(|entry| entry.run_s == 0).count();
    println!("{} jobs, all DONE, {at_once} of them that had never run", trace.len());
    println!(
        "submitted in {sent_s:.1} s, up to {burst} in a second; ended after {:.1} s",
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Submits each job at its time.
fn replay(docket: &Path, trace: &[Entry], scale: f64) -> Result<Vec<u64>> {
    let mut pipe = pipe::Pipe::open(docket)?;
    let begin = Instant::now();
    for entry in trace {
        let at = Duration::from_secs_f64(entry.submit_s as f64 / scale);
        std::thread::sleep(at.saturating_sub(begin.elapsed()));
        pipe.send(&json!({
            "name": format!("seth-{}", entry.number),
            "cpus": entry.cpus,
            "command": ["sleep", format!("{:.6}", entry.run_s as f64 / scale)],
        }))?;
    }
    let ids = (0..trace.len()).map(|_| pipe.id()).collect::<Result<Vec<u64>>>()?;
    pipe.close()?;
    Ok(ids)
}
