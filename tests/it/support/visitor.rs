//! Visitors from the Internet, and the services on devices that they come for.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use uuid::Uuid;

use super::api::Api;
use super::host::TestHost;

/// Somebody who stays connected.
pub struct Visitor(pub TcpStream);

impl TestHost {
    /// Where a tunnel is reached.
    pub async fn public(&self, api: &Api, tunnel: Uuid) -> SocketAddr {
        reached_at(api.get(&format!("/tunnels/{tunnel}")).await.data())
    }

    /// A visitor of a tunnel to an echo service, who has been served once.
    pub async fn visitor(&self, api: &Api, tunnel: Uuid) -> Visitor {
        let mut visitor = Visitor(TcpStream::connect(self.public(api, tunnel).await).await.unwrap());
        assert_eq!(visitor.echo(b"hello").await.unwrap(), b"hello");
        visitor
    }
}

/// Where a tunnel or one of its extra ports is reached.
pub fn reached_at(record: &Value) -> SocketAddr {
    let address = &record["public_address"];
    format!("{}:{}", address["hostname"].as_str().unwrap(), address["port"]).parse().unwrap()
}

/// Whether nobody listens at an address.
pub async fn is_closed(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

impl Visitor {
    /// Somebody who comes from an address of their own to an echo service, and has been served once;
    /// none, where they were turned away.
    pub async fn from(source: &str, address: SocketAddr) -> Option<Self> {
        let come = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(source.parse().unwrap(), 0))?;
            let mut visitor = Self(socket.connect(address).await?);
            visitor.echo(b"hello").await.map(|_| visitor)
        };
        match come.await {
            Ok(visitor) => Some(visitor),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("neither let in nor turned away: {error}"),
        }
    }

    /// Sends bytes and reads as many.
    pub async fn echo(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.0.write_all(bytes).await?;
        let mut answer = vec![0; bytes.len()];
        self.0.read_exact(&mut answer).await?;
        Ok(answer)
    }

    /// Waits for the end; whether it was a reset.
    pub async fn was_reset(mut self) -> bool {
        let mut rest = Vec::new();
        let ended = self.0.read_to_end(&mut rest).await;
        ended.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
    }
}

/// Visits a tunnel: sends bytes, ends its own direction, and reads until the other ends.
pub async fn visit(host: &TestHost, api: &Api, tunnel: Uuid, bytes: &[u8]) -> io::Result<Vec<u8>> {
    exchange(host.public(api, tunnel).await, bytes).await
}

pub async fn exchange(address: SocketAddr, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let (mut reader, mut writer) = stream.split();
    let mut answer = Vec::new();
    let send = async {
        writer.write_all(bytes).await?;
        writer.shutdown().await
    };
    let receive = reader.read_to_end(&mut answer);
    let (sent, received) = tokio::join!(send, receive);
    received?;
    sent?;
    Ok(answer)
}

/// A service that does the same with every connection.
pub async fn service<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A service that sends back what it gets.
pub async fn echo_service() -> SocketAddr {
    service(|mut stream| async move {
        let (mut reader, mut writer) = stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        let _ = writer.shutdown().await;
    })
    .await
}

/// A service that reads everything before it answers with everything.
pub async fn patient_service() -> SocketAddr {
    service(|mut stream| async move {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
        let _ = stream.write_all(&all).await;
        let _ = stream.shutdown().await;
    })
    .await
}

/// A service that says its name, whatever it gets.
pub async fn named_service(name: &'static str) -> SocketAddr {
    service(move |mut stream| async move {
        let _ = stream.write_all(name.as_bytes()).await;
        let _ = stream.shutdown().await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await
}
