//! A long-running docket process that a test started; it ends with its value.

use crate::patience::{SOON, wait_until};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A daemon and the log file that holds its stdout and stderr.
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    pub(super) fn start(command: &mut Command, log: PathBuf) -> Daemon {
        let file = File::create(&log).expect("the world's logs are writable");
        let twin = file.try_clone().expect("a descriptor can be duplicated");
        let child = command.stdout(file).stderr(twin).spawn();
        let child = child.unwrap_or_else(|e| panic!("{command:?} does not start: {e}"));
        Daemon { child, log }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid fits")
    }

    /// What it printed so far.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&self.printed_bytes()).into_owned()
    }

    /// The same, byte for byte.
    pub fn printed_bytes(&self) -> Vec<u8> {
        std::fs::read(&self.log).unwrap_or_default()
    }

    /// Panics with its log if it has ended.
    #[track_caller]
    pub fn must_live(&mut self) {
        if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
            panic!("the daemon ended by itself: {status}\n{}", self.printed());
        }
    }

    /// Waits until it has printed this.
    #[track_caller]
    pub fn wait_for_line(&mut self, text: &str) {
        self.wait_for_line_within(text, SOON);
    }

    /// The same for what takes longer.
    #[track_caller]
    pub fn wait_for_line_within(&mut self, text: &str, limit: Duration) {
        wait_until(&format!("the daemon prints {text:?}"), limit, || {
            self.must_live();
            self.printed().contains(text)
        });
    }

    /// `kill -9`, gone when this returns.
    pub fn kill9(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Stops it where it stands (SIGSTOP), as a host that hangs does.
    pub fn freeze(&self) {
        super::process::signal(self.pid(), rustix::process::Signal::STOP);
        wait_until("the frozen process stands still", SOON, || {
            super::process::state_of(self.pid()) == Some('T')
        });
    }

    /// Lets a frozen one go on (SIGCONT).
    pub fn thaw(&self) {
        super::process::signal(self.pid(), rustix::process::Signal::CONT);
    }

    /// Asks it to stop, and says how it ended and how long that took.
    #[track_caller]
    pub fn terminate(&mut self, limit: Duration) -> (ExitStatus, Duration) {
        super::process::signal(self.pid(), rustix::process::Signal::TERM);
        let begin = Instant::now();
        let status = self.ended_within(limit);
        (status, begin.elapsed())
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended_within(&mut self, limit: Duration) -> ExitStatus {
        wait_until("the daemon has ended", limit, || {
            self.child.try_wait().expect("a child can be waited for").is_some()
        });
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill9();
    }
}
