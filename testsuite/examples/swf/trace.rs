//! A trace in the Standard Workload Format: 18 columns, of which four are used here.

use anyhow::{Context, Result, ensure};

/// A job of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub number: u64,
    /// When it was submitted, in seconds from the begin of the trace.
    pub submit_s: u64,
    /// How long it ran, in seconds; 0 where the trace says less, for it never ran.
    pub run_s: u64,
    /// Processors it had, or asked for where it never ran.
    pub cpus: u32,
}

/// Reads a trace; comments and blank lines are passed over.
pub fn read(text: &str) -> Result<Vec<Entry>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with(';'));
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(at, line)| entry(line).with_context(|| format!("line {}", at + 1))).collect()
}

fn entry(line: &str) -> Result<Entry> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    ensure!(columns.len() == 18, "{} columns, 18 are needed", columns.len());
    let whole = |n: usize| columns[n].parse::<f64>().map(|value| value.max(0.0) as u64);
    let cpus = [whole(4)?, whole(7)?].into_iter().find(|cpus| *cpus > 0).unwrap_or(1);
    Ok(Entry {
        number: whole(0)?,
        submit_s: whole(1)?,
        run_s: whole(3)?,
        cpus: u32::try_from(cpus)?,
    })
}
