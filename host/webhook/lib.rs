//! Sending webhook deliveries: the HTTP client, the signature, and the guard that judges each address that is
//! dialled. Names are looked up in [`dns`], for custom domains as well.

#![deny(unsafe_code)]

pub mod client;
pub mod dns;
pub mod guard;
pub mod sign;
