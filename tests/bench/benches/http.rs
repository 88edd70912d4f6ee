//! How many requests an http tunnel passes on, beside nginx in front of the same service.
//!
//! Needs nginx and h2load (Debian: nginx-light, nghttp2-client) on the PATH.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use culvert_bench::service::{ADDRESS, Killed, Service, until};
use culvert_bench::{median, verdict};

/// Where nginx answers with 1 KiB, and where another nginx passes requests on to it.
const SERVICE: u16 = 5401;
const PROXY: u16 = 5402;
const TUNNELS: u16 = 8081;
const REQUESTS: &str = "60000";
const ROUNDS: usize = 5;
const CLIENTS: &str = "64";

#[tokio::main]
async fn main() {
    for program in ["nginx", "h2load"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("{program} is not there: apt-get install nginx-light nghttp2-client");
            return;
        }
    }
    let service = Service::start().await;
    let _peers = [nginx(service.folder(), "service"), nginx(service.folder(), "proxy")];
    for port in [SERVICE, PROXY] {
        until(async || TcpStream::connect((ADDRESS, port)).is_ok()).await;
    }
    let name = service.web_tunnel(SERVICE).await;
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (rates, (port, host)) in rates.iter_mut().zip([(SERVICE, "direct"), (PROXY, "proxy"), (TUNNELS, &name)]) {
            rates.push(requests(port, host));
        }
    }
    let [direct, proxy, ours] = rates.map(median);
    println!(
        "HTTP/1.1 requests a second for 1 KiB, {CLIENTS} kept connections, the median of {ROUNDS} rounds of {REQUESTS} requests"
    );
    println!("  direct {direct:.0}, nginx to nginx {proxy:.0}, culvert {ours:.0}");
    verdict("culvert to nginx to nginx", ours / proxy, ">= 0.5", ours >= 0.5 * proxy);
}

/// Requests a second, all of which were answered with success.
fn requests(port: u16, host: &str) -> f64 {
    let (url, header) = (format!("http://{ADDRESS}:{port}/"), format!("Host: {host}"));
    let line = ["--h1", "-t1", "-c", CLIENTS, "-n", REQUESTS, "-H", &header, &url];
    let output = Command::new("h2load").args(line).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let finished = said.lines().find(|line| line.starts_with("finished in ")).unwrap();
    assert!(said.contains(" 0 4xx, 0 5xx"), "{said}");
    let rate = finished.split(", ").find_map(|part| part.strip_suffix(" req/s")).unwrap();
    rate.parse().unwrap()
}

fn nginx(folder: &Path, side: &str) -> Killed {
    std::fs::write(folder.join("index.html"), [b'x'; 1024]).unwrap();
    let folder = folder.display();
    let what = match side {
        "service" => format!("server {{ listen {ADDRESS}:{SERVICE}; root {folder}; keepalive_requests 1000000; }}"),
        _ => format!(
            "upstream service {{ server {ADDRESS}:{SERVICE}; keepalive 64; }}\n\
             server {{ listen {ADDRESS}:{PROXY}; keepalive_requests 1000000; location / {{ proxy_pass http://service; \
             proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}"
        ),
    };
    let config = format!(
        "daemon off; user root; worker_processes 1; pid {folder}/{side}.pid; error_log stderr crit;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; \
         fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n{what} }}\n"
    );
    let path = format!("{folder}/{side}.conf");
    std::fs::write(&path, config).unwrap();
    Killed::spawn(Command::new("nginx").args(["-e", "stderr", "-c", &path]))
}
