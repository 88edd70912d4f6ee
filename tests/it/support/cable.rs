//! The network between an agent and its host, or a host and its database, which a test can cut and
//! mend.

use std::net::SocketAddr;

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

use super::host::TestHost;

/// A way to the other side on which nothing passes while it is cut: no byte, and no word that that
/// side has gone.
pub struct Cable {
    pub url: String,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy)]
struct State {
    intact: bool,
    /// How often it was cut.
    cuts: u32,
    /// Connections from before this cut stay open and silent for ever.
    silent: u32,
    /// How many connections were made to it.
    dials: u32,
    /// The host at the other end.
    host: Option<SocketAddr>,
}

impl TestHost {
    pub async fn cable(&self) -> Cable {
        let cable = Cable::to_nowhere().await;
        cable.lead_to(self);
        cable
    }
}

/// PostgreSQL's port, where a URL names none.
const POSTGRES_PORT: &str = "5432";

impl Cable {
    /// A way that leads to no host yet.
    pub async fn to_nowhere() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let sender = watch::Sender::new(State { intact: false, cuts: 0, silent: 0, dials: 0, host: None });
        let dialled = sender.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                dialled.send_modify(|state| state.dials += 1);
                let state = dialled.subscribe();
                let host = state.borrow().host.unwrap();
                tokio::spawn(async move { carry(stream, TcpStream::connect(host).await.unwrap(), state).await });
            }
        });
        Self { url, state: sender }
    }

    /// A way to a database of PostgreSQL; its URL leads there.
    pub async fn of_database(url: &str) -> Self {
        let (user, rest) = url.strip_prefix("postgres://").unwrap().split_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let (server, port) = server.split_once(':').unwrap_or((server, POSTGRES_PORT));
        let server = percent_decode_str(server).decode_utf8().unwrap();
        // A folder is where the server's socket is.
        let (socket, address) = (format!("{server}/.s.PGSQL.{port}"), format!("{server}:{port}"));
        let is_local = server.starts_with('/');
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = listener.local_addr().unwrap();
        let url = format!("postgres://{user}@{near}/{database}?sslmode=disable");
        let sender = watch::Sender::new(State { intact: true, cuts: 0, silent: 0, dials: 0, host: None });
        let state = sender.subscribe();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (socket, address, state) = (socket.clone(), address.clone(), state.clone());
                tokio::spawn(async move {
                    if is_local {
                        carry(stream, UnixStream::connect(socket).await.unwrap(), state).await;
                    } else {
                        carry(stream, TcpStream::connect(address).await.unwrap(), state).await;
                    }
                });
            }
        });
        Self { url, state: sender }
    }

    /// How many connections were made to it.
    pub fn dials(&self) -> u32 {
        self.state.borrow().dials
    }

    pub fn cut(&self) {
        self.state.send_modify(|state| *state = State { intact: false, cuts: state.cuts + 1, ..*state });
    }

    /// Its connections are lost, and new ones go to another host.
    pub fn lead_to(&self, host: &TestHost) {
        self.cut();
        self.state.send_modify(|state| *state = State { intact: true, host: Some(host.address), ..*state });
    }

    /// From here on new connections pass. Existing ones stay open, and nothing passes on them.
    pub fn fail_over(&self) {
        self.cut();
        self.state.send_modify(|state| *state = State { intact: true, silent: state.cuts, ..*state });
    }

    /// From here on new connections pass. Those that were cut are lost.
    pub fn mend(&self) {
        self.state.send_modify(|state| state.intact = true);
    }
}

async fn carry(mut near: TcpStream, mut far: impl AsyncRead + AsyncWrite + Unpin, mut state: watch::Receiver<State>) {
    let State { intact, cuts, .. } = *state.borrow_and_update();
    if intact {
        tokio::select! {
            biased;
            _ = state.wait_for(|state| state.cuts != cuts) => {}
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
        }
    }
    // Both ends stay open, and hear nothing, until the cable is mended.
    let _ = state.wait_for(|state| state.intact && state.silent <= cuts).await;
}
