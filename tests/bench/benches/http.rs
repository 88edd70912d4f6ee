//! What an http tunnel costs, beside nginx in front of the same service: requests a second by both versions of HTTP,
//! what it adds to a request, and a large body.
//!
//! Needs nginx, h2load, openssl, curl and haproxy (Debian: nginx-light, nghttp2-client, openssl, curl, haproxy) and
//! rathole 0.5 (`cargo install rathole --version 0.5.0`) on the PATH.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "it looks at a process while another one works")]

use std::fs::File;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_bench::service::{ADDRESS, Killed, Service, until};
use culvert_bench::{median, rathole, verdict};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio_rustls::TlsConnector;

/// Where nginx answers with 1 KiB, and where another nginx passes requests on to it, in the clear and by HTTPS.
const SERVICE: u16 = 5401;
const PROXY: u16 = 5402;
const TLS_PROXY: u16 = 5403;
/// Where rathole passes connections on to it.
const RATHOLE: u16 = 5405;
/// Where haproxy ends TLS before nginx.
const HANDSHAKES: u16 = 5404;
/// Visitors that shake hands at a time, and for how long they come.
const SHAKERS: usize = 8;
const SHAKING: Duration = Duration::from_secs(3);
const TUNNELS: u16 = 8081;
const TLS_TUNNELS: u16 = 8443;
const ROUNDS: usize = 5;
/// `ada:correct horse battery`.
const PASSWORD: &str = "authorization: Basic YWRhOmNvcnJlY3QgaG9yc2UgYmF0dGVyeQ==";
/// Bytes of the large body.
const LARGE: u64 = 10 << 30;

#[tokio::main]
async fn main() {
    for program in ["nginx", "h2load", "openssl", "curl", "haproxy", "rathole"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!(
                "{program} is not there: apt-get install nginx-light nghttp2-client openssl curl haproxy; cargo install rathole --version 0.5.0"
            );
            return;
        }
    }
    let service = Service::with(&[("CULVERT_NODE__HTTP__HANDSHAKES_PER_SECOND", "1000000")]).await;
    self_signed(service.folder());
    File::create(service.folder().join("large")).unwrap().set_len(LARGE).unwrap();
    let _peers = [nginx(service.folder(), "service"), nginx(service.folder(), "proxy")];
    let _rathole = rathole::plain(service.folder(), &[("service", RATHOLE, SERVICE)]);
    for port in [SERVICE, PROXY, TLS_PROXY, RATHOLE] {
        until(async || TcpStream::connect((ADDRESS, port)).is_ok()).await;
    }
    let name = service.web_tunnel(SERVICE).await;
    http1(&name);
    http2(&name);
    handshakes(&service, &name).await;
    latency(service.folder(), &name);
    authorized(&service, &name).await;
    let tcp = service.tunnel(SERVICE).await;
    large_body(&service, "to a visitor", (tcp, &name), &["-w", "%{speed_download} %{size_download}"]);
    let sink = tokio::net::TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let port = sink.local_addr().unwrap().port();
    tokio::spawn(swallow(sink));
    let (tcp, name) = (service.tunnel(port).await, service.web_tunnel(port).await);
    let file = service.folder().join("large").display().to_string();
    large_body(&service, "from a visitor", (tcp, &name), &["-w", "%{speed_upload} %{size_upload}", "-T", &file]);
}

fn http1(name: &str) {
    let run = |port| requests(&["--h1", "-c64", "-n60000"], &format!("http://{name}:{port}/"), port);
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        for (rates, port) in rates.iter_mut().zip([SERVICE, PROXY, RATHOLE, TUNNELS]) {
            rates.push(run(port));
        }
    }
    let [direct, proxy, rathole, ours] = rates.map(median);
    println!(
        "HTTP/1.1 requests a second for 1 KiB, 64 kept connections, the median of {ROUNDS} rounds of 60,000 requests"
    );
    println!("  direct {direct:.0}, nginx to nginx {proxy:.0}, rathole plain {rathole:.0}, culvert {ours:.0}");
    verdict("culvert to nginx to nginx", ours / proxy, ">= 0.5", ours >= 0.5 * proxy);
    verdict("culvert to rathole plain", ours / rathole, ">= 0.6", ours >= 0.6 * rathole);
}

fn http2(name: &str) {
    let run = |port| requests(&["-c32", "-m32", "-n60000"], &format!("https://{name}:{port}/"), port);
    let mut rates = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (rates, port) in rates.iter_mut().zip([TLS_PROXY, TLS_TUNNELS]) {
            rates.push(run(port));
        }
    }
    let [proxy, ours] = rates.map(median);
    println!(
        "HTTPS requests a second for 1 KiB by HTTP/2, 32 connections of 32 streams, the median of {ROUNDS} rounds of 60,000"
    );
    println!("  nginx to nginx {proxy:.0}, culvert {ours:.0}");
    verdict("culvert to nginx to nginx", ours / proxy, ">= 0.5", ours >= 0.5 * proxy);
}

