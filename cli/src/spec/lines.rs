//! `submit --from`: one job a line, in the JSON form of `show`; options are the defaults.

use super::{Here, SpecError, Work, build};
use crate::args::{AfterOptions, Disconnect, JobOptions};
use crate::parse::{After, amount, array, begin, dependency, exit_kind, nearest, warn_signal};
use proto::v1;
use serde_json::{Map, Value};
use std::time::Duration;

/// Fields that a line may set.
const INPUTS: [&str; 27] = [
    "after_ok",
    "after_any",
    "after_not_ok",
    "after_start",
    "after_each",
    "begin",
    "array",
    "hold",
    "retries",
    "retry_on",
    "command",
    "script",
    "name",
    "queue",
    "priority",
    "dir",
    "cpus",
    "mem_bytes",
    "gpus",
    "resources",
    "time_limit_ms",
    "warn",
    "comment",
    "stdout",
    "stderr",
    "on_disconnect",
    "success_codes",
];
/// Fields of `show` that tell what became of a job: not an input, and not an error.
const OUTCOMES: [&str; 37] = [
    "waits_for",
    "id",
    "job",
    "task",
    "user",
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
    "submit_time",
    "start_time",
    "finish_time",
    "transient_since",
    "gpu_ids",
    "rusage",
    "usage",
    "oom",
    "stdout_path",
    "stderr_path",
    "retry_of",
    "message",
    "pid",
    "cancel_requested",
    "suspend_requested",
    "retried",
    "decided_time",
    "stdout_bytes",
    "stderr_bytes",
    "stdout_cut_bytes",
    "stderr_cut_bytes",
];

/// The request of one line; blank lines and `#` comments are none.
pub fn read_line(
    text: &str,
    defaults: &JobOptions,
    here: &Here,
    request_id: String,
) -> Result<Option<v1::SubmitRequest>, String> {
    if text.trim().is_empty() || text.trim_start().starts_with('#') {
        return Ok(None);
    }
    if text.trim_start().starts_with('[') {
        return Err("not a JSON object but an array: give one object a line, as list -o jsonl \
                    and show -o jsonl print them"
            .to_owned());
    }
    let fields: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
    refuse_unknown(&fields)?;
    refuse_lost(&fields)?;
    let mut options = defaults.clone();
    set_options(&mut options, &fields)?;
    let work = work(&fields)?;
    build(&options, &work, here, None, request_id)
        .map(Some)
        .map_err(|error: SpecError| error.to_string())
}

fn refuse_unknown(fields: &Map<String, Value>) -> Result<(), String> {
    for name in fields.keys() {
        if !INPUTS.contains(&name.as_str()) && !OUTCOMES.contains(&name.as_str()) {
            let hint = nearest(name, INPUTS)
                .map_or(String::new(), |near| format!("; did you mean {near}?"));
            return Err(format!("no field {name}{hint}"));
        }
    }
    Ok(())
}

/// Refuses what `show` tells of a job that cannot be had again from its line. (The paths of its
/// output are those of one run: they are outcomes, `stdout` and `stderr` are the inputs.)
fn refuse_lost(fields: &Map<String, Value>) -> Result<(), String> {
    if fields.get("script") == Some(&Value::Bool(true)) {
        return Err("script: the job was a stored script, and its contents are not in this line: \
                    give them, \"script\": \"#!/bin/sh\\n…\", or submit the script file"
            .to_owned());
    }
    Ok(())
}

fn work(fields: &Map<String, Value>) -> Result<Work, String> {
    let words = match given(fields, "command") {
        None => Vec::new(),
        Some(value) => strings("command", value)?.into_iter().map(Into::into).collect(),
    };
    let script = match fields.get("script") {
        // As `show` marks a job that was a command.
        Some(Value::Bool(false)) => None,
        _ => text(fields, "script")?,
    };
    match script {
        Some(script) if script.starts_with("#!") => Ok(Work::Script {
            name: "script".to_owned(),
            contents: script.into_bytes(),
            arguments: words,
        }),
        Some(_) => Err("script: must begin with #!".to_owned()),
        None if words.is_empty() => {
            Err("no command: give \"command\": [\"prog\", \"arg\"]".to_owned())
        }
        None => Ok(Work::Command(words)),
    }
}

