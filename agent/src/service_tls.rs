//! TLS with local services.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use culvert_wire::data2::visit::{H2, HTTP_11};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Made once: reading the system's certificates takes milliseconds, and sessions are resumed.
static VERIFIED: LazyLock<Result<Configs, Error>> = LazyLock::new(|| Configs::new(verifying()?));
static UNVERIFIED: LazyLock<Result<Configs, Error>> = LazyLock::new(|| Configs::new(trusting()?));

/// A configuration for each list of protocols that is offered.
struct Configs {
    h2: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

impl Configs {
    fn new(config: ClientConfig) -> Result<Self, Error> {
        let offering = |protocols: &[&str]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
            Arc::new(config)
        };
        Ok(Self { h2: offering(&[H2, HTTP_11]), http1: offering(&[HTTP_11]) })
    }
}

/// Makes TLS with a service of this name.
///
/// # Errors
///
/// If the service does not speak TLS, or its certificate is not good.
pub(crate) async fn connect(
    stream: TcpStream,
    name: &str,
    verifies: bool,
    offers_h2: bool,
) -> io::Result<TlsStream<TcpStream>> {
    let configs = if verifies { &*VERIFIED } else { &*UNVERIFIED };
    let configs = configs.as_ref().map_err(io::Error::other)?;
    let config = if offers_h2 { &configs.h2 } else { &configs.http1 };
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(config.clone()).connect(name, stream).await
}

/// The protocol that a service has chosen (RFC 7301).
pub(crate) fn chosen_protocol(stream: &TlsStream<TcpStream>) -> Option<String> {
    let protocol = stream.get_ref().1.alpn_protocol()?;
    String::from_utf8(protocol.to_vec()).ok()
}

/// Whether certificates of services at an address are taken as they are, where nothing else is said: its network is the
/// device's own.
pub(crate) fn is_near(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
}

/// Verifies by the certificates of the operating system.
fn verifying() -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a certificate of the system cannot be read");
    }
    roots.add_parsable_certificates(found.certs);
    Ok(builder()?.with_root_certificates(roots).with_no_client_auth())
}

fn trusting() -> Result<ClientConfig, Error> {
    let verifier = Trusting(aws_lc_rs::default_provider());
    let builder = builder()?.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(builder.with_no_client_auth())
}

/// Takes every certificate.
#[derive(Debug)]
struct Trusting(CryptoProvider);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
