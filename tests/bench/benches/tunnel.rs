//! How much a TCP tunnel carries on loopback, and how many visitors it takes, beside rathole (with Noise, and plain), haproxy
//! and the bare loopback.
//!
//! Needs iperf3 and haproxy (Debian) and rathole 0.5 (`cargo install rathole --version 0.5.0`) on the PATH.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use culvert_bench::service::{ADDRESS, Killed, Service, until};
use culvert_bench::{median, rathole, verdict};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Where iperf3 listens, and the public ports that lead to it.
const BULK: u16 = 5301;
const BULK_NOISE: u16 = 5302;
const BULK_PLAIN: u16 = 5303;
const BULK_HAPROXY: u16 = 5304;
/// Where a service answers a byte with a byte, and the public ports that lead to it.
const ECHO: u16 = 5311;
const ECHO_PLAIN: u16 = 5313;
const ECHO_HAPROXY: u16 = 5314;
const SECONDS: &str = "4";
const ROUNDS: usize = 5;
/// Visitors at a time, and for how long they come.
const VISITORS: usize = 32;
const VISITING: Duration = Duration::from_secs(4);

#[tokio::main]
async fn main() {
    for (program, version) in [("iperf3", "--version"), ("haproxy", "-v"), ("rathole", "--version")] {
        if Command::new(program).arg(version).output().is_err() {
            println!("{program} is not there: apt-get install iperf3 haproxy; cargo install rathole --version 0.5.0");
            return;
        }
    }
    let service = Service::start().await;
    let _iperf = Killed::spawn(Command::new("iperf3").args(["-s", "-B", ADDRESS, "-p", &BULK.to_string()]));
    let _peers = [
        rathole::noise(service.folder(), &[("bulk", BULK_NOISE, BULK)]),
        rathole::plain(service.folder(), &[("bulk", BULK_PLAIN, BULK), ("echo", ECHO_PLAIN, ECHO)]),
    ];
    let _haproxy = haproxy(service.folder());
    let echo = TcpListener::bind((ADDRESS, ECHO)).await.unwrap();
    tokio::spawn(answer(echo));
    let (bulk, echo) = (service.tunnel(BULK).await, service.tunnel(ECHO).await);
    for port in [BULK_NOISE, BULK_PLAIN, BULK_HAPROXY, ECHO_PLAIN, ECHO_HAPROXY] {
        until(async || TcpStream::connect((ADDRESS, port)).is_ok()).await;
    }
    streams(bulk);
    visitors(echo).await;
}

fn streams(ours: u16) {
    println!("Gbit/s through one tunnel on loopback, the median of {ROUNDS} rounds of {SECONDS} s");
    for (streams, to_plain) in [("1", 1.3), ("4", 1.0)] {
        let mut rates = [const { Vec::new() }; 5];
        for _ in 0..ROUNDS {
            for (rates, port) in rates.iter_mut().zip([BULK, ours, BULK_NOISE, BULK_PLAIN, BULK_HAPROXY]) {
                rates.push(gigabits(port, streams));
            }
        }
        let [bare, ours, noise, plain, haproxy] = rates.map(median);
        println!(
            "{streams} stream(s): bare loopback {bare:.2}, culvert {ours:.2}, rathole with Noise {noise:.2}, plain {plain:.2}, haproxy over TLS {haproxy:.2}"
        );
        verdict("culvert to rathole with Noise", ours / noise, ">= 2.5", ours >= 2.5 * noise);
        verdict("culvert to rathole plain", ours / plain, &format!(">= {to_plain}"), ours >= to_plain * plain);
        verdict("culvert to haproxy over TLS", ours / haproxy, ">= 0.9", ours >= 0.9 * haproxy);
        println!("  culvert to the bare loopback {:>36.2}", ours / bare);
    }
}

