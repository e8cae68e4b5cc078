//! A command that ran to its end, with all that it printed.

use crate::patience::LATER;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a finished command left.
pub struct Ran {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Signal, if one ended it.
    pub signal: Option<i32>,
    /// Everything on stdout.
    pub stdout: Vec<u8>,
    /// Everything on stderr.
    pub stderr: Vec<u8>,
    /// From start to end.
    pub took: Duration,
    line: String,
}

impl Ran {
    /// Stdout as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Stderr as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The command and its end in words, for messages of failed tests.
    pub fn describe(&self) -> String {
        let cut =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
        format!(
            "`{}` ended with code {:?} signal {:?} after {:?}\nstdout: {}\nstderr: {}",
            self.line,
            self.code,
            self.signal,
            self.took,
            cut(&self.stdout),
            cut(&self.stderr)
        )
    }
}

/// Runs a command to its end within [`LATER`], with these bytes on stdin (none: `/dev/null`).
#[track_caller]
pub fn finish(command: Command, stdin: &[u8]) -> Ran {
    finish_within(command, stdin, LATER)
}

/// The same with another limit; a command that passes it is killed and fails the test.
#[track_caller]
pub fn finish_within(mut command: Command, stdin: &[u8], limit: Duration) -> Ran {
    let line = format!("{command:?}");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if !stdin.is_empty() {
        command.stdin(Stdio::piped());
    }
    let begin = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{line} does not start: {e}"));
    let mut out = child.stdout.take().expect("stdout is piped");
    let mut err = child.stderr.take().expect("stderr is piped");
    let (timed_out, stdout, stderr) = std::thread::scope(|scope| {
        if let Some(mut pipe) = child.stdin.take() {
            // A command that ends early closes the pipe: that is its own affair.
            scope.spawn(move || pipe.write_all(stdin).ok());
        }
        let stdout = scope.spawn(move || drain(&mut out));
        let stderr = scope.spawn(move || drain(&mut err));
        let timed_out = !exits_within(&mut child, limit);
        (timed_out, stdout.join().expect("no panic"), stderr.join().expect("no panic"))
    });
    let status = child.wait().expect("a child can be waited for");
    let ran = Ran {
        code: status.code(),
        signal: status.signal(),
        took: begin.elapsed(),
        stdout,
        stderr,
        line,
    };
    assert!(!timed_out, "did not end within {limit:?}: {}", ran.describe());
    ran
}

/// Waits for the exit; kills the child when the limit has passed, so that its pipes close.
fn exits_within(child: &mut Child, limit: Duration) -> bool {
    let begin = Instant::now();
    let mut pause = Duration::from_micros(200);
    while child.try_wait().expect("a child can be waited for").is_none() {
        if begin.elapsed() > limit {
            child.kill().ok();
            return false;
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    true
}

fn drain(pipe: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).ok();
    bytes
}
