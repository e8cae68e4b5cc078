//! What the node offers, found by itself: cpus from affinity and cgroup quota, memory from the
//! machine and the cgroup; the configuration beats both.

use crate::config::Config;
use proto::v1;
use std::fs;
use std::path::{Path, PathBuf};

/// The node's resources; `limits` is the keeper's to say.
pub fn resources(config: &Config) -> v1::NodeResources {
    v1::NodeResources {
        cpus: config.cpus.unwrap_or_else(cpus),
        mem_bytes: config.mem.unwrap_or_else(memory_bytes),
        gpus: config.gpus,
        labels: config.labels.clone(),
        resources: config.resources.clone(),
        ..v1::NodeResources::default()
    }
}

/// One-minute run-queue length in thousandths of the node's cpus.
pub fn load_permille(cpus: u32) -> u32 {
    // The kernel gives loads as fixed point with 16 bits behind the point.
    let load = rustix::system::sysinfo().loads[0];
    u32::try_from(((load * 1000) >> 16) / u64::from(cpus.max(1))).unwrap_or(u32::MAX)
}

/// Whole cpus that this process may use. std reads both the affinity mask and the cgroup quota.
fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}

fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram.saturating_mul(u64::from(info.mem_unit));
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(&cgroups, Path::new("/sys/fs/cgroup"))
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok())
        .fold(machine, u64::min)
}

/// Memory limit files of this process's cgroup and all its ancestors, v2 and v1: any of them binds.
fn limit_files(proc_cgroup: &str, mount: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in proc_cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = match controllers {
            "" => (mount.to_owned(), "memory.max"),
            list if list.split(',').any(|c| c == "memory") => {
                (mount.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let inside = Path::new(path.trim_start_matches('/'));
        files.extend(inside.ancestors().map(|dir| root.join(dir).join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_every_ancestor_count_in_both_versions() {
        let files = limit_files("0::/a/b\n", Path::new("/cg"));
        let expected = ["/cg/a/b/memory.max", "/cg/a/memory.max", "/cg/memory.max"];
        assert_eq!(files, expected.map(PathBuf::from));
        let files = limit_files("5:cpu,memory:/x\n3:pids:/y\n", Path::new("/cg"));
        let expected = ["/cg/memory/x/memory.limit_in_bytes", "/cg/memory/memory.limit_in_bytes"];
        assert_eq!(files, expected.map(PathBuf::from));
    }

    #[test]
    fn the_configuration_beats_what_is_found() {
        let config = Config {
            cpus: Some(3),
            mem: Some(5),
            gpus: 2,
            resources: [("scratch".to_owned(), 4)].into(),
            ..Config::default()
        };
        let found = resources(&config);
        assert_eq!((found.cpus, found.mem_bytes), (3, 5));
        assert_eq!((found.gpus, &found.resources), (2, &config.resources));
        let found = resources(&Config::default());
        assert!(found.cpus >= 1 && found.mem_bytes > 1 << 20);
    }
}
