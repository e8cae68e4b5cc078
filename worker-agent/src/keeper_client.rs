//! The agent's end of the keeper's socket: finds it, starts guard and keeper if and only if their
//! lock is free (design 2, Processes), frames requests and events.
//!
//! A lock that is held without an answer is told to the operator and tried again for ever: a second
//! keeper would run jobs twice.

use crate::keeper::{LockState, launch, lock_state};
use crate::wire::through;
use futures::future::BoxFuture;
use prost::Message as _;
use proto::v1;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use worker_agent_core::{Event, KEEPER_FRAME_MAX_BYTES};

/// After this long without an answer the operator is told (design 2).
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Between looks at a keeper that is just starting: the first job waits for it.
const EAGER: Duration = Duration::from_millis(2);

/// Between looks at one that does not answer.
const PATIENT: Duration = Duration::from_millis(250);

/// Between tries to start one that says why it does not start, doubling: what is wrong with its
/// directory is seldom over at once, and each try forks and writes to its log.
const FAILED_FIRST: Duration = Duration::from_secs(1);
const FAILED_LAST: Duration = Duration::from_secs(30);

/// Requests that may wait unread. The window of a session's orders fits; past it the keeper hangs,
/// and the connection is given up so that a later join sees what was lost.
const OUTBOX_MAX_BYTES: usize = 64 << 20;

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// The one keeper of a data directory, reached or not.
pub struct KeeperLink {
    dir: PathBuf,
    phase: Phase,
    /// Since when nobody answers; eager tries and silence before the operator is told.
    away_since: Instant,
    /// Starts in a row that failed.
    failures: u32,
}

enum Phase {
    Waiting { until: Instant },
    Trying(BoxFuture<'static, Attempt>),
    Up(Box<Open>),
}

enum Attempt {
    Connected(UnixStream),
    /// Started just now by this process, and does not answer yet.
    Launched,
    Held {
        by: String,
    },
    Failed {
        why: String,
    },
}

struct Open {
    stream: UnixStream,
    inbox: Vec<u8>,
    inbox_read: usize,
    outbox: Vec<u8>,
    outbox_sent: usize,
    welcomed: bool,
    since: Instant,
}

impl KeeperLink {
    /// Nothing is done before [`KeeperLink::next`].
    pub fn new(dir: PathBuf) -> Self {
        let now = Instant::now();
        KeeperLink { dir, phase: Phase::Waiting { until: now }, away_since: now, failures: 0 }
    }

    /// Queues a request; without a keeper it is dropped, as the core knows.
    pub fn send(&mut self, request: &v1::KeeperRequest) {
        if let Phase::Up(open) = &mut self.phase {
            open.queue(request);
        }
    }

    /// Hands queued requests to the kernel as far as it takes them; errors show at the next read.
    pub fn flush(&mut self) {
        if let Phase::Up(open) = &mut self.phase
            && let Err(error) = open.flush()
        {
            tracing::debug!(%error, "writing to the keeper");
        }
    }

    /// The next event of the keeper or about it. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            let event = match &mut self.phase {
                Phase::Waiting { until } => {
                    sleep_until(*until).await;
                    self.phase = Phase::Trying(Box::pin(attempt(self.dir.clone())));
                    None
                }
                Phase::Trying(attempt) => {
                    let attempt = attempt.await;
                    self.tried(attempt)
                }
                Phase::Up(open) => match open.next().await {
                    Ok(event) => Some(Event::FromKeeper(event)),
                    Err(error) => self.lost(&error),
                },
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    fn tried(&mut self, attempt: Attempt) -> Option<Event> {
        let late = self.away_since.elapsed() >= ANSWER_WITHIN;
        let pause = if late { PATIENT } else { EAGER };
        self.phase = Phase::Waiting { until: Instant::now() + pause };
        let lock = self.dir.join("keeper.lock");
        match attempt {
            Attempt::Connected(stream) => {
                self.failures = 0;
                self.phase = Phase::Up(Box::new(Open::new(stream)));
                None
            }
            Attempt::Held { by } if late => Some(Event::KeeperTrouble(format!(
                "{} is held ({by}), but its keeper has not answered for {} s: see keeper.log there, and \
                 end that process if it hangs; a second keeper is never started",
                lock.display(),
                ANSWER_WITHIN.as_secs(),
            ))),
            Attempt::Launched if late => Some(Event::KeeperTrouble(format!(
                "the keeper of {} was started and does not answer: see keeper.log there",
                self.dir.display()
            ))),
            Attempt::Held { .. } | Attempt::Launched => None,
            Attempt::Failed { why } => {
                let pause = pause_after(self.failures);
                self.failures = self.failures.saturating_add(1);
                self.phase = Phase::Waiting { until: Instant::now() + pause };
                Some(Event::KeeperTrouble(why))
            }
        }
    }

