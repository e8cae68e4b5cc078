//! One relay: the peer asks for a stream of an attempt from an offset, gets pieces as far as its
//! credits go, and the end once there is nothing more to come. Memory stays at a few pieces.

use super::file::{self, Output, OutputError, Piece};
use super::watch::Watch;
use crate::home::Home;
use crate::wire::DialError;
use futures::FutureExt as _;
use proto::v1;
use proto::v1::bulk_up::Kind as Up;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

/// Bytes of one piece (design 5, Logs).
pub const PIECE_BYTES: u64 = 256 << 10;

/// Pieces that need no credit.
pub const WINDOW_PIECES: u32 = 4;

/// Between looks for a file that its job has not opened yet.
const MISSING_POLL: Duration = Duration::from_millis(10);

/// What all relays of an agent share.
pub struct Place {
    /// Where the run files are.
    pub home: Arc<Home>,
    /// Shown to the peer.
    pub agent_id: String,
}

/// Why a relay ended early.
#[derive(Debug, Error)]
pub enum RelayError {
    /// The peer that asked cannot be dialled.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// HTTP/2 did not come about.
    #[error("no connection: {0}")]
    Http(#[from] tonic::transport::Error),
    /// The call failed.
    #[error("the call broke: {0}")]
    Call(#[from] Status),
    /// The reader went away; nothing is wrong.
    #[error("the reader went away")]
    PeerEnded,
    /// The peer opened a relay and asked for nothing.
    #[error("the controller did not say what to read")]
    NotBegun,
}

/// The two halves of the call, and what the peer granted.
pub struct Relay {
    request: u64,
    up: mpsc::Sender<v1::BulkUp>,
    down: Streaming<v1::BulkDown>,
    credits: u32,
    stop: Option<v1::BulkStop>,
}

/// Where the relay stands in the output.
struct Cursor {
    /// `None`: the file is not there (yet).
    output: Option<(Output, Watch)>,
    offset: u64,
    /// Without follow: the size when it began, so that a job that writes on cannot hold the reader.
    end: u64,
}

impl Relay {
    /// Reads what is wanted.
    pub async fn begin(
        request: u64,
        up: mpsc::Sender<v1::BulkUp>,
        mut down: Streaming<v1::BulkDown>,
    ) -> Result<(Self, v1::ReadOutput), RelayError> {
        match down.message().await?.and_then(|message| message.kind) {
            Some(v1::bulk_down::Kind::Read(read)) => {
                Ok((Relay { request, up, down, credits: WINDOW_PIECES, stop: None }, read))
            }
            _ => Err(RelayError::NotBegun),
        }
    }

    /// Serves until the end of the output, an error of it, or the reader's going.
    pub async fn run(
        &mut self,
        place: &Arc<Place>,
        read: v1::ReadOutput,
    ) -> Result<(), RelayError> {
        let read = Arc::new(read);
        let mut cursor = Cursor { output: None, offset: read.offset, end: u64::MAX };
        loop {
            match self.turn(place, &read, &mut cursor).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Broken::Output(error)) => {
                    return self.fail(error.to_string(), error.is_gone()).await;
                }
                Err(Broken::Relay(error)) => return Err(error),
            }
        }
    }

    /// One step: at most one piece. `false`: the end was sent.
    async fn turn(
        &mut self,
        place: &Arc<Place>,
        read: &Arc<v1::ReadOutput>,
        cursor: &mut Cursor,
    ) -> Result<bool, Broken> {
        self.take_waiting()?;
        // Taken before the file is read: what was written before a stop is then read after it.
        let stop = self.stop;
        if stop.is_some_and(|stop| !stop.after_end) {
            return self.end(cursor.offset).await;
        }
        if self.credits == 0 {
            self.wait_for_word().await?;
            return Ok(true);
        }
        let ending = !read.follow || stop.is_some();
        if cursor.output.is_none() && !self.open(place, read, cursor, ending).await? {
            return self.missing(place, read, ending).await;
        }
        let Some((output, watch)) = &mut cursor.output else { return Ok(true) };
        let piece = output.read(cursor.offset, cursor.end).await?;
        if !piece.data.is_empty() || piece.cut > 0 {
            self.send_piece(&mut cursor.offset, piece).await?;
        } else if ending {
            let size = output.size()?.min(cursor.end);
            return self.end(size).await;
        } else {
            self.word_or(watch.changed()).await?;
        }
        Ok(true)
    }

