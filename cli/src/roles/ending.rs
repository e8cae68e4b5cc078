//! What ends a part: signals.

use super::RoleError;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a part to stop in order.
pub struct Ending {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Ending {
    /// Takes them over.
    pub fn watch() -> Result<Ending, RoleError> {
        let open =
            |kind| signal(kind).map_err(|why| RoleError::System { what: "take signals", why });
        Ok(Ending {
            terminate: open(SignalKind::terminate())?,
            interrupt: open(SignalKind::interrupt())?,
            hang_up: open(SignalKind::hangup())?,
        })
    }

    /// The next one, by name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}

/// A runtime for a part.
pub fn runtime() -> Result<tokio::runtime::Runtime, RoleError> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|why| RoleError::System { what: "start the runtime", why })
}
