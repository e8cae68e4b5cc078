//! What happens to the agent's directory and to its machine: deleted, copied, rebooted.

use super::{assert_once, let_go, pid_of, running_job};
use std::path::Path;
use std::process::Command;
use testsuite::patience::{SOON, wait_until};
use testsuite::skip::{is_root, program, skipped};
use testsuite::world;
use testsuite::world::{End, Pace, Role, Split, World, alive};

/// Options of a job that survives its agent.
const SURVIVES: [&str; 2] = ["--on-disconnect", "unknown"];

/// Files and directories, but no sockets, as `cp` and image builders copy.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (kind, to) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_job_whose_nodes_directory_was_deleted_under_it_is_lost_at_the_time_limit() {
    let mut split = Split::start(world!(), Pace::FORGETFUL);
    let job = running_job(&split.world, &SURVIVES, "a", 5);
    split.agent.kill9();
    std::fs::remove_dir_all(split.agent_data()).unwrap();
    // A node without its directory is a new one: nobody can speak for the old one's job.
    split.agent_unseen_again();
    split.world.must_end(job, End::without_code("lost", "UNKWN -> EXIT lost"));
    assert_eq!(split.world.docket(&["run", "--", "true"]).code, Some(0), "the new node works");
    assert!(split.world.docket(&["nodes"]).text().contains("up"));
    assert_eq!(split.world.docket(&["run", "--", "true"]).code, Some(0), "and goes on to work");
    // Nobody will hear of that job again, so its old keeper ends it, and itself.
    split.world.must_be_gone(job);
    wait_until("the orphaned keeper ends", SOON, || keepers(&split.world) == 1);
    assert_once(&split.world, "a");
}

#[test]
fn a_job_whose_journal_was_removed_is_vanished_and_nothing_of_it_lives() {
    for with_id in [true, false] {
        let mut split = Split::start(world!(), Pace::QUICK);
        let tree = "setsid sleep 999 & setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &";
        let job = split.world.submit_sh(&SURVIVES, &format!("{tree} sleep 999"));
        split.world.wait_state(job, "RUN");
        std::fs::remove_dir_all(split.agent_data().join("journal")).unwrap();
        if !with_id {
            std::fs::remove_file(split.agent_data().join("journal.id")).unwrap();
        }
        split.world.kill_role(Role::Keeper);
        split.world.must_end(job, End::without_code("vanished", "RUN -> EXIT vanished"));
        split.world.must_be_gone(job);
        split.agent.must_live();
        assert_eq!(split.world.docket(&["run", "--", "true"]).code, Some(0), "the node works on");
    }
}

#[test]
fn an_older_copy_of_a_journal_is_refused_and_what_the_refusal_says_helps() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let data = split.agent_data();
    assert_eq!(split.world.docket(&["run", "--", "true"]).code, Some(0));
    let older = split.world.dir().join("older");
    copy(&data.join("journal"), &older);
    for _ in 0..3 {
        assert_eq!(split.world.docket(&["run", "--", "true"]).code, Some(0));
    }
    let job = running_job(&split.world, &SURVIVES, "a", 5);
    split.power_off_node();
    std::fs::remove_dir_all(data.join("journal")).unwrap();
    copy(&older, &data.join("journal"));
    split.agent_unseen_again();
    let status = split.agent.ended_within(SOON);
    assert!(!status.success(), "{status}");
    let said = split.agent.printed();
    assert!(said.contains("the journal was rolled back"), "{said}");
    assert!(said.contains("remove journal/") && said.contains("`docket keeper`"), "{said}");
    // To the letter.
    std::fs::remove_dir_all(data.join("journal")).unwrap();
    split.world.kill_role(Role::Keeper);
    split.agent_again();
    split.world.must_end(job, End::without_code("vanished", "UNKWN -> EXIT vanished"));
    assert_eq!(split.world.docket(&["run", "--", "true"]).code, Some(0), "the node works on");
}

/// Keepers that live.
fn keepers(world: &World) -> usize {
    let all = world.processes();
    all.iter().filter(|p| p.role(world.exe()) == Some(Role::Keeper)).count()
}

