//! One submit request from the options, the work and the place where the submitter stands.

use super::limits::check;
use super::{SpecError, environment, own_entries};
use crate::args::{Disconnect, JobOptions, OpenMode};
use crate::parse::Fence;
use proto::v1;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A program and its arguments.
    Command(Vec<OsString>),
    /// The contents of a script, its file name, and its arguments.
    Script {
        /// Base name of the file.
        name: String,
        /// What it holds.
        contents: Vec<u8>,
        /// Its arguments.
        arguments: Vec<OsString>,
    },
}

/// What a job inherits from its submitter; taken once.
#[derive(Debug, Clone, Default)]
pub struct Here {
    /// Where the submitter stands.
    pub dir: PathBuf,
    /// The submitter's variables, each as it was given: NAME=VALUE, or what is none.
    pub env: Vec<OsString>,
    /// The submitter's umask.
    pub umask: Option<u32>,
    /// The submitter's soft limit of open files.
    pub nofile: Option<u64>,
}

impl Here {
    /// Reads this process.
    pub fn now(options: &JobOptions) -> Result<Self, SpecError> {
        let absolute = options.dir.as_ref().is_some_and(|dir| Path::new(dir).is_absolute());
        let dir = match std::env::current_dir() {
            Err(error) if !absolute => return Err(SpecError::NoDirectory(error)),
            dir => dir.unwrap_or_default(),
        };
        let nofile = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Ok(Here { dir, env: own_entries(), umask: umask(), nofile })
    }
}

/// The umask of this process, which only /proc tells without changing it.
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// The request for one job; `stdin` is what travels with it, `request_id` what makes it repeatable.
pub fn build(
    options: &JobOptions,
    work: &Work,
    here: &Here,
    stdin: Option<Vec<u8>>,
    request_id: String,
) -> Result<v1::SubmitRequest, SpecError> {
    // Header lines may have given the one and the command line the other.
    if options.race && options.array.is_none() {
        return Err(SpecError::RaceAlone);
    }
    let dir = options.dir.as_ref().map_or(here.dir.clone(), |dir| here.dir.join(dir));
    let mut spec = requested(options, here, &dir);
    match work {
        Work::Command(words) => {
            let program = words.first().filter(|word| !word.is_empty());
            let program = program.ok_or(SpecError::EmptyCommand)?;
            spec.name = options.name.clone().unwrap_or_else(|| base_name(program));
            spec.argv = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        }
        Work::Script { name, contents, arguments } => {
            spec.name = options.name.clone().unwrap_or_else(|| name.clone());
            spec.argv = arguments.iter().map(|word| word.as_bytes().to_vec()).collect();
            spec.script = Some(contents.clone());
        }
    }
    // An empty input and /dev/null are the same to a program, and the latter costs nothing.
    let stdin = stdin.filter(|bytes| !bytes.is_empty());
    spec.has_stdin = stdin.is_some();
    let request = v1::SubmitRequest {
        user_key: options.key.is_some(),
        request_id: options.key.clone().unwrap_or(request_id),
        spec: Some(spec),
        env: Some(slurm_facts(environment(&here.env, options)?, options, here)),
        stdin,
        partition: options.slurm.partition,
    };
    check(&request)?;
    Ok(request)
}

/// The part of a specification that options alone decide.
fn requested(options: &JobOptions, here: &Here, dir: &Path) -> v1::JobSpec {
    let bytes = |text: &Option<OsString>| text.as_ref().map(|text| text.as_bytes().to_vec());
    let on_disconnect = match options.on_disconnect {
        None => v1::OnDisconnect::Unspecified,
        Some(Disconnect::Exit) => v1::OnDisconnect::Exit,
        Some(Disconnect::Unknown) => v1::OnDisconnect::Unknown,
    };
    v1::JobSpec {
        dir: dir.as_os_str().as_bytes().to_vec(),
        cpus: options.cpus.max(1),
        mem_bytes: options.mem.unwrap_or(0),
        gpus: options.gpus.unwrap_or(0),
        resources: options.resource.iter().cloned().collect(),
        time_limit_ms: options.time.map(milliseconds),
        warn: options.signal,
        priority: options.priority,
        queue: if options.queue.is_empty() { "default".to_owned() } else { options.queue.clone() },
        stdin_path: stdin_path(options, dir),
        stdout_pattern: bytes(&options.stdout),
        stderr_pattern: bytes(&options.stderr),
        append_output: options.open_mode == OpenMode::Append,
        on_disconnect: on_disconnect.into(),
        success_codes: success_codes(&options.success_codes),
        kill_grace_ms: options.kill_grace.map(milliseconds),
        comment: options.comment.clone().unwrap_or_default(),
        umask: here.umask,
        nofile: here.nofile,
        node: options.node.clone(),
        array: options
            .array
            .clone()
            .map(|array| v1::ArraySpec { race: options.race || array.race, ..array }),
        dependencies: options.after.dependencies(),
        begin_wall_ms: options.after.begin,
        hold: options.hold,
        retries: options.retries,
        retry_on: retry_on(&options.retry_on),
        fence_after_ms: match options.fence_after {
            Some(Fence::After(time)) => Some(milliseconds(time)),
            Some(Fence::Proof) | None => None,
        },
        fence_proof: options.fence_after == Some(Fence::Proof),
        slurm_env: options.slurm_env,
        node_labels: options.node_label.iter().cloned().collect(),
        ..Default::default()
    }
}

