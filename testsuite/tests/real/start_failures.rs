//! Each step of a launch fails in turn (peer fault 19): the user's steps end the job by name, docket's
//! own steps are its node's fault, and a node that can start nothing swallows no queue.

use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testsuite::patience::{SOON, let_pass, poll, wait_by_command};
use testsuite::skip::{is_root, program, skipped};
use testsuite::world::{Pace, Role, Split, User, World};
use testsuite::{heavy_world, world};

/// A step of the user's own that fails, and what is told of it.
struct Case {
    step: &'static str,
    errno: i32,
    path: PathBuf,
    args: Vec<OsString>,
}

/// `true` with these options.
fn of_true(options: &[&OsStr], step: &'static str, errno: i32, path: &Path) -> Case {
    let mut args: Vec<OsString> = options.iter().map(|&word| word.to_owned()).collect();
    args.extend(["--".into(), "true".into()]);
    Case { step, errno, path: path.to_owned(), args }
}

/// This program.
fn of_program(program: &Path, errno: i32) -> Case {
    let args = vec!["--".into(), program.into()];
    Case { step: "exec", errno, path: program.to_owned(), args }
}

/// A file with this mode.
fn file(world: &World, name: &str, mode: u32, text: &str) -> PathBuf {
    let path = world.file(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    world.give(&path);
    path
}

/// A directory with this mode.
fn dir(world: &World, name: &str, mode: u32) -> PathBuf {
    let path = world.file(name);
    fs::create_dir(&path).unwrap();
    world.give(&path);
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn cases(world: &World) -> Vec<Case> {
    let missing = world.file("no such\ndirectory");
    let plain = file(world, "plain", 0o644, "no program");
    let closed = dir(world, "closed", 0o600);
    let fixed = dir(world, "fixed", 0o555);
    let full = PathBuf::from("/dev/full");
    let no_line = file(world, "no-first-line", 0o755, "echo guessed");
    let other = file(world, "other-interpreter", 0o755, "#!/no/such/interpreter\n");
    let (enoent, eacces) = (libc::ENOENT, libc::EACCES);
    let at = |option: &'static str, step, errno, path: &Path| {
        of_true(&[option.as_ref(), path.as_ref()], step, errno, path)
    };
    vec![
        at("-D", "chdir", enoent, &missing),
        at("-D", "chdir", libc::ENOTDIR, &plain),
        at("-D", "chdir", eacces, &closed),
        at("--stdin", "stdin", enoent, &missing),
        at("-o", "stdout", enoent, &missing.join("out")),
        at("-o", "stdout", eacces, &fixed.join("out")),
        at("-o", "stdout", libc::EISDIR, &fixed),
        at("-o", "stdout", libc::EINVAL, &full),
        at("-e", "stderr", enoent, &missing.join("err")),
        at("-e", "stderr", eacces, &fixed.join("err")),
        of_program(Path::new("/no/such/program"), enoent),
        of_program(Path::new("no-such-program-in-path"), enoent),
        of_program(&other, enoent),
        of_program(&plain, eacces),
        of_program(&fixed, eacces),
        of_program(&no_line, libc::ENOEXEC),
    ]
}

/// The job is EXIT `start-failed`, and every view of it says which step, why, on what, and where.
fn is_told(world: &World, job: u64, case: &Case) {
    let ran = world.docket(&["wait", &job.to_string()]);
    assert_eq!(ran.code, Some(1), "no invented 126 or 127: {}", ran.describe());
    let task = world.show(job);
    let reason = &task["reason"];
    assert_eq!((&task["state"], &task["exit_code"]), (&json!("EXIT"), &Value::Null), "{task:#}");
    assert_eq!((&task["attempt"], &task["retried"]), (&json!(1), &json!(0)), "{task:#}");
    assert_eq!(reason["kind"], "start-failed", "{task:#}");
    assert_eq!(reason["step"], case.step, "{task:#}");
    assert_eq!(reason["errno"], case.errno, "{task:#}");
    assert_eq!(reason["path"], case.path.display().to_string(), "{task:#}");
    let node = task["node"].as_str().expect("it was given to a node");
    // What a terminal cannot show is escaped there.
    let path = case.path.display().to_string();
    let shown = path.split('\n').next().unwrap_or_default();
    let error = std::io::Error::from_raw_os_error(case.errno).to_string();
    let error = error.split(" (os error").next().unwrap_or_default();
    // Long lines are broken anywhere.
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    for command in ["show", "explain"] {
        let text = world.ok(&[command, &job.to_string()]);
        let says = |word: &str| bare(&text).contains(&bare(word));
        for word in [case.step, shown, &format!("on {node}")] {
            assert!(says(word), "{command} does not say {word}:\n{text}");
        }
        let odd = says("neither a regular file");
        assert!(says(error) || odd, "{command} does not say {error}:\n{text}");
    }
}

#[test]
fn each_of_the_users_steps_that_fails_is_named_with_errno_path_and_node() {
    let outer = world!();
    // Root may enter and write everything.
    let nobody = is_root().then(User::nobody);
    let mut world = nobody.map_or_else(|| outer.beside(), |user| outer.of(&user));
    // A directory of PATH that is closed to the user would count as a refusal, as with execvp.
    world.set("PATH", "/usr/bin:/bin");
    let _node = world.up(4);
    for case in cases(&world) {
        let job = world.submit(&case.args);
        is_told(&world, job, &case);
    }
    let nodes = world.ok(&["nodes", "-o", "json"]);
    assert!(!nodes.contains("kept out"), "none of it was the node's fault: {nodes}");
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0));
}

