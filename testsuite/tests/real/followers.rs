//! Readers of output whatever happens to them or to the job: each prints the job's bytes, once, and
//! ends with the last one; none of them holds the job up.

use crate::streams::{every_byte, noise, write_noise};
use std::fs::File;
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::Duration;
use testsuite::patience::{LATER, SOON, let_pass, wait_until};
use testsuite::world::{Cutter, Daemon, Pace, Role, Split, World};
use testsuite::{heavy_world, world};

/// Lines of a job whose followers are cut.
const LINES: usize = 120;

/// Between two cuts.
const CUT_EVERY: Duration = Duration::from_millis(100);

/// A job that a death of its agent does not end.
const SURVIVES: [&str; 2] = ["--on-disconnect", "unknown"];

/// A progress bar that knows only carriage returns, and every byte value, without a last newline.
fn odd_bytes() -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..=100).flat_map(|n| format!("\r{n:3} % \x1b[K").into_bytes()).collect();
    bytes.extend(every_byte());
    bytes.extend(b"\rno newline");
    bytes
}

#[test]
fn carriage_returns_and_every_byte_value_arrive_exactly_however_they_are_read() {
    let world = world!();
    let _node = world.up(2);
    let odd = odd_bytes();
    std::fs::write(world.file("odd"), &odd).unwrap();
    let script = "cat odd; cat odd >&2; while [ ! -e go ]; do sleep 0.05; done; exit 3";
    let job = world.submit_sh(&[], script).to_string();
    let follow = |more: &[&str]| world.start(&[&["logs", "-f", &job], more].concat());
    let mut followers = [follow(&[]), follow(&["--stderr"])];
    for follower in &mut followers {
        wait_until("all of it is shown while the job runs", SOON, || {
            follower.must_live();
            follower.printed_bytes() == odd
        });
    }
    world.touch("go");
    for follower in &mut followers {
        assert!(follower.ended_within(SOON).success());
        assert!(follower.printed_bytes() == odd, "followed: nothing is added at the end");
    }
    for args in [&["logs", &job][..], &["logs", "-f", &job], &["logs", "--stderr", &job]] {
        assert!(world.docket(args).stdout == odd, "{args:?}");
    }
    let ran = world.docket(&["run", "--", "sh", "-c", script]);
    assert!(ran.stdout == odd && ran.stderr.starts_with(&odd), "run: both streams");
}

#[test]
fn what_a_job_writes_or_is_called_never_reaches_a_terminal_raw_in_a_table() {
    let world = world!();
    let _node = world.up(2);
    std::fs::write(world.file("odd"), odd_bytes()).unwrap();
    let refused = world.docket(&["submit", "-J", "\x1b[2J", "--", "true"]);
    assert_eq!(refused.code, Some(2), "a name is text: {}", refused.describe());
    let job = world.submit_sh(&["-J", "na\u{202e}me"], "cat odd >&2; exit 3");
    world.wait_end(job);
    let job = job.to_string();
    for args in [
        &["show", &job][..],
        &["explain", &job],
        &["events", &job],
        &["list", "--all"],
        &["wait", &job],
        &["show", &job, "-o", "json"],
    ] {
        let ran = world.docket(args);
        let text = ran.text() + &ran.err();
        let raw = text.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(raw, None, "{args:?} shows a control character: {text:?}");
        assert!(text.contains("na") || args[0] != "list", "{text}");
    }
    assert!(world.ok(&["show", &job]).contains("no newline"), "the last words are shown");
}

