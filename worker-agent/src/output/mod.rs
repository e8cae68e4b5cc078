//! Relays of output: each read that the controller asks for is one `Agents.Bulk` call over its own
//! connection, so that a slow reader delays neither the session nor another reader.

mod file;
mod relay;
mod watch;

pub use relay::Place;

use crate::session::{Use, client_over};
use crate::wire::Connector;
use proto::v1;
use relay::{Relay, RelayError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use worker_agent_core::Target;

/// Relays at a time. Each holds a descriptor and a few pieces; past it a reader is told to retry.
const RELAYS_MAX: usize = 256;

/// From the dial to the question which output is wanted.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

/// The relays of this process, and their owner.
pub struct Relays {
    place: Arc<Place>,
    tasks: JoinSet<()>,
}

impl Relays {
    /// None yet.
    pub fn new(place: Place) -> Self {
        Relays { place: Arc::new(place), tasks: JoinSet::new() }
    }

    /// Starts one.
    pub fn open(&mut self, connector: Connector, target: Target, request: u64) {
        while self.tasks.try_join_next().is_some() {}
        let full = self.tasks.len() >= RELAYS_MAX;
        let place = Arc::clone(&self.place);
        self.tasks.spawn(async move {
            if let Err(error) = serve(&place, connector, &target, request, full).await {
                tracing::info!(request, %error, "a relay of output ended early");
            }
        });
    }

    /// Ends all.
    pub async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
    }
}

async fn serve(
    place: &Arc<Place>,
    connector: Connector,
    target: &Target,
    request: u64,
    full: bool,
) -> Result<(), RelayError> {
    let begun = tokio::time::timeout(BEGIN_WITHIN, begin(place, &connector, target, request));
    let (mut relay, read) = begun.await.map_err(|_| RelayError::NotBegun)??;
    if full {
        let message = format!("the node serves {RELAYS_MAX} readers already: try again later");
        relay.fail(message, false).await?;
    } else {
        relay.run(place, read).await?;
    }
    relay.finish().await
}

async fn begin(
    place: &Arc<Place>,
    connector: &Connector,
    target: &Target,
    request: u64,
) -> Result<(Relay, v1::ReadOutput), RelayError> {
    let wire = connector.dial(target).await?;
    let mut client = client_over(wire, Use::Relay).await?;
    let (up, queue) = mpsc::channel(relay::WINDOW_PIECES as usize);
    let hello = v1::BulkHello { agent_id: place.agent_id.clone() };
    let kind = Some(v1::bulk_up::Kind::Hello(hello));
    up.send(v1::BulkUp { request, kind }).await.map_err(|_| RelayError::PeerEnded)?;
    let down = client.bulk(ReceiverStream::new(queue)).await?.into_inner();
    Relay::begin(request, up, down).await
}
