//! What a test wants to know of a job when all is over: state, reason, code, times, the lines of its
//! time line, and what still lives of it.

use super::World;
use crate::patience::{SOON, wait_until};
use jiff::Timestamp;
use serde_json::Value;

/// How a job must have ended.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// `DONE` or `EXIT`.
    pub state: &'a str,
    /// The reason's kind.
    pub reason: &'a str,
    /// Its exit code; `None`: null.
    pub code: Option<i64>,
    /// The move that its time line must tell, e.g. `RUN -> EXIT agent-died`.
    pub line: &'a str,
}

impl<'a> End<'a> {
    /// Ended by itself with a code that is no success.
    pub const fn code(code: i64, line: &'a str) -> End<'a> {
        End { state: "EXIT", reason: "exit-code", code: Some(code), line }
    }

    /// Settled or ended without a code.
    pub const fn without_code(reason: &'a str, line: &'a str) -> End<'a> {
        End { state: "EXIT", reason, code: None, line }
    }
}

/// The time line of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tale {
    /// When and what, oldest first.
    pub lines: Vec<(Timestamp, String)>,
}

impl Tale {
    /// Does a line hold this text?
    pub fn tells(&self, text: &str) -> bool {
        self.lines.iter().any(|(_, what)| what.contains(text))
    }

    /// When the first line that holds this text was written.
    #[track_caller]
    pub fn when(&self, text: &str) -> Timestamp {
        let line = self.lines.iter().find(|(_, what)| what.contains(text));
        line.unwrap_or_else(|| panic!("no {text:?} in {self:#?}")).0
    }

    /// How many lines hold this text.
    pub fn count(&self, text: &str) -> usize {
        self.lines.iter().filter(|(_, what)| what.contains(text)).count()
    }
}

/// A time field of a job.
#[track_caller]
pub fn time_of(task: &Value, field: &str) -> Timestamp {
    let text = task[field].as_str().unwrap_or_else(|| panic!("no {field} in {task:#}"));
    text.parse().unwrap_or_else(|e| panic!("{field} {text}: {e}"))
}

impl World {
    /// The time line as `docket events` tells it.
    #[track_caller]
    pub fn tale(&self, job: u64) -> Tale {
        let out = self.ok(&["events", &job.to_string(), "-o", "json"]);
        let all: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e} in {out:?}"));
        let lines = all.as_array().unwrap_or_else(|| panic!("events printed {out}"));
        let line = |event: &Value| {
            (time_of(event, "time"), event["what"].as_str().expect("a text").to_owned())
        };
        Tale { lines: lines.iter().map(line).collect() }
    }

    /// Processes of a job, by the number in their environment.
    pub fn processes_of(&self, job: u64) -> Vec<super::Proc> {
        let mark = format!("DOCKET_JOB_ID={job}");
        let mut all = self.processes();
        all.retain(|p| {
            let environ = std::fs::read(format!("/proc/{}/environ", p.pid)).unwrap_or_default();
            environ.split(|&byte| byte == 0).any(|var| var == mark.as_bytes())
        });
        all
    }

    /// Waits for the job's end and checks everything that can be said about it: state, reason, code,
    /// attempt, order of its times, one end and no more in its time line, no process left.
    #[track_caller]
    pub fn must_end(&self, job: u64, end: End<'_>) -> Value {
        let task = self.wait_end(job);
        let tale = self.tale(job);
        let told = format!("{task:#}\n{tale:#?}");
        assert_eq!(task["state"], end.state, "{told}");
        assert_eq!(task["reason"]["kind"].as_str().unwrap_or("exit-code"), end.reason, "{told}");
        assert_eq!(task["exit_code"].as_i64(), end.code, "{told}");
        assert_eq!(task["attempt"], 1, "{told}");
        assert_eq!(task["transient"], false, "{told}");
        assert!(task["transient_since"].is_null(), "{told}");
        assert!(tale.tells(end.line), "no line with {:?}: {told}", end.line);
        let ends = tale.count("-> EXIT") + tale.count("-> DONE");
        assert_eq!(ends, 1, "one end: {told}");
        let (submit, finish) = (time_of(&task, "submit_time"), time_of(&task, "finish_time"));
        let start = task["start_time"].as_str().map(|_| time_of(&task, "start_time"));
        assert!(submit <= start.unwrap_or(submit), "{told}");
        assert!(start.unwrap_or(submit) <= finish && finish <= Timestamp::now(), "{told}");
        task
    }

    /// Waits until nothing of the job lives.
    #[track_caller]
    pub fn must_be_gone(&self, job: u64) {
        wait_until(&format!("nothing of job {job} lives"), SOON, || {
            self.processes_of(job).is_empty()
        });
    }
}