/// 64 MiB in the gate; 5 GiB by hand with `DOCKET_TEST_LARGE=1`.
#[test]
fn a_follower_that_does_not_read_holds_nobody_up_and_gets_every_byte_later() {
    let world = heavy_world!();
    let _node = world.up(2);
    let size = if std::env::var_os("DOCKET_TEST_LARGE").is_some() { 5 << 30 } else { 64 << 20 };
    write_noise(&world.file("big"), size);
    let job = world.submit_sh(&[], "while [ ! -e go ]; do sleep 0.05; done; exec cat big");
    world.wait_state(job, "RUN");
    let mut command = world.docket_command(&["logs", "-f", &job.to_string()]);
    let mut stuck = command.stdout(Stdio::piped()).spawn().unwrap();
    let quick = world.start(&["logs", "-f", &job.to_string()]);
    world.touch("go");
    let limit = Duration::from_secs(900);
    wait_until("the job has ended while nobody reads", limit, || {
        world.docket(&["show", &job.to_string(), "-o", "id"]);
        world.show(job)["terminal"] == true
    });
    assert_eq!(world.show(job)["state"], "DONE");
    assert!(stuck.try_wait().unwrap().is_none(), "the stuck follower waits for its reader");
    assert_streams_as(&mut stuck, &world, "big");
    ends_with_success(quick, limit);
}

fn ends_with_success(mut follower: Daemon, limit: Duration) {
    let status = follower.ended_within(limit);
    assert!(status.success(), "{status}");
}

/// Reads the process to its end beside the file: the same bytes, without keeping them.
fn assert_streams_as(child: &mut Child, world: &World, name: &str) {
    let mut pipe = child.stdout.take().unwrap();
    let mut file = File::open(world.file(name)).unwrap();
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut count = 0;
    loop {
        let n = pipe.read(&mut a).unwrap();
        if n == 0 {
            break;
        }
        file.read_exact(&mut b[..n]).unwrap();
        assert!(a[..n] == b[..n], "the bytes behind {count} differ");
        count += n as u64;
    }
    assert_eq!(count, file.metadata().unwrap().len(), "all of it");
    assert!(child.wait().unwrap().success());
}

/// A job that numbers its lines, each written in two pieces: a reader that is cut between them may
/// not begin the line again.
fn numbered_lines(world: &World) -> u64 {
    let script = format!(
        "i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); printf \"$i \"; sleep 0.03; echo $i; sleep 0.02; done"
    );
    world.submit_sh(&SURVIVES, &script)
}

fn all_lines() -> String {
    (1..=LINES).map(|n| format!("{n} {n}\n")).collect()
}

/// What the job wrote: notes about a server that is away stand between, even within a line.
fn lines_of(follower: &Daemon) -> String {
    let mut text = follower.printed();
    while let Some(from) = text.find("docket: ") {
        let to = text[from..].find('\n').map_or(text.len(), |at| from + at + 1);
        text.replace_range(from..to, "");
    }
    text
}

#[test]
fn a_follower_that_is_cut_ten_times_a_second_prints_every_byte_once() {
    let world = world!();
    let address = World::free_address();
    let _node = world.up_with(2, &["--listen", &address]);
    let line = Cutter::start(&address);
    let job = numbered_lines(&world);
    let server = format!("http://{}", line.address());
    let mut follower = world.start(&["--server", &server, "logs", "-f", &job.to_string()]);
    let mut shown = 0;
    while world.show(job)["terminal"] == false {
        line.cut();
        let_pass(CUT_EVERY, "time passes", || true);
        line.cut();
        // Once in a while it gets far enough to have something to resume from.
        wait_until("it shows more, or the job has ended", SOON, || {
            let more = follower.printed().len() > shown;
            more || world.show(job)["terminal"] == true
        });
        shown = follower.printed().len();
    }
    assert!(follower.ended_within(LATER).success());
    assert_eq!(lines_of(&follower), all_lines());
    assert!(line.broken() >= 10, "it was cut {} times", line.broken());
    assert_eq!(world.ok(&["logs", &job.to_string()]), all_lines());
}

