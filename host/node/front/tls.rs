//! The handshake with visitors that come by HTTPS.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::client_network::prefix;
use culvert_wire::clock::Clock;
use culvert_wire::per_second::PerSecond;
use rustls::crypto::aws_lc_rs;
use rustls::server::Acceptor;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{Error, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificates::{Certificates, Held};

const H2: &[u8] = b"h2";
const HTTP_11: &[u8] = b"http/1.1";
const ACME_TLS: &[u8] = b"acme-tls/1";
/// A fatal alert `unrecognized_name` (RFC 6066, section 3), as the only record before a handshake. rustls sends
/// `access_denied` in this place.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

pub(super) struct TlsFront {
    clock: Clock,
    certificates: Arc<Certificates>,
    config: Arc<ServerConfig>,
    rate: PerSecond,
    timeout: Duration,
}

/// A connection after its handshake.
pub(super) struct Handshaken {
    /// In a box: it takes more than a kilobyte.
    pub stream: Box<TlsStream<TcpStream>>,
    /// The certificate that the visitor was shown.
    pub shown: Arc<Held>,
    pub is_h2: bool,
}

impl TlsFront {
    /// # Errors
    ///
    /// Where the cryptography of this build is unusable.
    pub(super) fn new(
        clock: Clock,
        certificates: Arc<Certificates>,
        per_second: usize,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(certificates.clone());
        config.alpn_protocols = vec![H2.into(), HTTP_11.into()];
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        Ok(Self { rate: PerSecond::new(per_second), clock, certificates, config: Arc::new(config), timeout })
    }

    /// Whether an address may begin one more handshake in this second.
    pub(super) fn allows(&self, address: IpAddr) -> bool {
        self.rate.allows(prefix(address), self.clock.moment())
    }

    /// Makes the handshake. `None` if it was an authority's that looks at a challenge, and has seen it.
    ///
    /// # Errors
    ///
    /// If the visitor is too slow, names no known name, or the handshake fails.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<Option<Handshaken>> {
        let handshake = self.clock.timeout(self.timeout, self.handshake(stream));
        handshake.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<Option<Handshaken>> {
        let mut start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let hello = start.client_hello();
        let name = hello.server_name().map(str::to_ascii_lowercase);
        // RFC 8737, section 3: it is the only protocol that an authority offers.
        let is_challenge = hello.alpn().is_some_and(|mut offered| offered.next() == Some(ACME_TLS));
        if is_challenge {
            let key = name.and_then(|name| self.certificates.challenge_certificate(&name));
            let Some(key) = key else { return unknown(&mut start.io).await };
            let mut stream = start.into_stream(challenge_config(key).map_err(io::Error::other)?).await?;
            stream.shutdown().await?;
            return Ok(None);
        }
        let Some(shown) = name.and_then(|name| self.certificates.find(&name)) else {
            return unknown(&mut start.io).await;
        };
        let stream = Box::new(start.into_stream(self.config.clone()).await?);
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        Ok(Some(Handshaken { stream, shown, is_h2 }))
    }
}

/// Ends a handshake for a name that is not known.
async fn unknown<T>(stream: &mut TcpStream) -> io::Result<T> {
    stream.write_all(&UNRECOGNIZED_NAME).await?;
    stream.shutdown().await?;
    Err(io::Error::other("the visitor names no name with a certificate"))
}

/// What answers a challenge: one certificate, one protocol.
fn challenge_config(key: Arc<CertifiedKey>) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = vec![ACME_TLS.into()];
    Ok(Arc::new(config))
}