fn set_options(options: &mut JobOptions, fields: &Map<String, Value>) -> Result<(), String> {
    set_after(&mut options.after, fields)?;
    if let Some(hold) = given(fields, "hold") {
        options.hold = hold.as_bool().ok_or("hold: true or false")?;
    }
    if let Some(retries) = number(fields, "retries", 0, 1000)? {
        options.retries = u32::try_from(retries).map_err(|e| e.to_string())?;
    }
    if let Some(ends) = given(fields, "retry_on") {
        let kinds = strings("retry_on", ends)?;
        let kinds = kinds.iter().map(|kind| exit_kind(kind));
        options.retry_on = kinds.collect::<Result<_, _>>().map_err(|why| why.to_string())?;
    }
    if let Some(array) = given(fields, "array") {
        options.array = Some(array_of(array)?);
    }
    if let Some(name) = text(fields, "name")? {
        options.name = Some(name);
    }
    if let Some(queue) = text(fields, "queue")? {
        options.queue = queue;
    }
    if let Some(comment) = text(fields, "comment")? {
        options.comment = Some(comment);
    }
    for (field, slot) in [
        ("dir", &mut options.dir),
        ("stdout", &mut options.stdout),
        ("stderr", &mut options.stderr),
    ] {
        if let Some(value) = text(fields, field)? {
            *slot = Some(value.into());
        }
    }
    if let Some(cpus) = number(fields, "cpus", 1, i64::from(u32::MAX))? {
        options.cpus = u32::try_from(cpus).map_err(|e| e.to_string())?;
    }
    if let Some(priority) = number(fields, "priority", -1000, 1000)? {
        options.priority = i32::try_from(priority).map_err(|e| e.to_string())?;
    }
    if let Some(bytes) = number(fields, "mem_bytes", 0, i64::MAX)? {
        options.mem = Some(bytes.unsigned_abs());
    }
    if let Some(gpus) = number(fields, "gpus", 0, i64::from(u32::MAX))? {
        options.gpus = Some(u32::try_from(gpus).map_err(|e| e.to_string())?);
    }
    if let Some(all) = given(fields, "resources") {
        options.resource = amounts(all)?;
    }
    if let Some(ms) = number(fields, "time_limit_ms", 1, i64::MAX)? {
        options.time = Some(Duration::from_millis(ms.unsigned_abs()));
    }
    if let Some(warn) = text(fields, "warn")? {
        options.signal = Some(warn_signal(&warn).map_err(|why| format!("warn: {why}"))?);
    }
    if let Some(value) = given(fields, "success_codes") {
        options.success_codes = serde_json::from_value(value.clone())
            .map_err(|_| "success_codes: a list of numbers from 0 to 255".to_owned())?;
    }
    options.on_disconnect = match text(fields, "on_disconnect")?.as_deref() {
        None => options.on_disconnect,
        Some("exit") => Some(Disconnect::Exit),
        Some("unknown") => Some(Disconnect::Unknown),
        Some(_) => return Err("on_disconnect: exit or unknown".to_owned()),
    };
    Ok(())
}

/// Consumables by name: `{"matlab": 1}`.
fn amounts(value: &Value) -> Result<Vec<(String, u64)>, String> {
    let wrong = || "resources: an object such as {\"matlab\": 1}, 1 or more of each".to_owned();
    let all = value.as_object().ok_or_else(wrong)?;
    let pair = |(name, n): (&String, &Value)| amount(&format!("{name}={n}")).map_err(|_| wrong());
    all.iter().map(pair).collect()
}

