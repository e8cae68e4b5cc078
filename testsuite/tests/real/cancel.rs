//! When docket says EXIT, nothing of the job's tree lives: as root or not, with cgroups or without.

use std::process::Command;
use testsuite::patience::{SOON, wait_until};
use testsuite::skip::{is_root, program, skipped};
use testsuite::world::{Proc, Role, User, World, alive, cgroups_of};
use testsuite::{heavy_world, world};

/// Ignores TERM, leaves its session, its parent and its process group, and goes on.
const HYDRA: &str = r#"
trap '' TERM HUP INT
echo $$ >> heads
setsid sh -c 'trap "" TERM HUP; echo $$ >> heads; while :; do sleep 0.2; done' &
(setsid sh -c 'echo $$ >> heads; (setsid sh -c "echo \$\$ >> heads; exec sleep 1000" &); exit 0' &)
(sh -c 'trap "" TERM; echo $$ >> heads; while :; do sleep 0.2; done' &)
nohup sh -c 'echo $$ >> heads; exec sleep 1000' > /dev/null 2>&1 &
wait
while :; do sleep 0.2; done
"#;

/// Processes that write their pid into `heads`.
const HEADS: usize = 6;

/// What lives in the world and is no docket process.
fn remains(world: &World) -> Vec<Proc> {
    world.processes().into_iter().filter(|p| p.role(world.exe()).is_none()).collect()
}

fn start_hydra(world: &World) -> u64 {
    let job = world.submit_sh(&["--kill-grace", "1s"], HYDRA);
    wait_until("all heads are out", SOON, || world.lines("heads").len() == HEADS);
    job
}

/// Cancels the hydra and looks at once, without any grace of the test's own.
fn cancel_and_look(world: &World, job: u64) {
    let id = job.to_string();
    world.ok(&["cancel", &id]);
    let ran = world.docket(&["wait", &id]);
    let left = remains(world);
    assert!(left.is_empty(), "docket said EXIT while these lived: {left:#?}");
    for head in world.lines("heads") {
        assert!(!alive(head.parse().expect("a pid")), "head {head} lives");
    }
    assert_eq!(ran.code, Some(137), "TERM was ignored, KILL was not: {}", ran.describe());
    let task = world.show(job);
    assert_eq!(task["state"], "EXIT", "{task:#}");
    assert_eq!(task["reason"]["kind"], "cancelled", "{task:#}");
    assert!(task["cancelled_by"].is_string(), "{task:#}");
    // A kernel kills whatever is born into a control group that was once killed as a whole: what
    // comes next must have another place.
    for _ in 0..3 {
        let rerun = world.docket(&["run", "--", "true"]);
        assert_eq!(rerun.code, Some(0), "the node works on: {}", rerun.describe());
    }
}

/// Does the job run in another control group than its keeper?
fn in_own_cgroup(world: &World) -> bool {
    let keeper = world.find(Role::Keeper).expect("the keeper lives");
    let head: i32 = world.first_line("heads").parse().expect("a pid");
    cgroups_of(head) != cgroups_of(keeper.pid)
}

#[test]
fn a_cancelled_hydra_is_dead_as_the_calling_user() {
    let world = heavy_world!();
    let _node = world.up(4);
    let job = start_hydra(&world);
    if !in_own_cgroup(&world) {
        skipped("a_cancelled_hydra_is_dead_as_the_calling_user (its cgroup half)", "none here");
    }
    cancel_and_look(&world, job);
}

#[test]
fn a_cancelled_hydra_is_dead_without_cgroups() {
    let test = "a_cancelled_hydra_is_dead_without_cgroups";
    let wrapper = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        "mount -t tmpfs -o ro none /sys/fs/cgroup && exec \"$@\"",
        "sh",
    ];
    let works = || Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").status();
    if !is_root() || program("unshare").is_none() || !works().is_ok_and(|s| s.success()) {
        return skipped(test, "only root can hide the cgroups in a mount namespace");
    }
    let mut world = heavy_world!();
    world.wrap_daemons(&wrapper);
    let _node = world.up(4);
    let job = start_hydra(&world);
    assert!(!in_own_cgroup(&world), "the cgroups are hidden");
    cancel_and_look(&world, job);
}

#[test]
fn a_cancelled_hydra_is_dead_as_an_unprivileged_user() {
    let test = "a_cancelled_hydra_is_dead_as_an_unprivileged_user";
    if !is_root() {
        return skipped(
            test,
            "only root can become another user; run as one, the first test is it",
        );
    }
    let outer = heavy_world!();
    let world = outer.of(&User::nobody());
    let _node = world.up(4);
    let job = start_hydra(&world);
    cancel_and_look(&world, job);
}

#[test]
fn the_exit_code_of_a_term_handler_is_shown_beside_the_cancel() {
    let world = world!();
    let _node = world.up(2);
    let script = "trap 'exit 123' TERM; echo ready > ready; while :; do sleep 0.1; done";
    let job = world.submit_sh(&[], script);
    world.first_line("ready");
    world.ok(&["cancel", &job.to_string()]);
    let ran = world.docket(&["wait", &job.to_string()]);
    assert_eq!(ran.code, Some(123), "its code, if there is one: {}", ran.describe());
    let task = world.show(job);
    assert_eq!(task["reason"]["kind"], "cancelled", "{task:#}");
    assert_eq!(task["exit_code"], 123, "{task:#}");
}