#[test]
fn the_longest_argument_runs_and_one_byte_more_is_refused_by_name() {
    let world = world!();
    let _node = world.up(2);
    // The kernel's limit holds for the client too: such a command comes from a file.
    let from = |name: &str, bytes: usize| {
        let line = json!({ "command": ["true", "x".repeat(bytes)] }).to_string();
        let path = world.file(name);
        fs::write(&path, line + "\n").unwrap();
        world.docket(&["submit".as_ref(), "--from".as_ref(), path.as_os_str()])
    };
    let ran = from("fits", 131_071);
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    assert_eq!(world.wait_end(1)["state"], "DONE");
    let ran = from("too-long", 131_072);
    assert_eq!(ran.code, Some(2), "{}", ran.describe());
    assert!(ran.err().contains("argument 1 is 131072 bytes"), "{}", ran.err());
    assert_eq!(world.list_ids(), [1], "nothing was submitted");
}

fn notes(world: &World, node: &str) -> String {
    let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    let nodes = nodes.as_array().expect("a list");
    let found = nodes.iter().find(|it| it["name"] == node);
    found.map(|it| it["notes"].to_string()).unwrap_or_default()
}

/// A job that its node cannot start is tried again there, by the node's fault and not its own, and
/// runs once `repair` has helped.
fn is_the_nodes_fault(world: &World, node: &str, says: &[&str], repair: impl FnOnce()) {
    let job = world.submit(&["--", "true"]);
    let task = world.wait_job(job, "it was tried", |task| task["attempt"] != 1);
    assert_eq!((&task["state"], &task["retried"]), (&json!("PEND"), &json!(0)), "{task:#}");
    wait_by_command("the node is kept out by name", || {
        let notes = notes(world, node);
        notes.contains("kept out") && says.iter().all(|word| notes.contains(word))
    });
    // Not while it is under way once more.
    wait_by_command("explain says whose fault it was", || {
        world.ok(&["explain", &job.to_string()]).contains("its node's fault")
    });
    repair();
    let task = world.wait_end(job);
    assert_eq!(task["state"], "DONE", "{task:#}");
    assert_eq!(task["retried"], 0, "{task:#}");
    assert!(task["attempt"].as_u64() <= Some(6), "{task:#}");
    assert!(!notes(world, node).contains("kept out"), "it came back by itself");
}

/// Where the run files of a node go.
fn break_runs(data: &Path) -> PathBuf {
    let runs = data.join("runs");
    if runs.exists() {
        fs::rename(&runs, data.join("runs.away")).unwrap();
    }
    fs::write(&runs, "not a directory").unwrap();
    runs
}

#[test]
fn a_run_directory_that_cannot_be_made_is_the_nodes_fault() {
    let split = Split::start(world!(), Pace::QUICK);
    let runs = break_runs(&split.agent_data());
    let says = ["run-directory", "Not a directory"];
    is_the_nodes_fault(&split.world, Split::NODE, &says, || fs::remove_file(runs).unwrap());
}

