//! Programs that differ in version without a second build: copies of this one that carry a version
//! behind their last byte, and, where a test wants it, a fault that such a program may have.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{World, own_program, wait_for};

/// What stands before the version, at the end of a copy.
const TRAILER: &str = "\nkeeper-test-version ";

/// A trailer is no longer than this.
const TRAILER_MAX: u64 = 64;

/// What a copy does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// It passes its check, and cannot be executed after it.
    NotExecutable,
    /// It passes its check, and ends at once when it takes over.
    DiesAtOnce,
}

const WORDS: [(Fault, &str); 3] =
    [(Fault::None, "good"), (Fault::NotExecutable, "mode"), (Fault::DiesAtOnce, "dies")];

/// Makes a copy in the world's open directory, for the world's user.
pub fn copy(world: &World, version: &str, fault: Fault) -> PathBuf {
    let path = world.open_path(&format!("docket-{version}"));
    fs::copy(own_program(), &path).unwrap();
    let word = WORDS.into_iter().find(|(f, _)| *f == fault).unwrap().1;
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(format!("{TRAILER}{version} {word}").as_bytes()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&path, Some(world.uid()), None).unwrap();
    drop(file);
    // What another test forked meanwhile holds it open for writing until its own exec.
    wait_for("a program that can be executed", || {
        Command::new(&path).arg("--list").output().ok().filter(|output| output.status.success())
    });
    path
}

/// The version of this program, and its fault.
pub fn own() -> (&'static str, Fault) {
    match trailer(Path::new("/proc/self/exe")) {
        Some(found) => found,
        None => (env!("CARGO_PKG_VERSION"), Fault::None),
    }
}

fn trailer(program: &Path) -> Option<(&'static str, Fault)> {
    let file = File::open(program).ok()?;
    let length = file.metadata().ok()?.len();
    let mut end = vec![0; TRAILER_MAX as usize];
    file.read_exact_at(&mut end, length.checked_sub(TRAILER_MAX)?).ok()?;
    let end = String::from_utf8_lossy(&end).into_owned();
    let (_, told) = end.rsplit_once(TRAILER)?;
    let (version, word) = told.split_once(' ')?;
    let fault = WORDS.into_iter().find(|(_, w)| *w == word)?.0;
    Some((version.to_owned().leak(), fault))
}
