//! Starting jobs: what a process is given, how its end is told, and each step that can fail.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use proto::v1::{KillCause, StartFailure};

use crate::runner::Test;
use crate::world::{Job, Mode, NOBODY, World, exited, modes, status_of, wait_for_file};

pub const TESTS: &[Test] = &[
    ("exit_codes_and_signals_are_told_as_they_were", exit_codes_and_signals),
    ("output_is_byte_for_byte_what_was_written", output_is_exact),
    ("stdin_is_null_a_file_or_the_blob", stdin),
    ("a_job_starts_from_a_clean_slate", clean_slate),
    ("scripts_run_with_and_without_a_first_line", scripts),
    ("a_start_that_fails_names_step_errno_and_path", start_failures),
    ("a_run_that_the_agent_refuses_ends_unstarted", refused_by_agent),
    ("a_link_in_the_run_directory_is_not_followed", links_are_not_followed),
    ("one_file_for_both_streams_and_appending", shared_and_appended),
    ("jobs_of_another_user_run_as_that_user", other_user),
    ("a_time_limit_is_kept_by_the_keeper", time_limit),
    ("the_end_of_stderr_comes_with_a_failure", stderr_tail),
    ("many_short_jobs_end_as_they_should", many_short),
];

fn exit_codes_and_signals() {
    for mode in modes() {
        let mut world = World::new(mode);
        let codes = [0, 1, 2, 127, 128, 137, 255];
        for (n, code) in codes.into_iter().enumerate() {
            let finish = world.outcome(&Job::shell(n as u64 + 1, &format!("exit {code}")));
            assert_eq!(status_of(&finish), exited(code));
            assert_eq!(finish.killed_for, KillCause::Unspecified as i32);
            let start = finish.start.expect("it started");
            assert!(start.pid > 0 && start.pid_start_ticks > 0 && start.start_wall_ms > 0);
            assert!(finish.finish_wall_ms >= start.start_wall_ms);
        }
        for signal in [1, 2, 9, 15, 37] {
            let finish = world.outcome(&Job::shell(100 + signal, &format!("kill -{signal} $$")));
            assert_eq!(status_of(&finish), signal as u32, "{mode:?}");
        }
        let kinds: Vec<u64> = world.facts.iter().map(|f| f.seq).collect();
        assert!(kinds.is_sorted(), "facts come in order: {kinds:?}");
    }
}

fn output_is_exact() {
    let mut world = World::new(Mode::Best);
    let job = Job::shell(
        1,
        "i=0; while [ $i -lt 2000 ]; do echo \"out $i\"; echo \"err $i\" >&2; i=$((i+1)); done; \
         printf 'no line feed \\000\\377'",
    );
    let finish = world.outcome(&job);
    assert_eq!(status_of(&finish), 0);
    let lines = |name: &str| (0..2000).map(|i| format!("{name} {i}\n")).collect::<String>();
    let out = fs::read(world.run_file(&job, ".out")).unwrap();
    let err = fs::read(world.run_file(&job, ".err")).unwrap();
    assert_eq!(out, [lines("out").as_bytes(), b"no line feed \0\xff"].concat());
    assert_eq!(err, lines("err").as_bytes());
    assert_eq!((finish.stdout_bytes, finish.stderr_bytes), (out.len() as u64, err.len() as u64));
    assert!(finish.stderr_tail.is_empty(), "it did not fail");
    let meta = fs::metadata(world.run_file(&job, ".out")).unwrap();
    let start = finish.start.unwrap();
    assert_eq!((meta.dev(), meta.ino()), (start.stdout_dev, start.stdout_ino));
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);

    let silent = Job::shell(2, "exit 3");
    world.outcome(&silent);
    assert!(!world.run_file(&silent, ".out").parent().unwrap().exists(), "empty files go");
}

