//! `Logs`: output of a job by offset, relayed from the agent that holds it. A job that has not
//! started is waited for when following; the end of a job that runs comes after its finish and
//! its last byte; an agent that is away is said so, after what is known.

use super::bulk::{BulkBroker, BulkError, BulkReader};
use super::convert;
use super::server::{Shared, found};
use super::status::{agent_away, output_gone, status, stopping};
use crate::pump::View;
use crate::watch::Watcher;
use docket_core::ledger::{Ended, Job, Ledger, State};
use futures::Stream;
use proto::{JobId, v1};
use std::sync::Arc;
use tonic::{Code, Status};

/// Joins readers and agents.
pub type Broker = BulkBroker;

/// Where the output is, or why there is none yet.
enum Source {
    /// It has not started and has not ended.
    NotYet,
    /// It ended and never started: there is no output.
    Never,
    /// An agent has it.
    At(Box<Place>),
}

/// An output on an agent.
struct Place {
    agent_id: String,
    node: String,
    attempt: v1::AttemptRef,
    path: Vec<u8>,
    dev: u64,
    ino: u64,
    /// Bytes that the finish counted; 0 if it has not ended.
    expected: u64,
    ended: bool,
}

/// Streams an output; see the module.
pub async fn logs(
    shared: Shared,
    broker: Broker,
    request: v1::LogsRequest,
) -> Result<impl Stream<Item = Result<v1::LogPiece, Status>> + Send + 'static, Status> {
    let job = convert::only_task(request.job, request.task)?;
    shared.linearizable().await?;
    let watcher = shared.pump.watch(vec![job]).await?;
    // An unknown job is an answer, not a stream.
    let first = look(&shared, job, &request).await?;
    Ok(async_stream::try_stream! {
        let mut source = first;
        let place = loop {
            match source {
                Source::At(place) => break Some(place),
                Source::Never => break None,
                Source::NotYet if !request.follow => break None,
                Source::NotYet => {
                    watcher.changed().await;
                    source = look(&shared, job, &request).await?;
                }
            }
        };
        let mut end = request.offset;
        if let Some(place) = place {
            let mut relay = Relay::open(&shared, &broker, &place, &request).await?;
            while let Some(piece) = relay.next(&shared, &watcher, job, &request).await? {
                end = piece.offset + piece.data.len() as u64;
                yield v1::LogPiece { offset: piece.offset, data: piece.data, end: false };
            }
        }
        yield v1::LogPiece { offset: end, data: Default::default(), end: true };
    })
}

