//! Runs a recorded workflow on docket: each task sleeps as long as it ran, divided by a number, and
//! waits for its parents with `after_ok`. It uses nothing but the command line of docket.
//!
//! ```sh
//! docket up --cpus 2 &
//! cargo run --release -p testsuite --example wfformat -- testsuite/data/montage-2mass-015d-310tasks.json
//! ```

#[path = "../common/pipe.rs"]
mod pipe;
mod workflow;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use workflow::Task;

/// Runs a workflow in WfFormat 1.5 on docket.
#[derive(Parser)]
struct Args {
    /// The workflow
    file: PathBuf,
    /// Run times are divided by this
    #[arg(long, default_value_t = 100.0)]
    scale: f64,
    /// Cpus that the nodes have, for the bound that is told
    #[arg(long, default_value_t = 2)]
    cpus: usize,
    /// The docket program [default: the one of your PATH]
    #[arg(long)]
    docket: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let docket = pipe::program(args.docket);
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("{} cannot be read", args.file.display()))?;
    let tasks = workflow::read(&text)?;
    let ids = submit(&docket, &tasks, args.scale)?;
    let jobs = pipe::outcomes(&docket, &ids)?;
    judge(&tasks, &jobs)?;
    let rounds = tasks.len().div_ceil(args.cpus);
    let spawn_s = bare_spawn_s(rounds)?;
    let work_s = tasks.iter().map(|task| task.runtime_s).sum::<f64>() / args.scale;
    let bound_s = work_s / args.cpus as f64 + rounds as f64 * spawn_s;
    let wall_s = wall_ms(&jobs)? as f64 / 1000.0;
    println!("{} tasks, all DONE, each after those that it waits for", tasks.len());
    println!(
        "{wall_s:.3} s from the first start to the last end; {work_s:.3} s of work on {} cpus and {rounds} bare \
         spawns of {:.3} ms each take {bound_s:.3} s: ratio {:.3}",
        args.cpus,
        spawn_s * 1000.0,
        wall_s / bound_s
    );
    Ok(())
}

/// Submits each task as soon as the ids of its parents are known.
fn submit(docket: &Path, tasks: &[Task], scale: f64) -> Result<Vec<u64>> {
    let mut pipe = pipe::Pipe::open(docket)?;
    let mut known: BTreeMap<&str, u64> = BTreeMap::new();
    let mut ids = Vec::with_capacity(tasks.len());
    let mut sent = tasks.iter();
    for task in tasks {
        while task.parents.iter().any(|parent| !known.contains_key(parent.as_str())) {
            let first = sent.next().context("parents come first")?;
            let id = pipe.id()?;
            known.insert(&first.id, id);
            ids.push(id);
        }
        let parents = task.parents.iter().filter_map(|parent| known.get(parent.as_str()));
        let parents: Vec<String> = parents.map(u64::to_string).collect();
        let mut job = json!({
            "name": task.id,
            "command": ["sleep", format!("{:.6}", task.runtime_s / scale)],
        });
        if !parents.is_empty() {
            job["after_ok"] = json!(parents);
        }
        pipe.send(&job)?;
    }
    for _ in sent {
        ids.push(pipe.id()?);
    }
    pipe.close()?;
    Ok(ids)
}

/// Every task is DONE, and began when its parents had ended.
fn judge(tasks: &[Task], jobs: &[Value]) -> Result<()> {
    let mut ends = BTreeMap::new();
    for (task, job) in tasks.iter().zip(jobs) {
        ensure!(job["state"] == "DONE", "{} is {}: {}", task.id, job["state"], job["reason"]);
        let start = time(job, "start_time")?;
        for parent in &task.parents {
            let end = *ends.get(parent.as_str()).context("parents come first")?;
            ensure!(start >= end, "{} began {} ms before {parent} had ended", task.id, end - start);
        }
        ends.insert(task.id.as_str(), time(job, "finish_time")?);
    }
    Ok(())
}

/// A time of a job, in ms.
fn time(job: &Value, field: &str) -> Result<i64> {
    let text = job.get(field).and_then(Value::as_str);
    let text = text.with_context(|| format!("job {} has no {field}", job["id"]))?;
    Ok(text.parse::<jiff::Timestamp>()?.as_millisecond())
}

fn wall_ms(jobs: &[Value]) -> Result<i64> {
    let mut times = Vec::new();
    for job in jobs {
        times.push((time(job, "start_time")?, time(job, "finish_time")?));
    }
    let first = times.iter().map(|(start, _)| start).min().context("no task")?;
    let last = times.iter().map(|(_, end)| end).max().context("no task")?;
    Ok(last - first)
}

/// What it costs to start and reap a process that does nothing, in seconds: the mean of so many.
fn bare_spawn_s(count: usize) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..count {
        ensure!(Command::new("sleep").arg("0").status()?.success(), "sleep 0 failed");
    }
    Ok(begin.elapsed().as_secs_f64() / count.max(1) as f64)
}
