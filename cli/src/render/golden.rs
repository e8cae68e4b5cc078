//! The screens and the JSON, from fixed values, compared with recorded transcripts in
//! `cli/tests/golden`. `UPDATE_GOLDEN=1 cargo test -p cli golden` writes them anew; read the diff.

use super::*;
use crate::render::escape::{is_unsafe, width};
use proto::v1::{ExitKind, NodeResources, Reason, Rusage, StartFailure, Task};

/// 2026-11-30 10:03:21.5 UTC.
const NOW: u64 = 1_796_033_001_500;
const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;

fn view() -> View {
    View { now_ms: NOW, zone: TimeZone::UTC, width: 80, cuts: true, colour: false }
}

fn table() -> Box<dyn Render> {
    renderer(Output::Table, view())
}

mod after;
mod array;

#[track_caller]
fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name}");
}

#[track_caller]
fn fits(text: &str) {
    for line in text.lines() {
        assert!(width(line) <= 80, "wider than 80 columns: {line}");
        assert!(!line.chars().any(is_unsafe), "not fit for a terminal: {line:?}");
        assert_eq!(line.trim_end(), line, "blanks at the end: {line:?}");
    }
}

fn task(job: u64, name: &str, state: &str) -> Task {
    Task {
        job,
        name: name.to_owned(),
        user: "mia".to_owned(),
        queue: "default".to_owned(),
        state: state.to_owned(),
        terminal: matches!(state, "DONE" | "EXIT"),
        attempt: u32::from(state != "PEND"),
        submit_wall_ms: NOW - 12 * MINUTE,
        command: vec![name.as_bytes().to_vec()],
        dir: b"/home/mia/run7".to_vec(),
        cpus: 1,
        uid: 1004,
        ..Default::default()
    }
}

fn ran(mut task: Task, node: &str, began_ago: u64, ended_ago: Option<u64>) -> Task {
    task.node = Some(node.to_owned());
    task.start_wall_ms = Some(NOW - began_ago);
    task.submit_wall_ms = NOW - began_ago - 400;
    task.finish_wall_ms = ended_ago.map(|ago| NOW - ago);
    task
}

fn coded(mut task: Task, code: i32) -> Task {
    task.exit_code = Some(code);
    task.reason =
        Some(Reason { kind: ExitKind::ExitCode.into(), code: Some(code), ..Default::default() });
    task
}

fn failed_prep() -> Task {
    let mut task = coded(ran(task(117, "prep", "EXIT"), "n1", 739_482, Some(737_382)), 3);
    task.command = [&b"python"[..], b"prep.py", b"--shard", b"4"].map(<[u8]>::to_vec).to_vec();
    task.pid = 48213;
    task.rusage = Some(Rusage {
        user_us: 1_500_000,
        system_us: 400_000,
        max_rss_bytes: 150 << 20,
        whole_tree: true,
        peak_bytes: Some(212 << 20),
        oom_kills: 0,
        oom_of_node: false,
    });
    task.stdout_bytes = 1230;
    task.stderr_bytes = 88;
    task.stderr_tail =
        b"Traceback (most recent call last):\nFileNotFoundError: shard-4.parquet\n".to_vec();
    task
}

fn silent_sweep() -> Task {
    let mut task = ran(task(122, "sweep", "UNKWN"), "n3", 41 * MINUTE + 2 * SECOND, None);
    task.transient = true;
    task.cpus = 4;
    task.transient_since_wall_ms = Some(NOW - 39 * SECOND);
    task.decided_wall_ms = Some(NOW + 261 * SECOND);
    task.message = "n3 silent".to_owned();
    task
}

fn pending_big() -> Task {
    let mut task = task(121, "big", "PEND");
    task.substate = "queued".to_owned();
    task.cpus = 64;
    task.submit_wall_ms = NOW - 190 * SECOND;
    task.message = "cpus: 64 asked, 12 free".to_owned();
    task
}

