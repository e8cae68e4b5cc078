//! Several dockets on one data directory: only one has it, the others are refused by a message that
//! says who that is and what to do, and leave what they found as it was.

use std::fs;
use std::path::Path;
use testsuite::patience::SOON;
use testsuite::world;
use testsuite::world::{Daemon, Ran, World};

/// A controller alone on that directory, serving.
fn controller_on(world: &World, data: &Path) -> Daemon {
    let mut daemon = world.start(&controller(data, &World::free_address()));
    daemon.wait_for_line("docket controller is up");
    daemon
}

/// Words of a controller on that directory.
fn controller(data: &Path, listen: &str) -> [std::ffi::OsString; 5] {
    ["controller".into(), "--data".into(), data.into(), "--listen".into(), listen.into()]
}

/// Runs one that must be refused: exit code 1, nothing on stdout, and these words on stderr.
fn is_refused<S: AsRef<std::ffi::OsStr>>(world: &World, args: &[S], says: &[&str]) -> Ran {
    let ran = world.docket(args);
    assert_eq!(ran.code, Some(1), "{}", ran.describe());
    assert_eq!(ran.text(), "", "{}", ran.describe());
    for word in says {
        assert!(ran.err().contains(word), "it does not say {word}: {}", ran.describe());
    }
    ran
}

fn serves(world: &World, node: &mut Daemon) {
    node.must_live();
    let ran = world.docket(&["run", "--", "true"]);
    assert_eq!(ran.code, Some(0), "the first one is untouched: {}", ran.describe());
}

#[test]
fn a_node_whose_lock_was_removed_keeps_its_socket_when_a_second_one_is_refused() {
    let world = world!();
    let mut node = world.up(2);
    let (data, pid) = (world.data(), node.pid().to_string());
    let socket = data.join("docket.sock");
    for more in [None, Some("--background")] {
        fs::remove_file(data.join("up.lock")).unwrap();
        let listen = World::free_address();
        let mut args: Vec<&std::ffi::OsStr> = vec!["up".as_ref(), "--data".as_ref(), data.as_ref()];
        args.extend(["--listen", &listen].map(std::ffi::OsStr::new));
        args.extend(more.map(std::ffi::OsStr::new));
        is_refused(&world, &args, &[data.to_str().unwrap(), "is in use", &pid]);
        assert!(socket.exists(), "{more:?} removed the socket of the living node");
        serves(&world, &mut node);
    }
    fs::remove_file(data.join("up.lock")).unwrap();
    let args = controller(&data, &World::free_address());
    is_refused(&world, &args, &[data.to_str().unwrap(), "is in use", &pid]);
    serves(&world, &mut node);
    let (status, _) = node.terminate(SOON);
    assert!(status.success(), "{status}");
    assert!(!socket.exists(), "its own socket goes with it");
}

#[test]
fn the_end_of_a_node_leaves_the_socket_of_another_that_took_its_place() {
    let world = world!();
    let mut node = world.up(2);
    let socket = world.data().join("docket.sock");
    fs::remove_file(&socket).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let (status, _) = node.terminate(SOON);
    assert!(status.success(), "{status}");
    assert!(socket.exists(), "that socket was not its own");
}

#[test]
fn a_node_on_the_directory_of_a_controller_is_refused_and_told_what_runs_there() {
    let world = world!();
    let data = world.data();
    let mut controller = controller_on(&world, &data);
    let pid = controller.pid().to_string();
    let says = [data.to_str().unwrap(), "is in use", "docket controller", &pid, "docket down"];
    for more in [&["--background"][..], &[][..]] {
        let mut args: Vec<&std::ffi::OsStr> = vec!["up".as_ref(), "--data".as_ref(), data.as_ref()];
        args.extend(more.iter().map(std::ffi::OsStr::new));
        let ran = is_refused(&world, &args, &says);
        assert!(!ran.err().contains("already running"), "{}", ran.describe());
        controller.must_live();
    }
    // What the message says helps.
    world.ok(&["down", "--data", data.to_str().unwrap()]);
    assert!(controller.ended_within(SOON).success(), "{}", controller.printed());
    let mut node = world.up(2);
    serves(&world, &mut node);
}

#[test]
fn a_controller_on_the_directory_of_a_node_is_refused_and_told_what_runs_there() {
    let world = world!();
    let mut node = world.up(2);
    let (data, pid) = (world.data(), node.pid().to_string());
    let says = [data.to_str().unwrap(), "is in use", "docket up", &pid, "docket down"];
    is_refused(&world, &controller(&data, &World::free_address()), &says);
    serves(&world, &mut node);
}

#[test]
fn a_controller_inside_the_directory_of_a_node_is_refused_and_told_whose_it_is() {
    let world = world!();
    let mut node = world.up(2);
    let (data, pid) = (world.data(), node.pid().to_string());
    let inside = data.join("controller");
    let says = [inside.to_str().unwrap(), "lies inside", "docket up", &pid, "give --data"];
    is_refused(&world, &controller(&inside, &World::free_address()), &says);
    assert!(!inside.join("controller").exists(), "nothing was begun in there");
    let mut args: Vec<&std::ffi::OsStr> = vec!["up".as_ref(), "--background".as_ref()];
    args.extend(["--data".as_ref(), inside.as_os_str()]);
    is_refused(&world, &args, &says);
    serves(&world, &mut node);
    // The other way round: one that began in there while nothing ran keeps the node out.
    world.ok(&["down"]);
    assert!(node.ended_within(SOON).success(), "{}", node.printed());
    let mut within = controller_on(&world, &inside);
    let pid = within.pid().to_string();
    let up = ["up".as_ref(), "--data".as_ref(), data.as_os_str()];
    is_refused(&world, &up, &[inside.to_str().unwrap(), "inside of it", "docket controller", &pid]);
    within.must_live();
}
