//! Memory, cpus and processes of a job: held to what was asked where the kernel does that, said where
//! not; what the whole tree used; and the ends that memory makes, told apart from all others.

use std::fs;
use std::path::{Path, PathBuf};

use proto::v1::{FinishFact, LimitsBy, Rusage};

use crate::runner::Test;
use crate::world::{Job, Mode, World, exited, modes, status_of, wait_for_file};

pub const TESTS: &[Test] = &[
    ("a_memory_limit_is_told_apart_from_a_kill", ends_of_memory),
    ("an_end_of_memory_is_told_by_the_next_keeper_too", memory_over_keepers),
    ("what_enforces_limits_is_said", said),
    ("cpus_and_processes_are_limited_where_it_is_said", cpus_and_pids),
    ("without_cgroups_memory_is_limited_process_by_process", rlimits),
    ("what_the_whole_tree_used_is_counted_where_a_cgroup_counts", whole_tree),
    ("an_attempt_does_not_pay_for_the_last_one_in_its_place", no_inheritance),
];

const LIMIT: u64 = 48 << 20;

/// Eats memory until it cannot.
const EAT: &str = "tail /dev/zero";

fn limited(job: u64, text: &str) -> Job {
    Job { mem_bytes: LIMIT, ..Job::shell(job, text) }
}

fn by(world: &World) -> LimitsBy {
    world.welcome.limits_by.clone().unwrap()
}

/// A world whose kernel counts and limits memory; `None`, and said, elsewhere.
fn memory_world() -> Option<World> {
    let world = World::new(Mode::Best);
    if by(&world).mem == "rlimits" {
        eprintln!("SKIPPED: no memory controller that this user may write");
        return None;
    }
    Some(world)
}

fn used(finish: &FinishFact) -> Rusage {
    finish.rusage.unwrap()
}

fn ends_of_memory() {
    let Some(mut world) = memory_world() else { return };
    let main = world.outcome(&limited(1, &format!("exec {EAT}")));
    assert!(main.out_of_memory, "{main:?}");
    assert_eq!((status_of(&main), used(&main).oom_kills), (9, 1));
    let peak = used(&main).peak_bytes.unwrap();
    assert!((LIMIT / 2..=LIMIT).contains(&peak), "{peak}");

    let child = world.outcome(&limited(2, &format!("{EAT}; exit 0")));
    assert!(!child.out_of_memory, "the main process ended well: {child:?}");
    assert_eq!((status_of(&child), used(&child).oom_kills), (exited(0), 1));

    // What shells say of a killed child is a code like any other.
    let passed_on = world.outcome(&limited(3, &format!("{EAT}; exit $?")));
    assert!(!passed_on.out_of_memory, "{passed_on:?}");
    assert_eq!((status_of(&passed_on), used(&passed_on).oom_kills), (exited(137), 1));

    let killed = world.outcome(&limited(4, "kill -9 $$"));
    assert!(!killed.out_of_memory, "{killed:?}");
    assert_eq!((status_of(&killed), used(&killed).oom_kills), (9, 0));

    let code = world.outcome(&limited(5, "exit 137"));
    assert!(!code.out_of_memory, "{code:?}");
    assert_eq!((status_of(&code), used(&code).oom_kills), (exited(137), 0));
}

fn memory_over_keepers() {
    let Some(mut world) = memory_world() else { return };
    // Earlier kills in the same place are no kill of this one.
    world.outcome(&limited(1, &format!("{EAT}; exit 0")));
    let go = world.open_path("go").display().to_string();
    let wait = format!("while [ ! -e {go} ]; do sleep 0.05; done");
    let eater = limited(2, &format!("{wait}; exec {EAT}"));
    let killed = limited(3, &format!("{wait}; kill -9 $$"));
    for job in [&eater, &killed] {
        world.run(job);
        world.start_of(job);
    }
    world.kill_keeper();
    world.connect();
    fs::write(&go, "").unwrap();
    let finish = world.finish_of(&eater);
    assert!(finish.out_of_memory && status_of(&finish) == 9, "{finish:?}");
    let finish = world.finish_of(&killed);
    assert!(!finish.out_of_memory && status_of(&finish) == 9, "{finish:?}");
    assert_eq!(used(&finish).oom_kills, 0);
}

