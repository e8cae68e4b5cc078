//! Outputs that grow over `output_max`: head and tail stay, every byte keeps its offset, what is cut is
//! counted, and the job goes on; also on a disk that is smaller than what the job writes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{self, Fault};
use crate::runner::Test;
use crate::world::{Job, Mode, World, exited, kill_pid, modes, status_of, wait_for, wait_for_file};
use proto::v1::keeper_request::Kind as Request;
use proto::v1::{FinishFact, KeeperUpgrade};

pub const TESTS: &[Test] = &[
    ("an_output_over_its_bound_keeps_head_and_tail_and_its_job_goes_on", head_and_tail),
    ("a_job_that_writes_more_than_its_disk_holds_goes_on", small_disk),
    ("an_output_is_held_to_its_bound_over_a_death_of_its_keeper_and_an_upgrade", keepers_go),
    ("an_output_that_cannot_be_cut_grows_and_the_node_says_so", no_holes),
    ("nothing_is_cut_out_of_a_file_that_the_user_named", the_users_file),
    ("an_output_that_its_job_empties_is_whole_again", emptied),
];

const MIB: u64 = 1 << 20;

/// Of one line.
const LINE_BYTES: u64 = 64;

/// Line `n` of what the jobs write.
fn line(n: u64) -> String {
    format!("{n:063}\n")
}

/// A shell command that writes so many lines from `from` on.
fn lines(from: u64, count: u64) -> String {
    format!("seq -f %063.0f {from} {}", from + count - 1)
}

/// A job with this bound.
fn bounded(text: &str, max: u64) -> Job {
    Job { output_max_bytes: max, ..Job::shell(1, text) }
}

fn output(world: &World, job: &Job) -> PathBuf {
    job.run_prefix(world).with_extension(format!("{}.out", job.attempt))
}

