//! What a UDP tunnel carries on loopback, by QUIC and by TLS, beside rathole with Noise and beside one hop of nginx, and
//! what it adds to a round trip, also beside a TCP visitor.
//!
//! Needs rathole 0.5 (`cargo install rathole --version 0.5.0`), iperf3 and nginx with its stream module (Debian: `iperf3`,
//! `nginx-light`, `libnginx-mod-stream`) on the PATH.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_bench::service::{ADDRESS, Killed, Service, echo_datagrams};
use culvert_bench::{median, rathole, verdict};
use futures_util::future::join_all;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// Where a service sends each datagram back, and the public port of rathole that leads to it.
const ECHO: u16 = 5511;
const ECHO_NOISE: u16 = 5512;
/// The public port of nginx that leads to it.
const ECHO_NGINX: u16 = 5513;
/// Where iperf3 listens.
const BULK: u16 = 5514;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);
/// Visitors at a time, and the datagrams of each that are under way.
const VISITORS: usize = 16;
const UNDER_WAY: usize = 16;
/// Flows of the round trips, and round trips of a round.
const FLOWS: usize = 100;
const ROUND_TRIPS: usize = 3_000;
/// A datagram that is not answered by then is lost.
const LOST_AFTER: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() {
    for (program, version) in [("rathole", "--version"), ("iperf3", "--version"), ("nginx", "-v")] {
        if Command::new(program).arg(version).output().is_err() {
            println!(
                "{program} is not there: cargo install rathole --version 0.5.0; apt-get install iperf3 nginx-light"
            );
            return;
        }
    }
    let settings = [("CULVERT_NODE__FLOWS_PER_ADDRESS", "100000"), ("CULVERT_NODE__NEW_FLOWS_PER_SECOND", "100000")];
    tokio::spawn(echo_datagrams(ECHO));
    {
        let service = Service::with(&settings).await;
        let _peer = rathole::noise_udp(service.folder(), &[("echo", ECHO_NOISE, ECHO)]);
        let ours = service.udp_tunnel(ECHO).await;
        for length in [64, 1200] {
            rates(length, &[("culvert", ours), ("rathole with Noise", ECHO_NOISE)], 2.0).await;
        }
        {
            let _nginx = nginx(service.folder());
            rates(1200, &[("culvert", ours), ("nginx in one hop", ECHO_NGINX)], 0.3).await;
        }
        round_trips(ours).await;
        beside_bulk(&service, ours).await;
    }
    let service = Service::with(&[&settings[..], &[("CULVERT_NODE__UDP_LISTEN", "off")]].concat()).await;
    let _peer = rathole::noise_udp(service.folder(), &[("echo", ECHO_NOISE, ECHO)]);
    let ours = service.udp_tunnel(ECHO).await;
    rates(1200, &[("culvert over TLS", ours), ("rathole with Noise", ECHO_NOISE)], 2.0).await;
}

/// nginx as a proxy of datagrams. `BENCH_NGINX_STREAM` says where its stream module is.
fn nginx(folder: &Path) -> Killed {
    let module = std::env::var("BENCH_NGINX_STREAM");
    let module = module.unwrap_or_else(|_| "/usr/lib/nginx/modules/ngx_stream_module.so".into());
    let path = folder.join("stream.conf");
    let config = format!(
        "load_module {module};\ndaemon off;\npid {folder}/stream.pid;\nworker_processes auto;\n\
         events {{ worker_connections 4096; }}\n\
         stream {{ server {{ listen {ADDRESS}:{ECHO_NGINX} udp reuseport; proxy_pass {ADDRESS}:{ECHO}; }} }}\n",
        folder = folder.display()
    );
    std::fs::write(&path, config).unwrap();
    Killed::spawn(Command::new("nginx").args(["-e", "stderr", "-c"]).arg(path))
}

/// The p99 of a round trip beside a TCP visitor of the same device that takes 1 Gbit/s.
async fn beside_bulk(service: &Service, ours: u16) {
    let _server = Killed::spawn(Command::new("iperf3").args(["-s", "-B", ADDRESS, "-p", &BULK.to_string()]));
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A tunnel starts where its service is there.
    let bulk = service.tunnel(BULK).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let line = ["-c", ADDRESS, "-p", &bulk.to_string(), "-b", "1G", "-t", "30"].map(String::from);
    let mut visitor = Command::new("iperf3").args(line).stdout(Stdio::null()).spawn().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut p99 = Vec::new();
    for _ in 0..ROUNDS {
        p99.push(at(&times(ours).await, 0.99));
    }
    assert!(visitor.try_wait().unwrap().is_none(), "the visitor has gone");
    let _ = (visitor.kill(), visitor.wait());
    let p99 = median(p99);
    verdict("ms of a round trip beside a TCP visitor of 1 Gbit/s, p99", p99, "<= 5", p99 <= 5.0);
}

