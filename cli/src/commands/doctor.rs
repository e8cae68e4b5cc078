//! `docket doctor`: what this machine can do for docket, and what stands in the way.

use super::cgroups::cgroups;
use super::context::{Context, now_ms};
use crate::args::DoctorArgs;
use crate::client::{Client, ClientError, default_data_dir, default_tcp};
use crate::config::Settings;
use crate::exit;
use crate::failure::Failure;
use crate::render::quantity::{date_time, size};
use crate::render::{Check, Health};
use crate::roles::network_file_system;
use crate::say::print;
use jiff::tz::TimeZone;
use proto::v1::StatusRequest;
use rustix::process::{Resource, getrlimit};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Below this many free bytes a log may not grow.
const SPACE_MIN_BYTES: u64 = 1 << 30;
/// Each follower of a log and each agent is a descriptor.
const NOFILE_MIN: u64 = 1024;
/// A clock before this (2025) is not set.
const CLOCK_MIN_MS: u64 = 1_735_689_600_000;

/// Looks at everything; the exit code is 1 if something will not work.
pub async fn doctor(context: &Context, args: &DoctorArgs) -> Result<u8, Failure> {
    let dir = match &args.data {
        Some(dir) => dir.clone(),
        None => default_data_dir(&context.places)?,
    };
    let mut checks = vec![version(), kernel()];
    checks.extend(directory(&dir));
    checks.extend(cgroups());
    checks.extend([descriptors(), processes(), clock(), port()]);
    checks.extend(gpus(Path::new("/dev")));
    checks.push(server(context).await);
    print(&context.renderer(args.output.form()).checks(&checks))?;
    let bad = checks.iter().any(|check| check.health == Health::Bad);
    Ok(if bad { exit::FAILED } else { exit::DONE })
}

fn check(what: &'static str, health: Health, found: impl Into<String>) -> Check {
    Check { what, health, found: found.into() }
}

fn version() -> Check {
    let found = format!(
        "docket {}, protocol {}, level {}",
        env!("CARGO_PKG_VERSION"),
        proto::PROTOCOL,
        proto::LEVEL
    );
    check("version", Health::Good, found)
}

fn kernel() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    // Signals go through pidfd, which came with 5.3; clone3 into a cgroup with 5.7.
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let known = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let health = if known >= (5, 7) { Health::Good } else { Health::Bad };
    let need = if health == Health::Bad { ": docket needs 5.7 or newer" } else { "" };
    check(
        "kernel",
        health,
        format!("Linux {release} on {}{need}", uname.machine().to_string_lossy()),
    )
}

fn directory(dir: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    let shown = dir.display();
    checks.push(match std::fs::metadata(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            check("data", Health::Good, format!("{shown} is made at the first start"))
        }
        Err(error) => check("data", Health::Bad, format!("{shown}: {error}")),
        Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => check(
            "data",
            Health::Bad,
            format!("{shown} belongs to uid {}: give --data", meta.uid()),
        ),
        Ok(meta) if meta.mode() & 0o022 != 0 => {
            check("data", Health::Bad, format!("{shown} can be written by others: chmod 700 it"))
        }
        Ok(_) => check("data", Health::Good, format!("{shown}")),
    });
    checks.push(match network_file_system(dir) {
        Ok(None) => check("file system", Health::Good, "local"),
        Ok(Some(kind)) => check(
            "file system",
            Health::Note,
            format!("{kind}, over the network: what is written may be lost; use a local --data"),
        ),
        Err(error) => check("file system", Health::Bad, format!("{shown}: {error}")),
    });
    checks.push(space(dir));
    checks
}

fn space(dir: &Path) -> Check {
    let existing = dir.ancestors().find(|part| part.exists()).unwrap_or(dir);
    match rustix::fs::statvfs(existing) {
        Err(error) => check("disk", Health::Bad, format!("{}: {error}", existing.display())),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let health = if free < SPACE_MIN_BYTES { Health::Note } else { Health::Good };
            check("disk", health, format!("{} free in {}", size(free), existing.display()))
        }
    }
}

/// Gpus that the system has and that docket is not told of: it gives away only what it is told.
fn gpus(dev: &Path) -> Option<Check> {
    let found = (0..).take_while(|n| dev.join(format!("nvidia{n}")).exists()).count();
    let told = Settings::load(None).ok().and_then(|settings| settings.text("agent", "gpus"));
    gpu_check(found, told.as_deref())
}

fn gpu_check(found: usize, told: Option<&str>) -> Option<Check> {
    match (found, told) {
        (0, _) => None,
        (found, None) => Some(check(
            "gpus",
            Health::Note,
            format!(
                "{found} in /dev, none is given to jobs: set gpus = {found} in [agent], or docket up --gpus \
                 {found}"
            ),
        )),
        (found, Some(told)) => {
            let health = if told.parse() == Ok(found) { Health::Good } else { Health::Note };
            Some(check("gpus", health, format!("{found} in /dev, {told} given to jobs")))
        }
    }
}

fn descriptors() -> Check {
    limit("open files", Resource::Nofile, NOFILE_MIN)
}

fn processes() -> Check {
    limit("processes", Resource::Nproc, 256)
}

fn limit(what: &'static str, resource: Resource, least: u64) -> Check {
    match getrlimit(resource).current {
        None => check(what, Health::Good, "no limit"),
        Some(limit) if limit < least => {
            check(what, Health::Note, format!("at most {limit}: raise it to {least} or more"))
        }
        Some(limit) => check(what, Health::Good, format!("at most {limit}")),
    }
}

fn clock() -> Check {
    let now = now_ms();
    let shown = date_time(now, &TimeZone::system());
    if now < CLOCK_MIN_MS {
        return check(
            "clock",
            Health::Note,
            format!("{shown}: it is not set; times will be wrong"),
        );
    }
    check("clock", Health::Good, format!("{shown}, deadlines do not depend on it"))
}

fn port() -> Check {
    let address = default_tcp();
    match TcpListener::bind(address) {
        Ok(_) => check("port", Health::Good, format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => check(
            "port",
            Health::Note,
            format!("{address} is taken, perhaps by a docket that runs"),
        ),
        Err(error) => check("port", Health::Bad, format!("{address}: {error}")),
    }
}

async fn server(context: &Context) -> Check {
    match Client::find(&context.places).await {
        Ok(client) => match client.cluster().status(StatusRequest {}).await {
            Ok(answer) => {
                let status = answer.into_inner();
                let same = status.version == env!("CARGO_PKG_VERSION");
                let health = if same { Health::Good } else { Health::Note };
                let found = format!("docket {} at {}", status.version, client.address());
                check("server", health, found)
            }
            Err(status) => {
                check("server", Health::Bad, format!("{}: {}", client.address(), status.message()))
            }
        },
        Err(error @ ClientError::NoServer { named: true, .. }) => {
            check("server", Health::Bad, error.to_string())
        }
        // None has to run; but a command that needs one would fail, so this is not `ok` either.
        Err(error) => check("server", Health::Note, error.to_string()),
    }
}
