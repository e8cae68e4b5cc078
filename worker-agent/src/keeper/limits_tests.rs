//! Recorded trees: directories with the files of a cgroup as kernels show them, so that both versions
//! are tried on any machine.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use super::*;

/// Files of a cgroup of v2 with all three controllers (Linux 6.8), after one OOM kill.
const V2_FILES: [(&str, &str); 8] = [
    ("memory.max", "max\n"),
    ("memory.swap.max", "max\n"),
    ("memory.peak", "51380224\n"),
    ("memory.events", "low 0\nhigh 0\nmax 73\noom 2\noom_kill 1\noom_group_kill 0\n"),
    ("cpu.max", "max 100000\n"),
    ("cpu.stat", "usage_usec 730\nuser_usec 500\nsystem_usec 230\nnr_periods 4\nnr_throttled 1\n"),
    ("pids.max", "max\n"),
    ("pids.peak", "7\n"),
];

/// Files of the v1 hierarchies, the same.
const V1_MEMORY: [(&str, &str); 6] = [
    ("memory.failcnt", "61\n"),
    ("memory.limit_in_bytes", "9223372036854771712\n"),
    ("memory.memsw.limit_in_bytes", "9223372036854771712\n"),
    ("memory.max_usage_in_bytes", "49999872\n"),
    ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
    ("tasks", ""),
];
const V1_CPU: [(&str, &str); 3] =
    [("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "50000\n"), ("tasks", "")];
const V1_PIDS: [(&str, &str); 2] = [("pids.max", "max\n"), ("tasks", "")];

const ASKED: Asked = Asked { mem_bytes: 48 << 20, cpus: 3, pids: 900 };

/// A machine's trees below one directory.
struct Recorded {
    root: tempfile::TempDir,
}

impl Recorded {
    fn new() -> Recorded {
        Recorded { root: tempfile::tempdir().unwrap() }
    }

    fn cgroup(&self, path: &str, files: &[(&str, &str)]) -> PathBuf {
        let dir = self.root.path().join(path);
        fs::create_dir_all(&dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
        dir
    }

    /// A base in the v2 tree that has these controllers.
    fn base(&self, controllers: &str) -> PathBuf {
        let files = [("cgroup.controllers", controllers), ("cgroup.subtree_control", "")];
        self.cgroup("unified/docket-1", &files)
    }

    /// All of v1, with this process in `/own` of each; limits are files of the base, as of any group.
    fn hierarchies(&self) -> Hierarchies {
        let at = |name: &str| self.root.path().join(name).display().to_string();
        let mounts = format!(
            "1 0 0:1 / {} rw - cgroup2 none rw\n2 0 0:2 / {} rw - cgroup none rw,memory\n\
             3 0 0:3 / {} rw - cgroup none rw,cpu,cpuacct\n4 0 0:4 / {} rw - cgroup none rw,pids\n",
            at("unified"),
            at("memory"),
            at("cpu"),
            at("pids")
        );
        Hierarchies::recorded("4:memory:/own\n3:cpu,cpuacct:/own\n2:pids:/own\n0::/\n", &mounts)
    }

    fn with_v1(&self) -> Hierarchies {
        for (name, files) in [("memory", &V1_MEMORY[..]), ("cpu", &V1_CPU), ("pids", &V1_PIDS)] {
            self.cgroup(&format!("{name}/own/docket-1"), files);
            self.cgroup(&format!("{name}/own/docket-1/s0"), files);
        }
        self.hierarchies()
    }
}

/// What the named files hold now.
fn texts(dir: &Path, names: &[&str]) -> BTreeMap<String, String> {
    let text = |name: &&str| {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        // A file of the kernel is replaced by a write, a recorded one is overwritten from its begin.
        (name.to_string(), text.lines().next().unwrap_or_default().to_owned())
    };
    names.iter().map(text).collect()
}

fn told_of(controllers: &Controllers) -> [String; 3] {
    let told = told(Some(controllers));
    [told.mem, told.cpus, told.pids]
}

#[test]
fn v2_limits_what_its_controllers_can() {
    let recorded = Recorded::new();
    let base = recorded.base("cpuset cpu io memory pids\n");
    let controllers = Controllers::find(&base, &recorded.hierarchies());
    assert_eq!(told_of(&controllers), ["v2", "v2", "v2"]);
    let files: Vec<_> = V2_FILES.iter().map(|(name, _)| (*name, "")).collect();
    let slot = recorded.cgroup("unified/docket-1/s0", &files);
    assert!(controllers.limit(&slot, ASKED).unwrap().is_empty(), "it is born there");
    let names = ["memory.max", "memory.swap.max", "cpu.max", "pids.max"];
    let held = texts(&slot, &names);
    assert_eq!(held.values().collect::<Vec<_>>(), ["300000 100000", "50331648", "0", "900"]);
    files.iter().for_each(|(name, _)| fs::write(slot.join(name), "").unwrap());
    controllers.limit(&slot, Asked::default()).unwrap();
    let held = texts(&slot, &names);
    assert_eq!(held.values().collect::<Vec<_>>(), ["max 100000", "max", "max", "max"]);
}

#[test]
fn v1_limits_in_its_own_hierarchies_and_is_joined_there() {
    let recorded = Recorded::new();
    let base = recorded.base("");
    let controllers = Controllers::find(&base, &recorded.with_v1());
    assert_eq!(told_of(&controllers), ["v1", "v1", "v1"]);
    let slot = recorded.cgroup("unified/docket-1/s0", &[]);
    for (name, files) in [("memory", &V1_MEMORY[..]), ("cpu", &V1_CPU), ("pids", &V1_PIDS)] {
        let empty: Vec<_> = files.iter().map(|(name, _)| (*name, "")).collect();
        recorded.cgroup(&format!("{name}/own/docket-1/s0"), &empty);
    }
    assert_eq!(controllers.limit(&slot, ASKED).unwrap().len(), 3);
    let of = |name: &str, file: &str| {
        let dir = recorded.root.path().join(name).join("own/docket-1/s0");
        texts(&dir, &[file]).remove(file).unwrap()
    };
    assert_eq!(of("memory", "memory.limit_in_bytes"), "50331648");
    assert_eq!(of("memory", "memory.memsw.limit_in_bytes"), "50331648");
    assert_eq!(of("cpu", "cpu.cfs_quota_us"), "300000");
    assert_eq!(of("cpu", "cpu.cfs_period_us"), "100000");
    assert_eq!(of("pids", "pids.max"), "900");
}

#[test]
fn each_resource_is_limited_by_what_is_there_for_it() {
    let recorded = Recorded::new();
    let base = recorded.base("pids\n");
    recorded.cgroup("memory/own/docket-1", &V1_MEMORY);
    recorded.cgroup("cpu/own", &[]);
    let controllers = Controllers::find(&base, &recorded.hierarchies());
    assert_eq!(told_of(&controllers), ["v1", "none", "v2"]);
    assert!(!recorded.root.path().join("cpu/own/docket-1").exists(), "nothing is left behind");
    let nothing = told(None);
    assert_eq!([nothing.mem, nothing.cpus, nothing.pids], ["rlimits", "none", "none"]);
}

#[test]
fn what_a_tree_used_is_read_as_each_version_counts_it() {
    let recorded = Recorded::new();
    let base = recorded.base("memory\n");
    let v2 = Controllers::find(&base, &recorded.hierarchies());
    let slot = recorded.cgroup("unified/docket-1/s0", &V2_FILES);
    let counts =
        SlotCounts { oom_kills: 1, user_us: Some(500), system_us: Some(230), limit_hits: Some(2) };
    assert_eq!(v2.counts(&slot), counts, "oom_kill is neither oom nor oom_group_kill");
    assert_eq!(v2.peak_bytes(&slot), Some(51_380_224));

    let base = recorded.base("");
    let v1 = Controllers::find(&base, &recorded.with_v1());
    let counts_of_v1 = SlotCounts { oom_kills: 3, limit_hits: Some(61), ..counts };
    assert_eq!(v1.counts(&slot), counts_of_v1, "and not oom_kill_disable");
    assert_eq!(v1.peak_bytes(&slot), Some(49_999_872));

    // A kernel before 5.19 has no peak.
    fs::remove_file(slot.join("memory.peak")).unwrap();
    assert_eq!(v2.peak_bytes(&slot), None);
    let nobody = Controllers::default();
    assert_eq!((nobody.counts(&slot).oom_kills, nobody.peak_bytes(&slot)), (0, None));
}

/// The same trees after the kernel had killed in them because the whole machine was out of memory: it
/// counts the kill in the cgroup of whom it killed, and the limit that was reached where that is.
#[test]
fn a_kill_for_the_memory_of_the_whole_machine_reaches_no_limit_of_its_cgroup() {
    let recorded = Recorded::new();
    let events = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 0\n";
    let slot = recorded.cgroup("unified/docket-1/s0", &V2_FILES);
    fs::write(slot.join("memory.events"), events).unwrap();
    let v2 = Controllers::find(&recorded.base("memory\n"), &recorded.hierarchies());
    let counts = v2.counts(&slot);
    assert_eq!((counts.oom_kills, counts.limit_hits), (1, Some(0)));

    let base = recorded.base("");
    let hierarchies = recorded.with_v1();
    let v1 = Controllers::find(&base, &hierarchies);
    let files = [
        ("memory.failcnt", "0\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
    ];
    recorded.cgroup("memory/own/docket-1/s0", &files);
    let counts = v1.counts(&slot);
    assert_eq!((counts.oom_kills, counts.limit_hits), (1, Some(0)));
    // A kernel that does not tell: nothing is said of the node then.
    fs::write(slot.join("memory.events"), "oom_kill 1\n").unwrap();
    assert_eq!(v2.counts(&slot).limit_hits, None);
}

#[test]
fn a_limit_that_cannot_be_set_is_an_error_and_not_forgotten() {
    let recorded = Recorded::new();
    let base = recorded.base("memory cpu pids\n");
    let controllers = Controllers::find(&base, &recorded.hierarchies());
    let slot = recorded.cgroup("unified/docket-1/s0", &[("memory.max", ""), ("pids.max", "")]);
    let error = controllers.limit(&slot, ASKED).unwrap_err();
    assert!(error.to_string().contains("s0"), "{error}");
}
