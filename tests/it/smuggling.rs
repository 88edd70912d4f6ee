//! Request smuggling: what reaches a service has one meaning, whatever a visitor sends. The payloads follow the classes
//! that the HTTP Garden reports: lengths that contradict each other, spellings of `Transfer-Encoding`, line ends, chunks.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use culvert_test_macros::both_engines;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost, within};
use crate::support::web::{Browser, outcome, read_head};

/// How long a visitor waits for what the node says, in seconds.
const SOON: u64 = 20;
/// A request that nobody sends: it is in the body of another one.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: hello.tunnel.localhost\r\n\r\n";

/// The last request of a connection.
const LAST: &str = "GET /last HTTP/1.1\r\nHost: hello.tunnel.localhost\r\nConnection: close\r\n\r\n";

/// A service that keeps the bytes of each connection, and answers whatever it takes for a request.
struct Recorder {
    port: u16,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    connections: Vec<Vec<u8>>,
    /// The requests in the order in which they came.
    requests: Vec<String>,
}

impl Recorder {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, kept) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Kept>>::default());
        let all = kept.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let index = {
                    let mut all = all.lock().unwrap();
                    all.connections.push(Vec::new());
                    all.connections.len() - 1
                };
                tokio::spawn(record(stream, all.clone(), index));
            }
        });
        Self { port, kept }
    }

    /// The requests that came, as a reader of RFC 9112 finds them.
    fn requests(&self) -> Vec<String> {
        self.kept.lock().expect("the recorder has found two readings").requests.clone()
    }
}

async fn record(mut stream: TcpStream, kept: Arc<Mutex<Kept>>, index: usize) {
    let (mut answered, mut piece) = (0, [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut piece).await {
        let complete = {
            let mut kept = kept.lock().unwrap();
            kept.connections[index].extend_from_slice(&piece[..read]);
            let requests = read_all(&kept.connections[index]).0;
            kept.requests.extend_from_slice(&requests[answered..]);
            requests.len()
        };
        for _ in answered..complete {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
        answered = complete;
    }
}

/// The complete requests of a connection, and how many bytes they have. Anything that two readers could read in two ways
/// is a failure of the node.
fn read_all(bytes: &[u8]) -> (Vec<String>, usize) {
    let (mut requests, mut at) = (Vec::new(), 0);
    while let Some(length) = bytes[at..].windows(4).position(|end| end == b"\r\n\r\n") {
        let head = String::from_utf8(bytes[at..at + length].to_vec()).unwrap();
        let lines: Vec<&str> = head.split("\r\n").collect();
        assert!(!lines.iter().any(|line| line.contains(['\r', '\n', '\0'])), "a bare line end: {head:?}");
        let fields: Vec<(String, &str)> = lines[1..]
            .iter()
            .map(|line| line.split_once(':').unwrap_or_else(|| panic!("no field: {head:?}")))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim_matches([' ', '\t'])))
            .collect();
        assert!(fields.iter().all(|(name, _)| !name.ends_with([' ', '\t'])), "a space before a colon: {head:?}");
        let named =
            |wanted: &str| fields.iter().filter(|(name, _)| name == wanted).map(|(_, v)| *v).collect::<Vec<_>>();
        let (lengths, codings) = (named("content-length"), named("transfer-encoding"));
        assert!(lengths.len() + codings.len() <= 1, "two lengths: {head:?}");
        assert_eq!(named("host").len(), 1, "{head:?}");
        let body = at + length + 4;
        let end = match (lengths.as_slice(), codings.as_slice()) {
            ([length], []) => Some(body + length.parse::<usize>().unwrap()).filter(|end| *end <= bytes.len()),
            ([], [coding]) => {
                assert_eq!(*coding, "chunked", "{head:?}");
                end_of_chunks(bytes, body)
            }
            _ => Some(body),
        };
        let Some(end) = end else { break };
        requests.push(lines[0].to_owned());
        at = end;
    }
    (requests, at)
}

/// Where a chunked body ends, if it has come.
fn end_of_chunks(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let line = bytes[at..].windows(2).position(|end| end == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("a chunk of size {size:?}"));
        at += line + 2;
        if bytes.len() < at + size + 2 {
            return None;
        }
        assert_eq!(&bytes[at + size..at + size + 2], b"\r\n", "a chunk without its end");
        at += size + 2;
        if size == 0 {
            return Some(at);
        }
    }
}

