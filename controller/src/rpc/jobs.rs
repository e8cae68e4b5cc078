//! The Jobs service (design 5): what users and programs ask. Each method validates, does one thing
//! to the log or the ledger, and answers.

use super::convert::{self, QUEUE_DEFAULT, ValidSubmit};
use super::edit::{self, Edit};
use super::identity::{Caller, caller};
use super::logs::{self, Broker};
use super::server::{Shared, conceal, in_time};
use super::status::{answer_too_large, code_number, rejected, unexpected};
use super::{cancel, list, wait};
use crate::proposer::{Accepted, Pending};
use docket_core::ledger::{Ledger, Outcome, Rejection, lease_asked};
use docket_core::scheduler::never;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use prost::Message as _;
use proto::v1;
use tonic::{Request, Response, Status, Streaming};

/// Submits of one stream that wait for their outcome: several full batches, so that gathering
/// never waits for an acknowledgement.
const UNACKNOWLEDGED_MAX: usize = 8192;

/// What gRPC clients take by default, 4 MiB, with some room for framing.
const ANSWER_MAX_BYTES: usize = 4 * 1024 * 1024 - 4096;

/// The service.
#[derive(Clone)]
pub struct Jobs {
    shared: Shared,
    broker: Broker,
}

impl Jobs {
    /// A service over the shared parts; logs come through the broker.
    pub fn new(shared: Shared, broker: Broker) -> Self {
        Jobs { shared, broker }
    }

    /// Validates and queues one submit of a stream; the order of calls is the order of ids.
    async fn queue(&self, caller: &Caller, request: v1::SubmitRequest) -> Result<Pending, Status> {
        let ValidSubmit { command, blobs } = convert::submit(request, caller)?;
        self.shared.enqueue(v1::command::Kind::Submit(command), blobs).await
    }

    /// Where no queues are configured, what Slurm's scripts call a partition is without effect: the
    /// partition that was asked for then, for the submitter to be told.
    async fn partition(&self, request: &mut v1::SubmitRequest) -> Result<Option<String>, Status> {
        let Some(spec) = request.spec.as_mut().filter(|_| request.partition) else {
            return Ok(None);
        };
        let none = |view: crate::pump::View<'_>| view.ledger.policy().queues.is_empty();
        if spec.queue == QUEUE_DEFAULT || !self.shared.pump.read(none).await? {
            return Ok(None);
        }
        Ok(Some(std::mem::replace(&mut spec.queue, QUEUE_DEFAULT.to_owned())))
    }

