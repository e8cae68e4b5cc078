//! One data directory with its keeper, and the verbs of the tests. Everything that a world starts
//! carries its directory in the environment, so that nothing outlives it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use prost::Message;
use proto::v1::keeper_event::Kind as Event;
use proto::v1::keeper_request::Kind as Request;
use proto::v1::{
    AttemptRef, Fact, FinishFact, JobSpec, JournalRecord, KeeperAck, KeeperHello, KeeperKill,
    KeeperManifest, KeeperManifestAsk, KeeperPing, KeeperPong, KeeperRun, KeeperStop,
    KeeperWelcome, KillCause, Phase, StartFact, StartFailure, Token, fact, finish_fact,
};
use worker_agent::keeper::{self, Client, LockState};

/// For conditions that must come true; long, since the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Nobody's uid.
pub const NOBODY: u32 = 65534;

pub const WORLD_VARIABLE: &str = "KEEPER_WORLD";

/// How a world's keeper tells trees apart, and who it runs as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Cgroup slots where the machine has them.
    Best,
    /// Sessions and marks, forced.
    Marks,
    /// As nobody: no cgroups, no root.
    Nobody,
}

/// All modes that can be tried here.
pub fn modes() -> Vec<Mode> {
    let root = rustix::process::geteuid().is_root();
    if root { vec![Mode::Best, Mode::Marks, Mode::Nobody] } else { vec![Mode::Best, Mode::Marks] }
}

/// A data directory, its keeper, and this test as its client.
pub struct World {
    room: tempfile::TempDir,
    /// Name of the data directory in the room.
    name: &'static str,
    mode: Mode,
    idle_ms: u64,
    client: Option<Client>,
    pub welcome: KeeperWelcome,
    /// Facts in the order told.
    pub facts: Vec<Fact>,
    /// Pongs, manifests and the like that came between facts.
    events: Vec<Event>,
    next_order: u64,
    mounted: bool,
}

impl World {
    pub fn new(mode: Mode) -> World {
        World::with_idle(mode, 10_000)
    }

    /// A keeper that ends after this long without anything.
    pub fn with_idle(mode: Mode, idle_ms: u64) -> World {
        let mut world = World::bare(mode, idle_ms);
        world.launch().unwrap();
        world.connect();
        world
    }

    /// On a file system of its own of this size; `None` where none can be mounted.
    pub fn on_small_disk(bytes: u64) -> Option<World> {
        World::mounted(Mode::Best, "tmpfs", &format!("size={bytes}"))
    }

    /// On a file system of its own; `None` where none can be mounted.
    pub fn mounted(mode: Mode, kind: &str, options: &str) -> Option<World> {
        let mut world = World::bare(mode, 10_000);
        let options = format!("{options},mode=700");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", kind, "-o", &options, "none"]).arg(world.dir()).output();
        world.mounted = mounted.is_ok_and(|output| output.status.success());
        if !world.mounted {
            return None;
        }
        if mode == Mode::Nobody {
            chown(world.dir(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        world.launch().unwrap();
        world.connect();
        Some(world)
    }

    /// A directory without keeper.
    pub fn bare(mode: Mode, idle_ms: u64) -> World {
        let room = tempfile::Builder::new().prefix("keeper-").tempdir().unwrap();
        fs::set_permissions(room.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let dir = room.path().join("data");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let open = room.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        if mode == Mode::Nobody {
            chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        World {
            room,
            name: "data",
            mode,
            idle_ms,
            client: None,
            welcome: KeeperWelcome::default(),
            facts: Vec::new(),
            events: Vec::new(),
            next_order: 1,
            mounted: false,
        }
    }

    /// Where everything of this world lies.
    pub fn room(&self) -> &Path {
        self.room.path()
    }

    pub fn dir(&self) -> PathBuf {
        self.room.path().join(self.name)
    }

    /// Renames the data directory under whoever lives there.
    pub fn rename(&mut self, name: &'static str) {
        let to = self.room.path().join(name);
        fs::rename(self.dir(), to).unwrap();
        self.name = name;
    }

    /// A path in a directory that every user may write.
    pub fn open_path(&self, name: &str) -> PathBuf {
        self.room.path().join("open").join(name)
    }

    /// The user that jobs run as unless they say otherwise.
    pub fn uid(&self) -> u32 {
        if self.mode == Mode::Nobody { NOBODY } else { rustix::process::geteuid().as_raw() }
    }

    /// Starts guard and keeper; the error is what `launch` said.
    pub fn launch(&mut self) -> Result<(), String> {
        // With a limit on open files that the keeper raises for itself, and must not for its jobs.
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "ulimit -Sn 1000; exec \"$0\" \"$@\""])
            .arg(program())
            .arg("launch")
            .arg(self.dir())
            .env(WORLD_VARIABLE, self.room.path())
            .env(keeper::IDLE_SWITCH, self.idle_ms.to_string());
        if self.mode == Mode::Marks {
            command.env(keeper::CGROUP_SWITCH, "off");
        }
        if self.mode == Mode::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Becomes the keeper's client, as an agent does: waits for a keeper that is coming back, starts
    /// one where there is none.
    pub fn connect(&mut self) {
        self.connect_or(|error| panic!("{error}"));
    }

    /// The same where a launch may be refused for a while.
    pub fn connect_patiently(&mut self) {
        self.connect_or(drop);
    }

    fn connect_or(&mut self, failed: impl Fn(String)) {
        self.client = None;
        let dir = self.dir();
        let welcome = wait_for("a keeper that answers", || {
            let client = Client::connect(&dir);
            if client.is_err() && keeper::lock_state(&dir).unwrap() == LockState::Free {
                self.launch().unwrap_or_else(&failed);
            }
            let mut client = client.ok()?;
            client.send(Request::Hello(KeeperHello::default())).ok()?;
            match client.receive(Duration::from_secs(5)).ok()?? {
                Event::Welcome(welcome) => Some((client, welcome)),
                other => panic!("{other:?} before Welcome"),
            }
        });
        let (client, welcome) = welcome;
        self.client = Some(client);
        self.welcome = welcome;
    }

    pub fn send(&mut self, request: Request) {
        self.client.as_mut().unwrap().send(request).unwrap();
    }

    /// Takes one event into the world's lists; `None` if none came in this time.
    pub fn pump(&mut self, at_most: Duration) -> Option<()> {
        match self.client.as_mut().unwrap().receive(at_most).unwrap()? {
            Event::Facts(facts) => {
                assert_eq!(facts.journal_id, self.welcome.journal_id);
                assert!(facts.from <= facts.to);
                for fact in facts.facts {
                    assert!((facts.from..=facts.to).contains(&fact.seq));
                    self.facts.push(fact);
                }
            }
            other => self.events.push(other),
        }
        Some(())
    }

    /// Pumps until this gives something.
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut World) -> Option<T>) -> T {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < until, "waited in vain for {what}: {}", self.log());
            self.pump(Duration::from_millis(50));
        }
    }

