//! The agent's end of the keeper's socket: finds it, starts guard and keeper if and only if their
//! lock is free (design 2, Processes), frames requests and events.
//!
//! A lock that is held without an answer is told to the operator and tried again for ever: a second
//! keeper would run jobs twice. A keeper that serves somebody else is left to him for ever longer: two
//! agents would take it from each other without end. A directory that was deleted gets none any more.

use crate::home::{Home, Place};
use crate::keeper::{LockState, launch, lock_state};
use futures::future::BoxFuture;
use prost::Message as _;
use proto::v1;
use std::io;
use std::sync::Arc;
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
/// directory is seldom over at once, and each try forks and writes to its log. And before one that
/// another agent took is taken back.
const FAILED_FIRST: Duration = Duration::from_secs(1);
const FAILED_LAST: Duration = Duration::from_secs(30);

/// A keeper that served this agent alone for so long is not shared: the other one would be back.
const ALONE_AFTER: Duration = Duration::from_secs(60);

/// Requests that may wait unread. The window of a session's orders fits; past it the keeper hangs,
/// and the connection is given up so that a later join sees what was lost.
const OUTBOX_MAX_BYTES: usize = 64 << 20;

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// The one keeper of a data directory, reached or not.
pub struct KeeperLink {
    home: Arc<Home>,
    phase: Phase,
    /// Since when nobody answers; eager tries and silence before the operator is told.
    away_since: Instant,
    /// Starts in a row that failed.
    failures: u32,
    /// The keeper that hung up last, if it did: one that lives on did so for another agent, unless it
    /// is another program now.
    hung_up: Option<Served>,
    /// Times in a row that it did.
    displaced: u32,
    /// To be told next.
    said: Option<Event>,
}

/// A keeper: its pid, 0 if it does not tell, and its version.
type Served = (u32, String);

