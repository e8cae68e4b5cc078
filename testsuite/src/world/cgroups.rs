//! Removes the empty control groups that killed keepers left: theirs alone, told by the journal's id.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of a log file in which its id stands.
const HEADER: usize = 512;

/// A keeper names its control groups `docket-`, the first eight bytes of its journal's id in hex, and
/// its directory's device and inode.
pub(super) fn remove_of(world: &Path) {
    let mut groups = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), 6, &mut |path| groups.push(path.to_owned()));
    let named: Vec<(PathBuf, Vec<u8>)> = groups
        .into_iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_prefix("docket-")?;
            let id = unhex(name.split('-').next()?)?;
            Some((path, id))
        })
        .collect();
    if named.is_empty() {
        return;
    }
    let headers = headers(world);
    for (path, id) in named {
        if headers.iter().any(|head| head.windows(id.len()).any(|window| window == id)) {
            let mut inner = Vec::new();
            walk(&path, 3, &mut |child| inner.push(child.to_owned()));
            inner.iter().rev().for_each(|child| drop(fs::remove_dir(child)));
            fs::remove_dir(&path).ok();
        }
    }
}

/// Calls `see` for every directory below, parents first, down to `depth`.
fn walk(dir: &Path, depth: u32, see: &mut impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            see(&entry.path());
            walk(&entry.path(), depth - 1, see);
        }
    }
}

/// The first bytes of each log file of the world.
fn headers(world: &Path) -> Vec<Vec<u8>> {
    let mut dirs = vec![world.to_owned()];
    walk(world, 6, &mut |dir| dirs.push(dir.to_owned()));
    let files = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let logs = files.map(|entry| entry.path());
    logs.filter(|path| path.extension().is_some_and(|ext| ext == "wal"))
        .filter_map(|path| fs::read(path).ok())
        .map(|mut bytes| {
            bytes.truncate(HEADER);
            bytes
        })
        .collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    (text.len() == 16).then_some(())?;
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