    pub fn order_id(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    /// The order id that was given out last.
    pub fn last_order_id(&self) -> u64 {
        self.next_order
    }

    /// Sends a run.
    pub fn run(&mut self, job: &Job) {
        let run = job.to_run(self);
        self.send(Request::Run(run));
    }

    pub fn start_of(&mut self, job: &Job) -> StartFact {
        let attempt = job.attempt_ref();
        self.until("a start", |world| {
            world.facts.iter().find_map(|f| match &f.kind {
                Some(fact::Kind::Start(start)) if start.attempt == Some(attempt) => {
                    Some(start.clone())
                }
                _ => None,
            })
        })
    }

    pub fn finish_of(&mut self, job: &Job) -> FinishFact {
        let attempt = job.attempt_ref();
        self.until("a finish", |world| world.finishes(attempt).first().cloned())
    }

    /// Every finish told of an attempt so far.
    pub fn finishes(&self, attempt: AttemptRef) -> Vec<FinishFact> {
        let finishes = self.facts.iter().filter_map(|f| match &f.kind {
            Some(fact::Kind::Finish(finish)) if finish.attempt == Some(attempt) => Some(finish),
            _ => None,
        });
        finishes.cloned().collect()
    }

    /// Runs a job to its end.
    pub fn outcome(&mut self, job: &Job) -> FinishFact {
        self.run(job);
        self.finish_of(job)
    }

    /// Runs a job that must not start.
    pub fn start_failure(&mut self, job: &Job) -> StartFailure {
        match self.outcome(job).end {
            Some(finish_fact::End::StartFailure(failure)) => failure,
            other => panic!("it started: {other:?}"),
        }
    }

    pub fn kill(&mut self, job: &Job, cause: KillCause, grace_ms: u64, signal: Option<u32>) {
        let order = KeeperKill {
            order_id: self.order_id(),
            attempt: Some(job.attempt_ref()),
            token: Some(job.token()),
            cause: cause as i32,
            grace_ms,
            signal,
        };
        self.send(Request::Kill(order));
    }

    pub fn ack_all(&mut self) {
        let to = self.facts.last().map_or(0, |fact| fact.seq);
        self.send(Request::Ack(KeeperAck { to }));
    }

    pub fn manifest(&mut self) -> KeeperManifest {
        let nonce = self.order_id();
        self.send(Request::Manifest(KeeperManifestAsk { nonce }));
        self.until("a manifest", |world| {
            world.events.iter().find_map(|event| match event {
                Event::Manifest(manifest) if manifest.nonce == nonce => Some(manifest.clone()),
                _ => None,
            })
        })
    }

    /// What the keeper told of itself that the operator should know.
    pub fn problems(&self) -> Vec<String> {
        let problems = self.events.iter().filter_map(|event| match event {
            Event::Problem(problem) => Some(problem.message.clone()),
            _ => None,
        });
        problems.collect()
    }

    pub fn phase_of(&mut self, job: &Job) -> Option<Phase> {
        let attempt = job.attempt_ref();
        let items = self.manifest().items;
        items.iter().find(|item| item.attempt == Some(attempt)).map(|item| item.phase())
    }

    pub fn pong(&mut self) -> KeeperPong {
        let nonce = self.order_id();
        self.send(Request::Ping(KeeperPing { nonce }));
        self.until("a pong", |world| {
            world.events.iter().find_map(|event| match event {
                Event::Pong(pong) if pong.nonce == nonce => Some(pong.clone()),
                _ => None,
            })
        })
    }

    pub fn run_file(&self, job: &Job, suffix: &str) -> PathBuf {
        let mut name = job.run_prefix(self).into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir().join("keeper.log")).unwrap_or_default()
    }