fn stdin() {
    let mut world = World::new(Mode::Best);
    let read = |world: &World, job: &Job| fs::read(world.run_file(job, ".out")).unwrap_or_default();

    let mut blob = Job::argv(1, &["cat"]);
    blob.spec.has_stdin = true;
    blob.stdin = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(status_of(&world.outcome(&blob)), 0);
    assert_eq!(read(&world, &blob), blob.stdin);

    let mut again = Job::shell(2, "cat < /dev/stdin");
    again.spec.has_stdin = true;
    again.stdin = b"opened by name".to_vec();
    assert_eq!(status_of(&world.outcome(&again)), 0);
    assert_eq!(read(&world, &again), again.stdin);

    let mut file = Job::argv(3, &["cat"]);
    fs::write(world.open_path("given"), "from a file").unwrap();
    file.spec.dir = world.open_path("").as_os_str().as_bytes().to_vec();
    file.spec.stdin_path = Some(b"given".to_vec());
    assert_eq!(status_of(&world.outcome(&file)), 0);
    assert_eq!(read(&world, &file), b"from a file");

    let none = Job::shell(4, "readlink /proc/self/fd/0; wc -c");
    assert_eq!(status_of(&world.outcome(&none)), 0);
    assert_eq!(read(&world, &none), b"/dev/null\n0\n");
}

