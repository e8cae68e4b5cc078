//! Tests that this machine cannot run say so by name, past the capture of the test harness.

use std::io::Write;
use std::path::PathBuf;

/// Says on the real stderr that `test` was skipped and why; the caller returns.
pub fn skipped(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    // Not `eprintln!`, which the harness captures: a skip that nobody sees is a test that cannot fail.
    std::io::stderr().write_all(line.as_bytes()).ok();
}

/// Is this process root? Several tests become other users, which only root can.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where a program of that name lies in PATH, if it does.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Are docket's default places on this machine free? A node that somebody else serves there would
/// answer in a world's stead; a test that needs them skips itself, for that node is not ours.
pub fn defaults_are_free(test: &str) -> bool {
    let taken = std::net::TcpListener::bind("127.0.0.1:7460").is_err()
        || ["/run/docket.sock", "/var/lib/docket/docket.sock"]
            .iter()
            .any(|path| std::path::Path::new(path).exists());
    if taken {
        skipped(test, "a node serves the default addresses of this machine");
    }
    !taken
}
