//! Certificates of http tunnels: who signs them.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod acme;
mod client;
pub mod dns_command;
pub mod local_ca;
pub mod zone;

use chrono::{DateTime, Utc};

/// A certificate with its key.
pub struct Issued {
    /// Who has signed it, in a form that changes with the authority.
    pub issuer: String,
    /// PEM.
    pub chain: String,
    /// PKCS #8 (RFC 5958), as DER.
    pub key: Vec<u8>,
    pub not_after: DateTime<Utc>,
}
