//! TLS between an agent and a node, with the one certificate named on the control channel.
//!
//! The node's certificate is self-signed. The agent receives its fingerprint from the host, over an
//! authenticated connection, and accepts no other certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use sha2::{Digest, Sha256};

/// SHA-256 of a DER-encoded certificate.
pub fn fingerprint(certificate: &[u8]) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

/// The cipher suites of data connections: AES-128 first, because it is the fastest in hardware.
fn provider() -> Arc<CryptoProvider> {
    use aws_lc_rs::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256};
    Arc::new(CryptoProvider {
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256],
        ..aws_lc_rs::default_provider()
    })
}

/// The agent's configuration: accepts only the certificate with this fingerprint, and speaks one version of the data
/// connections' protocol, named by its ALPN.
///
/// # Errors
///
/// Where TLS 1.3 is not available.
pub fn client(fingerprint: Vec<u8>, alpn: &[u8]) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let verifier = Pinned { fingerprint, algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.into()];
    Ok(Arc::new(config))
}

/// The node's configuration, for protocols with these names. Agents resume their sessions with tickets (RFC 8446, section 2.2).
///
/// # Errors
///
/// Where the certificate and the key do not match.
pub fn server(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct Pinned {
    fingerprint: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if fingerprint(certificate)[..] == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