/// A name and arguments that would break a table, a line of JSON and a terminal.
fn hostile() -> Task {
    let mut task = task(123, "a\nb\u{1b}]0;x\u{7}\u{202e}日本", "EXIT");
    task.command = vec![b"sh".to_vec(), b"-c".to_vec(), b"printf '\x1b[2J\xff\n'".to_vec()];
    task.dir = b"/tmp/\xff\n".to_vec();
    task.comment = "line\u{2028}end\u{9b}31m".to_owned();
    task.reason = Some(Reason {
        kind: ExitKind::StartFailed.into(),
        start_failure: Some(StartFailure {
            step: "chdir".to_owned(),
            errno: 2,
            path: b"/tmp/\xff\n".to_vec(),
            ..Default::default()
        }),
        ..Default::default()
    });
    task.finish_wall_ms = Some(NOW - 5 * SECOND);
    task.stderr_tail = b"\x1b[31mred\r\n".to_vec();
    task
}

fn listed() -> Vec<Task> {
    let mut train = ran(task(118, "train", "RUN"), "gpu1", 8_049 * SECOND, None);
    train.cpus = 8;
    vec![
        hostile(),
        silent_sweep(),
        pending_big(),
        train,
        failed_prep(),
        coded(ran(task(116, "prep", "DONE"), "n1", 761 * SECOND, Some(720 * SECOND)), 0),
    ]
}

#[test]
fn list_is_a_table_of_80_columns() {
    let mut table = table();
    assert_eq!(table.list_page(&listed()), "");
    let counts = [("RUN", 1), ("PEND", 1), ("UNKWN", 1), ("DONE", 1), ("EXIT", 2)];
    let text = table.list_end(&ListSummary {
        counts: counts.map(|(state, n)| (state.to_owned(), n)).into(),
        older_ended: 1204,
        window: Some("hour".to_owned()),
        cut: false,
    });
    fits(&text);
    golden("list.txt", &text);
}

#[test]
fn an_empty_list_says_so() {
    assert_eq!(table().list_end(&ListSummary::default()), "no such jobs\n");
    let summary = ListSummary { older_ended: 3, ..Default::default() };
    assert_eq!(table().list_end(&summary), "no such jobs; 3 older: --all\n");
    assert_eq!(renderer(Output::Json, view()).list_end(&summary), "[]\n");
    assert_eq!(renderer(Output::Jsonl, view()).list_end(&summary), "");
}

#[test]
fn show_tells_one_job_in_full() {
    let mut running = ran(task(118, "train", "RUN"), "gpu1", 8_049 * SECOND, None);
    (running.gpus, running.gpu_ids) = (2, vec![0, 3]);
    running.resources = [("matlab".to_owned(), 1)].into();
    running.time_limit_ms = Some(86_400 * SECOND);
    running.cancel_requested = true;
    running.pid = 77;
    running.dir = b"/home/mia/a/rather/long/path/of/directories".to_vec();
    let text = table().show(&[failed_prep(), running, pending_big(), silent_sweep(), hostile()]);
    fits(&text);
    golden("show.txt", &text);
}

