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
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(format!("{event_id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("v1={}", hex::encode(mac.finalize().into_bytes()))
}
