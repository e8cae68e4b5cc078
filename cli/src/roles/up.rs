//! `docket up`: the embedded node. Here is the order in which it comes up; `embedded.rs` is its life.

use super::background::{self, Report};
use super::embedded::{Node, serve};
use super::listen::{GRPC, HTTP, Socket, bind};
use super::lock::{self, Lock, Part};
use super::{RoleError, data_dir, ending, logging};
use crate::args::{Stage, UpArgs};
use crate::client::{Places, default_data_dir};
use crate::config::Settings;
use crate::exit;
use crate::failure::Failure;
use crate::say::{note, print};
use std::path::{Path, PathBuf};
use units::exact_size;

/// Runs a node here, or starts one in the background.
pub fn up(places: &Places, args: &UpArgs) -> Result<u8, Failure> {
    match args.stage {
        Some(Stage::Launch) => background::launch(args).map_err(Failure::from),
        Some(Stage::Serve) => {
            let report = Report::take()?;
            let served = foreground(places, args, Some(&report));
            if let Err(failure) = &served {
                report.failed(failure);
            }
            served
        }
        None if args.background => in_background(places, args),
        None => foreground(places, args, None),
    }
}

fn in_background(places: &Places, args: &UpArgs) -> Result<u8, Failure> {
    let settings = Settings::load(args.config.as_deref())?;
    let dir = directory(places, args, &settings)?;
    print(&background::start_and_report(&dir, args, places.uid)?)?;
    Ok(exit::DONE)
}

fn foreground(places: &Places, args: &UpArgs, report: Option<&Report>) -> Result<u8, Failure> {
    logging::start();
    let mut settings = Settings::load(args.config.as_deref())?;
    let dir = data_dir::prepare(&directory(places, args, &settings)?)?;
    warn_of_network(&dir);
    apply_options(&mut settings, &dir, args)?;
    lock::stand_alone(&dir)?;
    let lock = Lock::take(&dir, Part::Node)?;
    // Behind it, for up.lock can be removed by hand: whoever is refused from here on has touched nothing.
    let claim = ::controller::claim(&dir).map_err(RoleError::from)?;
    let mut agent: worker_agent::Config = settings.section("agent")?;
    let agent_claim = worker_agent::claim(&agent.data).map_err(RoleError::from)?;
    let mut controller: ::controller::Config = settings.section("controller")?;
    controller.embedded = true;
    if settings.source("agent", "allow_root_jobs").is_none() {
        // Who runs the node themselves runs their jobs as themselves (design 5).
        agent.allow_root_jobs = true;
    }
    let port = bind(GRPC, &settings, &mut controller.listen)?;
    let http = bind(HTTP, &settings, &mut controller.http)?;
    let is_default = places.data_env.is_none() && default_data_dir(places).is_ok_and(|d| d == dir);
    let mut socket = Socket::bind(&dir, is_default && places.uid == 0)?;
    if is_default {
        socket.leave_link(places);
    }
    let idle_exit = args.idle_exit;
    let node = Node { controller, claim, agent, agent_claim, port, http, socket, idle_exit };
    let runtime = ending::runtime()?;
    let served = runtime.block_on(serve(node, report));
    // Whatever still runs in it must not hold the end up: everything durable is on disk.
    runtime.shutdown_background();
    drop(lock);
    Ok(served.map(|()| exit::DONE)?)
}

/// The directory of the node: option, `DOCKET_DATA`, configuration, default.
fn directory(places: &Places, args: &UpArgs, settings: &Settings) -> Result<PathBuf, Failure> {
    if let Some(dir) = &args.data {
        return Ok(dir.clone());
    }
    let configured =
        || settings.text("controller", "data").or_else(|| settings.text("agent", "data"));
    match configured().filter(|_| places.data_env.is_none()) {
        Some(dir) => Ok(PathBuf::from(dir)),
        None => Ok(default_data_dir(places)?),
    }
}

fn apply_options(settings: &mut Settings, dir: &Path, args: &UpArgs) -> Result<(), Failure> {
    let text = dir.to_str().ok_or_else(|| {
        Failure::Usage(format!("--data {}: the path must be UTF-8", dir.display()))
    })?;
    settings.put_option("controller", "data", text, "--data")?;
    settings.put_option("agent", "data", text, "--data")?;
    if let Some(listen) = &args.listen {
        settings.put_option("controller", "listen", listen, "--listen")?;
    }
    if let Some(http) = &args.http {
        settings.put_option("controller", "http", http, "--http")?;
    }
    if let Some(cpus) = args.cpus {
        settings.put_option("agent", "cpus", &cpus.to_string(), "--cpus")?;
    }
    if let Some(mem) = args.mem {
        settings.put_option("agent", "mem", &exact_size(mem), "--mem")?;
    }
    super::agent::offer(settings, args.gpus, &args.resource)
}

fn warn_of_network(dir: &Path) {
    if let Ok(Some(kind)) = data_dir::network_file_system(dir) {
        let user = rustix::process::getuid().as_raw();
        note(&format!(
            "{} is on a network file system ({kind}): what is written there may be lost, and locks \
             may not hold; use a local directory: --data /var/tmp/docket-{user}",
            dir.display()
        ));
    }
}
