//! A test world: one temporary directory that holds a node's data, a home and the files of its jobs.
//! Everything started in it carries the directory in its arguments or environment; the end of the
//! world kills just that and nothing else, and fails if something survives.

mod cgroups;
mod cutter;
mod daemon;
mod disks;
mod link;
mod ports;
mod process;
mod ran;
mod relay;
mod split;
mod tale;
mod turn;
mod user;

use crate::patience::{LATER, LOOK_BY_COMMAND, SOON, poll, wait_by_command, wait_for, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use cutter::Cutter;
pub use daemon::Daemon;
pub use disks::Disks;
pub use link::{Cut, Link};
pub use process::{
    Proc, Role, alive, cgroups_of, group_and_session, start_ticks, state_of, vm_hwm_bytes,
    vm_rss_bytes,
};
pub use ran::{Ran, finish, finish_within};
pub use relay::{Relay, Rule, Way};
pub use split::{Pace, Split};
pub use tale::{End, Tale, time_of};
pub use turn::Turn;
pub use user::User;

/// Variable that marks every process of a world, jobs included (docket passes it on to them).
const MARK: &str = "TEST_WORLD";

/// One test's own small machine.
pub struct World {
    dir: PathBuf,
    exe: PathBuf,
    user: Option<User>,
    env: BTreeMap<String, String>,
    wrapper: Vec<String>,
    log_count: AtomicU32,
    turn: Arc<Turn>,
}

/// A world around the freshly built binary, for tests that may run beside others.
#[macro_export]
macro_rules! world {
    () => {
        $crate::world::World::new(
            env!("CARGO_BIN_EXE_docket_under_test"),
            $crate::world::Turn::shared(),
        )
    };
}

/// A world for a test that needs the machine for itself: no other world lives at the same time.
#[macro_export]
macro_rules! heavy_world {
    () => {
        $crate::world::World::new(
            env!("CARGO_BIN_EXE_docket_under_test"),
            $crate::world::Turn::alone(),
        )
    };
}

impl World {
    /// Makes an empty world of the calling user around the binary `exe`.
    pub fn new(exe: impl AsRef<Path>, turn: Arc<Turn>) -> World {
        Self::make(exe.as_ref(), turn, None, &std::env::temp_dir())
    }

    /// The same, below `parent`: benchmarks want a real disk under them.
    pub fn below(parent: &Path, exe: impl AsRef<Path>, turn: Arc<Turn>) -> World {
        Self::make(exe.as_ref(), turn, None, parent)
    }

    /// A world beside this one, of another user, within the same turn (a second turn could wait for
    /// the first one for ever).
    pub fn of(&self, user: &User) -> World {
        Self::make(&self.exe, Arc::clone(&self.turn), Some(user.clone()), &std::env::temp_dir())
    }

    /// A world beside this one, of the same user, within the same turn.
    pub fn beside(&self) -> World {
        let parent = self.dir.parent().unwrap_or(Path::new("/")).to_owned();
        Self::make(&self.exe, Arc::clone(&self.turn), self.user.clone(), &parent)
    }

    fn make(exe: &Path, turn: Arc<Turn>, user: Option<User>, parent: &Path) -> World {
        let dir = tempfile::Builder::new()
            .prefix("docket-test-")
            .tempdir_in(parent)
            .expect("the temporary directory is writable")
            .keep();
        let mut world = World {
            exe: exe.to_owned(),
            env: BTreeMap::new(),
            wrapper: Vec::new(),
            log_count: AtomicU32::new(0),
            dir,
            user,
            turn,
        };
        for room in ["home", "run", "logs", "files"] {
            world.make_dir(room);
        }
        world.give(&world.dir.clone());
        if world.user.is_some() {
            world.exe = world.bring_exe();
        }
        let dir = world.dir.display().to_string();
        world.set(MARK, &dir);
        world.set("HOME", &format!("{dir}/home"));
        world.set("XDG_RUNTIME_DIR", &format!("{dir}/run"));
        world.set("DOCKET_DATA", &format!("{dir}/data"));
        world.set("LC_ALL", "C.UTF-8");
        world.set("RUST_BACKTRACE", "1");
        world.set("PATH", &std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned()));
        world
    }

    /// The other user cannot reach a build directory below a closed home: it gets its own copy.
    fn bring_exe(&self) -> PathBuf {
        let copy = self.dir.join("docket");
        if std::fs::hard_link(&self.exe, &copy).is_err() {
            std::fs::copy(&self.exe, &copy).expect("the binary can be copied");
        }
        copy
    }

    fn make_dir(&self, room: &str) {
        let path = self.dir.join(room);
        std::fs::create_dir(&path).expect("a new world is empty");
        self.give(&path);
    }

    /// Hands a path to the world's user.
    pub fn give(&self, path: &Path) {
        if let Some(user) = &self.user {
            std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)).expect("root may chown");
        }
    }

    /// The world's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The data directory of the world's embedded node.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// A path for files of the test and its jobs, writable by the world's user.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join("files").join(name)
    }

    /// The binary that this world drives.
    pub fn exe(&self) -> &Path {
        &self.exe
    }

    /// Sets a variable for everything started from now on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// Removes a variable for everything started from now on.
    pub fn unset(&mut self, name: &str) {
        self.env.remove(name);
    }

    /// Sends every command to this address instead of the world's own socket.
    pub fn talk_to(&mut self, address: &str) {
        self.set("DOCKET_SERVER", &format!("http://{address}"));
    }

    /// Daemons start as `WRAPPER… docket ARGS…` from now on, e.g. in another mount namespace.
    pub fn wrap_daemons(&mut self, wrapper: &[&str]) {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
    }

    /// Short time-outs, so that loss and kill are seen within seconds: heartbeat 1 s, silence 4 s.
    pub fn be_quick(&mut self) {
        self.set("DOCKET_AGENT__HEARTBEAT_INTERVAL", "1s");
        self.set("DOCKET_AGENT__KILL_GRACE", "1s");
        self.set("DOCKET_CONTROLLER__HEARTBEAT_TIMEOUT", "4s");
    }

    /// A loopback address that is free now.
    pub fn free_address() -> String {
        ports::free_address()
    }

    /// A command in this world that is not started yet, without any standard stream.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(&self.env).current_dir(self.dir.join("files"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(user) = &self.user {
            user.assume(&mut command);
        }
        command
    }

    /// `docket ARGS…`, not started yet.
    pub fn docket_command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = self.command(&self.exe);
        command.args(args);
        command
    }

    /// Runs `docket ARGS…` to its end and takes all that it printed.
    #[track_caller]
    pub fn docket<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        finish(self.docket_command(args), &[])
    }

    /// The same with bytes on standard input.
    #[track_caller]
    pub fn docket_with_stdin<S: AsRef<OsStr>>(&self, args: &[S], stdin: &[u8]) -> Ran {
        finish(self.docket_command(args), stdin)
    }

    /// Runs `docket ARGS…`, which must exit with 0, and gives its stdout.
    #[track_caller]
    pub fn ok<S: AsRef<OsStr>>(&self, args: &[S]) -> String {
        let ran = self.docket(args);
        assert_eq!(ran.code, Some(0), "{}", ran.describe());
        ran.text()
    }

    /// Starts a daemon role; its output goes to a log file of the world.
    #[track_caller]
    pub fn start<S: AsRef<OsStr>>(&self, args: &[S]) -> Daemon {
        let number = self.log_count.fetch_add(1, Ordering::Relaxed);
        let log = self.dir.join("logs").join(format!("daemon-{number}.log"));
        let mut command = match self.wrapper.split_first() {
            None => self.docket_command(args),
            Some((first, rest)) => {
                let mut command = self.command(Path::new(first));
                command.args(rest).arg(&self.exe).args(args);
                command
            }
        };
        Daemon::start(&mut command, log)
    }

    /// Starts the embedded node with room for `cpus` jobs and waits until it says that it serves.
    #[track_caller]
    pub fn up(&self, cpus: u32) -> Daemon {
        self.up_with(cpus, &[])
    }

    /// The same with more options.
    #[track_caller]
    pub fn up_with(&self, cpus: u32, more: &[&str]) -> Daemon {
        let data = self.data();
        let cpus = cpus.to_string();
        let listen = Self::free_address();
        let mut args: Vec<&OsStr> = vec!["up".as_ref(), "--data".as_ref(), data.as_ref()];
        args.extend(["--cpus", &cpus].map(OsStr::new));
        if !more.contains(&"--listen") && !self.env.contains_key("DOCKET_CONTROLLER__LISTEN") {
            args.extend(["--listen", &listen].map(OsStr::new));
        }
        args.extend(more.iter().map(OsStr::new));
        let mut daemon = self.start(&args);
        // Behind a long log even a start of a release build takes long on a busy machine.
        daemon.wait_for_line_within("docket is up", LATER);
        daemon
    }

    /// Starts a separate controller at `address` and waits until it answers.
    #[track_caller]
    pub fn controller(&self, address: &str) -> Daemon {
        let mut daemon = self.controller_unseen(address);
        wait_by_command("the controller answers", || {
            daemon.must_live();
            self.docket(&["list"]).code == Some(0)
        });
        daemon
    }

    /// Starts a separate controller and waits for nothing.
    #[track_caller]
    pub fn controller_unseen(&self, address: &str) -> Daemon {
        let data = self.dir.join("controller");
        let args: [&OsStr; 5] = [
            "controller".as_ref(),
            "--data".as_ref(),
            data.as_ref(),
            "--listen".as_ref(),
            address.as_ref(),
        ];
        self.start(&args)
    }

    /// Starts a separate agent of the controller at `address` and waits until its node is up.
    #[track_caller]
    pub fn agent(&self, address: &str, name: &str, cpus: u32) -> Daemon {
        let mut daemon = self.agent_unseen(address, name, cpus);
        wait_by_command("the agent's node is up", || {
            daemon.must_live();
            self.node_state(name).as_deref() == Some("up")
        });
        daemon
    }

    /// Starts a separate agent and waits for nothing.
    #[track_caller]
    pub fn agent_unseen(&self, address: &str, name: &str, cpus: u32) -> Daemon {
        let data = self.dir.join(name);
        let cpus = cpus.to_string();
        let args: [&OsStr; 9] = [
            "agent".as_ref(),
            "--data".as_ref(),
            data.as_ref(),
            "--controllers".as_ref(),
            address.as_ref(),
            "--name".as_ref(),
            name.as_ref(),
            "--cpus".as_ref(),
            cpus.as_ref(),
        ];
        self.start(&args)
    }

    /// State of a node as `docket nodes` tells it.
    pub fn node_state(&self, name: &str) -> Option<String> {
        let ran = self.docket(&["nodes", "-o", "json"]);
        let nodes: Value = serde_json::from_slice(&ran.stdout).ok()?;
        let node = nodes.as_array()?.iter().find(|node| node["name"] == *name)?;
        node["state"].as_str().map(str::to_owned)
    }

    /// Submits with these options and command and gives the job id, which is all that it prints.
    #[track_caller]
    pub fn submit<S: AsRef<OsStr>>(&self, args: &[S]) -> u64 {
        let mut all: Vec<&OsStr> = vec!["submit".as_ref()];
        all.extend(args.iter().map(AsRef::as_ref));
        let out = self.ok(&all);
        out.trim_end().parse().unwrap_or_else(|_| panic!("submit printed {out:?}, not an id"))
    }

    /// Submits `sh -c SCRIPT` with these options.
    #[track_caller]
    pub fn submit_sh(&self, options: &[&str], script: &str) -> u64 {
        let mut args = options.to_vec();
        args.extend(["--", "sh", "-c", script]);
        self.submit(&args)
    }

    /// The job as `docket show -o json` tells it.
    #[track_caller]
    pub fn show(&self, job: u64) -> Value {
        let out = self.ok(&["show", &job.to_string(), "-o", "json"]);
        let all: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e} in {out:?}"));
        match all.as_array().map(Vec::as_slice) {
            Some([one]) => one.clone(),
            _ => panic!("show of one job gave {out}"),
        }
    }

    /// Waits until the job's state has that name.
    #[track_caller]
    pub fn wait_state(&self, job: u64, state: &str) -> Value {
        self.wait_job(job, &format!("job {job} is {state}"), |task| task["state"] == state)
    }

    /// Waits until the job is as `holds` wants it.
    #[track_caller]
    pub fn wait_job(&self, job: u64, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = poll(LATER, LOOK_BY_COMMAND, || {
            let ran = self.docket(&["show", &job.to_string(), "-o", "json"]);
            let all: Value = serde_json::from_slice(&ran.stdout).ok()?;
            last = all.get(0)?.clone();
            holds(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("waited {LATER:?} in vain until {what}; it is {last:#}"))
    }

    /// Waits until the job is terminal.
    #[track_caller]
    pub fn wait_end(&self, job: u64) -> Value {
        // Cheaper than looking: one command that sleeps until then. Its exit code is the job's.
        self.docket(&["wait", &job.to_string()]);
        self.wait_job(job, &format!("job {job} is terminal"), |task| task["terminal"] == true)
    }

    /// Ids that `docket list` tells with everything shown.
    #[track_caller]
    pub fn list_ids(&self) -> Vec<u64> {
        let out = self.ok(&["list", "--all", "--limit", "1000000", "-o", "id"]);
        let mut ids: Vec<u64> = out
            .lines()
            .map(|line| line.parse().unwrap_or_else(|_| panic!("list -o id printed {line:?}")))
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Lines of a file of this world; none if it is not there yet.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.file(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a file of this world has its first whole line, and gives it.
    #[track_caller]
    pub fn first_line(&self, name: &str) -> String {
        wait_for(&format!("{name} has a line"), SOON, || {
            let text = std::fs::read_to_string(self.file(name)).ok()?;
            text.split_once('\n').map(|(line, _)| line.to_owned())
        })
    }

    /// Makes an empty file that a job waits for.
    pub fn touch(&self, name: &str) {
        std::fs::write(self.file(name), []).expect("the world is writable");
    }

    /// All live processes of this world.
    pub fn processes(&self) -> Vec<Proc> {
        process::of_world(&self.dir)
    }

    /// The docket processes of this world, jobs left out.
    pub fn daemons(&self) -> Vec<Proc> {
        self.processes().into_iter().filter(|p| p.role(&self.exe).is_some()).collect()
    }

    /// The live process of a role, if there is one.
    pub fn find(&self, role: Role) -> Option<Proc> {
        self.processes().into_iter().find(|p| p.role(&self.exe) == Some(role))
    }

    /// `kill -9` of every docket process but the jobs; gone when this returns.
    #[track_caller]
    pub fn kill_all_daemons(&self) {
        self.kill_until_gone("no docket process lives", || self.daemons());
    }

    /// `kill -9` of the process of one role; gone when this returns.
    #[track_caller]
    pub fn kill_role(&self, role: Role) {
        assert!(self.kill_if_there(role), "no {role:?} process lives");
    }

    /// The same for one that may have ended by itself. Says whether it was there.
    #[track_caller]
    pub fn kill_if_there(&self, role: Role) -> bool {
        let Some(victim) = self.find(role) else { return false };
        process::kill9(victim.pid);
        wait_until("the killed process is gone", SOON, || !victim.lives());
        true
    }

    /// `kill -9` in one sweep of guard, keeper and every process of a job, as one who ends all that a
    /// user runs does it; daemons that others started live on. Whatever starts meanwhile may live too.
    pub fn kill_what_a_node_runs(&self) {
        let job = b"DOCKET_JOB_ID=";
        let runs = |p: &Proc| match p.role(&self.exe) {
            Some(role) => matches!(role, Role::Guard | Role::Keeper),
            None => std::fs::read(format!("/proc/{}/environ", p.pid))
                .is_ok_and(|environ| environ.split(|b| *b == 0).any(|var| var.starts_with(job))),
        };
        self.processes().iter().filter(|p| runs(p)).for_each(|p| process::kill9(p.pid));
    }

    /// `kill -9` of every process of the world, jobs included, but that one.
    #[track_caller]
    pub fn kill_all_but(&self, spared: &Daemon) {
        self.kill_until_gone("nothing else lives", || {
            let mut all = self.processes();
            all.retain(|p| p.pid != spared.pid());
            all
        });
    }

    /// Guard and keeper restart each other: only repeated killing of all ends them.
    #[track_caller]
    fn kill_until_gone(&self, what: &str, victims: impl Fn() -> Vec<Proc>) {
        wait_until(what, SOON, || {
            let alive = victims();
            alive.iter().for_each(|p| process::kill9(p.pid));
            alive.is_empty()
        });
    }

    /// What the daemons wrote, for the message of a failed test.
    fn print_logs(&self) {
        eprintln!("=== world {} ===", self.dir.display());
        let paths = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut logs: Vec<PathBuf> = paths(&self.dir)
            .flat_map(|room| paths(&room.path()).map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|ext| ext == "log"))
            .collect();
        logs.sort();
        for log in logs {
            let bytes = std::fs::read(&log).unwrap_or_default();
            let tail = &bytes[bytes.len().saturating_sub(6000)..];
            eprintln!("--- {} ---\n{}", log.display(), String::from_utf8_lossy(tail));
        }
        for p in self.processes() {
            eprintln!("alive: {} {:?} {}", p.pid, p.argv, p.state);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            self.print_logs();
        }
        let begin = std::time::Instant::now();
        let gone = loop {
            let alive = self.processes();
            if alive.is_empty() {
                break true;
            }
            if begin.elapsed() > SOON {
                eprintln!("the world's processes cannot be killed: {alive:?}");
                break false;
            }
            alive.iter().for_each(|p| process::kill9(p.pid));
            std::thread::yield_now();
        };
        cgroups::remove_of(&self.dir);
        std::fs::remove_dir_all(&self.dir).ok();
        assert!(gone || failed, "something of the world survived its end");
    }
}