    /// Opens the file and finds where to begin. `false`: it does not exist.
    async fn open(
        &mut self,
        place: &Arc<Place>,
        read: &Arc<v1::ReadOutput>,
        cursor: &mut Cursor,
        ending: bool,
    ) -> Result<bool, Broken> {
        let (place, wanted) = (Arc::clone(place), Arc::clone(read));
        let opened = file::blocking(move || file::open(&place.home.runs(), &wanted)).await?;
        let Some(begun) = opened else { return Ok(false) };
        if read.tail_lines.is_some() {
            cursor.offset = begun.offset;
        }
        if !read.follow {
            cursor.end = begun.size;
        }
        let watch = if ending { Watch::none() } else { Watch::new(&begun.output) };
        cursor.output = Some((begun.output, watch));
        Ok(true)
    }

    /// The file is not there: not yet, or it was empty and is removed, or it was let go.
    async fn missing(
        &mut self,
        place: &Arc<Place>,
        read: &Arc<v1::ReadOutput>,
        ending: bool,
    ) -> Result<bool, Broken> {
        if !ending {
            self.word_or(tokio::time::sleep(MISSING_POLL)).await?;
            return Ok(true);
        }
        let (place, wanted) = (Arc::clone(place), Arc::clone(read));
        file::blocking(move || file::why_missing(&place.home.runs(), &wanted)).await?;
        self.end(0).await
    }

    async fn send_piece(&mut self, at: &mut u64, piece: Piece) -> Result<(), RelayError> {
        let Piece { offset, cut, data } = piece;
        let end = offset + data.len() as u64;
        self.send(Up::Piece(v1::BulkPiece { offset, data: data.into(), cut })).await?;
        self.credits -= 1;
        *at = end;
        Ok(())
    }

    async fn end(&mut self, size: u64) -> Result<bool, Broken> {
        self.send(Up::End(v1::BulkEnd { size })).await?;
        Ok(false)
    }

    /// Tells the reader why there is no (more) output.
    pub async fn fail(&mut self, message: String, gone: bool) -> Result<(), RelayError> {
        self.send(Up::Error(v1::BulkError { message, gone })).await
    }

    /// Waits until the peer has read all: to drop its half earlier would reset the stream, and with
    /// it the pieces on their way.
    pub async fn finish(self) -> Result<(), RelayError> {
        let Relay { up, mut down, .. } = self;
        drop(up);
        while down.message().await?.is_some() {}
        Ok(())
    }

    async fn send(&mut self, kind: Up) -> Result<(), RelayError> {
        let message = v1::BulkUp { request: self.request, kind: Some(kind) };
        self.up.send(message).await.map_err(|_| RelayError::PeerEnded)
    }

    fn take_waiting(&mut self) -> Result<(), RelayError> {
        while let Some(message) = self.down.message().now_or_never() {
            self.take(message?)?;
        }
        Ok(())
    }

    async fn wait_for_word(&mut self) -> Result<(), RelayError> {
        let message = self.down.message().await?;
        self.take(message)
    }

    async fn word_or(&mut self, other: impl Future<Output = ()>) -> Result<(), RelayError> {
        tokio::select! {
            message = self.down.message() => self.take(message?),
            () = other => Ok(()),
        }
    }

    fn take(&mut self, message: Option<v1::BulkDown>) -> Result<(), RelayError> {
        match message.ok_or(RelayError::PeerEnded)?.kind {
            Some(v1::bulk_down::Kind::Credit(credit)) => {
                self.credits = self.credits.saturating_add(credit.pieces);
            }
            Some(v1::bulk_down::Kind::Stop(stop)) => self.stop = Some(stop),
            Some(v1::bulk_down::Kind::Read(_)) | None => {}
        }
        Ok(())
    }
}

/// What went wrong: with the file, which the reader is told, or with the call.
enum Broken {
    Output(OutputError),
    Relay(RelayError),
}

impl From<OutputError> for Broken {
    fn from(error: OutputError) -> Self {
        Broken::Output(error)
    }
}

impl From<RelayError> for Broken {
    fn from(error: RelayError) -> Self {
        Broken::Relay(error)
    }
}
