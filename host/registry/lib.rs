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
mod token;
pub mod trusted_keys;

pub use fetcher::Fetcher;
