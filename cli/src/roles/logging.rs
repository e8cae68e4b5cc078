//! What a part says while it runs: to stderr, filtered by `DOCKET_LOG` or `RUST_LOG`.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// Libraries are heard only when something is wrong; docket also when something happens.
const USUAL: &str = "warn,cli=info,controller=info,docket_core=info,worker_agent=info,worker_agent_core=info,wal=info,openraft=error";

/// Starts the log of this process.
pub fn start() {
    let filter = ["DOCKET_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
        .unwrap_or_else(|| USUAL.to_owned());
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        crate::say::note(&format!("DOCKET_LOG {filter}: {error}; using the default"));
        EnvFilter::new(USUAL)
    });
    // A second start in one process (tests) keeps the first.
    let _ = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).try_init();
}
