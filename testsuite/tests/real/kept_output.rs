//! Where output is kept: named files, what is no longer there or out of reach, and that a node of
//! root is no way to read or write other people's files.

use proto::v1::JobSpec;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use testsuite::client;
use testsuite::patience::{LATER, wait_until};
use testsuite::skip::{is_root, skipped};
use testsuite::world;
use testsuite::world::{Daemon, Pace, Split, User, World};

/// What a root-only file holds.
const SECRET: &str = "root's secret\n";

#[test]
fn patterns_of_output_files_expand_and_an_unknown_one_is_refused_by_name() {
    let mut world = world!();
    world.set("DOCKET_AGENT__NAME", "n1");
    let _node = world.up(2);
    let job = world.submit_sh(
        &["-J", "a/b", "-o", "o.%j.%A.%5j.%t.%n.%x.%%.%u", "-e", "%%j.%x"],
        "echo out; echo err >&2; exit 2",
    );
    world.wait_end(job);
    let user = world.ok(&["show", &job.to_string(), "-o", "json"]);
    let user: serde_json::Value = serde_json::from_str(&user).unwrap();
    let user = user[0]["user"].as_str().unwrap().to_owned();
    let out = format!("o.{job}.{job}.{job:05}.1.n1.a_b.%.{user}");
    assert_eq!(world.lines(&out), ["out"], "a name is one part of a path");
    assert_eq!(world.lines("%j.a_b"), ["err"]);
    assert_eq!(world.ok(&["logs", &job.to_string(), "--stderr"]), "err\n");
    for (option, pattern, unknown) in
        [("-o", "out.%z", "%z"), ("-e", "e.%4q.%j", "%4q"), ("-o", "100%", "%")]
    {
        let before = world.list_ids();
        let ran = world.docket(&["submit", option, pattern, "--", "true"]);
        assert_eq!(ran.code, Some(2), "{}", ran.describe());
        let named = format!("there is no {unknown}:");
        assert!(ran.err().contains(&named) && ran.err().contains("%j job"), "{}", ran.err());
        assert_eq!(world.list_ids(), before, "nothing was submitted");
    }
}

fn age(path: &Path, by: Duration) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - by).unwrap();
}

fn run_file(world: &World, job: u64, kind: &str) -> PathBuf {
    world.data().join(format!("runs/{job}/0.1.{kind}"))
}

#[test]
fn output_that_retention_removed_is_said_to_be_removed_when_why_and_what_to_do() {
    let mut world = world!();
    world.set("DOCKET_AGENT__RUN_RETENTION", "1h");
    let _node = world.up(2);
    let job = world.submit_sh(&[], "echo out");
    world.wait_end(job);
    let id = job.to_string();
    let file = run_file(&world, job, "out");
    age(&file, Duration::from_secs(7200));
    wait_until("the node has looked for old files", LATER, || !file.exists());
    for args in [&["logs", &id][..], &["logs", "-f", &id]] {
        let ran = world.docket(args);
        assert_eq!(ran.code, Some(66), "{}", ran.describe());
        assert_eq!(ran.text(), "");
        for part in ["was removed", "ago", "run_retention = 1h", "--stdout"] {
            assert!(ran.err().contains(part), "{part}: {}", ran.err());
        }
    }
    // What was empty all along is no loss, and a file that somebody else removed is no empty one.
    assert_eq!(world.ok(&["logs", &id, "--stderr"]), "");
    let other = world.submit_sh(&[], "echo out");
    world.wait_end(other);
    fs::remove_file(run_file(&world, other, "out")).unwrap();
    let ran = world.docket(&["logs", &other.to_string()]);
    assert_eq!(ran.code, Some(66), "{}", ran.describe());
    assert!(ran.err().contains("is gone: somebody removed it"), "{}", ran.err());
}

#[test]
fn a_node_that_is_away_is_said_to_hold_the_output_and_the_last_words_are_shown() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let failed = split.world.submit_sh(&[], "echo out; seq 2000 >&2; echo last words >&2; exit 3");
    split.world.wait_end(failed);
    let id = failed.to_string();
    split.agent.kill9();
    let away = |args: &[&str]| {
        let ran = split.world.docket(args);
        assert_eq!(ran.code, Some(75), "{}", ran.describe());
        assert!(
            ran.err().contains("n1") && ran.err().contains("holds the output"),
            "{}",
            ran.err()
        );
        ran
    };
    let ran = away(&["logs", &id]);
    assert_eq!(ran.text(), "", "nothing of stdout is known here");
    assert!(ran.err().contains(&format!("docket logs {id} --stderr")), "{}", ran.err());
    let ran = away(&["logs", &id, "--stderr"]);
    assert!(ran.text().ends_with("\n1999\n2000\nlast words\n"), "{}", ran.text());
    assert_eq!(ran.text().len(), 4096);
    assert!(ran.err().contains("the last 4096 of 8904 bytes"), "{}", ran.err());
    let ran = away(&["logs", &id, "--stderr", "--tail", "2"]);
    assert_eq!(ran.text(), "2000\nlast words\n");
    let ran = away(&["logs", &id, "--stderr", "--offset", "8899"]);
    assert_eq!(ran.text(), "ords\n", "an offset is a byte offset");
    // Whoever follows waits for the node and then prints all of it, once.
    let mut follower = split.world.start(&["logs", "-f", "--stderr", &id]);
    split.agent_again();
    assert!(follower.ended_within(LATER).success());
    let all: String = (1..=2000).map(|n| format!("{n}\n")).collect();
    let printed = follower.printed();
    let lines: String =
        printed.split_inclusive('\n').filter(|line| !line.starts_with("docket: ")).collect();
    assert_eq!(lines, all + "last words\n");
}

