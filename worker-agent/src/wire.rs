//! Connections to the controller, and the socket that never closes by itself.
//!
//! To a leader the end of a session's socket is proof that the agent's process died (design 3,
//! RDHUP), and HTTP/2 closes its socket whenever it gives a connection up. So the wrapper's shutdown
//! does nothing, and a duplicate of the descriptor keeps the connection open after the wrapper is
//! dropped: only the end of the process, or an explicit release, can send a FIN.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use worker_agent_core::Target;

/// How the agent reaches its controllers.
#[derive(Clone, Debug)]
pub enum Connector {
    /// `host:port` of the voters; any of them names the leader.
    Tcp(Vec<String>),
    /// A controller's socket on this machine.
    Unix(PathBuf),
    /// The controller of this process: it takes the other end of a memory stream.
    Memory(mpsc::Sender<DuplexStream>),
}

/// A dial that failed.
#[derive(Debug, Error)]
pub enum DialError {
    /// Refused, unreachable, unknown host.
    #[error("cannot connect to {address}: {source}")]
    Io {
        /// Whom.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Neither accepted nor refused.
    #[error("{address} did not accept a connection within {DIAL_TIMEOUT:?}")]
    TimedOut {
        /// Whom.
        address: String,
    },
    /// The configuration names nobody.
    #[error("no controller is named: give --controllers HOST:PORT")]
    Nobody,
    /// The embedded controller is gone.
    #[error("the controller of this process has ended")]
    Gone,
}

/// A SYN to a host that is down is answered by nobody; several tries of the kernel fit in this.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Buffer of a memory stream: one HTTP/2 window of bulk bytes.
const MEMORY_STREAM_BYTES: usize = 1 << 20;

/// A connection as dialled.
pub enum Wire {
    /// To `host:port`.
    Tcp(TcpStream),
    /// To a local socket.
    Unix(UnixStream),
    /// Within the process.
    Memory(DuplexStream),
}

impl Connector {
    /// Dials whom the core chose. Sockets of tokio are close-on-exec.
    pub async fn dial(&self, target: &Target) -> Result<Wire, DialError> {
        match self {
            Connector::Tcp(list) => dial_tcp(&address_of(list, target)?).await,
            Connector::Unix(path) => dial_unix(path).await,
            Connector::Memory(controller) => {
                let (ours, theirs) = tokio::io::duplex(MEMORY_STREAM_BYTES);
                controller.send(theirs).await.map_err(|_| DialError::Gone)?;
                Ok(Wire::Memory(ours))
            }
        }
    }
}

fn address_of(list: &[String], target: &Target) -> Result<String, DialError> {
    let address = match target {
        Target::Leader(address) => address,
        Target::Listed(n) => {
            let count = u64::try_from(list.len()).unwrap_or(u64::MAX);
            let index = n.checked_rem(count).ok_or(DialError::Nobody)?;
            &list[usize::try_from(index).unwrap_or(0)]
        }
    };
    Ok(address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/').to_owned())
}

async fn dial_tcp(address: &str) -> Result<Wire, DialError> {
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        // Orders and facts are small and must not wait for Nagle.
        stream.set_nodelay(true)?;
        Ok(Wire::Tcp(stream))
    };
    within(address, connect).await
}

async fn dial_unix(path: &Path) -> Result<Wire, DialError> {
    let connect = async {
        // Through a descriptor of the directory: a socket's path may have 107 bytes only.
        let dir = rustix::fs::open(
            path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")),
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        UnixStream::connect(through(&dir, Path::new(name))).await.map(Wire::Unix)
    };
    within(&path.display().to_string(), connect).await
}

/// A path into the directory behind a descriptor, short whatever the directory's own path is.
pub fn through(dir: &impl AsFd, name: &Path) -> PathBuf {
    use std::os::fd::AsRawFd;
    Path::new("/proc/self/fd").join(dir.as_fd().as_raw_fd().to_string()).join(name)
}

async fn within(
    address: &str,
    connect: impl Future<Output = io::Result<Wire>>,
) -> Result<Wire, DialError> {
    let address = address.to_owned();
    match tokio::time::timeout(DIAL_TIMEOUT, connect).await {
        Ok(Ok(wire)) => Ok(wire),
        Ok(Err(source)) => Err(DialError::Io { address, source }),
        Err(_) => Err(DialError::TimedOut { address }),
    }
}

impl Wire {
    /// Own address of the connection, for the join; empty where there is none.
    pub fn own_address(&self) -> String {
        match self {
            Wire::Tcp(stream) => {
                stream.local_addr().as_ref().map(SocketAddr::to_string).unwrap_or_default()
            }
            Wire::Unix(_) | Wire::Memory(_) => String::new(),
        }
    }

    /// A duplicate of the descriptor (close-on-exec) that keeps the connection open; none within
    /// the process, where both ends die together.
    pub fn hold(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Wire::Tcp(stream) => stream.as_fd().try_clone_to_owned().map(Some),
            Wire::Unix(stream) => stream.as_fd().try_clone_to_owned().map(Some),
            Wire::Memory(_) => Ok(None),
        }
    }
}

/// A wire whose shutdown does nothing.
pub struct StaysOpen(pub Wire);

/// Calls the same method on whichever stream it is.
macro_rules! each {
    ($wire:expr, $stream:ident => $call:expr) => {
        match $wire {
            Wire::Tcp($stream) => $call,
            Wire::Unix($stream) => $call,
            Wire::Memory($stream) => $call,
        }
    };
}

impl AsyncRead for StaysOpen {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for StaysOpen {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(&mut self.0, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        each!(&self.0, stream => stream.is_write_vectored())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    #[test]
    fn the_list_is_tried_in_turn_and_a_hint_beats_it() {
        let list = ["a:1".to_owned(), "http://b:2/".to_owned()];
        let dialled = |target| address_of(&list, &target).unwrap();
        assert_eq!(dialled(Target::Listed(0)), "a:1");
        assert_eq!(dialled(Target::Listed(3)), "b:2");
        assert_eq!(dialled(Target::Leader("c:3".into())), "c:3");
        assert!(matches!(address_of(&[], &Target::Listed(0)), Err(DialError::Nobody)));
    }

    #[tokio::test]
    async fn neither_shutdown_nor_drop_closes_a_socket_that_is_held() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let wire = Connector::Tcp(vec![address]).dial(&Target::Listed(0)).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let held = wire.hold().unwrap().expect("TCP has a descriptor");
        let flags = rustix::io::fcntl_getfd(&held).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));

