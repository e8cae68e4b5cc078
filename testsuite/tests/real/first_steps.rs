//! The first commands of a new user, and what docket says when there is nothing to talk to.

use testsuite::patience::{SOON, wait_until};
use testsuite::skip::{defaults_are_free, is_root};
use testsuite::world::{Role, User, World};
use testsuite::{heavy_world, world};

/// A port of its own: the embedded node that `run` starts must not take the default port from a person's node.
fn private(world: &mut World) {
    world.set("DOCKET_CONTROLLER__LISTEN", &World::free_address());
}

#[test]
fn hello_starts_a_node_and_prints_only_hello() {
    let mut world = world!();
    private(&mut world);
    let ran = world.docket(&["run", "--", "echo", "hello from docket"]);
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    assert_eq!(ran.text(), "hello from docket\n");
    let err = ran.err();
    assert_eq!(err.lines().count(), 1, "one line about the started node: {err}");
    assert!(err.starts_with("docket: started a node for you"), "{err}");
    let again = world.docket(&["run", "--", "echo", "again"]);
    assert_eq!((again.text().as_str(), again.err().as_str()), ("again\n", ""), "it is there now");
    world.ok(&["down"]);
    wait_until("the node has ended", SOON, || world.find(Role::Up).is_none());
    assert_eq!(world.docket(&["list"]).code, Some(69), "nothing answers any more");
}

#[test]
fn a_user_without_any_setting_gets_a_node_in_their_home() {
    // Alone: no other test of this kind may hold the default port meanwhile.
    let outer = heavy_world!();
    if !defaults_are_free("a_user_without_any_setting_gets_a_node_in_their_home") {
        return;
    }
    if is_root() {
        // Root's defaults are the machine's own directories: try it as a user instead.
        hello_at_home(outer.of(&User::nobody()));
    } else {
        hello_at_home(outer);
    }
}

fn hello_at_home(mut world: World) {
    world.unset("DOCKET_DATA");
    let ran = world.docket(&["run", "--", "sh", "-c", "echo hello; pwd"]);
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    assert_eq!(ran.text(), format!("hello\n{}\n", world.dir().join("files").display()));
    let home = world.dir().join("home/.local/share/docket");
    let node = std::fs::read_dir(&home).unwrap().next().expect("a node's directory").unwrap();
    assert!(node.path().join("docket.sock").exists(), "{}", node.path().display());
    assert!(world.dir().join("run/docket.sock").exists(), "the link for the session");
    world.ok(&["down"]);
    wait_until("the node has ended", SOON, || world.find(Role::Up).is_none());
}

#[test]
fn without_a_server_every_command_says_what_it_tried() {
    let world = world!();
    for args in [&["list"][..], &["show", "1"], &["submit", "--", "true"], &["nodes"]] {
        let ran = world.docket(args);
        assert_eq!(ran.code, Some(69), "{}", ran.describe());
        assert_eq!(ran.err().lines().count(), 1, "one line: {}", ran.err());
        assert!(ran.err().starts_with("docket: "), "{}", ran.err());
        assert!(ran.err().contains("docket up"), "it says how to start one: {}", ran.err());
    }
    assert!(world.processes().is_empty(), "only `run` starts a node");
}

#[test]
fn a_named_server_that_is_away_starts_no_node() {
    let mut world = world!();
    world.talk_to(&World::free_address());
    let ran = world.docket(&["run", "--", "true"]);
    assert_eq!(ran.code, Some(69), "{}", ran.describe());
    assert!(world.processes().is_empty(), "a node was started: {:?}", world.processes());
}

#[test]
fn usage_errors_are_2_and_say_what_is_allowed() {
    let world = world!();
    let _node = world.up(2);
    let before = world.list_ids();
    for args in [
        &["submit", "--mem", "4", "--", "true"][..],
        &["submit", "-t", "90", "--", "true"],
        &["submit", "-t", "1:30", "--", "true"],
        &["submit", "--nodlist", "x", "--", "true"],
        &["submit"],
        &["show", "abc"],
        &["no-such-command"],
    ] {
        let ran = world.docket(args);
        assert_eq!(ran.code, Some(2), "{}", ran.describe());
        assert!(!ran.err().is_empty(), "{}", ran.describe());
    }
    let ran = world.docket(&["submit", "--mem", "4", "--", "true"]);
    assert!(ran.err().contains("4G"), "it shows what a size looks like: {}", ran.err());
    assert_eq!(world.list_ids(), before, "nothing was submitted");
}

