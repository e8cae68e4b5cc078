//! A disk without room (peer fault 9): no new work is taken and that is said, what is there already
//! ends as it does, every daemon can be started again meanwhile, and all goes on by itself after.

use proto::v1::EditRequest;
use serde_json::Value;
use std::time::Duration;
use testsuite::client;
use testsuite::patience::{SOON, wait_by_command, wait_until};
use testsuite::world;
use testsuite::world::{Disks, Pace, Role, Split, World};

/// Size of each small disk: a young log and its reserve leave most of it free.
const MIB: u32 = 16;

/// A change that has taken so long waits for room.
const WAITS: Duration = Duration::from_secs(4);

/// A job that a death of its agent does not end.
const SURVIVES: [&str; 2] = ["--on-disconnect", "unknown"];

/// A job that ends with `code` once the test says so.
fn waiting_job(world: &World, code: i32) -> u64 {
    let script = format!("while [ ! -e go.{code} ]; do sleep 0.05; done; exit {code}");
    let job = world.submit_sh(&SURVIVES, &script);
    world.wait_state(job, "RUN");
    job
}

/// Lets the job end and sees its real code recorded.
fn ends_with(world: &World, job: u64, code: i32) {
    world.touch(&format!("go.{code}"));
    let task = world.wait_end(job);
    assert_eq!(task["exit_code"], code, "{task:#}");
    assert_eq!((&task["state"], &task["attempt"]), (&"EXIT".into(), &1.into()), "{task:#}");
}

/// Cancels a running job and sees it end so.
fn is_cancelled(world: &World, job: u64) {
    world.ok(&["cancel", &job.to_string()]);
    let task = world.wait_end(job);
    assert_eq!(task["reason"]["kind"], "cancelled", "{task:#}");
}

/// A submit is refused with 75, by name and with the directory that has no room.
fn submits_are_refused(world: &World) {
    let mut last = String::new();
    wait_until("submits are refused", SOON, || {
        let ran = world.docket(&["submit", "--", "true"]);
        last = ran.describe();
        ran.code == Some(75)
    });
    let dir = world.dir().join(Split::CONTROLLER).display().to_string();
    assert!(last.contains("disk is full") && last.contains(&dir), "{last}");
    let status = world.ok(&["cluster", "status"]);
    assert!(status.contains("full"), "{status}");
}

/// Submits are taken again, by nothing but room, and such a job runs.
fn submits_are_taken_again(world: &World) {
    wait_by_command("submits are taken again", || {
        world.docket(&["submit", "--", "true"]).code == Some(0)
    });
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0));
}

fn node_notes(world: &World) -> String {
    let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    nodes[0]["notes"].to_string()
}

fn node_is_full(world: &World) {
    wait_by_command("the leader knows that the node's disk is full", || {
        node_notes(world).contains("disk is full")
    });
}

/// Controller and agent, each on a small disk.
fn start(test: &str) -> Option<(Split, Disks)> {
    Split::on_small_disks(test, world!(), Pace::QUICK, MIB)
}

#[test]
fn a_controller_without_room_refuses_submits_and_serves_what_is_there() {
    const TEST: &str = "a_controller_without_room_refuses_submits_and_serves_what_is_there";
    let Some((mut split, disks)) = start(TEST) else { return };
    let jobs: Vec<u64> = (1..=6).map(|code| waiting_job(&split.world, code)).collect();
    // For want of one cpu it waits until the first of them has ended.
    let cpus = (Split::CPUS - 5).to_string();
    let queued = split.world.submit(&["-c", &cpus, "--", "true"]);
    disks.fill(Split::CONTROLLER);
    submits_are_refused(&split.world);
    ends_with(&split.world, jobs[0], 1);
    assert_eq!(split.world.wait_end(queued)["state"], "DONE", "what was taken is started");
    is_cancelled(&split.world, jobs[1]);
    // A death, and then an orderly stop, on the full disk.
    split.controller.kill9();
    disks.fill(Split::CONTROLLER);
    split.controller_again();
    split.node_is_up();
    submits_are_refused(&split.world);
    ends_with(&split.world, jobs[2], 3);
    is_cancelled(&split.world, jobs[3]);
    split.controller.terminate(Duration::from_secs(20));
    disks.fill(Split::CONTROLLER);
    split.controller_again();
    split.node_is_up();
    submits_are_refused(&split.world);
    ends_with(&split.world, jobs[4], 5);
    disks.free(Split::CONTROLLER);
    submits_are_taken_again(&split.world);
    ends_with(&split.world, jobs[5], 6);
    for (job, code) in [(jobs[0], 1), (jobs[2], 3), (jobs[4], 5)] {
        assert_eq!(split.world.show(job)["exit_code"], code, "acknowledged ends stay");
    }
}

