//! Stopping, starting again, a second instance, and submits that are repeated.

use prost::Message as _;
use std::path::Path;
use std::time::Duration;
use testsuite::patience::{SOON, wait_until};
use testsuite::world;
use testsuite::world::{Role, World, alive, finish};

/// What `docket up` has to stop in (design 7).
const STOP_MAX: Duration = Duration::from_secs(5);

#[test]
fn sigterm_ends_the_node_within_five_seconds_whoever_follows() {
    let world = world!();
    let mut node = world.up(4);
    let script = "echo $$ > pid; echo begun; while [ ! -e go ]; do sleep 0.05; done; exit 21";
    let job = world.submit_sh(&[], script);
    let id = job.to_string();
    world.wait_state(job, "RUN");
    let mut logs = world.start(&["logs", "-f", &id]);
    logs.wait_for_line("begun");
    let mut wait = world.start(&["wait", &id]);
    let mut second = world.start(&["logs", "-f", &id, "--stderr"]);
    [&mut wait, &mut second].into_iter().for_each(|follower| follower.must_live());
    let (status, took) = node.terminate(Duration::from_secs(20));
    assert!(status.success(), "{status} {}", node.printed());
    assert!(took < STOP_MAX, "it took {took:?}");
    let pid = world.first_line("pid").parse().expect("a pid");
    assert!(alive(pid), "the job goes on under the keeper");
    assert!(world.find(Role::Keeper).is_some(), "so does the keeper");

    // Starting again picks the job up.
    let _node = world.up(4);
    let task = world.wait_state(job, "RUN");
    assert_eq!(task["attempt"], 1, "{task:#}");
    world.touch("go");
    assert_eq!(world.docket(&["wait", &id]).code, Some(21));
}

#[test]
fn a_second_instance_on_the_directory_is_refused_by_name() {
    let world = world!();
    let mut node = world.up(2);
    let data = world.data();
    let args = ["up".as_ref(), "--data".as_ref(), data.as_os_str()];
    let mut second = world.start(&args);
    let status = second.ended_within(SOON);
    assert!(matches!(status.code(), Some(code) if code != 0), "{status}");
    let said = second.printed();
    assert!(said.contains(data.to_str().unwrap()), "it names the directory: {said}");
    assert!(said.contains(&node.pid().to_string()), "it names the first one: {said}");
    node.must_live();
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0), "the first one is untouched");
}

