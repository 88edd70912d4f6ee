//! Policy modules from elsewhere: OCI registries and web servers, and the signatures that they are trusted by.
//!
//! What is fetched here is not trusted: `culvert-policy` holds it to digests, and to signatures where keys are configured.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod credentials;
mod download;
mod fetcher;
pub mod registry;
pub mod signing_key;
pub mod trusted_keys;

pub use fetcher::Fetcher;

use base64::Engine as _;

/// Bytes as base64 (RFC 4648, section 4).
pub fn base64_of(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
