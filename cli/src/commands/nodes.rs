//! `docket nodes` and `docket cluster status`.

use super::context::Context;
use crate::args::{DrainArgs, NodesArgs, NodesCommand, Output, UndrainArgs};
use crate::client::{Client, ClientError, Patience, request_id};
use crate::exit;
use crate::failure::Failure;
use crate::render::escape::line;
use crate::say::{note, print};
use proto::v1::{ConfirmDeadRequest, DrainRequest, ListNodesRequest, StatusRequest};

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

/// Keeps new jobs from nodes.
pub async fn drain(context: &Context, args: &DrainArgs) -> Result<u8, Failure> {
    let told = |node: &str, held: u64| match held {
        0 => format!("{node} is drained: nothing runs there\n"),
        held => format!("{node} is drained: {held} of its jobs go on, docket nodes counts them\n"),
    };
    let request = DrainRequest { reason: args.reason.clone(), ..DrainRequest::default() };
    each_node(context, &args.nodes, &request, told).await
}

/// Lets new jobs go to nodes again.
pub async fn undrain(context: &Context, args: &UndrainArgs) -> Result<u8, Failure> {
    let request = DrainRequest { undrain: true, ..DrainRequest::default() };
    each_node(context, &args.nodes, &request, |node, _| format!("{node} takes jobs again\n")).await
}

/// Each node is answered for itself; the exit code is that of the first refusal.
async fn each_node(
    context: &Context,
    nodes: &[String],
    like: &DrainRequest,
    told: impl Fn(&str, u64) -> String,
) -> Result<u8, Failure> {
    let mut client = context.client().await?;
    let mut code = exit::DONE;
    for node in nodes {
        let (request_id, node) = (request_id(), node.clone());
        let request = DrainRequest { request_id, node: node.clone(), ..like.clone() };
        let ask = async |client: &Client| client.cluster().drain(request.clone()).await;
        match client.ask(Patience::CHANGE, note, ask).await {
            Ok(answer) => print(&told(&line(&node), answer.held))?,
            Err(error @ ClientError::Refused { .. }) => {
                note(&error.to_string());
                code = if code == exit::DONE { error.exit_code() } else { code };
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(code)
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