#[test]
fn a_disk_without_inodes_is_the_nodes_fault() {
    const TEST: &str = "a_disk_without_inodes_is_the_nodes_fault";
    let Some((split, disks)) = Split::on_small_disks(TEST, world!(), Pace::QUICK, 16) else {
        return;
    };
    // There is room by bytes, so only the step itself finds out.
    disks.use_up_inodes(Split::NODE);
    let says = ["run-directory", "No space left"];
    is_the_nodes_fault(&split.world, Split::NODE, &says, || disks.give_inodes(Split::NODE));
}

/// How many processes the user of this one may have, by its hard limit.
fn process_limit(pid: i32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max processes")).expect("a limit");
    line.split_whitespace().nth(3).expect("a hard limit").to_owned()
}

#[test]
fn a_fork_that_is_refused_is_the_nodes_fault() {
    const TEST: &str = "a_fork_that_is_refused_is_the_nodes_fault";
    if !is_root() {
        return skipped(TEST, "only root can become the user whose processes are counted");
    }
    let Some(prlimit) = program("prlimit") else { return skipped(TEST, "prlimit is missing") };
    let outer = world!();
    let world = outer.of(&User::nobody());
    let _node = world.up(2);
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0), "its keeper lives");
    let keeper = world.find(Role::Keeper).expect("a keeper").pid;
    // By the soft limit alone, which the user may raise again.
    let hard = process_limit(keeper);
    let limit = |soft: &str| {
        let mut command = world.command(&prlimit);
        let pid = keeper.to_string();
        command.args(["--pid", &pid, &format!("--nproc={soft}:")]);
        assert!(command.status().unwrap().success(), "a user may set limits of their own");
    };
    limit("1");
    let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    let node = nodes[0]["name"].as_str().expect("a name").to_owned();
    let says = ["fork", "Resource temporarily unavailable"];
    is_the_nodes_fault(&world, &node, &says, || limit(&hard));
}

/// Jobs of the queue that a broken node must not swallow.
const QUEUE: usize = 1_000;

/// Attempts of each job, and how many are in which state.
fn attempts(world: &World) -> (Vec<u64>, usize) {
    let out = world.ok(&["list", "--all", "--limit", "100000", "-o", "json"]);
    let list: Value = serde_json::from_str(&out).unwrap();
    let tasks = list.as_array().or_else(|| list["tasks"].as_array()).expect("a list").clone();
    let done = tasks.iter().filter(|task| task["state"] == "DONE").count();
    (tasks.iter().filter_map(|task| task["attempt"].as_u64()).collect(), done)
}

#[test]
fn a_node_that_can_start_nothing_swallows_no_queue() {
    let split = Split::start(heavy_world!(), Pace::QUICK);
    let world = &split.world;
    let runs = break_runs(&split.agent_data());
    let line = json!({ "command": ["sh", "-c", "echo $DOCKET_JOB_ID >> ran"] }).to_string() + "\n";
    fs::write(world.file("queue"), line.repeat(QUEUE)).unwrap();
    world.ok(&["submit", "--from", "queue"]);
    // Alone, it is tried seldom, each time with one job; whole rounds of 64 would be hundreds.
    let_pass(Duration::from_secs(8), "the daemons live", || true);
    let (tried, _) = attempts(world);
    assert_eq!(tried.len(), QUEUE);
    let faults: u64 = tried.iter().map(|attempt| attempt - 1).sum();
    assert!(tried.iter().all(|&attempt| attempt <= 6), "at most five faults a job");
    assert!((1..=u64::from(Split::CPUS) + 4).contains(&faults), "{faults} faults in 8 s");
    assert!(notes(world, Split::NODE).contains("run-directory"));
    // With a good node beside it all of them run there.
    let _good = world.agent(split.address(), "n2", 16);
    let mut done = 0;
    while done < QUEUE {
        let more = || Some(attempts(world).1).filter(|&now| now > done);
        let now = poll(SOON, Duration::from_millis(500), more);
        done = now.unwrap_or_else(|| panic!("no more than {done} run on the good node"));
    }
    let mut ran = world.lines("ran");
    assert_eq!(ran.len(), QUEUE, "each ran once");
    ran.sort_unstable();
    ran.dedup();
    assert_eq!(ran.len(), QUEUE, "each ran once");
    fs::remove_file(runs).unwrap();
}