/// What has to happen before it starts: lists of ids, and a time.
fn set_after(options: &mut AfterOptions, fields: &Map<String, Value>) -> Result<(), String> {
    use v1::DependencyKind::{AfterAny, AfterEach, AfterNotOk, AfterOk, AfterStart};
    for (field, kind, slot) in [
        ("after_ok", AfterOk, &mut options.after_ok),
        ("after_any", AfterAny, &mut options.after_any),
        ("after_not_ok", AfterNotOk, &mut options.after_not_ok),
        ("after_start", AfterStart, &mut options.after_start),
        ("after_each", AfterEach, &mut options.after_each),
    ] {
        if let Some(ids) = given(fields, field) {
            let ids = strings(field, ids)?;
            let read = ids.iter().map(|id| dependency(kind, id));
            let read = read.collect::<Result<_, _>>().map_err(|why| format!("{field}: {why}"))?;
            *slot = vec![After(read)];
        }
    }
    if let Some(time) = text(fields, "begin")? {
        options.begin = Some(begin(&time).map_err(|why| format!("begin: {why}"))?);
    }
    Ok(())
}

/// Task numbers as `--array` takes them, or as `show` tells them of an array.
fn array_of(value: &Value) -> Result<v1::ArraySpec, String> {
    let wrong = |why: String| format!("array: {why}");
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(shown) => {
            let tasks = shown.get("tasks").and_then(Value::as_str).unwrap_or_default();
            match shown.get("limit").and_then(Value::as_u64) {
                Some(limit) => format!("{tasks}%{limit}"),
                None => tasks.to_owned(),
            }
        }
        _ => return Err(wrong("must be text such as \"0-99%4\"".to_owned())),
    };
    let race = value.get("race").and_then(Value::as_bool).unwrap_or(false);
    let array = array(&text).map_err(|why| wrong(why.to_string()))?;
    Ok(v1::ArraySpec { race, ..array })
}

/// A field that is there and not null: null means that it does not apply.
fn given<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match given(fields, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("{name}: must be a string")),
    }
}

fn number(
    fields: &Map<String, Value>,
    name: &str,
    least: i64,
    most: i64,
) -> Result<Option<i64>, String> {
    let Some(value) = given(fields, name) else { return Ok(None) };
    match value.as_i64() {
        Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
        _ => Err(format!("{name}: must be a whole number from {least} to {most}")),
    }
}