#[test]
fn show_says_what_nobody_counted_and_what_the_kernel_killed() {
    let mut bare = failed_prep();
    // As an older keeper tells it, or one without cgroups.
    bare.rusage = Some(Rusage {
        user_us: 1_500_000,
        system_us: 400_000,
        max_rss_bytes: 150 << 20,
        ..Rusage::default()
    });
    let text = table().show(std::slice::from_ref(&bare));
    fits(&text);
    assert!(text.contains("largest process 150"), "{text}");
    assert!(text.contains("without processes that nothing waited for"), "{text}");
    let json = |task: &Task| serde_json::from_str::<serde_json::Value>(&task_line(task)).unwrap();
    let value = json(&bare);
    assert_eq!(value["usage"]["peak_memory_bytes"], serde_json::Value::Null);
    assert_eq!((&value["usage"]["whole_tree"], &value["oom"]), (&false.into(), &false.into()));

    let mut done = failed_prep();
    done.rusage = done.rusage.map(|used| Rusage { oom_kills: 2, ..used });
    let text = table().show(std::slice::from_ref(&done));
    fits(&text);
    assert!(text.contains("the kernel killed 2 processes of it for memory"), "{text}");
    let value = json(&done);
    assert_eq!((&value["oom"], &value["usage"]["oom_kills"]), (&true.into(), &2.into()));
    assert_eq!(value["usage"]["peak_memory_bytes"], 212 << 20);
    assert_eq!(value["rusage"]["max_rss_bytes"], 150 << 20, "as before");
    assert_eq!(json(&pending_big())["usage"], serde_json::Value::Null);

    assert!(!text.contains("its node had no memory left"), "{text}");
    done.rusage = done.rusage.map(|used| Rusage { oom_of_node: true, ..used });
    let text = table().show(std::slice::from_ref(&done));
    fits(&text);
    assert!(text.contains("its node had no memory left"), "{text}");
    assert_eq!(json(&done)["usage"]["oom_of_node"], true);
}

#[test]
fn what_was_asked_of_a_node_that_is_away_is_shown_until_it_is_done() {
    let mut asked = silent_sweep();
    asked.cancel_requested = true;
    asked.suspend_requested = Some(true);
    (asked.retries, asked.retried, asked.attempt) = (3, 1, 2);
    let mut stopped = ran(task(124, "encode", "SUSP"), "n1", 3 * MINUTE, None);
    stopped.suspend_requested = Some(false);
    let mut waiting = task(125, "render", "PEND");
    waiting.substate = "waiting".to_owned();
    (waiting.retries, waiting.retried, waiting.attempt) = (2, 1, 2);
    waiting.node = Some("n3".to_owned());
    waiting.message = "waits for proof that attempt 1 on n3 is dead".to_owned();
    let all = [waiting, stopped, asked];
    let shown = table().show(&all);
    fits(&shown);
    let mut list = table();
    list.list_page(&all);
    let listed = list.list_end(&ListSummary::default());
    fits(&listed);
    golden("intents.txt", &format!("{listed}\n{shown}"));
    golden("intents.json", &renderer(Output::Json, view()).show(&all));
    assert!(listed.contains("resume requested"), "{listed}");
}

#[test]
fn explain_puts_nodes_between_headline_and_the_rest() {
    let node = |name: &str, has: &str, why: &str| v1::ExplainNode {
        node: name.to_owned(),
        has: has.to_owned(),
        why: why.to_owned(),
        never: false,
    };
    let answer = v1::ExplainAnswer {
        task: Some(pending_big()),
        headline: "Job 121 is PEND: it asks for 64 cpus and no node has that many free now."
            .to_owned(),
        nodes: vec![
            node("n1", "64 cpus, 12 free", "cpus: 52 are held by 98 and 103"),
            node("n2", "16 cpus", "too small, can never run it"),
            node("n3", "64 cpus", "silent since 10:02:12, gets no new jobs"),
        ],
        lines: vec![
            "Place 1 of 2 in queue default (priority 0, waiting 3m10s).".to_owned(),
            "It could start when 98 and 103 end: by their limits at 11:40 at the latest, unless one of them is asked to go on.".to_owned(),
        ],
        ..v1::ExplainAnswer::default()
    };
    let text = table().explain(&[answer]);
    fits(&text);
    golden("explain.txt", &text);
}

