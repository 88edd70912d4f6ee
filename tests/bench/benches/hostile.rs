//! What well-behaved visitors of an http tunnel feel of hostile ones: slow ones, handshakes for names that nobody has,
//! and guesses of a password. Beside slow ones, two proxies in a row are target as well.
//!
//! Needs slowhttptest and haproxy (Debian: slowhttptest, haproxy) on the PATH.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use culvert_bench::load::{Round, paced};
use culvert_bench::service::{ADDRESS, Killed, Service};
use culvert_bench::{median, verdict};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::Command;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

const TUNNELS: u16 = 8081;
/// Where two hops of haproxy lead to the service.
const HAPROXY: u16 = 5611;
const HAPROXY_FAR: u16 = 5612;
const TLS_TUNNELS: u16 = 8443;
const ROUNDS: usize = 5;
/// The requests whose time is measured.
const PROBES_PER_SECOND: u32 = 500;
const PROBING: Duration = Duration::from_secs(3);
const UNKNOWN_NAMES_PER_SECOND: u32 = 500;
const GUESSES_PER_SECOND: u32 = 1_000;
/// `ada:wrong`.
const GUESS: &str = "Authorization: Basic YWRhOndyb25n\r\n";
/// Connections of one way to be slow, and the ways of slowhttptest: heads, bodies, ranges, reading.
const SLOW: usize = 500;
const WAYS: [&str; 4] = ["-H", "-B -s 8192 -t POST", "-R -t GET", "-X -w 1 -y 1 -n 5 -z 1 -k 3"];

#[tokio::main]
async fn main() {
    for (program, option) in [("slowhttptest", "-h"), ("haproxy", "-v")] {
        if Command::new(program).arg(option).output().await.is_err() {
            println!("{program} is not there: apt-get install slowhttptest haproxy");
            return;
        }
    }
    let many = ["CONNECTIONS_PER_ADDRESS", "HANDSHAKES_PER_SECOND"].map(|name| format!("CULVERT_NODE__HTTP__{name}"));
    let service = Service::with(&[(&many[0], "100000"), (&many[1], "100000")]).await;
    let listener = TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(answer_all(listener));
    let tunnel = ProbeTarget { name: service.web_tunnel(port).await, port: TUNNELS };
    let _haproxy = haproxy(service.folder(), port);
    let proxies = ProbeTarget { name: tunnel.name.clone(), port: HAPROXY };
    let guarded = service.web_tunnel_of(json!({
        "local_port": port, "http_basic_auth_enabled": true,
        "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse battery",
    }));
    let guarded = guarded.await;
    for way in WAYS {
        let what = format!("{SLOW} connections of `slowhttptest {way}`");
        let ours = compare(&what, &tunnel, || slow_visitors(way, &tunnel)).await;
        judge(&ours);
        let two_hops =
            compare(&format!("{what}, two hops of haproxy"), &proxies, || slow_visitors(way, &proxies)).await;
        println!("  culvert beside them, to haproxy beside them: {:.2}", ours.beside / two_hops.beside);
    }
    let unknown = || AbortOnDropHandle::new(tokio::spawn(unknown_names()));
    let what = format!("{UNKNOWN_NAMES_PER_SECOND} handshakes a second for unknown names");
    judge(&compare(&what, &tunnel, unknown).await);
    let guess = || AbortOnDropHandle::new(tokio::spawn(visits(guarded.clone(), GUESS, false)));
    let what = format!("{GUESSES_PER_SECOND} wrong guesses a second, each from another address");
    let guessing = compare(&what, &tunnel, guess).await;
    judge(&guessing);
    let visit = || AbortOnDropHandle::new(tokio::spawn(visits(tunnel.name.clone(), "", true)));
    let what = format!("{GUESSES_PER_SECOND} visitors a second who need no password, each from another address");
    let visiting = compare(&what, &tunnel, visit).await;
    println!("  beside guesses, to beside such visitors: {:.2}", guessing.beside / visiting.beside);
}

/// What the probes ask.
struct ProbeTarget {
    name: String,
    port: u16,
}

/// How long the probes took, in microseconds.
struct P99 {
    alone: f64,
    beside: f64,
}

fn judge(p99: &P99) {
    verdict("beside, to alone", p99.beside / p99.alone, "<= 2", p99.beside <= 2.0 * p99.alone);
}

