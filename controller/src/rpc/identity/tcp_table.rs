//! Which user owns a TCP socket of this machine: the uid column of /proc/net/tcp and tcp6.
//! A row counts only while it is ESTABLISHED and has an inode: a closed socket reads as uid 0.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `TCP_ESTABLISHED` as the table prints it.
const ESTABLISHED: &str = "01";

/// An IPv4 address in IPv6 clothes becomes the IPv4 address, so that both tables compare alike.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Uid of the open socket whose own address is `local` and whose other end is `remote`; `None` if
/// there is none in this network namespace.
pub fn owner_of(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let file = match File::open(table) {
            Ok(file) => file,
            // A kernel without IPv6 has no second table.
            Err(e) if e.kind() == io::ErrorKind::NotFound && table.ends_with('6') => continue,
            Err(e) => return Err(e),
        };
        for line in BufReader::new(file).lines() {
            if let Some(uid) = owner_in_row(&line?, local, remote) {
                return Ok(Some(uid));
            }
        }
    }
    Ok(None)
}

/// Columns: number, local, remote, state, queues, timer, retransmits, uid, timeout, inode, …
fn owner_in_row(row: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let mut columns = row.split_ascii_whitespace().skip(1);
    let pair = (address(columns.next()?)?, address(columns.next()?)?);
    if pair != (local, remote) || columns.next()? != ESTABLISHED {
        return None;
    }
    let uid = columns.nth(3)?.parse().ok()?;
    let inode: u64 = columns.nth(1)?.parse().ok()?;
    (inode != 0).then_some(uid)
}

/// `0100007F:1F90`: words of the address in the machine's byte order, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<[u8; 4]>> = (0..ip.len())
        .step_by(8)
        .map(|at| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect();
    let bytes = words?.concat();
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

#[cfg(test)]
#[cfg(target_endian = "little")]
#[allow(clippy::unwrap_used, reason = "test code: a surprise must end the test")]
mod tests {
    use super::*;

    const ROW: &str = "   7: 0100007F:C350 0100007F:1B59 01 00000000:00000000 00:00000000 00000000  1000        0 812345 1 0000000000000000 20 4 30 10 -1";

    fn client() -> SocketAddr {
        "127.0.0.1:50000".parse().unwrap()
    }

    fn server() -> SocketAddr {
        "127.0.0.1:7001".parse().unwrap()
    }

    #[test]
    fn an_open_socket_has_its_owner() {
        assert_eq!(owner_in_row(ROW, client(), server()), Some(1000));
    }

    #[test]
    fn both_address_pairs_must_match() {
        assert_eq!(owner_in_row(ROW, server(), client()), None);
        assert_eq!(owner_in_row(ROW, client(), "127.0.0.1:7002".parse().unwrap()), None);
    }

    #[test]
    fn a_socket_that_is_closing_or_has_no_inode_counts_for_nobody() {
        let closing = ROW.replace(" 01 ", " 06 ");
        assert_eq!(owner_in_row(&closing, client(), server()), None);
        let closed = ROW.replace("1000        0 812345", "0        0 0");
        assert_eq!(owner_in_row(&closed, client(), server()), None);
    }

    #[test]
    fn a_mapped_ipv4_address_is_the_ipv4_address() {
        let mapped = ROW
            .replace("0100007F:C350", "0000000000000000FFFF00000100007F:C350")
            .replace("0100007F:1B59", "0000000000000000FFFF00000100007F:1B59");
        assert_eq!(owner_in_row(&mapped, client(), server()), Some(1000));
    }

    #[test]
    fn garbage_is_no_row() {
        for row in ["", "sl local_address", "0: 0100007F 01", "0: é100007F:1 0100007F:1 01"] {
            assert_eq!(owner_in_row(row, client(), server()), None);
        }
    }
}