    async fn edit(&self, edit: Edit, request: Request<v1::EditRequest>) -> Answer<v1::EditAnswer> {
        let caller = caller(&request)?;
        let answer = edit::edit(&self.shared, &caller, edit, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    fn submit_all(
        self,
        caller: Caller,
        requests: Streaming<v1::SubmitRequest>,
    ) -> impl Stream<Item = Result<v1::SubmitAnswer, Status>> + Send + 'static {
        let queued = requests.then(move |request| {
            let (jobs, caller) = (self.clone(), caller.clone());
            // The outer error is the stream's own: it ends it. The inner one refuses this submit.
            async move { Ok::<_, Status>(jobs.queue(&caller, request?).await) }
        });
        queued
            .map(|queued| async move {
                let answered = match queued? {
                    Ok(pending) => in_time(pending.outcome()).await.and_then(submitted),
                    Err(refused) => Err(refused),
                };
                Ok(answered.unwrap_or_else(|status| refused_submit(&status)))
            })
            .buffered(UNACKNOWLEDGED_MAX)
    }
}

fn submitted(accepted: Accepted) -> Result<v1::SubmitAnswer, Status> {
    match accepted.outcome {
        Outcome::Submitted { job, repeated } => {
            Ok(v1::SubmitAnswer { job: job.0, repeated, ..v1::SubmitAnswer::default() })
        }
        Outcome::Rejected(rejection) => Err(rejected(&rejection)),
        other => Err(unexpected(&other)),
    }
}

/// Said to whoever names a partition where no queues are configured.
fn partition_words(partition: &str) -> String {
    format!("partition {partition} is without effect: this cluster has no queues configured")
}

/// What whoever submits this job should hear at once.
fn warnings(ledger: &Ledger, job: u64, spec: &v1::JobSpec) -> Vec<String> {
    let lease = lease_asked(spec, ledger.policy()).filter(|_| spec.retries > 0);
    let never = never(ledger, spec).map(|why| {
        format!(
            "job {job} waits until something joins that can run it: {why}; docket explain {job}"
        )
    });
    never.into_iter().chain(lease.map(|ms| lease_words(job, ms))).collect()
}

/// Whether there could be nodes that can never run it: every node has a cpu.
fn asks_more(spec: &v1::JobSpec) -> bool {
    let named = spec.node.is_some() || !spec.node_labels.is_empty() || !spec.resources.is_empty();
    named || spec.cpus > 1 || spec.mem_bytes > 0 || spec.gpus > 0
}

/// Said once to whoever submits a job that its node may have to end (design 3).
fn lease_words(job: u64, lease_ms: u64) -> String {
    let after = docket_core::duration_words(lease_ms);
    format!(
        "job {job} may be tried on another node, so its node ends it after {after} without a controller; \
         --fence-after proof waits for proof instead"
    )
}

fn refused_submit(status: &Status) -> v1::SubmitAnswer {
    v1::SubmitAnswer {
        error: Some(status.message().to_owned()),
        error_code: code_number(status.code()),
        ..v1::SubmitAnswer::default()
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::jobs_server::Jobs for Jobs {
    type SubmitManyStream = BoxStream<'static, Result<v1::SubmitAnswer, Status>>;
    type WaitStream = BoxStream<'static, Result<v1::Task, Status>>;
    type LogsStream = BoxStream<'static, Result<v1::LogPiece, Status>>;

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Answer<v1::SubmitAnswer> {
        let caller = caller(&request)?;
        let mut request = request.into_inner();
        let partition = self.partition(&mut request).await?;
        let spec = request.spec.clone().unwrap_or_default();
        let ValidSubmit { command, blobs } = convert::submit(request, &caller)?;
        let accepted = self.shared.propose(v1::command::Kind::Submit(command), blobs).await?;
        let mut answer = submitted(accepted)?;
        if spec.retries > 0 || asks_more(&spec) {
            let job = answer.job;
            let look = move |view: crate::pump::View<'_>| warnings(view.ledger, job, &spec);
            answer.warning = self.shared.pump.read(look).await?.join("; ");
        }
        if let Some(partition) = partition {
            let lease = std::mem::take(&mut answer.warning);
            answer.warning = partition_words(&partition);
            if !lease.is_empty() {
                answer.warning = format!("{}; {lease}", answer.warning);
            }
        }
        Ok(Response::new(answer))
    }

    async fn submit_many(
        &self,
        request: Request<Streaming<v1::SubmitRequest>>,
    ) -> Answer<Self::SubmitManyStream> {
        let caller = caller(&request)?;
        let answers = self.clone().submit_all(caller, request.into_inner());
        Ok(Response::new(self.shared.until_stopped(answers).boxed()))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<v1::GetAnswer> {
        let caller = caller(&request)?;
        let v1::GetRequest { jobs, tasks } = request.into_inner();
        let jobs = convert::one_by_one(convert::named(&jobs, tasks)?)?;
        self.shared.linearizable().await?;
        let mut answer = v1::GetAnswer { tasks: self.shared.tasks(jobs).await? };
        answer.tasks.iter_mut().for_each(|task| conceal(&caller, task));
        match answer.encoded_len() {
            0..=ANSWER_MAX_BYTES => Ok(Response::new(answer)),
            bytes => Err(answer_too_large(bytes, ANSWER_MAX_BYTES)),
        }
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Answer<v1::ListAnswer> {
        let caller = caller(&request)?;
        let valid = convert::list(request.into_inner(), &caller)?;
        let mut answer = list::list(&self.shared, valid).await?;
        answer.tasks.iter_mut().for_each(|task| conceal(&caller, task));
        Ok(Response::new(answer))
    }

    async fn wait(&self, request: Request<v1::WaitRequest>) -> Answer<Self::WaitStream> {
        let caller = caller(&request)?;
        let v1::WaitRequest { jobs, tasks } = request.into_inner();
        let jobs = convert::one_by_one(convert::named(&jobs, tasks)?)?;
        let changes = wait::wait(self.shared.clone(), jobs).await?;
        let changes = changes.map_ok(move |mut task| {
            conceal(&caller, &mut task);
            task
        });
        Ok(Response::new(self.shared.until_stopped(changes).boxed()))
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Answer<Self::LogsStream> {
        let caller = caller(&request)?;
        let (shared, broker) = (self.shared.clone(), self.broker.clone());
        let pieces = logs::logs(shared, broker, caller, request.into_inner());
        let pieces = pieces.await?;
        Ok(Response::new(self.shared.until_stopped(pieces).boxed()))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Answer<v1::CancelAnswer> {
        let caller = caller(&request)?;
        let answer = cancel::cancel(&self.shared, &caller, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn hold(&self, request: Request<v1::EditRequest>) -> Answer<v1::EditAnswer> {
        self.edit(Edit::Hold, request).await
    }

    async fn release(&self, request: Request<v1::EditRequest>) -> Answer<v1::EditAnswer> {
        self.edit(Edit::Release, request).await
    }

    async fn suspend(&self, request: Request<v1::EditRequest>) -> Answer<v1::EditAnswer> {
        self.edit(Edit::Suspend, request).await
    }

    async fn resume(&self, request: Request<v1::EditRequest>) -> Answer<v1::EditAnswer> {
        self.edit(Edit::Resume, request).await
    }

    async fn set(&self, request: Request<v1::SetRequest>) -> Answer<v1::EditAnswer> {
        let (about, extensions, set) = request.into_parts();
        let edit = super::set::set(&set)?;
        let request =
            v1::EditRequest { request_id: set.request_id, jobs: set.jobs, tasks: set.tasks };
        self.edit(edit, Request::from_parts(about, extensions, request)).await
    }

    async fn dry_run(&self, request: Request<v1::SubmitRequest>) -> Answer<v1::DryRunAnswer> {
        let caller = caller(&request)?;
        let by = convert::requester(&caller);
        let mut request = request.into_inner();
        self.partition(&mut request).await?;
        let spec = convert::spec_of(request, &caller)?;
        let look = move |view: crate::pump::View<'_>| {
            docket_core::forecast(view.ledger, &super::explain::sight(&view), &spec, &by)
        };
        let answer: Result<_, Rejection> = self.shared.read(look).await?;
        Ok(Response::new(answer.map_err(|rejection| rejected(&rejection))?))
    }

    async fn retry(&self, request: Request<v1::RetryRequest>) -> Answer<v1::RetryAnswer> {
        let caller = caller(&request)?;
        let answer = super::again::retry(&self.shared, &caller, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn orphans(&self, request: Request<v1::OrphansRequest>) -> Answer<v1::OrphansAnswer> {
        let (after, limit) = convert::orphans(&request.into_inner())?;
        let look = move |view: crate::pump::View<'_>| list::orphans(view.ledger, after, limit);
        Ok(Response::new(self.shared.read(look).await?))
    }

    async fn events(&self, request: Request<v1::EventsRequest>) -> Answer<v1::EventsAnswer> {
        let v1::EventsRequest { job, task } = request.into_inner();
        let id = convert::task_id(job, task)?;
        let look = move |view: crate::pump::View<'_>| {
            if id.index.is_some() {
                view.ledger.find(id)?;
            }
            view.ledger.find_entry(id.job)?;
            // Found above, in the same visit of the pump.
            Ok(docket_core::events(view.ledger, id).unwrap_or_default())
        };
        let answer: Result<_, Rejection> = self.shared.read(look).await?;
        Ok(Response::new(answer.map_err(|rejection| rejected(&rejection))?))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Answer<v1::ExplainAnswer> {
        let caller = caller(&request)?;
        let v1::ExplainRequest { job, task } = request.into_inner();
        let id = convert::task_id(job, task)?;
        let look = move |view: crate::pump::View<'_>| super::explain::explain(&view, &caller, id);
        let answer: Result<_, Rejection> = self.shared.read(look).await?;
        Ok(Response::new(answer.map_err(|rejection| rejected(&rejection))?))
    }
}