/// The p99 of the probes, alone and beside what `begin` starts. It ends when its guard is dropped.
async fn compare<G>(what: &str, target: &ProbeTarget, begin: impl Fn() -> G) -> P99 {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let alone = probe(target).await;
        let guard = begin();
        tokio::time::sleep(Duration::from_secs(3)).await;
        rounds.push((alone, probe(target).await));
        drop(guard);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let p99 = |round: &Round| round.p99.as_secs_f64() * 1e6;
    let alone = median(rounds.iter().map(|(alone, _)| p99(alone)).collect());
    let beside = median(rounds.iter().map(|(_, beside)| p99(beside)).collect());
    println!("p99 of a request beside {what}, the median of {ROUNDS} rounds, in microseconds");
    println!("  alone {alone:.0}, beside {beside:.0}");
    P99 { alone, beside }
}

async fn probe(target: &ProbeTarget) -> Round {
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", target.name);
    paced(address(target.port), 8, PROBES_PER_SECOND, PROBING, move || request.clone()).await
}

/// Two proxies in a row before a service, as the node and the agent are.
fn haproxy(folder: &Path, service: u16) -> [Killed; 2] {
    let hop = |name: &str, from: u16, to: u16| {
        let config = format!(
            "global\n nbthread 1\ndefaults\n mode http\n maxconn 4000\n http-reuse always\n timeout connect 5s\n \
             timeout client 60s\n timeout server 60s\n\
             listen {name}\n bind {ADDRESS}:{from}\n server next {ADDRESS}:{to}\n"
        );
        let path = folder.join(name);
        std::fs::write(&path, config).unwrap();
        Killed::spawn(std::process::Command::new("haproxy").arg("-f").arg(path))
    };
    [hop("near", HAPROXY, HAPROXY_FAR), hop("far", HAPROXY_FAR, service)]
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(ADDRESS.parse().unwrap(), port)
}

fn slow_visitors(way: &str, ProbeTarget { name, port }: &ProbeTarget) -> Killed {
    let mut run = std::process::Command::new("slowhttptest");
    run.args(way.split(' ')).args(["-c", &SLOW.to_string(), "-r", "500", "-i", "1", "-l", "60", "-p", "3"]);
    // The name is in no DNS, so that the node is target as a proxy is.
    run.args(["-d", &address(*port).to_string(), "-u", &format!("http://{name}:{port}/")]);
    Killed::spawn(&mut run)
}

async fn unknown_names() {
    let config = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let shake_hands = move |number: u32| {
        let connector = connector.clone();
        async move {
            let name = ServerName::try_from(format!("unknown-{number}.example.com")).unwrap();
            let stream = TcpStream::connect(address(TLS_TUNNELS)).await.unwrap();
            assert!(connector.connect(name, stream).await.is_err());
        }
    };
    each_second(UNKNOWN_NAMES_PER_SECOND, shake_hands).await;
}

/// Requests with such headers, each on a connection from another address.
async fn visits(name: String, headers: &str, are_answered: bool) {
    let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\n{headers}\r\n");
    let visit = move |number: u32| {
        let request = request.clone();
        async move {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(Ipv4Addr::from_bits(0x7f80_0000 + number).into(), 0)).unwrap();
            let mut stream = socket.connect(address(TUNNELS)).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = [0; 8192];
            let read = stream.read(&mut answer).await.unwrap();
            let said = String::from_utf8_lossy(&answer[..read]);
            assert_eq!(said.starts_with("HTTP/1.1 2"), are_answered, "{said}");
        }
    };
    each_second(GUESSES_PER_SECOND, visit).await;
}

/// Does something so many times a second, each with its own number.
async fn each_second<F: Future<Output = ()>>(times: u32, what: impl Fn(u32) -> F) {
    let begin = Instant::now();
    let mut under_way = FuturesUnordered::new();
    for number in 0.. {
        let due = begin + Duration::from_secs(1) / times * number;
        loop {
            tokio::select! {
                () = sleep_until(due) => break,
                Some(()) = under_way.next() => {}
            }
        }
        under_way.push(what(number));
    }
}

/// Answers each request without a body.
async fn answer_all(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut buffer, mut filled) = ([0; 16 * 1024], 0);
            while let Ok(read @ 1..) = stream.read(&mut buffer[filled..]).await {
                filled += read;
                if buffer[..filled].ends_with(b"\r\n\r\n") {
                    filled = 0;
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            }
        });
    }
}