#[test]
fn up_in_the_background_finds_the_node_that_is_up_already() {
    let world = world!();
    let mut node = world.up(2);
    let data = world.data();
    let args = ["up".as_ref(), "--background".as_ref(), "--data".as_ref(), data.as_os_str()];
    let ran = world.docket(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    let wanted = format!("already running in {} (pid {}, since ", data.display(), node.pid());
    assert!(ran.text().contains(&wanted), "{}", ran.describe());
    node.must_live();
    // One that has the directory and does not answer is no success.
    node.freeze();
    let ran = world.docket(&args);
    node.thaw();
    assert_eq!(ran.code, Some(1), "{}", ran.describe());
    assert!(ran.err().contains("does not answer"), "{}", ran.describe());
    assert!(ran.err().contains(&node.pid().to_string()), "{}", ran.describe());
    assert!(ran.err().contains("up.log"), "{}", ran.describe());
}

#[test]
fn a_table_that_nobody_looks_at_is_not_cut() {
    let world = world!();
    let _node = world.up(2);
    let name = "a-name-that-is-much-longer-than-any-column-of-a-terminal-would-ever-be".repeat(2);
    let job = world.submit(&["--name", &name, "--", "true"]);
    world.wait_end(job);
    let piped = world.ok(&["list"]);
    assert!(piped.contains(&name) && !piped.contains('…'), "{piped}");
    // Who says how wide it may be gets that.
    let mut narrow = world.docket_command(&["list"]);
    narrow.env("COLUMNS", "60");
    let narrow = finish(narrow, &[]).text();
    assert!(narrow.contains('…') && !narrow.contains(&name), "{narrow}");
}

#[test]
fn the_same_port_can_be_bound_again_while_jobs_run() {
    let world = world!();
    let address = World::free_address();
    let mut node = world.up_with(2, &["--listen", &address]);
    let job = world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done; exit 31");
    world.wait_state(job, "RUN");
    node.kill9();
    let _node = world.up_with(2, &["--listen", &address]);
    world.touch("go");
    assert_eq!(world.docket(&["wait", &job.to_string()]).code, Some(31));
}

#[test]
fn down_ends_the_node_and_its_jobs_only_when_asked() {
    let world = world!();
    let mut node = world.up(2);
    let job = world.submit_sh(&[], "echo $$ > pid; while :; do sleep 0.1; done");
    let pid: i32 = world.first_line("pid").parse().expect("a pid");
    world.wait_state(job, "RUN");
    world.ok(&["down"]);
    assert!(node.ended_within(SOON).success(), "{}", node.printed());
    assert!(alive(pid), "down ends no job");
    let mut node = world.up(2);
    world.wait_state(job, "RUN");
    world.ok(&["down", "--kill"]);
    assert!(node.ended_within(SOON).success(), "{}", node.printed());
    wait_until("the killed job is gone", SOON, || !alive(pid));
    wait_until("an idle keeper ends by itself", Duration::from_secs(60), || {
        world.daemons().is_empty()
    });
}

#[test]
fn a_node_whose_directory_was_deleted_is_ended_by_its_address() {
    let world = world!();
    let address = World::free_address();
    let mut node = world.up_with(2, &["--listen", &address]);
    std::fs::remove_dir_all(world.data()).unwrap();
    let ran = world.docket(&["down"]);
    assert_eq!(ran.code, Some(69), "{}", ran.describe());
    assert!(ran.err().contains("docket down --server ADDRESS"), "{}", ran.describe());
    node.must_live();
    let ran = world.docket(&["down", "--server", &format!("http://{address}")]);
    assert_eq!(
        (ran.code, ran.text()),
        (Some(0), "docket is down\n".to_owned()),
        "{}",
        ran.describe()
    );
    node.ended_within(SOON);
}

#[test]
fn down_ends_no_controller_that_is_only_the_server_of_the_commands() {
    let mut split = testsuite::world::Split::start(world!(), testsuite::world::Pace::QUICK);
    let ran = split.world.docket(&["down"]);
    assert_eq!(ran.code, Some(2), "{}", ran.describe());
    let dir = split.world.dir().join(testsuite::world::Split::CONTROLLER);
    let says = format!("docket down --data {} ends it", dir.display());
    assert!(ran.err().contains(&says), "{}", ran.describe());
    split.controller.must_live();
}

#[test]
fn every_form_of_list_shows_the_oldest_first_and_a_limit_leaves_out_old_ones() {
    let mut world = world!();
    let address = World::free_address();
    world.set("DOCKET_SERVER", &format!("http://{address}"));
    let _controller = world.controller(&address);
    // More than are kept in memory at once; without a node they wait.
    let count = 5_200;
    let lines = "{\"command\": [\"true\"]}\n".repeat(count);
    let sent = world.docket_with_stdin(&["submit", "--from", "-"], lines.as_bytes());
    assert_eq!(sent.code, Some(0), "{}", sent.describe());
    let ids = |args: &[&str]| -> Vec<u64> {
        world.ok(args).lines().map(|line| line.parse().unwrap()).collect()
    };
    let all: Vec<u64> = (1..=count as u64).collect();
    assert!(ids(&["list", "-o", "id"]) == all, "each once, the oldest first");
    assert_eq!(ids(&["list", "-o", "id", "--limit", "3"]), all[count - 3..]);
    let newest = ids(&["list", "-o", "id", "--limit", "4500"]);
    assert!(newest == all[count - 4_500..], "{} from {:?}", newest.len(), newest.first());
    let json: serde_json::Value = serde_json::from_str(&world.ok(&["list", "--json"])).unwrap();
    let told = json.as_array().unwrap().iter().map(|task| task["job"].as_u64().unwrap());
    assert!(told.collect::<Vec<u64>>() == all, "JSON has the same order");
    let table = world.ok(&["list", "--limit", "2"]);
    let rows: Vec<&str> = table.lines().filter_map(|row| row.split(' ').next()).collect();
    assert_eq!(rows[1..3], ["5199", "5200"], "{table}");
}

#[test]
fn a_repeated_submit_with_the_same_key_is_the_same_job() {
    let world = world!();
    let mut node = world.up(2);
    let first = world.submit(&["--key", "nightly-1", "--", "true"]);
    assert_eq!(world.submit(&["--key", "nightly-1", "--", "true"]), first);
    let other = world.docket(&["submit", "--key", "nightly-1", "--", "false"]);
    assert!(matches!(other.code, Some(code) if code != 0), "{}", other.describe());
    assert!(other.err().contains(&first.to_string()), "it names the first: {}", other.err());
    node.kill9();
    let _node = world.up(2);
    assert_eq!(world.submit(&["--key", "nightly-1", "--", "true"]), first, "after a restart too");
    assert_eq!(world.list_ids(), [first]);
    assert_eq!(world.submit(&["--key", "nightly-2", "--", "true"]), first + 1);
}

#[test]
fn ids_go_on_after_a_restart() {
    let world = world!();
    let mut last = 0;
    for _ in 0..3 {
        let mut node = world.up(2);
        let job = world.submit(&["--", "true"]);
        assert_eq!(job, last + 1);
        last = job;
        world.wait_end(job);
        let (status, _) = node.terminate(SOON);
        assert!(status.success(), "{status}");
    }
    let _node = world.up(2);
    assert_eq!(world.list_ids(), [1, 2, 3]);
    assert_eq!(world.show(1)["state"], "DONE", "what ended before is remembered");
    assert_eq!(world.ok(&["logs", "1"]), "");
}

#[test]
fn ten_jobs_run_at_the_same_time_and_no_more_than_fit() {
    let world = world!();
    let _node = world.up(4);
    let script = "echo + >> level; while [ ! -e go ]; do sleep 0.05; done; exit 0";
    let jobs: Vec<u64> = (0..10).map(|_| world.submit_sh(&[], script)).collect();
    wait_until("four have begun", SOON, || world.lines("level").len() == 4);
    let states =
        |state: &str| jobs.iter().filter(|&&job| world.show(job)["state"] == *state).count();
    wait_until("four are shown as running", SOON, || states("RUN") == 4);
    assert_eq!(states("PEND"), 6, "four cpus, four jobs");
    assert_eq!(world.lines("level").len(), 4, "no fifth one began");
    world.touch("go");
    for job in jobs {
        assert_eq!(world.wait_end(job)["state"], "DONE");
    }
}

/// Puts an entry of a later release behind the last of a stopped controller's log.
fn write_of_a_later_release(data: &Path) {
    let identity = std::fs::read_to_string(data.join("controller/identity")).unwrap();
    let hex = identity.lines().find_map(|line| line.strip_prefix("cluster = ")).unwrap();
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    let owner = wal::Identity { cluster_id: std::array::from_fn(byte), owner_id: 1 };
    let disk = wal::Disk::open(&data.join("controller/wal")).unwrap();
    let (mut log, _) = wal::Log::open(disk, owner, wal::Options::default()).unwrap();
    let proposal =
        proto::v1::Proposal { level: proto::LEVEL + 1, ..proto::v1::Proposal::default() };
    let index = log.last_index() + 1;
    let term = log.term_at(index - 1).unwrap();
    let payload = [vec![1], proposal.encode_to_vec()].concat();
    log.append(&[wal::Record::Entry { index, term, payload }]).unwrap();
    log.sync().unwrap();
    log.seal().unwrap();
}

#[test]
fn a_node_that_cannot_read_its_log_says_why_and_exits_with_1() {
    let world = world!();
    world.up(1).terminate(Duration::from_secs(20));
    write_of_a_later_release(&world.data());
    let mut node = world.start(&["up", "--cpus", "1"]);
    let status = node.ended_within(SOON);
    let printed = node.printed();
    assert_eq!(status.code(), Some(1), "{printed}");
    let last = printed.lines().last().unwrap_or_default();
    assert!(last.starts_with("docket: ") && last.contains("install the version"), "{printed}");
    assert!(
        printed.contains("docket cannot go on: the log entry at"),
        "the log tells it: {printed}"
    );
}
