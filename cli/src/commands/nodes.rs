//! `docket nodes` and `docket cluster status`.

use super::context::Context;
use crate::args::{NodesArgs, Output};
use crate::client::{Client, Patience};
use crate::exit;
use crate::failure::Failure;
use crate::say::{note, print};
use proto::v1::{ListNodesRequest, StatusRequest};

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