/// Submits a shell script that is tried again, which the command line does not ask for yet.
fn with_retries(split: &Split, script: &str, retries: u32, stdout: Option<&str>) -> u64 {
    client::runtime().block_on(async {
        let mut jobs = client::connect(split.address()).await;
        let spec = JobSpec {
            retries,
            dir: split.world.file("").as_os_str().as_encoded_bytes().to_vec(),
            stdout_pattern: stdout.map(|pattern| pattern.as_bytes().to_vec()),
            ..client::spec(&["sh", "-c", script])
        };
        jobs.submit(client::request(spec)).await.unwrap().into_inner().job
    })
}

#[test]
fn output_of_earlier_attempts_is_shown_where_it_still_is_and_else_said_where_it_went() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let script = "echo out $DOCKET_ATTEMPT; echo err $DOCKET_ATTEMPT >&2; exit 3";
    let job = with_retries(&split, script, 2, None);
    assert_eq!(split.world.wait_end(job)["attempt"], 3);
    let id = job.to_string();
    let logs = |more: &[&str]| split.world.docket(&[&["logs", &id][..], more].concat());
    for attempt in ["1", "2", "3"] {
        for follow in [&[][..], &["-f"]] {
            let out = logs(&[&["--attempt", attempt][..], follow].concat());
            assert_eq!(out.text(), format!("out {attempt}\n"), "{}", out.describe());
            let err = logs(&[&["--attempt", attempt, "--stderr"][..], follow].concat());
            assert_eq!(err.text(), format!("err {attempt}\n"), "{}", err.describe());
        }
    }
    assert_eq!(logs(&[]).text(), "out 3\n");
    let gone = |ran: testsuite::world::Ran, parts: &[&str]| {
        assert_eq!((ran.code, ran.text()), (Some(66), String::new()), "{}", ran.describe());
        for part in parts {
            assert!(ran.err().contains(part), "{part}: {}", ran.err());
        }
    };
    gone(logs(&["--attempt", "4"]), &["is at attempt 3", "no attempt 4"]);
    // The files are gone one by one; the other attempts stay.
    let file = split.agent_data().join(format!("runs/{job}/0.1.out"));
    fs::remove_file(&file).unwrap();
    assert_eq!(logs(&["--attempt", "2"]).text(), "out 2\n");
    // One file for all attempts.
    let named = with_retries(&split, script, 1, Some("mine.%j"));
    split.world.wait_end(named);
    let ran = split.world.docket(&["logs", &named.to_string(), "--attempt", "1"]);
    gone(ran, &["attempt 1 ran on n1", "--stdout", "mine.%j", "append"]);
    assert_eq!(split.world.lines(&format!("mine.{named}")), ["out 1", "out 2"]);
    split.agent.kill9();
    let ran = split.world.docket(&["logs", &id, "--attempt", "2"]);
    assert_eq!(ran.code, Some(75), "{}", ran.describe());
    assert!(ran.err().contains("n1") && ran.err().contains("holds the output"), "{}", ran.err());
}

/// A node of root, and a world of somebody else who uses it.
struct Shared {
    mine: World,
    _node: Daemon,
    root: World,
    user: User,
}

impl Shared {
    fn start(test: &str) -> Option<Shared> {
        if !is_root() {
            skipped(test, "only root can serve other users");
            return None;
        }
        let root = world!();
        let address = World::free_address();
        let _node = root.up_with(2, &["--listen", &address]);
        let user = User::nobody();
        let mut mine = root.of(&user);
        mine.talk_to(&address);
        Some(Shared { mine, _node, root, user })
    }

