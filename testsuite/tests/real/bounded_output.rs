//! Output that grows over `output_max` (H08): what is left is shown as it was written, what is missing
//! is said to the byte and never shown as zeros, and neither its job nor its node comes to harm.

use std::io::Read;
use std::process::Stdio;
use testsuite::patience::{LATER, wait_by_command, wait_until};
use testsuite::world;
use testsuite::world::{Pace, Split, World};

/// Bytes of a line.
const LINE: usize = 64;

const MIB: usize = 1 << 20;

/// A command that writes the lines `from` to `to - 1`.
fn lines(from: usize, to: usize) -> String {
    format!("seq -f %063.0f {from} {}", to - 1)
}

/// The numbers of the whole lines in a text, and whether each is the one that belongs at its place.
fn numbers(text: &str) -> Vec<usize> {
    let whole = text.split_inclusive('\n').filter(|line| line.len() == LINE);
    whole.map(|line| line.trim_end().parse().unwrap()).collect()
}

/// What the note of a cut says: bytes, first byte, first byte behind it.
fn note(text: &str) -> (usize, usize, usize) {
    let line = text.lines().find(|line| line.contains("cut out here")).unwrap_or_else(|| {
        panic!("nothing is said of a cut: {text}");
    });
    assert!(line.starts_with("docket: ") && line.contains("output_max"), "{line}");
    let words = line.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    let numbers: Vec<usize> = words.map(|word| word.parse().unwrap()).collect();
    (numbers[0], numbers[1], numbers[2])
}

/// Head and tail of so many lines, as they were written.
fn is_head_and_tail(text: &str, begin: usize, end: usize, total: usize) {
    assert!(!text.contains('\0'), "no zeros in place of what is gone");
    assert_eq!(text.len(), total * LINE - (end - begin));
    let (head, tail) = text.split_at(begin);
    assert_eq!(numbers(head), (0..begin / LINE).collect::<Vec<_>>());
    assert_eq!(numbers(tail), (end / LINE..total).collect::<Vec<_>>());
}

fn bounded(test: World) -> World {
    let mut world = test;
    world.set("DOCKET_AGENT__OUTPUT_MAX", "1MiB");
    world
}

#[test]
fn an_output_over_its_bound_shows_head_and_tail_and_says_what_is_missing() {
    let world = bounded(world!());
    let _node = world.up(2);
    let total = 20 * MIB / LINE;
    let job = world.submit_sh(&[], &format!("{}; echo err >&2; exit 4", lines(0, total)));
    let task = world.wait_end(job);
    assert_eq!(task["exit_code"], 4, "the job goes on to its own end");
    let id = job.to_string();
    let ran = world.docket(&["logs", &id]);
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    let (cut, begin, end) = note(&ran.err());
    assert_eq!(end - begin, cut);
    assert!(cut > 18 * MIB && ran.text().len() <= MIB, "{cut}");
    is_head_and_tail(&ran.text(), begin, end, total);
    // Programs are told the same.
    assert_eq!(task["stdout_bytes"], total * LINE, "{task:#}");
    assert_eq!((&task["stdout_cut_bytes"], &task["stderr_cut_bytes"]), (&cut.into(), &0.into()));
    let shown = world.ok(&["show", &id]);
    assert!(shown.contains("cut out"), "{shown}");
    // Offsets are those of what was written, whatever is missing.
    let offset = |at: usize| world.docket(&["logs", &id, "--offset", &at.to_string()]);
    let within = offset(begin + 1000);
    assert_eq!(note(&within.err()), (cut - 1000, begin + 1000, end));
    assert_eq!(within.text(), ran.text()[begin..]);
    let behind = offset(end);
    assert_eq!((behind.text(), behind.err()), (ran.text()[begin..].to_owned(), String::new()));
    let tail = world.docket(&["logs", &id, "--tail", "2"]);
    assert_eq!(numbers(&tail.text()), [total - 2, total - 1]);
    assert_eq!(tail.err(), "", "nothing is missing in it");
    assert_eq!(world.ok(&["logs", &id, "--stderr"]), "err\n");
    let config = world.ok(&["config"]);
    let line = config.lines().find(|line| line.contains("output_max")).unwrap();
    assert!(line.contains("1M") && !line.contains("no effect"), "{line}");
}

