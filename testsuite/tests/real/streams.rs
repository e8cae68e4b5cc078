//! Output and input pass through docket byte for byte, and no daemon grows by them.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::Stdio;
use testsuite::patience::wait_until;
use testsuite::world::{World, vm_hwm_bytes};
use testsuite::{heavy_world, world};

/// What a daemon may grow by while a large stream passes: pieces in flight and allocator slack.
const GROWTH_MAX: u64 = 48 << 20;

/// Bytes without a pattern that a codec could hide behind, the same in every run.
pub fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

pub fn every_byte() -> Vec<u8> {
    (0..=255).chain((0..=255).rev()).collect()
}

#[test]
fn stdout_and_stderr_arrive_apart_and_exact() {
    let world = world!();
    let _node = world.up(2);
    std::fs::write(world.file("out"), every_byte()).unwrap();
    std::fs::write(world.file("err"), noise(100_000)).unwrap();
    let ran = world.docket(&["run", "--", "sh", "-c", "cat out; cat err >&2; exit 0"]);
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    assert!(ran.stdout == every_byte(), "stdout is exact");
    assert!(ran.stderr == noise(100_000), "stderr is exact, with nothing of docket's in it");
    // The same again from the stored output.
    assert!(world.docket(&["logs", "1"]).stdout == every_byte());
    assert!(world.docket(&["logs", "1", "--stderr"]).stdout == noise(100_000));
    let tail = world.docket(&["logs", "1", "--stderr", "--offset", "99990"]);
    assert!(tail.stdout == noise(100_000)[99_990..], "an offset is a byte offset");
}

#[test]
fn a_line_of_8_mb_arrives_whole() {
    let world = world!();
    let _node = world.up(2);
    let mut line = vec![b'x'; 8 << 20];
    line.extend_from_slice(b"\ntail without end");
    std::fs::write(world.file("line"), &line).unwrap();
    let ran = world.docket(&["run", "--", "cat", "line"]);
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    assert!(ran.stdout == line, "{} bytes of {}", ran.stdout.len(), line.len());
}

#[test]
fn the_tail_of_a_log_is_whole_lines() {
    let world = world!();
    let _node = world.up(2);
    let job = world.submit_sh(&[], "i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo line $i; done");
    world.wait_end(job);
    let job = job.to_string();
    assert_eq!(world.ok(&["logs", &job, "--tail", "2"]), "line 499\nline 500\n");
    assert_eq!(world.ok(&["logs", &job]).lines().count(), 500);
}

#[test]
fn following_shows_output_while_the_job_runs_and_ends_with_it() {
    let world = world!();
    let _node = world.up(2);
    let job = world
        .submit_sh(&[], "echo first; while [ ! -e go ]; do sleep 0.05; done; printf 'no newline'");
    let mut follower = world.start(&["logs", "-f", &job.to_string()]);
    follower.wait_for_line("first");
    follower.must_live();
    world.touch("go");
    let status = follower.ended_within(testsuite::patience::SOON);
    assert!(status.success(), "{status} {}", follower.printed());
    assert_eq!(follower.printed(), "first\nno newline");
}

#[test]
fn stdin_reaches_the_job() {
    let world = world!();
    let _node = world.up(2);
    let mut input = every_byte();
    input.extend(noise(300_000));
    let ran = world.docket_with_stdin(&["run", "--", "cat"], &input);
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    assert!(ran.stdout == input, "{} bytes of {}", ran.stdout.len(), input.len());
    // By name, and none at all.
    std::fs::write(world.file("in"), "from a file\n").unwrap();
    let job = world.submit(&["--stdin", "in", "--", "cat"]);
    world.wait_end(job);
    assert_eq!(world.ok(&["logs", &job.to_string()]), "from a file\n");
    let ran = world.docket(&["run", "--", "cat"]);
    assert_eq!((ran.code, ran.text().as_str()), (Some(0), ""), "stdin is /dev/null by default");
}

#[test]
fn a_grandchild_that_holds_stdout_open_neither_delays_the_end_nor_loses_the_tail() {
    let world = world!();
    let _node = world.up(2);
    let ran = world.docket(&["run", "--", "sh", "-c", "sleep 300 & echo tail; exit 4"]);
    assert_eq!(ran.code, Some(4), "{}", ran.describe());
    assert_eq!(ran.text(), "tail\n");
}

#[test]
fn output_goes_to_the_named_files() {
    let world = world!();
    let _node = world.up(2);
    let script = "echo out; echo err >&2";
    let job = world.submit_sh(&["-J", "nm", "-o", "o.%x.%j.%t", "-e", "e.%4j"], script);
    world.wait_end(job);
    assert_eq!(world.lines(&format!("o.nm.{job}.1")), ["out"]);
    assert_eq!(world.lines(&format!("e.{job:04}")), ["err"]);
    assert_eq!(world.ok(&["logs", &job.to_string()]), "out\n", "logs finds the file");
}

/// 64 MiB in the gate; 1 GiB by hand with `DOCKET_TEST_LARGE=1`.
#[test]
fn a_large_stream_passes_and_no_daemon_grows() {
    let world = heavy_world!();
    let _node = world.up(2);
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0), "everything is warm");
    let size = if std::env::var_os("DOCKET_TEST_LARGE").is_some() { 1 << 30 } else { 64 << 20 };
    write_noise(&world.file("big"), size);
    let before: Vec<(i32, u64)> =
        world.daemons().iter().map(|p| (p.pid, vm_hwm_bytes(p.pid))).collect();
    assert!(before.len() >= 3, "up, keeper and guard live: {:?}", world.daemons());
    let mut command = world.docket_command(&["run", "--", "cat", "big"]);
    command.stdout(File::create(world.file("copy")).unwrap()).stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap();
    wait_until("the stream has passed", std::time::Duration::from_secs(600), || {
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_same(&world.file("big"), &world.file("copy"));
    for (pid, hwm) in before {
        let grown = vm_hwm_bytes(pid).saturating_sub(hwm);
        assert!(vm_hwm_bytes(pid) > 0, "process {pid} still lives");
        assert!(grown < GROWTH_MAX, "process {pid} grew by {grown} bytes for {size} of output");
    }
    assert_rss_is_sane(&world);
}

fn assert_rss_is_sane(world: &World) {
    for daemon in world.daemons() {
        let peak = vm_hwm_bytes(daemon.pid);
        assert!(peak < 512 << 20, "{:?} needed {peak} bytes", daemon.argv);
    }
}

pub fn write_noise(path: &Path, size: usize) {
    let piece = noise(1 << 20);
    let mut file = BufWriter::new(File::create(path).unwrap());
    for number in 0..size / piece.len() {
        file.write_all(&(number as u64).to_le_bytes()).unwrap();
        file.write_all(&piece[8..]).unwrap();
    }
    file.flush().unwrap();
}

fn assert_same(left: &Path, right: &Path) {
    assert_eq!(left.metadata().unwrap().len(), right.metadata().unwrap().len(), "same length");
    let (mut left, mut right) = (File::open(left).unwrap(), File::open(right).unwrap());
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for piece in 0.. {
        let n = left.read(&mut a).unwrap();
        if n == 0 {
            break;
        }
        right.read_exact(&mut b[..n]).unwrap();
        assert!(a[..n] == b[..n], "piece {piece} of 1 MiB differs");
    }
}
