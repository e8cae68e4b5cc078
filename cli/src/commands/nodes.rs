//! `docket nodes` and `docket cluster status`.

use super::context::Context;
use crate::args::{NodesArgs, NodesCommand, Output};
use crate::client::{Client, Patience, request_id};
use crate::exit;
use crate::failure::Failure;
use crate::say::{note, print};
use proto::v1::{ConfirmDeadRequest, ListNodesRequest, StatusRequest};

/// The agents and what they run.
pub async fn nodes(context: &Context, args: &NodesArgs) -> Result<u8, Failure> {
    if let Some(NodesCommand::ConfirmDead { node }) = &args.command {
        return confirm_dead(context, node).await;
    }
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

/// An operator vouches that nothing of a lost node's attempts lives.
async fn confirm_dead(context: &Context, node: &str) -> Result<u8, Failure> {
    let request = ConfirmDeadRequest { request_id: request_id(), node: node.to_owned() };
    let mut client = context.client().await?;
    let ask = async |client: &Client| client.cluster().confirm_dead(request.clone()).await;
    let answer = client.ask(Patience::CHANGE, note, ask).await?;
    let tasks = if answer.proven == 1 { "task" } else { "tasks" };
    print(&format!("{} {tasks} that waited for proof may start again\n", answer.proven))?;
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
