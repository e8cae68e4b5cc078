//! Another user of this machine, whom only root can become.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// A user of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
}

impl User {
    /// Looks a user up by name; `None` if this machine has no such user.
    pub fn named(name: &str) -> Option<User> {
        let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then_some(())?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(User { name: name.to_owned(), uid, gid })
        })
    }

    /// The unprivileged user that every distribution has.
    pub fn nobody() -> User {
        User::named("nobody").unwrap_or(User { name: "nobody".into(), uid: 65534, gid: 65534 })
    }

    /// Makes the command run as this user, without supplementary groups (std drops them for root).
    pub(super) fn assume(&self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid).env("USER", &self.name).env("LOGNAME", &self.name);
    }
}
