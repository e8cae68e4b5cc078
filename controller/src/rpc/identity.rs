//! Who is asking (design 5): user name and uid, decided by the server at accept, never taken from
//! the request. Unix socket: SO_PEERCRED. Loopback TCP: the uid of the peer's socket. In-memory
//! stream: the process itself. Everybody else is a stranger, and a stranger gets one clear status.

mod passwd;
mod tcp_table;

use super::transport::Peer;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use tonic::{Request, Status};

pub use passwd::user_name;

/// Who sent a request. The transport puts it into the extensions of every request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Name of `uid` in the user database; the number in decimal where it has no name.
    pub user: String,
    /// User id of the peer's process.
    pub uid: u32,
    /// May change what belongs to others: root, the controller's own user, `admins`.
    pub admin: bool,
}

/// Why a peer is served by nobody here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stranger {
    /// Only loopback peers can be told apart by the kernel's socket table.
    #[error(
        "{peer} is not a loopback address: connections from elsewhere need mTLS or a token, which this controller has not set up"
    )]
    NotLoopback {
        /// Where it came from.
        peer: SocketAddr,
    },
    /// The peer's socket is closed already, or lives in another network namespace.
    #[error(
        "no open socket {peer} belongs to a user of this machine: connect through docket.sock or from the same network namespace"
    )]
    NoSocket {
        /// Where it came from.
        peer: SocketAddr,
    },
    /// The kernel or the user database would not say.
    #[error("cannot find out who is asking: {why}; connect through docket.sock")]
    Lookup {
        /// What failed.
        why: String,
    },
    /// A node that a user runs serves that user and root only.
    #[error(
        "uid {uid} is not served here: this node belongs to uid {owner}; start your own with `docket up`"
    )]
    NotServed {
        /// Who asked.
        uid: u32,
        /// Whose controller it is.
        owner: u32,
    },
}

/// Whom this controller serves.
#[derive(Clone, Debug)]
pub struct Gate {
    own_uid: u32,
    admins: BTreeSet<String>,
}

impl Gate {
    /// The gate of this process: its own effective uid, and the configured `admins`.
    pub fn of_this_process(admins: impl IntoIterator<Item = String>) -> Self {
        Gate::new(rustix::process::geteuid().as_raw(), admins)
    }

    /// A gate for a controller that `own_uid` runs.
    pub fn new(own_uid: u32, admins: impl IntoIterator<Item = String>) -> Self {
        Gate { own_uid, admins: admins.into_iter().collect() }
    }

    /// Uid that the controller runs as.
    pub fn own_uid(&self) -> u32 {
        self.own_uid
    }

    /// Agents and voters on this machine must have the controller's uid or root (design 5).
    pub fn may_be_agent(&self, caller: &Caller) -> bool {
        caller.uid == self.own_uid || caller.uid == 0
    }

    /// The caller that `uid` is, if it is served at all. Reads the user database: may block.
    pub fn admit(&self, uid: u32) -> Result<Caller, Stranger> {
        if self.own_uid != 0 && uid != self.own_uid && uid != 0 {
            return Err(Stranger::NotServed { uid, owner: self.own_uid });
        }
        let user = user_name(uid)
            .map_err(|e| Stranger::Lookup { why: format!("user name of uid {uid}: {e}") })?
            .unwrap_or_else(|| uid.to_string());
        let admin = uid == 0 || uid == self.own_uid || self.admins.contains(&user);
        Ok(Caller { user, uid, admin })
    }

    /// The process itself, for a stream in memory.
    pub fn of_memory(&self) -> Result<Caller, Stranger> {
        self.admit(self.own_uid)
    }

    /// The user whose socket is the other end of a loopback connection. Reads /proc: blocks.
    pub fn of_tcp(&self, local: SocketAddr, peer: SocketAddr) -> Result<Caller, Stranger> {
        let (local, peer) = (tcp_table::canonical(local), tcp_table::canonical(peer));
        if !peer.ip().is_loopback() || !local.ip().is_loopback() {
            return Err(Stranger::NotLoopback { peer });
        }
        match tcp_table::owner_of(peer, local) {
            Ok(Some(uid)) => self.admit(uid),
            Ok(None) => Err(Stranger::NoSocket { peer }),
            Err(e) => Err(Stranger::Lookup { why: format!("reading the TCP table: {e}") }),
        }
    }
}

/// Interceptor of every service: puts the [`Caller`] into the request, or refuses it with
/// UNAUTHENTICATED (PERMISSION_DENIED for a known user who is not served) and the reason.
pub fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
    let caller = match request.extensions().get::<Peer>() {
        Some(peer) => peer.caller.clone(),
        None => Err(Stranger::Lookup { why: "the connection has no record".into() }),
    };
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            Ok(request)
        }
        Err(stranger @ Stranger::NotServed { .. }) => {
            Err(Status::permission_denied(stranger.to_string()))
        }
        Err(stranger) => Err(Status::unauthenticated(stranger.to_string())),
    }
}

/// The caller of a request that passed [`authenticate`].
pub fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::unauthenticated("the request carries no identity"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code: a surprise must end the test")]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_users_node_serves_that_user_and_root_only() {
        let gate = Gate::new(4242, []);
        assert!(gate.admit(4242).is_ok_and(|caller| caller.admin));
        assert!(gate.admit(0).is_ok_and(|caller| caller.admin));
        assert_eq!(gate.admit(4243), Err(Stranger::NotServed { uid: 4243, owner: 4242 }));
    }

    #[test]
    fn a_root_controller_serves_all_and_only_root_and_admins_are_admins() {
        let gate = Gate::new(0, ["4243".to_string()]);
        assert!(gate.admit(4242).is_ok_and(|caller| !caller.admin && caller.user == "4242"));
        assert!(gate.admit(4243).is_ok_and(|caller| caller.admin));
        assert!(gate.admit(0).is_ok_and(|caller| caller.admin && caller.user == "root"));
    }

    #[test]
    fn only_root_and_the_controllers_own_user_may_be_an_agent() {
        let caller = |uid: u32| Caller { user: uid.to_string(), uid, admin: true };
        let gate = Gate::new(1000, []);
        let allowed = [0, 1000, 1001].map(|uid| gate.may_be_agent(&caller(uid)));
        assert_eq!(allowed, [true, true, false]);
        assert!(!Gate::new(0, []).may_be_agent(&caller(1000)));
    }

    #[test]
    fn the_uid_of_a_loopback_peer_is_found_until_it_closes() {
        let own = rustix::process::geteuid().as_raw();
        let gate = Gate::new(own, []);
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            assert_eq!(gate.of_tcp(local, peer).map(|caller| caller.uid), Ok(own));
            drop(client);
            assert_eq!(gate.of_tcp(local, peer), Err(Stranger::NoSocket { peer }));
        }
    }

    #[test]
    fn a_peer_from_another_machine_is_a_stranger() {
        let peer: SocketAddr = "10.1.2.3:555".parse().unwrap();
        let local: SocketAddr = "10.1.2.4:7001".parse().unwrap();
        let answer = Gate::new(0, []).of_tcp(local, peer);
        assert_eq!(answer, Err(Stranger::NotLoopback { peer }));
    }

    #[test]
    fn a_request_without_a_known_connection_is_unauthenticated() {
        let status = authenticate(Request::new(())).unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
    }
}
