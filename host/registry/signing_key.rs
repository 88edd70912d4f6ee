//! A private key, and the signatures that it makes.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;

/// A key for ECDSA P-256 or Ed25519.
pub enum SigningKey {
    Ecdsa(Box<EcdsaKeyPair>),
    Ed25519(Box<Ed25519KeyPair>),
}

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error(
        "must be a private key in PKCS #8 (`BEGIN PRIVATE KEY`), not encrypted; `openssl pkcs8 -topk8 -nocrypt` makes one"
    )]
    Pem,
    #[error("must be a key for ECDSA P-256 or Ed25519")]
    Kind,
    #[error("the signature could not be made")]
    Sign,
}

impl SigningKey {
    /// Reads the PEM text of a key in PKCS #8 (RFC 5958).
    ///
    /// # Errors
    ///
    /// If it is none, or for another algorithm.
    pub fn parse(pem: &[u8]) -> Result<Self, SigningError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| SigningError::Pem)?;
        let der = der.secret_pkcs8_der();
        if let Ok(key) = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der) {
            return Ok(Self::Ecdsa(Box::new(key)));
        }
        // openssl leaves out the public key.
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| SigningError::Kind)?;
        Ok(Self::Ed25519(Box::new(key)))
    }

    /// A signature over a module's bytes, in base64.
    ///
    /// # Errors
    ///
    /// If there are no random numbers.
    pub fn sign(&self, wasm: &[u8]) -> Result<String, SigningError> {
        Ok(match self {
            Self::Ecdsa(key) => {
                let signature = key.sign(&SystemRandom::new(), wasm).map_err(|_| SigningError::Sign)?;
                STANDARD.encode(signature)
            }
            Self::Ed25519(key) => STANDARD.encode(key.sign(wasm)),
        })
    }
}
