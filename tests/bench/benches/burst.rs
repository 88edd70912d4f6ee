//! Visitors that come at once over a long way: 64 of them, with 40 ms for a round trip between node and agent.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_bench::service::{ADDRESS, Service};
use culvert_bench::{median, verdict};
use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;

/// Where agents think that the node is: the long way begins here.
const FAR: &str = "127.0.77.2";
const NODE: u16 = 7835;
/// The time of one direction.
const DELAY: Duration = Duration::from_millis(20);
const VISITORS: usize = 64;
const ROUNDS: usize = 5;
/// In which the agent comes back to few connections.
const BETWEEN: Duration = Duration::from_secs(25);

#[tokio::main]
async fn main() {
    tokio::spawn(relay_tcp());
    tokio::spawn(relay_udp());
    println!("milliseconds to the first byte with a round trip of 40 ms, the median of {ROUNDS} rounds");
    burst("over TLS", &[("CULVERT_NODE__UDP_LISTEN", "off")], 150.0).await;
    burst("with QUIC", &[], 20.0).await;
}

async fn burst(how: &str, settings: &[(&str, &str)], most: f64) {
    let service = Service::with(&[settings, &[("CULVERT_NODE__HOSTNAME", FAR)]].concat()).await;
    let echo = TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let port = service.tunnel(echo.local_addr().unwrap().port()).await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = echo.accept().await {
            tokio::spawn(async move {
                let mut byte = [0];
                while stream.read_exact(&mut byte).await.is_ok() {
                    stream.write_all(&byte).await.unwrap();
                }
            });
        }
    });
    let (mut alone, mut slowest) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        tokio::time::sleep(BETWEEN).await;
        alone.push(first_byte(port).await);
        tokio::time::sleep(BETWEEN).await;
        let all = join_all((0..VISITORS).map(|_| first_byte(port))).await;
        slowest.push(all.into_iter().fold(0.0, f64::max));
    }
    let (alone, slowest) = (median(alone), median(slowest));
    println!("  {how}: one visitor {alone:.0}, the slowest of {VISITORS} at once {slowest:.0}");
    let more = slowest - alone;
    verdict("ms more for the slowest", more, &format!("<= {most}"), more <= most);
}

async fn relay_tcp() {
    let relay = TcpListener::bind((FAR, NODE)).await.unwrap();
    while let Ok((agent, _)) = relay.accept().await {
        let Ok(node) = TcpStream::connect((ADDRESS, NODE)).await else { continue };
        agent.set_nodelay(true).unwrap();
        node.set_nodelay(true).unwrap();
        let ((from_agent, to_agent), (from_node, to_node)) = (agent.into_split(), node.into_split());
        tokio::spawn(delayed(from_agent, to_node));
        tokio::spawn(delayed(from_node, to_agent));
    }
}

/// Passes datagrams on, those of each agent's socket by one of its own.
async fn relay_udp() {
    let near = Arc::new(UdpSocket::bind((FAR, NODE)).await.unwrap());
    let mut agents: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut datagram = vec![0; 65_536];
    loop {
        let Ok((length, agent)) = near.recv_from(&mut datagram).await else { continue };
        let far = match agents.entry(agent) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => {
                let far = Arc::new(UdpSocket::bind((FAR, 0)).await.unwrap());
                far.connect((ADDRESS, NODE)).await.unwrap();
                tokio::spawn(back(far.clone(), near.clone(), agent));
                new.insert(far).clone()
            }
        };
        let piece = datagram[..length].to_vec();
        later(async move { far.send(&piece).await });
    }
}

async fn back(far: Arc<UdpSocket>, near: Arc<UdpSocket>, agent: SocketAddr) {
    let mut datagram = vec![0; 65_536];
    loop {
        let Ok(length) = far.recv(&mut datagram).await else { continue };
        let (near, piece) = (near.clone(), datagram[..length].to_vec());
        later(async move { near.send_to(&piece, agent).await });
    }
}

/// Sends a datagram after the time of one direction. A lost one is sent again by QUIC.
fn later(send: impl Future<Output = std::io::Result<usize>> + Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(DELAY).await;
        let _ = send.await;
    });
}

/// Milliseconds until a visitor has heard the byte that it has sent.
async fn first_byte(port: u16) -> f64 {
    let start = Instant::now();
    let mut visitor = TcpStream::connect((ADDRESS, port)).await.unwrap();
    visitor.write_all(b"x").await.unwrap();
    let mut byte = [0];
    visitor.read_exact(&mut byte).await.unwrap();
    start.elapsed().as_secs_f64() * 1e3
}

/// Passes on what comes, each piece after the same time.
async fn delayed(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin + Send + 'static) {
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
        let _ = sender.send((tokio::time::Instant::now() + DELAY, buffer[..read].to_vec()));
    }
}