/// What is sent as one request, with another one hidden in its body where it has one.
fn payloads() -> Vec<String> {
    let size = HIDDEN.len();
    let chunked = format!("{size:x}\r\n{HIDDEN}\r\n0\r\n\r\n");
    let head = |fields: &str, body: &str| {
        format!("POST /first HTTP/1.1\r\nHost: hello.tunnel.localhost\r\n{fields}\r\n{body}")
    };
    let mut all = Vec::new();
    // A length and chunks, in both orders, and lengths that contradict each other.
    for fields in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: 4, 5\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: 0x4\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 4 4\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length:\r\n",
        "Connection: Content-Length\r\nContent-Length: 4\r\n",
        "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        all.push(head(fields, &chunked));
        all.push(head(fields, &format!("0\r\n\r\n{HIDDEN}")));
    }
    // Spellings of the coding.
    for value in [
        "xchunked",
        "chunked, identity",
        "identity, chunked",
        "chunked, chunked",
        "\"chunked\"",
        "Chunked",
        "chunked;q=1",
        "chunked\t",
        "\x0bchunked",
        "gzip, chunked",
        "chunk\u{e9}d",
        "",
        ",chunked",
    ] {
        all.push(head(&format!("Transfer-Encoding: {value}\r\nContent-Length: 4\r\n"), &chunked));
        all.push(head(&format!("Transfer-Encoding: {value}\r\n"), &chunked));
    }
    // Fields that are none, and line ends that are none.
    for fields in [
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "X: y\r\n Transfer-Encoding: chunked\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n",
        "X: y\0\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer_Encoding: chunked\r\nContent-Length: 4\r\n",
        "Host: other.tunnel.localhost\r\n",
        ": x\r\n",
    ] {
        all.push(head(fields, &chunked));
    }
    // Chunks that are none.
    for body in [
        format!("{size:x}\n{HIDDEN}\n0\n\n"),
        format!("0x{size:x}\r\n{HIDDEN}\r\n0\r\n\r\n"),
        format!("+{size:x}\r\n{HIDDEN}\r\n0\r\n\r\n"),
        format!(" {size:x}\r\n{HIDDEN}\r\n0\r\n\r\n"),
        format!("{size:x};a=b\r\n{HIDDEN}\r\n0\r\n\r\n"),
        format!("{size:x};a\n{HIDDEN}\r\n0\r\n\r\n"),
        format!("fffffffffffffffff\r\n{HIDDEN}\r\n0\r\n\r\n"),
        format!("{size:x}\r\n{HIDDEN}xx0\r\n\r\n"),
        format!("0\r\nContent-Length: 4\r\n\r\n{HIDDEN}"),
        format!("0\r\nX: y\n\r\n{HIDDEN}"),
        format!("-0\r\n\r\n{HIDDEN}"),
        format!("\r\n0\r\n\r\n{HIDDEN}"),
    ] {
        all.push(head("Transfer-Encoding: chunked\r\n", &body));
    }
    // Request lines and versions.
    for line in [
        "POST /first HTTP/1.0\r\nTransfer-Encoding: chunked",
        "POST /first HTTP/1.1\nTransfer-Encoding: chunked",
        "POST  /first HTTP/1.1\r\nTransfer-Encoding: chunked",
        "POST /first HTTP/1.2\r\nTransfer-Encoding: chunked",
        "POST http://other.tunnel.localhost/first HTTP/1.1\r\nTransfer-Encoding: chunked",
        "GET /first HTTP/1.1\r\nTransfer-Encoding: chunked",
        "CONNECT hello.tunnel.localhost:80 HTTP/1.1\r\nX: y",
        "GET /first HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk",
        "GET /first HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 4",
    ] {
        all.push(format!("{line}\r\nHost: hello.tunnel.localhost\r\n\r\n{chunked}"));
    }
    all
}

