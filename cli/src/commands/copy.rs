//! One output of one job, from the server to a sink, resumed by offset after every broken stream.

use super::sink::{Sink, Stopped};
use crate::client::{Backoff, Client, ClientError, Patience};
use crate::say::note;
use prost::bytes::Bytes;
use proto::v1::{LogPiece, LogsRequest};
use std::time::Duration;
use tonic::Status;

/// Longest wait for a stream to open: the node's agent has to be asked.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a copy did not come to its end.
#[derive(Debug)]
pub enum CopyError {
    /// The server, or the node that holds the output.
    Client(ClientError),
    /// The sink takes no more.
    Stopped,
}

impl From<Stopped> for CopyError {
    fn from(Stopped: Stopped) -> Self {
        CopyError::Stopped
    }
}

impl From<ClientError> for CopyError {
    fn from(error: ClientError) -> Self {
        CopyError::Client(error)
    }
}

/// Copies until the server says that this was the last byte; gives how many bytes between the first
/// and the last were not there any more. Each such place is told where it is, on stderr.
pub async fn copy(
    client: &mut Client,
    mut request: LogsRequest,
    sink: &Sink,
    patience: Patience,
) -> Result<u64, CopyError> {
    let mut all_cut = 0;
    let mut backoff = Backoff::new(patience, note);
    loop {
        let lost = match open(client, &request).await {
            Err(status) => status,
            Ok(mut stream) => loop {
                match stream.message().await {
                    Err(status) => break status,
                    Ok(None) => {
                        break Status::unavailable("the stream ended before the output did");
                    }
                    Ok(Some(piece)) => {
                        backoff.reset();
                        let end = piece.end;
                        let (begin, cut) = (request.offset, cut_before(&request, &piece));
                        if cut > 0 {
                            all_cut += cut;
                            sink.remark(cut_note(begin.max(piece.offset - cut), cut)).await?;
                        }
                        if let Some(bytes) = take(&mut request, piece) {
                            sink.write(bytes).await?;
                        }
                        if end {
                            return Ok(all_cut);
                        }
                    }
                }
            },
        };
        backoff.failed(client, &lost).await?;
    }
}

/// Bytes that the reader misses before this piece, since its node took them out.
fn cut_before(request: &LogsRequest, piece: &LogPiece) -> u64 {
    // The first piece of a tail says where the tail begins.
    if request.tail_lines.is_some() {
        return piece.cut.min(piece.offset);
    }
    piece.cut.min(piece.offset.saturating_sub(request.offset))
}

fn cut_note(begin: u64, bytes: u64) -> String {
    format!(
        "{bytes} bytes are cut out here, from byte {begin} to {}: the output grew over its node's \
         output_max",
        begin + bytes
    )
}

/// The new bytes of a piece; from here on the request asks for what follows them.
fn take(request: &mut LogsRequest, piece: LogPiece) -> Option<Bytes> {
    let LogPiece { offset, data, .. } = piece;
    let known = request.offset.saturating_sub(offset);
    let known = usize::try_from(known).unwrap_or(usize::MAX).min(data.len());
    // The first piece of a tail says where the tail begins.
    let known = if request.tail_lines.take().is_some() { 0 } else { known };
    request.offset = request.offset.max(offset + data.len() as u64);
    let new = data.slice(known..);
    (!new.is_empty()).then_some(new)
}

async fn open(
    client: &Client,
    request: &LogsRequest,
) -> Result<tonic::Streaming<LogPiece>, Status> {
    let mut jobs = client.jobs();
    match tokio::time::timeout(OPEN_TIMEOUT, jobs.logs(*request)).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::unavailable("no answer in 30 s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, data: &[u8]) -> LogPiece {
        LogPiece { offset, data: Bytes::copy_from_slice(data), ..LogPiece::default() }
    }

    #[test]
    fn a_resumed_stream_neither_repeats_nor_skips() {
        let mut request = LogsRequest::default();
        assert_eq!(take(&mut request, piece(0, b"abc")), Some(Bytes::from_static(b"abc")));
        assert_eq!(take(&mut request, piece(1, b"bcde")), Some(Bytes::from_static(b"de")));
        assert_eq!(take(&mut request, piece(0, b"ab")), None);
        assert_eq!(request.offset, 5);
        // A hole in the middle of an output that was too long: offsets stay.
        let cut = LogPiece { cut: 95, ..piece(100, b"z") };
        assert_eq!(cut_before(&request, &cut), 95);
        assert_eq!(take(&mut request, cut), Some(Bytes::from_static(b"z")));
        assert_eq!(request.offset, 101);
    }

    #[test]
    fn what_was_cut_is_counted_once_and_from_where_the_reader_is() {
        let request = LogsRequest { offset: 70, ..LogsRequest::default() };
        let cut = LogPiece { cut: 95, ..piece(100, b"z") };
        assert_eq!(cut_before(&request, &cut), 30, "told before the stream broke");
        assert_eq!(cut_before(&LogsRequest { offset: 100, ..request }, &cut), 0);
        assert_eq!(
            cut_before(&LogsRequest { tail_lines: Some(1), offset: 0, ..request }, &cut),
            95
        );
        // The last words of a job whose node is away: what is before them is not cut.
        assert_eq!(cut_before(&request, &piece(900, b"xy")), 0);
        let said = cut_note(5, 95);
        assert!(said.starts_with("95 bytes are cut out here, from byte 5 to 100:"), "{said}");
    }

    #[test]
    fn a_tail_begins_where_its_first_piece_says() {
        let mut request = LogsRequest { tail_lines: Some(2), ..LogsRequest::default() };
        assert_eq!(take(&mut request, piece(900, b"xy")), Some(Bytes::from_static(b"xy")));
        assert_eq!((request.offset, request.tail_lines), (902, None));
    }

    #[tokio::test]
    async fn a_broken_stream_goes_on_where_it_broke() {
        use super::super::fake::Fake;
        use super::super::sink::to_pipe;
        let fake = Fake::default();
        let last = LogPiece { end: true, ..piece(5, b"") };
        fake.0.lock().unwrap().logs = [
            vec![Ok(piece(0, b"abc"))],
            vec![Err(Status::unavailable("stopping"))],
            vec![Ok(piece(3, b"de")), Ok(last)],
        ]
        .into();
        let mut client = fake.serve();
        let (sink, read) = to_pipe();
        let request = LogsRequest { job: 1, follow: true, ..LogsRequest::default() };
        let cut = copy(&mut client, request, &sink, Patience::ENDLESS).await.unwrap();
        assert_eq!(cut, 0);
        sink.close().await.unwrap();
        assert_eq!(std::io::read_to_string(read).unwrap(), "abcde");
        assert_eq!(fake.0.lock().unwrap().offsets, [0, 3, 3]);
    }
}