    fn lost(&mut self, error: &io::Error) -> Option<Event> {
        let Phase::Up(open) = &self.phase else { return None };
        let welcomed = open.welcomed;
        let now = Instant::now();
        self.phase = Phase::Waiting { until: now + if welcomed { EAGER } else { PATIENT } };
        if welcomed {
            self.away_since = now;
            return Some(Event::KeeperLost);
        }
        let dir = self.dir.display();
        let late = self.away_since.elapsed() >= ANSWER_WITHIN;
        late.then(|| Event::KeeperTrouble(format!("the keeper of {dir} does not answer: {error}")))
    }
}

fn pause_after(failures: u32) -> Duration {
    FAILED_FIRST.saturating_mul(1 << failures.min(8)).min(FAILED_LAST)
}

async fn attempt(dir: PathBuf) -> Attempt {
    if let Ok(stream) = connect(&dir).await {
        return Attempt::Connected(stream);
    }
    let place = dir.clone();
    // Forking and waiting for the lock may block.
    match tokio::task::spawn_blocking(move || start_if_free(&place)).await {
        Ok(Attempt::Launched) => wait_for_start(&dir).await,
        Ok(attempt) => attempt,
        Err(error) => Attempt::Failed { why: format!("cannot start the keeper: {error}") },
    }
}

/// A keeper that was just started gets its time before anybody looks at the lock again.
async fn wait_for_start(dir: &Path) -> Attempt {
    let deadline = Instant::now() + ANSWER_WITHIN;
    while Instant::now() < deadline {
        if let Ok(stream) = connect(dir).await {
            return Attempt::Connected(stream);
        }
        sleep(EAGER).await;
    }
    Attempt::Launched
}

fn start_if_free(dir: &Path) -> Attempt {
    let failed = |what: &str, error: io::Error| Attempt::Failed {
        why: format!("cannot {what} the keeper of {}: {error}", dir.display()),
    };
    match lock_state(dir) {
        Ok(LockState::Held { by }) => Attempt::Held { by },
        Ok(LockState::Free) => match launch(dir) {
            Ok(()) => Attempt::Launched,
            Err(error) => failed("start", error),
        },
        Err(error) => failed("look at the lock of", error),
    }
}

async fn connect(dir: &Path) -> io::Result<UnixStream> {
    use rustix::fs::{Mode, OFlags, open};
    // Through a descriptor of the directory: a socket's path may have 107 bytes only.
    let dir = open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    UnixStream::connect(through(&dir, Path::new("keeper.sock"))).await
}

impl Open {
    fn new(stream: UnixStream) -> Self {
        let mut open = Open {
            stream,
            inbox: Vec::new(),
            inbox_read: 0,
            outbox: Vec::new(),
            outbox_sent: 0,
            welcomed: false,
            since: Instant::now(),
        };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello = v1::KeeperHello { version, resend_from: 0 };
        let kind = Some(v1::keeper_request::Kind::Hello(hello));
        open.queue(&v1::KeeperRequest { kind });
        open
    }

    fn queue(&mut self, request: &v1::KeeperRequest) {
        let size = u32::try_from(request.encoded_len()).unwrap_or(u32::MAX);
        self.outbox.extend_from_slice(&size.to_le_bytes());
        self.outbox.extend_from_slice(&request.encode_to_vec());
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.outbox_sent < self.outbox.len() {
            match self.stream.try_write(&self.outbox[self.outbox_sent..]) {
                Ok(sent) => self.outbox_sent += sent,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        if self.outbox_sent == self.outbox.len() {
            self.outbox.clear();
            self.outbox_sent = 0;
        } else if self.outbox.len() - self.outbox_sent > OUTBOX_MAX_BYTES {
            return Err(io::Error::other("the keeper does not read its socket"));
        }
        Ok(())
    }

    async fn next(&mut self) -> io::Result<v1::KeeperEvent> {
        loop {
            if let Some(event) = self.take_frame()? {
                self.welcomed |= matches!(event.kind, Some(v1::keeper_event::Kind::Welcome(_)));
                return Ok(event);
            }
            self.flush()?;
            let interest = if self.outbox.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            let ready = self.stream.ready(interest);
            let ready = if self.welcomed {
                ready.await?
            } else {
                timeout_at(self.since + ANSWER_WITHIN, ready).await.map_err(io::Error::from)??
            };
            if ready.is_readable() {
                self.read()?;
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        if self.inbox_read > 0 {
            self.inbox.drain(..self.inbox_read);
            self.inbox_read = 0;
        }
        self.inbox.reserve(READ_BYTES);
        match self.stream.try_read_buf(&mut self.inbox) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn take_frame(&mut self) -> io::Result<Option<v1::KeeperEvent>> {
        let rest = &self.inbox[self.inbox_read..];
        let Some((head, body)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let size = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if size > KEEPER_FRAME_MAX_BYTES {
            let text = format!("the keeper sent a frame of {size} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let Some(frame) = body.get(..size) else { return Ok(None) };
        let event = v1::KeeperEvent::decode(frame).map_err(io::Error::other)?;
        self.inbox_read += 4 + size;
        Ok(Some(event))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    /// The pause that was begun just now, in whole seconds.
    fn waits(link: &KeeperLink) -> u64 {
        match link.phase {
            Phase::Waiting { until } => {
                (until - Instant::now() + Duration::from_millis(500)).as_secs()
            }
            _ => panic!("it does not wait"),
        }
    }

    #[tokio::test]
    async fn a_keeper_that_does_not_start_is_tried_again_ever_later() {
        let mut link = KeeperLink::new(PathBuf::from("/nowhere"));
        let failed = || Attempt::Failed { why: "the journal cannot be opened".into() };
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            assert!(matches!(link.tried(failed()), Some(Event::KeeperTrouble(_))));
            assert_eq!(waits(&link), seconds);
        }
        let (stream, _other) = UnixStream::pair().unwrap();
        link.tried(Attempt::Connected(stream));
        link.tried(failed());
        assert_eq!(waits(&link), 1, "one that answered begins anew");
    }
}