#[test]
fn a_copy_of_an_agents_directory_is_refused_by_name_and_the_first_is_untouched() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &[], "a", 6);
    let incarnation = split.incarnation();
    copy(&split.agent_data(), &split.world.dir().join("n2"));
    let mut clone = split.world.agent_unseen(split.address(), "n2", 2);
    let status = clone.ended_within(SOON);
    assert!(matches!(status.code(), Some(code) if code != 0), "{status}");
    let said = clone.printed();
    assert!(said.contains("this data directory is a copy"), "it says what to do: {said}");
    assert!(said.contains("remove agent.state"), "it says what to do: {said}");
    split.agent.must_live();
    assert_eq!(split.incarnation(), incarnation, "the first one's session went on");
    assert_eq!(split.world.show(job)["state"], "RUN");
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(6, "RUN -> EXIT exit-code 6"));
    assert!(!split.world.tale(job).tells("UNKWN"), "nobody doubted the first one");
    assert_once(&split.world, "a");
}

#[test]
fn a_copy_that_was_made_before_a_job_began_leaves_that_job_alone() {
    let split = Split::start(world!(), Pace::QUICK);
    let earlier = running_job(&split.world, &[], "a", 0);
    let_go(&split.world, "a");
    split.world.wait_end(earlier);
    // The copy's journal does not know the next job, whose tree lives under the same journal's id.
    copy(&split.agent_data(), &split.world.dir().join("n2"));
    let job = running_job(&split.world, &[], "b", 6);
    let mut clone = split.world.agent_unseen(split.address(), "n2", 2);
    assert!(!clone.ended_within(SOON).success());
    assert_eq!(split.world.show(job)["state"], "RUN");
    let_go(&split.world, "b");
    split.world.must_end(job, End::code(6, "RUN -> EXIT exit-code 6"));
    assert_once(&split.world, "b");
}

/// A job with a child in a session of its own: its number, and the pids of both.
fn job_with_child(world: &World, options: &[&str], name: &str, code: i64) -> (u64, [i32; 2]) {
    let script = format!(
        "setsid sh -c 'echo $$ > child.{name}; exec sleep 999' &\n\
         echo \"$$\" >> started.{name}; while [ ! -e go.{name} ]; do sleep 0.05; done; exit {code}"
    );
    let job = world.submit_sh(options, &script);
    world.wait_state(job, "RUN");
    let child = world.first_line(&format!("child.{name}")).parse().unwrap();
    (job, [pid_of(world, name), child])
}

#[test]
fn a_copy_without_agent_state_is_a_node_of_its_own_and_ends_nothing_of_the_first() {
    let split = Split::start(world!(), Pace::QUICK);
    let (job, pids) = job_with_child(&split.world, &[], "a", 6);
    copy(&split.agent_data(), &split.world.dir().join("n2"));
    // As the refusal advises.
    std::fs::remove_file(split.world.dir().join("n2/agent.state")).unwrap();
    let mut clone = split.world.agent(split.address(), "n2", 2);
    split.world.ok(&["run", "--", "true"]);
    clone.must_live();
    assert!(pids.iter().all(|pid| alive(*pid)), "{}", split.world.show(job));
    assert_eq!(split.world.show(job)["state"], "RUN");
    clone.terminate(SOON);
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(6, "RUN -> EXIT exit-code 6"));
    split.world.must_be_gone(job);
    assert!(!split.world.tale(job).tells("UNKWN"), "nobody doubted the first one");
    assert_once(&split.world, "a");
}

