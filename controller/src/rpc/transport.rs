//! Accepted connections, wrapped below HTTP/2 (design 5, "Who ended the connection"): TCP, Unix
//! socket or memory alike. The wrapper records what it saw FIRST: the peer's FIN, the peer's
//! reset, our own close, or another failure; and who the peer is, looked up once at accept.

use super::identity::{Caller, Gate, Stranger};
use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc};
use tonic::transport::server::Connected;

/// Lookups of identities that may run at once. A slow user database must not hold up the other
/// connections; beyond this number new ones wait in the kernel's accept queue.
const LOOKUPS_MAX: usize = 64;

/// A lookup that takes longer is given up: the peer is told, and may use docket.sock.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed accept (no descriptors left, mostly): trying again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from. All three are served alike.
pub struct Sources {
    /// Loopback (or, with mTLS or tokens, any) TCP.
    pub tcp: Option<std::net::TcpListener>,
    /// Loopback TCP for HTTP: metrics.
    pub http: Option<std::net::TcpListener>,
    /// `DIR/docket.sock`.
    pub unix: Option<std::os::unix::net::UnixListener>,
    /// Streams from within the process: the embedded agent and command.
    pub memory: mpsc::Receiver<DuplexStream>,
}

/// What ended a connection, as its socket saw it first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// End of file: the peer closed, or its kernel did when it died.
    PeerFin,
    /// Connection reset by the peer.
    PeerReset,
    /// We shut it down or dropped it.
    Local,
    /// Anything else, such as a time-out of the network: proves nothing about the peer.
    Failed,
}

/// The first [`Ending`] of one connection; clones look at the same record.
#[derive(Clone, Debug, Default)]
pub struct EndRecord(Arc<Record>);

#[derive(Debug, Default)]
struct Record {
    first: OnceLock<Ending>,
    noted: Notify,
}

impl EndRecord {
    /// What was seen first, or `None` while the connection lives.
    pub fn get(&self) -> Option<Ending> {
        self.0.first.get().copied()
    }

    /// Waits for the end of the connection.
    pub async fn wait(&self) -> Ending {
        loop {
            let noted = self.0.noted.notified();
            if let Some(ending) = self.get() {
                return ending;
            }
            noted.await;
        }
    }

    fn note(&self, ending: Ending) {
        // Only the first counts: an error here means that there was one before.
        if self.0.first.set(ending).is_ok() {
            self.0.noted.notify_waiters();
        }
    }
}

/// What every request knows of its connection: in the request's extensions.
#[derive(Clone, Debug)]
pub struct Peer {
    /// For people: `127.0.0.1:50000`, `unix`, `memory`.
    pub address: String,
    /// Who it is, or why it is served by nobody.
    pub caller: Result<Caller, Stranger>,
    /// How the connection ended, once it has.
    pub ending: EndRecord,
}

/// An accepted connection.
pub struct Accepted {
    io: Io,
    peer: Peer,
}

enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
    Memory(DuplexStream),
}

/// All connections of all sources, each with its identity. It ends when every source has ended;
/// a failed accept is logged and tried again.
///
/// # Errors
/// A listener that cannot be registered with the runtime.
pub fn incoming(
    sources: Sources,
    gate: Gate,
) -> io::Result<impl Stream<Item = io::Result<Accepted>> + Send + 'static> {
    let mut accepts: Vec<BoxStream<'static, Io>> = vec![memory_streams(sources.memory).boxed()];
    if let Some(listener) = sources.tcp {
        listener.set_nonblocking(true)?;
        accepts.push(tcp_streams(TcpListener::from_std(listener)?).boxed());
    }
    if let Some(listener) = sources.unix {
        listener.set_nonblocking(true)?;
        accepts.push(unix_streams(UnixListener::from_std(listener)?).boxed());
    }
    Ok(identified(stream::select_all(accepts), gate))
}

/// The connections of one TCP listener, each with its identity.
///
/// # Errors
/// A listener that cannot be registered with the runtime.
pub fn of_tcp(
    listener: std::net::TcpListener,
    gate: Gate,
) -> io::Result<impl Stream<Item = io::Result<Accepted>> + Send + 'static> {
    listener.set_nonblocking(true)?;
    Ok(identified(tcp_streams(TcpListener::from_std(listener)?), gate))
}

