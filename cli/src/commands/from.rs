//! `docket submit --from`: one job a line over one stream. A line keeps its request id over any
//! number of broken streams, so no line is submitted twice; ids are printed as they are acknowledged.

use super::context::Context;
use crate::args::SubmitArgs;
use crate::client::{Backoff, Client, Patience, request_id, result_exit};
use crate::exit;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::render::submitted_json;
use crate::say::{note, print};
use crate::spec::{Here, SpecError, read_line};
use proto::v1::{SubmitAnswer, SubmitRequest};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Lines that were sent and not answered: enough to fill the server's batches.
const UNANSWERED_MAX: usize = 1024;
/// Lines that wait between the reader of the file and the stream.
const READ_AHEAD: usize = 64;
/// Longest line: a specification and its JSON escapes.
const LINE_MAX_BYTES: u64 = 8 << 20;

/// A line that is a job.
struct Line {
    number: usize,
    request: SubmitRequest,
}

/// What one file holds: lines, then the reason why there are no more, if it is not its end.
type Lines = mpsc::Receiver<Result<Line, SpecError>>;

/// Submits every line; stops reading at the first refusal.
pub async fn submit_from(
    context: &Context,
    args: &SubmitArgs,
    file: &OsStr,
) -> Result<u8, Failure> {
    let stream_id = request_id();
    let reader = Reader {
        name: file.to_string_lossy().into_owned(),
        here: Here::now(&args.job)?,
        options: args.job.clone(),
        stream_id,
    };
    // A file is read twice: a bad line is found before anything is submitted.
    let mut total = None;
    if let Some(path) = reader.path() {
        let checked = reader.open(&path)?;
        let count = std::cell::Cell::new(0);
        reader.lines(checked, |line| {
            count.set(count.get() + 1);
            line.map(|_| true)
        })?;
        total = Some(count.get());
    }
    let client = context.client().await?;
    let (feed, lines) = mpsc::channel(READ_AHEAD);
    let reading = tokio::task::spawn_blocking(move || reader.feed(&feed));
    let tell = if args.json { tell_json } else { tell_id };
    let progress = Progress::new("submitted", total);
    let mut sending =
        Sending { client, lines, tell, waiting: VecDeque::new(), end: None, progress };
    sending.all().await?;
    drop((sending.lines, sending.progress));
    reading.await.map_err(|error| Failure::Input(std::io::Error::other(error)))?;
    match sending.end {
        Some(End::Refused(code)) => Err(Failure::Told(code)),
        Some(End::Wrong(error)) => Err(error.into()),
        Some(End::File) | None => Ok(exit::DONE),
    }
}

/// Reads the file on a thread of its own.
struct Reader {
    name: String,
    here: Here,
    options: crate::args::JobOptions,
    stream_id: String,
}

impl Reader {
    /// The file, unless it is stdin.
    fn path(&self) -> Option<PathBuf> {
        (self.name != "-").then(|| PathBuf::from(&self.name))
    }

    fn open(&self, path: &Path) -> Result<BufReader<File>, SpecError> {
        let failed = |why| SpecError::Read { path: path.to_owned(), why };
        File::open(path).map(BufReader::new).map_err(failed)
    }

    fn feed(&self, feed: &mpsc::Sender<Result<Line, SpecError>>) {
        let send = |line: Result<Line, SpecError>| Ok(feed.blocking_send(line).is_ok());
        let read = match self.path() {
            None => self.lines(std::io::stdin().lock(), send),
            Some(path) => self.open(&path).and_then(|file| self.lines(file, send)),
        };
        if let Err(error) = read {
            // Who no longer listens has already failed.
            let _ = feed.blocking_send(Err(error));
        }
    }

    /// Hands each job to `each` until it says false.
    fn lines(
        &self,
        mut from: impl BufRead,
        each: impl Fn(Result<Line, SpecError>) -> Result<bool, SpecError>,
    ) -> Result<(), SpecError> {
        let mut text = Vec::new();
        for number in 1.. {
            text.clear();
            let failed = |why| SpecError::Read { path: PathBuf::from(&self.name), why };
            let count =
                (&mut from).take(LINE_MAX_BYTES).read_until(b'\n', &mut text).map_err(failed)?;
            if count == 0 {
                break;
            }
            if let Some(request) = self.line(number, &text)?
                && !each(Ok(Line { number, request }))?
            {
                break;
            }
        }
        Ok(())
    }

    fn line(&self, number: usize, text: &[u8]) -> Result<Option<SubmitRequest>, SpecError> {
        let wrong = |why: String| SpecError::Line { file: self.name.clone(), line: number, why };
        if text.len() as u64 == LINE_MAX_BYTES && !text.ends_with(b"\n") {
            return Err(wrong(format!("longer than {LINE_MAX_BYTES} bytes")));
        }
        let text = str::from_utf8(text).map_err(|_| wrong("not UTF-8".to_owned()))?;
        let id = format!("{}/{number}", self.stream_id);
        read_line(text, &self.options, &self.here, id).map_err(wrong)
    }
}

/// How an acknowledged job is told.
type Tell = fn(&SubmitAnswer) -> Result<(), Failure>;

fn tell_json(answer: &SubmitAnswer) -> Result<(), Failure> {
    print(&submitted_json(answer))
}

fn tell_id(answer: &SubmitAnswer) -> Result<(), Failure> {
    print(&format!("{}\n", answer.job))
}

/// Why no more lines come.
enum End {
    File,
    Refused(u8),
    Wrong(SpecError),
}

