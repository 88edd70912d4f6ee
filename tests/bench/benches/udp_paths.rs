//! What visitors of a UDP tunnel feel of a path that loses packets, of UDP that is blocked, of many that come and go, and of
//! sources that are forged.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use culvert_bench::path::{Way, relay_tcp, relay_udp};
use culvert_bench::service::{ADDRESS, Service, echo_datagrams};
use culvert_bench::verdict;
use futures_util::future::join_all;
use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

const ECHO: u16 = 5511;
const NODE: u16 = 7835;
/// Where agents think that the node is, and where the echo service is over the same kind of way.
const FAR: &str = "127.0.77.2";
const FAR_ECHO: u16 = 5512;
const BLOCKED: &str = "127.0.77.3";
const LOST_AFTER: Duration = Duration::from_secs(1);
const PLAYERS: u32 = 20;
const PER_SECOND: u32 = 50;
const ROUND: Duration = Duration::from_secs(20);
const COMING_AND_GOING: u32 = 100_000;
const FORGED: u32 = 1_000_000;
const FORGING: Duration = Duration::from_mins(1);

#[tokio::main]
async fn main() {
    tokio::spawn(echo_datagrams(ECHO));
    loss().await;
    blocked().await;
    strangers().await;
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// One packet of a hundred is lost, with 40 ms for a round trip: no datagram waits for a lost one.
async fn loss() {
    let way = Way { delay: Duration::from_millis(20), lost: 100 };
    tokio::spawn(relay_tcp(at(FAR, NODE), at(ADDRESS, NODE), way));
    tokio::spawn(relay_udp(at(FAR, NODE), at(ADDRESS, NODE), way));
    tokio::spawn(relay_udp(at(FAR, FAR_ECHO), at(ADDRESS, ECHO), way));
    let service = Service::with(&[("CULVERT_NODE__HOSTNAME", FAR)]).await;
    let port = service.udp_tunnel(ECHO).await;
    sleep(Duration::from_secs(3)).await;
    let (tunnel, path) = tokio::join!(players(at(ADDRESS, port), ROUND), players(at(FAR, FAR_ECHO), ROUND));
    println!(
        "1 % loss and a round trip of 40 ms: p99 {:.1} ms, {:.2} % lost; the path alone {:.1} ms, {:.2} % lost",
        tunnel.p99, tunnel.lost, path.p99, path.lost
    );
    verdict("ms added at p99, 1 % loss", tunnel.p99 - path.p99, "<= 5", tunnel.p99 - path.p99 <= 5.0);
}

/// How long the first visitor waits where UDP does not pass between agent and node.
async fn blocked() {
    let way = Way { delay: Duration::ZERO, lost: 0 };
    tokio::spawn(relay_tcp(at(BLOCKED, NODE), at(ADDRESS, NODE), way));
    tokio::spawn(relay_udp(at(BLOCKED, NODE), at(ADDRESS, NODE), Way { lost: 1, ..way }));
    let service = Service::with(&[("CULVERT_NODE__HOSTNAME", BLOCKED)]).await;
    let begun = Instant::now();
    let port = service.udp_tunnel(ECHO).await;
    let visitor = visitor(at(ADDRESS, port), None).await;
    loop {
        visitor.send(b"hello").await.unwrap();
        if timeout(Duration::from_millis(20), visitor.recv(&mut [0; 8])).await.is_ok() {
            break;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    verdict("s to the first visitor's answer, UDP blocked", seconds, "<= 3.5", seconds <= 3.5);
}

async fn strangers() {
    let service = Service::with(&[("CULVERT_NODE__FLOWS_PER_ADDRESS", "100000")]).await;
    let port = at(ADDRESS, service.udp_tunnel(ECHO).await);
    sleep(Duration::from_secs(3)).await;
    let before = (service.host().resident(), service.agent().resident());
    let alone = players(port, ROUND).await;
    let there_before = tokio::spawn(players(port, FORGING + ROUND));
    sleep(Duration::from_secs(2)).await;
    let forging = std::thread::spawn(move || forge(port));
    let (mut coming, mut most) = (Vec::new(), before);
    while !forging.is_finished() {
        coming.push(players(port, ROUND).await);
        most = (most.0.max(service.host().resident()), most.1.max(service.agent().resident()));
    }
    let sent = forging.join().unwrap();
    let beside = there_before.await.unwrap();
    println!(
        "{sent} forged sources in {} s: p99 of players who were there before {:.2} ms, {:.2} ms without forged sources; players \
         who come amid them lose {:.2} %, {:.2} % without",
        FORGING.as_secs(),
        beside.p99,
        alone.p99,
        coming.iter().map(|round| round.lost).fold(0.0, f64::max),
        alone.lost
    );
    verdict("percent lost by players who were there before", beside.lost, "<= 1", beside.lost <= 1.0);
    for (who, more) in [("host", most.0 - before.0), ("agent", most.1 - before.1)] {
        verdict(&format!("MiB more, {who}"), more, "<= 64", more <= 64.0);
    }
    drop(service);
    let many = [("CULVERT_NODE__FLOWS_PER_ADDRESS", "100000"), ("CULVERT_NODE__NEW_FLOWS_PER_SECOND", "100000")];
    let service = Service::with(&many).await;
    let port = at(ADDRESS, service.udp_tunnel(ECHO).await);
    let before = (service.host().resident(), service.agent().resident());
    let begun = Instant::now();
    let answered = come_and_go(port).await;
    let more = (service.host().resident() - before.0, service.agent().resident() - before.1);
    println!(
        "{COMING_AND_GOING} visitors with one datagram each in {:.0} s: {answered} answered, {:.0} MiB more at the host, \
         {:.0} at the agent",
        begun.elapsed().as_secs_f64(),
        more.0,
        more.1
    );
    let share = f64::from(answered) / f64::from(COMING_AND_GOING) * 100.0;
    verdict("percent of those who come and go answered", share, ">= 99.5", share >= 99.5);
    verdict("MiB more, host and agent", more.0 + more.1, "<= 64", more.0 + more.1 <= 64.0);
}

struct Played {
    p99: f64,
    lost: f64,
}

/// Players who send at a fixed rate: how long their round trips take, and the percentage that is lost.
async fn players(to: SocketAddr, length: Duration) -> Played {
    let plays = (0..PLAYERS).map(|_| tokio::spawn(play(to, length)));
    let plays: Vec<_> = join_all(plays).await.into_iter().map(Result::unwrap).collect();
    let sent: u32 = plays.iter().map(|(sent, _)| sent).sum();
    let mut times: Vec<f64> = plays.into_iter().flat_map(|(_, times)| times).collect();
    times.sort_by(f64::total_cmp);
    let p99 = times[(times.len() - 1) * 99 / 100];
    Played { p99, lost: (1.0 - times.len() as f64 / f64::from(sent)) * 100.0 }
}

async fn play(to: SocketAddr, length: Duration) -> (u32, Vec<f64>) {
    let socket = std::sync::Arc::new(visitor(to, None).await);
    let begun = Instant::now();
    let receiver = socket.clone();
    let answers: JoinHandle<Vec<f64>> = tokio::spawn(async move {
        let (mut times, mut space) = (Vec::new(), [0; 64]);
        while begun.elapsed() < length + LOST_AFTER {
            let Ok(received) = timeout(LOST_AFTER, receiver.recv(&mut space)).await else { continue };
            received.unwrap();
            let sent = f64::from_le_bytes(space[..8].try_into().unwrap());
            times.push(begun.elapsed().as_secs_f64() * 1e3 - sent);
        }
        times
    });
    let mut sent = 0;
    while begun.elapsed() < length {
        let now = begun.elapsed().as_secs_f64() * 1e3;
        socket.send(&[now.to_le_bytes(), [0; 8]].concat()).await.unwrap();
        sent += 1;
        tokio::time::sleep_until((begun + Duration::from_secs(1) / PER_SECOND * sent).into()).await;
    }
    (sent, answers.await.unwrap())
}

async fn visitor(to: SocketAddr, from: Option<Ipv4Addr>) -> UdpSocket {
    let from = from.map_or(to.ip(), IpAddr::V4);
    let socket = UdpSocket::bind((from, 0)).await.unwrap();
    socket.connect(to).await.unwrap();
    socket
}

/// Loopback addresses that nobody else uses.
fn source(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x7f80_0000 | (number & 0x003f_ffff))
}

/// Sends one datagram from each of many addresses, and hears no answer. Returns how many.
fn forge(to: SocketAddr) -> u32 {
    let begun = Instant::now();
    for number in 0..FORGED {
        let socket = std::net::UdpSocket::bind((source(number), 0)).unwrap();
        let _ = socket.send_to(&[7; 32], to);
        let due = FORGING.mul_f64(f64::from(number) / f64::from(FORGED));
        if let Some(early) = due.checked_sub(begun.elapsed()).filter(|early| early.as_millis() > 1) {
            std::thread::sleep(early);
        }
    }
    FORGED
}

/// Visitors who send one datagram, hear the answer and go. Returns how many were answered.
async fn come_and_go(to: SocketAddr) -> u32 {
    let workers = (0..16).map(|worker| {
        tokio::spawn(async move {
            let mut answered = 0;
            for number in (worker..COMING_AND_GOING).step_by(16) {
                let visitor = visitor(to, Some(source(number))).await;
                visitor.send(b"hello").await.unwrap();
                answered += u32::from(timeout(LOST_AFTER, visitor.recv(&mut [0; 8])).await.is_ok());
                yield_now().await;
            }
            answered
        })
    });
    join_all(workers).await.into_iter().map(Result::unwrap).sum()
}