fn identified(
    accepts: impl Stream<Item = Io> + Send + 'static,
    gate: Gate,
) -> impl Stream<Item = io::Result<Accepted>> + Send + 'static {
    let gate = Arc::new(gate);
    accepts.map(move |io| identify(io, Arc::clone(&gate))).buffer_unordered(LOOKUPS_MAX).map(Ok)
}

fn memory_streams(source: mpsc::Receiver<DuplexStream>) -> impl Stream<Item = Io> {
    stream::unfold(source, |mut source| async {
        let io = source.recv().await?;
        Some((Io::Memory(io), source))
    })
}

fn tcp_streams(listener: TcpListener) -> impl Stream<Item = Io> {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((io, _)) => return Some((Io::Tcp(io), listener)),
                Err(error) => accept_failed("TCP", &error).await,
            }
        }
    })
}

fn unix_streams(listener: UnixListener) -> impl Stream<Item = Io> {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((io, _)) => return Some((Io::Unix(io), listener)),
                Err(error) => accept_failed("docket.sock", &error).await,
            }
        }
    })
}

async fn accept_failed(source: &str, error: &io::Error) {
    tracing::warn!(source, %error, "cannot accept a connection, trying again");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

async fn identify(io: Io, gate: Arc<Gate>) -> Accepted {
    let (address, caller) = match &io {
        Io::Memory(_) => ("memory".to_string(), ask(move || gate.of_memory()).await),
        Io::Unix(socket) => ("unix".to_string(), unix_caller(socket, gate).await),
        Io::Tcp(socket) => tcp_caller(socket, gate).await,
    };
    if let Err(stranger) = &caller {
        tracing::warn!(peer = address, reason = %stranger, "serving nobody on this connection");
    }
    Accepted { io, peer: Peer { address, caller, ending: EndRecord::default() } }
}

async fn unix_caller(socket: &UnixStream, gate: Arc<Gate>) -> Result<Caller, Stranger> {
    match socket.peer_cred() {
        Ok(peer) => ask(move || gate.admit(peer.uid())).await,
        Err(e) => Err(Stranger::Lookup { why: format!("SO_PEERCRED: {e}") }),
    }
}

async fn tcp_caller(socket: &TcpStream, gate: Arc<Gate>) -> (String, Result<Caller, Stranger>) {
    // Orders and facts are small and must not wait for Nagle.
    let addresses =
        socket.set_nodelay(true).and_then(|()| Ok((socket.local_addr()?, socket.peer_addr()?)));
    match addresses {
        Ok((local, peer)) => (peer.to_string(), ask(move || gate.of_tcp(local, peer)).await),
        Err(e) => {
            ("tcp".to_string(), Err(Stranger::Lookup { why: format!("the accepted socket: {e}") }))
        }
    }
}

/// Runs a lookup that may block where it blocks nobody else.
async fn ask(
    lookup: impl FnOnce() -> Result<Caller, Stranger> + Send + 'static,
) -> Result<Caller, Stranger> {
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::task::spawn_blocking(lookup)).await;
    match answer {
        Ok(Ok(caller)) => caller,
        Ok(Err(e)) => Err(Stranger::Lookup { why: format!("the lookup failed: {e}") }),
        Err(_) => Err(Stranger::Lookup {
            why: format!("the user database did not answer within {LOOKUP_TIMEOUT:?}"),
        }),
    }
}

impl Connected for Accepted {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl Accepted {
    /// Why it is served by nobody, if it is.
    pub fn stranger(&self) -> Option<&Stranger> {
        self.peer.caller.as_ref().err()
    }