/// What Slurm's environment tells of the submit; a value of the same name by `--env` stays. The node sets
/// the rest, which it alone knows.
fn slurm_facts(mut env: v1::EnvBlob, options: &JobOptions, here: &Here) -> v1::EnvBlob {
    if !options.slurm_env {
        return env;
    }
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    let count = |count: u32| Some(count).filter(|n| *n > 0).map(|n| n.to_string().into_bytes());
    let facts = [
        ("SLURM_NTASKS", count(options.slurm.tasks)),
        ("SLURM_NTASKS_PER_NODE", options.slurm.tasks_per_node.and_then(count)),
        ("SLURM_SUBMIT_DIR", Some(here.dir.as_os_str().as_bytes().to_vec())),
        ("SLURM_SUBMIT_HOST", Some(host)),
    ];
    for (name, value) in facts {
        let begin = [name.as_bytes(), b"="].concat();
        if let Some(value) = value.filter(|_| !env.vars.iter().any(|var| var.starts_with(&begin))) {
            env.vars.push([begin, value].concat());
        }
    }
    env.vars.sort_unstable();
    env
}

/// Each kind once, in one order.
fn retry_on(kinds: &[v1::ExitKind]) -> Vec<i32> {
    let kinds: std::collections::BTreeSet<i32> = kinds.iter().map(|kind| *kind as i32).collect();
    kinds.into_iter().collect()
}

/// Empty means 0 alone, so that the common case has one form.
fn success_codes(codes: &[u8]) -> Vec<u32> {
    let mut codes: Vec<u32> = codes.iter().map(|code| u32::from(*code)).collect();
    codes.sort_unstable();
    codes.dedup();
    if codes == [0] { Vec::new() } else { codes }
}

/// The file that the node opens; `-` and `null` are none.
fn stdin_path(options: &JobOptions, dir: &Path) -> Option<Vec<u8>> {
    let given = options.stdin.as_ref()?;
    match given.as_bytes() {
        b"-" | b"null" => None,
        _ => Some(dir.join(given).into_os_string().into_vec()),
    }
}

fn base_name(program: &OsStr) -> String {
    /// Longer names are shown nowhere whole.
    const NAME_MAX: usize = 60;
    let name = Path::new(program).file_name().unwrap_or(program);
    let clean = |c: &char| !c.is_control();
    name.to_string_lossy().chars().filter(clean).take(NAME_MAX).collect()
}

fn milliseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::BLOB_MAX_BYTES;
    use super::super::limits::ARGUMENT_MAX_BYTES;
    use super::*;

    fn here() -> Here {
        Here { dir: "/home/mia".into(), umask: Some(0o22), nofile: Some(1024), ..Here::default() }
    }

    fn command(words: &[&str]) -> Work {
        Work::Command(words.iter().map(OsString::from).collect())
    }

    fn built(options: &JobOptions, work: &Work) -> v1::SubmitRequest {
        build(options, work, &here(), None, "id".to_owned()).unwrap()
    }

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let request = built(&JobOptions::default(), &command(&["/usr/bin/prep", "-x"]));
        let spec = request.spec.unwrap();
        assert_eq!(spec.name, "prep");
        assert_eq!(spec.argv, [b"/usr/bin/prep".to_vec(), b"-x".to_vec()]);
        assert_eq!(spec.dir, b"/home/mia");
        assert_eq!((spec.cpus, spec.mem_bytes, spec.priority), (1, 0, 0));
        assert_eq!(spec.queue, "default");
        assert_eq!((spec.umask, spec.nofile), (Some(0o22), Some(1024)));
        assert_eq!((spec.time_limit_ms, spec.stdin_path, spec.has_stdin), (None, None, false));
        assert!(!request.user_key);
        assert_eq!(request.request_id, "id");
    }

    #[test]
    fn paths_are_relative_to_the_directory_of_the_job() {
        let options = JobOptions {
            dir: Some("run7".into()),
            stdin: Some("in.txt".into()),
            stdout: Some("%j.out".into()),
            ..Default::default()
        };
        let spec = built(&options, &command(&["true"])).spec.unwrap();
        assert_eq!(spec.dir, b"/home/mia/run7");
        assert_eq!(spec.stdin_path.as_deref(), Some(&b"/home/mia/run7/in.txt"[..]));
        assert_eq!(spec.stdout_pattern.as_deref(), Some(&b"%j.out"[..]));
    }

    #[test]
    fn a_key_of_the_users_own_takes_the_place_of_the_generated_id() {
        let options = JobOptions { key: Some("nightly".to_owned()), ..Default::default() };
        let request = built(&options, &command(&["true"]));
        assert!(request.user_key);
        assert_eq!(request.request_id, "nightly");
    }

    #[test]
    fn what_is_too_large_is_refused_with_limit_and_size() {
        let long = "x".repeat(ARGUMENT_MAX_BYTES + 1);
        let refused = |work: &Work, stdin: Option<Vec<u8>>| {
            build(&JobOptions::default(), work, &here(), stdin, String::new())
                .unwrap_err()
                .to_string()
        };
        let text = refused(&command(&["echo", &long]), None);
        assert!(text.contains("argument 1 is 131072 bytes: at most 131071"), "{text}");
        let many = vec!["y".repeat(ARGUMENT_MAX_BYTES); 9];
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refused(&command(&many), None).contains("at most 1048576"));
        let text = refused(&command(&["cat"]), Some(vec![b'x'; BLOB_MAX_BYTES + 1]));
        assert!(text.contains("--stdin FILE") && text.contains("1048576"), "{text}");
        assert!(refused(&command(&["a\0b"]), None).contains("zero byte"));
        assert!(refused(&command(&[""]), None).contains("empty"));
    }

    #[test]
    fn success_codes_have_one_form() {
        assert!(success_codes(&[0]).is_empty());
        assert_eq!(success_codes(&[20, 0, 10, 10]), [0, 10, 20]);
    }
}