        let mut stream = StaysOpen(wire);
        stream.write_all(b"hi").await.unwrap();
        stream.shutdown().await.unwrap();
        drop(stream);
        let mut bytes = [0; 8];
        assert_eq!(peer.read(&mut bytes).await.unwrap(), 2);
        let silence = tokio::time::timeout(Duration::from_millis(100), peer.read(&mut bytes)).await;
        assert!(silence.is_err(), "the peer saw the end of a socket that is held");

        drop(held);
        assert_eq!(peer.read(&mut bytes).await.unwrap(), 0, "a release closes it");
    }

    #[tokio::test]
    async fn a_unix_socket_in_a_long_directory_is_dialled() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("d".repeat(120));
        std::fs::create_dir(&long).unwrap();
        let fd = rustix::fs::open(
            &long,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        let short = through(&fd, Path::new("docket.sock"));
        let listener = tokio::net::UnixListener::bind(short).unwrap();
        let connector = Connector::Unix(long.join("docket.sock"));
        let wire = connector.dial(&Target::Listed(0)).await.unwrap();
        assert!(wire.hold().unwrap().is_some());
        listener.accept().await.unwrap();
        let error = Connector::Unix(long.join("nobody.sock")).dial(&Target::Listed(0)).await;
        assert!(error.is_err_and(|error| error.to_string().contains("nobody.sock")));
    }
}
