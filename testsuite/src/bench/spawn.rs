//! One bare `posix_spawn` and `waitpid` of `/bin/true`: what a job costs when nothing is told.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr::null;

const PROGRAM: &CStr = c"/bin/true";

/// Runs the program to its end; panics if it cannot be started or fails.
pub fn spawn_and_wait() {
    let argv = [PROGRAM.as_ptr().cast_mut(), std::ptr::null_mut()];
    let envp = [std::ptr::null_mut()];
    let mut pid = 0;
    // SAFETY: all pointers are valid for the call, both lists end with null, and posix_spawn only
    // reads them.
    let error = unsafe {
        libc::posix_spawn(&mut pid, PROGRAM.as_ptr(), null(), null(), argv.as_ptr(), envp.as_ptr())
    };
    assert_eq!(error, 0, "{PROGRAM:?} does not start");
    let mut status = 0;
    // SAFETY: `pid` is a child of this process that nobody else waits for; `status` is writable.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "{PROGRAM:?} ends with 0");
}