#[test]
fn a_refused_copy_watches_no_time_limit_of_the_first() {
    let mut world = world!();
    world.set("DOCKET_KEEPER_IDLE_MS", "300");
    let split = Split::start(world, Pace::QUICK);
    let (job, pids) = job_with_child(&split.world, &["--time", "30s"], "a", 6);
    split.world.ok(&["suspend", &job.to_string()]);
    split.world.wait_state(job, "SUSP");
    copy(&split.agent_data(), &split.world.dir().join("n2"));
    let mut clone = split.world.agent_unseen(split.address(), "n2", 2);
    assert!(!clone.ended_within(SOON).success());
    // It has nothing to stay for.
    wait_until("the keeper of the copy ends", SOON, || keepers(&split.world) == 1);
    assert!(pids.iter().all(|pid| alive(*pid)));
    assert_eq!(split.world.show(job)["state"], "SUSP");
    split.world.ok(&["resume", &job.to_string()]);
    let_go(&split.world, "a");
    split.world.must_end(job, End::code(6, "RUN -> EXIT exit-code 6"));
    assert_once(&split.world, "a");
}

#[test]
fn a_job_of_which_nothing_is_left_is_vanished_and_not_run_again() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = running_job(&split.world, &SURVIVES, "a", 5);
    // Job, keeper and guard are killed by hand, their files are removed by hand.
    split.power_off_node();
    for entry in std::fs::read_dir(split.agent_data()).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        match name.as_str() {
            "agent.state" => {}
            _ if entry.path().is_dir() => std::fs::remove_dir_all(entry.path()).unwrap(),
            _ => std::fs::remove_file(entry.path()).unwrap(),
        }
    }
    let ran = split.world.docket(&["cancel", &job.to_string()]);
    assert_eq!(ran.code, Some(0), "an intent, at once: {}", ran.describe());
    split.agent_again();
    split.world.must_end(job, End::without_code("vanished", "UNKWN -> EXIT vanished"));
    assert_once(&split.world, "a");
}

/// Starts daemons with `file` for the kernel's boot id.
fn with_boot_id(file: &Path) -> Vec<String> {
    let mount =
        format!("mount --bind {} /proc/sys/kernel/random/boot_id && exec \"$@\"", file.display());
    ["unshare", "-m", "--propagation", "private", "sh", "-c", &mount, "sh"]
        .map(str::to_owned)
        .to_vec()
}

fn boot(world: &mut World, boot_id: &str) -> bool {
    let file = world.file("boot_id");
    std::fs::write(&file, format!("{boot_id}\n")).unwrap();
    let wrapper = with_boot_id(&file);
    let words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    world.wrap_daemons(&words);
    let cat = ["cat", "/proc/sys/kernel/random/boot_id"];
    let read = Command::new(words[0]).args(&words[1..]).args(cat).output();
    read.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).trim_end() == boot_id)
}

#[test]
fn jobs_of_a_rebooted_node_are_node_rebooted_and_ends_on_its_disk_stay_true() {
    let test = "jobs_of_a_rebooted_node_are_node_rebooted_and_ends_on_its_disk_stay_true";
    let mut world = world!();
    let first = "11111111-2222-4333-8444-555555555555";
    if !is_root() || program("unshare").is_none() || !boot(&mut world, first) {
        return skipped(test, "only root can mount another boot id in a mount namespace");
    }
    let mut split = Split::start(world, Pace::QUICK);
    let ended = running_job(&split.world, &[], "a", 7);
    let running = running_job(&split.world, &[], "b", 8);
    let pid = pid_of(&split.world, "a");
    // The whole machine goes down, and nobody heard that the first job had ended.
    split.controller.kill9();
    let_go(&split.world, "a");
    wait_until("the first job has ended", SOON, || !alive(pid));
    wait_until("its end is in the journal", SOON, || split.world.processes_of(ended).is_empty());
    split.power_off_node();
    assert!(boot(&mut split.world, "99999999-2222-4333-8444-555555555555"));
    split.controller_again();
    split.agent_again();
    split.world.must_end(ended, End::code(7, "UNKWN -> EXIT exit-code 7"));
    let rebooted = End::without_code("node-rebooted", "UNKWN -> EXIT node-rebooted");
    split.world.must_end(running, rebooted);
    assert_once(&split.world, "a");
    assert_once(&split.world, "b");
    assert_eq!(split.world.docket(&["run", "--", "true"]).code, Some(0), "the node works on");
}
