//! What well-behaved visitors of an http tunnel feel of hostile ones: slow ones, handshakes for names that nobody has,
//! and guesses of a password.
//!
//! Needs slowhttptest (Debian: slowhttptest) on the PATH.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::net::{Ipv4Addr, SocketAddr};
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
const TLS_TUNNELS: u16 = 8443;
const ROUNDS: usize = 5;
/// The requests whose time is measured.
const PROBES_PER_SECOND: u32 = 500;
const PROBING: Duration = Duration::from_secs(3);
const UNKNOWN_NAMES_PER_SECOND: u32 = 500;
const GUESSES_PER_SECOND: u32 = 1_000;
/// Connections of one way to be slow, and the ways of slowhttptest: heads, bodies, ranges, reading.
const SLOW: usize = 500;
const WAYS: [&str; 4] = ["-H", "-B -s 8192 -t POST", "-R -t GET", "-X -w 1 -y 1 -n 5 -z 1 -k 3"];

#[tokio::main]
async fn main() {
    if Command::new("slowhttptest").arg("-h").output().await.is_err() {
        println!("slowhttptest is not there: apt-get install slowhttptest");
        return;
    }
    let many = ["CONNECTIONS_PER_ADDRESS", "HANDSHAKES_PER_SECOND"].map(|name| format!("CULVERT_NODE__HTTP__{name}"));
    let service = Service::with(&[(&many[0], "100000"), (&many[1], "100000")]).await;
    let listener = TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(answer_all(listener));
    let name = service.web_tunnel(port).await;
    let guarded = service.web_tunnel_of(json!({
        "local_port": port, "http_basic_auth_enabled": true,
        "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse battery",
    }));
    let guarded = guarded.await;
    for way in WAYS {
        let slow = || slow_visitors(way, &name);
        compare(&format!("{SLOW} connections of `slowhttptest {way}`"), &name, slow).await;
    }
    let unknown = || AbortOnDropHandle::new(tokio::spawn(unknown_names()));
    compare(&format!("{UNKNOWN_NAMES_PER_SECOND} handshakes a second for unknown names"), &name, unknown).await;
    let guess = || AbortOnDropHandle::new(tokio::spawn(guesses(guarded.clone())));
    compare(&format!("{GUESSES_PER_SECOND} wrong guesses a second, each from another address"), &name, guess).await;
}

/// The p99 of the probes, alone and beside what `begin` starts. It ends when its guard is dropped.
async fn compare<G>(what: &str, name: &str, begin: impl Fn() -> G) {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let alone = probe(name).await;
        let guard = begin();
        tokio::time::sleep(Duration::from_secs(3)).await;
        rounds.push((alone, probe(name).await));
        drop(guard);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let p99 = |round: &Round| round.p99.as_secs_f64() * 1e6;
    let alone = median(rounds.iter().map(|(alone, _)| p99(alone)).collect());
    let beside = median(rounds.iter().map(|(_, beside)| p99(beside)).collect());
    println!("p99 of a request beside {what}, the median of {ROUNDS} rounds, in microseconds");
    println!("  alone {alone:.0}, beside {beside:.0}");
    verdict("beside, to alone", beside / alone, "<= 2", beside <= 2.0 * alone);
}

async fn probe(name: &str) -> Round {
    let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
    paced(address(TUNNELS), 8, PROBES_PER_SECOND, PROBING, move || request.clone()).await
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(ADDRESS.parse().unwrap(), port)
}

fn slow_visitors(way: &str, name: &str) -> Killed {
    let mut run = std::process::Command::new("slowhttptest");
    run.args(way.split(' ')).args(["-c", &SLOW.to_string(), "-r", "500", "-i", "1", "-l", "60", "-p", "3"]);
    // The name is in no DNS, so that the node is asked as a proxy is.
    run.args(["-d", &address(TUNNELS).to_string(), "-u", &format!("http://{name}:{TUNNELS}/")]);
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

/// Wrong passwords, each from another address.
async fn guesses(name: String) {
    // `ada:wrong`.
    let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\nAuthorization: Basic YWRhOndyb25n\r\n\r\n");
    let guess = move |number: u32| {
        let request = request.clone();
        async move {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(Ipv4Addr::from_bits(0x7f80_0000 + number).into(), 0)).unwrap();
            let mut stream = socket.connect(address(TUNNELS)).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = [0; 8192];
            let read = stream.read(&mut answer).await.unwrap();
            let said = String::from_utf8_lossy(&answer[..read]);
            assert!(!said.starts_with("HTTP/1.1 2"), "{said}");
        }
    };
    each_second(GUESSES_PER_SECOND, guess).await;
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
