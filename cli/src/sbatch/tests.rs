//! Every option of the table, in every spelling, with every form of value that is seen in the wild.

use super::table::{Does, OPTIONS, SlurmOption, Takes, What};
use super::{Asked, read};
use crate::args::{JobOptions, OpenMode};
use clap::Parser;
use proto::v1::ExitKind;
use std::ffi::OsString;
use std::time::Duration;

#[derive(Debug, Parser)]
#[command(args_override_self = true)]
struct Line {
    #[command(flatten)]
    options: JobOptions,
}

/// The options that lines give, where nobody says more.
fn options_of(lines: &[&str]) -> Result<JobOptions, String> {
    let asked = asked(lines)?;
    let words = std::iter::once(OsString::from("x")).chain(asked.sbatch.words());
    let mut options = Line::try_parse_from(words).map_err(|why| why.to_string())?.options;
    asked.sbatch.fill(&mut options);
    Ok(options)
}

fn asked(lines: &[&str]) -> Result<Asked, String> {
    let lines: Vec<(usize, String)> =
        lines.iter().enumerate().map(|(at, text)| (at + 2, (*text).to_owned())).collect();
    read(&lines).map_err(|(line, why)| format!("{line}: {why}"))
}

/// All spellings of an option with that value.
fn spellings(option: &SlurmOption, value: Option<&str>) -> Vec<String> {
    let names = || std::iter::once(&option.name).chain(option.others);
    let letter = option.letter.into_iter();
    match (option.takes, value) {
        (_, None) => names()
            .map(|name| format!(" --{name}"))
            .chain(letter.map(|c| format!(" -{c}")))
            .collect(),
        (Takes::Value, Some(value)) => names()
            .flat_map(|name| {
                [format!(" --{name}='{value}'"), format!("\t--{name} \"{value}\" # note")]
            })
            .chain(letter.flat_map(|c| [format!(" -{c} '{value}'"), format!(" -{c}'{value}'")]))
            .collect(),
        (_, Some(value)) => names()
            .map(|name| format!(" --{name}='{value}'"))
            .chain(letter.map(|c| format!(" -{c}'{value}'")))
            .collect(),
    }
}

fn option(name: &str) -> &'static SlurmOption {
    OPTIONS.iter().find(|option| option.name == name).unwrap()
}

/// What the job is to be, as text.
fn shown(options: &JobOptions) -> String {
    let mut parts = Vec::new();
    let mut say = |name: &str, value: String, default: &str| {
        if value != default {
            parts.push(format!("{name}={value}"));
        }
    };
    let os = |text: &Option<OsString>| text.as_ref().map_or("", |t| t.to_str().unwrap()).to_owned();
    let list = |words: &[OsString]| {
        words.iter().map(|w| w.to_str().unwrap()).collect::<Vec<_>>().join(",")
    };
    say("name", options.name.clone().unwrap_or_default(), "");
    say("cpus", options.cpus.to_string(), "1");
    say("mem", options.mem.map(|mem| (mem >> 20).to_string()).unwrap_or_default(), "");
    say("gpus", options.gpus.unwrap_or(0).to_string(), "0");
    say("time", options.time.map(units::exact_duration).unwrap_or_default(), "");
    say("out", os(&options.stdout), "");
    say("err", os(&options.stderr), &os(&options.stdout));
    say("in", os(&options.stdin), "");
    say("dir", os(&options.dir), "");
    say("queue", options.queue.clone(), "default");
    say("priority", options.priority.to_string(), "0");
    say("node", options.node.clone().unwrap_or_default(), "");
    say("comment", options.comment.clone().unwrap_or_default(), "");
    say("hold", options.hold.to_string(), "false");
    say("wait", options.slurm.wait.to_string(), "false");
    say("append", (options.open_mode == OpenMode::Append).to_string(), "false");
    say("env", list(&options.env), "");
    say("only", list(&options.env_only), "");
    say("clean", options.clean_env.to_string(), "false");
    say("signal", options.signal.map(|s| crate::parse::warn_text(&s)).unwrap_or_default(), "");
    say("retries", options.retries.to_string(), "0");
    let resources: Vec<String> =
        options.resource.iter().map(|(name, n)| format!("{name}:{n}")).collect();
    say("resources", resources.join(","), "");
    let labels: Vec<String> = options.node_label.iter().map(|(k, v)| format!("{k}={v}")).collect();
    say("labels", labels.join(","), "");
    let array = options.array.as_ref().map(|a| {
        let ranges: Vec<_> =
            a.ranges.iter().map(|r| format!("{}-{}:{}", r.first, r.last, r.step)).collect();
        format!("{}%{}", ranges.join(","), a.limit.unwrap_or(0))
    });
    say("array", array.unwrap_or_default(), "");
    let deps: Vec<String> =
        options.after.dependencies().iter().map(|d| format!("{}:{}", d.kind, d.job)).collect();
    say("after", deps.join(","), "");
    say("begin", options.after.begin.is_some().to_string(), "false");
    parts.join(" ")
}