#[test]
fn a_follower_that_is_slow_gets_all_that_is_left_and_is_told_what_is_not() {
    let world = bounded(world!());
    let _node = world.up(2);
    let (first, total) = (64 * 1024 / LINE, 24 * MIB / LINE);
    let wait = "while [ ! -e go ]; do sleep 0.05; done";
    let job =
        world.submit_sh(&[], &format!("{}; {wait}; {}", lines(0, first), lines(first, total)));
    let id = job.to_string();
    wait_by_command("the first lines are there", || {
        world.docket(&["logs", &id]).text().len() == first * LINE
    });
    let mut follower = world.docket_command(&["logs", "-f", &id]);
    let mut follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = follower.stdout.take().unwrap();
    let mut text = vec![0; LINE];
    out.read_exact(&mut text).unwrap();
    // It does not read on until the job is over: far more than what waits for it is cut meanwhile.
    world.touch("go");
    let task = world.wait_end(job);
    assert_eq!(task["stdout_bytes"], total * LINE);
    out.read_to_end(&mut text).unwrap();
    let mut said = String::new();
    follower.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(follower.wait().unwrap().success(), "{said}");
    let text = String::from_utf8(text).unwrap();
    let notes: Vec<_> = said.lines().filter(|line| line.contains("cut out here")).collect();
    let missing: usize = notes.iter().map(|line| note(line).0).sum();
    assert!(!notes.is_empty(), "{said}");
    assert_eq!(text.len() + missing, total * LINE, "every byte is there or said to be cut: {said}");
    assert!(!text.contains('\0'));
    let mut at = 0;
    let mut rest = &text[..];
    for line in notes {
        let (_, begin, end) = note(line);
        let (before, behind) = rest.split_at(begin - at);
        assert_eq!(numbers(before), (at.div_ceil(LINE)..begin / LINE).collect::<Vec<_>>());
        (at, rest) = (end, behind);
    }
    assert_eq!(numbers(rest).last(), Some(&(total - 1)), "to the last line");
}

#[test]
fn a_job_that_writes_more_than_the_disk_holds_goes_on_and_its_node_is_well() {
    const TEST: &str = "a_job_that_writes_more_than_the_disk_holds_goes_on_and_its_node_is_well";
    let mut world = world!();
    world.set("DOCKET_AGENT__OUTPUT_MAX", "8MiB");
    let Some((split, disks)) = Split::on_small_disks(TEST, world, Pace::QUICK, 100) else { return };
    let world = &split.world;
    let (rounds, chunk) = (60, 8 * MIB / LINE);
    // It waits while little room is left, so that the speed of this machine is no matter.
    let script = format!(
        "i=0; while [ $i -lt {rounds} ]; do \
         while [ $(stat -f -c %a {node}) -lt $(($(stat -f -c %b {node}) / 2)) ]; do sleep 0.02; done; \
         seq -f %063.0f $((i * {chunk})) $((i * {chunk} + {chunk} - 1)) || exit 9; i=$((i + 1)); done",
        node = world.dir().join(Split::NODE).display()
    );
    let job = world.submit_sh(&[], &script);
    let run_file = disks.path(Split::NODE).join(format!("runs/{job}/0.1.out"));
    wait_until("it has written more than the disk holds", LATER, || {
        std::fs::metadata(&run_file).is_ok_and(|about| about.len() > 150 * MIB as u64)
    });
    assert_eq!(world.docket(&["run", "--", "true"]).code, Some(0), "the node serves others");
    let task = world.wait_end(job);
    let total = rounds * chunk;
    assert_eq!((&task["state"], &task["stdout_bytes"]), (&"DONE".into(), &(total * LINE).into()));
    let ran = world.docket(&["logs", &job.to_string()]);
    let (cut, begin, end) = note(&ran.err());
    assert_eq!(task["stdout_cut_bytes"], cut);
    is_head_and_tail(&ran.text(), begin, end, total);
    let nodes: serde_json::Value =
        serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    assert_eq!(nodes[0]["notes"], serde_json::Value::Null, "{nodes:#}");
}