enum Phase {
    Waiting {
        until: Instant,
    },
    Trying(BoxFuture<'static, Attempt>),
    Up(Box<Open>),
    /// There will be none any more.
    Over,
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
    /// The directory was deleted.
    Deleted,
}

struct Open {
    stream: UnixStream,
    inbox: Vec<u8>,
    inbox_read: usize,
    outbox: Vec<u8>,
    outbox_sent: usize,
    welcomed: bool,
    /// Who it is, once that is told.
    by: Served,
    since: Instant,
}

impl KeeperLink {
    /// Nothing is done before [`KeeperLink::next`].
    pub fn new(home: Arc<Home>) -> Self {
        let now = Instant::now();
        KeeperLink {
            home,
            phase: Phase::Waiting { until: now },
            away_since: now,
            failures: 0,
            hung_up: None,
            displaced: 0,
            said: None,
        }
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
            if let Some(event) = self.said.take() {
                return event;
            }
            let event = match &mut self.phase {
                Phase::Waiting { until } => {
                    sleep_until(*until).await;
                    self.phase = Phase::Trying(Box::pin(attempt(Arc::clone(&self.home))));
                    None
                }
                Phase::Trying(attempt) => {
                    let attempt = attempt.await;
                    self.tried(attempt)
                }
                Phase::Up(open) if self.displaced > 0 => {
                    match timeout_at(open.since + ALONE_AFTER, open.next()).await {
                        Ok(heard) => self.heard(heard),
                        Err(_) => self.alone(),
                    }
                }
                Phase::Up(open) => {
                    let heard = open.next().await;
                    self.heard(heard)
                }
                Phase::Over => std::future::pending().await,
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
        let dir = self.home.name().display();
        match attempt {
            Attempt::Connected(stream) => {
                self.failures = 0;
                self.phase = Phase::Up(Box::new(Open::new(stream)));
                None
            }
            Attempt::Held { by } if late => Some(Event::KeeperTrouble(format!(
                "{dir}/keeper.lock is held ({by}), but its keeper has not answered for {} s: see \
                 keeper.log there, and end that process if it hangs; a second keeper is never started",
                ANSWER_WITHIN.as_secs(),
            ))),
            Attempt::Launched if late => Some(Event::KeeperTrouble(format!(
                "the keeper of {dir} was started and does not answer: see keeper.log there"
            ))),
            Attempt::Held { .. } | Attempt::Launched => None,
            Attempt::Failed { why } => {
                let pause = pause_after(self.failures);
                self.failures = self.failures.saturating_add(1);
                self.phase = Phase::Waiting { until: Instant::now() + pause };
                Some(Event::KeeperTrouble(why))
            }
            Attempt::Deleted => {
                self.phase = Phase::Over;
                self.home.trouble().map(Event::KeeperTrouble)
            }
        }
    }

    fn heard(&mut self, heard: io::Result<v1::KeeperEvent>) -> Option<Event> {
        let event = match heard {
            Ok(event) => event,
            Err(error) => return self.lost(&error),
        };
        if let Some(v1::keeper_event::Kind::Welcome(welcome)) = &event.kind {
            let pid = welcome.pid;
            // An older keeper does not tell its pid.
            let before = self.hung_up.take().filter(|(before, _)| *before != 0);
            let same = before.is_some_and(|before| before == (pid, welcome.version.clone()));
            self.displaced = if same { self.displaced.saturating_add(1) } else { 0 };
            self.said = same.then(|| Event::KeeperTrouble(self.shared(pid)));
        }
        Some(Event::FromKeeper(event))
    }

    fn shared(&self, pid: u32) -> String {
        let dir = self.home.name().display();
        format!(
            "another agent uses this keeper: stop one. The keeper of {dir} (pid {pid}) serves whoever \
             came last, and hung up on this agent (pid {}) while it lives on; find the other with \
             `ps -eo pid,args | grep docket`. agent.lock keeps a second one off unless somebody \
             removes it",
            std::process::id()
        )
    }

    /// Nobody came for a long time.
    fn alone(&mut self) -> Option<Event> {
        self.displaced = 0;
        Some(Event::KeeperTrouble(String::new()))
    }

    fn lost(&mut self, error: &io::Error) -> Option<Event> {
        let Phase::Up(open) = &self.phase else { return None };
        let (welcomed, by) = (open.welcomed, open.by.clone());
        let now = Instant::now();
        if welcomed {
            // Else it is this agent that hung up.
            let by_keeper = matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
            );
            self.hung_up = by_keeper.then_some(by);
            let pause = self.displaced.checked_sub(1).map_or(EAGER, pause_after);
            self.phase = Phase::Waiting { until: now + pause };
            self.away_since = now + pause;
            return Some(Event::KeeperLost);
        }
        self.phase = Phase::Waiting { until: now + PATIENT };
        let dir = self.home.name().display();
        let late = self.away_since.elapsed() >= ANSWER_WITHIN;
        late.then(|| Event::KeeperTrouble(format!("the keeper of {dir} does not answer: {error}")))
    }
}

fn pause_after(failures: u32) -> Duration {
    FAILED_FIRST.saturating_mul(1 << failures.min(8)).min(FAILED_LAST)
}

async fn attempt(home: Arc<Home>) -> Attempt {
    if let Ok(stream) = connect(&home).await {
        return Attempt::Connected(stream);
    }
    let place = Arc::clone(&home);
    // Forking and waiting for the lock may block.
    match tokio::task::spawn_blocking(move || start_if_free(&place)).await {
        Ok(Attempt::Launched) => wait_for_start(&home).await,
        Ok(attempt) => attempt,
        Err(error) => Attempt::Failed { why: format!("cannot start the keeper: {error}") },
    }
}

/// A keeper that was just started gets its time before anybody looks at the lock again.
async fn wait_for_start(home: &Home) -> Attempt {
    let deadline = Instant::now() + ANSWER_WITHIN;
    while Instant::now() < deadline {
        if let Ok(stream) = connect(home).await {
            return Attempt::Connected(stream);
        }
        sleep(EAGER).await;
    }
    Attempt::Launched
}

fn start_if_free(home: &Home) -> Attempt {
    let dir = home.name().display();
    let failed = |what: &str, error: io::Error| Attempt::Failed {
        why: format!("cannot {what} the keeper of {dir}: {error}"),
    };
    // The lock of this very directory, whatever has its name now.
    match lock_state(&home.inside("")) {
        Ok(LockState::Held { by }) => return Attempt::Held { by },
        Ok(LockState::Free) => {}
        Err(error) => return failed("look at the lock of", error),
    }
    match home.place() {
        Ok(Place::At(path)) => match launch(&path) {
            Ok(()) => Attempt::Launched,
            Err(error) => failed("start", error),
        },
        Ok(Place::Deleted) => Attempt::Deleted,
        Ok(Place::Away) => Attempt::Failed { why: home.trouble().unwrap_or_default() },
        Err(error) => failed("find the directory of", error),
    }
}

/// Through the descriptor, also since a socket's path may have 107 bytes only.
async fn connect(home: &Home) -> io::Result<UnixStream> {
    UnixStream::connect(home.inside("keeper.sock")).await
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
            by: Served::default(),
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
                if let Some(v1::keeper_event::Kind::Welcome(welcome)) = &event.kind {
                    (self.welcomed, self.by) = (true, (welcome.pid, welcome.version.clone()));
                }
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
        let dir = tempfile::tempdir().unwrap();
        let mut link = KeeperLink::new(Arc::new(Home::open(dir.path()).unwrap()));
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

    fn welcome(pid: u32, version: &str) -> io::Result<v1::KeeperEvent> {
        let version = version.to_owned();
        let welcome = v1::KeeperWelcome { pid, version, ..v1::KeeperWelcome::default() };
        Ok(v1::KeeperEvent { kind: Some(v1::keeper_event::Kind::Welcome(welcome)) })
    }

    /// Up with a keeper of this pid.
    fn up(link: &mut KeeperLink, pid: u32) -> UnixStream {
        up_as(link, pid, "1.0.0")
    }

    fn up_as(link: &mut KeeperLink, pid: u32, version: &str) -> UnixStream {
        let (stream, other) = UnixStream::pair().unwrap();
        link.tried(Attempt::Connected(stream));
        let Phase::Up(open) = &mut link.phase else { panic!("it is not up") };
        (open.welcomed, open.by) = (true, (pid, version.to_owned()));
        link.heard(welcome(pid, version));
        other
    }

    #[tokio::test]
    async fn a_keeper_that_another_agent_took_is_taken_back_ever_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut link = KeeperLink::new(Arc::new(Home::open(dir.path()).unwrap()));
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let _first = up(&mut link, 7);
        for seconds in [0, 1, 2, 4, 8, 16, 30, 30] {
            assert!(matches!(link.lost(&gone()), Some(Event::KeeperLost)));
            assert_eq!(waits(&link), seconds);
            let _other = up(&mut link, 7);
            assert!(matches!(link.said.take(), Some(Event::KeeperTrouble(_))));
        }
        // Nobody came for long.
        assert!(matches!(link.alone(), Some(Event::KeeperTrouble(none)) if none.is_empty()));
        link.lost(&gone());
        assert_eq!(waits(&link), 0);
        // One that this agent gave up itself, and one that does not tell who it is.
        for pid in [7, 0, 0] {
            let _other = up(&mut link, pid);
            link.said = None;
            link.lost(&io::Error::other("the keeper does not read its socket"));
            let _other = up(&mut link, pid);
            assert!(link.said.is_none() && link.displaced == 0);
            link.lost(&gone());
        }
    }
    #[tokio::test]
    async fn a_keeper_that_goes_on_as_a_newer_program_was_taken_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let mut link = KeeperLink::new(Arc::new(Home::open(dir.path()).unwrap()));
        let _older = up_as(&mut link, 7, "1.0.0");
        link.lost(&io::ErrorKind::UnexpectedEof.into());
        let _newer = up_as(&mut link, 7, "1.1.0");
        assert!(link.said.is_none() && link.displaced == 0);
    }
}
