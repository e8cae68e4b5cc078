//! The keeper's wire: a u32 length, little-endian, then one prost message. The codec, the socket
//! (reached through a directory descriptor, so that a long DIR works), the server's connections, and
//! a small blocking client.

use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message;
use proto::v1::{KeeperEvent, KeeperRequest, keeper_event, keeper_request};
use rustix::fs::{Mode, OFlags};

use super::sys;

/// The longest message either side takes: a run with a specification and stdin of 1 MiB each fits.
pub const MESSAGE_MAX_BYTES: usize = 4 << 20;

const LENGTH_BYTES: usize = 4;

/// Name of the socket in the data directory.
const SOCKET_NAME: &str = "keeper.sock";

/// Bytes read from one connection per turn, so that a busy client does not starve the children.
const READ_PER_TURN_BYTES: usize = 256 << 10;

/// A message longer than [`MESSAGE_MAX_BYTES`], or one that is none.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Its length says more than the limit.
    #[error("a message of {bytes} bytes is over the limit of {MESSAGE_MAX_BYTES}")]
    TooLong {
        /// That length.
        bytes: usize,
    },
    /// The bytes are no message of this protocol.
    #[error("not a message of this protocol: {0}")]
    Decode(#[from] prost::DecodeError),
}

/// Appends one framed message.
pub fn encode(message: &impl Message, out: &mut Vec<u8>) {
    let bytes = message.encoded_len() as u32;
    out.extend_from_slice(&bytes.to_le_bytes());
    // Only a fixed buffer can be too short; a vector grows.
    let _ = message.encode(out);
}

/// Bytes on their way to becoming messages.
#[derive(Debug)]
pub struct Decoder<M> {
    bytes: Vec<u8>,
    taken: usize,
    message: PhantomData<M>,
}

impl<M: Message + Default> Decoder<M> {
    /// Nothing read yet.
    pub fn new() -> Self {
        Decoder { bytes: Vec::new(), taken: 0, message: PhantomData }
    }

    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message. After an error the connection is of no more use.
    ///
    /// # Errors
    /// [`WireError`]: too long, or not of this protocol.
    pub fn next_message(&mut self) -> Result<Option<M>, WireError> {
        let rest = &self.bytes[self.taken..];
        let Some((length, body)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_MAX_BYTES {
            return Err(WireError::TooLong { bytes: length });
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let message = M::decode(body)?;
        self.taken += LENGTH_BYTES + length;
        Ok(Some(message))
    }
}

impl<M: Message + Default> Default for Decoder<M> {
    fn default() -> Self {
        Decoder::new()
    }
}

/// Connects to the keeper of this data directory.
///
/// # Errors
/// What the system says; `NotFound` or `ConnectionRefused` while no keeper listens.
pub fn dial(dir: &Path) -> io::Result<UnixStream> {
    let dir = open_dir(dir)?;
    UnixStream::connect(socket_path(dir.as_fd()))
}

fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?)
}

/// A socket address holds about 100 bytes; this is short whatever DIR is.
fn socket_path(dir: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}/{SOCKET_NAME}", dir.as_raw_fd())
}

