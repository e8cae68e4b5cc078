//! One `docket submit --from -` that is fed line by line: each line is a job, each answer its id, in the
//! order of the lines. So a job can name the ids of those before it.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Ids that one command line names at most.
const IDS_AT_ONCE: usize = 1_000;

/// A stream of submits.
pub struct Pipe {
    child: Child,
    jobs: Option<ChildStdin>,
    ids: Lines<BufReader<ChildStdout>>,
}

impl Pipe {
    /// Opens the stream.
    pub fn open(docket: &Path) -> Result<Pipe> {
        let mut child = Command::new(docket)
            .args(["submit", "--from", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} does not start", docket.display()))?;
        let jobs = child.stdin.take();
        let ids = child.stdout.take().context("no stdout")?;
        Ok(Pipe { child, jobs, ids: BufReader::new(ids).lines() })
    }

    /// Sends a job; its id comes later.
    pub fn send(&mut self, job: &Value) -> Result<()> {
        let jobs = self.jobs.as_mut().context("the stream is closed")?;
        writeln!(jobs, "{job}").context("docket submit takes no more jobs")
    }

    /// The id of the next job that was sent and not answered.
    pub fn id(&mut self) -> Result<u64> {
        let line = self.ids.next().context("docket submit ended early")??;
        line.trim().parse().with_context(|| format!("`{line}` is no job id"))
    }

    /// Says that no more come.
    pub fn close(mut self) -> Result<()> {
        drop(self.jobs.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "docket submit: {status}");
        Ok(())
    }
}

/// Runs docket; the exit code may be any of `codes`.
pub fn docket(program: &Path, words: &[String], codes: &[i32]) -> Result<String> {
    let output = Command::new(program).args(words).stderr(Stdio::inherit()).output()?;
    match output.status.code() {
        Some(code) if codes.contains(&code) => Ok(String::from_utf8(output.stdout)?),
        _ => bail!("docket {}: {}", words.first().map_or("", String::as_str), output.status),
    }
}

/// Waits for the jobs and gives what became of each, in their order.
pub fn outcomes(program: &Path, ids: &[u64]) -> Result<Vec<Value>> {
    let mut all = Vec::with_capacity(ids.len());
    for part in ids.chunks(IDS_AT_ONCE) {
        let words = |verb: &[&str]| {
            let verb = verb.iter().map(|word| (*word).to_owned());
            verb.chain(part.iter().map(u64::to_string)).collect::<Vec<String>>()
        };
        // 1: not all of them DONE; which ones are not is judged by what show says.
        docket(program, &words(&["wait"]), &[0, 1])?;
        for line in docket(program, &words(&["show", "-o", "jsonl"]), &[0])?.lines() {
            all.push(serde_json::from_str(line)?);
        }
    }
    ensure!(all.len() == ids.len(), "{} jobs, {} answers", ids.len(), all.len());
    Ok(all)
}

/// The program that is driven: as given, else `docket` of the path.
pub fn program(given: Option<PathBuf>) -> PathBuf {
    given.unwrap_or_else(|| PathBuf::from("docket"))
}
