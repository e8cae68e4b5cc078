//! The addresses of a controller: its socket file, its loopback port, and a link for the session.

use super::{RoleError, port_owner};
use crate::client::{FileId, Places, SOCKET, bind_in, own_link};
use crate::config::Settings;
use crate::say::note;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Where root's default node is reached by everybody: its data directory is closed to them.
const PUBLIC_DIR: &str = "/run";

/// What a port is for: the option that names it, and its usual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// `--listen`.
    pub option: &'static str,
    /// Key in `[controller]`.
    pub key: &'static str,
    example: &'static str,
    /// What is left when it is taken.
    without: &'static str,
}

/// gRPC: commands and agents.
pub const GRPC: Port = Port {
    option: "--listen",
    key: "listen",
    example: "127.0.0.1:7460",
    without: "serving the socket alone",
};

/// HTTP: metrics.
pub const HTTP: Port = Port {
    option: "--http",
    key: "http",
    example: "127.0.0.1:7461",
    without: "no metrics over HTTP; give --http another",
};

/// A bound port, or none because the default was taken.
pub fn tcp(port: Port, address: &str, asked_for: bool) -> Result<Option<TcpListener>, RoleError> {
    let Port { option, example, without, .. } = port;
    let parsed: SocketAddr = address.parse().map_err(|_| RoleError::BadAddress {
        option,
        address: address.to_owned(),
        example,
    })?;
    if !parsed.ip().is_loopback() {
        return Err(RoleError::NotLoopback { option, address: address.to_owned() });
    }
    let bound = TcpListener::bind(parsed).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    match bound {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && !asked_for => {
            let by = match port_owner::owner(parsed.port()) {
                Some(owner) if owner.is_docket => format!("docket itself ({owner})"),
                Some(owner) => format!("another program ({owner})"),
                None => "another program".to_owned(),
            };
            note(&format!("{address} is taken by {by}: {without}"));
            Ok(None)
        }
        Err(why) => {
            let advice = advice(option, parsed.port(), &why);
            Err(RoleError::Listen { address: address.to_owned(), why, advice })
        }
    }
}

/// Another address helps, unless it is docket that serves there: then it may be what is wanted.
fn advice(option: &str, port: u16, why: &io::Error) -> String {
    let taken = why.kind() == io::ErrorKind::AddrInUse;
    match taken.then(|| port_owner::owner(port)).flatten() {
        Some(owner) if owner.is_docket => format!(
            "docket serves there already ({owner}): use that one, or end it with docket down --server \
             ADDRESS or kill {}; else give {option} another",
            owner.pid
        ),
        Some(owner) => format!("it is taken ({owner}); give {option} another"),
        None => format!("give {option} another"),
    }
}

/// Binds a port as it is configured, and writes back what it became; a default that is taken is
/// left out.
pub fn bind(
    port: Port,
    settings: &Settings,
    address: &mut String,
) -> Result<Option<TcpListener>, RoleError> {
    let bound = tcp(port, address, settings.source("controller", port.key).is_some())?;
    if let Some(found) = bound.as_ref().and_then(|listener| listener.local_addr().ok()) {
        *address = found.to_string();
    }
    Ok(bound)
}

/// The bound socket of a node and the names that lead to it.
pub struct Socket {
    /// What the controller accepts from.
    pub listener: UnixListener,
    /// Where it is.
    pub path: PathBuf,
    id: FileId,
    link: Option<PathBuf>,
}

impl Socket {
    /// Binds the socket of `dir`; the caller holds every lock of it, for this takes the name from
    /// whoever has it. `shared` is root's default node, which serves every local user:
    /// its socket lies outside of the closed directory, with a link in it.
    pub fn bind(dir: &Path, shared: bool) -> Result<Socket, RoleError> {
        let inside = dir.join(SOCKET);
        let failed = |why| RoleError::Directory { path: inside.clone(), why };
        if !shared {
            let (listener, id) = bind_in(dir, SOCKET, 0o600).map_err(failed)?;
            return Ok(Socket { listener, path: inside, id, link: None });
        }
        let path = Path::new(PUBLIC_DIR).join(SOCKET);
        let failed_there = |why| RoleError::Directory { path: path.clone(), why };
        let (listener, id) = bind_in(Path::new(PUBLIC_DIR), SOCKET, 0o666).map_err(failed_there)?;
        replace_link(&path, &inside).map_err(failed)?;
        Ok(Socket { listener, path, id, link: Some(inside) })
    }