#[test]
fn a_node_without_room_gets_no_new_job_and_tells_the_ends_of_the_old_ones() {
    const TEST: &str = "a_node_without_room_gets_no_new_job_and_tells_the_ends_of_the_old_ones";
    let Some((mut split, disks)) = start(TEST) else { return };
    let jobs: Vec<u64> = (1..=6).map(|code| waiting_job(&split.world, code)).collect();
    disks.fill(Split::NODE);
    node_is_full(&split.world);
    let waits = split.world.submit(&["--", "true"]);
    no_room_is_said(&split.world, waits);
    ends_with(&split.world, jobs[0], 1);
    is_cancelled(&split.world, jobs[1]);
    // The keeper dies: what its guard sees end meanwhile is true as well.
    split.world.kill_role(Role::Keeper);
    disks.fill(Split::NODE);
    ends_with(&split.world, jobs[2], 3);
    // The agent dies, and then is stopped in order.
    split.agent.kill9();
    disks.fill(Split::NODE);
    split.agent_again();
    ends_with(&split.world, jobs[3], 4);
    split.agent.terminate(Duration::from_secs(20));
    disks.fill(Split::NODE);
    split.agent_again();
    is_cancelled(&split.world, jobs[4]);
    // All of the node at once, as after a power cut.
    split.power_off_node();
    disks.fill(Split::NODE);
    split.agent_again();
    assert_eq!(split.world.wait_end(jobs[5])["reason"]["kind"], "unknown-status");
    node_is_full(&split.world);
    no_room_is_said(&split.world, waits);
    disks.free(Split::NODE);
    let task = split.world.wait_end(waits);
    assert_eq!((&task["state"], &task["attempt"]), (&"DONE".into(), &1.into()), "{task:#}");
}

/// A job that no node has room for: what a change of a queued one is tried on.
fn queued_job(world: &World) -> u64 {
    let job = world.submit(&["-c", &(Split::CPUS + 1).to_string(), "--", "true"]);
    world.wait_state(job, "PEND");
    job
}

/// `docket ARGS…` is refused with 75, by name and with the directory that has no room.
fn is_refused(world: &World, row: &str, args: &[&str]) {
    let ran = world.docket_with_stdin(args, b"{\"command\": [\"true\"]}\n");
    assert_eq!(ran.code, Some(75), "{row}: {}", ran.describe());
    let dir = world.dir().join(Split::CONTROLLER).display().to_string();
    assert!(ran.err().contains("disk is full") && ran.err().contains(&dir), "{row}: {}", ran.err());
}

/// The state of a job that is there, as `show` tells it.
fn stands(world: &World, row: &str, job: u64, state: &str) {
    let task = world.wait_job(job, &format!("{row}: is {state}"), |task| task["state"] == state);
    assert_eq!(task["attempt"], 1, "{row}: {task:#}");
}

#[test]
fn each_change_on_a_controller_without_room_is_refused_by_name_or_made_from_the_reserve() {
    const TEST: &str =
        "each_change_on_a_controller_without_room_is_refused_by_name_or_made_from_the_reserve";
    let Some((split, disks)) = start(TEST) else { return };
    let world = &split.world;
    let (runs, ends) = (waiting_job(world, 1), waiting_job(world, 2));
    let (waits, goes) = (queued_job(world), queued_job(world));
    let id = |job: u64| job.to_string();
    disks.fill(Split::CONTROLLER);
    submits_are_refused(world);
    // What asks for new work.
    for (row, args) in [
        ("submit", &["submit", "--", "true"][..]),
        ("submit with a key", &["submit", "--key", "k", "--", "true"]),
        ("submit --from", &["submit", "--from", "-"]),
        ("run", &["run", "--", "true"]),
    ] {
        is_refused(world, row, args);
    }
    // What people change of the work that is there.
    for (row, args, job, state) in [
        ("hold", &["hold", &id(waits)][..], waits, "PEND"),
        ("release", &["release", &id(waits)], waits, "PEND"),
        ("set --priority", &["set", &id(waits), "--priority", "7"], waits, "PEND"),
        ("suspend", &["suspend", &id(runs)], runs, "SUSP"),
        ("resume", &["resume", &id(runs)], runs, "RUN"),
        ("cancel of a queued job", &["cancel", &id(goes)], goes, "EXIT"),
        ("cancel of a running job", &["cancel", &id(runs)], runs, "EXIT"),
    ] {
        world.ok(args);
        stands(world, row, job, state);
    }
    assert_eq!(world.show(waits)["priority"], 7);
    // What agents tell: an end, a new session, a first one, and a start on it.
    ends_with(world, ends, 2);
    let _newcomer = world.agent(split.address(), "n2", Split::CPUS + 1);
    assert_eq!(world.wait_end(waits)["state"], "DONE", "a start: what was taken finds its node");
    submits_are_refused(world);
    disks.free(Split::CONTROLLER);
    submits_are_taken_again(world);
}

