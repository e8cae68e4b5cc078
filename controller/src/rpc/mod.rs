//! The gRPC services over one set of connections. It never decides anything about jobs: requests
//! are validated in `convert.rs`, refusals are worded in `status.rs`, the rest is asked of the
//! pump and the proposer. Begin reading with `jobs.rs`.

mod convert;
mod server;
mod status;

mod again;
mod cancel;
mod edit;
mod explain;
mod jobs;
mod list;
mod logs;
mod policy;
mod set;
mod wait;

mod cluster;

mod agents;
mod attempts;
mod bulk;
mod identity;
mod transport;

pub use identity::{Caller, Gate, Stranger, user_name};
pub use server::{About, Shared, ShutdownRequest};
pub use status::REASON_KEY;
pub use transport::{Accepted, Sources, of_tcp};

use proto::v1;
use std::io;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;

/// One request: a spec, an environment and an input of 1 MiB each, and the rest.
const REQUEST_MAX_BYTES: usize = 4 * 1024 * 1024;

/// HTTP/2 window of a connection: a bulk submit keeps several batches under way.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Streams of one connection at once: a client that opens more waits.
const STREAMS_MAX: u32 = 1024;

/// Serves until `stop`; open streams are ended with a status then.
pub async fn serve(
    shared: Shared,
    sources: Sources,
    gate: Gate,
    tasks: TaskTracker,
    stop: CancellationToken,
) -> io::Result<()> {
    let incoming = transport::incoming(sources, gate.clone())?;
    let broker = bulk::BulkBroker::start(&tasks, stop.clone());
    let agents = agents::AgentsService::new(
        shared.pump.clone(),
        gate,
        broker.clone(),
        tasks.clone(),
        stop.clone(),
    );
    let jobs = jobs::Jobs::new(shared.clone(), broker);
    let cluster = cluster::Cluster::new(shared);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<v1::jobs_server::JobsServer<jobs::Jobs>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(io::Error::other)?;
    Server::builder()
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .layer(InterceptorLayer::new(identity::authenticate))
        .add_service(
            v1::jobs_server::JobsServer::new(jobs).max_decoding_message_size(REQUEST_MAX_BYTES),
        )
        .add_service(
            v1::agents_server::AgentsServer::new(agents)
                .max_decoding_message_size(REQUEST_MAX_BYTES),
        )
        .add_service(v1::cluster_server::ClusterServer::new(cluster))
        .add_service(health_service)
        .add_service(reflection)
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await
        .map_err(io::Error::other)
}
