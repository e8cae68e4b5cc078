//! Two users of one machine, each with a node: neither can reach into the other's (P10).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use testsuite::heavy_world;
use testsuite::skip::{defaults_are_free, is_root, skipped};
use testsuite::world::{User, World};

/// Two unprivileged users that every machine has.
fn two_users(test: &str) -> Option<(User, User)> {
    if !is_root() {
        skipped(test, "only root can become two users");
        return None;
    }
    let other = User::named("daemon").or_else(|| User::named("bin"));
    if other.is_none() {
        skipped(test, "this machine has no second system user");
    }
    Some((User::nobody(), other?))
}

/// Everything that one could try on another's node; each must fail and change nothing.
fn assert_shut_out(intruder: &World, owner: &World, job: u64, way: &str) {
    let before = owner.show(job);
    let id = job.to_string();
    for args in [
        &["submit", "--", "touch", "/tmp/docket-intruder"][..],
        &["run", "--", "id"],
        &["list", "--all-users"],
        &["show", &id],
        &["logs", &id],
        &["wait", &id],
        &["events", &id],
        &["explain", &id],
        &["cancel", &id],
        &["nodes"],
        &["down"],
    ] {
        let ran = intruder.docket(args);
        // `run` and `down` may fail otherwise: they look at the directory, too.
        let ends = matches!(ran.code, Some(code) if code != 0);
        let refused = matches!(ran.code, Some(69 | 77)) || matches!(args[0], "run" | "down");
        assert!(ends && refused, "{way}: {}", ran.describe());
        assert_eq!(ran.text(), "", "{way}: it must see nothing");
        assert!(!ran.err().contains("secret"), "{way}: {}", ran.err());
    }
    assert_eq!(owner.show(job), before, "{way}: the owner's job is untouched");
    assert_eq!(owner.list_ids(), [job], "{way}: no job came in");
}

