//! A program of the test suite that is the `docket` program too, under that name: what it measures or
//! breaks can never be of another build than itself.

use std::path::{Path, PathBuf};

/// Name under which it is `docket`.
pub const DOCKET: &str = "docket";

/// Was it called as `docket`? Then `main` hands over to the command line.
pub fn is_docket() -> bool {
    std::env::current_exe().is_ok_and(|exe| exe.file_name().is_some_and(|name| name == DOCKET))
}

/// Puts itself into a directory as `docket`, and gives that path.
pub fn link_into(dir: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("a program knows its file");
    let exe = dir.join(DOCKET);
    if std::fs::hard_link(&own, &exe).is_err() {
        std::fs::copy(&own, &exe).expect("the program can be copied");
    }
    exe
}
