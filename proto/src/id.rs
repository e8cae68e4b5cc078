//! Id newtypes: two integers of one signature are a bug waiting.

use crate::v1;
use std::fmt;
use std::str::FromStr;

/// A job: counted from 1 in apply, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct JobId(pub u64);

/// A task: a plain job, or one member of an array job. Written `123` or `123_7`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId {
    /// The job it belongs to.
    pub job: JobId,
    /// Its index in the array; `None` for a job that is none.
    pub index: Option<u32>,
}

/// One try at running a task; attempts count from 1. Written `123/1` or `123_7/1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AttemptId {
    /// What is tried.
    pub task: TaskId,
    /// Which try, from 1.
    pub attempt: u32,
}

/// Log position of the entry that caused an order: it grows across sessions and leaders (design 3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OrderId(pub u64);

/// Position in a keeper's journal, from 1 (design 3, "Facts are idempotent by meaning").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

/// A wire attempt reference that names nothing: absent, or job or attempt 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAttemptRef;

impl TaskId {
    /// The only task of a job that is not an array.
    pub fn plain(job: JobId) -> Self {
        TaskId { job, index: None }
    }
}

impl From<JobId> for TaskId {
    fn from(job: JobId) -> Self {
        TaskId::plain(job)
    }
}

impl AttemptId {
    /// Reads a wire reference; job and attempt must not be 0.
    pub fn from_wire(wire: Option<&v1::AttemptRef>) -> Result<Self, BadAttemptRef> {
        match wire {
            Some(r) if r.job != 0 && r.attempt != 0 => Ok(AttemptId {
                task: TaskId { job: JobId(r.job), index: r.task },
                attempt: r.attempt,
            }),
            _ => Err(BadAttemptRef),
        }
    }

    /// The wire form.
    pub fn to_wire(self) -> v1::AttemptRef {
        v1::AttemptRef { job: self.task.job.0, task: self.task.index, attempt: self.attempt }
    }
}

impl fmt::Display for BadAttemptRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an attempt reference without job or attempt number")
    }
}

impl std::error::Error for BadAttemptRef {}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}_{index}", self.job),
            None => self.job.fmt(f),
        }
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.task, self.attempt)
    }
}

impl FromStr for TaskId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no job id: give a number such as 123, or 123_7");
        let (job, index) = match text.split_once('_') {
            Some((job, index)) => (job, Some(index.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        match job.parse() {
            Ok(n) if n > 0 && job.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(TaskId { job: JobId(n), index })
            }
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_ids_read_back_as_written() {
        for text in ["1", "123_7", "18446744073709551615"] {
            assert_eq!(text.parse::<TaskId>().map(|t| t.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "0", "-1", "+1", "1_", "_1", "1_x", "a"] {
            assert!(text.parse::<TaskId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_reference_without_job_or_attempt_is_refused() {
        assert_eq!(AttemptId::from_wire(None), Err(BadAttemptRef));
        let zero = v1::AttemptRef { job: 1, task: None, attempt: 0 };
        assert_eq!(AttemptId::from_wire(Some(&zero)), Err(BadAttemptRef));
        let one = v1::AttemptRef { job: 1, task: Some(4), attempt: 2 };
        assert_eq!(AttemptId::from_wire(Some(&one)).map(AttemptId::to_wire), Ok(one));
    }
}
