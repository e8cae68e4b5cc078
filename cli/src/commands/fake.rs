//! A server that plays a script, so that tests can break every stream where it hurts.

use crate::client::Client;
use proto::v1;
use proto::v1::jobs_server::{Jobs, JobsServer};
use proto::v1::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// What one stream of the server says; it ends in order after its last item.
pub type Script<T> = Vec<Result<T, Status>>;

/// What the server will say, and what it was asked.
#[derive(Default)]
pub struct Play {
    /// One for each `Wait`.
    pub waits: VecDeque<Script<Task>>,
    /// One for each `Logs`.
    pub logs: VecDeque<Script<LogPiece>>,
    /// One for each `Submit`.
    pub submits: VecDeque<Result<SubmitAnswer, Status>>,
    /// How many submits each `SubmitMany` answers before it breaks.
    pub many: VecDeque<usize>,
    /// Jobs of each `Wait`.
    pub waited: Vec<Vec<u64>>,
    /// Offset of each `Logs`.
    pub offsets: Vec<u64>,
    /// Request id of each submit that was answered.
    pub answered: Vec<String>,
    /// One for each `Explain`.
    pub explains: VecDeque<ExplainAnswer>,
    /// Request id of each single `Submit`.
    pub submitted: Vec<String>,
}

/// The server.
#[derive(Clone, Default)]
pub struct Fake(pub Arc<Mutex<Play>>);

type Answers<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Fake {
    /// Serves over memory streams and gives the client.
    pub fn serve(&self) -> Client {
        let (streams, accepted) = mpsc::channel(4);
        let incoming = ReceiverStream::new(accepted).map(Ok::<_, std::io::Error>);
        let server = tonic::transport::Server::builder().add_service(JobsServer::new(self.clone()));
        // It ends with the test's runtime.
        tokio::spawn(server.serve_with_incoming(incoming));
        Client::in_process(streams)
    }

    fn play<T>(&self, act: impl FnOnce(&mut Play) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }
}

fn streamed<T: Send + 'static>(script: Option<Script<T>>) -> Result<Response<Answers<T>>, Status> {
    let script = script.ok_or_else(|| Status::internal("the script is over"))?;
    Ok(Response::new(Box::pin(tokio_stream::iter(script))))
}

fn not_played<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not in this play"))
}

#[tonic::async_trait]
impl Jobs for Fake {
    type SubmitManyStream = Answers<SubmitAnswer>;
    type WaitStream = Answers<Task>;
    type LogsStream = Answers<LogPiece>;

    async fn submit(
        &self,
        request: Request<SubmitRequest>,
    ) -> Result<Response<SubmitAnswer>, Status> {
        self.play(|play| {
            play.submitted.push(request.into_inner().request_id);
            play.submits.pop_front().unwrap().map(Response::new)
        })
    }

    async fn submit_many(
        &self,
        request: Request<Streaming<SubmitRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        let mut left = self.play(|play| play.many.pop_front()).unwrap();
        let mut requests = request.into_inner();
        let (tell, told) = mpsc::channel(1);
        let fake = self.clone();
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                if left == 0 {
                    let _ = tell.send(Err(Status::unavailable("the play breaks it"))).await;
                    return;
                }
                left -= 1;
                let job = fake.play(|play| {
                    play.answered.push(request.request_id);
                    play.answered.len() as u64
                });
                let _ = tell.send(Ok(SubmitAnswer { job, ..SubmitAnswer::default() })).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(told))))
    }

    async fn wait(
        &self,
        request: Request<WaitRequest>,
    ) -> Result<Response<Self::WaitStream>, Status> {
        streamed(self.play(|play| {
            play.waited.push(request.into_inner().jobs);
            play.waits.pop_front()
        }))
    }

    async fn logs(
        &self,
        request: Request<LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        streamed(self.play(|play| {
            play.offsets.push(request.into_inner().offset);
            play.logs.pop_front()
        }))
    }

    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetAnswer>, Status> {
        not_played()
    }

    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListAnswer>, Status> {
        not_played()
    }

    async fn cancel(&self, _: Request<CancelRequest>) -> Result<Response<CancelAnswer>, Status> {
        not_played()
    }

    async fn events(&self, _: Request<EventsRequest>) -> Result<Response<EventsAnswer>, Status> {
        not_played()
    }

    async fn explain(&self, _: Request<ExplainRequest>) -> Result<Response<ExplainAnswer>, Status> {
        self.play(|play| play.explains.pop_front())
            .map_or_else(not_played, |answer| Ok(Response::new(answer)))
    }

    async fn hold(&self, _: Request<v1::EditRequest>) -> Result<Response<v1::EditAnswer>, Status> {
        not_played()
    }

    async fn release(
        &self,
        _: Request<v1::EditRequest>,
    ) -> Result<Response<v1::EditAnswer>, Status> {
        not_played()
    }

    async fn suspend(
        &self,
        _: Request<v1::EditRequest>,
    ) -> Result<Response<v1::EditAnswer>, Status> {
        not_played()
    }

    async fn resume(
        &self,
        _: Request<v1::EditRequest>,
    ) -> Result<Response<v1::EditAnswer>, Status> {
        not_played()
    }

    async fn set(&self, _: Request<v1::SetRequest>) -> Result<Response<v1::EditAnswer>, Status> {
        not_played()
    }

    async fn dry_run(
        &self,
        _: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::DryRunAnswer>, Status> {
        not_played()
    }

    async fn retry(
        &self,
        _: Request<v1::RetryRequest>,
    ) -> Result<Response<v1::RetryAnswer>, Status> {
        not_played()
    }

    async fn orphans(
        &self,
        _: Request<v1::OrphansRequest>,
    ) -> Result<Response<v1::OrphansAnswer>, Status> {
        not_played()
    }
}
