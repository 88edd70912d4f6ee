//! What lies between an agent and a node: a relay that can swallow datagrams, and change its own address as a device does
//! that moves to another network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use culvert::config::Config;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

use super::host::own_address;

/// A place where the node is reached by agents.
pub struct Relay {
    listener: TcpListener,
    socket: UdpSocket,
}

/// A relay that runs.
pub struct Path {
    swallows: Arc<AtomicBool>,
    towards_node: watch::Sender<Arc<UdpSocket>>,
}

impl Relay {
    pub async fn bind() -> Self {
        let address = own_address();
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let socket = UdpSocket::bind(listener.local_addr().unwrap()).await.unwrap();
        Self { listener, socket }
    }

    /// Has the node say that it is reached here. It listens at an address of its own.
    pub fn stand_before(&self, config: &mut Config) {
        let here = self.listener.local_addr().unwrap();
        config.node.listen.set_port(here.port());
        config.node.hostname = here.ip().to_string();
    }

    pub async fn run(self, node: SocketAddr) -> Path {
        let Self { listener, socket } = self;
        tokio::spawn(async move {
            while let Ok((mut agent, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut node = TcpStream::connect(node).await?;
                    copy_bidirectional(&mut agent, &mut node).await
                });
            }
        });
        let swallows = Arc::new(AtomicBool::new(false));
        let towards_node = watch::Sender::new(towards(node).await);
        tokio::spawn(pass(socket, towards_node.subscribe(), swallows.clone()));
        Path { swallows, towards_node }
    }
}

impl Path {
    /// Lets no datagram through from now on, or every one again.
    pub fn swallow(&self, swallows: bool) {
        self.swallows.store(swallows, Ordering::Relaxed);
    }

    /// The node sees the agent at another address from now on.
    pub async fn change_address(&self) {
        let node = self.towards_node.borrow().peer_addr().unwrap();
        self.towards_node.send_replace(towards(node).await);
    }
}

async fn towards(node: SocketAddr) -> Arc<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    socket.connect(node).await.unwrap();
    Arc::new(socket)
}

/// Passes datagrams of one agent and the node.
async fn pass(socket: UdpSocket, mut towards_node: watch::Receiver<Arc<UdpSocket>>, swallows: Arc<AtomicBool>) {
    let (mut agent, mut sent, mut answer) = (None, vec![0; 65_536], vec![0; 65_536]);
    loop {
        let node = towards_node.borrow_and_update().clone();
        tokio::select! {
            Ok((length, from)) = socket.recv_from(&mut sent) => {
                agent = Some(from);
                if !swallows.load(Ordering::Relaxed) {
                    // A full queue loses it, as on any path.
                    let _ = node.send(&sent[..length]).await;
                }
            }
            Ok(length) = node.recv(&mut answer) => {
                if let Some(agent) = agent.filter(|_| !swallows.load(Ordering::Relaxed)) {
                    let _ = socket.send_to(&answer[..length], agent).await;
                }
            }
            changed = towards_node.changed() => if changed.is_err() { return },
        }
    }
}