/// Values of options that say something about a job, and what they say.
const READ: [(&str, &[(&str, &str)]); 35] = [
    (
        "array",
        &[
            ("0-9", "array=0-9:1%0"),
            ("0-9%3", "array=0-9:1%3"),
            ("5", "array=5-5:1%0"),
            ("1,3,5-7", "array=1-1:1,3-3:1,5-7:1%0"),
            ("0-8:4%2", "array=0-8:4%2"),
            ("7%1", "array=7-7:1%1"),
        ],
    ),
    (
        "begin",
        &[
            ("now", "begin=true"),
            ("now+60", "begin=true"),
            ("now+2minutes", "begin=true"),
            ("now+1hour", "begin=true"),
            ("now+1week", "begin=true"),
            ("16:00", "begin=true"),
            ("teatime", "begin=true"),
            ("tomorrow", "begin=true"),
            ("2030-01-20T12:34:00", "begin=true"),
        ],
    ),
    ("chdir", &[("/data/x", "dir=/data/x"), ("a b", "dir=a b")]),
    ("comment", &[("a note", "comment=a note")]),
    (
        "constraint",
        &[("haswell", "labels=haswell=true"), ("ib&gpu80", "labels=ib=true,gpu80=true")],
    ),
    ("cpus-per-gpu", &[]),
    ("cpus-per-task", &[("8", "cpus=8"), ("1", "")]),
    ("dependency", &[("afterok:12", "after=1:12"), ("afterany:3:4", "after=2:3,2:4")]),
    ("error", &[("e_%j.err", "err=e_%j.err"), ("/dev/null", "err=/dev/null")]),
    (
        "export",
        &[
            ("ALL", ""),
            ("all", ""),
            ("NONE", "clean=true"),
            ("None", "clean=true"),
            ("A,B", "only=A,B"),
            ("ALL,A=1,B=2", "env=A=1,B=2"),
            ("A=1", "env=A=1 clean=true"),
            ("A=1,B", "env=A=1 only=B"),
        ],
    ),
    ("gpus", &[("2", "gpus=2"), ("a100:2", "gpus=2 labels=gpu=a100"), ("0", "")]),
    ("gpus-per-node", &[("2", "gpus=2"), ("v100:1", "gpus=1 labels=gpu=v100")]),
    ("gpus-per-task", &[("2", "gpus=2")]),
    (
        "gres",
        &[
            ("gpu", "gpus=1"),
            ("gpu:4", "gpus=4"),
            ("gpu:a100", "gpus=1 labels=gpu=a100"),
            ("gpu:a100:2", "gpus=2 labels=gpu=a100"),
            ("none", ""),
            ("lscratch:100", "resources=lscratch:100"),
            ("gpu:2,shard:3", "gpus=2 resources=shard:3"),
        ],
    ),
    ("hold", &[]),
    ("input", &[("in.txt", "in=in.txt"), ("/dev/null", "in=null")]),
    ("job-name", &[("train", "name=train"), ("my job", "name=my job")]),
    ("licenses", &[("matlab", "resources=matlab:1"), ("a:2,b", "resources=a:2,b:1")]),
    (
        "mem",
        &[
            ("4G", "mem=4096"),
            ("4GB", "mem=4096"),
            ("4gb", "mem=4096"),
            ("4Gb", "mem=4096"),
            ("500", "mem=500"),
            ("500M", "mem=500"),
            ("500mb", "mem=500"),
            ("1T", "mem=1048576"),
            ("2tb", "mem=2097152"),
            ("2048K", "mem=2"),
        ],
    ),
    ("mem-per-cpu", &[("2G", "mem=2048"), ("1500", "mem=1500"), ("7mb", "mem=7")]),
    ("mem-per-gpu", &[]),
    ("mincpus", &[("4", "cpus=4")]),
    ("nice", &[("50", "priority=-50"), ("-3", "priority=3"), ("99999", "priority=-1000")]),
    ("no-requeue", &[]),
    ("nodelist", &[("n017", "node=n017"), ("a.b-1", "node=a.b-1")]),
    ("nodes", &[("1", ""), ("1-1", ""), ("1-4", "")]),
    ("ntasks", &[("4", "cpus=4"), ("1", "")]),
    ("ntasks-per-node", &[("4", "cpus=4")]),
    ("open-mode", &[("append", "append=true"), ("truncate", "")]),
    (
        "output",
        &[
            ("log.txt", "out=log.txt"),
            ("%j.out", "out=%j.out"),
            ("%J.out", "out=%j.out"),
            ("%x-%A_%a.out", "out=%x-%A_%a.out"),
            ("%3a.%N.%u", "out=%3a.%n.%u"),
            ("%n.%4t.%%", "out=0.0000.%%"),
        ],
    ),
    ("partition", &[("gpu", "queue=gpu"), ("a,b", "queue=a,b")]),
    ("priority", &[("10", "priority=10"), ("0", "hold=true")]),
    ("requeue", &[]),
    (
        "signal",
        &[
            ("USR1@90", "signal=USR1@1m30s"),
            ("SIGTERM@60", "signal=TERM@1m"),
            ("B:USR1@300", "signal=B:USR1@5m"),
            ("10@30", "signal=USR1@30s"),
            ("B:10@30", "signal=B:USR1@30s"),
            ("USR1", "signal=USR1@1m"),
            ("B:SIGINT", "signal=B:INT@1m"),
        ],
    ),
    (
        "time",
        &[
            ("30", "time=30m"),
            ("4:30", "time=4m30s"),
            ("90:00", "time=1h30m"),
            ("01:30:00", "time=1h30m"),
            ("100:00:00", "time=4d4h"),
            ("2-12", "time=2d12h"),
            ("1-06:30", "time=1d6h30m"),
            ("1-06:30:15", "time=1d6h30m15s"),
            ("UNLIMITED", ""),
            ("infinite", ""),
            ("0", ""),
            ("00:00:00", ""),
        ],
    ),
];