#[test]
fn events_are_a_time_line() {
    let event = |position, ms, who: &str, what: &str| v1::Event {
        position,
        wall_ms: NOW - 12 * MINUTE + ms,
        who: who.to_owned(),
        what: what.to_owned(),
    };
    let answer = v1::EventsAnswer {
        events: vec![
            event(40112, 118, "mia (uid 1004)", "submitted, request 9f3c"),
            event(40113, 119, "controller 1", "assigned to n1, attempt 1"),
            event(40115, 131, "agent n1", "started, pid 48213"),
            event(40119, 2240, "agent n1", "ended: exit code 3 (real wait status 0x300)"),
        ],
        truncated: false,
    };
    let text = table().events(&answer);
    fits(&text);
    golden("events.txt", &text);
    golden("events.json", &renderer(Output::Json, view()).events(&answer));
}

fn nodes() -> Vec<v1::Node> {
    let node = |name: &str, state: &str, ago, cpus, used, mem: u64, notes: &str| v1::Node {
        name: name.to_owned(),
        agent_id: format!("id-{name}"),
        state: state.to_owned(),
        last_word_ms: Some(ago),
        resources: Some(NodeResources {
            cpus,
            mem_bytes: mem << 30,
            limits: "v2".to_owned(),
            gpus: if name == "gpu1" { 8 } else { 0 },
            resources: if name == "n1" { [("scratch".to_owned(), 4)].into() } else { [].into() },
            ..Default::default()
        }),
        gpus_used: if name == "gpu1" { 4 } else { 0 },
        resources_used: if name == "n1" { [("scratch".to_owned(), 1)].into() } else { [].into() },
        cpus_used: used,
        mem_used: (mem << 30) / 8,
        jobs: u32::from(used > 0),
        notes: notes.to_owned(),
        version: "0.1.0".to_owned(),
        incarnation: 4,
        strays: Vec::new(),
    };
    vec![
        node("gpu1", "up", 400, 64, 64, 512, ""),
        node("n1", "up", 2100, 64, 52, 256, ""),
        node("n3", "silent", 69_000, 64, 4, 256, "since 10:02:12"),
        node("n4", "drained", 900, 16, 0, 64, "mia: new disk, and a very long reason for it"),
    ]
}

#[test]
fn nodes_are_a_table_of_80_columns() {
    let text = table().nodes(&nodes());
    fits(&text);
    golden("nodes.txt", &text);
    golden("nodes.json", &renderer(Output::Json, view()).nodes(&nodes()[..1]));
}

#[test]
fn operators_see_the_cluster_the_settings_and_the_checks() {
    let (name, total) = ("matlab".to_owned(), 3);
    let matlab = v1::ClusterResource { name, total, used: 2, left_over: 1 };
    let status = v1::StatusAnswer {
        cluster_id: "3f2a".to_owned(),
        generation: 1,
        term: 4,
        leader: 1,
        applied: 40_119,
        voters: 1,
        version: "0.1.0".to_owned(),
        level: 1,
        tasks_by_state: [("RUN".to_owned(), 2)].into(),
        uptime_ms: 180_000,
        pid: 4711,
        data: "/var/lib/docket".to_owned(),
        embedded: true,
        user: "mia".to_owned(),
        host: "login2".to_owned(),
        resources: vec![matlab],
        ..Default::default()
    };
    golden("status.txt", &table().status(&status));
    golden("status.json", &renderer(Output::Json, view()).status(&status));
    let rows = [SettingRow {
        key: "controller.listen".to_owned(),
        value: Some("127.0.0.1:7460".to_owned()),
        source: "default".to_owned(),
    }];
    golden("settings.txt", &table().settings(&rows));
    let checks = [
        Check { what: "version", health: Health::Good, found: "docket 0.1.0".to_owned() },
        Check {
            what: "file system",
            health: Health::Note,
            found: "nfs, over the network: what is written may be lost; use a local --data"
                .to_owned(),
        },
    ];
    let text = table().checks(&checks);
    fits(&text);
    golden("checks.txt", &text);
}

