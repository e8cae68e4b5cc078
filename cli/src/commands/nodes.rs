//! `docket nodes`, `docket cluster status` and `docket down`.

use super::context::Context;
use crate::args::{DownArgs, NodesArgs, Output};
use crate::client::{Address, Client, Patience, SOCKET, default_data_dir};
use crate::exit;
use crate::failure::Failure;
use crate::roles;
use crate::say::{note, print};
use proto::v1::{ListNodesRequest, ShutdownRequest, StatusRequest};

/// The agents and what they run.
pub async fn nodes(context: &Context, args: &NodesArgs) -> Result<u8, Failure> {
    let mut renderer = context.renderer(args.output.form());
    let mut client = context.client().await?;
    let ask = async |client: &Client| client.cluster().list_nodes(ListNodesRequest {}).await;
    let answer = client.ask(Patience::READ, note, ask).await?;
    match args.strays {
        true => print(&renderer.strays(&answer.nodes))?,
        false => print(&renderer.nodes(&answer.nodes))?,
    }
    Ok(exit::DONE)
}

/// The cluster in a few lines.
pub async fn cluster_status(context: &Context, form: Output) -> Result<u8, Failure> {
    let mut client = context.client().await?;
    let ask = async |client: &Client| client.cluster().status(StatusRequest {}).await;
    let status = client.ask(Patience::READ, note, ask).await?;
    print(&context.renderer(form).status(&status))?;
    Ok(exit::DONE)
}

/// Ends the embedded node of a directory and returns when it is gone.
pub async fn down(context: &Context, args: &DownArgs) -> Result<u8, Failure> {
    let dir = match &args.data {
        Some(dir) => dir.clone(),
        None => default_data_dir(&context.places)?,
    };
    let mut client = Client::at(Address::Unix(dir.join(SOCKET)), context.places.uid).await?;
    let request = ShutdownRequest { kill: args.kill };
    // Safe to repeat: a node that is ending already takes it as the same wish.
    let ask = async |client: &Client| client.cluster().shutdown(request).await;
    let answer = client.ask(Patience::CHANGE, note, ask).await?;
    roles::gone(&dir, args.kill).await?;
    let jobs = match (args.kill, answer.killed) {
        (false, _) => String::new(),
        (true, 1) => "; 1 job was ended".to_owned(),
        (true, count) => format!("; {count} jobs were ended"),
    };
    print(&format!("docket is down{jobs}\n"))?;
    Ok(exit::DONE)
}
