//! Lease tokens: an agent proves to a node that the host has given it a lease.
//!
//! A token is the id of a key (8 bytes), followed by an Ed25519 signature (RFC 8032, 64 bytes) over the lease's
//! statement. The host holds the private keys; nodes hold public keys only.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base64_bytes::Base64Bytes;

pub(crate) const KEY_ID_BYTES: usize = 8;

/// What a token proves: this session of a tunnel, on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub node_id: Uuid,
    pub tunnel_id: Uuid,
    pub session_id: Uuid,
    pub epoch: i64,
}

impl Lease {
    /// The signed bytes. No signature of another kind has this prefix.
    fn statement(&self) -> Vec<u8> {
        let Self { node_id, tunnel_id, session_id, epoch } = self;
        let ids = [node_id, tunnel_id, session_id].map(|id| *id.as_bytes()).concat();
        [&b"culvert lease v1\0"[..], &ids, &epoch.to_be_bytes()].concat()
    }
}

/// A public key that tokens are verified with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyingKey {
    pub key_id: Base64Bytes,
    pub public_key: Base64Bytes,
}

/// The private key that tokens are signed with.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// The key pair of a seed (RFC 8032, section 5.1.5).
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(Ed25519KeyPair::from_seed_unchecked(seed).expect("every 32 bytes are a seed"))
    }

    pub fn verifying_key(&self) -> VerifyingKey {
        let public_key = self.0.public_key().as_ref();
        VerifyingKey { key_id: Base64Bytes(key_id(public_key)), public_key: Base64Bytes(public_key.into()) }
    }

    pub fn sign(&self, lease: &Lease) -> Vec<u8> {
        self.sign_bytes(&lease.statement())
    }

    /// The id of this key, followed by the signature.
    pub(crate) fn sign_bytes(&self, statement: &[u8]) -> Vec<u8> {
        [key_id(self.0.public_key().as_ref()).as_slice(), self.0.sign(statement).as_ref()].concat()
    }
}

impl VerifyingKey {
    pub(crate) fn verifies(&self, statement: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.public_key.0).verify(statement, signature).is_ok()
    }
}

/// Why a token does not prove a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The host may have another key now: a newer token can prove the lease.
    #[error("the token is signed by a key that is not accepted")]
    UnknownKey,
    #[error("the token is of another lease")]
    Invalid,
}

/// Checks that a token proves a lease, by one of these keys.
///
/// # Errors
///
/// Why it does not.
pub fn verify(keys: &[VerifyingKey], lease: &Lease, token: &[u8]) -> Result<(), TokenError> {
    let (key_id, signature) = token.split_at_checked(KEY_ID_BYTES).ok_or(TokenError::UnknownKey)?;
    let key = keys.iter().find(|key| key.key_id.0 == key_id).ok_or(TokenError::UnknownKey)?;
    if key.verifies(&lease.statement(), signature) { Ok(()) } else { Err(TokenError::Invalid) }
}

/// The id of a key: the first bytes of the SHA-256 of its public half.
fn key_id(public_key: &[u8]) -> Vec<u8> {
    digest(&SHA256, public_key).as_ref()[..KEY_ID_BYTES].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        let [node_id, tunnel_id, session_id] = [1, 2, 3].map(Uuid::from_u128);
        Lease { node_id, tunnel_id, session_id, epoch: 7 }
    }

    #[test]
    fn token_is_valid_for_its_lease_and_key_only() {
        let key = SigningKey::from_seed(&[1; 32]);
        let keys = [key.verifying_key()];
        let token = key.sign(&lease());
        assert_eq!(verify(&keys, &lease(), &token), Ok(()));
        let other = Uuid::from_u128(9);
        for wrong in [
            Lease { node_id: other, ..lease() },
            Lease { tunnel_id: other, ..lease() },
            Lease { session_id: other, ..lease() },
            Lease { epoch: 8, ..lease() },
            Lease { epoch: 6, ..lease() },
        ] {
            assert_eq!(verify(&keys, &wrong, &token), Err(TokenError::Invalid), "{wrong:?}");
        }
        let stranger = SigningKey::from_seed(&[2; 32]);
        let unknown = Err(TokenError::UnknownKey);
        assert_eq!(verify(&keys, &lease(), &stranger.sign(&lease())), unknown, "another key");
        assert_eq!(verify(&[stranger.verifying_key()], &lease(), &token), unknown, "a key that was replaced");
        let forged = [&token[..KEY_ID_BYTES], &stranger.sign(&lease())[KEY_ID_BYTES..]].concat();
        assert_eq!(verify(&keys, &lease(), &forged), Err(TokenError::Invalid), "another key under this key's id");
        for length in 0..token.len() {
            assert!(verify(&keys, &lease(), &token[..length]).is_err(), "the first {length} bytes");
        }
        for index in 0..token.len() {
            let mut changed = token.clone();
            changed[index] ^= 1;
            assert!(verify(&keys, &lease(), &changed).is_err(), "byte {index} changed");
        }
    }
}