/// The lines between the file and their answers.
struct Sending {
    client: Client,
    lines: Lines,
    tell: Tell,
    /// Sent or not, but not answered.
    waiting: VecDeque<Line>,
    end: Option<End>,
    progress: Progress,
}

impl Sending {
    async fn all(&mut self) -> Result<(), Failure> {
        let mut backoff = Backoff::new(Patience::CHANGE, note);
        while self.end.is_none() || !self.waiting.is_empty() {
            match self.one_stream(&mut backoff).await? {
                Ok(()) => {}
                Err(lost) => backoff.failed(&mut self.client, &lost).await?,
            }
        }
        Ok(())
    }

    /// Sends what waits and what comes until everything is answered or the stream breaks.
    async fn one_stream(&mut self, backoff: &mut Backoff) -> Result<Result<(), Status>, Failure> {
        let (feed, requests) = mpsc::channel::<SubmitRequest>(READ_AHEAD);
        let mut feed = Some(feed);
        let opened = self.client.jobs().submit_many(ReceiverStream::new(requests)).await;
        let mut answers = match opened {
            Ok(answers) => answers.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        let mut sent = 0;
        loop {
            if self.end.is_some() && sent == self.waiting.len() {
                feed = None; // No more will come: the server may end the stream.
            }
            let more = self.end.is_none() && self.waiting.len() < UNANSWERED_MAX;
            let next = self.waiting.get(sent).map(|line| line.request.clone());
            tokio::select! {
                line = self.lines.recv(), if more => self.read(line),
                permit = reserve(feed.as_ref()), if next.is_some() => match (permit, next) {
                    (Some(permit), Some(request)) => {
                        permit.send(request);
                        sent += 1;
                    }
                    _ => return Ok(Err(Status::unavailable("the server ended the stream"))),
                },
                answer = answers.message() => match answer {
                    Err(status) => return Ok(Err(status)),
                    Ok(None) if self.waiting.is_empty() && self.end.is_some() => return Ok(Ok(())),
                    Ok(None) => return Ok(Err(Status::unavailable("the server ended the stream"))),
                    Ok(Some(answer)) => {
                        backoff.reset();
                        sent = sent.saturating_sub(1);
                        self.answered(&answer)?;
                    }
                },
            }
        }
    }

    fn read(&mut self, line: Option<Result<Line, SpecError>>) {
        match line {
            None => self.end = Some(End::File),
            Some(Err(error)) => self.end = Some(End::Wrong(error)),
            Some(Ok(line)) => self.waiting.push_back(line),
        }
    }

    /// Answers come in the order of the lines.
    fn answered(&mut self, answer: &SubmitAnswer) -> Result<(), Failure> {
        let Some(line) = self.waiting.pop_front() else { return Ok(()) };
        match &answer.error {
            None => {
                self.progress.one_more();
                let told = self.progress.beside(|| (self.tell)(answer));
                told.map_err(|failure| failure.of_submit(answer.job))
            }
            Some(error) => {
                self.progress.beside(|| note(&format!("line {}: {error}", line.number)));
                self.end = Some(End::Refused(result_exit(answer.error_code)));
                Ok(())
            }
        }
    }
}

async fn reserve(
    feed: Option<&mpsc::Sender<SubmitRequest>>,
) -> Option<mpsc::Permit<'_, SubmitRequest>> {
    feed?.reserve().await.ok()
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;

    fn reader() -> Reader {
        Reader {
            name: "jobs.jsonl".to_owned(),
            here: Here { dir: "/d".into(), ..Here::default() },
            options: crate::args::JobOptions::default(),
            stream_id: "stream".to_owned(),
        }
    }

    #[test]
    fn lines_are_numbered_as_they_stand_and_a_bad_one_is_named() {
        let text = "{\"command\":[\"a\"]}\n\n# note\n{\"command\":[\"b\"]}";
        let ids = std::cell::RefCell::new(Vec::new());
        let read = reader().lines(text.as_bytes(), |line| {
            ids.borrow_mut().push(line?.request.request_id);
            Ok(true)
        });
        assert!(read.is_ok());
        assert_eq!(ids.into_inner(), ["stream/1", "stream/4"]);
        let bad = "{\"command\":[\"a\"]}\n{\"command\":[]}\n";
        let error = reader().lines(bad.as_bytes(), |line| line.map(|_| true)).unwrap_err();
        assert!(error.to_string().starts_with("jobs.jsonl:2: no command"), "{error}");
        let error = reader().lines(&b"\xff\n"[..], |line| line.map(|_| true)).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }

    #[tokio::test]
    async fn over_broken_streams_each_line_is_submitted_once_and_in_order() {
        let fake = Fake::default();
        fake.0.lock().unwrap().many = [3, 0, 2, 100].into();
        let (feed, lines) = mpsc::channel(READ_AHEAD);
        let client = fake.serve();
        let (waiting, progress) = (VecDeque::new(), Progress::none());
        let mut sending = Sending { client, lines, tell: |_| Ok(()), waiting, end: None, progress };
        let feeding = async move {
            for number in 1..=20 {
                let id = format!("stream/{number}");
                let request = SubmitRequest { request_id: id, ..SubmitRequest::default() };
                feed.send(Ok(Line { number, request })).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(sending.all(), feeding);
        sent.unwrap();
        let expected: Vec<String> = (1..=20).map(|number| format!("stream/{number}")).collect();
        assert_eq!(fake.0.lock().unwrap().answered, expected);
    }
}