#[test]
fn a_queued_job_is_cancelled_at_once_and_never_runs() {
    let world = world!();
    let _node = world.up(1);
    let running = world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done");
    world.wait_state(running, "RUN");
    let queued = world.submit_sh(&[], "echo ran > ran");
    world.ok(&["cancel", &queued.to_string()]);
    let task = world.show(queued);
    assert_eq!(task["state"], "EXIT", "{task:#}");
    assert_eq!(task["reason"]["kind"], "cancelled", "{task:#}");
    assert_eq!(task["start_time"], serde_json::Value::Null, "{task:#}");
    let ran = world.docket(&["wait", &queued.to_string()]);
    assert_eq!(ran.code, Some(143), "{}", ran.describe());
    world.touch("go");
    assert_eq!(world.docket(&["wait", &running.to_string()]).code, Some(0));
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0), "the queue went on");
    assert!(!world.file("ran").exists());
}

#[test]
fn a_cancel_that_comes_too_late_changes_nothing() {
    let world = world!();
    let _node = world.up(2);
    let job = world.submit_sh(&[], "exit 0");
    world.wait_end(job);
    let before = world.show(job);
    let ran = world.docket(&["cancel", &job.to_string()]);
    assert_eq!(ran.code, Some(0), "a no-op that says so: {}", ran.describe());
    assert!(!(ran.text() + &ran.err()).is_empty(), "it says so");
    assert_eq!(world.show(job), before);
}

#[test]
fn leftovers_of_a_main_process_that_ended_die_with_it() {
    let world = world!();
    let _node = world.up(2);
    let script = "setsid sleep 1000 & sleep 1000 & echo up > ready; exit 6";
    let job = world.submit_sh(&["--kill-grace", "1s"], script);
    assert_eq!(world.docket(&["wait", &job.to_string()]).code, Some(6));
    let left = remains(&world);
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn a_time_limit_ends_a_job_and_is_named() {
    let world = world!();
    let _node = world.up(2);
    let script = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let job = world.submit_sh(&["-t", "1s", "--kill-grace", "1s"], script);
    let ran = world.docket(&["wait", &job.to_string()]);
    let task = world.show(job);
    assert_eq!(task["reason"]["kind"], "time-limit", "not DONE, though it exited 0: {task:#}");
    assert_eq!(task["exit_code"], 0, "{task:#}");
    assert_eq!(ran.code, Some(1), "{}", ran.describe());
}

/// `docket show`, its lines unbroken.
fn shown(world: &World, job: u64) -> String {
    let text = world.ok(&["show", &job.to_string()]);
    text.split_whitespace().collect::<Vec<&str>>().join(" ")
}

#[test]
fn show_says_in_words_that_docket_killed_a_tree_and_why() {
    let world = world!();
    let _node = world.up(1);
    let cancelled = world.submit(&["--", "sleep", "1000"]);
    world.wait_state(cancelled, "RUN");
    let never_ran = world.submit(&["--", "true"]);
    world.ok(&["cancel", &never_ran.to_string()]);
    world.ok(&["cancel", &cancelled.to_string()]);
    let limited = world.submit(&["--time", "1s", "--", "sleep", "1000"]);
    let by_itself = world.submit_sh(&[], "kill -TERM $$");
    for job in [limited, cancelled, by_itself, never_ran] {
        assert_eq!(world.wait_end(job)["state"], "EXIT");
    }
    let user = world.show(cancelled)["cancelled_by"].as_str().expect("who asked").to_owned();
    let says = format!("killed by docket with all its processes: {user} asked to cancel it");
    let text = shown(&world, cancelled);
    assert!(text.contains(&says), "{text}");
    let says = "killed by docket with all its processes: its time limit of 1s was reached";
    let text = shown(&world, limited);
    assert!(text.contains(says), "{text}");
    for job in [by_itself, never_ran] {
        let text = shown(&world, job);
        assert!(!text.contains("killed by"), "{text}");
    }
}

#[test]
fn a_set_is_cancelled_only_where_somebody_agrees() {
    let world = world!();
    let _node = world.up(2);
    let jobs = [world.submit(&["--", "sleep", "600"]), world.submit(&["--", "sleep", "600"])];
    for job in jobs {
        world.wait_state(job, "RUN");
    }
    let ran = world.docket(&["cancel", "--all"]);
    assert_eq!(ran.code, Some(2), "{}", ran.describe());
    assert!(ran.err().contains("2 live jobs") && ran.err().contains("-y"), "{}", ran.describe());
    for job in jobs {
        assert_eq!(world.show(job)["state"], "RUN", "{}", ran.describe());
        assert_eq!(world.show(job)["cancelled_by"], serde_json::Value::Null);
    }
    let told = world.ok(&["cancel", "--all", "-y"]);
    assert!(told.contains("2 jobs"), "{told}");
    for job in jobs {
        assert_eq!(world.wait_end(job)["reason"]["kind"], "cancelled");
    }
    let told = world.docket(&["cancel", "--all"]);
    assert_eq!(told.code, Some(0), "nothing to agree to: {}", told.describe());
}
