//! What of the kernel's cgroups the keeper of this user can use: the tree that holds and ends the
//! processes of a job, and the limit of their memory. It looks where the keeper will look.

use crate::render::{Check, Health};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// What is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Found {
    /// A v2 tree, with this process in it.
    v2: bool,
    /// Its group of this process may be divided further.
    writable: bool,
    /// Groups under that one can limit memory.
    v2_memory: bool,
    /// There are v1 hierarchies with cpu or memory.
    v1: bool,
    /// The v1 group of this process may be divided further and limits memory.
    v1_memory: bool,
}

/// The line of `docket doctor`.
pub fn cgroups() -> Check {
    let (health, found) = judged(look());
    Check { what: "cgroups", health, found: found.to_owned() }
}

fn look() -> Found {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let under = |root: &str, path: &str| Path::new(root).join(path.trim_start_matches('/'));
    let mut found = Found::default();
    if let (Some(root), Some(path)) = (unified(), v2_path(&own)) {
        let dir = under(root, path);
        found.v2 = true;
        found.writable = writable(&dir);
        let passed_on = std::fs::read_to_string(dir.join("cgroup.subtree_control"));
        found.v2_memory = passed_on.unwrap_or_default().split_whitespace().any(|c| c == "memory");
    }
    found.v1 = ["memory", "cpu"].iter().any(|controller| v1_path(&own, controller).is_some());
    if let Some(path) = v1_path(&own, "memory") {
        found.v1_memory = writable(&under("/sys/fs/cgroup/memory", path));
    }
    found
}

fn unified() -> Option<&'static str> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .find(|root| PathBuf::from(root).join("cgroup.controllers").exists())
}

fn v2_path(own: &str) -> Option<&str> {
    own.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Path in the hierarchy of a v1 controller.
fn v1_path<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|c| c == controller).then_some(path)
    })
}

fn writable(dir: &Path) -> bool {
    access(dir, Access::WRITE_OK).is_ok()
}

fn judged(found: Found) -> (Health, &'static str) {
    match found {
        Found { v2: true, writable: true, v2_memory: true, .. } => {
            (Health::Good, "v2 holds and ends trees and enforces --mem")
        }
        Found { v2: true, writable: true, v1_memory: true, .. } => (
            Health::Good,
            "hybrid: v2 holds and ends trees; it has no memory controller here, so v1 enforces --mem",
        ),
        Found { v2: true, writable: true, .. } => (
            Health::Note,
            "v2 holds and ends trees; no memory controller can be written here: --mem is reserved, \
             but not enforced",
        ),
        Found { v2: true, .. } => (
            Health::Note,
            "v2, not yours to write: trees are held by session and token; --mem is reserved, but \
             not enforced",
        ),
        Found { v1: true, .. } => (
            Health::Note,
            "v1 alone: trees are held by session and token; --mem is reserved, but not enforced",
        ),
        _ => (
            Health::Note,
            "none: trees are held by session and token; --mem is reserved, but not enforced",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "4:memory:/box/7\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/user\n";

    #[test]
    fn paths_are_those_of_their_hierarchy() {
        assert_eq!(v2_path(HYBRID), Some("/user"));
        assert_eq!(v1_path(HYBRID, "memory"), Some("/box/7"));
        assert_eq!(v1_path(HYBRID, "cpu"), Some("/"));
        assert_eq!(v1_path(HYBRID, "pids"), None);
        assert_eq!(v1_path("0::/a\n", "memory"), None);
    }

    #[test]
    fn good_is_only_what_enforces_memory() {
        let hybrid = Found { v2: true, writable: true, v1: true, ..Found::default() };
        for (found, health, part) in [
            (Found { v1_memory: true, ..hybrid }, Health::Good, "v1 enforces --mem"),
            (Found { v2_memory: true, ..hybrid }, Health::Good, "ends trees and enforces --mem"),
            (hybrid, Health::Note, "not enforced"),
            // The keeper joins a v1 group only from a v2 one.
            (Found { writable: false, v1_memory: true, ..hybrid }, Health::Note, "not enforced"),
            (Found { v1: true, ..Found::default() }, Health::Note, "v1 alone"),
            (Found::default(), Health::Note, "none"),
        ] {
            let (judged, words) = judged(found);
            assert_eq!(judged, health, "{found:?}");
            assert!(words.contains(part), "{found:?}: {words}");
        }
    }
}
