//! `docket down`: ends the embedded node of a directory, or the one that a named server is. The second
//! reaches a node whose directory, and with it its socket, was deleted.

use super::context::Context;
use crate::args::DownArgs;
use crate::client::{
    Address, Client, ClientError, DEFAULT_TCP, Patience, SOCKET, default_data_dir,
};
use crate::exit;
use crate::failure::Failure;
use crate::roles;
use crate::say::{note, print};
use proto::v1::{ShutdownRequest, StatusAnswer, StatusRequest};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two looks at an address that will be free soon.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// A node stops within 5 s; twice that is wrong. With its jobs: their grace, and the keeper's patience.
const STOP_MAX: Duration = Duration::from_secs(10);
const KILL_MAX: Duration = Duration::from_secs(90);

/// Ends a node and returns when it is gone.
pub async fn down(context: &Context, args: &DownArgs) -> Result<u8, Failure> {
    let named = args.data.is_none() && context.places.route()?.named;
    let (mut client, dir) = match named {
        true => named_node(context).await?,
        false => node_of_directory(context, args).await?,
    };
    let request = ShutdownRequest { kill: args.kill };
    // Safe to repeat: a node that is ending already takes it as the same wish.
    let ask = async |client: &Client| client.cluster().shutdown(request).await;
    let answer = client.ask(Patience::CHANGE, note, ask).await?;
    gone(&client, &dir, args.kill, context.places.uid).await?;
    let jobs = match (args.kill, answer.killed) {
        (false, _) => String::new(),
        (true, 1) => "; 1 job was ended".to_owned(),
        (true, count) => format!("; {count} jobs were ended"),
    };
    print(&format!("docket is down{jobs}\n"))?;
    Ok(exit::DONE)
}

/// The node that is the named server. A controller alone may be the whole of a cluster for others: it
/// is ended by its directory, where nobody means another one.
async fn named_node(context: &Context) -> Result<(Client, PathBuf), Failure> {
    let mut client = context.client().await?;
    let status = status(&mut client).await?;
    if !status.embedded {
        return Err(Failure::Usage(format!(
            "{} is a docket controller (pid {}), no node of docket up: docket down --data {} ends it",
            client.address(),
            status.pid,
            status.data
        )));
    }
    Ok((client, PathBuf::from(status.data)))
}

/// The node of `--data` or of the default directory, through the socket in it.
async fn node_of_directory(
    context: &Context,
    args: &DownArgs,
) -> Result<(Client, PathBuf), Failure> {
    let dir = match &args.data {
        Some(dir) => dir.clone(),
        None => default_data_dir(&context.places)?,
    };
    let failed = match Client::at(Address::Unix(dir.join(SOCKET)), context.places.uid).await {
        Ok(client) => return Ok((client, dir)),
        Err(failed) => failed,
    };
    match at_default_port(context, &dir).await {
        Some(client) => Ok((client, dir)),
        None => {
            note_way_round(&dir);
            Err(failed.into())
        }
    }
}

/// The socket may have gone with its directory: the default port leads to the same node, if it says
/// that it is that one.
async fn at_default_port(context: &Context, dir: &Path) -> Option<Client> {
    let address = Address::Tcp(DEFAULT_TCP.to_owned());
    let mut client = Client::at(address, context.places.uid).await.ok()?;
    let status = status(&mut client).await.ok()?;
    let same = std::path::absolute(dir).is_ok_and(|dir| dir == Path::new(&status.data));
    same.then_some(client)
}

fn note_way_round(dir: &Path) {
    if !dir.exists() {
        note(&format!(
            "{} is not there; a node whose directory was deleted under it is ended by docket down \
             --server ADDRESS, with an address that it printed at its start, or by kill -TERM PID",
            dir.display()
        ));
    }
}

async fn status(client: &mut Client) -> Result<StatusAnswer, ClientError> {
    let ask = async |client: &Client| client.cluster().status(StatusRequest {}).await;
    client.ask(Patience::READ, note, ask).await
}

/// Waits until the node has ended: its lock is free; where that was deleted, nobody serves its address.
async fn gone(client: &Client, dir: &Path, kill: bool, uid: u32) -> Result<(), Failure> {
    if dir.exists() {
        return Ok(roles::gone(dir, kill).await?);
    }
    let address = client.address().clone();
    let free = async {
        while Client::at(address.clone(), uid).await.is_ok() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let most = if kill { KILL_MAX } else { STOP_MAX };
    tokio::time::timeout(most, free).await.map_err(|_| {
        Failure::Role(roles::RoleError::Failed(format!(
            "{} still serves {} s after it was asked to end",
            client.address(),
            most.as_secs()
        )))
    })
}
