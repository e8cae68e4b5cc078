//! Asking again: a server that is away for seconds is retried quietly, then people are told.

use super::connect::why;
use super::{Client, ClientError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Response, Status};

/// First pause between two tries; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// Longest pause: a server that is back is met within it.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Silence of the command while its server is away; a restart takes less.
const QUIET: Duration = Duration::from_secs(3);
/// Longest wait for the answer of one try.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Metadata key of a refusal's stable word.
const REASON_KEY: &str = "docket-reason";
/// That word where the server is well and the node that holds an output is not.
const AGENT_AWAY: &str = "agent-away";

/// Told once when a server stays away.
pub type Notice = fn(&str);

/// How long a request is tried.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Given up after this time; `None`: never.
    pub give_up: Option<Duration>,
    /// Also tried again while the node that holds an output is away.
    pub agent_away: bool,
    /// The request changes something, so giving up leaves its effect unknown.
    pub mutation: bool,
}

impl Patience {
    /// For a read: 30 s.
    pub const READ: Patience =
        Patience { give_up: Some(Duration::from_secs(30)), agent_away: false, mutation: false };
    /// For a change with a request id: 60 s, longer than an election or a restart takes.
    pub const CHANGE: Patience =
        Patience { give_up: Some(Duration::from_secs(60)), agent_away: false, mutation: true };
    /// For a command whose purpose is to wait.
    pub const ENDLESS: Patience = Patience { give_up: None, agent_away: true, mutation: false };
}

/// A fresh request id: UUIDv7, one for all tries of one request (design 3, Request ids).
pub fn request_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Pauses between tries, and when to speak and to give up.
#[derive(Debug)]
pub struct Backoff {
    patience: Patience,
    notice: Notice,
    since: Option<Instant>,
    pause: Duration,
    told: bool,
}

impl Backoff {
    /// Nothing has failed yet.
    pub fn new(patience: Patience, notice: Notice) -> Self {
        Backoff { patience, notice, since: None, pause: PAUSE_FIRST, told: false }
    }

    /// The server answered: the next failure starts anew.
    pub fn reset(&mut self) {
        self.since = None;
        self.pause = PAUSE_FIRST;
        self.told = false;
    }

    /// A try failed: waits before the next, or gives up with the error to show.
    pub async fn failed(
        &mut self,
        client: &mut Client,
        status: &Status,
    ) -> Result<(), ClientError> {
        if !self.may_retry(status) {
            return Err(ClientError::refused(status));
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if self.patience.give_up.is_some_and(|most| now.duration_since(since) >= most) {
            return Err(self.give_up(client, status));
        }
        if !self.told && now.duration_since(since) >= QUIET {
            self.told = true;
            (self.notice)(&format!(
                "{} is away: {}; still trying",
                client.address(),
                words(status)
            ));
        }
        tokio::time::sleep(jittered(self.pause)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        client.turn();
        Ok(())
    }

    fn may_retry(&self, status: &Status) -> bool {
        let unavailable = status.code() == Code::Unavailable
            && (self.patience.agent_away || reason(status) != Some(AGENT_AWAY));
        unavailable || from_transport(status)
    }

    fn give_up(&self, client: &Client, status: &Status) -> ClientError {
        if from_transport(status) {
            let server = client.address().clone();
            let mutation = self.patience.mutation;
            ClientError::Away { server, why: words(status), mutation }
        } else {
            ClientError::refused(status)
        }
    }
}

impl Client {
    /// Asks until there is an answer or a refusal. The request must be safe to repeat: a read, or a
    /// change that carries its request id.
    pub async fn ask<T>(
        &mut self,
        patience: Patience,
        notice: Notice,
        mut request: impl AsyncFnMut(&Client) -> Result<Response<T>, Status>,
    ) -> Result<T, ClientError> {
        let mut backoff = Backoff::new(patience, notice);
        loop {
            let status = match tokio::time::timeout(ANSWER_TIMEOUT, request(self)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => no_answer(),
            };
            backoff.failed(self, &status).await?;
        }
    }
}

/// The status of a try that was not answered in time; it counts as a failed connection.
fn no_answer() -> Status {
    Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::TimedOut)))
}

/// The server's stable word for a refusal, if it sent one.
pub fn reason(status: &Status) -> Option<&str> {
    status.metadata().get(REASON_KEY)?.to_str().ok()
}

/// True if the status was made here because the connection failed, not sent by a server.
pub fn from_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn words(status: &Status) -> String {
    if from_transport(status) { why(status) } else { status.message().to_owned() }
}

/// Between half of a pause and the whole: many clients must not come back at one instant.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0u8; 1];
    // Without randomness the pause is merely not spread.
    let spread = getrandom::fill(&mut byte).map_or(u32::from(u8::MAX), |()| u32::from(byte[0]));
    pause / 2 + pause * spread / (2 * u32::from(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent(_: &str) {}

    #[test]
    fn only_a_failed_connection_and_unavailable_are_tried_again() {
        let backoff = Backoff::new(Patience::READ, silent);
        assert!(backoff.may_retry(&Status::unavailable("no leader")));
        assert!(backoff.may_retry(&no_answer()));
        for status in [
            Status::not_found("no job"),
            Status::resource_exhausted("full"),
            Status::permission_denied("not yours"),
            Status::invalid_argument("bad"),
        ] {
            assert!(!backoff.may_retry(&status), "{status}");
        }
        let mut away = Status::unavailable("n1 is silent");
        let word = tonic::metadata::MetadataValue::from_static(AGENT_AWAY);
        away.metadata_mut().insert(REASON_KEY, word);
        assert!(!backoff.may_retry(&away), "the server said what there is to say");
        assert!(Backoff::new(Patience::ENDLESS, silent).may_retry(&away));
    }

    #[test]
    fn pauses_are_spread_but_never_longer() {
        for _ in 0..100 {
            let pause = jittered(PAUSE_MAX);
            assert!(pause >= PAUSE_MAX / 2 && pause <= PAUSE_MAX, "{pause:?}");
        }
    }

    #[test]
    fn request_ids_are_version_7() {
        let id = uuid::Uuid::parse_str(&request_id()).unwrap();
        assert_eq!(id.get_version_num(), 7);
    }
}
