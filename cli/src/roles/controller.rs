//! `docket controller`: one voter.

use super::embedded::metrics_at;
use super::ending::{self, Ending};
use super::listen::{GRPC, HTTP, Socket, bind, tcp};
use super::lock::{self, Lock, Part};
use super::{RoleError, data_dir, logging};
use crate::args::ControllerArgs;
use crate::client::Places;
use crate::config::Settings;
use crate::exit;
use crate::failure::Failure;
use crate::say::print;
use ::controller::{Controller, Sources};
use futures::FutureExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;

/// Between two looks at what has no signal of its own.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The whole stop, as promised for the embedded node.
const STOP_MAX: Duration = Duration::from_millis(4800);

/// Serves until a signal or a failure.
pub fn controller(places: &Places, args: &ControllerArgs) -> Result<u8, Failure> {
    logging::start();
    let mut settings = Settings::load(args.config.as_deref())?;
    if let Some(listen) = &args.listen {
        settings.put_option("controller", "listen", listen, "--listen")?;
    }
    if let Some(http) = &args.http {
        settings.put_option("controller", "http", http, "--http")?;
    }
    let dir = directory(places, args.data.as_ref(), settings.text("controller", "data"))?;
    let mut config: ::controller::Config = settings.section("controller")?;
    config.data = data_dir::prepare(&dir)?;
    // Two controllers on one directory: the second must fail before it takes the first one's socket.
    lock::stand_alone(&config.data)?;
    let lock = Lock::take(&config.data, Part::Controller)?;
    let claim = ::controller::claim(&config.data).map_err(RoleError::from)?;
    let port = tcp(GRPC, &config.listen, true)?;
    let http = bind(HTTP, &settings, &mut config.http)?;
    if let Some(bound) = port.as_ref().and_then(|port| port.local_addr().ok()) {
        config.listen = bound.to_string();
    }
    let socket = Socket::bind(&config.data, false)?;
    let names = socket.names();
    let metrics = http.as_ref().map(|_| format!(", {}", metrics_at(&config.http)));
    let line = format!(
        "docket controller is up: {}, http://{}{} (pid {})\n",
        socket.path.display(),
        config.listen,
        metrics.unwrap_or_default(),
        std::process::id()
    );
    // Nobody but its own process uses memory streams, and a controller alone has no other part.
    let (_streams, memory) = mpsc::channel(1);
    let sources = Sources { tcp: port, http, unix: Some(socket.listener), memory };
    let runtime = ending::runtime()?;
    let served = runtime.block_on(async {
        let mut ending = Ending::watch()?;
        let mut controller = tokio::select! {
            started = ::controller::start_claimed(config, claim, sources) => started?,
            _ = ending.next() => return Ok(()),
        };
        // Nobody reads it: the controller serves all the same.
        let _ = print(&line);
        let end = until_end(&mut controller, &mut ending).await;
        if tokio::time::timeout(STOP_MAX, controller.stop()).await.is_err() {
            tracing::warn!(
                "the controller did not stop in time; its log is repaired at the next start"
            );
        }
        end
    });
    runtime.shutdown_background();
    names.remove();
    drop(lock);
    Ok(served.map(|()| exit::DONE)?)
}

async fn until_end(controller: &mut Controller, ending: &mut Ending) -> Result<(), RoleError> {
    loop {
        tokio::select! {
            signal = ending.next() => {
                tracing::info!("{signal}: stopping");
                return Ok(());
            }
            _ = controller.shutdown_requested() => {
                tracing::info!("asked to end: stopping");
                return Ok(());
            }
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        if let Some(why) = controller.failed().now_or_never() {
            return Err(RoleError::Failed(why));
        }
    }
}

/// A part that is no embedded node has no default directory: it is named.
pub fn directory(
    places: &Places,
    option: Option<&PathBuf>,
    configured: Option<String>,
) -> Result<PathBuf, RoleError> {
    option
        .cloned()
        .or_else(|| configured.map(PathBuf::from))
        .or_else(|| places.data_env.clone().map(PathBuf::from))
        .ok_or(RoleError::NoData)
}