fn said() {
    for mode in modes() {
        let world = World::new(mode);
        let by = by(&world);
        assert_eq!(world.welcome.limits, by.mem);
        let words = [&by.mem, &by.cpus, &by.pids].map(String::as_str);
        match mode {
            Mode::Best => {
                assert!(["v2", "v1", "rlimits"].contains(&words[0]), "{words:?}");
                assert!(words[1..].iter().all(|w| ["v2", "v1", "none"].contains(w)), "{words:?}");
            }
            Mode::Marks | Mode::Nobody => assert_eq!(words, ["rlimits", "none", "none"]),
        }
    }
}

/// Where a job that printed /proc/self/cgroup was in the hierarchy of this controller.
fn place(cgroups: &str, version: &str, controller: &str) -> PathBuf {
    let path = cgroups.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        let wanted = match version {
            "v2" => names.is_empty(),
            _ => names.split(',').any(|name| name == controller),
        };
        wanted.then_some(path)
    });
    let path = path.unwrap().trim_start_matches('/');
    let roots = match version {
        "v2" => vec!["/sys/fs/cgroup".to_owned(), "/sys/fs/cgroup/unified".to_owned()],
        _ => vec![format!("/sys/fs/cgroup/{controller}")],
    };
    let dirs = roots.iter().map(|root| Path::new(root).join(path));
    dirs.into_iter().find(|dir| dir.is_dir()).unwrap_or_else(|| panic!("{path} is nowhere"))
}

fn cpus_and_pids() {
    let mut world = World::new(Mode::Best);
    let by = by(&world);
    let (ready, go) = (world.open_path("ready"), world.open_path("go"));
    let mut job = Job::shell(
        1,
        &format!(
            "cat /proc/self/cgroup; touch {}; while [ ! -e {} ]; do sleep 0.05; done",
            ready.display(),
            go.display()
        ),
    );
    job.spec.cpus = 3;
    world.run(&job);
    world.start_of(&job);
    wait_for_file(&ready);
    let cgroups = fs::read_to_string(world.run_file(&job, ".out")).unwrap();
    let read = |version: &str, controller: &str, file: &str| {
        let text = fs::read_to_string(place(&cgroups, version, controller).join(file)).unwrap();
        text.trim().to_owned()
    };
    match by.cpus.as_str() {
        "v1" => assert_eq!(read("v1", "cpu", "cpu.cfs_quota_us"), "300000"),
        "v2" => assert_eq!(read("v2", "cpu", "cpu.max"), "300000 100000"),
        other => eprintln!("SKIPPED cpus: {other}"),
    }
    match by.pids.as_str() {
        "none" => eprintln!("SKIPPED processes: none"),
        version => {
            let max: u64 = read(version, "pids", "pids.max").parse().unwrap();
            let all = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
            assert!(0 < max && max <= all.trim().parse::<u64>().unwrap() / 2, "{max}");
        }
    }
    fs::write(&go, "").unwrap();
    assert_eq!(status_of(&world.finish_of(&job)), 0);
}

fn rlimits() {
    for mode in modes().into_iter().filter(|mode| *mode != Mode::Best) {
        let mut world = World::new(mode);
        let asked = limited(1, "grep '^Max data size' /proc/self/limits");
        assert_eq!(status_of(&world.outcome(&asked)), 0);
        let out = fs::read_to_string(world.run_file(&asked, ".out")).unwrap();
        let words: Vec<&str> = out.split_whitespace().collect();
        assert_eq!(words[3..], ["50331648", "50331648", "bytes"], "{mode:?}");

        let eater = world.outcome(&limited(2, EAT));
        assert!(!eater.out_of_memory, "nobody killed it: {eater:?}");
        assert_ne!(status_of(&eater), 0, "it could not have more");
        let used = used(&eater);
        assert!(!used.whole_tree && used.peak_bytes.is_none());
        assert!(used.max_rss_bytes <= 2 * LIMIT, "{used:?}");

        let free = Job::shell(3, "grep '^Max data size' /proc/self/limits");
        assert_eq!(status_of(&world.outcome(&free)), 0);
        let own = fs::read_to_string("/proc/self/limits").unwrap();
        let own = own.lines().find(|line| line.starts_with("Max data size")).unwrap();
        let out = fs::read_to_string(world.run_file(&free, ".out")).unwrap();
        assert_eq!(out.trim_end(), own.trim_end(), "nothing asked, nothing changed");
    }
}