/// Listens in the data directory, over the socket file that an earlier keeper left. The caller
/// holds the lock.
pub(crate) fn listen(dir: BorrowedFd<'_>) -> io::Result<UnixListener> {
    match rustix::fs::unlinkat(dir, SOCKET_NAME, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let listener = UnixListener::bind(socket_path(dir));
    rustix::process::umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The listener that the program before this one had: who dials meanwhile waits in its queue.
pub(crate) fn inherited(fd: OwnedFd) -> io::Result<UnixListener> {
    let listener = UnixListener::from(fd);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// One accepted connection.
pub(crate) struct Connection {
    stream: UnixStream,
    decoder: Decoder<KeeperRequest>,
    out: Vec<u8>,
    sent: usize,
    /// It said Hello and no newer one did: only then are its orders taken.
    pub greeted: bool,
    /// The position of the next fact to send.
    pub next_fact: u64,
    /// What is waited for: input, room to write.
    pub interest: (bool, bool),
}

/// What reading a connection gave.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Reading {
    /// All that came was taken.
    Drained,
    /// There is more: look again next turn.
    More,
    /// The peer is gone.
    Closed,
}

impl Connection {
    /// Takes a connection of this user or root; others are told nothing.
    pub(crate) fn accept(listener: &UnixListener) -> io::Result<Option<Connection>> {
        let (stream, _) = listener.accept()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let (own, _) = sys::own_ids();
        if peer.uid.as_raw() != own && !peer.uid.is_root() {
            return Ok(None);
        }
        stream.set_nonblocking(true)?;
        Ok(Some(Connection {
            stream,
            decoder: Decoder::new(),
            out: Vec::new(),
            sent: 0,
            greeted: false,
            next_fact: u64::MAX,
            interest: (true, false),
        }))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads what is there, up to one turn's share.
    pub(crate) fn read(&mut self) -> Reading {
        let mut chunk = vec![0; 64 << 10];
        let mut read = 0;
        while read < READ_PER_TURN_BYTES {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Reading::Closed,
                Ok(n) => {
                    self.decoder.push(&chunk[..n]);
                    read += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Reading::Drained,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Reading::Closed,
            }
        }
        Reading::More
    }

    /// The next whole request that was read.
    pub(crate) fn next_request(&mut self) -> Result<Option<keeper_request::Kind>, WireError> {
        while let Some(request) = self.decoder.next_message()? {
            // An unknown kind is one of a later release: nothing that this one could do.
            if request.kind.is_some() {
                return Ok(request.kind);
            }
        }
        Ok(None)
    }

    /// Queues an event; [`Connection::flush`] sends it.
    pub(crate) fn push(&mut self, kind: keeper_event::Kind) {
        encode(&KeeperEvent { kind: Some(kind) }, &mut self.out);
    }

    /// Bytes that wait for the peer to read.
    pub(crate) fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what the peer takes without blocking. An error: it is gone.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.pending() > 0 {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }
}

/// A blocking client: for tools and tests. It is the keeper's one client from its Hello on.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    decoder: Decoder<KeeperEvent>,
}

impl Client {
    /// Connects; says nothing yet.
    ///
    /// # Errors
    /// See [`dial`].
    pub fn connect(dir: &Path) -> io::Result<Client> {
        Ok(Client { stream: dial(dir)?, decoder: Decoder::new() })
    }

    /// Sends one request.
    ///
    /// # Errors
    /// The keeper is gone.
    pub fn send(&mut self, kind: keeper_request::Kind) -> io::Result<()> {
        let mut out = Vec::new();
        encode(&KeeperRequest { kind: Some(kind) }, &mut out);
        self.stream.write_all(&out)
    }

    /// The next event, `None` if none came in this time.
    ///
    /// # Errors
    /// `UnexpectedEof` when the keeper closed the connection; `InvalidData` for what is no event.
    pub fn receive(&mut self, at_most: Duration) -> io::Result<Option<keeper_event::Kind>> {
        let until = Instant::now() + at_most;
        let mut chunk = vec![0; 64 << 10];
        loop {
            let message = self.decoder.next_message();
            let message = message.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            if let Some(kind) = message.and_then(|event| event.kind) {
                return Ok(Some(kind));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.decoder.push(&chunk[..n]),
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
                {
                    return Ok(None);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use proto::v1::KeeperPing;

    fn ping(nonce: u64) -> KeeperRequest {
        KeeperRequest { kind: Some(keeper_request::Kind::Ping(KeeperPing { nonce })) }
    }

    #[test]
    fn messages_come_out_whole_however_the_bytes_come_in() {
        let mut bytes = Vec::new();
        for nonce in 0..50 {
            encode(&ping(nonce), &mut bytes);
        }
        for step in [1, 3, 7, 64, bytes.len()] {
            let mut decoder = Decoder::<KeeperRequest>::new();
            let mut seen = Vec::new();
            for chunk in bytes.chunks(step) {
                decoder.push(chunk);
                while let Some(message) = decoder.next_message().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, (0..50).map(ping).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
        let mut decoder = Decoder::<KeeperRequest>::new();
        decoder.push(&(MESSAGE_MAX_BYTES as u32 + 1).to_le_bytes());
        assert!(matches!(decoder.next_message(), Err(WireError::TooLong { .. })));
        let mut decoder = Decoder::<KeeperRequest>::new();
        decoder.push(&[2, 0, 0, 0, 0xff, 0xff]);
        assert!(matches!(decoder.next_message(), Err(WireError::Decode(_))));
    }
}