    /// A root-only file outside the user's reach.
    fn secret(&self, name: &str) -> PathBuf {
        let dir = self.root.file("vault");
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let path = dir.join(name);
        fs::write(&path, SECRET).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Neither the user nor root is served a byte of it, and it is as it was.
    #[track_caller]
    fn keeps(&self, secret: &Path, job: u64, why: &str) {
        let id = job.to_string();
        let ran_at_all = self.root.show(job)["reason"]["kind"] != "start-failed";
        for world in [&self.mine, &self.root] {
            for args in [
                &["logs", &id][..],
                &["logs", "-f", &id],
                &["logs", &id, "--stderr"],
                &["logs", &id, "--tail", "1"],
                &["show", &id],
                &["explain", &id],
            ] {
                let ran = world.docket(args);
                let all = ran.text() + &ran.err();
                assert!(!all.contains("secret"), "{why}: {}", ran.describe());
                let reads_it = args[0] == "logs" && args.len() < 4 && ran_at_all;
                assert!(!reads_it || ran.code != Some(0), "{why}: {}", ran.describe());
            }
        }
        assert_eq!(fs::read_to_string(secret).unwrap(), SECRET, "{why}: it is untouched");
    }

    /// A job of the user with its output in `out`, and what else it does.
    fn job(&self, out: &str, script: &str) -> u64 {
        let job = self.mine.submit_sh(&["-o", out, "-e", out], script);
        self.mine.wait_end(job);
        job
    }
}

#[test]
fn an_output_that_became_a_link_to_a_root_only_file_is_neither_served_nor_written() {
    let test = "an_output_that_became_a_link_to_a_root_only_file_is_neither_served_nor_written";
    let Some(shared) = Shared::start(test) else { return };
    let secret = shared.secret("link");
    let target = secret.display();
    let job = shared.job("out", &format!("echo x; rm out; ln -s {target} out; echo more; exit 1"));
    shared.keeps(&secret, job, "a link in place of the file");
    // There already when the job starts: it is opened as the job's user, who may not.
    symlink(&secret, shared.mine.file("before")).unwrap();
    let job = shared.job("before", "echo x");
    assert_eq!(shared.mine.show(job)["reason"]["kind"], "start-failed");
    shared.keeps(&secret, job, "a link from the beginning");
    // The directory on the way to it.
    let vault = secret.parent().unwrap().display();
    fs::write(shared.root.file("vault/out"), SECRET).unwrap();
    let swap = format!("echo x; mv d gone; ln -s {vault} d; exit 1");
    fs::create_dir(shared.mine.file("d")).unwrap();
    chown(shared.mine.file("d"), Some(shared.user.uid), Some(shared.user.gid)).unwrap();
    let job = shared.job("d/out", &swap);
    shared.keeps(&shared.root.file("vault/out"), job, "a directory that was swapped");
}

#[test]
fn a_hard_link_to_a_root_only_file_is_neither_served_nor_written() {
    let test = "a_hard_link_to_a_root_only_file_is_neither_served_nor_written";
    let Some(shared) = Shared::start(test) else { return };
    let secret = shared.secret("hard");
    fs::hard_link(&secret, shared.mine.file("hard")).unwrap();
    let job = shared.job("hard", "echo x");
    assert_eq!(shared.mine.show(job)["reason"]["kind"], "start-failed");
    shared.keeps(&secret, job, "a hard link from the beginning");
    let job = shared.job("later", "echo x; exit 1");
    fs::remove_file(shared.mine.file("later")).unwrap();
    fs::hard_link(&secret, shared.mine.file("later")).unwrap();
    shared.keeps(&secret, job, "a hard link in place of the file");
    // The node's own run file.
    let job = shared.mine.submit_sh(&[], "echo x; echo y >&2; exit 1");
    shared.mine.wait_end(job);
    for kind in ["out", "err"] {
        let file = run_file(&shared.root, job, kind);
        fs::remove_file(&file).unwrap();
        match kind {
            "out" => fs::hard_link(&secret, &file).unwrap(),
            _ => symlink(&secret, &file).unwrap(),
        }
    }
    shared.keeps(&secret, job, "links in place of run files");
}

#[test]
fn a_file_that_the_jobs_user_may_write_but_not_read_is_not_served() {
    let test = "a_file_that_the_jobs_user_may_write_but_not_read_is_not_served";
    let Some(shared) = Shared::start(test) else { return };
    // A drop box: everybody may add to it, only root may look.
    let drop_box = shared.mine.file("box");
    fs::write(&drop_box, SECRET).unwrap();
    fs::set_permissions(&drop_box, fs::Permissions::from_mode(0o622)).unwrap();
    let job = shared
        .mine
        .submit_sh(&["-o", "box", "-e", "box", "--open-mode", "append"], "echo added; exit 1");
    shared.mine.wait_end(job);
    assert_eq!(fs::read_to_string(&drop_box).unwrap(), format!("{SECRET}added\n"));
    fs::write(&drop_box, SECRET).unwrap();
    shared.keeps(&drop_box, job, "a drop box");
    // A file that was the user's and is root's now, the same inode.
    let job = shared.job("mine", "echo x; exit 1");
    let file = shared.mine.file("mine");
    assert_eq!(shared.mine.ok(&["logs", &job.to_string()]), "x\n", "its own is served");
    let inode = fs::metadata(&file).unwrap().ino();
    chown(&file, Some(0), Some(0)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, SECRET).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
    shared.keeps(&file, job, "a file that root took over");
}
