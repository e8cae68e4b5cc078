//! One connection to one server, over a Unix socket, loopback TCP, or a stream inside the process.

use super::discover::DEFAULT_TCP;
use super::retry::from_transport;
use super::{Address, ClientError, Places, Route, dial_in};
use hyper_util::rt::TokioIo;
use proto::v1::StatusRequest;
use proto::v1::cluster_client::ClusterClient;
use proto::v1::jobs_client::JobsClient;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint, Uri};

/// Longest wait for a connection: a server of this machine answers in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often an idle connection is tried: a peer that vanished without a word is seen in 20 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Largest answer taken: a page of 1,000 tasks, some with a megabyte of arguments.
const ANSWER_MAX_BYTES: usize = 256 << 20;
/// Bytes in flight inside the process between role and client; flow control does the rest.
const MEMORY_STREAM_BYTES: usize = 64 << 10;

/// A way to the server that leads; cheap to clone, each clone fails over by itself.
#[derive(Debug, Clone)]
pub struct Client {
    addresses: Arc<[Address]>,
    at: usize,
    channel: Channel,
}

/// A byte stream of any kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Client {
    /// Connects to the first place that answers, leads and serves this user (design 7).
    pub async fn find(places: &Places) -> Result<Self, ClientError> {
        let route = places.route()?;
        let probe_all = route.named && route.addresses.len() > 1;
        let mut tried = Vec::new();
        for (at, address) in route.addresses.iter().enumerate() {
            let own = !route.named && at == 0;
            let trust = if route.named { Trust::Anyone } else { Trust::MeOrRoot(places.uid) };
            let probe = probe_all || !(route.named || own);
            match reach(address, trust, probe).await {
                Ok(channel) => return Ok(Client::new(&route, at, channel)),
                Err(why) => tried.push((address.to_string(), why)),
            }
        }
        Err(ClientError::NoServer { tried, named: route.named })
    }

    /// Connects to one socket only, as `docket down` does.
    pub async fn at(address: Address, uid: u32) -> Result<Self, ClientError> {
        let route = Route { named: false, addresses: vec![address] };
        match reach(&route.addresses[0], Trust::MeOrRoot(uid), false).await {
            Ok(channel) => Ok(Client::new(&route, 0, channel)),
            Err(why) => {
                let tried = vec![(route.addresses[0].to_string(), why)];
                Err(ClientError::NoServer { tried, named: false })
            }
        }
    }

    /// A client of the controller in this process.
    pub fn in_process(streams: mpsc::Sender<DuplexStream>) -> Self {
        let connector = tower::service_fn(move |_: Uri| {
            let streams = streams.clone();
            async move {
                let (near, far) = tokio::io::duplex(MEMORY_STREAM_BYTES);
                let gone = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
                streams.send(far).await.map_err(gone)?;
                Ok::<_, io::Error>(TokioIo::new(near))
            }
        });
        let channel = endpoint().connect_with_connector_lazy(connector);
        let addresses = Arc::from([Address::Tcp("in-process".to_owned())]);
        Client { addresses, at: 0, channel }
    }

    fn new(route: &Route, at: usize, channel: Channel) -> Self {
        // Default places are alternatives, not voters of one cluster: no failing over among them.
        let addresses: Vec<Address> =
            if route.named { route.addresses.clone() } else { vec![route.addresses[at].clone()] };
        let at = if route.named { at } else { 0 };
        Client { addresses: addresses.into(), at, channel }
    }

    /// Where it is connected.
    pub fn address(&self) -> &Address {
        &self.addresses[self.at]
    }

    /// The jobs service.
    pub fn jobs(&self) -> JobsClient<Channel> {
        JobsClient::new(self.channel.clone())
            .max_decoding_message_size(ANSWER_MAX_BYTES)
            .max_encoding_message_size(ANSWER_MAX_BYTES)
    }

    /// The cluster service.
    pub fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_MAX_BYTES)
    }

    /// Turns to the next of several voters; with one, its channel reconnects by itself.
    pub(super) fn turn(&mut self) {
        if self.addresses.len() > 1 {
            self.at = (self.at + 1) % self.addresses.len();
            let connector = connector(self.addresses[self.at].clone(), Trust::Anyone);
            self.channel = endpoint().connect_with_connector_lazy(connector);
        }
    }
}

/// Who may own the server: a default place must not hand a user's environment to a stranger.
#[derive(Clone, Copy)]
enum Trust {
    /// The user named the place.
    Anyone,
    /// A default place: only a server of this uid or of root.
    MeOrRoot(u32),
}

impl Trust {
    fn check(self, owner: Option<u32>) -> io::Result<()> {
        match (self, owner) {
            (Trust::Anyone, _) => Ok(()),
            (Trust::MeOrRoot(me), Some(uid)) if uid == me || uid == 0 => Ok(()),
            (Trust::MeOrRoot(_), Some(uid)) => {
                Err(io::Error::other(format!("belongs to uid {uid}")))
            }
            (Trust::MeOrRoot(_), None) => Err(io::Error::other("nobody knows whose it is")),
        }
    }
}

