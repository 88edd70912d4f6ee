//! Device tokens: an agent proves to a node which device and which process it is.
//!
//! ```text
//!  0   8 bytes  key_id           40  16 bytes  boot_id
//!  8  16 bytes  node_id          56   u64      not_after, seconds since 1970, big-endian
//! 24  16 bytes  device_id        64  64 bytes  Ed25519 (RFC 8032) over "culvert device v1", a zero byte, and bytes 8 to 63
//! ```
//!
//! The host signs them with the key of the lease tokens. A token says only who is there; what the device
//! may serve is up to the node's assignments.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base64_bytes::Base64Bytes;
use crate::lease_token::{KEY_ID_BYTES, SigningKey, VerifyingKey};

/// How long a token is valid.
pub const VALID_FOR: TimeDelta = TimeDelta::hours(24);
/// How far the clocks of host and node may differ.
const SKEW: TimeDelta = TimeDelta::seconds(60);

const LENGTH: usize = 128;
const SIGNATURE: usize = 64;
const PREFIX: &[u8] = b"culvert device v1\0";

/// One process of a device's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentProcess {
    pub device_id: Uuid,
    pub boot_id: Uuid,
}

/// A token, with the node that it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceToken {
    pub node_id: Uuid,
    pub token: Base64Bytes,
}

/// Why a token does not prove anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceTokenError {
    #[error("the token is not of this node, or not signed by a key that is accepted")]
    Invalid,
    #[error("the token is no longer valid")]
    Expired,
}

/// Signs a token for a node, valid from now on.
pub fn sign(key: &SigningKey, node_id: Uuid, process: AgentProcess, now: DateTime<Utc>) -> DeviceToken {
    let not_after = u64::try_from((now + VALID_FOR).timestamp()).unwrap_or_default();
    let ids = [node_id, process.device_id, process.boot_id].map(|id| *id.as_bytes()).concat();
    let body = [&ids[..], &not_after.to_be_bytes()].concat();
    let signed = key.sign_bytes(&[PREFIX, &body].concat());
    // The key's id stands in front of the signature, but in front of the body here.
    let (key_id, signature) = signed.split_at(KEY_ID_BYTES);
    DeviceToken { node_id, token: Base64Bytes([key_id, &body, signature].concat()) }
}

/// The agent process that a token is of.
///
/// # Errors
///
/// If the token is not for this node, is not signed by one of these keys, or has expired.
pub fn verify(
    keys: &[VerifyingKey],
    node_id: Uuid,
    token: &[u8],
    now: DateTime<Utc>,
) -> Result<AgentProcess, DeviceTokenError> {
    if token.len() != LENGTH {
        return Err(DeviceTokenError::Invalid);
    }
    let (key_id, rest) = token.split_at(KEY_ID_BYTES);
    let (body, signature) = rest.split_at(LENGTH - KEY_ID_BYTES - SIGNATURE);
    let key = keys.iter().find(|key| key.key_id.0 == key_id).ok_or(DeviceTokenError::Invalid)?;
    if !key.verifies(&[PREFIX, body].concat(), signature) {
        return Err(DeviceTokenError::Invalid);
    }
    let id = |at: usize| Uuid::from_slice(&body[at..at + 16]).unwrap_or_default();
    if id(0) != node_id {
        return Err(DeviceTokenError::Invalid);
    }
    let not_after = body[48..].iter().fold(0_u64, |seconds, byte| seconds << 8 | u64::from(*byte));
    let now = u64::try_from((now - SKEW).timestamp()).unwrap_or_default();
    if now > not_after {
        return Err(DeviceTokenError::Expired);
    }
    Ok(AgentProcess { device_id: id(16), boot_id: id(32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Uuid = Uuid::from_u128(1);
    const PROCESS: AgentProcess = AgentProcess { device_id: Uuid::from_u128(2), boot_id: Uuid::from_u128(3) };

    #[test]
    fn token_proves_its_process_to_its_node_until_it_expires() {
        let (key, other) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        let token = sign(&key, NODE, PROCESS, now).token.0;
        let keys = [other.verifying_key(), key.verifying_key()];
        assert_eq!(token.len(), LENGTH);
        assert_eq!(verify(&keys, NODE, &token, now), Ok(PROCESS));
        assert_eq!(verify(&keys, NODE, &token, now + VALID_FOR + SKEW), Ok(PROCESS));
        let late = now + VALID_FOR + SKEW + TimeDelta::seconds(1);
        assert_eq!(verify(&keys, NODE, &token, late), Err(DeviceTokenError::Expired));
        assert_eq!(verify(&keys, Uuid::from_u128(9), &token, now), Err(DeviceTokenError::Invalid));
        assert_eq!(verify(&keys[..1], NODE, &token, now), Err(DeviceTokenError::Invalid));
    }

    #[test]
    fn no_changed_byte_and_no_other_length_is_accepted() {
        let key = SigningKey::from_seed(&[1; 32]);
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        let token = sign(&key, NODE, PROCESS, now).token.0;
        let keys = [key.verifying_key()];
        for at in 0..token.len() {
            let mut changed = token.clone();
            changed[at] ^= 1;
            assert_eq!(verify(&keys, NODE, &changed, now), Err(DeviceTokenError::Invalid), "byte {at}");
        }
        for length in (0..token.len()).chain([token.len() + 1]) {
            let mut other = token.clone();
            other.resize(length, 0);
            assert_eq!(verify(&keys, NODE, &other, now), Err(DeviceTokenError::Invalid), "{length} bytes");
        }
    }
}
