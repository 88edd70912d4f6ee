//! Visitors that come at once over a long way: 64 of them, with 40 ms for a round trip between node and agent.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use culvert_bench::path::{Way, relay_tcp, relay_udp};
use culvert_bench::service::{ADDRESS, Service};
use culvert_bench::{median, verdict};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

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
    let [here, there] = [FAR, ADDRESS].map(|ip| SocketAddr::new(ip.parse().unwrap(), NODE));
    let way = Way { delay: DELAY, lost: 0 };
    tokio::spawn(relay_tcp(here, there, way));
    tokio::spawn(relay_udp(here, there, way));
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

/// Milliseconds until a visitor has heard the byte that it has sent.
async fn first_byte(port: u16) -> f64 {
    let start = Instant::now();
    let mut visitor = TcpStream::connect((ADDRESS, port)).await.unwrap();
    visitor.write_all(b"x").await.unwrap();
    let mut byte = [0];
    visitor.read_exact(&mut byte).await.unwrap();
    start.elapsed().as_secs_f64() * 1e3
}