/// TLS handshakes of visitors that are not known from before.
async fn handshakes(service: &Service, name: &str) {
    let folder = service.folder();
    let _haproxy = haproxy(folder);
    until(async || TcpStream::connect((ADDRESS, HANDSHAKES)).is_ok()).await;
    let root = Command::new("find").arg(folder).args(["-name", "root.pem"]).output().unwrap().stdout;
    let root = String::from_utf8(root).unwrap();
    let mut roots = RootCertStore::empty();
    for path in [Path::new(root.trim()), &folder.join("chain.pem")] {
        roots.add(CertificateDer::from_pem_file(path).unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    let connector = TlsConnector::from(Arc::new(config));
    let mut rates = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (rates, (port, name)) in rates.iter_mut().zip([(HANDSHAKES, "bench"), (TLS_TUNNELS, name)]) {
            let end = Instant::now() + SHAKING;
            let workers = (0..SHAKERS).map(|_| shake_hands(connector.clone(), port, name.to_owned(), end));
            let workers: Vec<_> = workers.map(tokio::spawn).collect();
            let mut done = 0;
            for worker in workers {
                done += worker.await.unwrap();
            }
            rates.push(f64::from(done) / SHAKING.as_secs_f64());
        }
    }
    let [haproxy, ours] = rates.map(median);
    println!("TLS handshakes a second, {SHAKERS} at a time, the median of {ROUNDS} rounds");
    println!("  haproxy {haproxy:.0}, culvert {ours:.0}");
    verdict("culvert to haproxy", ours / haproxy, ">= 0.6", ours >= 0.6 * haproxy);
}

async fn shake_hands(connector: TlsConnector, port: u16, name: String, end: Instant) -> u32 {
    let name = ServerName::try_from(name).unwrap();
    let mut done = 0;
    while Instant::now() < end {
        let stream = tokio::net::TcpStream::connect((ADDRESS, port)).await.unwrap();
        connector.connect(name.clone(), stream).await.unwrap();
        done += 1;
    }
    done
}

fn haproxy(folder: &Path) -> Killed {
    let pem = ["chain.pem", "key.pem"].map(|file| std::fs::read_to_string(folder.join(file)).unwrap()).concat();
    std::fs::write(folder.join("both.pem"), pem).unwrap();
    let config = format!(
        "global\n nbthread 2\ndefaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
         frontend in\n bind {ADDRESS}:{HANDSHAKES} ssl crt {folder}/both.pem\n default_backend service\n\
         backend service\n server service {ADDRESS}:{SERVICE}\n",
        folder = folder.display()
    );
    let path = folder.join("haproxy.cfg");
    std::fs::write(&path, config).unwrap();
    Killed::spawn(Command::new("haproxy").arg("-f").arg(path))
}

/// Requests a second, all of which were answered with success.
fn requests(options: &[&str], url: &str, port: u16) -> f64 {
    let said = h2load(options, url, port);
    let finished = said.lines().find(|line| line.starts_with("finished in ")).unwrap();
    let rate = finished.split(", ").find_map(|part| part.strip_suffix(" req/s")).unwrap();
    rate.parse().unwrap()
}

fn h2load(options: &[&str], url: &str, port: u16) -> String {
    let mut run = Command::new("h2load");
    run.args(["-t1", &format!("--connect-to={ADDRESS}:{port}")]).args(options).arg(url);
    let said = String::from_utf8(run.output().unwrap().stdout).unwrap();
    assert!(said.contains(" 0 failed, 0 errored") && said.contains(" 0 4xx, 0 5xx"), "{said}");
    said
}

/// What a tunnel adds to a request, at 1,000 requests a second.
fn latency(folder: &Path, name: &str) {
    let log = folder.join("requests.tsv");
    let times = |port: u16| {
        let _ = std::fs::remove_file(&log);
        let log_file = format!("--log-file={}", log.display());
        h2load(&["--h1", "-c1", "-m1", "--rps=1000", "-n5000", &log_file], &format!("http://{name}:{port}/"), port);
        let text = std::fs::read_to_string(&log).unwrap();
        let mut times: Vec<f64> = text.lines().map(|line| line.split('\t').nth(2).unwrap().parse().unwrap()).collect();
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[times.len() * 99 / 100])
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (times(SERVICE), times(TUNNELS))).collect();
    let [p50, p50_direct, p99, p99_direct] = [
        rounds.iter().map(|(_, (p50, _))| *p50).collect(),
        rounds.iter().map(|((p50, _), _)| *p50).collect(),
        rounds.iter().map(|(_, (_, p99))| *p99).collect(),
        rounds.iter().map(|((_, p99), _)| *p99).collect(),
    ]
    .map(median::<f64>);
    println!(
        "microseconds of a request, one each millisecond on one connection, the median of {ROUNDS} rounds of 5,000"
    );
    println!("  direct p50 {p50_direct:.0}, p99 {p99_direct:.0}; culvert p50 {p50:.0}, p99 {p99:.0}");
    verdict("added at p50", p50 - p50_direct, "<= 400", p50 - p50_direct <= 400.0);
    verdict("added at p99", p99 - p99_direct, "<= 2000", p99 - p99_direct <= 2000.0);
}

