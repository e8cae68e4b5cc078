//! Being there while a job runs: its output to the right places, signals to it, its end to the
//! caller. A job never depends on it: whoever leaves lets the job go on.

use super::copy::{CopyError, copy};
use super::follow::{Until, follow};
use super::outcome::exit_code;
use super::sink::{Sink, Stream};
use super::stuck::tell_when_stuck;
use crate::client::{Client, ClientError, Patience, request_id};
use crate::exit;
use crate::failure::Failure;
use crate::render::verdict;
use crate::say::note;
use futures::future::OptionFuture;
use proto::v1::{CancelRequest, LogsRequest, Task};
use proto::{JobId, TaskId};
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// After the job's end, its output may stand still so long before it counts as incomplete.
const OUTPUT_STALLED: Duration = Duration::from_secs(20);
/// After a signal the answer to a submit is awaited so long.
const ANSWER_AFTER_SIGNAL: Duration = Duration::from_secs(2);
/// What a program gets that writes to a closed pipe.
const SIGPIPE: i32 = 13;

/// Which outputs are shown; one that goes to a file of the user's is not.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

/// How one output ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Whole,
    Part,
    /// Its reader went away, as `head` does.
    Unwanted,
}

/// The signals of a person who leaves or wants an end.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

/// What such a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Ctrl-C: end the job; the second time: leave it.
    Interrupt,
    /// Leave it, with this exit code.
    Leave(u8),
}

impl Signals {
    /// Takes them over from here on.
    pub fn take() -> Result<Signals, Failure> {
        let open = |kind| signal(kind).map_err(|why| Failure::System { what: "take signals", why });
        Ok(Signals {
            interrupt: open(SignalKind::interrupt())?,
            terminate: open(SignalKind::terminate())?,
            hang_up: open(SignalKind::hangup())?,
        })
    }

    /// Awaits an answer that a signal must not lose: it is given a moment more, and the signal is
    /// handed on.
    pub async fn patiently<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<(T, Option<Wish>), Failure> {
        let mut work = pin!(work);
        let wish = tokio::select! {
            done = &mut work => return Ok((done?, None)),
            wish = self.next() => wish,
        };
        match tokio::time::timeout(ANSWER_AFTER_SIGNAL, work).await {
            Ok(done) => Ok((done?, Some(wish))),
            Err(_) => Err(Failure::LeftEarly),
        }
    }

    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.interrupt.recv() => Wish::Interrupt,
            _ = self.terminate.recv() => Wish::Leave(exit::SIGNAL_BASE + 15),
            _ = self.hang_up.recv() => Wish::Leave(exit::SIGNAL_BASE + 1),
        }
    }
}

/// Stays until the job has ended and its output is out, or until it is told to leave. `wish` is a
/// signal that came before there was a job.
pub async fn attend(
    client: &Client,
    job: u64,
    shown: Shown,
    signals: &mut Signals,
    mut wish: Option<Wish>,
) -> Result<u8, Failure> {
    let mut work = pin!(see_through(client, job, shown));
    let mut cancelling = OptionFuture::from(None);
    let mut interrupted = false;
    loop {
        match wish.take() {
            None => {}
            Some(Wish::Interrupt) if !interrupted => {
                interrupted = true;
                note(&format!("asked to cancel job {job}; Ctrl-C once more leaves without it"));
                cancelling = OptionFuture::from(Some(Box::pin(cancel(client.clone(), job, None))));
            }
            Some(Wish::Interrupt) => {
                note(&format!("left job {job}: docket wait {job}"));
                return Ok(exit::INTERRUPTED);
            }
            Some(Wish::Leave(code)) => {
                note(&format!("left job {job}, it goes on: docket wait {job}"));
                return Ok(code);
            }
        }
        tokio::select! {
            ended = &mut work => return ended,
            Some(outcome) = &mut cancelling => {
                cancelling = OptionFuture::from(None);
                tell_failure(job, outcome);
            }
            next = signals.next() => wish = Some(next),
        }
    }
}

fn tell_failure(job: u64, outcome: Result<(), ClientError>) {
    if let Err(error) = outcome {
        note(&format!("job {job} is not cancelled: {error}"));
    }
}

/// Asks to end a job, or to send it one signal.
async fn cancel(mut client: Client, job: u64, signal: Option<u32>) -> Result<(), ClientError> {
    let request =
        CancelRequest { request_id: request_id(), jobs: vec![job], signal, ..Default::default() };
    let ask = async |client: &Client| client.jobs().cancel(request.clone()).await;
    client.ask(Patience::CHANGE, note, ask).await.map(|_| ())
}

/// The job and both of its outputs, each at its own pace.
fn plain(job: u64) -> TaskId {
    TaskId::plain(JobId(job))
}