#[test]
fn cancel_says_what_became_of_each() {
    let result = |job, outcome: &str, error: Option<&str>| v1::CancelResult {
        job,
        outcome: outcome.to_owned(),
        error: error.map(str::to_owned),
        error_code: 0,
        tasks: None,
    };
    let results = [
        result(1, "cancelled", None),
        result(2, "requested", None),
        result(3, "already-ended", None),
        result(9, "", Some("no job 9: the newest is 3")),
    ];
    golden("cancel.txt", &table().cancelled(&results));
    golden("cancel.json", &renderer(Output::Json, view()).cancelled(&results));
}

#[test]
fn edits_say_what_became_of_each_and_who_carries_it_out() {
    let result = |job, outcome: &str, state: &str, node: Option<&str>| v1::EditResult {
        job,
        outcome: outcome.to_owned(),
        state: state.to_owned(),
        node: node.map(str::to_owned),
        ..Default::default()
    };
    let refused = v1::EditResult {
        job: 9,
        error: Some("no job 9: the newest is 8".to_owned()),
        error_code: 5,
        ..Default::default()
    };
    let results = [
        result(1, "held", "PEND", None),
        result(2, "released", "PEND", None),
        result(3, "suspend-requested", "RUN", Some("n1")),
        result(4, "suspend-requested", "UNKWN", Some("n1")),
        result(5, "suspend-requested", "SUSP", Some("n1")),
        result(5, "suspend-requested", "PEND", Some("n1")),
        result(6, "resume-requested", "SUSP", Some("n\n1")),
        result(6, "resume-requested", "RUN", Some("n1")),
        result(7, "set", "PEND", None),
        result(8, "set", "RUN", Some("n1")),
        refused,
    ];
    let text = table().edited(&results);
    fits(&text);
    golden("edit.txt", &text);
    golden("edit.json", &renderer(Output::Json, view()).edited(&results));
}

#[test]
fn orphans_and_strays_are_tables_of_80_columns() {
    let orphan = |job, fact: &str, expired, reason| v1::Orphan {
        job,
        task: None,
        attempt: 1,
        node: "gpu1".to_owned(),
        expired,
        wall_ms: NOW - 3 * MINUTE,
        position: 40_000 + job,
        fact: fact.to_owned(),
        reason,
    };
    let killed = Reason {
        kind: ExitKind::Signal.into(),
        signal: Some(9),
        core_dumped: false,
        ..Default::default()
    };
    let orphans = [
        orphan(301, "start", false, None),
        orphan(301, "finish", false, Some(killed)),
        orphan(290, "finish", true, coded(task(290, "x", "EXIT"), 3).reason),
    ];
    let text = table().orphans(&orphans, true);
    fits(&text);
    golden("orphans.txt", &text);
    golden("orphans.json", &renderer(Output::Json, view()).orphans(&orphans, false));
    assert!(table().orphans(&[], false).starts_with("no orphans"));
    let mut nodes = nodes();
    nodes[1].strays = vec![
        v1::AttemptRef { job: 301, task: None, attempt: 1 },
        v1::AttemptRef { job: 302, task: Some(7), attempt: 2 },
    ];
    let text = table().strays(&nodes);
    fits(&text);
    golden("strays.txt", &text);
    golden("strays.json", &renderer(Output::Json, view()).strays(&nodes));
    assert!(table().strays(&nodes[..1]).starts_with("no strays"));
    assert_eq!(renderer(Output::Id, view()).strays(&nodes), "301\n302_7\n");
}