fn clean_slate() {
    let mut world = World::new(Mode::Best);
    let mut job = Job::shell(
        1,
        "cut -d' ' -f1,6 /proc/$$/stat; ls /proc/$$/fd; umask; ulimit -Sn; pwd; echo \"$GREETING\"; env | grep -c ^DOCKET_TOKEN=",
    );
    job.spec.umask = Some(0o027);
    job.spec.nofile = Some(99);
    job.spec.dir = b"/usr".to_vec();
    job.env.push(("GREETING".into(), "two\nlines".into()));
    assert_eq!(status_of(&world.outcome(&job)), 0);
    let text = fs::read_to_string(world.run_file(&job, ".out")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (pid, session) = lines[0].split_once(' ').unwrap();
    assert_eq!(pid, session, "a session of its own");
    assert_eq!(lines[1..], ["0", "1", "2", "0027", "99", "/usr", "two", "lines", "1"]);

    // Without a shell, which blocks signals of its own for moments.
    let signals = Job::argv(2, &["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
    assert_eq!(status_of(&world.outcome(&signals)), 0);
    let text = fs::read_to_string(world.run_file(&signals, ".out")).unwrap();
    assert_eq!(text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

fn scripts() {
    for mode in modes() {
        let mut world = World::new(mode);
        let mut plain = Job::argv(1, &["a b", "c"]);
        plain.spec.script = Some(b"echo \"$1|$2|$#\"\nexit 5\n".to_vec());
        let finish = world.outcome(&plain);
        assert_eq!(status_of(&finish), exited(5), "{:?}", finish.end);
        assert_eq!(fs::read(world.run_file(&plain, ".out")).unwrap(), b"a b|c|2\n");
        let mut first_line = Job::argv(2, &["x"]);
        first_line.spec.script = Some(b"#!/bin/cat\nwhatever\n".to_vec());
        let finish = world.outcome(&first_line);
        let out = fs::read(world.run_file(&first_line, ".out")).unwrap();
        assert!(out.starts_with(b"#!/bin/cat\nwhatever\n"), "{mode:?} {out:?} {:?}", finish.end);
        assert!(!world.run_file(&plain, ".script").exists(), "the script goes with its job");
    }
}

fn expect(failure: &StartFailure, step: &str, errno: i32, path: &[u8]) {
    assert_eq!((failure.step.as_str(), failure.errno), (step, errno), "{failure:?}");
    assert_eq!(String::from_utf8_lossy(&failure.path), String::from_utf8_lossy(path));
    assert!(!failure.node_fault && failure.message.contains(step), "{failure:?}");
}

fn start_failures() {
    for mode in modes() {
        let mut world = World::new(mode);
        let mut id = 0;
        let mut job = |argv: &[&str]| {
            id += 1;
            Job::argv(id, argv)
        };
        let mut bad = job(&["true"]);
        bad.spec.dir = b"/nonexistent dir".to_vec();
        expect(&world.start_failure(&bad), "chdir", libc::ENOENT, b"/nonexistent dir");
        bad = job(&["true"]);
        bad.spec.stdin_path = Some(b"/nonexistent".to_vec());
        expect(&world.start_failure(&bad), "stdin", libc::ENOENT, b"/nonexistent");

        let path = |world: &World, name: &str| world.open_path(name);
        for (name, errno) in [("no/dir", libc::ENOENT), ("", libc::EISDIR), ("fifo", libc::ENXIO)] {
            let file = path(&world, name);
            if name == "fifo" {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, &file, kind, 0o666.into(), 0).unwrap();
                fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
            }
            bad = job(&["true"]);
            bad.stdout = Some(file.clone());
            expect(&world.start_failure(&bad), "stdout", errno, file.as_os_str().as_bytes());
        }
        bad = job(&["true"]);
        bad.stderr = Some(PathBuf::from("/dev/full"));
        expect(&world.start_failure(&bad), "stderr", libc::EINVAL, b"/dev/full");

        expect(
            &world.start_failure(&job(&["no-such-program"])),
            "exec",
            libc::ENOENT,
            b"no-such-program",
        );
        expect(&world.start_failure(&job(&["/no/such"])), "exec", libc::ENOENT, b"/no/such");
        let plain = path(&world, "plain");
        fs::write(&plain, "echo no").unwrap();
        fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
        let plain = plain.to_str().unwrap();
        expect(&world.start_failure(&job(&[plain])), "exec", libc::EACCES, plain.as_bytes());
        fs::set_permissions(plain, fs::Permissions::from_mode(0o755)).unwrap();
        // No shell guesses what it could be.
        expect(&world.start_failure(&job(&[plain])), "exec", libc::ENOEXEC, plain.as_bytes());
        assert!(!world.dir().join("runs").read_dir().unwrap().any(|_| true), "no run file stays");
        assert_eq!(world.facts.len(), 10, "no start is told of what did not start");
    }
}

fn refused_by_agent() {
    let mut world = World::new(Mode::Best);
    let mut job = Job::shell(1, "true");
    let failure = StartFailure { step: "setuid".into(), errno: libc::ENOENT, ..Default::default() };
    job.refuse = Some(failure.clone());
    assert_eq!(world.start_failure(&job), failure);
    world.run(&job);
    world.pong();
    assert_eq!(world.finishes(job.attempt_ref()).len(), 1);
}

fn links_are_not_followed() {
    let mut world = World::new(Mode::Best);
    let job = Job::shell(1, "echo overwritten");
    let victim = world.open_path("victim");
    fs::write(&victim, "precious").unwrap();
    let out = world.run_file(&job, ".out");
    fs::create_dir_all(out.parent().unwrap()).unwrap();
    symlink(&victim, &out).unwrap();
    let failure = world.start_failure(&job);
    expect(&failure, "stdout", libc::ELOOP, out.as_os_str().as_bytes());
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
}

fn shared_and_appended() {
    let mut world = World::new(Mode::Best);
    let file = world.open_path("both");
    fs::write(&file, "old\n").unwrap();
    let mut job = Job::shell(1, "echo out; echo err >&2; echo out");
    (job.stdout, job.stderr) = (Some(file.clone()), Some(file.clone()));
    let finish = world.outcome(&job);
    assert_eq!(fs::read_to_string(&file).unwrap(), "out\nerr\nout\n", "attempt 1 truncates");
    assert_eq!((finish.stdout_bytes, finish.stderr_bytes), (12, 12));
    job.attempt = 2;
    world.outcome(&job);
    assert_eq!(fs::read_to_string(&file).unwrap(), "out\nerr\nout\n".repeat(2));
    let mut job = Job { job: 2, attempt: 1, ..job };
    job.spec.append_output = true;
    world.outcome(&job);
    assert_eq!(fs::read_to_string(&file).unwrap(), "out\nerr\nout\n".repeat(3));
    let meta = fs::metadata(&file).unwrap();
    assert_eq!(world.start_of(&job).stdout_ino, meta.ino());
}

fn other_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut world = World::new(Mode::Best);
    let mut job = Job::shell(1, "id -u; id -g; id -G; grep ^Groups /proc/self/status");
    job.uid = Some(NOBODY);
    assert_eq!(status_of(&world.outcome(&job)), 0);
    let text = fs::read_to_string(world.run_file(&job, ".out")).unwrap();
    let lines: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(lines, ["65534", "65534", "65534", "Groups:", "65534"]);
    assert_eq!(fs::metadata(world.run_file(&job, ".out")).unwrap().uid(), NOBODY);

    // The data directory is closed to that user, but its own script is not.
    for (id, text) in [(2, "id -u; echo $1"), (3, "#!/bin/sh\nid -u; echo $1")] {
        let mut script = Job::argv(id, &["arg"]);
        script.uid = Some(NOBODY);
        script.spec.script = Some(text.as_bytes().to_vec());
        let finish = world.outcome(&script);
        assert_eq!(status_of(&finish), 0, "{}", String::from_utf8_lossy(&finish.stderr_tail));
        assert_eq!(fs::read(world.run_file(&script, ".out")).unwrap(), b"65534\narg\n");
    }

    let mut closed = Job::shell(4, "true");
    closed.uid = Some(NOBODY);
    closed.stdout = Some(world.dir().join("not-yours"));
    let failure = world.start_failure(&closed);
    let path = closed.stdout.as_ref().unwrap().as_os_str().as_bytes();
    expect(&failure, "stdout", libc::EACCES, path);
}

fn time_limit() {
    for mode in modes() {
        let mut world = World::new(mode);
        let mut job = Job::shell(1, "trap 'exit 0' TERM; sleep 999 & wait");
        job.spec.time_limit_ms = Some(300);
        let finish = world.outcome(&job);
        assert_eq!(finish.killed_for, KillCause::TimeLimit as i32);
        assert_eq!(status_of(&finish), 0, "its own status is told beside the cause");
        let lasted = finish.finish_wall_ms - finish.start.unwrap().start_wall_ms;
        assert!(lasted >= 280, "{lasted} ms");
        assert!(world.job_processes().is_empty());
    }
}

fn stderr_tail() {
    let mut world = World::new(Mode::Best);
    let job = Job::shell(1, "head -c 10000 /dev/zero | tr '\\0' x >&2; echo END >&2; exit 1");
    let finish = world.outcome(&job);
    assert_eq!(finish.stderr_tail, ["x".repeat(4092).as_bytes(), b"END\n"].concat());
    assert_eq!(finish.stderr_bytes, 10_004);
    let mut file = Job::shell(2, "echo why >&2; exit 1");
    file.stderr = Some(world.open_path("why"));
    assert_eq!(world.outcome(&file).stderr_tail, b"why\n");
}

fn many_short() {
    for mode in [Mode::Best, Mode::Marks] {
        let mut world = World::new(mode);
        let jobs: Vec<Job> = (1..=200)
            .map(|n| Job { job: n, ..Job::shell(n, &format!("exit {}", n % 7)) })
            .collect();
        for job in &jobs {
            world.run(job);
        }
        for job in &jobs {
            let finish = world.finish_of(job);
            assert_eq!(status_of(&finish), exited((job.job % 7) as u32));
            assert_eq!(finish.leftover, 0);
        }
        let last = Job::shell(999, &format!("touch {}", world.open_path("done").display()));
        world.outcome(&last);
        wait_for_file(&world.open_path("done"));
        assert_eq!(world.pong().live, 0);
    }
}
