//! Visitors from the Internet, and the services on devices that they come for.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use super::api::Api;
use super::host::TestHost;

/// Somebody who stays connected.
pub struct Visitor(pub TcpStream);

impl TestHost {
    /// Where a tunnel is reached.
    pub async fn public(&self, api: &Api, tunnel: Uuid) -> SocketAddr {
        let tunnel = api.get(&format!("/tunnels/{tunnel}")).await;
        let address = &tunnel.data()["public_address"];
        format!("{}:{}", address["hostname"].as_str().unwrap(), address["port"]).parse().unwrap()
    }

    /// A visitor of a tunnel to an echo service, who has been served once.
    pub async fn visitor(&self, api: &Api, tunnel: Uuid) -> Visitor {
        let mut visitor = Visitor(TcpStream::connect(self.public(api, tunnel).await).await.unwrap());
        assert_eq!(visitor.echo(b"hello").await.unwrap(), b"hello");
        visitor
    }
}

impl Visitor {
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

/// A service that says its name, whatever it gets.
pub async fn named_service(name: &'static str) -> SocketAddr {
    service(move |mut stream| async move {
        let _ = stream.write_all(name.as_bytes()).await;
        let _ = stream.shutdown().await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await
}
