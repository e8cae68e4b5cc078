//! Starting the embedded node so that it outlives its starter: a process that leads a new session
//! starts the node and ends (so init becomes the node's parent); the node reports over a pipe.
//!
//! What the pipe carries, one line each: `docket is up: …`, `taken`, or `failed CODE WORDS`.

use super::lock::{Part, holder, is_free};
use super::{RoleError, data_dir, ending};
use crate::args::UpArgs;
use crate::client::{Address, Client, SOCKET, dial_in};
use crate::failure::Failure;
use crate::render::quantity::date_time;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use proto::v1::StatusRequest;
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use units::{exact_duration, exact_size};

/// Name of the log in the data directory.
const LOG: &str = "up.log";
/// A log above this is set aside at the next start.
const LOG_MAX_BYTES: u64 = 16 << 20;
/// Somebody else's start is waited for so long.
const OTHER_START_MAX: Duration = Duration::from_secs(60);
/// A node that serves answers in milliseconds.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Between two looks at somebody else's start.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Whose node serves now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// One that was started here.
    Started {
        /// Its process.
        pid: u32,
    },
    /// One that somebody else started meanwhile.
    AlreadyThere,
}

/// What the node in the background said.
enum Said {
    Up(String),
    Taken,
    Failed(RoleError),
    Nothing,
}

/// Starts a node in `dir` unless one is there, and returns when it serves. Two who do this at once
/// get the same node.
pub async fn start_in_background(dir: &Path, idle: Duration) -> Result<Background, RoleError> {
    let args = UpArgs { data: Some(dir.to_owned()), idle_exit: Some(idle), ..UpArgs::default() };
    let dir = dir.to_owned();
    let starting = tokio::task::spawn_blocking(move || start(&dir, &args));
    let joined = starting.await.map_err(io::Error::other);
    let (dir, said) = joined.map_err(|why| RoleError::System { what: "start a node", why })??;
    match said {
        Said::Up(_) => Ok(Background::Started { pid: holder(&dir).pid.unwrap_or(0) }),
        Said::Taken => other_start(&dir).await.map(|()| Background::AlreadyThere),
        Said::Failed(error) => Err(error),
        Said::Nothing => Err(RoleError::Silent { dir, what: "ended without a word" }),
    }
}

/// Starts a node as the arguments say and gives the line that it prints. One that serves there
/// already is as good.
pub fn start_and_report(dir: &Path, args: &UpArgs, uid: u32) -> Result<String, RoleError> {
    let (dir, said) = start(dir, args)?;
    match said {
        Said::Up(line) => Ok(line),
        Said::Taken => ending::runtime()?.block_on(found(&dir, args, uid)),
        Said::Failed(error) => Err(error),
        Said::Nothing => Err(RoleError::Silent { dir, what: "ended without a word" }),
    }
}

/// The line about a node that was there before.
async fn found(dir: &Path, args: &UpArgs, uid: u32) -> Result<String, RoleError> {
    let silent = |why: String| {
        let pid = holder(dir).pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
        RoleError::NotServing { dir: dir.to_owned(), pid, why }
    };
    other_start(dir).await?;
    let asked = tokio::time::timeout(ANSWER_MAX, async {
        let client = Client::at(Address::Unix(dir.join(SOCKET)), uid).await;
        let client = client.map_err(|why| why.to_string())?;
        let answer = client.cluster().status(StatusRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|why| why.message().to_owned())
    });
    let status = match asked.await {
        Ok(Ok(status)) => status,
        Ok(Err(why)) => return Err(silent(why)),
        Err(_) => return Err(silent(format!("no word in {} s", ANSWER_MAX.as_secs()))),
    };
    if status.leader == 0 {
        return Err(silent("its controller does not lead".to_owned()));
    }
    let now_ms = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    let since = date_time(now_ms.saturating_sub(status.uptime_ms), &TimeZone::system());
    let asked = args.listen.is_some() || args.http.is_some() || args.cpus.is_some();
    let kept = match asked || args.mem.is_some() {
        true => "; it keeps the settings that it was started with",
        false => "",
    };
    let dir = dir.display();
    Ok(format!(
        "docket is up: already running in {dir} (pid {}, since {since}){kept}\n",
        status.pid
    ))
}

fn start(dir: &Path, args: &UpArgs) -> Result<(PathBuf, Said), RoleError> {
    let dir = data_dir::prepare(dir)?;
    let log = open_log(&dir)?;
    let system = |what| move |why| RoleError::System { what, why };
    let mut launcher = docket(&UpArgs { data: Some(dir.clone()), ..args.clone() }, "launch")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(system("start a node"))?;
    let said = match launcher.stdout.take() {
        Some(pipe) => listen(BufReader::new(pipe)),
        None => Said::Nothing,
    };
    launcher.wait().map_err(system("wait for the node's start"))?;
    Ok((dir, said))
}

/// Reads up to the first line that decides. Not to the end: a descriptor of the pipe might live on.
fn listen(pipe: impl BufRead) -> Said {
    for line in pipe.lines().map_while(Result::ok) {
        if line.starts_with("docket is up") {
            return Said::Up(line + "\n");
        }
        if line == "taken" {
            return Said::Taken;
        }
        if let Some((code, message)) =
            line.strip_prefix("failed ").and_then(|rest| rest.split_once(' '))
        {
            let code = code.parse().unwrap_or(crate::exit::FAILED);
            return Said::Failed(RoleError::Background { code, message: message.to_owned() });
        }
    }
    Said::Nothing
}

