//! A link between two programs, which a test can disturb.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

use super::host::own_address;

/// What happens to what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Nothing passes, and nobody is told. What was sent passes later.
    Hold,
    /// Connections are reset, and new ones as well.
    Cut,
    /// As [`Mode::Hold`], for what the client sends.
    HoldToServer,
    /// As [`Mode::Hold`], for what the server sends.
    HoldToClient,
    /// What connections carry comes later, by this many milliseconds.
    Delay(u64),
}

impl Mode {
    /// Whether datagrams of one direction pass. `held` is the mode that holds this direction alone.
    fn passes(self, held: Self) -> bool {
        !matches!(self, Self::Hold | Self::Cut) && self != held
    }
}

/// Takes connections and datagrams at an address of its own, at the server's port.
pub struct Link {
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    server: watch::Sender<IpAddr>,
}

impl Link {
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((own_address(), server.port())).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, to) = (watch::Sender::new(Mode::Pass), watch::Sender::new(server.ip()));
        let datagrams = UdpSocket::bind(address).await.unwrap();
        tokio::spawn(pass(datagrams, to.subscribe(), mode.subscribe()));
        let (modes, servers) = (mode.subscribe(), to.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = SocketAddr::new(*servers.borrow(), server.port());
                tokio::spawn(carry(client, server, modes.clone()));
            }
        });
        Self { address, mode, server: to }
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// New connections go to another server, at the same port.
    pub fn lead_to(&self, server: IpAddr) {
        self.server.send_replace(server);
    }
}

/// Passes datagrams. Those that come while nothing passes are lost, as on any network.
async fn pass(socket: UdpSocket, servers: watch::Receiver<IpAddr>, modes: watch::Receiver<Mode>) {
    let port = socket.local_addr().unwrap().port();
    let socket = Arc::new(socket);
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut datagram = vec![0; 64 * 1024];
    loop {
        // An error tells of a datagram that was sent before.
        let Ok((count, client)) = socket.recv_from(&mut datagram).await else { continue };
        let server = SocketAddr::new(*servers.borrow(), port);
        let to_server = match clients.entry(client) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let to_server = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
                to_server.connect(server).await.unwrap();
                tokio::spawn(pass_back(to_server.clone(), socket.clone(), client, modes.clone()));
                new.insert(to_server)
            }
        };
        let mode = *modes.borrow();
        if mode.passes(Mode::HoldToServer) {
            let _ = to_server.send(&datagram[..count]).await;
        }
    }
}

async fn pass_back(from: Arc<UdpSocket>, to: Arc<UdpSocket>, client: SocketAddr, modes: watch::Receiver<Mode>) {
    let mut datagram = vec![0; 64 * 1024];
    loop {
        let Ok(count) = from.recv(&mut datagram).await else { continue };
        let mode = *modes.borrow();
        if mode.passes(Mode::HoldToClient) {
            let _ = to.send_to(&datagram[..count], client).await;
        }
    }
}

async fn carry(client: TcpStream, server: SocketAddr, mut modes: watch::Receiver<Mode>) {
    let may_dial = modes.wait_for(|mode| *mode != Mode::Hold).await.is_ok_and(|mode| *mode != Mode::Cut);
    let server = if may_dial { TcpStream::connect(server).await.ok() } else { None };
    let Some(server) = server else {
        let _ = client.set_zero_linger();
        return;
    };
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let was_cut = {
        let mut modes = modes.clone();
        async move { drop(modes.wait_for(|mode| *mode == Mode::Cut).await) }
    };
    let mut up = std::pin::pin!(copy(client_read, server_write, modes.clone(), Mode::HoldToServer));
    let mut down = std::pin::pin!(copy(server_read, client_write, modes, Mode::HoldToClient));
    let (mut up_over, mut down_over) = (false, false);
    let mut was_cut = std::pin::pin!(was_cut);
    while !(up_over && down_over) {
        tokio::select! {
            () = &mut was_cut => return,
            ended = &mut up, if !up_over => if ended { up_over = true } else { return },
            ended = &mut down, if !down_over => if ended { down_over = true } else { return },
        }
    }
}

/// Copies one direction to its end. False where the connection is broken.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>, held: Mode) -> bool {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(count) = from.read(&mut buffer).await else { return false };
        let Ok(mode) = modes.wait_for(|mode| *mode != Mode::Hold && *mode != held).await.map(|mode| *mode) else {
            return false;
        };
        if let Mode::Delay(milliseconds) = mode {
            Clock::system().sleep(Duration::from_millis(milliseconds)).await;
        }
        if count == 0 {
            return to.shutdown().await.is_ok();
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return false;
        }
    }
}