    /// Takes note of an error and passes it on.
    fn saw<T>(&self, answer: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &answer {
            self.peer.ending.note(match error.kind() {
                io::ErrorKind::ConnectionReset => Ending::PeerReset,
                // Writing to a Unix socket or pipe whose other end is closed. On TCP the reset
                // that must have come before it was recorded first.
                io::ErrorKind::BrokenPipe => Ending::PeerFin,
                _ => Ending::Failed,
            });
        }
        answer
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buf.filled().len(), buf.remaining());
        let answer = match &mut self.io {
            Io::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            Io::Unix(io) => Pin::new(io).poll_read(cx, buf),
            Io::Memory(io) => Pin::new(io).poll_read(cx, buf),
        };
        if matches!(answer, Poll::Ready(Ok(()))) && room > 0 && buf.filled().len() == before {
            self.peer.ending.note(Ending::PeerFin);
        }
        self.saw(answer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let answer = match &mut self.io {
            Io::Tcp(io) => Pin::new(io).poll_write(cx, bytes),
            Io::Unix(io) => Pin::new(io).poll_write(cx, bytes),
            Io::Memory(io) => Pin::new(io).poll_write(cx, bytes),
        };
        self.saw(answer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let answer = match &mut self.io {
            Io::Tcp(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Io::Unix(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Io::Memory(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        };
        self.saw(answer)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Tcp(io) => io.is_write_vectored(),
            Io::Unix(io) => io.is_write_vectored(),
            Io::Memory(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = match &mut self.io {
            Io::Tcp(io) => Pin::new(io).poll_flush(cx),
            Io::Unix(io) => Pin::new(io).poll_flush(cx),
            Io::Memory(io) => Pin::new(io).poll_flush(cx),
        };
        self.saw(answer)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.peer.ending.note(Ending::Local);
        match &mut self.io {
            Io::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Io::Unix(io) => Pin::new(io).poll_shutdown(cx),
            Io::Memory(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.peer.ending.note(Ending::Local);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code: a surprise must end the test")]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn no_sources() -> (mpsc::Sender<DuplexStream>, Sources) {
        let (memory_in, memory) = mpsc::channel(4);
        (memory_in, Sources { tcp: None, http: None, unix: None, memory })
    }

    fn gate() -> Gate {
        Gate::of_this_process([])
    }

    /// A server end over TCP, its client end, and its record.
    async fn tcp_pair() -> (Accepted, TcpStream, EndRecord) {
        let (_memory, mut sources) = no_sources();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        sources.tcp = Some(listener);
        let mut incoming = Box::pin(incoming(sources, gate()).unwrap());
        let client = TcpStream::connect(address).await.unwrap();
        let accepted = incoming.next().await.unwrap().unwrap();
        let record = accepted.peer.ending.clone();
        (accepted, client, record)
    }

    #[tokio::test]
    async fn a_peer_that_closes_is_a_fin() {
        let (mut server, client, record) = tcp_pair().await;
        assert_eq!(record.get(), None);
        drop(client);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(record.get(), Some(Ending::PeerFin));
        drop(server);
        assert_eq!(record.get(), Some(Ending::PeerFin), "only the first counts");
    }

    #[tokio::test]
    async fn a_peer_that_closes_with_unread_bytes_is_a_reset() {
        let (mut server, client, record) = tcp_pair().await;
        server.write_all(b"never read").await.unwrap();
        client.readable().await.unwrap();
        drop(client);
        assert!(server.read(&mut [0; 8]).await.is_err());
        assert_eq!(record.get(), Some(Ending::PeerReset));
    }

    #[tokio::test]
    async fn our_own_close_and_our_own_drop_are_local() {
        let (mut server, client, record) = tcp_pair().await;
        server.shutdown().await.unwrap();
        drop(client);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(record.get(), Some(Ending::Local));
        let (server, _client, record) = tcp_pair().await;
        drop(server);
        assert_eq!(record.get(), Some(Ending::Local));
    }

    #[tokio::test]
    async fn a_loopback_connection_has_the_uid_of_its_peer_and_no_delay() {
        let (server, _client, _) = tcp_pair().await;
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(server.peer.caller.as_ref().map(|caller| caller.uid), Ok(uid));
        assert!(matches!(&server.io, Io::Tcp(io) if io.nodelay().unwrap()));
    }

    #[tokio::test]
    async fn a_unix_connection_has_the_uid_of_its_peer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docket.sock");
        let (_memory, mut sources) = no_sources();
        sources.unix = Some(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let mut incoming = Box::pin(incoming(sources, gate()).unwrap());
        let client = UnixStream::connect(&path).await.unwrap();
        let mut server = incoming.next().await.unwrap().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(server.peer.caller.as_ref().map(|caller| caller.uid), Ok(uid));
        drop(client);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(server.peer.ending.get(), Some(Ending::PeerFin));
    }

    #[tokio::test]
    async fn in_memory_a_dropped_peer_is_a_fin() {
        let (memory, sources) = no_sources();
        let mut incoming = Box::pin(incoming(sources, gate()).unwrap());
        let (ours, theirs) = tokio::io::duplex(64);
        memory.send(theirs).await.unwrap();
        let mut server = incoming.next().await.unwrap().unwrap();
        assert!(server.peer.caller.as_ref().is_ok_and(|caller| caller.admin));
        drop(ours);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(server.peer.ending.get(), Some(Ending::PeerFin));
        drop((memory, server));
        assert!(incoming.next().await.is_none(), "no source is left");
    }
}