async fn look(shared: &Shared, job: JobId, request: &v1::LogsRequest) -> Result<Source, Status> {
    let request = *request;
    shared.pump.read(move |view: View<'_>| source(view.ledger, job, &request)).await?
}

fn source(ledger: &Ledger, id: JobId, request: &v1::LogsRequest) -> Result<Source, Status> {
    let job = found(ledger, id)?;
    if let Some(attempt) = request.attempt.filter(|attempt| *attempt != job.attempt()) {
        return Err(output_gone(format!(
            "job {id} is at attempt {}: output of attempt {attempt} is not on record",
            job.attempt()
        )));
    }
    let ended = job.terminal();
    // Unknown counts as started if a start was ever heard; the agent may hold bytes in any case.
    let place = match job.state() {
        State::Queued | State::Held | State::Waiting(_) | State::Dispatched(_) => None,
        _ => place(ledger, job, request.stderr),
    };
    Ok(match place {
        Some(place) => Source::At(Box::new(place)),
        None if ended => Source::Never,
        None => Source::NotYet,
    })
}

fn place(ledger: &Ledger, job: &Job, stderr: bool) -> Option<Place> {
    let grant = job.grant()?;
    let start = &job.started()?.fact;
    let (path, dev, ino) = if stderr {
        (&start.stderr_path, start.stderr_dev, start.stderr_ino)
    } else {
        (&start.stdout_path, start.stdout_dev, start.stdout_ino)
    };
    let counted = |ended: &Ended| if stderr { ended.stderr_bytes } else { ended.stdout_bytes };
    let agent_id = grant.agent.to_string();
    let node = ledger.agent(&agent_id).map_or(&*agent_id, |agent| agent.name()).to_owned();
    Some(Place {
        node,
        attempt: job.attempt_id().to_wire(),
        path: path.clone(),
        dev,
        ino,
        expected: job.state().ended().map_or(0, counted),
        ended: job.terminal(),
        agent_id,
    })
}

/// One read at one agent.
struct Relay {
    reader: BulkReader,
    node: String,
    agent_id: String,
    /// It follows a job that has not ended.
    live: bool,
}

impl Relay {
    async fn open(
        shared: &Shared,
        broker: &Broker,
        place: &Place,
        request: &v1::LogsRequest,
    ) -> Result<Relay, Status> {
        let live = request.follow && !place.ended;
        let read = v1::ReadOutput {
            attempt: Some(place.attempt),
            stderr: request.stderr,
            offset: request.offset,
            tail_lines: request.tail_lines,
            follow: live,
            path: place.path.clone(),
            dev: place.dev,
            ino: place.ino,
            expected: place.expected,
        };
        match broker.open(&shared.pump, &place.agent_id, read).await {
            Ok(reader) => {
                let (node, agent_id) = (place.node.clone(), place.agent_id.clone());
                Ok(Relay { reader, node, agent_id, live })
            }
            Err(e) => Err(refusal(shared, &place.agent_id, &place.node, e).await),
        }
    }

    /// The next piece; none at the end. While the job lives its changes are watched: its end
    /// makes the agent read to the last byte and stop.
    async fn next(
        &mut self,
        shared: &Shared,
        watcher: &Arc<Watcher>,
        job: JobId,
        request: &v1::LogsRequest,
    ) -> Result<Option<v1::BulkPiece>, Status> {
        loop {
            let piece = tokio::select! {
                biased;
                piece = self.reader.next() => piece,
                _ = watcher.changed(), if self.live => {
                    self.look_again(shared, job, request).await?;
                    continue;
                }
            };
            return match piece {
                Ok(piece) => Ok(piece),
                Err(e) => Err(refusal(shared, &self.agent_id, &self.node, e).await),
            };
        }
    }

    async fn look_again(
        &mut self,
        shared: &Shared,
        job: JobId,
        request: &v1::LogsRequest,
    ) -> Result<(), Status> {
        let over = match look(shared, job, request).await? {
            Source::At(place) => place.ended,
            Source::Never => true,
            Source::NotYet => false,
        };
        if over {
            self.live = false;
            self.reader.stop(true).await;
        }
        Ok(())
    }
}

async fn refusal(shared: &Shared, agent_id: &str, node: &str, error: BulkError) -> Status {
    match error {
        BulkError::Away { .. } => agent_away(silence(shared, agent_id, node).await),
        BulkError::Busy => status(Code::ResourceExhausted, "too-many-readers", error.to_string()),
        BulkError::Failed { gone: true, message } => output_gone(format!("{node}: {message}")),
        BulkError::Failed { gone: false, message } => {
            status(Code::Unavailable, "output-unreadable", format!("{node}: {message}"))
        }
        BulkError::Stopping => stopping(),
    }
}

/// `n1 is silent since 10:02; it holds the output`
async fn silence(shared: &Shared, agent_id: &str, node: &str) -> String {
    let id = agent_id.to_owned();
    let heard = shared.pump.read(move |view: View<'_>| {
        let nodes = view.leader.node_views(view.ledger, view.now_ms);
        let last_word = nodes.into_iter().find(|node| node.agent_id == id)?.last_word_ms;
        last_word.map(|ago| crate::clock::wall_ms().saturating_sub(ago))
    });
    let since = match heard.await {
        Ok(Some(wall_ms)) => format!("since {}", local_time(wall_ms)),
        _ => "since this controller began to lead".to_owned(),
    };
    format!("{node} is silent {since}; it holds the output")
}

fn local_time(wall_ms: u64) -> String {
    let ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(time) => {
            time.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%H:%M").to_string()
        }
        Err(_) => format!("{wall_ms} ms"),
    }
}
