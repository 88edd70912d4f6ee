//! What a host and an agent keep resident: with nothing to do, and with many visitors that say nothing.
//!
//! Each visitor takes two descriptors of the host, two of the agent and two of this program, which needs a hard limit of
//! 20,000 (`ulimit -Hn`).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::disallowed_methods, reason = "it waits for processes to come to rest")]

use std::time::Duration;

use culvert_bench::service::{ADDRESS, Service};
use culvert_bench::verdict;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const VISITORS: usize = 8_000;
/// MiB that they may take: 160 for 10,000.
const MOST: f64 = 128.0;
/// Visitors that come at once.
const AT_ONCE: usize = 50;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    culvert_wire::socket::allow_many();
    let service = Service::start().await;
    let listener = TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let port = service.tunnel(listener.local_addr().unwrap().port()).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    println!("resident memory, idle with one tunnel, in MiB");
    let (host, agent) = (service.host().resident(), service.agent().resident());
    verdict("host, with its policies and one connected agent", host, "< 80", host < 80.0);
    verdict("agent", agent, "< 12", agent < 12.0);

    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut byte = [0];
                while stream.read_exact(&mut byte).await.is_ok() {
                    stream.write_all(&byte).await.unwrap();
                }
            });
        }
    });
    let mut visitors = Vec::new();
    while visitors.len() < VISITORS {
        let come = (0..AT_ONCE).map(|_| visitor(port));
        visitors.extend(futures_util::future::join_all(come).await);
    }
    // Buffers and surplus connections are given back meanwhile.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let (more, more_of_agent) = (service.host().resident() - host, service.agent().resident() - agent);
    println!("with {VISITORS} visitors that have said a byte each and heard it, in MiB more");
    verdict("host", more, "<= 128", more <= MOST);
    println!("  agent {more_of_agent:.0}");
}

async fn visitor(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect((ADDRESS, port)).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"x");
    stream
}
