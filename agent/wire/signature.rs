//! Ed25519 signatures (RFC 8032) of devices.

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

/// Whether the signature over a statement was made with the private key of this public key.
pub fn verify(public_key: &[u8], statement: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public_key).verify(statement, signature).is_ok()
}
