//! `Logs`: output of a job by offset, relayed from the agent that holds it. A job that has not
//! started is waited for when following; the end of a job that runs comes after its finish and
//! its last byte; an agent that is away is said so, after what is known: the last bytes of a failed
//! job's stderr, which came with its finish.

use super::attempts;
use super::bulk::{BulkBroker, BulkError, BulkReader};
use super::convert;
use super::identity::Caller;
use super::server::{Shared, found, may_read};
use super::status::{agent_away, output_gone, output_of_another, status, stopping};
use crate::pump::View;
use crate::watch::Watcher;
use docket_core::ledger::{Ended, Job, Ledger, State};
use futures::Stream;
use proto::{TaskId, v1};
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
    uid: u32,
    /// Bytes that the finish counted; 0 if it has not ended.
    expected: u64,
    ended: bool,
    /// The last bytes of stderr, which the ledger has of a failed attempt.
    last_words: Vec<u8>,
}

/// Streams an output; see the module.
pub async fn logs(
    shared: Shared,
    broker: Broker,
    caller: Caller,
    request: v1::LogsRequest,
) -> Result<impl Stream<Item = Result<v1::LogPiece, Status>> + Send + 'static, Status> {
    let job = convert::task_id(request.job, request.task)?;
    shared.linearizable().await?;
    let whose = move |view: View<'_>| {
        let by = found(view.ledger, job)?.by();
        match may_read(&caller, by.uid) {
            true => Ok(()),
            false => Err(output_of_another(job, &by.name)),
        }
    };
    shared.pump.read(whose).await??;
    let watcher = shared.pump.watch(vec![job.job]).await?;
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
            let mut relay = Relay::new(&shared, &place, job, &request);
            let broken = loop {
                match relay.next(&broker, &watcher).await {
                    Ok(Some(piece)) => {
                        end = piece.offset + piece.data.len() as u64;
                        let v1::BulkPiece { offset, data, cut } = piece;
                        yield v1::LogPiece { offset, data, end: false, cut };
                    }
                    Ok(None) => break None,
                    Err(broken) => break Some(broken),
                }
            };
            if let Some(broken) = broken {
                let (known, status) = parting(&shared, &place, job, &request, end, broken).await;
                if let Some(piece) = known {
                    yield piece;
                }
                Err(status)?;
            }
        }
        yield v1::LogPiece { offset: end, end: true, ..v1::LogPiece::default() };
    })
}

async fn look(shared: &Shared, job: TaskId, request: &v1::LogsRequest) -> Result<Source, Status> {
    let request = *request;
    shared.pump.read(move |view: View<'_>| source(view.ledger, job, &request)).await?
}

fn source(ledger: &Ledger, id: TaskId, request: &v1::LogsRequest) -> Result<Source, Status> {
    let job = found(ledger, id)?;
    match request.attempt {
        Some(attempt) if attempt > job.attempt() => {
            let newest = job.attempt();
            return Err(output_gone(format!(
                "job {id} is at attempt {newest}: there is no attempt {attempt}"
            )));
        }
        Some(attempt) if attempt < job.attempt() => {
            let place = earlier_place(ledger, job, attempt, request.stderr)?;
            return Ok(Source::At(Box::new(place)));
        }
        _ => {}
    }
    let ended = job.terminal();
    // Unknown counts as started if a start was ever heard; the agent may hold bytes in any case.
    let place = match job.state() {
        State::Queued
        | State::Held
        | State::Blocked { .. }
        | State::Waiting(_)
        | State::Dispatched(_) => None,
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
    Some(Place {
        node: name_of(ledger, &agent_id),
        attempt: job.attempt_id().to_wire(),
        path: path.clone(),
        dev,
        ino,
        uid: job.by().uid,
        expected: job.state().ended().map_or(0, counted),
        ended: job.terminal(),
        last_words: job.state().ended().map_or_else(Vec::new, |ended| ended.stderr_tail.to_vec()),
        agent_id,
    })
}

fn name_of(ledger: &Ledger, agent_id: &str) -> String {
    ledger.agent(agent_id).map_or(agent_id, |agent| agent.name()).to_owned()
}

/// An attempt that is over, and not the last: its output is in the run directory of its node, or in
/// the file that the job names, to which the later ones append.
fn earlier_place(ledger: &Ledger, job: &Job, attempt: u32, stderr: bool) -> Result<Place, Status> {
    let agent_id = attempts::ran_at(job, attempt).map_err(output_gone)?.to_string();
    let node = name_of(ledger, &agent_id);
    let (pattern, option) = match stderr {
        true => (&job.spec().stderr_pattern, "--stderr"),
        false => (&job.spec().stdout_pattern, "--stdout"),
    };
    if let Some(pattern) = pattern.as_ref().filter(|pattern| !pattern.is_empty()) {
        return Err(output_gone(format!(
            "attempt {attempt} ran on {node} and wrote to the file that the job names ({option} {}), \
             to which later attempts append: see that file, or docket logs {} for the newest attempt",
            String::from_utf8_lossy(pattern),
            job.id()
        )));
    }
    Ok(Place {
        attempt: v1::AttemptRef { attempt, ..job.attempt_id().to_wire() },
        path: Vec::new(),
        dev: 0,
        ino: 0,
        uid: job.by().uid,
        expected: 0,
        ended: true,
        last_words: Vec::new(),
        node,
        agent_id,
    })
}

/// One read at one agent.
struct Relay<'a> {
    shared: &'a Shared,
    place: &'a Place,
    job: TaskId,
    request: &'a v1::LogsRequest,
    /// Opened with the first piece.
    reader: Option<BulkReader>,
    /// It follows a job that has not ended.
    live: bool,
}

/// Why no more pieces come.
enum Broken {
    /// The agent, or the way to it.
    Bulk(BulkError),
    /// The job itself cannot be looked at any more.
    Refused(Status),
}

impl<'a> Relay<'a> {
    fn new(
        shared: &'a Shared,
        place: &'a Place,
        job: TaskId,
        request: &'a v1::LogsRequest,
    ) -> Relay<'a> {
        let live = request.follow && !place.ended;
        Relay { shared, place, job, request, reader: None, live }
    }

    async fn open(&self, broker: &Broker) -> Result<BulkReader, Broken> {
        let Relay { place, request, .. } = self;
        let read = v1::ReadOutput {
            attempt: Some(place.attempt),
            stderr: request.stderr,
            offset: request.offset,
            tail_lines: request.tail_lines,
            follow: self.live,
            path: place.path.clone(),
            dev: place.dev,
            ino: place.ino,
            expected: place.expected,
            uid: Some(place.uid),
        };
        broker.open(&self.shared.pump, &place.agent_id, read).await.map_err(Broken::Bulk)
    }

    /// The next piece; none at the end. While the job lives its changes are watched: its end
    /// makes the agent read to the last byte and stop.
    async fn next(
        &mut self,
        broker: &Broker,
        watcher: &Arc<Watcher>,
    ) -> Result<Option<v1::BulkPiece>, Broken> {
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.open(broker).await?,
        };
        let piece = loop {
            tokio::select! {
                biased;
                piece = reader.next() => break piece,
                _ = watcher.changed(), if self.live => {
                    if self.is_over().await? {
                        self.live = false;
                        reader.stop(true).await;
                    }
                }
            }
        };
        self.reader = Some(reader);
        piece.map_err(Broken::Bulk)
    }

    async fn is_over(&self) -> Result<bool, Broken> {
        let looked = look(self.shared, self.job, self.request).await;
        Ok(match looked.map_err(Broken::Refused)? {
            Source::At(place) => place.ended,
            Source::Never => true,
            Source::NotYet => false,
        })
    }
}

