//! `docket agent`: one node's agent.

use super::ending::{self, Ending};
use super::{RoleError, controller, data_dir, lock, logging};
use crate::args::AgentArgs;
use crate::client::{Address, Places};
use crate::config::Settings;
use crate::exit;
use crate::failure::Failure;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use units::exact_size;
use worker_agent::Connector;

/// An agent ends within 2 s of its stop.
const STOP_MAX: Duration = Duration::from_secs(4);

/// Runs until a signal, or until the controller refuses it for good.
pub fn agent(places: &Places, args: &AgentArgs) -> Result<u8, Failure> {
    logging::start();
    let mut settings = Settings::load(args.config.as_deref())?;
    apply_options(&mut settings, args)?;
    let dir = controller::directory(places, args.data.as_ref(), settings.text("agent", "data"))?;
    let mut config: worker_agent::Config = settings.section("agent")?;
    config.data = data_dir::prepare(&dir)?;
    lock::stand_apart(&config.data)?;
    let connector = connector(&config.controllers)?;
    let runtime = ending::runtime()?;
    let ran = runtime.block_on(run(config, connector));
    runtime.shutdown_background();
    Ok(ran.map(|()| exit::DONE)?)
}

async fn run(config: worker_agent::Config, connector: Connector) -> Result<(), RoleError> {
    let mut ending = Ending::watch()?;
    let stop = CancellationToken::new();
    let mut agent = tokio::spawn(worker_agent::run(config, connector, stop.clone()));
    let ended = tokio::select! {
        ended = &mut agent => ended,
        signal = ending.next() => {
            tracing::info!("{signal}: stopping; jobs go on under the keeper");
            stop.cancel();
            match tokio::time::timeout(STOP_MAX, &mut agent).await {
                Ok(ended) => ended,
                Err(_) => {
                    tracing::warn!("the agent did not stop in time");
                    return Ok(());
                }
            }
        }
    };
    match ended {
        Ok(result) => Ok(result?),
        Err(panic) => Err(RoleError::Failed(format!("the agent ended in a panic: {panic}"))),
    }
}

/// Ports of voters, or the one socket of a controller on this machine.
fn connector(controllers: &[String]) -> Result<Connector, Failure> {
    let mut tcp = Vec::new();
    for text in controllers {
        match Address::parse(text).map_err(|e| Failure::Usage(format!("--controllers {e}")))? {
            Address::Tcp(host) => tcp.push(host),
            Address::Unix(path) => return Ok(Connector::Unix(path)),
        }
    }
    if tcp.is_empty() { Err(RoleError::NoControllers.into()) } else { Ok(Connector::Tcp(tcp)) }
}

/// What it offers beside cpus and memory.
pub(super) fn offer(
    settings: &mut Settings,
    gpus: Option<u32>,
    resources: &[(String, u64)],
) -> Result<(), Failure> {
    if let Some(gpus) = gpus {
        settings.put_option("agent", "gpus", &gpus.to_string(), "--gpus")?;
    }
    if !resources.is_empty() {
        let all: Vec<String> =
            resources.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        settings.put_option("agent", "resources", &all.join(","), "--resource")?;
    }
    Ok(())
}

fn apply_options(settings: &mut Settings, args: &AgentArgs) -> Result<(), Failure> {
    if let Some(controllers) = &args.controllers {
        settings.put_option("agent", "controllers", controllers, "--controllers")?;
    }
    if let Some(name) = &args.name {
        settings.put_option("agent", "name", name, "--name")?;
    }
    if let Some(cpus) = args.cpus {
        settings.put_option("agent", "cpus", &cpus.to_string(), "--cpus")?;
    }
    if let Some(mem) = args.mem {
        settings.put_option("agent", "mem", &exact_size(mem), "--mem")?;
    }
    offer(settings, args.gpus, &args.resource)?;
    if !args.label.is_empty() {
        let labels: Vec<String> =
            args.label.iter().map(|(name, value)| format!("{name}={value}")).collect();
        settings.put_option("agent", "labels", &labels.join(","), "--label")?;
    }
    Ok(())
}