    /// What its journal holds now, read from a copy.
    pub fn journal_records(&self) -> Vec<(u64, JournalRecord)> {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(self.dir().join("journal")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let text = fs::read_to_string(self.dir().join("journal.id")).unwrap();
        let id = u128::from_str_radix(text.trim(), 16).unwrap().to_be_bytes();
        let identity = wal::Identity { cluster_id: id, owner_id: 0 };
        let disk = wal::Disk::open(copy.path()).unwrap();
        let (log, found) = wal::Log::open(disk, identity, wal::Options::keeper()).unwrap();
        let entries = log.read(found.first.max(1), found.last).unwrap().into_iter();
        entries.map(|e| (e.index, JournalRecord::decode(&*e.payload).unwrap())).collect()
    }

    /// Kills the keeper outright; the guard lives.
    pub fn kill_keeper(&mut self) {
        self.client = None;
        kill_pid(self.welcome.pid);
    }

    /// The guard, by the lock that it signed.
    pub fn guard_pid(&self) -> u32 {
        match keeper::lock_state(&self.dir()).unwrap() {
            LockState::Held { by } => by.split(' ').next().unwrap().parse().unwrap(),
            LockState::Free => panic!("no guard"),
        }
    }

    pub fn disconnect(&mut self) {
        self.client = None;
    }

    /// Processes of this world, guard and keeper among them, zombies not.
    pub fn processes(&self) -> Vec<u32> {
        let mut needle = WORLD_VARIABLE.as_bytes().to_vec();
        needle.push(b'=');
        needle.extend_from_slice(self.room.path().as_os_str().as_bytes());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid: &u32| {
                let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environ.split(|b| *b == 0).any(|var| var == needle)
            })
            .collect()
    }