#[test]
fn json_has_exactly_the_fields_of_the_contract() {
    let mut json = renderer(Output::Json, view());
    golden("show.json", &json.show(&[failed_prep(), silent_sweep(), hostile()]));
    let line = task_line(&failed_prep());
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    let contract = [
        "id",
        "job",
        "task",
        "name",
        "user",
        "queue",
        "state",
        "substate",
        "terminal",
        "transient",
        "reason",
        "exit_code",
        "signal",
        "cancelled_by",
        "late_outcome",
        "attempt",
        "node",
        "priority",
        "submit_time",
        "start_time",
        "finish_time",
        "transient_since",
        "command",
        "dir",
        "cpus",
        "mem_bytes",
        "gpus",
        "rusage",
        "stdout_path",
        "stderr_path",
        "retry_of",
        "message",
    ];
    let object = value.as_object().unwrap();
    for field in contract {
        assert!(object.contains_key(field), "{field} is missing");
    }
    assert!(value["id"].is_string() && value["job"].is_number() && value["task"].is_null());
    assert!(value["signal"].is_null() && value["terminal"].is_boolean());
    assert_eq!(value["reason"], serde_json::json!({"kind": "exit-code", "code": 3}));
}

#[test]
fn nothing_in_a_name_breaks_a_line_of_json() {
    let mut json = renderer(Output::Jsonl, view());
    let text = json.list_page(&[hostile(), failed_prep()]);
    assert_eq!(text.lines().count(), 2);
    assert!(!text.trim_end().replace('\n', "").chars().any(is_unsafe), "{text:?}");
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["name"], "a\nb\u{1b}]0;x\u{7}\u{202e}日本", "the name itself is kept");
    assert_eq!(first["command"][2], "printf '\u{1b}[2J\\xff\n'");
}

#[test]
fn a_list_in_json_is_one_array_over_all_pages() {
    let mut json = renderer(Output::Json, view());
    let mut text = json.list_page(&listed()[..2]);
    text += &json.list_page(&[]);
    text += &json.list_page(&listed()[2..]);
    text += &json.list_end(&ListSummary::default());
    let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(all.len(), listed().len());
    let mut ids = renderer(Output::Id, view());
    assert_eq!(ids.list_page(&listed()[..2]), "123\n122\n");
}

#[test]
fn colours_change_nothing_but_colour() {
    let mut coloured = renderer(Output::Table, View { colour: true, ..view() });
    coloured.list_page(&listed());
    let text = coloured.list_end(&ListSummary::default());
    let mut plain = table();
    plain.list_page(&listed());
    let expected = plain.list_end(&ListSummary::default());
    assert!(text.contains("\u{1b}[32mRUN"));
    let mut stripped = text;
    for code in ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[36m"] {
        stripped = stripped.replace(code, "");
    }
    assert_eq!(stripped, expected);
}

#[test]
fn wait_says_state_reason_and_where_to_look() {
    assert_eq!(verdict(&failed_prep()), "job 117 EXIT exit-code 3: see docket logs 117 --stderr");
    let mut lost = silent_sweep();
    lost.state = "EXIT".to_owned();
    lost.reason = Some(Reason { kind: ExitKind::Lost.into(), ..Default::default() });
    assert_eq!(verdict(&lost), "job 122 EXIT lost: see docket explain 122");
}

#[test]
fn a_suspended_job_offers_its_resume() {
    let stopped = ran(task(124, "encode", "SUSP"), "n1", 3 * MINUTE, None);
    let shown = table().show(&[stopped]);
    assert!(shown.contains("Next: docket resume 124 · docket logs -f 124"), "{shown}");
}

#[test]
fn a_lost_job_that_was_to_be_cancelled_says_by_whom() {
    let mut lost = silent_sweep();
    lost.state = "EXIT".to_owned();
    (lost.terminal, lost.cancelled_by) = (true, Some("mia".to_owned()));
    lost.reason = Some(Reason { kind: ExitKind::Lost.into(), ..Default::default() });
    let text = verdict(&lost);
    assert_eq!(text, "job 122 EXIT lost, cancel asked by mia: see docket explain 122");
    let shown = table().show(std::slice::from_ref(&lost));
    assert!(shown.contains("  cancel     asked by mia: docket events 122\n"), "{shown}");
    let mut list = table();
    list.list_page(&[lost]);
    let listed = list.list_end(&ListSummary::default());
    assert!(listed.contains("lost (cancel asked by mia)"), "{listed}");
}
