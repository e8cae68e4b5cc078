//! Who listens on a taken port, as far as this user may know: from /proc, so that nothing is asked of a
//! stranger.

use crate::render::escape::line;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Longest command that is told, in characters.
const COMMAND_MAX: usize = 120;

/// A process that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its pid.
    pub pid: u32,
    /// Its command, cut and escaped.
    pub command: String,
    /// It is docket.
    pub is_docket: bool,
}

impl Display for Owner {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}: {}", self.pid, self.command)
    }
}

/// The process that listens on a port of this network namespace; `None`: nobody, or another user's.
pub fn owner(port: u16) -> Option<Owner> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let read = tables.iter().filter_map(|table| fs::read_to_string(table).ok());
    let sockets: Vec<String> = read.flat_map(|table| listeners(&table, port)).collect();
    if sockets.is_empty() {
        return None;
    }
    let all = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid = pids.find(|pid| has_one_of(*pid, &sockets))?;
    let argv = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(described(pid, &argv, runs_our_file(pid)))
}

/// It runs this very file, whatever that is called.
fn runs_our_file(pid: u32) -> bool {
    let file = |path: String| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let own = file("/proc/self/exe".to_owned());
    own.is_some() && own == file(format!("/proc/{pid}/exe"))
}

/// Links of the sockets that listen on `port`, by a table of the form of /proc/net/tcp.
fn listeners(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let ours = |row: &str| {
        let fields: Vec<&str> = row.split_ascii_whitespace().collect();
        let (_, hex_port) = fields.get(1)?.rsplit_once(':')?;
        let same = u16::from_str_radix(hex_port, 16).ok()? == port && *fields.get(3)? == LISTEN;
        same.then_some(format!("socket:[{}]", fields.get(9)?))
    };
    table.lines().filter_map(ours).collect()
}

fn has_one_of(pid: u32, sockets: &[String]) -> bool {
    // A process that ended meanwhile, or is not ours to look at.
    let Ok(held) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    held.flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

fn described(pid: u32, argv: &[u8], ours: bool) -> Owner {
    let words: Vec<String> = argv
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let program = words.first().map(|first| Path::new(first).file_name().unwrap_or_default());
    let serves = words.get(1).is_some_and(|word| word == "up" || word == "controller");
    let is_docket = serves && (ours || program.is_some_and(|name| name == "docket"));
    let text = line(&words.join(" "));
    let command = match text.char_indices().nth(COMMAND_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    };
    Owner { pid, command, is_docket }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listener_of_a_port_is_found_and_one_of_no_port_is_not() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(owner(port).map(|owner| owner.pid), Some(std::process::id()));
        drop(taken);
        assert_eq!(owner(port), None);
    }

    #[test]
    fn docket_is_known_by_its_command_and_others_are_told_escaped_and_cut() {
        let up = described(7, b"/usr/bin/docket\0up\0--data\0/d\0", false);
        assert!(up.is_docket);
        assert_eq!(up.to_string(), "pid 7: /usr/bin/docket up --data /d");
        assert!(described(7, b"dk\0up\0", true).is_docket, "under another name");
        assert!(!described(7, b"dk\0list\0", true).is_docket);
        for other in [&b"/usr/bin/nginx\0up\0"[..], b"docket\0list\0", b"docket-proxy\0up\0", b""] {
            assert!(!described(7, other, false).is_docket, "{other:?}");
        }
        let bad =
            described(7, format!("a\u{1b}[31m\0{}\0", "x".repeat(500)).as_bytes(), false).command;
        assert!(!bad.contains('\u{1b}') && bad.ends_with('…') && bad.len() < 200, "{bad}");
    }
}