#[test]
fn every_form_of_every_value_is_read_in_every_spelling() {
    for (name, samples) in READ {
        for (value, expected) in samples {
            for line in spellings(option(name), Some(value)) {
                let options = options_of(&[&line]).unwrap_or_else(|why| panic!("{line}: {why}"));
                assert_eq!(shown(&options), *expected, "{line}");
            }
        }
    }
    for (line, expected) in [
        (" --hold", "hold=true"),
        (" -H", "hold=true"),
        (" --requeue", "retries=3"),
        (" --requeue --no-requeue", ""),
        (" --wait", "wait=true"),
        (" -W", "wait=true"),
        (" --nice", "priority=-100"),
    ] {
        assert_eq!(shown(&options_of(&[line]).unwrap()), expected, "{line}");
    }
}

#[test]
fn the_samples_are_of_all_options_that_say_something() {
    let with: Vec<&str> = READ.iter().map(|(name, _)| *name).collect();
    let sets: Vec<&str> = OPTIONS
        .iter()
        .filter(|option| matches!(option.does, Does::Sets(what) if what != What::Wait))
        .map(|option| option.name)
        .collect();
    assert_eq!(with, sets.into_iter().filter(|name| *name != "wait").collect::<Vec<_>>());
}

#[test]
fn every_other_option_is_said_to_be_without_effect_or_refused_in_every_spelling() {
    for option in OPTIONS.iter().filter(|option| !matches!(option.does, Does::Sets(_))) {
        let value = (option.takes == Takes::Value).then_some("x");
        let mut lines = spellings(option, value);
        if option.takes == Takes::Perhaps {
            lines.extend(spellings(option, Some("x")));
        }
        for line in lines {
            match (option.does, asked(&[" -n 1", &line])) {
                (Does::Anyway, Ok(asked)) => assert!(asked.without_effect.is_empty(), "{line}"),
                (Does::Nothing, Ok(asked)) => assert_eq!(asked.without_effect, [option.name]),
                (Does::Refused, Err(why)) => {
                    let begin = format!("3: --{}: not in docket: {}", option.name, option.words);
                    assert_eq!(why, begin);
                }
                (_, other) => panic!("{line}: {other:?}"),
            }
        }
    }
}

