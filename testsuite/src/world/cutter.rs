//! A line between a client and a server that a test cuts whenever it likes: connections end without
//! a word of the protocol, and the next one is let through.

use crate::client::runtime;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The line; it ends with its value.
pub struct Cutter {
    address: String,
    cuts: watch::Sender<u64>,
    broken: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Cutter {
    /// Starts one in front of the server at that address.
    pub fn start(server: &str) -> Cutter {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        listener.set_nonblocking(true).expect("a listener can be made non-blocking");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (cuts, told) = watch::channel(0);
        let broken = Arc::new(AtomicU64::new(0));
        let (count, server) = (Arc::clone(&broken), server.to_owned());
        let thread =
            std::thread::spawn(move || runtime().block_on(serve(listener, server, told, count)));
        Cutter { address, cuts, broken, thread: Some(thread) }
    }

    /// Where clients dial.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Cuts every connection that is open now.
    pub fn cut(&self) {
        self.cuts.send_modify(|number| *number += 1);
    }

    /// Connections that were cut so far.
    pub fn broken(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        // The line ends with the sender of cuts.
        self.cuts = watch::channel(0).0;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn serve(
    listener: TcpListener,
    server: String,
    mut told: watch::Receiver<u64>,
    broken: Arc<AtomicU64>,
) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime is here");
    loop {
        tokio::select! {
            dialled = listener.accept() => {
                let Ok((client, _)) = dialled else { continue };
                tokio::spawn(carry(client, server.clone(), told.clone(), Arc::clone(&broken)));
            }
            cut = told.changed() => if cut.is_err() { return },
        }
    }
}

async fn carry(
    mut client: TcpStream,
    server: String,
    mut told: watch::Receiver<u64>,
    broken: Arc<AtomicU64>,
) {
    told.mark_unchanged();
    // A server that is away shows itself to the client as the end of the connection.
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = told.changed() => {
            broken.fetch_add(1, Ordering::Relaxed);
        }
    }
}
