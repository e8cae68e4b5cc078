//! Ports for the daemons of a world, out of those that the kernel gives to outgoing connections: a
//! controller that is away for a moment finds its own port free again.

use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The lowest one; below it are services that people know.
const FIRST: u16 = 12_000;

/// Where the kernel's own begin if it does not say.
const EPHEMERAL: u16 = 32_768;

/// The last one handed out, of any world of this process; it begins anywhere, for other processes
/// look too.
static LAST: LazyLock<AtomicU16> = LazyLock::new(|| {
    // Hashes begin with random keys.
    AtomicU16::new((RandomState::new().hash_one(std::process::id()) & 0xffff) as u16)
});

/// A loopback address on which nobody listens, and which no other world of this process gets soon.
pub(super) fn free_address() -> String {
    let span = ephemeral().saturating_sub(FIRST).max(1_000);
    for _ in 0..span {
        let port = FIRST + LAST.fetch_add(1, Ordering::Relaxed) % span;
        if let Ok(probe) = TcpListener::bind(("127.0.0.1", port)) {
            return probe.local_addr().expect("a bound socket has an address").to_string();
        }
    }
    panic!("no port from {FIRST} on is free");
}

fn ephemeral() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.unwrap_or_default().split_whitespace().next().and_then(|n| n.parse().ok());
    first.unwrap_or(EPHEMERAL)
}
