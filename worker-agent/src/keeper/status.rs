//! How keeper and guard begin and end: exit codes, and standard descriptors that block nobody.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use super::sys;

/// Ended in order; for a launcher: it runs.
pub(crate) const ENDED: i32 = 0;

/// Not called as it should be.
pub(crate) const USAGE: i32 = 2;

/// Cannot start, or lost its journal and has nothing left to do; the reason is in keeper.log.
pub(crate) const FAILED: i32 = 70;

/// The raw wait status of a process that exits with this code.
pub(crate) fn raw(code: i32) -> u32 {
    (code as u32) << 8
}

/// Points 0, 1 and 2 at /dev/null: the launcher's terminal and pipes are let go.
pub(crate) fn null_stdio() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    sys::replace_stdio(null.as_fd())
}
