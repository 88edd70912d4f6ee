//! Signatures of webhook deliveries: HMAC-SHA256 over event id, timestamp and body. See
//! `docs/develop/decisions/0011-events-and-webhooks.md`.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

/// Header with the event's id, which is the same in every attempt.
pub const ID: &str = "service-webhook-id";
/// Header with the time of the attempt, in seconds since the Unix epoch.
pub const TIMESTAMP: &str = "service-webhook-timestamp";
/// Header with `v1=` and the signature.
pub const SIGNATURE: &str = "service-webhook-signature";

/// The header value `v1=` and HMAC-SHA256 over `<id>.<timestamp>.<raw_body>` in hexadecimal. The key is
/// the UTF-8 bytes of the whole secret.
pub fn signature(secret: &str, event_id: Uuid, timestamp: i64, body: &[u8]) -> String {
    format!("v1={}", hex::encode(mac(secret, event_id, timestamp, body).finalize().into_bytes()))
}

/// Whether a header value is the signature of these parts. How long it takes does not depend on how much of it is right.
pub fn is_signature(given: &str, secret: &str, event_id: Uuid, timestamp: i64, body: &[u8]) -> bool {
    let bytes = given.strip_prefix("v1=").and_then(|digits| hex::decode(digits).ok());
    bytes.is_some_and(|bytes| mac(secret, event_id, timestamp, body).verify_slice(&bytes).is_ok())
}

fn mac(secret: &str, event_id: Uuid, timestamp: i64, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(format!("{event_id}.{timestamp}.").as_bytes());
    mac.update(body);
    mac
}
