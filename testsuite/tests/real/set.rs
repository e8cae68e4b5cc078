//! `docket set` of what runs and of what waits (case J02), the warning before a limit, and the limits
//! of the cluster.

use testsuite::world;

#[test]
fn a_limit_is_extended_lifted_and_cut_while_the_job_runs() {
    let world = world!();
    let _node = world.up(4);
    let extended = world.submit_sh(&["-t", "3s"], "sleep 4; exit 4");
    let lifted = world.submit_sh(&["-t", "3s"], "sleep 4; exit 5");
    let cut = world.submit_sh(&["-t", "1h"], "sleep 1000");
    for job in [extended, lifted, cut] {
        world.wait_state(job, "RUN");
    }
    world.ok(&["set", &extended.to_string(), "--time", "+1h"]);
    world.ok(&["set", &lifted.to_string(), "--time", "none"]);
    world.ok(&["set", &cut.to_string(), "--time", "-59m59s"]);
    assert_eq!(world.show(extended)["time_limit_ms"], 3_603_000);
    assert_eq!(world.docket(&["wait", &extended.to_string()]).code, Some(4));
    assert_eq!(world.docket(&["wait", &lifted.to_string()]).code, Some(5));
    assert_eq!(world.wait_end(cut)["reason"]["kind"], "time-limit");
    let events = world.ok(&["events", &extended.to_string()]);
    assert!(events.contains("set its time limit to 1h"), "{events}");
    let late = world.docket(&["set", &cut.to_string(), "--time", "2h"]);
    assert_ne!(late.code, Some(0), "{}", late.describe());
}

#[test]
fn a_limit_that_was_set_holds_over_a_restart_of_node_and_controller() {
    let world = world!();
    let mut node = world.up(2);
    let job = world.submit_sh(&["-t", "1h"], "sleep 1000");
    let waits = world.submit(&["--hold", "--", "sleep", "1000"]);
    world.wait_state(job, "RUN");
    node.kill9();
    let _node = world.up(2);
    world.wait_state(job, "RUN");
    world.ok(&["set", &waits.to_string(), "--time", "1s"]);
    world.ok(&["set", &waits.to_string(), "--name", "renamed"]);
    world.ok(&["set", &job.to_string(), "--time", "1s"]);
    world.ok(&["release", &waits.to_string()]);
    for job in [job, waits] {
        assert_eq!(world.wait_end(job)["reason"]["kind"], "time-limit");
    }
    assert_eq!(world.show(waits)["name"], "renamed");
}

#[test]
fn a_job_is_warned_before_its_limit_and_may_end_by_itself() {
    let world = world!();
    let _node = world.up(2);
    let script = "trap 'echo saved; exit 7' USR1; while :; do sleep 0.1; done";
    let job = world.submit_sh(&["-t", "30s", "--signal", "USR1@29s"], script);
    assert_eq!(world.docket(&["wait", &job.to_string()]).code, Some(7));
    assert_eq!(world.ok(&["logs", &job.to_string()]), "saved\n");
    assert_eq!(world.show(job)["warn"], "USR1@29s");
}

#[test]
fn what_waits_takes_other_cpus_and_what_runs_says_no() {
    let world = world!();
    let _node = world.up(1);
    let runs = world.submit(&["--", "sleep", "1000"]);
    let waits = world.submit(&["-c", "64", "--", "true"]);
    world.wait_state(runs, "RUN");
    let refused = world.docket(&["set", &runs.to_string(), "--cpus", "2"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.err().contains("keeps until it ends"), "{}", refused.describe());
    world.ok(&["set", &waits.to_string(), "--cpus", "1"]);
    world.ok(&["cancel", &runs.to_string()]);
    assert_eq!(world.wait_end(waits)["state"], "DONE");
}

#[test]
fn the_clusters_limits_are_told_by_name() {
    let mut world = world!();
    world.set("DOCKET_CONTROLLER__DEFAULT_TIME", "1s");
    world.set("DOCKET_CONTROLLER__MAX_TIME", "1m");
    let _node = world.up(2);
    let long = world.docket(&["submit", "-t", "2m", "--", "true"]);
    assert_ne!(long.code, Some(0));
    assert!(long.err().contains("at most 1m00s (max_time)"), "{}", long.describe());
    let job = world.submit(&["--", "sleep", "1000"]);
    assert_eq!(world.wait_end(job)["reason"]["kind"], "time-limit", "default_time");
}

#[test]
fn values_of_the_cluster_are_shown_and_set_and_hold_over_a_restart() {
    let world = world!();
    let mut node = world.up(2);
    let all = world.ok(&["cluster", "set"]);
    assert!(all.contains("heartbeat_timeout      30s"), "{all}");
    assert!(world.ok(&["cluster", "set", "max_queue"]).contains("1000000"));
    assert_eq!(world.ok(&["cluster", "set", "max_time", "1m"]), "max_time  1m\n");
    assert_eq!(world.ok(&["cluster", "set", "max_time", "1m"]), "max_time is so already\n");
    world.ok(&["cluster", "set", "queues.short.max_tasks", "1"]);
    node.kill9();
    let _node = world.up(2);
    let long = world.docket(&["submit", "-t", "2m", "--", "true"]);
    assert!(long.err().contains("at most 1m00s (max_time)"), "{}", long.describe());
    let json = world.ok(&["cluster", "set", "queues", "--json"]);
    assert_eq!(json, "{\"queues\":\"short.max_tasks=1\"}\n");
    for (words, part) in [
        (&["max_tiem", "1m"][..], "did you mean max_time?"),
        (&["max_time", "90"][..], "90s"),
        (&["fence_after", "1s"][..], "heartbeat_timeout"),
        (&["nothing"][..], "docket cluster set lists all"),
    ] {
        let words = [&["cluster", "set"][..], words].concat();
        let refused = world.docket(&words);
        assert_eq!(refused.code, Some(2), "{}", refused.describe());
        assert!(refused.err().contains(part), "{}", refused.describe());
    }
    world.ok(&["cluster", "set", "max_time", "none"]);
    let job = world.submit(&["-t", "2m", "--", "true"]);
    assert_eq!(world.wait_end(job)["state"], "DONE");
}