/// The host's processor time for requests that are let in by a password, beside those of a tunnel without one.
async fn authorized(service: &Service, open: &str) {
    let guarded = service.web_tunnel_of(json!({
        "local_port": SERVICE, "http_basic_auth_enabled": true,
        "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse battery",
    }));
    let guarded = guarded.await;
    let micros = |name: &str, header: &str| {
        let before = service.host().cpu();
        let options = ["--h1", "-c50", "-m1", "--rps=100", "-n25000", "-H", header];
        h2load(&options, &format!("http://{name}:{TUNNELS}/"), TUNNELS);
        (service.host().cpu() - before) / 25_000.0 * 1e6
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (micros(open, "accept: */*"), micros(&guarded, PASSWORD))).collect();
    let open = median(rounds.iter().map(|(open, _)| *open).collect());
    let guarded = median(rounds.iter().map(|(_, guarded)| *guarded).collect());
    println!(
        "microseconds of the host's processor for a request, 5,000 a second, the median of {ROUNDS} rounds of 25,000"
    );
    println!("  open {open:.0}, with a password {guarded:.0}");
    verdict("with a password, to open", guarded / open, "<= 1.2", guarded <= 1.2 * open);
}

/// Takes the large body of a request and answers, once a connection.
async fn swallow(listener: tokio::net::TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut stream, mut line) = (BufReader::with_capacity(1 << 20, stream), String::new());
            while stream.read_line(&mut line).await? > 0 && line != "\r\n" {
                line.clear();
            }
            tokio::io::copy(&mut (&mut stream).take(LARGE), &mut tokio::io::sink()).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await
        });
    }
}

/// A body of 10 GiB: its rate beside a tcp tunnel to the same service, and what the host keeps of it. curl says its rate and its
/// size.
fn large_body(service: &Service, direction: &str, (tcp, name): (u16, &str), options: &[&str]) {
    let before = service.host().resident();
    let (mut most, mut rates) = (before, [const { Vec::new() }; 2]);
    for _ in 0..3 {
        for (rates, port) in rates.iter_mut().zip([tcp, TUNNELS]) {
            let mut fetch = Command::new("curl");
            fetch.args(["-sS", "-o", "/dev/null", "-H", "Expect:", "-H", &format!("Host: {name}")]).args(options);
            let mut fetch = fetch.arg(format!("http://{ADDRESS}:{port}/large")).stdout(Stdio::piped()).spawn().unwrap();
            while fetch.try_wait().unwrap().is_none() {
                most = most.max(service.host().resident());
                std::thread::sleep(Duration::from_millis(100));
            }
            let said = String::from_utf8(fetch.wait_with_output().unwrap().stdout).unwrap();
            let (speed, size) = said.split_once(' ').unwrap();
            assert_eq!(size.parse(), Ok(LARGE));
            rates.push(speed.parse::<f64>().unwrap() * 8e-9);
        }
    }
    let [tcp, ours] = rates.map(median);
    println!("a body of 10 GiB {direction}, in Gbit/s, the median of 3 rounds");
    println!(
        "  tcp tunnel {tcp:.1}, http tunnel {ours:.1}; the host's memory {before:.0} MiB before, {most:.0} MiB at most"
    );
    verdict("http tunnel to tcp tunnel", ours / tcp, ">= 0.7", ours >= 0.7 * tcp);
    verdict("MiB more in the host", most - before, "<= 8", most - before <= 8.0);
}

/// A certificate for nginx, of the kind that the node's are.
fn self_signed(folder: &Path) {
    let mut make = Command::new("openssl");
    make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    make.args([
        "-subj",
        "/CN=bench",
        "-addext",
        "subjectAltName=DNS:bench",
        "-addext",
        "basicConstraints=CA:FALSE",
        "-keyout",
        "key.pem",
        "-out",
        "chain.pem",
    ])
    .current_dir(folder);
    assert!(make.output().unwrap().status.success());
}

fn nginx(folder: &Path, side: &str) -> Killed {
    std::fs::write(folder.join("index.html"), [b'x'; 1024]).unwrap();
    let folder = folder.display();
    let what = match side {
        "service" => format!("server {{ listen {ADDRESS}:{SERVICE}; root {folder}; keepalive_requests 1000000; }}"),
        _ => format!(
            "upstream service {{ server {ADDRESS}:{SERVICE}; keepalive 64; }}\n\
             ssl_certificate {folder}/chain.pem; ssl_certificate_key {folder}/key.pem;\n\
             server {{ listen {ADDRESS}:{PROXY}; listen {ADDRESS}:{TLS_PROXY} ssl http2; keepalive_requests 1000000; \
             location / {{ proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}"
        ),
    };
    let config = format!(
        "daemon off; master_process off; user root; worker_processes 1; pid {folder}/{side}.pid; error_log stderr crit;\n\
         events {{ worker_connections 8192; }}\n\
         http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; \
         fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n{what} }}\n"
    );
    let path = format!("{folder}/{side}.conf");
    std::fs::write(&path, config).unwrap();
    Killed::spawn(Command::new("nginx").args(["-e", "stderr", "-c", &path]))
}
