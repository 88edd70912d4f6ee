//! What becomes of a client's connection when its request is refused.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::host::{Engine, TestHost};

/// A connection that stays open from one request to the next.
struct Client(TcpStream);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// The head of the next answer, in lower case.
    async fn answer(&mut self) -> String {
        let mut bytes = Vec::new();
        loop {
            let read = self.0.read_buf(&mut bytes).await.unwrap();
            let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                assert_ne!(read, 0, "the host hung up: {text}");
                continue;
            };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if body.len() >= length.unwrap() {
                return head.into();
            }
        }
    }
}

/// Whatever is refused before its body has come, the next request on the connection is answered.
#[tokio::test]
async fn early_refusal_keeps_connection_open() {
    let host = TestHost::start(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    let key = format!("Authorization: Bearer {}\r\n", ada.key);
    let mut client = Client(TcpStream::connect(host.address).await.unwrap());
    for (request, key, status) in [
        ("POST /v2/tunnels", "", 401),
        ("POST /v2/nothing", &*key, 404),
        ("PUT /v2/tunnels", &*key, 405),
        ("GET /v2/account", &*key, 200),
        ("POST /v1/tunnels", "", 410),
    ] {
        let body = "Content-Type: application/json\r\nContent-Length: 2\r\n";
        client.send(&format!("{request} HTTP/1.1\r\nHost: h\r\n{key}{body}\r\n")).await;
        client.send("{}").await;
        assert!(client.answer().await.starts_with(&format!("http/1.1 {status} ")), "{request}");
    }
}

/// Where the host will not read on, it says that the connection ends.
#[tokio::test]
async fn oversized_body_closes_connection() {
    let host = TestHost::start(Engine::Sqlite).await;
    let ada = host.person("ada").await;
    let mut client = Client(TcpStream::connect(host.address).await.unwrap());
    let head = format!(
        "POST /v2/tunnels HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {}\r\nIdempotency-Key: k\r\n\
         Content-Type: application/json\r\nContent-Length: 300000\r\n\r\n",
        ada.key
    );
    client.send(&head).await;
    client.send(&" ".repeat(263_000)).await;
    let answer = client.answer().await;
    assert!(answer.starts_with("http/1.1 413 ") && answer.contains("connection: close"), "{answer}");
}
