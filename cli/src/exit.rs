//! Exit codes of the command line: a contract with scripts (design 7, Formats).

/// Done.
pub const DONE: u8 = 0;
/// Failed.
pub const FAILED: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// No such job.
pub const NO_JOB: u8 = 66;
/// No server.
pub const NO_SERVER: u8 = 69;
/// Try again: queue full, no leader, disk full, agent away.
pub const AGAIN: u8 = 75;
/// Not allowed.
pub const DENIED: u8 = 77;
/// `--timeout` ran out.
pub const TIMEOUT: u8 = 124;
/// Detached by two Ctrl-C: as a shell shows SIGINT.
pub const INTERRUPTED: u8 = 130;
/// A job that was cancelled without a code of its own: as a shell shows SIGTERM.
pub const CANCELLED: u8 = 143;
/// A signal `s` ends as `128 + s`, as in a shell.
pub const SIGNAL_BASE: u8 = 128;