/// What to say to a reader whose output breaks off at `end`, after the bytes that are known here.
async fn parting(
    shared: &Shared,
    place: &Place,
    job: TaskId,
    request: &v1::LogsRequest,
    end: u64,
    broken: Broken,
) -> (Option<v1::LogPiece>, Status) {
    let error = match broken {
        Broken::Bulk(error) => error,
        Broken::Refused(status) => return (None, status),
    };
    let status = refusal(shared, &place.agent_id, &place.node, &error).await;
    // Whoever follows waits for the node and then gets everything, in order.
    let waits = request.follow || !matches!(error, BulkError::Away { .. });
    if waits || place.last_words.is_empty() {
        return (None, status);
    }
    let known = last_words(place, request, end);
    let more = match &known {
        Some(piece) => {
            format!("the last {} of {} bytes came with its end", piece.data.len(), place.expected)
        }
        None if request.stderr => return (None, status),
        None => format!("docket logs {job} --stderr shows its last words"),
    };
    (known, agent_away(format!("{}; {more}", status.message())))
}

/// The end of stderr as far as the ledger has it and the reader wants it.
fn last_words(place: &Place, request: &v1::LogsRequest, end: u64) -> Option<v1::LogPiece> {
    let words = &place.last_words;
    let begin = place.expected.checked_sub(words.len() as u64)?;
    let skipped = usize::try_from(end.saturating_sub(begin)).unwrap_or(usize::MAX);
    let from_end = request.tail_lines.map_or(0, |lines| start_of_last(words, lines));
    let from = skipped.max(from_end);
    let data = words.get(from..).filter(|data| request.stderr && !data.is_empty())?;
    let (offset, data) = (begin + from as u64, data.to_vec().into());
    Some(v1::LogPiece { offset, data, ..v1::LogPiece::default() })
}

/// Where the last `lines` lines begin; a newline at the very end ends the last one.
fn start_of_last(text: &[u8], lines: u64) -> usize {
    let Some(before) = usize::try_from(lines).ok().and_then(|lines| lines.checked_sub(1)) else {
        return text.len();
    };
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let newlines = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    newlines.map(|(at, _)| at + 1).nth(before).unwrap_or(0)
}

async fn refusal(shared: &Shared, agent_id: &str, node: &str, error: &BulkError) -> Status {
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

#[cfg(test)]
mod tests {
    use super::start_of_last;

    #[test]
    fn the_last_lines_of_known_words_are_found() {
        let last = |text: &'static str, lines| &text[start_of_last(text.as_bytes(), lines)..];
        assert_eq!(last("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last("a\nb\nc", 1), "c");
        assert_eq!(last("a\n", 9), "a\n");
        assert_eq!(last("a\n", 0), "");
        assert_eq!(last("", 3), "");
    }
}