fn strings(name: &str, value: &Value) -> Result<Vec<String>, String> {
    serde_json::from_value(value.clone()).map_err(|_| format!("{name}: must be a list of strings"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<Option<v1::SubmitRequest>, String> {
        let defaults = JobOptions { mem: Some(1 << 30), ..Default::default() };
        read_line(text, &defaults, &Here { dir: "/d".into(), ..Here::default() }, "id".to_owned())
    }

    #[test]
    fn a_line_overrides_the_options_and_outcomes_are_no_input() {
        let text = r#"{"command":["echo","a b"],"cpus":2,"name":null,"state":"DONE","id":"7","gpus":0,"script":false}"#;
        let spec = line(text).unwrap().unwrap().spec.unwrap();
        assert_eq!(spec.argv, [b"echo".to_vec(), b"a b".to_vec()]);
        assert_eq!((spec.cpus, spec.mem_bytes, spec.name.as_str()), (2, 1 << 30, "echo"));
        assert_eq!(line("  "), Ok(None));
        assert_eq!(line("# note"), Ok(None));
    }

    #[test]
    fn what_show_prints_can_be_submitted_again() {
        let shown = v1::Task {
            job: 7,
            command: vec![b"true".to_vec()],
            dir: b"/d".to_vec(),
            queue: "default".to_owned(),
            state: "PEND".to_owned(),
            cpus: 1,
            gpus: 2,
            gpu_ids: vec![0, 3],
            resources: [("matlab".to_owned(), 1)].into(),
            retries: 2,
            decided_wall_ms: Some(1),
            array: Some(v1::ArrayView {
                tasks: "0-9:3".to_owned(),
                limit: Some(2),
                ..v1::ArrayView::default()
            }),
            ..v1::Task::default()
        };
        let spec = line(&crate::render::task_line(&shown)).unwrap().unwrap().spec.unwrap();
        assert_eq!((spec.argv, spec.retries, spec.gpus), (vec![b"true".to_vec()], 2, 2));
        assert_eq!(spec.resources, [("matlab".to_owned(), 1)].into());
        assert_eq!(spec.array.unwrap().limit, Some(2));
    }

    #[test]
    fn retries_and_holds_are_read() {
        let text = r#"{"command":["x"],"retries":3,"retry_on":["lost","signal"],"hold":true}"#;
        let spec = line(text).unwrap().unwrap().spec.unwrap();
        let kinds = [v1::ExitKind::Signal, v1::ExitKind::Lost].map(|kind| kind as i32);
        assert_eq!((spec.retries, spec.retry_on, spec.hold), (3, kinds.to_vec(), true));
        let wrong = line(r#"{"command":["x"],"retry_on":["cancelled"]}"#).unwrap_err();
        assert!(wrong.contains("no such end"), "{wrong}");
    }

    #[test]
    fn what_a_job_waits_for_is_read_and_what_show_prints_is_submitted_again() {
        let text = r#"{"command":["x"],"after_ok":["12","13_0-4"],"after_any":["14_[1,3]"],
            "begin":"2026-12-01T10:00:00.000Z"}"#;
        let spec = line(text).unwrap().unwrap().spec.unwrap();
        let view = |dep: &v1::Dependency| v1::DependencyView {
            kind: dep.kind,
            job: dep.job,
            tasks: dep
                .tasks
                .iter()
                .map(|t| format!("{}-{}", t.first, t.last))
                .collect::<Vec<_>>()
                .join(","),
            open: false,
        };
        let shown = v1::Task {
            command: vec![b"x".to_vec()],
            dir: b"/tmp".to_vec(),
            cpus: 1,
            dependencies: spec.dependencies.iter().map(view).collect(),
            begin_wall_ms: spec.begin_wall_ms,
            ..v1::Task::default()
        };
        let again = line(&crate::render::task_line(&shown)).unwrap().unwrap().spec.unwrap();
        assert_eq!(again.dependencies, spec.dependencies);
        assert_eq!(again.begin_wall_ms, Some(1_796_119_200_000));
        for (text, part) in [
            (r#"{"command":["x"],"after_ok":["x"]}"#, "after_ok: `x` is no id"),
            (r#"{"command":["x"],"after_ok":12}"#, "after_ok"),
            (r#"{"command":["x"],"after_okay":["1"]}"#, "did you mean after_ok?"),
            (r#"{"command":["x"],"begin":"soon"}"#, "begin: no time"),
        ] {
            let why = line(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("{", "not a JSON object"),
            ("[]", "not a JSON object"),
            (r#"[{"command":["x"]}]"#, "-o jsonl"),
            (r#"{"command":["x"],"script":true}"#, "stored script"),
            (r#"{"command":["x"],"gpus":-1}"#, "gpus"),
            (r#"{"command":["x"],"resources":{"a b":1}}"#, "resources"),
            (r#"{"command":["x"],"resources":{"matlab":0}}"#, "resources"),
            (r#"{"command":["x"],"resources":["matlab"]}"#, "resources"),
            (r#"{"comand":["x"]}"#, "did you mean command?"),
            (r#"{"command":"x"}"#, "list of strings"),
            (r#"{"command":[]}"#, "no command"),
            (r#"{"command":["x"],"cpus":0}"#, "cpus"),
            (r#"{"command":["x"],"cpus":"1"}"#, "cpus"),
            (r#"{"command":["x"],"priority":1001}"#, "priority"),
            (r#"{"script":"echo"}"#, "#!"),
            (r#"{"command":["a\u0000b"]}"#, "zero byte"),
        ] {
            let why = line(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
