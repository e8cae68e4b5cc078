//! `docket` alone.

use super::context::Context;
use crate::client::{Client, ClientError};
use crate::exit;
use crate::failure::Failure;
use crate::render::{Home, home as screen};
use crate::say::print;
use proto::v1::StatusRequest;
use std::time::Duration;

/// Longest wait for the first line: the rest needs no server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Shows what is there and what to type.
pub async fn home(context: &Context) -> Result<u8, Failure> {
    let found = match Client::find(&context.places).await {
        Ok(client) => served(&client).await,
        Err(ClientError::NoServer { named: false, .. }) => {
            Home::Nobody("no node runs here: docket run starts one".to_owned())
        }
        Err(other) => Home::Nobody(other.to_string()),
    };
    print(&screen(env!("CARGO_PKG_VERSION"), &found))?;
    Ok(exit::DONE)
}

async fn served(client: &Client) -> Home {
    let mut cluster = client.cluster();
    match tokio::time::timeout(ANSWER_TIMEOUT, cluster.status(StatusRequest {})).await {
        Ok(Ok(answer)) => Home::Served(Box::new(answer.into_inner())),
        Ok(Err(status)) => Home::Nobody(format!("{}: {}", client.address(), status.message())),
        Err(_) => Home::Nobody(format!("{} does not answer: docket doctor", client.address())),
    }
}