/// Waits until the node that somebody else starts in `dir` serves.
async fn other_start(dir: &Path) -> Result<(), RoleError> {
    let limit = Instant::now() + OTHER_START_MAX;
    while dial_in(&dir.join(SOCKET)).await.is_err() {
        if is_free(dir) {
            return Err(RoleError::Silent {
                dir: dir.to_owned(),
                what: "ended while it was awaited",
            });
        }
        if Instant::now() > limit {
            return Err(RoleError::Silent { dir: dir.to_owned(), what: "does not serve yet" });
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

/// The process in between: leads a new session, starts the node, and ends.
pub fn launch(args: &UpArgs) -> Result<u8, RoleError> {
    // It was just forked, so it leads no group and this cannot fail; in a terminal by hand it can.
    let _ = rustix::process::setsid();
    docket(args, "serve")
        .stdin(Stdio::null())
        .spawn()
        .map_err(|why| RoleError::System { what: "start the node", why })?;
    Ok(crate::exit::DONE)
}

/// This program once more, as `docket up` in one of its stages. The same file even if it was
/// replaced meanwhile.
fn docket(args: &UpArgs, stage: &str) -> Command {
    let mut words: Vec<OsString> = vec!["up".into(), "--stage".into(), stage.into()];
    let mut option = |name: &str, value: Option<OsString>| {
        words.extend(value.into_iter().flat_map(|value| [name.into(), value]));
    };
    option("--data", args.data.clone().map(Into::into));
    option("--listen", args.listen.clone().map(Into::into));
    option("--http", args.http.clone().map(Into::into));
    option("--cpus", args.cpus.map(|cpus| cpus.to_string().into()));
    option("--mem", args.mem.map(|mem| exact_size(mem).into()));
    option("--gpus", args.gpus.map(|gpus| gpus.to_string().into()));
    for (name, amount) in &args.resource {
        option("--resource", Some(format!("{name}={amount}").into()));
    }
    option("--idle-exit", args.idle_exit.map(|time| exact_duration(time).into()));
    option("--config", args.config.clone().map(Into::into));
    let mut command = Command::new("/proc/self/exe");
    command.arg0("docket").args(words);
    command
}

fn open_log(dir: &Path) -> Result<File, RoleError> {
    let path = dir.join(LOG);
    let failed = |why| RoleError::Directory { path: path.clone(), why };
    if path.metadata().is_ok_and(|meta| meta.len() > LOG_MAX_BYTES) {
        std::fs::rename(&path, dir.join("up.log.1")).map_err(failed)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(failed)
}

/// The node's end of the pipe. Its stdout goes nowhere from the start.
pub struct Report {
    pipe: Mutex<Option<File>>,
}

impl Report {
    /// Takes stdout as the pipe.
    pub fn take() -> Result<Report, RoleError> {
        use std::os::fd::AsFd;
        let system = |why: io::Error| RoleError::System { what: "report the start", why };
        let pipe = io::stdout().as_fd().try_clone_to_owned().map_err(system)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())
            .map_err(|errno| system(errno.into()))?;
        rustix::stdio::dup2_stdout(&null).map_err(|errno| system(errno.into()))?;
        Ok(Report { pipe: Mutex::new(Some(File::from(pipe))) })
    }

    /// It serves.
    pub fn up(&self, line: &str) {
        self.tell(line);
    }

    /// It does not.
    pub fn failed(&self, failure: &Failure) {
        match failure {
            // A controller alone is no node: it is refused by name, as in the foreground.
            Failure::Role(RoleError::InUse { holder, .. })
                if holder.part != Some(Part::Controller) =>
            {
                self.tell("taken\n");
            }
            other => {
                let words = crate::render::escape::line(&other.to_string());
                self.tell(&format!("failed {} {words}\n", other.exit_code()));
            }
        }
    }

    /// One line, then the pipe is closed: there is nothing more to say.
    fn tell(&self, line: &str) {
        let pipe = self.pipe.lock().ok().and_then(|mut pipe| pipe.take());
        if let Some(mut pipe) = pipe {
            // Who started this may have left; the node goes on.
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Said {
        listen(text.as_bytes())
    }

    #[test]
    fn the_first_line_that_decides_is_taken() {
        assert!(
            matches!(said("noise\ndocket is up: /s (pid 1)\n"), Said::Up(line) if line == "docket is up: /s (pid 1)\n")
        );
        assert!(matches!(said("taken\n"), Said::Taken));
        assert!(matches!(said(""), Said::Nothing));
        let failed = said("failed 77 no: not yours\n");
        assert!(
            matches!(failed, Said::Failed(error) if error.exit_code() == 77 && error.to_string() == "no: not yours")
        );
    }

    #[test]
    fn the_arguments_go_along() {
        let args = UpArgs {
            data: Some("/d".into()),
            mem: Some(2 << 30),
            idle_exit: Some(Duration::from_secs(600)),
            ..UpArgs::default()
        };
        let command = docket(&args, "serve");
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        let expected =
            ["up", "--stage", "serve", "--data", "/d", "--mem", "2G", "--idle-exit", "10m"];
        assert_eq!(words, expected);
    }
}