/// Changes what is there until not even the reserve is left: some KiB each time.
fn use_up_the_reserve(split: &Split, jobs: &[String]) {
    let jobs: Vec<u64> = jobs.iter().map(|job| job.parse().unwrap()).collect();
    let ended = client::runtime().block_on(async {
        let mut client = client::connect(split.address()).await;
        for _ in 0..2000 {
            let request_id = uuid::Uuid::now_v7().to_string();
            let request = EditRequest { request_id, jobs: jobs.clone(), tasks: Vec::new() };
            // The one that finds no room waits for it, for half a minute.
            match tokio::time::timeout(WAITS, client.hold(request)).await {
                Ok(answer) => drop(answer.expect("nothing is refused before that")),
                Err(_) => return true,
            }
        }
        false
    });
    assert!(ended, "the reserve has an end");
}

#[test]
fn without_even_the_reserve_every_change_is_refused_by_name_and_a_start_waits_for_room() {
    const TEST: &str =
        "without_even_the_reserve_every_change_is_refused_by_name_and_a_start_waits_for_room";
    // So many that one change of all is some KiB, and so few that the log still is its first segment.
    const JOBS: usize = 2000;
    let Some((mut split, disks)) = start(TEST) else { return };
    let ends = waiting_job(&split.world, 3);
    let job = ends.to_string();
    let lines =
        format!("{{\"command\": [\"true\"], \"cpus\": {}}}\n", Split::CPUS + 1).repeat(JOBS);
    let ran = split.world.docket_with_stdin(&["submit", "--from", "-"], lines.as_bytes());
    let queued: Vec<String> = ran.text().lines().map(str::to_owned).collect();
    assert_eq!(queued.len(), JOBS, "{}", ran.describe());
    disks.fill(Split::CONTROLLER);
    submits_are_refused(&split.world);
    use_up_the_reserve(&split, &queued);
    let said = split.controller.printed().matches("cannot allocate the log's reserve").count();
    assert_eq!(said, 1, "once, however many changes are made: {}", split.controller.printed());
    let first = queued[0].as_str();
    for (row, args) in [
        ("submit", &["submit", "--", "true"][..]),
        ("run", &["run", "--", "true"]),
        ("hold", &["hold", first]),
        ("release", &["release", first]),
        ("set --priority", &["set", first, "--priority", "7"]),
        ("suspend", &["suspend", &job]),
        ("resume", &["resume", &job]),
        ("cancel of a queued job", &["cancel", first]),
        ("cancel of a running job", &["cancel", &job]),
    ] {
        is_refused(&split.world, row, args);
    }
    assert_eq!(split.world.show(ends)["state"], "RUN", "reads are answered");
    split.world.touch("go.3");
    // A start that has no room for its first entry waits for it, and says so.
    split.controller.kill9();
    disks.fill(Split::CONTROLLER);
    split.controller = split.controller_unseen();
    split.controller.wait_for_line("the log waits for space");
    split.controller.must_live();
    disks.free(Split::CONTROLLER);
    split.controller.wait_for_line("docket controller is up");
    ends_with(&split.world, ends, 3);
    submits_are_taken_again(&split.world);
}

/// `explain`, `list` and `show` agree on why the job waits: nothing was tried in vain.
fn no_room_is_said(world: &World, job: u64) {
    let task = world.show(job);
    assert_eq!((&task["state"], &task["attempt"]), (&"PEND".into(), &1.into()), "{task:#}");
    for text in [
        world.ok(&["explain", &job.to_string()]),
        world.ok(&["list"]),
        world.show(job)["message"].to_string(),
    ] {
        assert!(text.contains("its disk is full"), "{text}");
        assert!(!text.contains("waits its turn"), "{text}");
    }
}
