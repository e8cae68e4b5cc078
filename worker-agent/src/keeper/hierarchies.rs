//! Where the kernel's cgroups are: the mounted hierarchies and this process's place in each, read
//! from the texts of /proc, so that recorded ones can stand for another machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What /proc says of cgroups.
pub(super) struct Hierarchies {
    /// /proc/self/cgroup.
    own: String,
    /// /proc/self/mountinfo.
    mounts: String,
}

impl Hierarchies {
    /// Those of this process; unreadable ones are none.
    pub(super) fn here() -> Hierarchies {
        Hierarchies {
            own: fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(),
        }
    }

    /// As recorded.
    #[cfg(test)]
    pub(super) fn recorded(own: &str, mounts: &str) -> Hierarchies {
        Hierarchies { own: own.to_owned(), mounts: mounts.to_owned() }
    }

    /// Root of the v2 tree.
    pub(super) fn v2_root(&self) -> Option<PathBuf> {
        self.mount_point("cgroup2", None)
    }

    /// This process's cgroup in the v2 tree.
    pub(super) fn v2_own(&self) -> Option<PathBuf> {
        Some(self.v2_root()?.join(self.own_cgroup("0", "")?))
    }

    /// Root of the v1 hierarchy of this controller.
    pub(super) fn v1_root(&self, controller: &str) -> Option<PathBuf> {
        self.mount_point("cgroup", Some(controller))
    }

    /// This process's cgroup in the v1 hierarchy of this controller.
    pub(super) fn v1_own(&self, controller: &str) -> Option<PathBuf> {
        Some(self.v1_root(controller)?.join(self.own_cgroup("", controller)?))
    }

    /// In the hierarchy of this number or controller, relative to its mount.
    fn own_cgroup(&self, hierarchy: &str, controller: &str) -> Option<PathBuf> {
        let line = self.own.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let wanted = number == hierarchy
                || !controller.is_empty() && controllers.split(',').any(|c| c == controller);
            wanted.then_some(path)
        })?;
        // Outside of what is mounted here (a cgroup namespace): not reachable.
        (!line.starts_with("/..")).then(|| PathBuf::from(line.trim_start_matches('/')))
    }

    /// Where a file system of this type (and with this super option) is mounted.
    fn mount_point(&self, kind: &str, option: Option<&str>) -> Option<PathBuf> {
        self.mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let is_kind = right.next() == Some(kind);
            let options = right.nth(1).unwrap_or_default();
            let fits = option.is_none_or(|wanted| options.split(',').any(|o| o == wanted));
            // Field 4 is the root within the file system: only a whole one fits /proc/self/cgroup.
            let mut left = left.split(' ').skip(3);
            let whole = left.next() == Some("/");
            (is_kind && fits && whole).then(|| PathBuf::from(left.next().unwrap_or_default()))
        })
    }
}

/// Whether this process may write there.
pub(super) fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// For directories that may be there already.
pub(super) fn exists_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup_is_read_by_number_or_controller() {
        let own = |text, number, controller| {
            Hierarchies::recorded(text, "").own_cgroup(number, controller)
        };
        let text = "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/user.slice\n";
        assert_eq!(own(text, "0", ""), Some("user.slice".into()));
        assert_eq!(own(text, "", "memory"), Some("a/b".into()));
        assert_eq!(own(text, "", "cpuacct"), Some("c".into()));
        assert_eq!(own("0::/../x\n", "0", ""), None);
        assert_eq!(own("1:cpu:/\n", "0", ""), None);
    }

    #[test]
    fn the_mount_point_is_the_one_of_the_whole_tree() {
        let text = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n\
                    31 24 0:27 /x /bound rw shared:1 - cgroup none rw,memory\n\
                    32 24 0:27 / /sys/fs/cgroup/memory rw shared:1 - cgroup none rw,memory\n";
        let found = Hierarchies::recorded("4:memory:/a\n0::/b\n", text);
        assert_eq!(found.v2_root(), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(found.v2_own(), Some("/sys/fs/cgroup/unified/b".into()));
        assert_eq!(found.v1_own("memory"), Some("/sys/fs/cgroup/memory/a".into()));
        assert_eq!(found.v1_root("cpu"), None);
    }
}
