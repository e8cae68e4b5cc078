//! Standard input that travels with a job: read to its end, up to 1 MiB.

use crate::args::JobOptions;
use crate::failure::Failure;
use crate::say::note;
use crate::spec::{BLOB_MAX_BYTES, SpecError};
use std::io::{IsTerminal, Read};
use std::time::Duration;

/// Silence while stdin does not end; then the reader may wonder.
const QUIET: Duration = Duration::from_secs(2);

/// Who decides about stdin when no option does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unasked {
    /// `run`: it is passed when it is not a terminal.
    Passed,
    /// `submit`: it is not.
    Null,
}

/// The bytes to send along; `None`: nothing is read here.
pub async fn stdin(options: &JobOptions, unasked: Unasked) -> Result<Option<Vec<u8>>, Failure> {
    let wanted = match &options.stdin {
        Some(given) => given == "-",
        None => unasked == Unasked::Passed && !std::io::stdin().is_terminal(),
    };
    if wanted { read().await.map(Some) } else { Ok(None) }
}

async fn read() -> Result<Vec<u8>, Failure> {
    let reading = tokio::task::spawn_blocking(|| {
        let mut bytes = Vec::new();
        let most = BLOB_MAX_BYTES as u64 + 1;
        std::io::stdin().lock().take(most).read_to_end(&mut bytes).map(|_| bytes)
    });
    tokio::pin!(reading);
    let joined = tokio::select! {
        joined = &mut reading => joined,
        () = tokio::time::sleep(QUIET) => {
            note("reading standard input to its end before the job is submitted (none: --stdin null)");
            reading.await
        }
    };
    let bytes = joined.map_err(|error| Failure::Input(std::io::Error::other(error)))?;
    let bytes = bytes.map_err(Failure::Input)?;
    if bytes.len() > BLOB_MAX_BYTES {
        return Err(SpecError::StdinTooLarge(BLOB_MAX_BYTES).into());
    }
    Ok(bytes)
}