/// Sends bytes and a last request, and reads until the node ends the connection. The answers that came.
async fn answers(node: std::net::SocketAddr, bytes: &[u8]) -> usize {
    let mut stream = TcpStream::connect(node).await.unwrap();
    // A connection that is reset meanwhile has said what it had to say.
    let _ = stream.write_all(&[bytes, LAST.as_bytes()].concat()).await;
    let mut said = Vec::new();
    let _ = within(SOON, stream.read_to_end(&mut said)).await;
    said.windows(9).filter(|text| *text == b"HTTP/1.1 ").count()
}

#[both_engines]
async fn service_never_reads_two_requests_where_a_visitor_sent_one(engine: Engine) {
    let host = TestHost::start(engine).await;
    let recorder = Recorder::start().await;
    let (_device, node) = tunnel_to(&host, recorder.port).await;
    for payload in payloads() {
        let before = recorder.requests().len();
        let answered = answers(node, payload.as_bytes()).await;
        let came = recorder.requests().split_off(before);
        // What follows the end of the first message is a request of its own, and gets an answer of its own.
        assert!(came.len() <= answered, "{came:?} for {answered} answers: {payload:?}");
        assert!(came.len() <= 3, "{came:?}: {payload:?}");
    }
    assert!(recorder.requests().len() > 20, "most of what is well-formed is passed on");
    assert_eq!((answers(node, b"").await, recorder.requests().pop().unwrap().as_str()), (1, "GET /last HTTP/1.1"));
}

/// A service that answers each head, and takes a body for the next request.
async fn service_without_bodies() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                while let Some(head) = read_head(&mut stream).await {
                    let path = head.split(' ').nth(1).unwrap();
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len());
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    port
}

/// A running tunnel `hello` to a port; where the node is.
async fn tunnel_to(host: &TestHost, port: u16) -> (TestDevice, std::net::SocketAddr) {
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
    let tunnel = json!({"protocol": "http", "subdomain": "hello", "local_port": port, "http_ssl_enabled": false});
    let tunnel = api.post("/tunnels", tunnel).await.id();
    host.run_tunnel(&api, &device, tunnel).await;
    (device, host.http_address().await)
}

/// A service that leaves bodies of GET unread answers what is in them. That answer is nobody else's.
#[both_engines]
async fn body_that_a_service_leaves_unread_reaches_no_other_visitor(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (_device, node) = tunnel_to(&host, service_without_bodies().await).await;
    for round in 0..20 {
        let mut attacker = Browser::open(node).await;
        let (head, size) = ("GET /first HTTP/1.1\r\nHost: hello.tunnel.localhost", HIDDEN.len());
        let (_, body) = attacker.send(&format!("{head}\r\nContent-Length: {size}\r\n\r\n{HIDDEN}")).await;
        assert_eq!(body, b"/first");
        let own = format!("/own/{round}");
        let (_, body) = Browser::open(node).await.get("hello.tunnel.localhost", &own).await;
        assert_eq!(String::from_utf8(body).unwrap(), own);
    }
}

/// The server of Python's standard library behind a tunnel: it reads no hidden request, and answers each visitor.
#[both_engines]
async fn server_of_python_reads_no_hidden_request(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("own"), "own").unwrap();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let log = folder.path().join("log");
    let mut server = Command::new("python3");
    server.args(["-u", "-m", "http.server", "--protocol", "HTTP/1.1", "--bind", "127.0.0.1", &port.to_string()]);
    server.current_dir(folder.path()).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let _server = server.kill_on_drop(true).spawn().unwrap();
    let host = TestHost::start(engine).await;
    let (_device, node) = tunnel_to(&host, port).await;
    let own = async || {
        let (head, body) = Browser::open(node).await.get("hello.tunnel.localhost", "/own").await;
        (outcome(&head), body)
    };
    within(SOON, async { while own().await.0 != "200" {} }).await;
    // It writes a line for each request before it answers.
    let requests = || std::fs::read_to_string(&log).unwrap().matches(" HTTP/1.1\" ").count();
    for payload in payloads().iter().filter(|payload| payload.starts_with("POST ")) {
        let before = requests();
        let answered = answers(node, payload.as_bytes()).await;
        let came = requests() - before;
        assert!(came <= answered, "{came} requests for {answered} answers: {payload:?}");
        assert_eq!(own().await, ("200".to_owned(), b"own".to_vec()), "{payload:?}");
    }
}
