//! A plain gRPC client for what the command line is too slow for: many submits, many reads.

use proto::v1::jobs_client::JobsClient;
use proto::v1::{JobSpec, ListRequest, SubmitAnswer, SubmitRequest};
use std::collections::BTreeMap;
use tonic::transport::Channel;

/// Submits in flight on one stream: enough to keep the proposer's batches full.
const STREAM_AHEAD: usize = 4096;

/// A runtime with one thread for the tests' own calls.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

/// Connects to a controller's address.
pub async fn connect(address: &str) -> JobsClient<Channel> {
    let url = format!("http://{address}");
    JobsClient::connect(url.clone()).await.unwrap_or_else(|e| panic!("{url}: {e}"))
}

/// A job that runs `argv` with one cpu in `/`.
pub fn spec(argv: &[&str]) -> JobSpec {
    JobSpec {
        name: argv.first().map_or_else(String::new, |&first| first.to_owned()),
        argv: argv.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        dir: b"/".to_vec(),
        cpus: 1,
        queue: "default".to_owned(),
        ..JobSpec::default()
    }
}

/// The request to submit a job under a fresh request id.
pub fn request(spec: JobSpec) -> SubmitRequest {
    SubmitRequest {
        request_id: uuid::Uuid::now_v7().to_string(),
        spec: Some(spec),
        env: Some(proto::v1::EnvBlob { vars: vec![b"PATH=/usr/bin:/bin".to_vec()] }),
        ..SubmitRequest::default()
    }
}

/// Streams the jobs and gives their ids in order; panics at the first refusal.
pub async fn submit_many(client: &mut JobsClient<Channel>, specs: Vec<JobSpec>) -> Vec<u64> {
    let (feed, requests) = tokio::sync::mpsc::channel(STREAM_AHEAD);
    let count = specs.len();
    let feeder = tokio::spawn(async move {
        for spec in specs {
            if feed.send(request(spec)).await.is_err() {
                return;
            }
        }
    });
    let stream = tokio_stream::wrappers::ReceiverStream::new(requests);
    let answers = client.submit_many(stream).await.expect("the stream opens");
    let mut answers = answers.into_inner();
    let mut ids = Vec::with_capacity(count);
    while let Some(answer) = answers.message().await.expect("the stream goes on") {
        let SubmitAnswer { job, error, .. } = answer;
        assert_eq!(error, None, "submit {} was refused", ids.len());
        ids.push(job);
    }
    feeder.await.expect("the feeder ends");
    assert_eq!(ids.len(), count, "every submit is answered");
    ids
}

/// Number of tasks by state, of all users.
pub async fn counts(client: &mut JobsClient<Channel>) -> BTreeMap<String, u64> {
    let request = ListRequest { all_users: true, limit: 1, ..ListRequest::default() };
    client.list(request).await.expect("list answers").into_inner().counts.into_iter().collect()
}