#[test]
fn submit_prints_the_id_and_nothing_else() {
    let world = world!();
    let _node = world.up(2);
    for expected in 1..=3 {
        let ran = world.docket(&["submit", "--", "true"]);
        assert_eq!(ran.text(), format!("{expected}\n"), "{}", ran.describe());
        assert_eq!(ran.err(), "");
    }
}

#[test]
fn the_submitters_environment_goes_with_the_job_but_not_dockets() {
    let mut world = world!();
    let _node = world.up(2);
    world.set("COLOUR", "blue and\ngreen");
    world.set("DOCKET_KEY", "secret");
    let out = world.ok(&["run", "--env", "SIZE=7", "--", "env", "-0"]);
    let vars: Vec<&str> = out.split('\0').collect();
    assert!(vars.contains(&"COLOUR=blue and\ngreen"), "{vars:?}");
    assert!(vars.contains(&"SIZE=7"), "{vars:?}");
    assert!(vars.contains(&"DOCKET_JOB_ID=1"), "{vars:?}");
    assert!(vars.contains(&"DOCKET_ATTEMPT=1"), "{vars:?}");
    assert!(vars.iter().any(|var| var.starts_with("DOCKET_TOKEN=")), "{vars:?}");
    let foreign =
        |var: &&&str| var.starts_with("DOCKET_KEY=") || var.starts_with("XDG_RUNTIME_DIR");
    assert_eq!(vars.iter().find(foreign), None, "{vars:?}");
}

#[test]
fn a_job_inherits_no_descriptor_and_no_signal_mask() {
    let world = world!();
    let _node = world.up(2);
    let out = world.ok(&["run", "--", "ls", "-l", "/proc/self/fd"]);
    let fds: Vec<&str> = out.lines().filter(|line| line.contains("->")).collect();
    // 0, 1, 2, and the directory that `ls` itself reads.
    assert_eq!(fds.len(), 4, "{out}");
    let status = world.ok(&["run", "--", "cat", "/proc/self/status"]);
    for mask in ["SigBlk:", "SigIgn:"] {
        let line = status.lines().find(|line| line.starts_with(mask)).expect("the line is there");
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
}

#[test]
fn a_script_is_stored_with_its_job() {
    let world = world!();
    let _node = world.up(2);
    let script = "#!/bin/sh\n#DOCKET --name scripted\necho \"$1-$2\"; exit 5\n";
    std::fs::write(world.file("s.sh"), script).unwrap();
    let job = world.submit(&["s.sh", "a b", "c"]);
    std::fs::remove_file(world.file("s.sh")).unwrap();
    assert_eq!(world.docket(&["wait", &job.to_string()]).code, Some(5));
    assert_eq!(world.ok(&["logs", &job.to_string()]), "a b-c\n");
    assert_eq!(world.show(job)["name"], "scripted");
}

#[test]
fn doctor_config_and_completions_answer_without_a_node() {
    let mut world = world!();
    world.set("DOCKET_CONTROLLER__HEARTBEAT_TIMEOUT", "3s");
    assert!(!world.ok(&["doctor"]).is_empty());
    let config = world.ok(&["config"]);
    let line = config.lines().find(|line| line.contains("heartbeat_timeout"));
    let line = line.unwrap_or_else(|| panic!("no heartbeat_timeout in\n{config}"));
    assert!(line.contains("3s") && line.to_lowercase().contains("env"), "{line}");
    assert!(world.ok(&["completions", "bash"]).contains("docket"));
    world.set("DOCKET_CONTROLLER__HEARTBEAT_TIMEOUTS", "3s");
    let ran = world.docket(&["config"]);
    assert_ne!(ran.code, Some(0), "an unknown key is an error");
    assert!(ran.err().contains("heartbeat_timeout"), "it names the nearest: {}", ran.err());
}
