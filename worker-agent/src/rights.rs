//! Opening a file with the rights of a job's user: an agent or keeper of root must not become a way
//! to read any file. Only the calling thread changes, and only what the kernel asks for files.
#![allow(unsafe_code)]

use rustix::process::{getegid, geteuid, getgroups};
use std::io;

/// Whom the kernel is to ask when a file is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rights {
    /// The user.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// All groups that it acts with.
    pub groups: Vec<u32>,
}

impl Rights {
    /// Does `work`, all in this thread, with these rights. Without change where there are none to
    /// give away: this process is not root, or the user is.
    ///
    /// # Errors
    /// The rights cannot be taken; `work` was not done then.
    pub fn borrowed<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        if !geteuid().is_root() || self.uid == 0 {
            return Ok(work());
        }
        let _own = Own::laid_down_for(self)?;
        Ok(work())
    }
}

/// This thread's own rights, taken back at the end.
struct Own {
    gid: u32,
    groups: Vec<u32>,
}

impl Own {
    fn laid_down_for(rights: &Rights) -> io::Result<Own> {
        let groups = getgroups()?.iter().map(|group| group.as_raw()).collect();
        let own = Own { gid: getegid().as_raw(), groups };
        // From here on the end of `own` restores, whatever fails.
        let taken = set_groups(&rights.groups)
            && set_fs(libc::SYS_setfsgid, rights.gid)
            // Last: with it goes the power to read everything (CAP_DAC_OVERRIDE and its like).
            && set_fs(libc::SYS_setfsuid, rights.uid);
        match taken {
            true => Ok(own),
            false => Err(io::Error::from_raw_os_error(libc::EPERM)),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let back = set_fs(libc::SYS_setfsuid, 0)
            && set_fs(libc::SYS_setfsgid, self.gid)
            && set_groups(&self.groups);
        if !back {
            // A thread of the pool that goes on as somebody else would do all later work as them.
            std::process::abort();
        }
    }
}

/// The raw call changes this thread; the C library's would change all.
fn set_groups(groups: &[u32]) -> bool {
    // SAFETY: the list is valid for the call.
    unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0 }
}

/// These calls tell no error but the id that was in force: a second one tells whether it is ours.
fn set_fs(call: libc::c_long, id: u32) -> bool {
    // SAFETY: takes a number; -1 is no id and changes nothing.
    unsafe {
        libc::syscall(call, libc::c_long::from(id));
        libc::syscall(call, -1 as libc::c_long) == libc::c_long::from(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn nobody() -> Rights {
        Rights { uid: 65_534, gid: 65_534, groups: vec![65_534] }
    }

    #[test]
    fn rights_are_laid_down_for_the_work_and_no_longer() {
        if !geteuid().is_root() {
            return; // nothing to give away
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let [closed, open] = ["closed", "open"].map(|name| dir.path().join(name));
        for (path, mode) in [(&closed, 0o600), (&open, 0o604)] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let read = |path| nobody().borrowed(|| fs::read(path).map_err(|e| e.kind())).unwrap();
        assert_eq!(read(&closed), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(read(&open), Ok(b"x".to_vec()));
        assert_eq!(fs::read(&closed).unwrap(), b"x", "root again");
        std::panic::catch_unwind(|| nobody().borrowed(|| panic!("in the middle")).ok())
            .unwrap_err();
        assert_eq!(fs::read(&closed).unwrap(), b"x", "and after a panic");
    }

    #[test]
    fn a_groups_file_is_read_through_that_group_only() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("teams");
        fs::write(&path, "x").unwrap();
        std::os::unix::fs::chown(&path, None, Some(4242)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let member = Rights { groups: vec![65_534, 4242], ..nobody() };
        assert!(member.borrowed(|| fs::read(&path).is_ok()).unwrap());
        assert!(!nobody().borrowed(|| fs::read(&path).is_ok()).unwrap());
    }
}