    /// Processes of jobs.
    pub fn job_processes(&self) -> Vec<u32> {
        let is_job = |pid: &u32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.starts_with(b"DOCKET_TOKEN=") || find(&environ, b"\0DOCKET_TOKEN=")
        };
        self.processes().into_iter().filter(is_job).collect()
    }

    /// Waits until guard and keeper have ended.
    pub fn wait_ended(&self) {
        let dir = self.dir();
        wait_for("the end of guard and keeper", || {
            (keeper::lock_state(&dir).unwrap() == LockState::Free).then_some(())
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(client) = &mut self.client {
            let _ = client.send(Request::Stop(KeeperStop { kill: true }));
        }
        // In order if it can: then its cgroups go too.
        let until =
            Instant::now() + Duration::from_secs(if std::thread::panicking() { 1 } else { 8 });
        while self.client.is_some() && Instant::now() < until && !self.processes().is_empty() {
            let _ = self.client.as_mut().map(|c| c.receive(Duration::from_millis(5)));
        }
        // What is killed may be started again by what is not yet.
        let mut left = self.processes();
        while !left.is_empty() {
            left.into_iter().for_each(kill_pid);
            left = self.processes();
        }
        if self.mounted {
            let _ = Command::new("umount").arg("-l").arg(self.dir()).status();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// A job to run: by default `/bin/sh -c` of a text, as the world's user, in `/`.
#[derive(Clone)]
pub struct Job {
    pub job: u64,
    pub task: Option<u32>,
    pub attempt: u32,
    pub spec: JobSpec,
    pub env: Vec<(String, String)>,
    pub stdin: Vec<u8>,
    pub stdout: Option<PathBuf>,
    pub stderr: Option<PathBuf>,
    pub uid: Option<u32>,
    pub mem_bytes: u64,
    pub order_id: Option<u64>,
    pub refuse: Option<StartFailure>,
    pub fence_after_ms: Option<u64>,
    pub h_ms: Option<u64>,
    pub output_max_bytes: u64,
}

impl Job {
    pub fn shell(job: u64, text: &str) -> Job {
        Job::argv(job, &["/bin/sh", "-c", text])
    }

    pub fn argv(job: u64, argv: &[&str]) -> Job {
        let argv = argv.iter().map(|a| a.as_bytes().to_vec()).collect();
        Job {
            job,
            task: None,
            attempt: 1,
            spec: JobSpec {
                argv,
                dir: b"/".to_vec(),
                kill_grace_ms: Some(5_000),
                umask: Some(0o022),
                ..JobSpec::default()
            },
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            stdin: Vec::new(),
            stdout: None,
            stderr: None,
            uid: None,
            mem_bytes: 0,
            order_id: None,
            refuse: None,
            fence_after_ms: None,
            h_ms: None,
            output_max_bytes: 0,
        }
    }

    pub fn attempt_ref(&self) -> AttemptRef {
        AttemptRef { job: self.job, task: self.task, attempt: self.attempt }
    }

    pub fn token(&self) -> Token {
        Token { generation: 1, attempt: self.attempt }
    }

    pub fn run_prefix(&self, world: &World) -> PathBuf {
        let task = self.task.map_or("0".into(), |t| t.to_string());
        world.dir().join(format!("runs/{}/{task}.{}", self.job, self.attempt))
    }

    pub fn to_run(&self, world: &mut World) -> KeeperRun {
        let bytes = |path: &Option<PathBuf>| {
            path.as_ref().map_or(Vec::new(), |p| p.as_os_str().as_bytes().to_vec())
        };
        let own = [(WORLD_VARIABLE.to_owned(), world.room.path().display().to_string())];
        let env = self.env.iter().chain(&own).map(|(n, v)| format!("{n}={v}").into_bytes());
        let uid = self.uid.unwrap_or(world.uid());
        KeeperRun {
            order_id: self.order_id.unwrap_or_else(|| world.order_id()),
            attempt: Some(self.attempt_ref()),
            token: Some(self.token()),
            spec: self.spec.encode_to_vec(),
            env: env.collect(),
            stdin: self.stdin.clone(),
            user: "somebody".into(),
            uid,
            gid: uid,
            groups: vec![uid],
            mem_bytes: self.mem_bytes,
            cluster_id: "cluster".into(),
            fence_after_ms: self.fence_after_ms,
            stdout_path: bytes(&self.stdout),
            stderr_path: bytes(&self.stderr),
            default_grace_ms: 5_000,
            refuse: self.refuse.clone(),
            h_ms: self.h_ms,
            output_max_bytes: self.output_max_bytes,
            gpus: Vec::new(),
            time_limit_ms: None,
            run_file: self.run_prefix(world).as_os_str().as_bytes().to_vec(),
        }
    }
}

/// The raw wait status of a finish.
pub fn status_of(finish: &FinishFact) -> u32 {
    match finish.end {
        Some(finish_fact::End::WaitStatus(status)) => status,
        ref other => panic!("no wait status: {other:?}"),
    }
}

/// The raw wait status of an exit with this code.
pub fn exited(code: u32) -> u32 {
    code << 8
}

/// Polls a condition of the outside world until it holds.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The keeper's clock, in ms.
pub fn boottime_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

pub fn wait_for_file(path: &Path) {
    wait_for("a file", || path.exists().then_some(()));
}

pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

/// Sends SIGKILL and waits until it is gone.
pub fn kill_pid(pid: u32) {
    let Some(id) = rustix::process::Pid::from_raw(pid as i32) else { return };
    let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
    wait_for("the end of a killed process", || (!is_alive(pid)).then_some(()));
}

fn find(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Removes what [`program`] made; the last thing to do.
pub fn remove_program() {
    if let Some(dir) = PROGRAM.get().and_then(|path| path.parent()) {
        fs::remove_dir_all(dir).unwrap();
    }
}

/// The same, for a job to run.
pub fn own_program() -> &'static Path {
    program()
}

/// This program where every user can execute it.
fn program() -> &'static Path {
    PROGRAM.get_or_init(|| {
        let dir = tempfile::Builder::new().prefix("keeper-exe-").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("keeper-test");
        let own = std::env::current_exe().unwrap();
        if fs::hard_link(&own, &path).is_err() {
            fs::copy(&own, &path).unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let _ = dir.keep();
        path
    })
}

/// Facts by attempt, to see that none came twice in a row of sessions.
pub fn seqs(facts: &[Fact]) -> BTreeMap<u64, usize> {
    let mut seqs = BTreeMap::new();
    for fact in facts {
        *seqs.entry(fact.seq).or_default() += 1;
    }
    seqs
}