async fn see_through(client: &Client, job: u64, shown: Shown) -> Result<u8, Failure> {
    let (tell, told) = watch::channel(None::<Task>);
    let mut waiter = client.clone();
    let waiting = async move {
        let seen = |task: &Task| {
            tell.send_replace(Some(task.clone()));
        };
        follow(&mut waiter, &[plain(job)], Until::All, seen).await
    };
    let (ended, stdout, stderr, ()) = tokio::join!(
        waiting,
        output(client, job, Stream::Stdout, shown.stdout, told.clone()),
        output(client, job, Stream::Stderr, shown.stderr, told.clone()),
        explain_queue(client, job, told),
    );
    let ended = ended?;
    let Some(task) = ended.first() else { return Ok(exit::FAILED) };
    let code = exit_code(task);
    let copied = [stdout?, stderr?];
    // `docket run -- yes | head` ends as quietly as without docket.
    let closed_pipe = copied.contains(&Copied::Unwanted) && task.signal == Some(SIGPIPE);
    if task.state != "DONE" && !closed_pipe {
        note(&verdict(task));
    }
    // A success whose output is cut must not look like one.
    let cut = copied.contains(&Copied::Part) && code == exit::DONE;
    Ok(if cut { exit::AGAIN } else { code })
}

/// Tells why nothing happens yet: at a terminal in any case, elsewhere if nothing ever will.
async fn explain_queue(client: &Client, job: u64, mut told: watch::Receiver<Option<Task>>) {
    let last = told.clone();
    let queued = || {
        if !io::stderr().is_terminal() {
            return;
        }
        let why = last.borrow().as_ref().map(|task| task.message.clone()).unwrap_or_default();
        let why = if why.is_empty() { "docket explain tells why".to_owned() } else { why };
        note(&format!("job {job} waits: {why}"));
    };
    let jobs = [plain(job)];
    // A job that has begun or ended meanwhile ends the asking.
    tokio::select! {
        () = tell_when_stuck(client, &jobs, queued) => {}
        _ = told.wait_for(|task| task.as_ref().is_some_and(has_begun)) => {}
    }
}

fn has_begun(task: &Task) -> bool {
    task.state != "PEND"
}

/// Shows one output of the job from its first byte to its last.
async fn output(
    client: &Client,
    job: u64,
    stream: Stream,
    shown: bool,
    mut told: watch::Receiver<Option<Task>>,
) -> Result<Copied, Failure> {
    let begun = told.wait_for(|task| task.as_ref().is_some_and(has_begun)).await;
    let nothing = match &begun {
        Ok(task) => task.as_ref().is_some_and(|task| is_empty(task, stream)),
        // The job cannot be followed; that error is told by whoever follows it.
        Err(_) => true,
    };
    drop(begun);
    if !shown || nothing {
        return Ok(Copied::Whole);
    }
    let sink = Sink::open(stream)?;
    let request =
        LogsRequest { job, stderr: stream == Stream::Stderr, follow: true, ..Default::default() };
    let mut copier = client.clone();
    let copied = tokio::select! {
        copied = copy(&mut copier, request, &sink, Patience::ENDLESS) => Some(copied),
        () = stalled(&sink, told) => None,
    };
    finish(client, job, sink, copied).await
}

/// True if the keeper counted the bytes of this output and found none.
fn is_empty(task: &Task, stream: Stream) -> bool {
    let counted = task.terminal && (task.exit_code.is_some() || task.signal.is_some());
    let bytes = match stream {
        Stream::Stdout => task.stdout_bytes,
        Stream::Stderr => task.stderr_bytes,
    };
    counted && bytes == 0
}

/// Returns when the job has ended and nothing more came for a while, although our reader took all.
async fn stalled(sink: &Sink, mut told: watch::Receiver<Option<Task>>) {
    let ended = told.wait_for(|task| task.as_ref().is_some_and(|task| task.terminal)).await;
    if ended.is_err() {
        return;
    }
    drop(ended);
    loop {
        let (before, _) = sink.progress();
        tokio::time::sleep(OUTPUT_STALLED).await;
        if sink.progress() == (before, true) {
            return;
        }
    }
}

async fn finish(
    client: &Client,
    job: u64,
    sink: Sink,
    copied: Option<Result<u64, CopyError>>,
) -> Result<Copied, Failure> {
    let why = match copied {
        Some(Ok(0) | Err(CopyError::Stopped)) => None,
        Some(Ok(cut)) => Some(format!("{cut} bytes of it were cut out before they were read")),
        Some(Err(CopyError::Client(error))) => Some(error.to_string()),
        None => Some("its node does not answer".to_owned()),
    };
    match sink.close().await {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            // As if docket were not there: the program that writes to a closed pipe is signalled.
            tell_failure(job, cancel(client.clone(), job, Some(SIGPIPE.unsigned_abs())).await);
            return Ok(Copied::Unwanted);
        }
        Err(error) => {
            note(&format!("cannot write the output: {error}; docket logs {job} has all of it"));
            return Ok(Copied::Part);
        }
    }
    match why {
        None => Ok(Copied::Whole),
        Some(why) => {
            note(&format!("the output is not complete: {why}; docket logs {job}"));
            Ok(Copied::Part)
        }
    }
}
