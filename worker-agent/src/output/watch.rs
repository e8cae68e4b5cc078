//! Tells when a file may have grown: inotify, and a slow look besides, for no notification is worth
//! a follower that hangs.
#![allow(unsafe_code)]

use super::file::Output;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// Between looks where the kernel gives no watch (`max_user_instances`).
const POLL: Duration = Duration::from_millis(20);

/// Between looks beside a watch: writes through mappings are not notified.
const SAFETY_POLL: Duration = Duration::from_millis(500);

/// Events drained at a time; their content does not matter.
const EVENT_BYTES: usize = 4 << 10;

/// A watch of one file.
pub struct Watch(Option<AsyncFd<OwnedFd>>);

impl Watch {
    /// For a file that is not followed.
    pub fn none() -> Self {
        Watch(None)
    }

    /// Watches the open file itself. Without inotify it polls.
    pub fn new(output: &Output) -> Self {
        let watch = Self::inotify(output);
        if let Err(error) = &watch {
            tracing::debug!(%error, "no inotify for an output: looking every {POLL:?}");
        }
        Watch(watch.ok())
    }

    fn inotify(output: &Output) -> io::Result<AsyncFd<OwnedFd>> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&fd, output.descriptor_path(), WatchFlags::MODIFY)?;
        // SAFETY: an OwnedFd is open as long as it lives and always names the same descriptor.
        Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
    }

    /// Returns when the file may have changed. Changes since the last return are not missed.
    /// Cancel-safe.
    pub async fn changed(&mut self) {
        let Some(fd) = &self.0 else { return sleep(POLL).await };
        tokio::select! {
            ready = fd.readable() => {
                let Ok(mut ready) = ready else { return sleep(POLL).await };
                let mut events = [0u8; EVENT_BYTES];
                // One read takes all that is merged; a rest shows at the next call.
                let drained = ready.try_io(|fd| Ok(rustix::io::read(fd, &mut events)?));
                if let Ok(Err(error)) = drained {
                    tracing::debug!(%error, "reading a watch");
                    self.0 = None;
                }
            }
            () = sleep(SAFETY_POLL) => {}
        }
    }
}