#[test]
fn what_means_nothing_is_refused_by_name_and_line_and_never_left_out() {
    for (name, values) in [
        ("array", &["", "a", "0-$N", "1-5%0", "<n>"][..]),
        ("begin", &["soon", "now+", "now+5fortnights", "16"]),
        ("constraint", &["a|b", "[a|b]", "a*2", "a&", "a,b", "(a&b)"]),
        ("cpus-per-task", &["0", "x", "$N", "-1", "1.5"]),
        ("dependency", &["singleton", "afterok:$ID", "afterok:1?afterok:2", "12"]),
        ("error", &["%q", "%", "%Y-%m"]),
        ("export", &["A,,B", ","]),
        ("gpus", &["", "a", "a100:", "a:b:1", "all"]),
        ("gres", &["", "lscratch:100G", "gpu:a:b:c", "gpu:a:1,gpu:b:1", "<gres>", "gpu:"]),
        ("input", &["%j.in", ""]),
        ("licenses", &["matlab@server:1", "a|b", "a:", "$L"]),
        ("mem", &["0", "", "1.5G", "G", "4 G", "<mem>", "MaxMemPerNode", "-1", "4GiB"]),
        ("mem-per-cpu", &["0", "MaxMemPerCPU"]),
        ("nice", &["x"]),
        ("nodelist", &["a,b", "n[1-2]", "", "/file"]),
        ("nodes", &["2", "2-4", "1-0", "$N", "0", "", "1k"]),
        ("ntasks", &["0", "x"]),
        ("open-mode", &["x", ""]),
        ("output", &["%q.out", "", "%b"]),
        ("priority", &["TOP", "1001", "-1"]),
        ("signal", &["R:USR1@60", "USR1@", "USR1@1m", "@60", "NOPE@60", ""]),
        (
            "time",
            &[
                "",
                "D:HH:MM:SS",
                "1:02:03:04",
                "xx",
                "$T",
                "<time>",
                "1h",
                "-1",
                "1-",
                "-",
                ":",
                "1:",
                "1-2-3",
                "1.5",
                "99999999999999999999",
                "HH:MM:SS",
            ],
        ),
    ] {
        for value in values {
            for line in spellings(option(name), Some(value)) {
                let why = asked(&["", &line]).map(|_| ()).unwrap_err();
                assert!(why.starts_with(&format!("3: --{name}: ")), "{line}: {why}");
            }
        }
    }
}

#[test]
fn tasks_cpus_gpus_and_memory_are_one_reservation() {
    for (line, expected) in [
        (" -n 4 -c 2", "cpus=8"),
        (" --ntasks-per-node=4 -c 2", "cpus=8"),
        (" -n 2 --ntasks-per-node=4", "cpus=2"),
        (" -n 4 --mem-per-cpu=500", "cpus=4 mem=2000"),
        (" -n 4 -c 2 --mem-per-cpu=1G --mincpus=10", "cpus=10 mem=10240"),
        (" -n 2 --gpus-per-task=a100:2", "cpus=2 gpus=4 labels=gpu=a100"),
        (" --gpus=2 --cpus-per-gpu=4 --mem-per-gpu=8G", "cpus=8 mem=16384 gpus=2"),
        (" --gres=gpu:2 --gpus-per-node=4", "gpus=4"),
        (" -n 1 -n 3", "cpus=3"),
        (" --time=5 --time=UNLIMITED", ""),
    ] {
        assert_eq!(shown(&options_of(&[line]).unwrap()), expected, "{line}");
    }
    for (line, part) in [
        (" --mem=1G --mem-per-cpu=1G", "Slurm takes one of them"),
        (" --mem-per-gpu=1G", "need a number of gpus"),
        (" --cpus-per-gpu=1", "need a number of gpus"),
        (" -n 65536 -c 65536", "more than any node has"),
    ] {
        let why = asked(&[line]).map(|_| ()).unwrap_err();
        assert!(why.contains(part), "{line}: {why}");
    }
}

#[test]
fn output_of_tasks_of_an_array_is_told_apart_as_their_numbers_are_in_slurm() {
    let options = options_of(&[" -a 0-3 -o s-%j.out", " -e %5J.err"]).unwrap();
    assert_eq!(options.stdout.unwrap(), "s-%A_%a.out");
    assert_eq!(options.stderr.unwrap(), "%5A_%a.err");
    let options = options_of(&[r" -o 'a\\%j'"]).unwrap();
    assert_eq!(options.stdout.unwrap(), "a%%j");
    let none = options_of(&[" -n 1"]).unwrap();
    assert_eq!((none.stdout, none.stderr), (None, None));
}

#[test]
fn a_requeue_is_a_retry_after_the_loss_of_the_node() {
    let options = options_of(&[" --requeue"]).unwrap();
    assert_eq!(options.retry_on, [ExitKind::AgentDied, ExitKind::Lost, ExitKind::NodeRebooted]);
    assert_eq!(options.time, None::<Duration>);
}

#[test]
fn the_documented_table_is_that_of_the_code() {
    let text = include_str!("../../../docs/slurm.md");
    let table = text.split_once("| option | docket |\n|---|---|\n").expect("the table").1;
    let documented: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let rows: Vec<String> = OPTIONS.iter().map(row).collect();
    assert_eq!(documented, rows, "what the table should be:\n{}", rows.join("\n"));
}

/// A row of the documentation.
fn row(option: &SlurmOption) -> String {
    let others = option.others.iter().map(|name| format!(", `--{name}`")).collect::<String>();
    let letter = option.letter.map(|letter| format!(", `-{letter}`")).unwrap_or_default();
    let words = match option.does {
        Does::Sets(_) => option.words.to_owned(),
        Does::Anyway => format!("nothing to do: {}", option.words),
        Does::Nothing => format!("without effect: {}", option.words),
        Does::Refused => format!("refused: {}", option.words),
    };
    format!("| `--{}`{letter}{others} | {words} |", option.name)
}