    /// Leaves a second name in the session's runtime directory, where the default node is looked
    /// for; a directory that is not the user's own is left alone.
    pub fn leave_link(&mut self, places: &Places) {
        let Some(link) = own_link(places).filter(|link| *link != self.path) else { return };
        let mine = link
            .parent()
            .and_then(|dir| std::fs::metadata(dir).ok())
            .is_some_and(|meta| meta.uid() == places.uid);
        if !mine {
            return;
        }
        match replace_link(&self.path, &link) {
            Ok(()) => self.link = Some(link),
            Err(why) => note(&format!("no link {}: {why}", link.display())),
        }
    }

    /// Removes the names when the node ends in order; what is left behind is replaced anyway.
    pub fn names(&self) -> Names {
        Names { path: self.path.clone(), id: self.id, link: self.link.clone() }
    }
}

/// The names of a socket, to be removed at the end.
pub struct Names {
    path: PathBuf,
    id: FileId,
    link: Option<PathBuf>,
}

impl Names {
    /// Removes them, unless they lead to the socket of another that took its place. A name that is
    /// gone already is what was wanted.
    pub fn remove(&self) {
        if FileId::of(&self.path).is_ok_and(|now| now != self.id) {
            return;
        }
        if let Some(link) = &self.link
            && std::fs::read_link(link).is_ok_and(|target| target == self.path)
        {
            let _ = std::fs::remove_file(link);
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Puts a link where nothing, or an older link or socket, is.
fn replace_link(target: &Path, link: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(link) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(meta) if meta.is_symlink() || meta.file_type().is_socket() => {
            std::fs::remove_file(link)?
        }
        Ok(_) => return Err(io::Error::other("something else has that name")),
    }
    symlink(target, link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_taken_default_port_is_left_out_and_a_taken_wish_is_an_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        for port in [GRPC, HTTP] {
            assert!(tcp(port, &address, false).unwrap().is_none());
            assert!(matches!(tcp(port, &address, true), Err(RoleError::Listen { .. })));
        }
    }

    #[test]
    fn only_loopback_is_served() {
        for port in [GRPC, HTTP] {
            for address in ["0.0.0.0:0", "192.0.2.1:0"] {
                let error = tcp(port, address, address == "0.0.0.0:0").unwrap_err();
                assert!(matches!(error, RoleError::NotLoopback { .. }));
                assert!(error.to_string().starts_with(&format!("{} {address}", port.option)));
            }
            assert!(matches!(tcp(port, "localhost", true), Err(RoleError::BadAddress { .. })));
            assert!(tcp(port, "127.0.0.1:0", true).unwrap().is_some());
        }
    }

    #[test]
    fn the_socket_is_its_owners_and_its_link_goes_with_it() {
        let (dir, session) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut socket = Socket::bind(dir.path(), false).unwrap();
        let mode = socket.path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let me = std::fs::metadata(session.path()).unwrap().uid();
        let link = session.path().join(SOCKET);
        // Root's link would go to /run, which is no place for a test.
        let places =
            Places { uid: me, runtime_dir: Some(session.path().into()), ..Places::default() };
        if me != 0 {
            socket.leave_link(&places);
            assert_eq!(std::fs::read_link(&link).unwrap(), socket.path);
        }
        let names = socket.names();
        names.remove();
        assert!(!socket.path.exists() && link.symlink_metadata().is_err());
    }

    #[test]
    fn a_link_replaces_only_what_docket_could_have_left() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("t"), dir.path().join("l"));
        replace_link(&target, &link).unwrap();
        replace_link(&target, &link).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::fs::write(&link, "mine").unwrap();
        assert!(replace_link(&target, &link).is_err());
    }
}