/// `0.1.out.cut` says so.
fn noted(output: &Path) -> (u64, u64) {
    let text = fs::read_to_string(format!("{}.cut", output.display())).unwrap();
    let slots = text.lines().map(|slot| {
        let mut numbers = slot.split_ascii_whitespace().map(|word| word.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        (next(), (next(), next()))
    });
    slots.max().unwrap().1
}

/// Head and tail are as the job wrote them, and what is kept is within the bound. Gives what is cut.
fn check(output: &Path, total_lines: u64, max: u64) -> u64 {
    let (begin, end) = noted(output);
    let file = File::open(output).unwrap();
    let about = file.metadata().unwrap();
    let size = total_lines * LINE_BYTES;
    assert_eq!(about.len(), size, "every byte keeps its offset");
    assert!(begin >= max / 5 && size - end >= max / 2, "head and tail: {begin} {end} {size}");
    assert!(size - (end - begin) <= max, "{begin} {end} {size}");
    assert!(about.blocks() * 512 <= max + 64 * 1024, "{} blocks are taken", about.blocks());
    for n in (0..begin / LINE_BYTES).chain(end.div_ceil(LINE_BYTES)..total_lines) {
        let mut read = [0; LINE_BYTES as usize];
        file.read_exact_at(&mut read, n * LINE_BYTES).unwrap();
        assert_eq!(std::str::from_utf8(&read).unwrap(), line(n));
    }
    let bytes = (end - begin).min(MIB);
    let mut hole = vec![1; bytes as usize];
    file.read_exact_at(&mut hole, end - bytes).unwrap();
    assert!(hole.iter().all(|byte| *byte == 0), "what is cut is gone");
    end - begin
}

/// The finish counts all that was written, and what of it is cut.
fn counted(finish: &FinishFact, total_lines: u64, cut: u64) {
    assert_eq!(finish.stdout_bytes, total_lines * LINE_BYTES);
    assert_eq!((finish.stdout_cut_bytes, finish.stderr_cut_bytes), (cut, 0));
}

fn head_and_tail() {
    for mode in modes() {
        let mut world = World::new(mode);
        let (total, max) = (40 * MIB / LINE_BYTES, 2 * MIB);
        let job = bounded(&format!("echo err >&2; {}; exit 3", lines(0, total)), max);
        let finish = world.outcome(&job);
        assert_eq!(status_of(&finish), exited(3), "{mode:?}");
        let out = output(&world, &job);
        counted(&finish, total, check(&out, total, max));
        assert_eq!(finish.stderr_bytes, 4);
        // One that stays within its bound is left alone.
        let small = Job { job: 2, ..bounded(&lines(0, 2 * MIB / LINE_BYTES), max) };
        let finish = world.outcome(&small);
        assert_eq!((finish.stdout_bytes, finish.stdout_cut_bytes), (2 * MIB, 0), "{mode:?}");
        assert_eq!(fs::read(output(&world, &small)).unwrap().len() as u64, 2 * MIB);
        assert_eq!(world.pong().problem, "", "{mode:?}");
    }
}

/// Writes ten times what the disk holds; it waits for room as no real job does, so that the test does
/// not depend on how fast this machine writes.
fn small_disk() {
    for mode in modes().into_iter().filter(|mode| *mode != Mode::Marks) {
        let Some(mut world) = World::mounted(mode, "tmpfs", "size=104857600") else {
            return println!("skipped: no small disk can be mounted here");
        };
        let (rounds, chunk, max) = (125, 8 * MIB / LINE_BYTES, 16 * MIB);
        let job = bounded("", max);
        let out = output(&world, &job);
        let text = format!(
            "i=0; while [ $i -lt {rounds} ]; do \
             while [ $(stat -c %b {out}) -gt 120000 ]; do sleep 0.02; done; \
             seq -f %063.0f $((i * {chunk})) $((i * {chunk} + {chunk} - 1)) || exit 9; i=$((i+1)); done",
            out = out.display()
        );
        let mut job = bounded(&text, max);
        job.spec.argv = ["/bin/bash", "-c", &text].map(|word| word.as_bytes().to_vec()).into();
        world.run(&job);
        let other = Job::shell(2, "exit 4");
        wait_for("a good part of it", || {
            fs::metadata(&out).is_ok_and(|about| about.len() > 300 * MIB).then_some(())
        });
        assert_eq!(status_of(&world.outcome(&other)), exited(4), "the node serves others");
        let finish = world.finish_of(&job);
        assert_eq!(status_of(&finish), 0, "{mode:?} {}", world.log());
        let total = rounds * chunk;
        counted(&finish, total, check(&out, total, max));
        let pong = world.pong();
        assert!(!pong.disk_full && pong.problem.is_empty(), "{pong:?}");
    }
}

/// Begins to write, and waits for `go.N` before it writes on.
fn in_parts(world: &World, parts: u64, each: u64, max: u64) -> Job {
    let part = |n: u64| {
        let go = world.open_path(&format!("go.{n}"));
        let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
        format!("{wait}; {}; ", lines(n * each, each))
    };
    bounded(&(0..parts).map(part).collect::<String>(), max)
}

fn go(world: &World, part: u64) {
    fs::write(world.open_path(&format!("go.{part}")), "").unwrap();
}

/// All parts so far are written, and what is over the bound is cut.
fn is_cut_behind(output: &Path, written: u64, max: u64) {
    wait_for("the output to be cut", || {
        let about = fs::metadata(output).ok()?;
        let kept = about.blocks() * 512;
        (about.len() == written * LINE_BYTES && kept <= max + 64 * 1024).then_some(())
    });
}

fn keepers_go() {
    for mode in modes() {
        let mut world = World::new(mode);
        let (each, max) = (4 * MIB / LINE_BYTES, MIB);
        let job = in_parts(&world, 3, each, max);
        let out = output(&world, &job);
        world.run(&job);
        go(&world, 0);
        is_cut_behind(&out, each, max);
        let (begin, _) = noted(&out);
        kill_pid(world.welcome.pid);
        world.connect();
        go(&world, 1);
        is_cut_behind(&out, 2 * each, max);
        let newer = program::copy(&world, "9.9.9", Fault::None);
        world.send(Request::Upgrade(KeeperUpgrade {
            exe: newer.into_os_string().into_encoded_bytes(),
        }));
        wait_for("the newer program", || {
            world.connect_patiently();
            (world.welcome.version == "9.9.9").then_some(())
        });
        go(&world, 2);
        let finish = world.finish_of(&job);
        counted(&finish, 3 * each, check(&out, 3 * each, max));
        assert_eq!(noted(&out).0, begin, "{mode:?}: the head is what it was");
    }
}

/// Unmounted at its end.
struct Mount(PathBuf);

impl Mount {
    /// A file system that punches no holes, at a directory that is made for it.
    fn without_holes(at: PathBuf) -> Option<Mount> {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "ramfs", "-o", "mode=700", "none"]).arg(&at).output().ok()?;
        done.status.success().then_some(Mount(at))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn no_holes() {
    let mut world = World::new(Mode::Best);
    let Some(_mount) = Mount::without_holes(world.dir().join("runs")) else {
        return println!("skipped: no file system without holes can be mounted here");
    };
    let job = in_parts(&world, 2, MIB / LINE_BYTES, MIB / 4);
    let out = output(&world, &job);
    world.run(&job);
    go(&world, 0);
    let problem = wait_for("the node to say so", || {
        Some(world.pong().problem).filter(|problem| !problem.is_empty())
    });
    assert!(problem.contains("grows over output_max") && problem.contains("0.1.out"), "{problem}");
    go(&world, 1);
    let finish = world.finish_of(&job);
    assert_eq!((finish.stdout_bytes, finish.stdout_cut_bytes), (2 * MIB, 0));
    let all: String = (0..2 * MIB / LINE_BYTES).map(line).collect();
    assert!(fs::read_to_string(&out).unwrap() == all, "whole and unchanged");
    assert!(!Path::new(&format!("{}.cut", out.display())).exists());
}

fn the_users_file() {
    for mode in modes() {
        let mut world = World::new(mode);
        let total = 4 * MIB / LINE_BYTES;
        let mut job = bounded(&format!("{0}; {0} >&2; exit 5", lines(0, total)), MIB / 4);
        let mine = world.open_path("results");
        job.stdout = Some(mine.clone());
        let finish = world.outcome(&job);
        assert_eq!(status_of(&finish), exited(5), "{mode:?}");
        assert_eq!((finish.stdout_bytes, finish.stdout_cut_bytes), (4 * MIB, 0), "{mode:?}");
        assert!(finish.stderr_cut_bytes > 3 * MIB, "{mode:?}: the other one is docket's");
        let all: String = (0..total).map(line).collect();
        assert!(fs::read_to_string(&mine).unwrap() == all, "{mode:?}");
        assert!(!world.open_path("results.cut").exists());
    }
}

fn emptied() {
    let mut world = World::new(Mode::Best);
    let (each, max) = (4 * MIB / LINE_BYTES, MIB);
    let mut job = bounded("", max);
    let out = output(&world, &job);
    let (done, more) = (world.open_path("done"), world.open_path("more"));
    let text = format!(
        "{0}; while [ ! -e {more} ]; do sleep 0.02; done; truncate -s 0 {out}; {1}; touch {done}; \
         while [ ! -e {more}.again ]; do sleep 0.02; done; {0}",
        lines(0, each),
        lines(0, 10),
        more = more.display(),
        done = done.display(),
        out = out.display(),
    );
    job.spec.argv = ["/bin/sh", "-c", &text].map(|word| word.as_bytes().to_vec()).into();
    world.run(&job);
    is_cut_behind(&out, each, max);
    fs::write(&more, "").unwrap();
    wait_for_file(&done);
    wait_for("the note to be taken back", || (noted(&out) == (0, 0)).then_some(()));
    let few: String = (0..10).map(line).collect();
    assert_eq!(fs::read_to_string(&out).unwrap(), few);
    fs::write(format!("{}.again", more.display()), "").unwrap();
    let finish = world.finish_of(&job);
    assert_eq!(finish.stdout_bytes, (each + 10) * LINE_BYTES);
    let (begin, end) = noted(&out);
    assert_eq!(finish.stdout_cut_bytes, end - begin);
    assert!(end - begin > 3 * MIB, "and it is held to its bound again");
}
