//! The node's user database, through the C library: it alone knows of LDAP, SSSD and the like.
//! Calls may block for as long as a directory server does: never on the agent's loop.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::ptr;
use worker_agent_core::{NoUser, User};

/// Largest buffer for one entry; the C library says ERANGE for less than it needs.
const ENTRY_MAX_BYTES: usize = 1 << 20;

/// Most groups of one user that are taken over; Linux itself allows 65,536.
const GROUPS_MAX: usize = 65_536;

/// The entry of a uid, with all its groups.
pub fn look_up(uid: u32) -> Result<User, NoUser> {
    let mut size = 1 << 12;
    loop {
        match entry_of(uid, size) {
            Err(NoUser::Failed { errno }) if errno == libc::ERANGE && size < ENTRY_MAX_BYTES => {
                size *= 4;
            }
            other => return other,
        }
    }
}

fn entry_of(uid: u32, size: usize) -> Result<User, NoUser> {
    let mut buffer = vec![0u8; size];
    // SAFETY: passwd is a plain C struct for which all zeroes is valid.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = ptr::null_mut();
    // SAFETY: all pointers are valid for the call, and the size is the buffer's.
    let errno = unsafe {
        libc::getpwuid_r(uid, &mut entry, buffer.as_mut_ptr().cast(), buffer.len(), &mut found)
    };
    if found.is_null() {
        return Err(match errno {
            // What C libraries return for "no such entry" differs.
            0 | libc::ENOENT | libc::ESRCH => NoUser::Absent,
            errno => NoUser::Failed { errno },
        });
    }
    // SAFETY: the call succeeded, so these are C strings within `buffer`, which lives.
    let (name, home, shell) =
        unsafe { (bytes_of(entry.pw_name), bytes_of(entry.pw_dir), bytes_of(entry.pw_shell)) };
    let groups = groups_of(&name, entry.pw_gid)?;
    Ok(User {
        name: String::from_utf8_lossy(name.as_bytes()).into_owned(),
        gid: entry.pw_gid,
        groups,
        home: home.into_bytes(),
        shell: match shell.as_bytes() {
            b"" => b"/bin/sh".to_vec(),
            shell => shell.to_vec(),
        },
    })
}

/// # Safety
/// `text` is null or a C string that lives through the call.
unsafe fn bytes_of(text: *const libc::c_char) -> CString {
    if text.is_null() {
        return CString::default();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_owned()
}

fn groups_of(name: &CStr, gid: u32) -> Result<Vec<u32>, NoUser> {
    let mut count = 64;
    loop {
        let mut groups = vec![0 as libc::gid_t; count];
        let mut got = count as libc::c_int;
        // SAFETY: `groups` has room for `got` entries; the name is a C string.
        let status =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut got) };
        if status >= 0 {
            groups.truncate(usize::try_from(got).unwrap_or(0));
            return Ok(groups);
        }
        if count >= GROUPS_MAX {
            return Err(NoUser::Failed { errno: libc::EOVERFLOW });
        }
        count *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_with_its_group_home_and_shell() {
        let root = look_up(0).unwrap();
        assert_eq!((root.name.as_str(), root.gid), ("root", 0));
        assert!(root.groups.contains(&0));
        assert!(root.home.starts_with(b"/") && root.shell.starts_with(b"/"));
    }

    #[test]
    fn a_uid_without_an_entry_is_absent() {
        assert_eq!(look_up(4_000_000_123), Err(NoUser::Absent));
    }
}
