//! Several dockets on one data directory: only one has it, the others are refused by a message that
//! says who that is and what to do, and leave what they found as it was.

use std::fs;
use std::path::Path;
use testsuite::patience::{SOON, wait_by_command};
use testsuite::world;
use testsuite::world::{Daemon, Pace, Ran, Split, World, alive};

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

#[test]
fn a_node_without_any_lock_is_known_by_its_port_and_named_as_what_it_is() {
    let world = world!();
    let address = World::free_address();
    let mut node = world.up_with(2, &["--listen", &address]);
    let (data, pid) = (world.data(), node.pid().to_string());
    let other = world.dir().join("other");
    let other: [&std::ffi::OsStr; 5] =
        ["up".as_ref(), "--data".as_ref(), other.as_ref(), "--listen".as_ref(), address.as_ref()];
    let says =
        [&*address, "docket serves there already", &pid, data.to_str().unwrap(), "docket down"];
    is_refused(&world, &other, &says);
    serves(&world, &mut node);
}

#[test]
fn a_second_agent_is_refused_with_the_pid_of_the_first_and_so_is_one_inside_its_directory() {
    let world = world!();
    let mut node = world.up(2);
    let (data, pid) = (world.data(), node.pid().to_string());
    let agent = |data: &Path| -> [std::ffi::OsString; 5] {
        let nowhere = World::free_address();
        ["agent".into(), "--data".into(), data.into(), "--controllers".into(), nowhere.into()]
    };
    is_refused(&world, &agent(&data), &["another agent", &pid, data.to_str().unwrap()]);
    let inside = data.join("agent");
    is_refused(&world, &agent(&inside), &["lies inside", "docket up", &pid, "give --data"]);
    assert!(!inside.join("agent.state").exists(), "nothing was begun in there");
    serves(&world, &mut node);
}

#[test]
fn of_two_agents_on_a_directory_whose_lock_was_removed_one_is_told_of_the_other() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let lock = split.agent_data().join("agent.lock");
    let first = split.agent.pid();
    let text = fs::read_to_string(&lock).unwrap();
    assert_eq!(text, format!("{first}\n"));
    fs::remove_file(&lock).unwrap();
    let (data, controllers) = (split.agent_data(), split.address().to_owned());
    let args: [&std::ffi::OsStr; 7] = [
        "agent".as_ref(),
        "--data".as_ref(),
        data.as_ref(),
        "--controllers".as_ref(),
        controllers.as_ref(),
        "--name".as_ref(),
        Split::NODE.as_ref(),
    ];
    let mut second = split.world.start(&args);
    wait_by_command("one of the two ends", || !alive(second.pid()) || !alive(split.agent.pid()));
    let (ended, lives) = match !alive(second.pid()) {
        true => (&mut second, first),
        false => (&mut split.agent, second.pid()),
    };
    ended.ended_within(SOON);
    let said = ended.printed();
    assert!(
        said.contains(&format!("another agent (pid {lives}) uses the data directory")),
        "{said}"
    );
    assert!(!said.contains("remove agent.state"), "{said}");
}