#[test]
fn a_follower_outlives_deaths_of_the_controller_and_the_agent_and_repeats_nothing() {
    let mut split = Split::start(world!(), Pace::QUICK);
    let job = numbered_lines(&split.world);
    let id = job.to_string();
    let mut followers = [
        split.world.start(&["logs", "-f", &id]),
        split.world.start(&["--server", &format!("http://{}", split.address()), "logs", "-f", &id]),
    ];
    for blow in 0..4 {
        let before = followers.each_ref().map(|follower| lines_of(follower).len());
        for (follower, before) in followers.iter_mut().zip(before) {
            wait_until("the follower goes on", LATER, || {
                follower.must_live();
                let lines = lines_of(follower);
                lines.len() > before || lines == all_lines()
            });
        }
        match blow % 2 {
            0 => split.bounce_controller(),
            _ => {
                split.agent.kill9();
                split.agent_again();
            }
        }
    }
    for follower in &mut followers {
        let status = follower.ended_within(LATER);
        assert!(status.success(), "{status}: {}", follower.printed());
        assert_eq!(lines_of(follower), all_lines());
    }
    assert_eq!(split.world.show(job)["state"], "DONE");
}

#[test]
fn followers_from_before_during_and_after_the_run_end_with_the_last_byte() {
    let world = world!();
    let _node = world.up(1);
    let holds_the_cpu = world.submit_sh(&[], "while [ ! -e begin ]; do sleep 0.05; done");
    world.wait_state(holds_the_cpu, "RUN");
    let script = "printf first; while [ ! -e go ]; do sleep 0.05; done; printf last; exit 9";
    let job = world.submit_sh(&[], script);
    let id = job.to_string();
    let silent = world.submit_sh(&[], "exit 2").to_string();
    let follow = || world.start(&["logs", "-f", &id]);
    let mut followers = vec![follow(), world.start(&["logs", "-f", &silent])];
    assert_eq!(world.show(job)["state"], "PEND", "the first follower begins before the job");
    world.touch("begin");
    world.wait_state(job, "RUN");
    followers[0].wait_for_line("first");
    followers.push(follow());
    followers[2].wait_for_line("first");
    world.touch("go");
    world.wait_end(job);
    followers.push(follow());
    for (at, follower) in followers.iter_mut().enumerate() {
        let status = follower.ended_within(SOON);
        // It printed all there is: that is success; how the job ended is what `wait` tells.
        assert!(status.success(), "follower {at}: {status} {}", follower.printed());
        let all = if at == 1 { "" } else { "firstlast" };
        assert_eq!(follower.printed(), all, "follower {at}");
    }
}

#[test]
fn all_that_was_written_before_death_is_there_before_the_end_is_shown() {
    let world = world!();
    let _node = world.up(4);
    let last = noise(1_000_000);
    std::fs::write(world.file("last"), &last).unwrap();
    let deaths = [
        "cat last; kill -KILL $$",
        "cat last; kill -SEGV $$",
        "exec cat last",
        "cat last; exec sh -c 'exit 7'",
        // The one who writes is killed in the middle of more.
        "(cat last; kill -KILL $$; while :; do sleep 1; done)",
    ];
    for death in deaths {
        let job = world.submit_sh(&[], death);
        let mut follower = world.start(&["logs", "-f", &job.to_string()]);
        world.docket(&["wait", &job.to_string()]);
        let task = world.show(job);
        assert_eq!(task["terminal"], true, "{task:#}");
        // Without waiting for anything: the end was shown, so the bytes are there.
        let logs = world.docket(&["logs", &job.to_string()]);
        assert!(logs.stdout == last, "{death}: {} bytes", logs.stdout.len());
        assert!(follower.ended_within(SOON).success());
        assert!(follower.printed_bytes() == last, "{death}: followed");
    }
}

#[test]
fn bytes_written_before_the_keeper_died_are_not_lost() {
    let world = world!();
    let _node = world.up(2);
    let job =
        world.submit_sh(&SURVIVES, "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two");
    let mut follower = world.start(&["logs", "-f", &job.to_string()]);
    follower.wait_for_line("one");
    world.kill_role(Role::Keeper);
    world.touch("go");
    world.wait_end(job);
    assert!(follower.ended_within(SOON).success());
    assert_eq!(follower.printed(), "one\ntwo\n");
    assert_eq!(world.ok(&["logs", &job.to_string()]), "one\ntwo\n");
}