async fn rates(length: usize, [(name, ours), (peer_name, peer)]: &[(&str, u16); 2], wanted: f64) {
    let (mut our_rates, mut peer_rates) = (Vec::new(), Vec::new());
    let (mut our_loss, mut peer_loss) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (port, rates, losses) in [(*ours, &mut our_rates, &mut our_loss), (*peer, &mut peer_rates, &mut peer_loss)]
        {
            let (rate, loss) = exchange(port, length).await;
            rates.push(rate);
            losses.push(loss);
        }
    }
    let (rate, peer_rate) = (median(our_rates), median(peer_rates));
    let (loss, peer_loss) = (median(our_loss) * 100.0, median(peer_loss) * 100.0);
    println!(
        "datagrams of {length} bytes there and back, a second, {VISITORS} visitors with {UNDER_WAY} under way each"
    );
    println!("  {name} {rate:.0} ({loss:.2} % lost), {peer_name} {peer_rate:.0} ({peer_loss:.2} % lost)");
    let ratio = rate / peer_rate;
    verdict(&format!("{name} to {peer_name}"), ratio, &format!(">= {wanted}"), ratio >= wanted);
    verdict("percent lost", loss, "<= 0.5", loss <= 0.5);
}

/// Round trips a second of all visitors, and the share of datagrams that were lost.
async fn exchange(port: u16, length: usize) -> (f64, f64) {
    let visitors = (0..VISITORS).map(|_| tokio::spawn(visit(port, length)));
    let counts = join_all(visitors).await.into_iter().map(Result::unwrap);
    let (answered, lost) = counts.fold((0, 0), |(answered, lost), (more, gone)| (answered + more, lost + gone));
    (f64::from(answered) / ROUND.as_secs_f64(), f64::from(lost) / f64::from(answered + lost))
}

async fn visit(port: u16, length: usize) -> (u32, u32) {
    let socket = Arc::new(UdpSocket::bind((ADDRESS, 0)).await.unwrap());
    socket.connect((ADDRESS, port)).await.unwrap();
    let (payload, mut space) = (vec![7; length], vec![0; 65_536]);
    // The visitor proves that it is there.
    for _ in 0..4 {
        socket.send(&payload).await.unwrap();
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    while socket.try_recv(&mut space).is_ok() {}
    let (start, mut answered, mut lost) = (Instant::now(), 0, 0);
    for _ in 0..UNDER_WAY {
        socket.send(&payload).await.unwrap();
    }
    while start.elapsed() < ROUND {
        if let Ok(received) = timeout(LOST_AFTER, socket.recv(&mut space)).await {
            received.unwrap();
            answered += 1;
            socket.send(&payload).await.unwrap();
        } else {
            lost += UNDER_WAY as u32;
            for _ in 0..UNDER_WAY {
                socket.send(&payload).await.unwrap();
            }
        }
    }
    // What is still under way is counted neither way, but for what never comes.
    let mut late = 0;
    while late < UNDER_WAY as u32 && timeout(LOST_AFTER, socket.recv(&mut space)).await.is_ok() {
        late += 1;
    }
    (answered, lost + (UNDER_WAY as u32 - late))
}

/// What the tunnel adds to a round trip where nothing else happens.
async fn round_trips(ours: u16) {
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (bare, tunnelled) = (times(ECHO).await, times(ours).await);
        p50.push(at(&tunnelled, 0.5) - at(&bare, 0.5));
        p99.push(at(&tunnelled, 0.99) - at(&bare, 0.99));
    }
    let (p50, p99) = (median(p50), median(p99));
    println!("a round trip of 64 bytes takes longer by {p50:.3} ms (p50) and {p99:.3} ms (p99)");
    verdict("ms added at p99", p99, "<= 1", p99 <= 1.0);
}

fn at(times: &[f64], share: f64) -> f64 {
    times[(times.len() as f64 * share) as usize]
}

/// Round trips of 64 bytes, one each millisecond, over a hundred flows in turns. Sorted, in milliseconds.
async fn times(port: u16) -> Vec<f64> {
    let visitor = async |_| {
        let socket = UdpSocket::bind((ADDRESS, 0)).await.unwrap();
        socket.connect((ADDRESS, port)).await.unwrap();
        socket
    };
    let flows = join_all((0..FLOWS).map(visitor)).await;
    // The first datagrams make the flows.
    for flow in &flows {
        round_trip(flow).await;
    }
    let (mut times, mut due) = (Vec::new(), tokio::time::interval(Duration::from_millis(1)));
    for flow in flows.iter().cycle().take(ROUND_TRIPS) {
        due.tick().await;
        times.extend(round_trip(flow).await);
    }
    times.sort_by(f64::total_cmp);
    times
}

/// Milliseconds until a datagram is back; nothing if it is lost.
async fn round_trip(flow: &UdpSocket) -> Option<f64> {
    let begun = Instant::now();
    flow.send(&[7; 64]).await.unwrap();
    timeout(LOST_AFTER, flow.recv(&mut [0; 64])).await.ok()?.unwrap();
    Some(begun.elapsed().as_secs_f64() * 1000.0)
}
