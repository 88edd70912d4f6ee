//! A long way between agent and node: each direction takes a time, and may lose datagrams.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;

/// What a way does.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The time of one direction.
    pub delay: Duration,
    /// One datagram of so many is lost; none with 0, all with 1.
    pub lost: u64,
}

/// Passes connections on.
pub async fn relay_tcp(here: SocketAddr, there: SocketAddr, way: Way) {
    let relay = TcpListener::bind(here).await.unwrap();
    while let Ok((agent, _)) = relay.accept().await {
        let Ok(node) = TcpStream::connect(there).await else { continue };
        agent.set_nodelay(true).unwrap();
        node.set_nodelay(true).unwrap();
        let ((from_agent, to_agent), (from_node, to_node)) = (agent.into_split(), node.into_split());
        tokio::spawn(delayed(from_agent, to_node, way.delay));
        tokio::spawn(delayed(from_node, to_agent, way.delay));
    }
}

/// Passes datagrams on, those of each source by a socket of its own.
pub async fn relay_udp(here: SocketAddr, there: SocketAddr, way: Way) {
    let near = Arc::new(UdpSocket::bind(here).await.unwrap());
    let mut sources: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let (count, mut datagram) = (Arc::new(AtomicU64::new(0)), vec![0; 65_536]);
    loop {
        let Ok((length, source)) = near.recv_from(&mut datagram).await else { continue };
        let far = match sources.entry(source) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => {
                let far = Arc::new(UdpSocket::bind((here.ip(), 0)).await.unwrap());
                far.connect(there).await.unwrap();
                tokio::spawn(back(far.clone(), near.clone(), source, way, count.clone()));
                new.insert(far).clone()
            }
        };
        if is_lost(&count, way) {
            continue;
        }
        let piece = datagram[..length].to_vec();
        later(way.delay, async move { far.send(&piece).await });
    }
}

async fn back(far: Arc<UdpSocket>, near: Arc<UdpSocket>, source: SocketAddr, way: Way, count: Arc<AtomicU64>) {
    let mut datagram = vec![0; 65_536];
    loop {
        let Ok(length) = far.recv(&mut datagram).await else { continue };
        if is_lost(&count, way) {
            continue;
        }
        let (near, piece) = (near.clone(), datagram[..length].to_vec());
        later(way.delay, async move { near.send_to(&piece, source).await });
    }
}

/// Spread by a multiplication, so that losses do not come at a fixed distance.
fn is_lost(count: &AtomicU64, way: Way) -> bool {
    let number = count.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    way.lost > 0 && number.is_multiple_of(way.lost)
}

/// Sends a datagram after the time of one direction.
fn later(delay: Duration, send: impl Future<Output = std::io::Result<usize>> + Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        let _ = send.await;
    });
}

/// Passes on what comes, each piece after the same time.
async fn delayed(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin + Send + 'static, delay: Duration) {
    let (sender, mut pieces) = mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, piece)) = pieces.recv().await {
            tokio::time::sleep_until(at).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    let mut buffer = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let _ = sender.send((tokio::time::Instant::now() + delay, buffer[..read].to_vec()));
    }
}