fn gigabits(port: u16, streams: &str) -> f64 {
    let port = port.to_string();
    let line = ["-c", ADDRESS, "-p", &port, "-P", streams, "-t", SECONDS, "-J"];
    loop {
        let output = Command::new("iperf3").args(line).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        match report["end"]["sum_received"]["bits_per_second"].as_f64() {
            Some(bits) => return bits / 1e9,
            // Its server takes one test at a time, and the one before may not have ended there yet.
            None => println!("  port {port}: {}", report["error"]),
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A service that sends each byte back.
async fn answer(listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut byte = [0];
            while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
        });
    }
}

async fn visitors(ours: u16) {
    let mut rates = [const { Vec::new() }; 3];
    let mut failed = [0; 3];
    for _ in 0..ROUNDS {
        for (index, port) in [ours, ECHO_PLAIN, ECHO_HAPROXY].into_iter().enumerate() {
            let (rate, lost) = visit(port).await;
            rates[index].push(rate);
            failed[index] += lost;
        }
    }
    let [ours, plain, haproxy] = rates.map(median);
    println!("visitors a second, {VISITORS} at a time, a byte each way, the median of {ROUNDS} rounds");
    println!("  culvert {ours:.0}, rathole plain {plain:.0}, haproxy in one hop {haproxy:.0}; cut off {failed:?}");
    verdict("culvert to rathole plain", ours / plain, ">= 1.5", ours >= 1.5 * plain);
    verdict("culvert to haproxy in one hop", ours / haproxy, ">= 0.25", ours >= 0.25 * haproxy);
}

/// Visitors that were served in a second, and how many were not.
async fn visit(port: u16) -> (f64, u64) {
    let start = Instant::now();
    let failed = Arc::new(AtomicU64::new(0));
    let visitor = |failed: Arc<AtomicU64>| async move {
        let mut served = 0_u64;
        while start.elapsed() < VISITING {
            match one_visit(port).await {
                Ok(()) => served += 1,
                Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
            }
        }
        served
    };
    let visitors: Vec<_> = (0..VISITORS).map(|_| tokio::spawn(visitor(failed.clone()))).collect();
    let mut served = 0;
    for visitor in visitors {
        served += visitor.await.unwrap();
    }
    (served as f64 / start.elapsed().as_secs_f64(), failed.load(Ordering::Relaxed))
}

async fn one_visit(port: u16) -> std::io::Result<()> {
    let mut stream = tokio::net::TcpStream::connect((ADDRESS, port)).await?;
    stream.set_nodelay(true)?;
    stream.write_all(b"a").await?;
    stream.read_u8().await?;
    // Both directions end, as they do for most visitors. Ports in TIME_WAIT are used again on loopback (tcp_tw_reuse).
    stream.shutdown().await?;
    if stream.read(&mut [0]).await? > 0 {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    Ok(())
}

/// haproxy in two hops, with TLS between them, for the bulk; in one hop for the visitors.
fn haproxy(folder: &Path) -> Killed {
    let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bench \
                -keyout key.pem -out certificate.pem && cat certificate.pem key.pem > haproxy.pem";
    assert!(Command::new("sh").args(["-c", make]).current_dir(folder).output().unwrap().status.success());
    let hop = |name: &str, bind: String, server: String| {
        format!("listen {name}\n  bind {ADDRESS}:{bind}\n  server one {ADDRESS}:{server}\n")
    };
    let config =
        "defaults\n  mode tcp\n  maxconn 10000\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n"
            .to_owned()
            + &hop("near", BULK_HAPROXY.to_string(), "5353 ssl verify none".into())
            + &hop("far", "5353 ssl crt haproxy.pem".into(), BULK.to_string())
            + &hop("echo", ECHO_HAPROXY.to_string(), ECHO.to_string());
    let path = folder.join("haproxy.cfg");
    std::fs::write(&path, config).unwrap();
    Killed::spawn(Command::new("haproxy").arg("-f").arg(path).current_dir(folder))
}