/// Two processes that nothing waits for: both hold 20 MB at once, one works. Prints how long, in
/// ticks of 10 ms, and ends with code 0 while they live.
fn busy_tree(world: &World, job: u64) -> Job {
    let (held, worked) = (world.open_path("held"), world.open_path("worked"));
    let (held, worked) = (held.display(), worked.display());
    let hold =
        "{ head -c 20000000 /dev/zero; touch HELD; sleep 999; } | tail -c 20000000 >/dev/null";
    let text = format!(
        "({}) & ({}) & \
         (i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; touch {worked}; sleep 999) & busy=$!; \
         while [ ! -e {held}1 ] || [ ! -e {held}2 ] || [ ! -e {worked} ]; do sleep 0.05; done; \
         sleep 0.2; cut -d' ' -f14,15 /proc/$busy/stat; exit 0",
        hold.replace("HELD", &format!("{held}1")),
        hold.replace("HELD", &format!("{held}2")),
    );
    let mut job = Job::shell(job, &text);
    job.spec.kill_grace_ms = Some(300);
    job
}

fn whole_tree() {
    for mode in modes() {
        let mut world = World::new(mode);
        let memory = by(&world).mem != "rlimits";
        let slots = world.log().contains("cgroup slots");
        let job = busy_tree(&world, 1);
        let finish = world.outcome(&job);
        assert_eq!(status_of(&finish), 0, "{mode:?}");
        let used = used(&finish);
        let out = fs::read_to_string(world.run_file(&job, ".out")).unwrap();
        let ticks: u64 = out.split_whitespace().map(|n| n.parse::<u64>().unwrap()).sum();
        assert_eq!(used.whole_tree, slots, "{mode:?}");
        assert_eq!(used.peak_bytes.is_some(), memory, "{mode:?}");
        if used.whole_tree {
            let cpu_us = used.user_us + used.system_us;
            // A tick is charged whole to whoever runs when it comes.
            assert!(cpu_us + 20_000 >= ticks * 10_000, "{used:?} and {ticks} ticks");
        }
        if let Some(peak) = used.peak_bytes {
            assert!(peak >= 40_000_000, "both at once: {used:?}");
            assert!(used.max_rss_bytes < 40_000_000, "no process alone: {used:?}");
        }
    }
}

fn no_inheritance() {
    let mut world = World::new(Mode::Best);
    if !world.log().contains("cgroup slots") {
        return eprintln!("SKIPPED: no cgroup v2 that this user may write");
    }
    let work = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let big =
        used(&world.outcome(&Job::shell(
            1,
            &format!("head -c 60000000 /dev/zero | tail >/dev/null; {work}"),
        )));
    let go = world.open_path("go");
    let small = Job::shell(2, &format!("while [ ! -e {} ]; do sleep 0.2; done", go.display()));
    world.run(&small);
    world.start_of(&small);
    // Its counts are those of the keeper that took it, whoever tells them.
    world.kill_keeper();
    world.connect();
    fs::write(&go, "").unwrap();
    let small = used(&world.finish_of(&small));
    assert!(small.whole_tree && big.whole_tree);
    assert!(small.user_us < big.user_us / 2, "{small:?} after {big:?}");
    if let (Some(small), Some(big)) = (small.peak_bytes, big.peak_bytes) {
        assert!(big >= 60_000_000 && small < 30_000_000, "{small} after {big}");
    }
}
