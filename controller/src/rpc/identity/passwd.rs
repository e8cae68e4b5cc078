//! Name of a uid, by getpwuid_r: the only call into the C library that identity needs.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;

/// A record longer than this is no user we can serve: groups of thousands live elsewhere.
const RECORD_MAX_BYTES: usize = 1 << 20;

/// First try; getpwuid_r says ERANGE when a record needs more.
const RECORD_FIRST_BYTES: usize = 1 << 10;

/// Name of `uid` in the user database, `None` where it has none (or none that is UTF-8).
/// Blocks for as long as the database (files, LDAP, …) takes.
pub fn user_name(uid: u32) -> io::Result<Option<String>> {
    let mut size = RECORD_FIRST_BYTES;
    loop {
        match lookup(uid, size) {
            Err(e) if e.raw_os_error() == Some(libc::ERANGE) && size < RECORD_MAX_BYTES => {
                size *= 4;
            }
            other => return other,
        }
    }
}

fn lookup(uid: u32, size: usize) -> io::Result<Option<String>> {
    let mut buffer = vec![0_u8; size];
    let mut record = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found: *mut libc::passwd = std::ptr::null_mut();
    // SAFETY: `record` and `buffer` are ours and live until the end of this function, the length
    // is the buffer's own, and `found` is a valid place for the answer.
    let error = unsafe {
        libc::getpwuid_r(
            uid,
            record.as_mut_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            &raw mut found,
        )
    };
    match error {
        0 if found.is_null() => Ok(None),
        // SAFETY: success with `found` set means that `record` is filled in and that `pw_name`
        // points at a NUL-terminated string inside `buffer`, which still lives.
        0 => Ok(unsafe { CStr::from_ptr((*found).pw_name) }.to_str().ok().map(str::to_owned)),
        // Some libraries answer "not found" with these (getpwnam_r(3), Errors).
        libc::ENOENT | libc::ESRCH => Ok(None),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code: a surprise must end the test")]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_name_and_an_unused_uid_has_none() {
        assert_eq!(user_name(0).unwrap().as_deref(), Some("root"));
        assert_eq!(user_name(3_999_999_999).unwrap(), None);
    }
}
