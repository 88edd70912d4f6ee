//! How much a TCP tunnel carries on loopback, beside rathole with Noise and the bare loopback.
//!
//! Needs iperf3 (Debian) and rathole 0.5 (`cargo install rathole --version 0.5.0`) on the PATH.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use culvert_bench::service::{ADDRESS, Killed, Service, until};
use culvert_bench::{median, verdict};
use serde_json::Value;

const SERVICE: u16 = 5301;
const RATHOLE: u16 = 5302;
const RATHOLE_CONTROL: u16 = 5303;
const SECONDS: &str = "4";
const ROUNDS: usize = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for program in ["iperf3", "rathole"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("{program} is not there: apt-get install iperf3; cargo install rathole --version 0.5.0");
            return;
        }
    }
    let service = Service::start().await;
    let _iperf = Killed::spawn(Command::new("iperf3").args(["-s", "-B", ADDRESS, "-p", &SERVICE.to_string()]));
    let _rathole = rathole(service.folder());
    let ours = service.tunnel(SERVICE).await;
    until(async || TcpStream::connect((ADDRESS, RATHOLE)).is_ok()).await;
    println!("Gbit/s through one tunnel on loopback, the median of {ROUNDS} rounds of {SECONDS} s");
    for streams in ["1", "4"] {
        let mut rates = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (rates, port) in rates.iter_mut().zip([SERVICE, ours, RATHOLE]) {
                rates.push(gigabits(port, streams));
            }
        }
        let [bare, ours, rathole] = rates.map(median);
        println!("{streams} stream(s): bare loopback {bare:.2}, culvert {ours:.2}, rathole with Noise {rathole:.2}");
        verdict("culvert to rathole with Noise", ours / rathole, ">= 1.3", ours >= 1.3 * rathole);
        println!("  culvert to the bare loopback {:>36.2}", ours / bare);
    }
}

fn gigabits(port: u16, streams: &str) -> f64 {
    let port = port.to_string();
    let line = ["-c", ADDRESS, "-p", &port, "-P", streams, "-t", SECONDS, "-J"];
    let output = Command::new("iperf3").args(line).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e9
}

/// A rathole server and client, as its documentation says, with Noise.
fn rathole(folder: &Path) -> [Killed; 2] {
    let keys = String::from_utf8(Command::new("rathole").arg("--genkey").output().unwrap().stdout).unwrap();
    let keys: Vec<&str> = keys.lines().filter(|line| line.ends_with('=')).collect();
    let [private, public] = keys[..] else { panic!("{keys:?}") };
    let server = format!(
        "[server]\nbind_addr = \"{ADDRESS}:{RATHOLE_CONTROL}\"\ndefault_token = \"bench\"\n\
         [server.transport]\ntype = \"noise\"\n[server.transport.noise]\nlocal_private_key = \"{private}\"\n\
         [server.services.iperf]\nbind_addr = \"{ADDRESS}:{RATHOLE}\"\n"
    );
    let client = format!(
        "[client]\nremote_addr = \"{ADDRESS}:{RATHOLE_CONTROL}\"\ndefault_token = \"bench\"\n\
         [client.transport]\ntype = \"noise\"\n[client.transport.noise]\nremote_public_key = \"{public}\"\n\
         [client.services.iperf]\nlocal_addr = \"{ADDRESS}:{SERVICE}\"\n"
    );
    [("server", server), ("client", client)].map(|(name, config)| {
        let path = folder.join(format!("{name}.toml"));
        std::fs::write(&path, config).unwrap();
        Killed::spawn(Command::new("rathole").arg(format!("--{name}")).arg(path))
    })
}
