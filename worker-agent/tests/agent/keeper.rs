//! A keeper played by hand: the framed socket without any job.

use crate::within;
use prost::Message as _;
use proto::v1;
use proto::v1::keeper_event::Kind as Event;
use proto::v1::keeper_request::Kind as Request;
use std::path::Path;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

pub const JOURNAL: [u8; 2] = [4, 2];

pub struct FakeKeeper {
    listener: UnixListener,
    socket: Option<UnixStream>,
}

impl FakeKeeper {
    pub fn listen(dir: &Path) -> Self {
        let listener = UnixListener::bind(dir.join("keeper.sock")).unwrap();
        FakeKeeper { listener, socket: None }
    }

    /// Takes the agent's connection and answers its hello.
    pub async fn welcome(&mut self) {
        self.welcome_as(0).await;
    }

    /// The same, of a keeper with this pid; 0: it does not tell.
    pub async fn welcome_as(&mut self, pid: u32) {
        let (socket, _) = within(self.listener.accept()).await.unwrap();
        self.socket = Some(socket);
        assert!(matches!(self.request().await, Request::Hello(_)));
        let welcome = v1::KeeperWelcome {
            journal_id: JOURNAL.to_vec(),
            boot_id: vec![1],
            next_seq: 1,
            limits: "rlimits".into(),
            pid,
            ..v1::KeeperWelcome::default()
        };
        self.tell(Event::Welcome(welcome)).await;
    }

    /// The connection breaks.
    pub fn hang_up(&mut self) {
        self.socket = None;
    }

    /// The next request that is no ping; pings are answered on the way.
    pub async fn asked(&mut self) -> Request {
        loop {
            match self.request().await {
                Request::Ping(ping) => {
                    let pong = v1::KeeperPong {
                        nonce: ping.nonce,
                        boottime_ms: 777,
                        ..v1::KeeperPong::default()
                    };
                    self.tell(Event::Pong(pong)).await;
                }
                Request::Renew(_) => {} // heartbeats are answered at any time
                other => return other,
            }
        }
    }

    /// Answers requests until the agent asked for its manifest, which is empty.
    pub async fn shows_nothing(&mut self) {
        loop {
            if let Request::Manifest(ask) = self.asked().await {
                let nonce = ask.nonce;
                let manifest = v1::KeeperManifest { nonce, ..v1::KeeperManifest::default() };
                return self.tell(Event::Manifest(manifest)).await;
            }
        }
    }

    pub async fn tell(&mut self, kind: Event) {
        let bytes = v1::KeeperEvent { kind: Some(kind) }.encode_to_vec();
        let socket = self.socket.as_mut().expect("the agent is connected");
        let size = u32::try_from(bytes.len()).unwrap();
        socket.write_all(&size.to_le_bytes()).await.unwrap();
        socket.write_all(&bytes).await.unwrap();
    }

    async fn request(&mut self) -> Request {
        let socket = self.socket.as_mut().expect("the agent is connected");
        let frame = async {
            let size = socket.read_u32_le().await.unwrap();
            let mut frame = vec![0; size as usize];
            socket.read_exact(&mut frame).await.unwrap();
            v1::KeeperRequest::decode(&frame[..]).unwrap().kind.unwrap()
        };
        within(frame).await
    }
}
