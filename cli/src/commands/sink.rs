//! A job's output on its way to stdout or stderr: byte-exact, in flat memory. A thread of its own
//! writes, so that a reader that is slow or stuck never blocks the rest.

use crate::say::note;
use prost::bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pieces that wait for the writer: as many as the server sends ahead.
const AHEAD: usize = 4;

/// Which stream of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// What waits for the writer.
enum Item {
    /// Of the output.
    Piece(Bytes),
    /// Said on stderr between the pieces before and behind it.
    Remark(String),
}

/// The near end; dropping it lets the writer finish.
pub struct Sink {
    pieces: mpsc::Sender<Item>,
    accepted: AtomicU64,
    written: Arc<AtomicU64>,
    writer: JoinHandle<io::Result<()>>,
}

/// The writer has stopped; [`Sink::close`] tells why.
#[derive(Debug, PartialEq, Eq)]
pub struct Stopped;

impl Sink {
    /// Opens a stream of this process.
    pub fn open(stream: Stream) -> io::Result<Sink> {
        let fd = match stream {
            Stream::Stdout => std::io::stdout().as_fd().try_clone_to_owned()?,
            Stream::Stderr => std::io::stderr().as_fd().try_clone_to_owned()?,
        };
        Ok(Sink::to(fd))
    }

    fn to(fd: OwnedFd) -> Sink {
        let (pieces, queue) = mpsc::channel(AHEAD);
        let written = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&written);
        let writer = tokio::task::spawn_blocking(move || write_all(File::from(fd), queue, &count));
        Sink { pieces, accepted: AtomicU64::new(0), written, writer }
    }

    /// Hands a piece to the writer; waits while too many are ahead.
    pub async fn write(&self, piece: Bytes) -> Result<(), Stopped> {
        self.accepted.fetch_add(piece.len() as u64, Ordering::Relaxed);
        self.pieces.send(Item::Piece(piece)).await.map_err(|_| Stopped)
    }

    /// Says something about this place of the output, once what is before it is written. Not a byte
    /// of the output itself.
    pub async fn remark(&self, text: String) -> Result<(), Stopped> {
        self.pieces.send(Item::Remark(text)).await.map_err(|_| Stopped)
    }

    /// Bytes accepted, and whether all of them were taken by the reader.
    pub fn progress(&self) -> (u64, bool) {
        let accepted = self.accepted.load(Ordering::Relaxed);
        (accepted, accepted == self.written.load(Ordering::Relaxed))
    }

    /// Waits until everything is written, or tells why it cannot be.
    pub async fn close(self) -> io::Result<()> {
        drop(self.pieces);
        self.writer.await.map_err(io::Error::other)?
    }
}

fn write_all(mut to: File, mut queue: mpsc::Receiver<Item>, written: &AtomicU64) -> io::Result<()> {
    while let Some(item) = queue.blocking_recv() {
        let piece = match item {
            Item::Piece(piece) => piece,
            Item::Remark(text) => {
                note(&text);
                continue;
            }
        };
        let mut rest = &piece[..];
        while !rest.is_empty() {
            match to.write(rest) {
                Ok(count) => {
                    rest = &rest[count..];
                    written.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Somebody who shares the descriptor made it non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&to, PollFlags::OUT)], None)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// A sink whose bytes a test reads back.
#[cfg(test)]
pub fn to_pipe() -> (Sink, File) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    (Sink::to(write), File::from(read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[tokio::test]
    async fn every_byte_arrives_in_order() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&write, true).unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            File::from(read).read_to_end(&mut all).unwrap();
            all
        });
        let sink = Sink::to(write);
        let piece: Vec<u8> = (0..=255u8).cycle().take(300_000).collect();
        for _ in 0..5 {
            sink.write(Bytes::from(piece.clone())).await.unwrap();
        }
        sink.close().await.unwrap();
        assert!(reader.join().unwrap() == piece.repeat(5));
    }

    #[tokio::test]
    async fn a_reader_that_left_is_told_as_a_broken_pipe() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        drop(read);
        let sink = Sink::to(write);
        let mut stopped = Ok(());
        while stopped.is_ok() {
            stopped = sink.write(Bytes::from_static(b"y\n")).await;
        }
        let error = sink.close().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
