//! Web services on devices, and browsers that come to them: bytes as they are on the wire.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A service that answers each request with its own bytes, as far as no path says otherwise:
///
/// | path | answer |
/// |---|---|
/// | `/echo…` | 200, the request's head and body as they came |
/// | `/close` | 200, and the connection is closed |
/// | `/garbage` | bytes that are not HTTP |
/// | `/silence` | nothing |
/// | `/big` | 64 MiB |
/// | `/stall` | a head, half of the body, and nothing more |
/// | `/half` | a head, half of the body, and a closed connection |
/// | `/stream` | chunks of one byte, as the request's body brings them |
pub struct WebService {
    pub port: u16,
    /// How many connections have come.
    pub connections: Arc<AtomicUsize>,
}

impl WebService {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream));
            }
        });
        Self { port, connections }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn serve(mut stream: TcpStream) {
    while let Some(head) = read_head(&mut stream).await {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let answered = match path.as_str() {
            "/garbage" => return drop(stream.write_all(b"SSH-2.0-nothing of the Web\r\n\r\n").await),
            "/silence" => std::future::pending().await,
            "/stall" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf!").await;
                std::future::pending().await
            }
            "/half" => return drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf!").await),
            "/big" => {
                let size = 64 * 1024 * 1024;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                stream.write_all(&vec![7; size]).await
            }
            "/close" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
                return;
            }
            "/stream" => stream_back(&mut stream).await,
            _ => {
                let body = read_body(&mut stream, &head).await;
                let answer = [head.as_bytes(), &body].concat();
                let start = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nculvert-error: forged\r\nkeep-alive: timeout=5\r\n\r\n",
                    answer.len()
                );
                stream.write_all(&[start.as_bytes(), &answer].concat()).await
            }
        };
        if answered.is_err() {
            return;
        }
    }
}

/// Answers each chunk when it has come.
async fn stream_back(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/html\r\n\r\n").await?;
    loop {
        let chunk = read_chunk(stream).await;
        stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await?;
        stream.write_all(&[&chunk[..], b"\r\n"].concat()).await?;
        if chunk.is_empty() {
            return Ok(());
        }
    }
}

/// Reads up to the end of a head; `None` where the connection ends before.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

/// Reads the body that a head announces, with its trailers.
pub async fn read_body(stream: &mut TcpStream, head: &str) -> Vec<u8> {
    let head = head.to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        let mut body = Vec::new();
        loop {
            let size = read_size(stream).await;
            if size == 0 {
                // The trailers, and an empty line.
                body.extend(read_trailers(stream).await);
                return body;
            }
            body.extend(read_piece(stream, size).await);
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.unwrap();
    body
}

/// One chunk of a body without trailers; the last one is empty.
pub async fn read_chunk(stream: &mut TcpStream) -> Vec<u8> {
    let size = read_size(stream).await;
    read_piece(stream, size).await
}

async fn read_line(stream: &mut TcpStream) -> Vec<u8> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.unwrap());
    }
    line
}

async fn read_size(stream: &mut TcpStream) -> usize {
    let line = read_line(stream).await;
    usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap()
}

async fn read_trailers(stream: &mut TcpStream) -> Vec<u8> {
    let mut trailers = Vec::new();
    loop {
        match read_line(stream).await {
            line if line == b"\r\n" => return trailers,
            line => trailers.extend(line),
        }
    }
}

async fn read_piece(stream: &mut TcpStream, size: usize) -> Vec<u8> {
    let mut chunk = vec![0; size + 2];
    stream.read_exact(&mut chunk).await.unwrap();
    chunk.truncate(size);
    chunk
}

/// A visitor's connection to a node's HTTP listener.
pub struct Browser(pub TcpStream);

impl Browser {
    pub async fn open(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Sends a request; returns head and body of the answer.
    pub async fn send(&mut self, request: &str) -> (String, Vec<u8>) {
        self.0.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut self.0).await.expect("the connection was closed");
        let body = read_body(&mut self.0, &head).await;
        (head, body)
    }

    pub async fn get(&mut self, name: &str, path: &str) -> (String, Vec<u8>) {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n")).await
    }

    /// Status, and the code of an answer of the node itself.
    pub async fn outcome(&mut self, name: &str, path: &str) -> String {
        outcome(&self.get(name, path).await.0)
    }
}

/// Status, and the code of an answer of the node itself.
pub fn outcome(head: &str) -> String {
    let status = head.split(' ').nth(1).unwrap();
    match header(head, "culvert-error") {
        Some(code) => format!("{status} {code}"),
        None => status.to_owned(),
    }
}

pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}