/// Connects, and asks for a sign of life where the place might refuse this user or not lead.
async fn reach(address: &Address, trust: Trust, probe: bool) -> Result<Channel, String> {
    let endpoint = endpoint();
    let connecting = endpoint.connect_with_connector(connector(address.clone(), trust));
    let channel = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return Err(why(&error)),
        Err(_) => return Err("does not answer".to_owned()),
    };
    if probe {
        sign_of_life(channel.clone()).await?;
    }
    Ok(channel)
}

/// A server that refuses this user, or knows of no leader, is not the one that is looked for.
async fn sign_of_life(channel: Channel) -> Result<(), String> {
    let mut cluster = ClusterClient::new(channel);
    match tokio::time::timeout(CONNECT_TIMEOUT, cluster.status(StatusRequest {})).await {
        Ok(Ok(answer)) if answer.get_ref().leader == 0 => Err("has no leader".to_owned()),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) if from_transport(&status) => Err(why(&status)),
        Ok(Err(status)) => Err(format!("refuses: {}", status.message())),
        Err(_) => Err("does not answer".to_owned()),
    }
}

fn endpoint() -> Endpoint {
    Endpoint::from_static("http://docket")
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
}

fn connector(
    address: Address,
    trust: Trust,
) -> impl tower::Service<Uri, Response = TokioIo<Box<dyn Stream>>, Error = io::Error, Future: Send>
+ Send
+ 'static {
    tower::service_fn(move |_: Uri| {
        let address = address.clone();
        async move { dial(&address, trust).await.map(TokioIo::new) }
    })
}

async fn dial(address: &Address, trust: Trust) -> io::Result<Box<dyn Stream>> {
    match address {
        Address::Unix(path) => {
            let stream = dial_in(path).await?;
            trust.check(stream.peer_cred().ok().map(|peer| peer.uid()))?;
            Ok(Box::new(stream))
        }
        Address::Tcp(host) => {
            let stream = tokio::net::TcpStream::connect(host.as_str()).await?;
            stream.set_nodelay(true)?;
            if matches!(trust, Trust::MeOrRoot(_)) {
                let port = stream.peer_addr()?.port();
                trust.check(listener_owner(port))?;
            }
            Ok(Box::new(stream))
        }
    }
}

/// Uid of the process that listens on a loopback port of this network namespace; a stranger's if
/// several do.
fn listener_owner(port: u16) -> Option<u32> {
    let me = rustix::process::getuid().as_raw();
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .flat_map(|table| listeners(&table, port))
        .max_by_key(|uid| *uid != 0 && *uid != me)
}

/// Uids of the listeners on `port` in a table of the form of /proc/net/tcp.
fn listeners(table: &str, port: u16) -> Vec<u32> {
    const LISTEN: &str = "0A";
    let ours = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (_, local) = (fields.next()?, fields.next()?);
        let (_, state) = (fields.next()?, fields.next()?);
        let (_, hex_port) = local.rsplit_once(':')?;
        let same = u16::from_str_radix(hex_port, 16).ok()? == port && state == LISTEN;
        let uid = fields.nth(3)?.parse().ok()?;
        same.then_some(uid)
    };
    table.lines().filter_map(ours).collect()
}

/// The reason at the bottom of an error, in words.
pub(super) fn why(error: &(dyn std::error::Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(inner) = deepest.source() {
        deepest = inner;
    }
    match deepest.downcast_ref::<io::Error>() {
        Some(io) => io_words(io),
        None => deepest.to_string(),
    }
}

fn io_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "not there".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody listens".to_owned(),
        io::ErrorKind::PermissionDenied => "not yours to use".to_owned(),
        io::ErrorKind::TimedOut => "does not answer".to_owned(),
        _ => error.to_string(),
    }
}

/// The default loopback address, as `up` binds it.
pub fn default_tcp() -> &'static str {
    DEFAULT_TCP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_listening_port_is_read_from_the_table_of_sockets() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1D24 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1004        0 4242 1
   1: 0100007F:1D24 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1005        0 4243 1
   2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4244 1
";
        assert_eq!(listeners(table, 7460), [1004]);
        assert_eq!(listeners(table, 80), [0]);
        assert!(listeners(table, 81).is_empty());
    }

    #[test]
    fn a_default_place_of_a_stranger_counts_as_no_server() {
        assert!(Trust::MeOrRoot(1004).check(Some(1004)).is_ok());
        assert!(Trust::MeOrRoot(1004).check(Some(0)).is_ok());
        assert!(Trust::MeOrRoot(1004).check(Some(1005)).is_err());
        assert!(Trust::MeOrRoot(1004).check(None).is_err());
        assert!(Trust::Anyone.check(None).is_ok());
    }

    #[tokio::test]
    async fn no_server_anywhere_names_each_place() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places {
            uid: rustix::process::getuid().as_raw(),
            data_env: Some(dir.path().into()),
            ..Places::default()
        };
        let error = Client::find(&places).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("docket.sock (not there)"), "{text}");
        assert_eq!(error.exit_code(), 69);
    }
}
