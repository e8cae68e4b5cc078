//! Limits and what was used, as users see them: in `show`, in JSON, in `nodes` and `doctor`.

use serde_json::Value;
use testsuite::skip::skipped;
use testsuite::world;
use testsuite::world::World;

/// What enforces each limit on the world's node.
fn limits_of(world: &World) -> Value {
    let text = world.ok(&["nodes", "-o", "json"]);
    let nodes: Value = serde_json::from_str(&text).unwrap();
    nodes[0]["limits_by"].clone()
}

#[test]
fn a_node_says_what_enforces_each_limit_and_doctor_agrees() {
    let world = world!();
    let _node = world.up(2);
    let by = limits_of(&world);
    for what in ["mem", "cpus", "pids"] {
        let by = by[what].as_str().unwrap_or_else(|| panic!("{what} is not told: {by:#}"));
        assert!(["v2", "v1", "rlimits", "none"].contains(&by), "{what}: {by}");
    }
    let nodes = world.ok(&["nodes"]);
    let doctor = world.ok(&["doctor"]);
    assert_eq!(by["cpus"] == "none", nodes.contains("cpus not limited"), "{by:#}\n{nodes}");
    assert_eq!(by["cpus"] == "none", doctor.contains("--cpus is counted"), "{by:#}\n{doctor}");
    let rlimits = by["mem"] == "rlimits";
    assert_eq!(rlimits, nodes.contains("mem limited by process"), "{by:#}\n{nodes}");
    assert_eq!(rlimits, doctor.contains("for each process of a job"), "{by:#}\n{doctor}");
}

#[test]
fn ends_of_memory_are_told_apart_and_a_killed_child_is_flagged() {
    let world = world!();
    let _node = world.up(2);
    if limits_of(&world)["mem"] == "rlimits" {
        let why = "no memory controller that this user may write";
        return skipped("ends_of_memory_are_told_apart_and_a_killed_child_is_flagged", why);
    }
    let end = |script: &str| {
        let job = world.submit_sh(&["--mem", "48M"], script);
        world.docket(&["wait", &job.to_string()]);
        (job, world.show(job))
    };
    let (_, main) = end("exec tail /dev/zero");
    assert_eq!(
        (&main["state"], &main["reason"]["kind"]),
        (&"EXIT".into(), &"out-of-memory".into())
    );
    assert_eq!((&main["oom"], &main["signal"]), (&true.into(), &9.into()), "{main:#}");
    let (job, child) = end("tail /dev/zero; exit 0");
    assert_eq!((&child["state"], &child["oom"]), (&"DONE".into(), &true.into()), "{child:#}");
    assert_eq!(child["usage"]["oom_kills"], 1, "{child:#}");
    let shown = world.ok(&["show", &job.to_string()]);
    assert!(shown.contains("killed 1 process of it for memory"), "{shown}");
    let (_, killed) = end("kill -9 $$");
    assert_eq!((&killed["reason"]["kind"], &killed["oom"]), (&"signal".into(), &false.into()));
    let (_, code) = end("exit 137");
    assert_eq!((&code["reason"]["kind"], &code["oom"]), (&"exit-code".into(), &false.into()));
}

#[test]
fn what_a_job_used_is_shown_and_outlives_the_node() {
    let world = world!();
    let node = world.up(2);
    let memory = limits_of(&world)["mem"] != "rlimits";
    let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let script = format!("head -c 30000000 /dev/zero | tail >/dev/null; {work}");
    let job = world.submit_sh(&[], &script);
    assert_eq!(world.docket(&["wait", &job.to_string()]).code, Some(0));
    let task = world.show(job);
    let usage = &task["usage"];
    assert!(usage["user_time_s"].as_f64().is_some_and(|s| s > 0.0), "{task:#}");
    assert!(usage["max_rss_bytes"].as_u64().is_some_and(|b| b >= 30_000_000), "{task:#}");
    let peak = usage["peak_memory_bytes"].as_u64();
    assert_eq!(peak.is_some(), memory, "{task:#}");
    assert!(peak.is_none_or(|peak| peak >= 30_000_000), "{task:#}");
    let shown = world.ok(&["show", &job.to_string()]);
    assert!(shown.contains(if memory { "peak memory" } else { "largest process" }), "{shown}");
    drop(node);
    let _node = world.up(2);
    assert_eq!(world.show(job)["usage"], *usage, "from the log of the first");
}
