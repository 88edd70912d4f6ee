//! Public keys, and the signatures that they accept: detached ones over the bytes of a module, as `cosign sign-blob
//! --key`, `openssl dgst -sha256 -sign` (ECDSA P-256) and `openssl pkeyutl -sign -rawin` (Ed25519) make them.

use std::path::Path;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ED25519, ParsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use culvert_policy::load::module_source::TrustedKeys as Keys;
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;

/// Keys that modules must be signed by.
#[derive(Debug)]
pub struct TrustedKeys(Vec<ParsedPublicKey>);

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("{0}")]
    File(#[from] std::io::Error),
    #[error("must be the PEM text of a public key (`BEGIN PUBLIC KEY`), or the name of a file with one")]
    Pem,
    #[error("must be a key for ECDSA P-256 or Ed25519")]
    Kind,
}

impl TrustedKeys {
    /// Reads keys, each a PEM text or the name of a file with one.
    ///
    /// # Errors
    ///
    /// The position of the key that cannot be used, and why.
    pub fn read(keys: &[String]) -> Result<Self, (usize, KeyError)> {
        let parsed = keys.iter().enumerate().map(|(index, key)| parse(key).map_err(|error| (index, error)));
        let parsed: Vec<Vec<_>> = parsed.collect::<Result<_, _>>()?;
        Ok(Self(parsed.into_iter().flatten().collect()))
    }
}

impl Keys for TrustedKeys {
    fn verify(&self, wasm: &[u8], signature: &[u8]) -> bool {
        let text: Vec<u8> = signature.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
        let decoded = STANDARD.decode(text).ok();
        // Which of the two it is cannot be told from the bytes alone.
        let forms = [Some(signature), decoded.as_deref()].into_iter().flatten();
        forms.into_iter().any(|form| self.0.iter().any(|key| key.verify_sig(wasm, form).is_ok()))
    }
}

/// A signature as base64 (RFC 4648, section 4), from a file that has it raw or as that.
pub fn in_base64(signature: &[u8]) -> String {
    match std::str::from_utf8(signature.trim_ascii()) {
        Ok(text) if text.is_ascii() => text.into(),
        _ => STANDARD.encode(signature),
    }
}

/// All keys of a text or a file.
fn parse(key: &str) -> Result<Vec<ParsedPublicKey>, KeyError> {
    let text = if key.contains("-----BEGIN") { key.to_owned() } else { std::fs::read_to_string(Path::new(key))? };
    let keys = SubjectPublicKeyInfoDer::pem_slice_iter(text.as_bytes());
    let keys: Vec<_> = keys.collect::<Result<_, _>>().map_err(|_| KeyError::Pem)?;
    if keys.is_empty() {
        return Err(KeyError::Pem);
    }
    let parse = |der: &SubjectPublicKeyInfoDer<'_>| {
        let ecdsa = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, der);
        ecdsa.or_else(|_| ParsedPublicKey::new(&ED25519, der)).map_err(|_| KeyError::Kind)
    };
    keys.iter().map(parse).collect()
}