fn open(path: &Path) {
    let mode = if path.is_dir() { 0o777 } else { 0o666 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn neither_user_reaches_the_others_node_by_socket_or_tcp() {
    let Some((mia, tom)) = two_users("neither_user_reaches_the_others_node_by_socket_or_tcp")
    else {
        return;
    };
    let outer = heavy_world!();
    let mine = outer.of(&mia);
    let mut theirs = outer.of(&tom);
    let address = World::free_address();
    let _my_node = mine.up_with(2, &["--listen", &address]);
    let job = mine.submit_sh(&[], "echo secret; while :; do sleep 0.2; done");
    mine.wait_state(job, "RUN");

    // By TCP: the peer's uid is looked up, whatever the client says about itself.
    theirs.set("USER", "root");
    theirs.talk_to(&address);
    assert_shut_out(&theirs, &mine, job, "tcp");
    theirs.unset("DOCKET_SERVER");

    // By socket: shut by its mode, and where that was loosened, by the peer's credentials.
    let data = mine.data();
    theirs.set("DOCKET_DATA", data.to_str().unwrap());
    assert_shut_out(&theirs, &mine, job, "socket");
    [mine.dir(), &data, &data.join("docket.sock")].into_iter().for_each(open);
    assert_shut_out(&theirs, &mine, job, "opened socket");

    // Each has a node of their own beside it.
    theirs.set("DOCKET_DATA", theirs.dir().join("data").to_str().unwrap());
    let _their_node = theirs.up(2);
    let out = theirs.ok(&["run", "--", "id", "-un"]);
    assert_eq!(out.trim_end(), tom.name, "their node runs their jobs as them");
    assert_eq!(mine.list_ids(), [job]);
}

#[test]
fn two_users_without_any_setting_each_get_a_node_of_their_own() {
    let test = "two_users_without_any_setting_each_get_a_node_of_their_own";
    let outer = heavy_world!();
    let Some((mia, tom)) = two_users(test).filter(|_| defaults_are_free(test)) else { return };
    let worlds = [(&mia, outer.of(&mia)), (&tom, outer.of(&tom))].map(|(user, mut world)| {
        world.unset("DOCKET_DATA");
        // The first node takes the default port; for the second a refusal there counts as no server.
        let ran = world.docket(&["run", "--", "id", "-un"]);
        assert_eq!(ran.code, Some(0), "{}", ran.describe());
        assert_eq!(ran.text().trim_end(), user.name, "each node runs its own user's jobs");
        world
    });
    for (own, other) in [(&worlds[0], &worlds[1]), (&worlds[1], &worlds[0])] {
        let before = other.list_ids();
        let job = own.submit(&["--", "true"]);
        own.wait_end(job);
        assert_eq!(other.list_ids(), before, "a job came to the other's node");
    }
    let args = ["--server", "http://127.0.0.1:7460", "submit", "--", "true"];
    let refused = worlds.iter().filter(|world| world.docket(&args).code == Some(77)).count();
    assert_eq!(refused, 1, "the default port serves exactly one of the two");
}

#[test]
fn everything_in_a_data_directory_is_its_owners_alone() {
    let world = heavy_world!();
    let _node = world.up(2);
    assert_eq!(world.docket(&["run", "--", "echo", "hidden"]).code, Some(0));
    let mut rooms = vec![world.data()];
    let mut seen = 0;
    while let Some(room) = rooms.pop() {
        let mode = room.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{} has mode {mode:o}", room.display());
        for entry in std::fs::read_dir(&room).unwrap().map(Result::unwrap) {
            let meta = entry.path().symlink_metadata().unwrap();
            let mode = meta.permissions().mode() & 0o077;
            if meta.is_dir() {
                rooms.push(entry.path());
            } else if meta.is_file() {
                assert_eq!(mode, 0, "{} is open to others: {mode:o}", entry.path().display());
                seen += 1;
            }
        }
    }
    assert!(seen > 3, "the log, the journal and the output were looked at: {seen}");
}

#[test]
fn a_node_of_root_runs_a_users_job_as_that_user() {
    let test = "a_node_of_root_runs_a_users_job_as_that_user";
    let Some((mia, tom)) = two_users(test) else { return };
    let root = heavy_world!();
    let address = World::free_address();
    let _node = root.up_with(2, &["--listen", &address]);
    let (mut mine, mut theirs) = (root.of(&mia), root.of(&tom));
    mine.talk_to(&address);
    theirs.talk_to(&address);
    let out = mine.ok(&["run", "--", "sh", "-c", "id -u; id -G"]);
    assert_eq!(out.lines().next(), Some(mia.uid.to_string().as_str()), "{out}");
    assert!(!out.lines().nth(1).expect("groups").split(' ').any(|g| g == "0"), "{out}");
    // Each sees all jobs and changes only their own; root changes all.
    let job = mine.submit_sh(&[], "while :; do sleep 0.2; done");
    mine.wait_state(job, "RUN");
    let ran = theirs.docket(&["cancel", &job.to_string()]);
    assert_eq!(ran.code, Some(77), "{}", ran.describe());
    assert_eq!(theirs.show(job)["state"], "RUN", "seen, and untouched");
    root.ok(&["cancel", &job.to_string()]);
    let task = root.wait_end(job);
    assert_eq!(task["cancelled_by"], "root", "{task:#}");
}

#[test]
fn on_a_node_of_root_only_its_user_reads_what_a_job_writes() {
    let test = "on_a_node_of_root_only_its_user_reads_what_a_job_writes";
    let Some((mia, tom)) = two_users(test) else { return };
    let root = heavy_world!();
    let address = World::free_address();
    let _node = root.up_with(2, &["--listen", &address]);
    let (mut mine, mut theirs) = (root.of(&mia), root.of(&tom));
    mine.talk_to(&address);
    theirs.talk_to(&address);
    let job = mine.submit_sh(&[], "w=hidden; echo $w-out; echo $w-err >&2; exit 3");
    mine.wait_end(job);
    let id = job.to_string();
    for args in [
        &["logs", &id][..],
        &["logs", "--stderr", &id],
        &["logs", "-f", &id],
        &["show", &id],
        &["show", "--json", &id],
        &["list", "--all-users", "--json"],
        &["list", "--all-users", "--all"],
        &["explain", &id],
        &["events", &id],
        &["wait", &id],
    ] {
        let ran = theirs.docket(args);
        if args[0] == "logs" {
            assert_eq!(ran.code, Some(77), "{}", ran.describe());
            assert!(ran.err().contains(&mia.name), "it says whom to ask: {}", ran.err());
        }
        for word in ["hidden-out", "hidden-err"] {
            let told = ran.text().contains(word) || ran.err().contains(word);
            assert!(!told, "{}", ran.describe());
        }
    }
    assert_eq!(theirs.show(job)["state"], "EXIT", "the job itself is everybody's to see");
    for reader in [&mine, &root] {
        assert_eq!(reader.ok(&["logs", &id]), "hidden-out\n");
        assert_eq!(reader.ok(&["logs", "--stderr", &id]), "hidden-err\n");
        assert!(reader.ok(&["explain", &id]).contains("| hidden-err"));
    }
}
